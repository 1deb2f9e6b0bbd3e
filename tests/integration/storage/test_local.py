"""The local store keeps objects as files in a folder; an upload completes or leaves nothing."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from comfyrelay.errors import ConfigurationError, Forbidden, InvalidInput, NotFound, StorageUnavailable
from comfyrelay.storage import folder as storage_folder
from comfyrelay.storage.local import LocalObjects
from tests.support.storage import SECRETS, paths_in, read


@pytest.fixture
def objects(root: Path) -> LocalObjects:
    return LocalObjects(root, base_url="http://relay.test/", secrets=SECRETS)


async def upload(objects: LocalObjects, path: str) -> None:
    async with objects.receive(path) as receiver:
        await receiver.write(b"x")


def files_in(root: Path) -> list[str]:
    return sorted(str(file.relative_to(root)) for file in root.rglob("*"))


async def test_object_is_stored_as_a_file(objects: LocalObjects, root: Path) -> None:
    await objects.put("tenants/7/a.png", b"x")
    assert (root / "tenants/7/a.png").read_bytes() == b"x"


async def test_stat_uses_no_thread(objects: LocalObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    await objects.put("a.png", b"x")

    def refuse(*_: object) -> None:
        raise AssertionError("A stat used a thread.")

    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", refuse)
    assert await objects.stat("a.png") is not None
    assert await objects.stat("b.png") is None


async def test_link_out_of_the_folder_is_refused(objects: LocalObjects, root: Path, tmp_path: Path) -> None:
    root.mkdir()
    (tmp_path / "a").write_bytes(b"outside")
    (root / "folder").symlink_to(tmp_path)
    (root / "file").symlink_to(tmp_path / "a")
    for path in ("folder/a", "folder/new", "file"):
        for call in (objects.put(path, b"x"), objects.get(path), objects.stat(path), objects.remove(path)):
            with pytest.raises(InvalidInput):
                await call
        with pytest.raises(InvalidInput):
            async with objects.receive(path):
                pytest.fail(f"An upload to {path} was accepted: refuse paths that lead out of the folder.")
    assert await paths_in(objects) == []
    assert (tmp_path / "a").read_bytes() == b"outside"
    assert not (tmp_path / "new").exists()


async def test_foreign_files_are_not_listed(objects: LocalObjects, root: Path) -> None:
    await objects.put("a/b", b"x")
    (root / "a/back\\slash").write_bytes(b"")
    (root / "new\nline").mkdir()
    (root / "new\nline/c").write_bytes(b"")
    assert await paths_in(objects) == ["a/b"]


async def test_object_cannot_also_be_a_folder(objects: LocalObjects) -> None:
    await objects.put("a/b", b"x")
    for path in ("a", "a/b/c", "a/b/c/d"):
        with pytest.raises(InvalidInput):
            await objects.put(path, b"x")
    await objects.remove("a")
    assert await paths_in(objects) == ["a/b"]


async def test_empty_folders_are_removed(objects: LocalObjects, root: Path) -> None:
    for path in ("a/b/c/1", "a/b/2", "3"):
        await objects.put(path, b"")
    await objects.remove("a/b/c/1")
    assert files_in(root) == ["3", "a", "a/b", "a/b/2"]
    await objects.remove_many(["a/b/2", "3"])
    assert files_in(root) == []


async def test_removal_does_not_disturb_concurrent_writers(objects: LocalObjects) -> None:
    async def write(number: int) -> None:
        for _ in range(200):
            await objects.put(f"a/b/{number}", b"x")
            await objects.remove(f"a/b/{number}")

    await asyncio.gather(*map(write, range(6)))
    assert await paths_in(objects) == []


def raise_disk_full(_: int) -> None:
    raise OSError(28, "No space left on device")


async def test_failed_put_keeps_the_old_object_and_leaves_no_files(
    objects: LocalObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await objects.put("a", b"old")
    monkeypatch.setattr("os.fsync", raise_disk_full)
    with pytest.raises(StorageUnavailable, match="No space left"):
        await objects.put("a", b"new")
    with pytest.raises(StorageUnavailable, match="No space left"):
        async with objects.receive("a") as receiver:
            await receiver.write(b"new")
    assert await objects.get("a") == b"old"
    assert files_in(root) == ["a"]


async def test_bytes_are_copied_if_hard_links_are_not_supported(
    objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", link)
    await objects.put("a/upload", b"first")
    await objects.copy("a/upload", "b/output")
    await objects.put("a/upload", b"second")
    assert await objects.get("b/output") == b"first"
    with pytest.raises(NotFound):
        await objects.copy("nothing", "c/output")
    assert sorted([entry.path async for entry in objects.list()]) == ["a/upload", "b/output"]


async def test_upload_is_visible_only_when_complete(objects: LocalObjects, root: Path) -> None:
    await objects.put("a/b", b"old")
    async with objects.receive("a/b", size=6, max_size=6) as receiver:
        await receiver.write(b"012")
        assert await objects.get("a/b") == b"old"
        assert await paths_in(objects) == ["a/b"]
        await receiver.write(b"345")
    assert receiver.received == 6
    assert await objects.get("a/b") == b"012345"
    assert files_in(root) == ["a", "a/b"]


@pytest.mark.parametrize(
    ("size", "max_size", "message"),
    [(5, None, "ended after 4 of 5"), (3, None, "at most 3"), (None, 3, "at most 3"), (9, 3, "at most 3")],
)
async def test_upload_of_another_size_leaves_no_files(
    objects: LocalObjects, root: Path, size: int | None, max_size: int | None, message: str
) -> None:
    async def upload() -> None:
        async with objects.receive("a", size=size, max_size=max_size) as receiver:
            await receiver.write(b"01")
            await receiver.write(b"23")

    with pytest.raises(InvalidInput, match=message):
        await upload()
    assert files_in(root) == []


async def test_missing_root_is_an_outage_until_it_is_back(objects: LocalObjects, root: Path, tmp_path: Path) -> None:
    await objects.put("a/b", b"x")
    root.rename(tmp_path / "away")
    for call in (
        *(objects.put("a/b", b"new"), objects.put("new", b""), objects.copy("a/b", "c/d"), upload(objects, "c/d")),
        *(objects.get("a/b"), objects.stat("a/b"), objects.file_of("a/b"), read(objects, "a/b"), paths_in(objects)),
        *(objects.remove("a/b"), objects.sweep(older_than_seconds=0), objects.check()),
    ):
        with pytest.raises(StorageUnavailable, match="is missing"):
            await call
    assert not root.exists()
    (tmp_path / "away").rename(root)
    assert await objects.get("a/b") == b"x"
    await objects.check()


async def test_root_that_disappears_before_the_first_write_is_not_recreated(root: Path) -> None:
    root.mkdir()
    objects = LocalObjects(root)
    root.rmdir()
    with pytest.raises(StorageUnavailable):
        await objects.put("a", b"x")
    assert not root.exists()


async def test_failed_removal_of_a_partial_file_does_not_hide_the_first_error(
    objects: LocalObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as read_only:
        read_only.setattr("os.mkdir", refuse)
        read_only.setattr("os.unlink", refuse)
        with pytest.raises(StorageUnavailable, match="Read-only"):
            await upload(objects, "a/b")
        with pytest.raises(StorageUnavailable, match="Read-only"):
            await objects.put("a/b", b"x")


async def test_interrupted_upload_leaves_no_files(objects: LocalObjects, root: Path) -> None:
    async def upload() -> None:
        async with objects.receive("a") as receiver:
            await receiver.write(b"0123")
            raise ConnectionError

    with pytest.raises(ConnectionError):
        await upload()
    assert files_in(root) == []


@pytest.mark.parametrize("steps", range(8))
async def test_canceled_upload_leaves_no_files(objects: LocalObjects, root: Path, steps: int) -> None:
    async def upload() -> None:
        async with objects.receive("folder/a") as receiver:
            for _ in range(1000):
                await receiver.write(bytes(100_000))

    task = asyncio.create_task(upload())
    # canceled before the start, while the file is created, between writes and during a write
    for _ in range(steps):
        await asyncio.sleep(0 if steps < 4 else 0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert files_in(root) == []


async def test_uploads_of_one_path_do_not_mix(objects: LocalObjects, root: Path) -> None:
    async def upload(number: int) -> None:
        async with objects.receive("a", size=300_000) as receiver:
            for _ in range(3):
                await receiver.write(bytes([number]) * 100_000)

    await asyncio.gather(*map(upload, range(10)))
    data = await objects.get("a")
    assert data == bytes([data[0]]) * 300_000
    assert files_in(root) == ["a"]


async def test_reader_keeps_the_object_that_it_opened(objects: LocalObjects) -> None:
    await objects.put("a", b"1" * 600_000)
    stream = objects.stream("a")
    first = await anext(stream)
    await objects.put("a", b"2" * 600_000)
    assert first + b"".join([piece async for piece in stream]) == b"1" * 600_000


async def test_partial_files_of_a_killed_process_are_removed(objects: LocalObjects, root: Path) -> None:
    await objects.put("a/b/c", b"x")
    for folder in ("", "a/b/"):
        (root / f"{folder}.put-left").write_bytes(b"part")
        os.utime(root / f"{folder}.put-left", (0, 0))
    (root / "a/.put-new").write_bytes(b"part")
    assert await objects.sweep(older_than_seconds=3600) == 2
    assert files_in(root) == ["a", "a/.put-new", "a/b", "a/b/c"]


async def test_sweep_continues_after_a_file_that_vanishes(
    objects: LocalObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may remove partial files at the same time."""
    left = [root / f".put-{number}" for number in range(20)]
    root.mkdir()
    for path in left:
        path.write_bytes(b"part")
        os.utime(path, (0, 0))

    def remove(path: Path, *, missing_ok: bool = False) -> None:
        """Remove a file and another file that the sweep has already listed."""
        path.unlink(missing_ok=missing_ok)
        others = [other for other in left if other.exists()]
        others[len(others) // 2].unlink()

    monkeypatch.setattr(storage_folder, "remove", remove)
    assert await objects.sweep(older_than_seconds=3600) == 10
    assert files_in(root) == []


async def test_url_starts_with_the_base_url(objects: LocalObjects) -> None:
    url = await objects.sign_download("a b/ü?.png", ttl_seconds=60)
    assert url.startswith("http://relay.test/files/a%20b/%C3%BC%3F.png?expires=")


async def test_secrets_can_be_rotated(root: Path) -> None:
    def query(url: str) -> dict[str, str]:
        return dict(field.split("=") for field in url.partition("?")[2].split("&"))

    def store(*secrets: str) -> LocalObjects:
        return LocalObjects(root, base_url="http://relay.test", secrets=secrets)

    old, new = "the old secret ......", "the new secret ......"
    signed_before = query(await store(old).sign_download("a", ttl_seconds=60))
    both = store(new, old)
    assert both.verify("GET", "a", signed_before).path == "a"
    signed_after = query(await both.sign_download("a", ttl_seconds=60))
    assert store(new).verify("HEAD", "a", signed_after).path == "a"
    with pytest.raises(Forbidden):
        store(new).verify("GET", "a", signed_before)
    with pytest.raises(Forbidden):
        store(old).verify("GET", "a", signed_after)


@pytest.mark.parametrize(
    "make",
    [
        LocalObjects,
        lambda root: LocalObjects(root, base_url="http://relay.test"),
        lambda root: LocalObjects(root, secrets=SECRETS),
    ],
)
async def test_store_without_a_secret_signs_no_urls(root: Path, make: Callable[[Path], LocalObjects]) -> None:
    objects = make(root)
    await objects.put("a", b"x")
    assert await read(objects, "a") == b"x"
    with pytest.raises(ConfigurationError, match="base URL and a secret"):
        await objects.sign_download("a", ttl_seconds=60)
    with pytest.raises(ConfigurationError, match="base URL and a secret"):
        await objects.sign_upload("a", content_type="image/png", ttl_seconds=60)


async def test_store_without_secrets_accepts_no_url(root: Path) -> None:
    with pytest.raises(Forbidden):
        LocalObjects(root).verify("GET", "a", {"expires": "99999999999", "signature": ""})


# a string is a sequence of strings, whose first letter would become the secret
@pytest.mark.parametrize("secrets", [("short",), ("",), "one long text that is not in a list"])
def test_weak_secret_is_refused(root: Path, secrets: str | tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="at least 16"):
        LocalObjects(root, secrets=secrets)


async def test_check_fails_if_the_root_is_not_a_folder(root: Path) -> None:
    root.write_bytes(b"")
    with pytest.raises(ConfigurationError, match="storage URL"):
        await LocalObjects(root).check()
    with pytest.raises(ConfigurationError, match="storage URL"):
        await LocalObjects(root / "below").check()


async def test_check_leaves_no_files(objects: LocalObjects, root: Path) -> None:
    await objects.check()
    assert files_in(root) == []
