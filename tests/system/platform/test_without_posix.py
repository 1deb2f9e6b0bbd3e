"""Commands start, work and stop without POSIX, simulated or real."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from comfyrelay.desk.examples import sample_image
from tests.support.desk import copy_initial_data
from tests.support.graphs import invert
from tests.support.paths import ROOT
from tests.support.server_processes import free_port
from tests.support.windows import CTRL_BREAK, CTRL_C, GROUP, PYTHON, environment
from tests.support.world import PATIENCE_SECONDS

FLEET_SECRET = "a secret that is long enough for a fleet"
IMAGE = {"output_node_id": "3", "output_extension": "png", "output_mime_type": "image/png"}


@asynccontextmanager
async def started(*words: str, variables: Mapping[str, str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(*PYTHON, "-m", "comfyrelay", *words),
            env=variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            creationflags=GROUP,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until(log: Path, text: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        # another process writes the file and sends no signal
        while text not in log.read_text("utf-8", "replace"):
            assert process.returncode is None, log.read_text("utf-8", "replace")
            await asyncio.sleep(0.05)


async def end(process: asyncio.subprocess.Process, number: int, log: Path) -> None:
    process.send_signal(number)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await process.wait() == 0, log.read_text("utf-8", "replace")


async def call(*words: str, variables: Mapping[str, str]) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(*PYTHON, *words), cwd=ROOT, env=variables, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode("utf-8", "replace")


@pytest.mark.journey
@pytest.mark.skipif(sys.platform != "linux", reason="they are run as they are there, or cannot be played")
async def test_windows_rules_hold_in_the_simulation(tmp_path: Path) -> None:
    rules = ROOT / "tests" / "unit" / "platform" / "test_as_windows.py"
    # load only the parts of pytest that run everywhere
    plain = ("-m", "pytest", "-q", "-c", "/dev/null", "--noconftest", "-p", "no:cacheprovider")
    asynchronous = ("--import-mode=importlib", "-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto")
    words = (*plain, *asynchronous, "--basetemp", str(tmp_path / "rules"))
    variables = environment(tmp_path / "rules", TESTS_WINDOWS_KEYS="pq", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    code, output = await call(*words, str(rules), variables=variables)
    assert code == 0, output
    assert re.search(r"^\d+ passed in", output, re.MULTILINE), output


async def test_desk_runs_a_batch_from_windows_folders(tmp_path: Path) -> None:
    root = tmp_path / "My Files #1 (50%)"
    data = root / "data"
    copy_initial_data(data)
    inputs = root / "Ünsere Bilder"
    inputs.mkdir()
    for name in ("one picture.png", "Zwei ä.PNG"):
        (inputs / name).write_bytes(sample_image())
    (root / "comfyrelay.toml").write_bytes("\ufeffblock_cooldown_seconds = 1\r\n".encode())
    port = free_port()
    variables = environment(
        root,
        COMFYRELAY_CONFIG=str(root / "comfyrelay.toml"),
        COMFYRELAY_DATA_DIR=str(data),
        COMFYRELAY_PORT=str(port),
        COMFYRELAY_URL=f"http://127.0.0.1:{port}",
        XDG_STATE_HOME=str(root / "state"),
        PYTHONIOENCODING="cp1252",
    )
    log = tmp_path / "up.log"
    async with started("up", variables=variables, log=log) as desk:
        await until(log, "Press Ctrl-C to stop.", desk)
        words = ("batch", "add", "invert-image", "--input", str(inputs), "--label", 'CON: "night?"')
        code, text = await call("-m", "comfyrelay", *words, "--output-folder", "aux", variables=variables)
        assert code == 0, text
        again = ("run", "invert-image", "--input", str(inputs / "one picture.png"), "--out", str(root / "made → here"))
        code, text = await call("-m", "comfyrelay", *again, variables=variables)
        assert code == 0, text
        assert len(list((root / "made → here").iterdir())) == 1
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(names := sorted(path.name for path in data.glob("outputs/aux_/[!.]*"))) < 2:
                assert desk.returncode is None, log.read_text()
                await asyncio.sleep(0.05)
        assert names == ["0001_one-picture.png", "0002_Zwei-ä.png"]
        await end(desk, CTRL_BREAK, log)
    text = log.read_text("cp1252")
    assert text.rstrip().splitlines()[-1].startswith("Stopped.")
    assert "Traceback" not in text


async def test_server_worker_and_simulator_run_a_job_and_stop_on_ctrl_c(tmp_path: Path) -> None:
    port, comfyui = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    variables = environment(
        tmp_path,
        COMFYRELAY_DATA_DIR=str(tmp_path / "server"),
        COMFYRELAY_PORT=str(port),
        COMFYRELAY_FLEET_SECRETS=json.dumps({"production": [FLEET_SECRET]}),
        COMFYRELAY_WORKER_API_BASE_URL=url,
        COMFYRELAY_WORKER_DATA_DIR=str(tmp_path / "worker"),
        COMFYRELAY_WORKER_METADATA_URL="off",
        FLEET_SECRET=FLEET_SECRET,
        FLEET_SLUG="gpus",
        FLEET_STAGE="production",
        WORKER_ID="gpu-1",
        COMFYUI_BASE_URL=f"http://127.0.0.1:{comfyui}",
    )
    words = ("admin", "create", "--email", "root@example.com", "--password", "a long password")
    code, output = await call("-m", "comfyrelay", *words, variables=variables)
    assert code == 0, output
    logs = {name: tmp_path / f"{name}.log" for name in ("simulator", "server", "worker")}
    async with (
        started("simulator", "--port", str(comfyui), variables=variables, log=logs["simulator"]) as simulator,
        started("server", variables=variables, log=logs["server"]) as server,
    ):
        await until(logs["simulator"], "Press Ctrl-C to stop.", simulator)
        await until(logs["server"], "serves at", server)
        headers = {"Authorization": f"Bearer {output.split()[-1]}"}
        transport = httpx.AsyncHTTPTransport(retries=8)
        async with httpx.AsyncClient(transport=transport, base_url=url, headers=headers, timeout=60) as http:
            workflow = {"slug": "invert", "graph": invert(), "properties": [], **IMAGE}
            for path, body in (("workflows", workflow), ("fleets", {"slug": "gpus", "workflow_slugs": ["invert"]})):
                response = await http.post(f"/api/admin/{path}", json=body)
                assert response.is_success, response.text
        async with started("worker", variables=variables, log=logs["worker"]) as worker:
            await until(logs["worker"], "worker.registered", worker)
            await end(worker, CTRL_C, logs["worker"])
        await end(server, CTRL_C, logs["server"])
        await end(simulator, CTRL_C, logs["simulator"])
    assert not any("Traceback" in log.read_text() for log in logs.values())
