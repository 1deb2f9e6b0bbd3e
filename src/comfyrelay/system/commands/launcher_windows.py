"""The launcher on Windows: runs one command and ends everything that it has started, as `launcher.py` does elsewhere.

    python launcher_windows.py GRACE_SECONDS - COMMAND [ARGUMENT…]

Nobody hears a polite word there, so ending is firm at once. Those are missed that came and lost their
parent between two looks.

It is run as a file, by itself: it may import nothing of ours.
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
    """All that was seen below this process: whose parent has ended is found by nobody later."""

    def __init__(self) -> None:
        self._seen: set[psutil.Process] = set()

    def scan(self) -> None:
        self._seen.update(psutil.Process().children(recursive=True))

    def end(self) -> None:
        self.scan()
        for each in [*self._seen]:
            with suppress(psutil.Error):
                # by its number and when it was started, so that nobody else is meant
                each.kill()
        psutil.wait_procs(self._seen, timeout=FIRM_SECONDS)


def _end_when_let_go(family: WindowsFamily) -> None:
    # not by `sys.stdin`, whose lock would be waited for when this process ends
    while os.read(0, 4096):
        pass
    family.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[3:]))
