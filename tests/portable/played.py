"""Processes that find themselves on Windows, as far as Linux can play it."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from comfyrelay.settings import ENV_PREFIX

WITHOUT_POSIX = Path(__file__).with_name("without_posix")
# What is read or written without naming an encoding is an error there.
PYTHON = (sys.executable, "-X", "warn_default_encoding")


def environment(root: Path, **variables: str) -> Mapping[str, str]:
    """For a process below whose `root` names are as on Windows."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)}
    return {**ours, "PYTHONPATH": str(WITHOUT_POSIX), "TESTS_WINDOWS_ROOT": str(root), **variables}
