"""Keep the priority of a thread while a library runs."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_priority() -> Iterator[None]:
    """Restore the scheduling of the calling thread. For root, the AV1 encoder makes it a real-time thread. Processes
    that the thread starts would inherit this, and starve all others."""
    if sys.platform != "linux":
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != policy:
            os.sched_setscheduler(0, policy, parameters)
