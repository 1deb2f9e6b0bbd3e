"""Simulate `nvidia-cuda-mps-control` without a GPU, with the same options, commands and exit codes."""

import json
import stat
import sys
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.processes.mps import PROGRAM
from tests.support.comfyui_install import is_running_process

_PROGRAM = """#!{python}
import json, os, signal, socket, subprocess, sys
from pathlib import Path

here = Path(__file__).parent
pipes = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
now = json.loads((here / "behaviour.json").read_text("utf-8"))

def serve():
    if "fails" in now:
        print(now["fails"], file=sys.stderr, flush=True)
        sys.exit(1)
    if now.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"])
    start = dict(pid=os.getpid(), server=server.pid, environment=dict(os.environ), heard=[])
    control = socket.socket(socket.AF_UNIX)
    control.bind(str(pipes / "control"))
    control.listen()
    (pipes / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    while True:
        with (here / "lives.part").open("w") as part:
            json.dump(start, part)
        os.replace(here / "lives.part", here / f"life-{{os.getpid()}}.json")
        asked, _ = control.accept()
        with asked:
            word = asked.recv(100).decode().strip()
            start["heard"].append(word)
            asked.sendall(b"ok")
        if word == "quit" and not now.get("deaf"):
            server.terminate()
            server.wait()
            with (here / "quits").open("a") as quits:
                quits.write("quit\\n")
            sys.exit(0)

if sys.argv[1:] == ["-f"]:
    serve()
if sys.argv[1:] == ["-d"]:
    if os.fork():
        sys.exit(0)
    os.setsid()
    serve()
with socket.socket(socket.AF_UNIX) as control:
    try:
        control.connect(str(pipes / "control"))
    except OSError:
        print("Cannot find MPS control daemon process")
        sys.exit(1)
    control.sendall(sys.stdin.buffer.read())
    control.recv(100)
"""


class MpsControl:
    """The simulator; put its `folder` on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.program = folder / PROGRAM
        self.program.write_text(_PROGRAM.format(python=sys.executable))
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.behave()

    def behave(self, **behavior: Any) -> None:
        """Make later daemons fail with this message, or ignore `quit` and SIGTERM (`deaf`)."""
        (self.folder / "behaviour.json").write_text(json.dumps(behavior))

    @property
    def starts(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text("utf-8")) for path in sorted(self.folder.glob("life-*.json"))]

    @property
    def running_pids(self) -> list[int]:
        return [pid for start in self.starts for pid in (start["pid"], start["server"]) if is_running_process(pid)]

    @property
    def quits(self) -> int:
        path = self.folder / "quits"
        return len(path.read_text().splitlines()) if path.exists() else 0
