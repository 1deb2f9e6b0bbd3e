"""Simulate Python on Windows, as far as Linux allows, in every process with this folder in PYTHONPATH.

POSIX-only features are removed, open files can be neither replaced nor removed, and names that Windows rejects cannot
be created. Python's own use of POSIX still works.
"""

import asyncio
import errno
import fcntl
import importlib.util
import os
import pkgutil
import re
import shutil
import signal
import struct
import subprocess
import sys
import types
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

# These modules read the platform once and need the real one.
import psutil  # noqa: F401
import rich.console  # noqa: F401

MODULES = (
    "curses",
    "fcntl",
    "grp",
    "posix",
    "pty",
    "pwd",
    "readline",
    "resource",
    "syslog",
    "termios",
    "tty",
    "uvloop",
)
FUNCTIONS = (
    *("chown", "fchmod", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getgroups", "getloadavg"),
    *("getpgid", "getpgrp", "getsid", "getuid", "initgroups", "killpg", "lchown", "mkfifo", "mknod", "nice", "openpty"),
    *("pipe2", "posix_spawn", "pread", "pwrite", "sched_getaffinity", "sendfile", "setegid", "seteuid", "setgid"),
    *("setpgid", "setsid", "setuid", "sysconf", "wait3", "wait4", "waitid"),
)
SIGNALS = ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGSTOP", "SIGTSTP", "SIGUSR1", "SIGUSR2")
# File names below this folder behave as on Windows; the number is the remaining path length.
ROOT, ROOM = os.environ.get("TESTS_WINDOWS_ROOT"), 259 - len(r"C:\Users\somebody-s\.local\share\comfyrelay")
DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def remove_posix() -> None:
    for name in FUNCTIONS:
        if hasattr(os, name):
            delattr(os, name)
    # Python uses this to stop a child
    subprocess.Popen.kill = lambda self: self.send_signal(9)  # type: ignore[method-assign]
    signal.SIGBREAK = signal.SIGQUIT  # type: ignore[attr-defined]
    for name in SIGNALS:
        delattr(signal, name)
    loop = asyncio.SelectorEventLoop
    for name in ("add_signal_handler", "remove_signal_handler", "create_unix_server", "create_unix_connection"):
        delattr(loop, name)
    for name in ("add_reader", "add_writer"):
        setattr(loop, name, getattr(asyncio.AbstractEventLoop, name))
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]


def emulate_files() -> None:
    rename, unlink = os.rename, os.unlink
    shutil._use_fd_functions = shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]

    def refuse_open(*paths: Any) -> None:
        targets = {os.path.realpath(path) for path in paths}
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                if (found := str(descriptor.readlink())) in targets:
                    raise PermissionError(errno.EACCES, "The process cannot access the file", found)

    def replacing(source: Any, target: Any) -> None:
        refuse_open(source, target)
        rename(source, target)

    def renaming(source: Any, target: Any) -> None:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        replacing(source, target)

    def removing(path: Any, *, dir_fd: int | None = None) -> None:
        refuse_open(path)
        unlink(path, dir_fd=dir_fd)

    def linking(*_args: Any, **_more: Any) -> None:
        raise OSError(errno.EPERM, "This disk has one name for a file")

    os.replace, os.rename, os.link = replacing, renaming, linking  # type: ignore[assignment]
    os.unlink = os.remove = removing
    # permissions come from the folder
    os.chmod = lambda *_args, **_more: None


def check_names(event: str, arguments: tuple[Any, ...]) -> None:
    positions = {"open": (0,), "os.mkdir": (0,), "os.rename": (0, 1), "sqlite3.connect": (0,)}.get(event, ())
    for path in (arguments[position] for position in positions):
        if not isinstance(path, str | os.PathLike) or ROOT is None or not str(path).startswith(f"{ROOT}/"):
            continue
        below = str(path).removeprefix(f"{ROOT}/")
        if len(below) > ROOM:
            raise FileNotFoundError(errno.ENOENT, f"Windows accepts no path of this length: {below}")
        for part in below.split("/"):
            if re.search(r'[\x00-\x1f<>:"|?*\\]|[. ]$', part) or DEVICE.fullmatch(part):
                raise OSError(errno.EINVAL, f"Windows accepts no such name: {part!r}")


def make_msvcrt() -> types.ModuleType:
    module = types.ModuleType("msvcrt")
    control, command, write_lock = fcntl.fcntl, fcntl.F_OFD_SETLK, fcntl.F_WRLCK

    def locking(file: int, _mode: int, size: int) -> None:
        start = os.lseek(file, 0, os.SEEK_CUR)
        control(file, command, struct.pack("hhqqi4x", write_lock, os.SEEK_SET, start, size, 0))

    vars(module).update(LK_NBLCK=2, locking=locking, kbhit=lambda: bool(KEYS), getwch=lambda: KEYS.pop(0))
    return module


KEYS = list(os.environ.get("TESTS_WINDOWS_KEYS", ""))


def import_as_windows() -> None:
    """Import modules that read the platform at import."""
    before, sys.platform = sys.platform, "win32"
    try:
        folder = Path(importlib.util.find_spec("comfyrelay.system").origin).parent  # type: ignore[union-attr, arg-type]
        for walk_package in pkgutil.walk_packages([str(folder)], "comfyrelay.system."):
            if not walk_package.name.endswith(".launcher"):
                importlib.import_module(walk_package.name)
    finally:
        sys.platform = before


sys.modules["msvcrt"] = make_msvcrt()
remove_posix()
emulate_files()
sys.addaudithook(check_names)
# without an encoding, Windows uses the code page of the country
warnings.filterwarnings("error", category=EncodingWarning, module=r"comfyrelay(\..*)?")
import_as_windows()
