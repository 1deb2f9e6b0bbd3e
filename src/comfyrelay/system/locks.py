"""Lock an open file for one process, until it closes the file or exits."""

import os
import sys
from typing import IO

if sys.platform == "win32":
    import msvcrt

    # Far beyond the content: on Windows other processes cannot read locked bytes.
    _BYTE = 2**30

    def lock(file: IO[str]) -> None:
        """`OSError` when another process has it."""
        before = os.lseek(file.fileno(), 0, os.SEEK_CUR)
        os.lseek(file.fileno(), _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(file.fileno(), before, os.SEEK_SET)

else:
    import fcntl

    def lock(file: IO[str]) -> None:
        """`OSError` when another process has it."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
