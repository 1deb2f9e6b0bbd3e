"""Run commands on Windows, and on Linux with simulated Windows behaviour."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from comfyrelay.configuration import ENV_PREFIX

WITHOUT_POSIX = Path(__file__).with_name("without_posix")
# Let file access without an encoding fail.
PYTHON = (sys.executable, "-X", "warn_default_encoding")

if sys.platform == "win32":
    # on Windows, a process in its own group gets no Ctrl-C
    GROUP, CTRL_C, CTRL_BREAK = subprocess.CREATE_NEW_PROCESS_GROUP, signal.CTRL_BREAK_EVENT, signal.CTRL_BREAK_EVENT
elif sys.platform == "linux":
    # simulated
    GROUP, CTRL_C, CTRL_BREAK = 0, signal.SIGINT, signal.SIGQUIT
else:
    GROUP, CTRL_C, CTRL_BREAK = 0, signal.SIGINT, signal.SIGTERM


def environment(root: Path, **variables: str) -> Mapping[str, str]:
    """Return the environment of a process for which files under `root` behave as on Windows."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)}
    playing = {"PYTHONPATH": str(WITHOUT_POSIX), "TESTS_WINDOWS_ROOT": str(root)} if sys.platform == "linux" else {}
    return {**ours, **playing, **variables}
