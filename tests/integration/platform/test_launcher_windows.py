"""The launcher for Windows, tested on every system: all processes of a command end with it."""

import subprocess
import sys
from pathlib import Path

import psutil

from comfyrelay.system.commands import launcher_windows
from tests.support.world import PATIENCE_SECONDS

LAUNCHER = Path(launcher_windows.__file__)
# Prints its own process id and that of a child, and waits.
FAMILY = (
    "import os, subprocess, sys, time; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(10000)']); "
    "print(os.getpid(), child.pid, flush=True); time.sleep(10000)"
)


def launch(*command: str) -> "subprocess.Popen[str]":
    words = [sys.executable, str(LAUNCHER), "1", "-", *command]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_child_processes_end_when_the_command_is_released() -> None:
    with launch(sys.executable, "-c", FAMILY) as launcher:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        family = [psutil.Process(int(pid)) for pid in launcher.stdout.readline().split()]
        # close the input, as if the parent had died
        launcher.stdin.close()
        launcher.wait(PATIENCE_SECONDS)
        assert psutil.wait_procs(family, timeout=PATIENCE_SECONDS)[1] == []


def test_launcher_returns_the_exit_code_of_the_command() -> None:
    with launch(sys.executable, "-c", "raise SystemExit(3)") as launcher:
        assert launcher.wait(PATIENCE_SECONDS) == 3
    with launch("/no/such/program") as launcher:
        assert launcher.wait(PATIENCE_SECONDS) == launcher_windows.CANNOT_START
