"""A small disk in memory that tests can fill: a tmpfs mount whose size can change while files are open."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

# Other processes may write between reading the usage and setting the size.
TRIES = 20


class SmallDisk:
    def __init__(self, folder: Path, *, size_bytes: int) -> None:
        self.folder = folder
        self._size_bytes = size_bytes
        self.is_mounted = False

    def mount(self) -> bool:
        """Mount the disk, which usually only root may do; return whether this succeeded."""
        with suppress(OSError):
            command = ["mount", "-t", "tmpfs", "-o", f"size={self._size_bytes}", "comfyrelay-tests", str(self.folder)]
            self.is_mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
        return self.is_mounted

    def fill(self) -> None:
        """Use up all free blocks."""
        for _ in range(TRIES):
            found = os.statvfs(self.folder)
            if self._resize((found.f_blocks - found.f_bfree) * found.f_frsize):
                return
        raise OSError(f"{self.folder} cannot be filled")

    def make_room(self) -> None:
        assert self._resize(self._size_bytes), f"{self.folder} cannot be made larger"

    def unmount(self) -> None:
        """Unmount lazily, because an exiting process may still have a file open."""
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
            self.is_mounted = False

    def _resize(self, size_bytes: int) -> bool:
        command = ["mount", "-o", f"remount,size={size_bytes}", str(self.folder)]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
