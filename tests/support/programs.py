"""Programs that only some machines have."""

import os
import shutil
import subprocess
import sysconfig

import pytest

# Debian keeps servers there, which is not in the PATH of every user.
_PLACES = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"], "/usr/sbin"])


def program(name: str) -> str:
    """The path of a program. Without it, the test is skipped with this reason."""
    found = shutil.which(name, path=_PLACES)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def output_of(*words: str) -> str:
    """Run a program that must succeed; returns what it printed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    return printed
