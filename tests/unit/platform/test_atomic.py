"""A file is complete under its name, or does not exist."""

from pathlib import Path

import pytest

from comfyrelay.system.atomic import FileWriter, part_of, replacing, write, write_new


def test_written_file_replaces_the_old_one_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    write(path, b"old")
    write(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_secret_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    write(tmp_path / "token", b"secret", mode=0o600)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_readers_see_the_old_content_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def _write_part_of_file(path: Path) -> None:
    with replacing(path) as file:
        file.write(b"half")
        raise RuntimeError


def _write_part_of_part_file(path: Path) -> None:
    with part_of(path) as part:
        part.write_bytes(b"half")
        raise RuntimeError


@pytest.mark.parametrize("is_there", [False, True])
def test_failed_write_changes_nothing(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "video.mp4"
    if is_there:
        path.write_bytes(b"old")
    for half in (_write_part_of_file, _write_part_of_part_file):
        with pytest.raises(RuntimeError):
            half(path)
    assert [item.read_bytes() for item in tmp_path.iterdir()] == [b"old"] * is_there


def test_leftover_part_file_is_reused(tmp_path: Path) -> None:
    path, leftover = tmp_path / "video.mp4", tmp_path / ".video.mp4.part"
    leftover.write_bytes(b"half of an earlier one")
    with part_of(path, part=leftover) as part:
        part.write_bytes(b"whole")
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_only_the_first_writer_creates_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    assert write_new(path, b"first", mode=0o600)
    assert not write_new(path, b"second", mode=0o600)
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_file_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, existed = tmp_path / "object", []
    monkeypatch.setattr("os.fsync", lambda _handle: existed.append(path.exists()))
    writer = FileWriter(path, is_durable=True)
    writer.open()
    writer.write(b"data")
    writer.commit()
    assert existed == [False]
    assert path.read_bytes() == b"data"
