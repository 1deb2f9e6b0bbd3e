"""Behaviour on Windows; other systems run these tests in a process that simulates it (test_without_posix.py)."""

import asyncio
import errno
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from comfyrelay.autoscaling.providers.registry import ProviderContext, Providers
from comfyrelay.comfyui.processes.options import ManagedSettings
from comfyrelay.desk.batches.output_copies import remove_copies
from comfyrelay.desk.scripts.config import script_settings
from comfyrelay.errors import ConfigurationError, NotFound, StorageUnavailable
from comfyrelay.services.hooks import RemovedFiles
from comfyrelay.settings import Settings
from comfyrelay.storage.folder import Folder
from comfyrelay.system import atomic, command_lines, files, platform, processes, signals, terminal
from comfyrelay.system.folder_lock import FolderLock

pytestmark = pytest.mark.skipif(
    not platform.IS_WINDOWS, reason="needs Windows or the simulation in test_without_posix.py"
)


def test_locked_folder_shows_its_holder(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.acquire(advice="")
    # the lock is at a fixed offset, because writes move the end of the file
    assert second.holder() == (tmp_path / "lock").read_text("ascii") != ""
    with pytest.raises(ConfigurationError, match=r"Another process \(process \d+\)"):
        second.acquire(advice="")
    first.release()
    second.acquire(advice="")


def test_command_lines_follow_the_windows_command_prompt() -> None:
    folder = "C:\\Users\\O'Neil\\My ComfyUI"
    line = f'--base-directory="{folder}" D:\\models "" --lowvram'
    assert command_lines.split(line) == [f"--base-directory={folder}", "D:\\models", "", "--lowvram"]
    assert command_lines.quoted(folder) == f'"{folder}"'
    assert command_lines.quoted("D:\\ComfyUI") == "D:\\ComfyUI"
    assert command_lines.setting_line("COMFYUI_DIR", folder) == f'set "COMFYUI_DIR={folder}"'
    assert ManagedSettings(comfyui_args="--models D:\\models").comfyui_args == ["--models", "D:\\models"]


def test_open_file_is_replaced_once_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "token.json"
    path.write_bytes(b"old")
    file = path.open("rb")
    closing = threading.Timer(0.1, file.close)
    closing.start()
    atomic.write(path, b"new")
    closing.join()
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_open_file_is_named_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "output.mp4"
    path.write_bytes(b"old")
    with path.open("rb"):
        for change in (partial(atomic.write, path, b"new"), partial(files.remove, path)):
            with pytest.raises(PermissionError) as refused:
                change()
            assert refused.value.strerror == files.IN_USE
            assert refused.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_open_output_is_kept_and_reported(tmp_path: Path) -> None:
    watched, other = (tmp_path / name for name in ("watched.mp4", "other.mp4"))
    watched.write_bytes(b"film")
    other.write_bytes(b"film")
    with watched.open("rb"):
        done = remove_copies(tmp_path, [watched, other])
    assert done == RemovedFiles(removed=[str(other)], not_deleted=[f"{watched} ({files.IN_USE})"])
    assert watched.exists()
    assert not other.exists()


def test_object_in_use_is_not_removed(tmp_path: Path) -> None:
    objects = Folder(tmp_path)
    objects.write("a/b.png", b"data")
    with objects.open("a/b.png"), pytest.raises(StorageUnavailable, match="open in another program"):
        objects.remove(["a/b.png"])
    objects.remove(["a/b.png"])
    with pytest.raises(NotFound):
        objects.read("a/b.png")


def test_first_writer_wins_on_a_disk_without_hard_links(tmp_path: Path) -> None:
    path = tmp_path / "owner-secret"
    assert atomic.write_new(path, b"first")
    assert not atomic.write_new(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


async def test_stop_signal_wakes_the_waiting_loop() -> None:
    received: asyncio.Queue[int] = asyncio.Queue()
    before = [signal.getsignal(stop_signal) for stop_signal in signals.STOPS]
    with signals.on_stop(received.put_nowait):
        for number in signals.STOPS:
            signal.raise_signal(number)
            assert await received.get() == number
    assert [signal.getsignal(stop_signal) for stop_signal in signals.STOPS] == before


async def test_keys_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pressed: asyncio.Queue[str] = asyncio.Queue()
    # under pytest, stdin is not a terminal
    monkeypatch.setattr(sys, "stdin", Terminal())
    with terminal.keys(pressed.put_nowait):
        assert [await pressed.get() for _ in "pq"] == ["p", "q"]


class Terminal:
    def isatty(self) -> bool:
        return True


def test_process_limits_are_ignored() -> None:
    assert processes.raise_open_file_limit(100_000) == 100_000
    processes.forbid_files()
    processes.limit_memory(1)
    processes.limit_time(0)
    assert not processes.LIMITS_MEMORY


def test_scripts_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        script_settings({}, data_dir=tmp_path, input_folder=tmp_path)
    assert refused.value.detail.startswith("Scripts need Linux, macOS or WSL: ")
    assert not list(tmp_path.iterdir())


def test_local_machines_are_refused_in_one_sentence(tmp_path: Path) -> None:
    around = ProviderContext(settings=Settings(data_dir=tmp_path), api_url="http://127.0.0.1:8420", secrets={})
    with pytest.raises(ConfigurationError) as refused:
        Providers(around).get("local")
    assert refused.value.detail.startswith("Machines of the provider `local` need Linux, macOS or WSL: ")
    assert not Providers(around).get("static").can_launch


def test_error_other_than_access_denied_is_raised_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        files.remove(tmp_path / "nothing")
    assert missing.value.errno == errno.ENOENT
