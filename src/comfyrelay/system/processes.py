"""Limit the resources of this process, measure the memory of other processes, and find the process on a port."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from comfyrelay.system.platform import IS_LINUX

# Whether a process can limit its own memory. macOS refuses, and Windows has no such limit.
LIMITS_MEMORY: Final = IS_LINUX


class ListeningProcess(NamedTuple):
    """A process that listens on a port: its command line and its working folder."""

    arguments: Sequence[str]
    folder: Path


def listening_process(port: int) -> ListeningProcess | None:
    """Return the process of this user that listens on a port; `None` if there is none, or the system does not report
    it."""
    import psutil  # noqa: PLC0415 - most commands do not need it

    try:
        listening = [item for item in psutil.net_connections(kind="tcp") if item.status == psutil.CONN_LISTEN]
        pids = {item.pid for item in listening if item.pid and item.laddr and item.laddr.port == port}
        for pid in pids:
            process = psutil.Process(pid)
            if process.username() == psutil.Process().username():
                return ListeningProcess(tuple(process.cmdline()), Path(process.cwd()))
    except (psutil.Error, OSError):
        # macOS reports it only to administrators.
        pass
    return None


def memory_of(pid: int) -> int:
    """Return the memory usage of a process in bytes; 0 if it has exited."""
    import psutil  # noqa: PLC0415 - not needed if the system enforces the limit

    try:
        info = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    # Windows counts swapped memory separately.
    return max(info.rss, getattr(info, "private", 0))


# mypy follows `sys.platform`, but not a constant like `IS_WINDOWS`.
if sys.platform == "win32":

    def raise_open_file_limit(wanted: int) -> int:
        return wanted

    def forbid_files() -> None:
        pass

    def own_memory() -> int:
        return 0

    def limit_memory(max_bytes: int) -> None:
        pass

    def limit_time(seconds: float) -> None:
        pass

else:
    import resource

    def raise_open_file_limit(wanted: int) -> int:
        """Raise the limit of open files to `wanted` if possible, and return the limit."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            # Some systems refuse values below the hard limit.
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return wanted if soft == resource.RLIM_INFINITY else soft

    def forbid_files() -> None:
        """Prevent this process from writing files, including core dumps. Has no effect on Windows."""
        for name in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
            resource.setrlimit(name, (0, 0))

    def own_memory() -> int:
        """Return the address space of this process in bytes, which `limit_memory` limits; 0 if unknown."""
        try:
            return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        except OSError:
            return 0

    def limit_memory(max_bytes: int) -> None:
        """Limit the address space of this process. Has no effect on macOS and Windows."""
        with suppress(ValueError, OSError):
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (max_bytes, hard))

    def limit_time(seconds: float) -> None:
        """Limit the CPU time that this process may still use. Has no effect on Windows."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        with suppress(ValueError, OSError):
            limit = int(used.ru_utime + used.ru_stime + seconds) + 2
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
