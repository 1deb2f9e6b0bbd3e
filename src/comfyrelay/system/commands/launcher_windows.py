"""The launcher on Windows: run one command, and terminate all processes that it has started. See `launcher.py`.

    python launcher_windows.py GRACE_SECONDS - COMMAND [ARGUMENT…]

Windows has no SIGTERM, so processes are killed at once. A process escapes if it was started and lost its parent between
two checks.

This file runs as a script: it must not import from comfyrelay.
"""

import os
import subprocess
import sys
import threading
from contextlib import suppress

import psutil

CANNOT_START = 127
FIRM_SECONDS = 10.0
LOOK_SECONDS = 0.2


def main(command: list[str]) -> int:
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}.", flush=True)
        return CANNOT_START
    family = WindowsFamily()
    threading.Thread(target=_end_when_let_go, args=(family,), daemon=True).start()
    while True:
        family.scan()
        try:
            code = child.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        family.end()
        return code


class WindowsFamily:
    """All descendants seen so far. A process whose parent has exited cannot be found later."""

    def __init__(self) -> None:
        self._seen: set[psutil.Process] = set()

    def scan(self) -> None:
        self._seen.update(psutil.Process().children(recursive=True))

    def end(self) -> None:
        self.scan()
        for each in [*self._seen]:
            with suppress(psutil.Error):
                # identified by id and start time, because ids are reused
                each.kill()
        psutil.wait_procs(self._seen, timeout=FIRM_SECONDS)


def _end_when_let_go(family: WindowsFamily) -> None:
    # not `sys.stdin`: its lock would block the exit of this process
    while os.read(0, 4096):
        pass
    family.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[3:]))
