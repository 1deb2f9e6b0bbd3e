"""Programs that only some machines have."""

import os
import shutil
import subprocess
import sysconfig

import pytest

# Debian installs servers in this folder, which is not in every user's PATH.
_PLACES = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"], "/usr/sbin"])


def program(name: str) -> str:
    """Return the path of a program; without it, skip the test with this reason."""
    found = shutil.which(name, path=_PLACES)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def output_of(*words: str) -> str:
    """Run a program that must succeed; return its output."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    return printed
