"""The TypeScript SDK of Comfy Org from npm, unmodified, with every call of its documentation."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from comfyrelay.simulator.misbehaviour import Fail, Slow
from tests.support.api_calls import png
from tests.support.comfy_site import open_comfy_site
from tests.support.world import SqliteBackend

SDK = "@comfyorg/sdk@0.1.9"
SCRIPT = Path(__file__).parent / "comfy_sdk.mjs"
# As documented: keys of partner nodes are set on the workers.
REFUSED = {"apiKey of partner nodes": "extra_data"}


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the installed package."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("The TypeScript SDK needs node and npm, which are not installed.")
    folder = tmp_path_factory.mktemp("sdk")
    options = ["--no-audit", "--no-fund", "--no-save", "--ignore-scripts"]
    done = subprocess.run([npm, "install", *options, SDK], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"npm cannot install {SDK}: {done.stderr[-300:]}")
    return folder


async def test_every_documented_call_works(sdk: Path, sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(png("red"))
    async with open_comfy_site(sqlite_backend, tmp_path, webhook_allow_private=True) as site:
        site.simulator.misbehave(Slow(class_type="ImageScale", seconds=600, steps=6000))
        site.simulator.misbehave(Fail(class_type="ImageCrop"))
        environ = {**os.environ, "COMFY_BASE_URL": site.url, "COMFY_API_KEY": site.token}
        process = await asyncio.create_subprocess_exec(
            *("node", SCRIPT, sdk, tmp_path / "photo.png"), env=environ, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
    found = json.loads(out)
    for name, words in REFUSED.items():
        assert words in found.pop(name)
    assert {name: problem for name, problem in found.items() if problem is not None} == {}
    assert len(found) > 20
