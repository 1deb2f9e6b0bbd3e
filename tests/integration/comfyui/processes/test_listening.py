"""The folder of a local ComfyUI is found by its address, but only if the folder is certain."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from comfyrelay.comfyui.processes.listening import base_of, find_base
from tests.support.server_processes import free_port

SERVER = """
import http.server, sys
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.BaseHTTPRequestHandler)
print("ready", flush=True)
server.serve_forever()
"""


@pytest.fixture
def install(tmp_path: Path) -> Path:
    for name in ("comfy", "input", "output"):
        (tmp_path / "ComfyUI" / name).mkdir(parents=True)
    (tmp_path / "ComfyUI" / "main.py").write_text(SERVER)
    return tmp_path / "ComfyUI"


@asynccontextmanager
async def listening(folder: Path, *arguments: str) -> AsyncIterator[None]:
    """Run a process that listens, and wait until it does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    yield
    process.kill()
    await process.wait()


async def test_folder_of_a_local_comfyui_is_found_by_its_address(install: Path) -> None:
    port = free_port()
    assert find_base(f"http://127.0.0.1:{port}") is None
    async with listening(install, "main.py", str(port)):
        assert find_base(f"http://127.0.0.1:{port}") == install
        assert find_base(f"http://localhost:{port}") == install
        # The same port of another machine belongs to another server.
        assert find_base(f"http://192.0.2.1:{port}") is None


async def test_other_program_at_the_address_has_no_folder(install: Path) -> None:
    port = free_port()
    (install / "tunnel.py").write_text(SERVER)
    async with listening(install, "tunnel.py", str(port)):
        assert find_base(f"http://127.0.0.1:{port}") is None


def test_base_directory_is_used(install: Path, tmp_path: Path) -> None:
    (tmp_path / "base" / "output").mkdir(parents=True)
    for option in (["--base-directory", "../base"], ["--base-directory=../base"]):
        assert base_of(["python", "main.py", *option], install) == tmp_path / "base"


@pytest.mark.parametrize("kind", ["input", "output", "temp"])
def test_folder_with_separate_directories_is_not_certain(install: Path, kind: str) -> None:
    assert base_of(["python", "main.py", f"--{kind}-directory", "/elsewhere"], install) is None


def test_directories_that_name_the_usual_folders_are_accepted(install: Path) -> None:
    options = ["--output-directory", str(install / "output"), "--temp-directory", str(install)]
    assert base_of(["python", str(install / "main.py"), *options], Path("/")) == install


def test_main_file_of_another_program_is_not_comfyui(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    assert base_of(["python", "main.py"], tmp_path) is None
