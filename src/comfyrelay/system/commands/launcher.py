"""Run one command. When it exits or standard input is closed, terminate all processes that it has started.

    python launcher.py GRACE_SECONDS UMASK COMMAND [ARGUMENT…]

The parent holds the other end of standard input, which the kernel closes when the parent exits for any reason.
Processes get SIGTERM, then SIGKILL. On Linux no process escapes; on macOS a process escapes if it starts a new session
and its parent exits. The exit code is that of the command, or 128 + its signal. The umask is octal, or `-` to keep the
current one.

This file runs as a script: it must not import from comfyrelay.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

assert sys.platform != "win32"

CANNOT_START = 127
# A process that waits for a device or belongs to another user cannot be killed. The launcher waits this long for such a
# process.
KILL_SECONDS = 10.0
_CHECK_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IS_LINUX = sys.platform == "linux"


def main(grace_seconds: float, command: list[str]) -> int:
    # A signal wakes the select below, even if it arrived just before.
    notify_channel, waker = os.pipe()
    os.set_blocking(notify_channel, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    received_signals: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: received_signals.append(received))
    prctl = _prctl()
    # Orphans become children of this process, so that no process escapes.
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        script = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            process_group=0,
            # This process has only one thread, so no lock is held in the child.
            preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}.", flush=True)
        return CANNOT_START
    tree = ProcessTree(script, notify_channel)
    while script.returncode is None and not received_signals and not tree.wait(sys.stdin.fileno()):
        tree.reap()
    tree.terminate(grace_seconds)
    code = script.returncode
    return CANNOT_START if code is None else code if code >= 0 else 128 - code


class ProcessTree:
    """A command and all processes that it has started."""

    def __init__(self, script: "subprocess.Popen[bytes]", notify_channel: int) -> None:
        self._script = script
        self._notify_channel = notify_channel

    def wait(self, lifeline: int | None = None, *, seconds: float | None = None) -> bool:
        """Wait for a signal, a timeout or the end of standard input. Returns whether standard input was closed."""
        watched = [self._notify_channel] if lifeline is None else [self._notify_channel, lifeline]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._notify_channel in ready:
            os.read(self._notify_channel, 4096)
        return lifeline in ready and not os.read(lifeline, 4096)

    def reap(self) -> None:
        """Reap children that have exited."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._script.pid:
                    self._script.returncode = os.waitstatus_to_exitcode(ended[1])

    def terminate(self, grace_seconds: float) -> None:
        # A stopped process handles signals only after SIGCONT.
        self._wait_for_exit(grace_seconds, once=(signal.SIGTERM, signal.SIGCONT))
        self._wait_for_exit(KILL_SECONDS, repeatedly=signal.SIGKILL)

    def _wait_for_exit(
        self, seconds: float, *, once: tuple[signal.Signals, ...] = (), repeatedly: signal.Signals | None = None
    ) -> None:
        end = time.monotonic() + seconds
        self.reap()
        for number in once:
            self._send(number)
        while self._is_alive() and time.monotonic() < end:
            if repeatedly is not None:
                # New processes may have been started since the last check.
                self._send(repeatedly)
            self.wait(seconds=_CHECK_SECONDS)
            self.reap()

    def _is_alive(self) -> bool:
        is_found = bool(_descendants())
        if _IS_LINUX or is_found:
            return is_found
        try:
            os.killpg(self._script.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _send(self, number: signal.Signals) -> None:
        for descendant in _descendants():
            with suppress(psutil.Error):
                descendant.send_signal(number)
        if not _IS_LINUX:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._script.pid, number)


def _descendants() -> list[psutil.Process]:
    """Return all running descendants of this process."""
    return [child for child in psutil.Process().children(recursive=True) if _is_living(child)]


def _is_living(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def _prctl() -> Callable[[int, int], object]:
    if not _IS_LINUX:
        return lambda _option, _value: None
    libc = ctypes.CDLL(None)
    return lambda option, value: libc.prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    if sys.argv[2] != "-":
        os.umask(int(sys.argv[2], 8))
    sys.exit(main(float(sys.argv[1]), sys.argv[3:]))
