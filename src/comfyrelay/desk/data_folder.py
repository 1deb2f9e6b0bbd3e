"""Open the desk's data folder. It must be on a disk where SQLite is safe, and only one process may use it."""

import sqlite3
from pathlib import Path

from comfyrelay.desk.running_desks import refuse_second
from comfyrelay.errors import ConfigurationError
from comfyrelay.services.backup.restore import undo_killed_restore
from comfyrelay.system.atomic import remove_parts
from comfyrelay.system.disks import REMOTE, filesystem_of
from comfyrelay.system.files import remove
from comfyrelay.system.folder_lock import FolderLock
from comfyrelay.system.permissions import restrict_folder

# File systems that are shared with other machines, or with the host of a virtual machine. SQLite's shared memory does
# not work across them.
SHARED = frozenset(
    {
        *("9p", "drvfs", "virtiofs", "vboxsf", "prl_fs", "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "afpfs"),
        *("webdav", "fuse.sshfs", REMOTE),
    }
)
ADVICE = "Choose a folder on a disk of this machine with --data-dir or COMFYRELAY_DATA_DIR."


def open_data_folder(folder: Path) -> FolderLock:
    """Create and lock the folder. Raises `ConfigurationError` if it cannot be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        restrict_folder(folder)
    except OSError as error:
        raise ConfigurationError(f"The folder {folder} cannot be used: {error.strerror}. {ADVICE}") from None
    check_filesystem(folder)
    lock = FolderLock(folder)
    try:
        lock.acquire(advice="Stop it, or choose another folder with --data-dir.")
    except ConfigurationError:
        refuse_second(folder)
        raise
    remove_parts(folder)
    undo_killed_restore(folder)
    try:
        try_sqlite(folder)
    except ConfigurationError:
        lock.release()
        raise
    return lock


def check_filesystem(folder: Path) -> None:
    """Raise `ConfigurationError` for a file system where SQLite is unsafe."""
    kind = filesystem_of(folder)
    if kind in SHARED:
        disk = "a Windows drive" if kind in ("9p", "drvfs") else f"a network share ({kind})"
        raise ConfigurationError(f"{folder} is on {disk}, where the database could be damaged. {ADVICE}")


def try_sqlite(folder: Path) -> None:
    """Check that write-ahead logging works, and that a second connection sees the data."""
    path = folder / ".try.db"
    try:
        with sqlite3.connect(path) as one:
            mode = one.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            one.execute("CREATE TABLE IF NOT EXISTS t (n)")
            one.execute("INSERT INTO t VALUES (1)")
            one.commit()
            with sqlite3.connect(path) as other:
                rows = other.execute("SELECT count(*) FROM t").fetchone()[0]
            other.close()
        one.close()
    except sqlite3.Error as error:
        raise ConfigurationError(f"SQLite does not work in {folder}: {error}. {ADVICE}") from None
    finally:
        for suffix in ("", "-wal", "-shm"):
            remove(path.with_name(path.name + suffix), missing_ok=True)
    if mode != "wal" or not rows:
        raise ConfigurationError(f"Write-ahead logging of SQLite does not work in {folder}. {ADVICE}")
