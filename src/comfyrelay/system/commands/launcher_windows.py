"""Run one command on Windows, and terminate all processes that it has started. See `launcher.py`.

    python launcher_windows.py GRACE_SECONDS - COMMAND [ARGUMENT…]

Windows has no SIGTERM, so processes are killed at once. A process escapes if it is started and loses its parent between
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
KILL_SECONDS = 10.0
SCAN_SECONDS = 0.2


def main(command: list[str]) -> int:
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}.", flush=True)
        return CANNOT_START
    tree = WindowsProcessTree()
    threading.Thread(target=_kill_when_stdin_closes, args=(tree,), daemon=True).start()
    while True:
        tree.scan()
        try:
            code = child.wait(SCAN_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        tree.kill()
        return code


class WindowsProcessTree:
    """All descendants found so far. A process cannot be found after its parent has exited."""

    def __init__(self) -> None:
        self._processes: set[psutil.Process] = set()

    def scan(self) -> None:
        self._processes.update(psutil.Process().children(recursive=True))

    def kill(self) -> None:
        self.scan()
        for process in [*self._processes]:
            with suppress(psutil.Error):
                # psutil compares ids and start times, because ids are reused.
                process.kill()
        psutil.wait_procs(self._processes, timeout=KILL_SECONDS)


def _kill_when_stdin_closes(tree: WindowsProcessTree) -> None:
    # The lock of `sys.stdin` would block the exit of this process.
    while os.read(0, 4096):
        pass
    tree.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[3:]))
