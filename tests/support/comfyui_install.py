"""A fake ComfyUI installation: a folder whose `main.py` runs the simulator."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from comfyrelay.comfyui.processes.options import ManagedOptions
from tests.support.world import PATIENCE_SECONDS

_MAIN = """
import argparse, asyncio, json, os, signal, subprocess, sys, time
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("--listen", "--input-directory", "--output-directory", "--temp-directory", "--user-directory",
             "--database-url", "--base-directory", "--extra-model-paths-config"):
    parser.add_argument(name)
parser.add_argument("--port", type=int)
for name in ("--disable-auto-launch", "--cpu", "--lowvram"):
    parser.add_argument(name, action="store_true")
args = parser.parse_args()
here = Path(__file__).parent
behaviour = json.loads((here / "behaviour.json").read_text("utf-8"))
print(f"Starting on {os.environ.get('CUDA_VISIBLE_DEVICES')} at {args.port}", flush=True)
start = {"pid": os.getpid(), "port": args.port, "argv": sys.argv[1:], "environment": dict(os.environ), "children": []}
if behaviour.get("child"):
    # in its own session, as a custom node may do
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"], start_new_session=True)
    start["children"].append(child.pid)
with (here / "starts.jsonl").open("a") as starts:
    starts.write(json.dumps(start) + "\\n")
faulty = here / "faulty"
known = json.loads(faulty.read_text("utf-8")) if faulty.exists() else []
if "CUDA_MPS_PIPE_DIRECTORY" in os.environ and any(Path(f"/proc/{pid}").exists() for pid in known):
    print("Error 807: MPS server is not ready to accept new MPS client requests", file=sys.stderr)
    sys.exit(1)

def fault(*_):
    # under MPS, a fault affects all processes on the GPU
    GPU = "CUDA_VISIBLE_DEVICES"
    starts = [json.loads(line) for line in (here / "starts.jsonl").read_text("utf-8").splitlines()]
    affected = [start["pid"] for start in starts if start["environment"].get(GPU) == os.environ.get(GPU)]
    faulty.write_text(json.dumps([pid for pid in affected if Path(f"/proc/{pid}").exists()]))
    print("RuntimeError: CUDA error: an illegal memory access was encountered", file=sys.stderr, flush=True)

if behaviour.get("stubborn"):
    signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM", flush=True))
if hasattr(signal, "SIGUSR1"):
    signal.signal(signal.SIGUSR1, fault)
if behaviour.get("mps") == "fails" and "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
    print("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 805: MPS client failed to connect to the "
          "MPS control daemon or the MPS server", file=sys.stderr)
    sys.exit(1)
if behaviour.get("mps") == "exits" and "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
    sys.exit(1)
if behaviour.get("no_driver"):
    print("Traceback (most recent call last):\\n  torch._C._cuda_init()\\nRuntimeError: Found no NVIDIA driver on your "
          "system. Please check that you have an NVIDIA GPU and installed a driver from http://x", file=sys.stderr)
    sys.exit(1)
if "exit" in behaviour:
    print("Traceback (most recent call last):\\nModuleNotFoundError: No module named 'torchsde'", file=sys.stderr)
    sys.exit(behaviour["exit"])
if behaviour.get("full"):
    Path("/dev/full").write_text("a picture")
if behaviour.get("sleep"):
    time.sleep(10_000)

async def answer(_reader, writer):
    body = json.dumps({"system": {"argv": sys.argv}}).encode()
    writer.write(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    await writer.drain()
    writer.close()

async def plain():
    server = await asyncio.start_server(answer, "127.0.0.1", args.port)
    print("To see the GUI go to: http://127.0.0.1", flush=True)
    async with server:
        await server.serve_forever()

async def mute():
    server = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(10_000), "127.0.0.1", args.port)
    async with server:
        await server.serve_forever()

if behaviour.get("mute"):
    asyncio.run(mute())
if (here / "plain").exists():
    asyncio.run(plain())

from collections import deque
from comfyrelay.simulator import Simulator, read_gpu, read_misbehaviour, serve

class PrintingLog(deque):
    def append(self, received):
        super().append(received)
        if received.path.endswith("/prompt") and received.method == "POST":
            print("got prompt", flush=True)

def ready(simulator):
    simulator.log.requests = PrintingLog(maxlen=1000)
    print("To see the GUI go to: http://127.0.0.1", flush=True)

simulator = Simulator(
    port=args.port,
    folder=Path(args.temp_directory),
    models={"checkpoints": ["simulator.safetensors", "broken.safetensors"]},
    arguments=sys.argv[1:],
    follows_links=True,
    misbehaviour=[read_misbehaviour(fields) for fields in behaviour.get("misbehave", ())],
    gpu=read_gpu(behaviour["gpu"]) if "gpu" in behaviour else None,
    step_seconds=behaviour.get("step_seconds", 0.0),
)
asyncio.run(serve(simulator, on_ready=ready))
"""
_OPTIONS = '"--user-directory" "--database-url" "--base-directory"'


class FakeInstall:
    """A fake installation; with `is_plain`, it only answers health checks and starts faster."""

    def __init__(self, folder: Path, *, is_plain: bool = False) -> None:
        self.folder = folder
        (folder / "comfy").mkdir(parents=True)
        (folder / "input").mkdir()
        (folder / "comfy" / "cli_args.py").write_text(_OPTIONS)
        (folder / "comfyui_version.py").write_text('__version__ = "0.7.0"\n')
        (folder / "main.py").write_text(_MAIN)
        if is_plain:
            (folder / "plain").touch()
        self.behave()

    def behave(self, **behaviour: Any) -> None:
        """Set the behaviour of later starts.

        A start can `exit` with a code, find `no_driver`, `sleep`, be `mute`, be `stubborn` on SIGTERM, have a `full`
        disk, start a `child`, use a simulated `gpu`, take `step_seconds` per step, and under `mps` exit with or without
        CUDA's error.
        """
        part = self.folder / "behaviour.part"
        part.write_text(json.dumps(behaviour))
        part.replace(self.folder / "behaviour.json")

    @property
    def starts(self) -> list[dict[str, Any]]:
        path = self.folder / "starts.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    @property
    def running_pids(self) -> list[int]:
        """Running processes of all starts and their children."""
        known = [pid for start in self.starts for pid in (start["pid"], *start["children"])]
        return [pid for pid in known if is_running_process(pid)]

    def fault(self) -> None:
        """Report a GPU fault in the newest process."""
        os.kill(self.starts[-1]["pid"], signal.SIGUSR1)

    def kill(self) -> None:
        """Kill the newest process."""
        os.kill(self.starts[-1]["pid"], signal.SIGKILL)

    def options(
        self, *, per_gpu: int | str = 1, arguments: Sequence[str] = ("--cpu",), mps: str = "off"
    ) -> ManagedOptions:
        return ManagedOptions(
            folder=self.folder,
            python=Path(sys.executable),
            arguments=tuple(arguments),
            per_gpu=per_gpu,  # type: ignore[arg-type]
            mps=mps,  # type: ignore[arg-type]
        )


async def wait_until_running(install: FakeInstall, count: int) -> None:
    """Wait until this many processes run a job."""
    async with asyncio.timeout(PATIENCE_SECONDS), httpx.AsyncClient() as http:
        while True:
            running = 0
            for start in install.starts:
                try:
                    queue = (await http.get(f"http://127.0.0.1:{start['port']}/queue")).json()
                except httpx.TransportError:
                    continue
                running += len(queue["queue_running"])
            if running >= count:
                return
            await asyncio.sleep(0.05)


def is_running_process(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False
