"""The commands of the tutorial "From one machine to many" run as written."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import orjson

from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.simulator import Simulator
from tests.support.graphs import invert
from tests.support.paths import ROOT
from tests.support.server_processes import free_port

PAGE = ROOT / "docs" / "tutorial" / "from-one-machine-to-many.md"
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)


async def test_tutorial_commands_start_a_server_and_a_worker_that_run_jobs(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_bytes(orjson.dumps(invert()))
    async with Simulator() as comfyui:
        commands = "set -eu\n" + "\n".join(BLOCKS).replace("8430", str(free_port()))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", commands),
            cwd=tmp_path,
            env={
                **environment,
                "HOME": str(tmp_path),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "COMFYUI_BASE_URL": comfyui.url,
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
    logs = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert process.returncode == 0, err.decode() + logs
    assert "workflow invert: It would be assigned." in out.decode()
    assert [path.suffix for path in tmp_path.glob("invert-*")] == [".png"]
