"""Processes are identified by pid and start time before they are stopped."""

import subprocess
import sys

import psutil
import pytest

from comfyrelay.system.commands import detached

PARENT_WITHOUT_WAIT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"])
print(child.pid, flush=True)
time.sleep(10_000)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no zombie processes")
def test_zombie_process_counts_as_stopped() -> None:
    """Orphans in a container without an init process stay zombies."""
    with subprocess.Popen([sys.executable, "-c", PARENT_WITHOUT_WAIT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            started = detached.started_at(pid)
            assert detached.is_running(pid=pid, started=started)
            assert detached.terminate(pid=pid, started=started, seconds=5.0)
            assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
            assert not detached.is_running(pid=pid, started=started)
        finally:
            parent.kill()
