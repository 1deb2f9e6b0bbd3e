"""Install a wheel as users do, start the desk, make the first picture on the built-in simulator, and stop.

    python tools/smoke.py dist/comfyrelay-1.2.3-py3-none-any.whl [pip | uvx | pipx]

`pip` uses a new virtual environment of this Python. `uvx` and `pipx` must be on the PATH. Needs only the
standard library.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

# Ctrl-C on POSIX. On Windows, only Ctrl-Break can be sent to another process group.
STOP = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGINT)
OWN_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


def smoke(wheel: Path, installer: str, folder: Path) -> None:
    started = time.monotonic()
    command = {"pip": _pip, "uvx": _uvx, "pipx": _pipx}[installer](wheel, folder)
    version = _output([*command, "--version"]).strip()
    installed = time.monotonic()
    port = str(_free_port())
    environ = {**os.environ, "COMFYRELAY_DATA_DIR": str(folder / "data"), "COMFYRELAY_PORT": port}
    words = [*command, "up"]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True, creationflags=OWN_GROUP) as up:
        try:
            assert up.stdout is not None
            line = up.stdout.readline()
            assert f"is up at http://127.0.0.1:{port}" in line, line
            answered = time.monotonic()
            sample = folder / "data" / "inputs" / "examples" / "sample.png"
            out = ("--out", str(folder / "made"))
            _output([*command, "run", "invert-image", "--input", str(sample), *out], environ)
            [picture] = (folder / "made").iterdir()
            assert picture.stat().st_size > 0
            finished = time.monotonic()
            up.send_signal(STOP)
            up.stdout.read()
            assert up.wait() == 0, f"`comfyrelay up` ended with {up.returncode}."
        finally:
            up.kill()
    print(
        f"ComfyRelay {version} with {installer} on Python {sys.version.split()[0]}: installed in"
        f" {installed - started:.0f} s, up in {answered - installed:.1f} s, first picture after"
        f" {finished - answered:.1f} s, stopped in {time.monotonic() - finished:.1f} s."
    )


def _pip(wheel: Path, folder: Path) -> list[str]:
    venv.create(folder / "venv", with_pip=True)
    [scripts] = [each.parent for each in (folder / "venv").glob("*/activate")]
    _output([str(scripts / "python"), "-m", "pip", "install", "--quiet", f"{wheel}[desk]"])
    return [str(scripts / "comfyrelay")]


def _uvx(wheel: Path, _folder: Path) -> list[str]:
    return ["uvx", "--python", sys.executable, "--from", f"{wheel}[desk]", "comfyrelay"]


def _pipx(wheel: Path, _folder: Path) -> list[str]:
    return ["pipx", "run", "--quiet", "--python", sys.executable, "--spec", f"{wheel}[desk]", "comfyrelay"]


def _output(words: Sequence[str], environ: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stdout}"
    return done.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="comfyrelay-smoke-") as temporary:
        smoke(Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else "pip", Path(temporary))
