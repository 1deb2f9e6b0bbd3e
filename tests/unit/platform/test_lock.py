"""Only one process at a time can use a folder."""

from pathlib import Path

import pytest

from comfyrelay.errors import ConfigurationError
from comfyrelay.system.folder_lock import FolderLock


def test_unusable_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(
        ConfigurationError, match=r"The folder .* cannot be used: Is a directory. Choose a writable folder"
    ):
        FolderLock(tmp_path).acquire(advice="")


def test_lock_error_names_the_holder(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire(advice="")
    with pytest.raises(ConfigurationError, match=r"Another process \(process \d+\) uses the folder .* Stop it."):
        FolderLock(tmp_path).acquire(advice="Stop it.")
    lock.release()
    FolderLock(tmp_path).acquire(advice="")
