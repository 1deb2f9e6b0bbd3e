"""Resource limits of processes, and their memory usage."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from comfyrelay.system.platform import IS_LINUX

# Whether a process can limit its own memory. macOS refuses it, and Windows has no such limit.
LIMITS_MEMORY: Final = IS_LINUX


def memory_of(pid: int) -> int:
    """Return the memory usage of a process in bytes; 0 if it has exited."""
    import psutil  # noqa: PLC0415 - not needed where the system enforces the limit

    try:
        info = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    # Windows counts swapped memory separately
    return max(info.rss, getattr(info, "private", 0))


if sys.platform == "win32":

    def raise_open_file_limit(wanted: int) -> int:
        """Raise the limit of open files to `wanted` if possible, and return it."""
        return wanted

    def forbid_files() -> None:
        """Forbid this process to write files, including core dumps."""

    def own_memory() -> int:
        """Return the address space of this process in bytes, which `limit_memory` limits."""
        return 0

    def limit_memory(_most_bytes: int) -> None:
        """Limit the address space of this process."""

    def limit_time(_seconds: float) -> None:
        """Limit the CPU time that this process may still use."""

else:
    import resource

    def raise_open_file_limit(wanted: int) -> int:
        """Raise the limit of open files to `wanted` if possible, and return it."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            # some systems refuse values below the hard limit
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return wanted if soft == resource.RLIM_INFINITY else soft

    def forbid_files() -> None:
        """Forbid this process to write files, including core dumps."""
        for name in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
            resource.setrlimit(name, (0, 0))

    def own_memory() -> int:
        """Return the address space of this process in bytes, which `limit_memory` limits."""
        with suppress(OSError):
            return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        return 0

    def limit_memory(most_bytes: int) -> None:
        """Limit the address space of this process."""
        # refused on macOS
        with suppress(ValueError, OSError):
            _, most = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most))

    def limit_time(seconds: float) -> None:
        """Limit the CPU time that this process may still use."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        with suppress(ValueError, OSError):
            limit = int(used.ru_utime + used.ru_stime + seconds) + 2
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
