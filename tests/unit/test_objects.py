"""Object storage in a local folder."""

import asyncio
from pathlib import Path

import pytest

from comfyrelay.errors import ConfigurationError, InvalidInput, NotFound
from comfyrelay.storage.objects import LocalObjects, ObjectStore, open_objects


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def objects(root: Path) -> ObjectStore:
    return LocalObjects(root)


async def test_what_was_put_can_be_got(objects: ObjectStore) -> None:
    await objects.put("tenants/7/ü 1.png", b"\x00data")
    assert await objects.get("tenants/7/ü 1.png") == b"\x00data"
    assert await objects.exists("tenants/7/ü 1.png")


async def test_a_second_put_replaces_the_first(objects: ObjectStore) -> None:
    await objects.put("a", b"a longer first")
    await objects.put("a", b"second")
    assert await objects.get("a") == b"second"


@pytest.mark.parametrize("path", ["nothing", "folder", "file/below"])
async def test_what_is_absent_is_not_found(objects: ObjectStore, path: str) -> None:
    await objects.put("folder/a", b"")
    await objects.put("file", b"")
    assert not await objects.exists(path)
    with pytest.raises(NotFound, match=path):
        await objects.get(path)


async def test_deleting_twice_is_deleting_once(objects: ObjectStore) -> None:
    await objects.put("a/b", b"")
    await objects.delete("a/b")
    await objects.delete("a/b")
    await objects.delete("a")
    assert not await objects.exists("a/b")


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            ".",
            "..",
            "../a",
            "a/../../b",
            "a/../b",
            "/etc/passwd",
            "a//b",
            "a/",
            "./a",
            "a\\..\\b",
            "C:\\a",
        ),
        *("a\x00b", "a\nb", "\ud800", "x" * 256, "link/a"),
    ],
)
async def test_a_path_that_could_leave_the_folder_is_refused(
    objects: ObjectStore, root: Path, tmp_path: Path, path: str
) -> None:
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    (tmp_path / "a").write_bytes(b"outside")
    for call in (objects.put(path, b"x"), objects.get(path), objects.exists(path), objects.delete(path)):
        with pytest.raises(InvalidInput) as caught:
            await call
        assert "path" in caught.value.errors
    assert (tmp_path / "a").read_bytes() == b"outside"


async def test_a_reader_never_sees_a_part(objects: ObjectStore) -> None:
    contents = [bytes([n]) * 1_000_000 for n in range(8)]
    await objects.put("a", contents[0])
    seen = await asyncio.gather(*(objects.get("a") for _ in range(8)), *(objects.put("a", each) for each in contents))
    assert all(each in contents for each in seen if each is not None)
    assert await objects.get("a") in contents


async def test_a_failed_put_leaves_the_old_object_and_no_rubbish(
    objects: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await objects.put("a", b"old")

    def disk_full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        await objects.put("a", b"new")
    assert await objects.get("a") == b"old"
    assert [file.name for file in root.iterdir()] == ["a"]


async def test_a_file_url_opens_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my objects"
    await open_objects(folder.as_uri()).put("a", b"x")
    assert (folder / "a").read_bytes() == b"x"


@pytest.mark.parametrize(
    "url", ["s3://bucket/prefix", "ftp://host/x", "objects", "file://", "file:///", "file://host/x"]
)
def test_another_url_is_refused_with_what_works(url: str) -> None:
    with pytest.raises(ConfigurationError, match="file:///absolute/path"):
        open_objects(url)
