"""What processes may use: limits that the system holds, and what one can see of them where it has none."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from comfyrelay.system.platform import IS_LINUX

# Whether a process can limit its own memory: macOS refuses it, and Windows knows no such thing.
LIMITS_MEMORY: Final = IS_LINUX


def memory_of(pid: int) -> int:
    """How many bytes a process has in memory; 0 when it is gone."""
    import psutil  # noqa: PLC0415 - where the system holds the limit, nobody needs it

    try:
        info = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    # Windows counts apart what it has moved to the disk
    return max(info.rss, getattr(info, "private", 0))


if sys.platform == "win32":

    def most_open_files(wanted: int) -> int:
        """How many files this process may have open: all that are wanted, or as many as it can get."""
        return wanted

    def forbid_files() -> None:
        """From now on, this process writes no file, and leaves none when it dies."""

    def own_memory() -> int:
        """How much room this process takes, in bytes, of what `limit_memory` counts."""
        return 0

    def limit_memory(_most_bytes: int) -> None:
        """From now on, this process gets no more than so much."""

    def limit_time(_seconds: float) -> None:
        """This process ends once it has computed for so much longer."""

else:
    import resource

    def most_open_files(wanted: int) -> int:
        """How many files this process may have open: all that are wanted, or as many as it can get."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            # not every system keeps its word about what may be asked for
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return wanted if soft == resource.RLIM_INFINITY else soft

    def forbid_files() -> None:
        """From now on, this process writes no file, and leaves none when it dies."""
        for name in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
            resource.setrlimit(name, (0, 0))

    def own_memory() -> int:
        """How much room this process takes, in bytes, of what `limit_memory` counts."""
        with suppress(OSError):
            return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        return 0

    def limit_memory(most_bytes: int) -> None:
        """From now on, this process gets no more than so much."""
        # macOS refuses it
        with suppress(ValueError, OSError):
            _, most = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most))

    def limit_time(seconds: float) -> None:
        """This process ends once it has computed for so much longer."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        with suppress(ValueError, OSError):
            limit = int(used.ru_utime + used.ru_stime + seconds) + 2
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
