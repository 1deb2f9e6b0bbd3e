"""The cache of effect assets keeps assets in use, removes old ones, and refuses invalid content."""

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from comfyrelay.errors import TransferFailed
from comfyrelay.worker.files.assets import AssetCache


def content(number: int, *, size: int = 10) -> bytes:
    return f"{number:0{size}}".encode()


def digest(number: int) -> str:
    return hashlib.sha256(content(number)).hexdigest()


def writes(data: bytes) -> Callable[[Path], Awaitable[None]]:
    async def fetch(to: Path) -> None:
        to.write_bytes(data)

    return fetch


async def not_fetched(_to: Path) -> None:
    raise AssertionError("The asset was downloaded again: use the cached file.")


async def get(cache: AssetCache, number: int) -> Path:
    return await cache.get(digest(number), ".png", writes(content(number)))


async def use(cache: AssetCache, *numbers: int) -> None:
    """Use these assets in sequence, as a job does."""
    for number in numbers:
        cache.release(await get(cache, number))


def cached_numbers(folder: Path) -> set[int]:
    return {int(path.read_bytes()) for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "assets"


async def test_asset_is_downloaded_once(folder: Path) -> None:
    cache = AssetCache(folder, max_bytes=100)
    path = await get(cache, 1)
    assert (path.read_bytes(), path.suffix) == (content(1), ".png")
    assert await cache.get(digest(1), ".png", not_fetched) == path
    assert (cache.hits, cache.misses, cache.bytes) == (1, 1, 10)


async def test_concurrent_users_share_one_download(folder: Path) -> None:
    cache = AssetCache(folder, max_bytes=100)
    begun, may_end, fetched = asyncio.Event(), asyncio.Event(), 0

    async def fetch(to: Path) -> None:
        nonlocal fetched
        fetched += 1
        begun.set()
        await may_end.wait()
        to.write_bytes(content(1))

    tasks = [asyncio.create_task(cache.get(digest(1), ".png", fetch)) for _ in range(5)]
    await begun.wait()
    may_end.set()
    assert len(set(await asyncio.gather(*tasks))) == 1
    assert (fetched, cache.hits, cache.misses) == (1, 4, 1)


async def test_next_waiter_downloads_if_the_first_is_cancelled(folder: Path) -> None:
    cache = AssetCache(folder, max_bytes=100)
    begun = asyncio.Event()

    async def download_forever(to: Path) -> None:
        to.write_bytes(b"a part")
        begun.set()
        await asyncio.Event().wait()

    first = asyncio.create_task(cache.get(digest(1), ".png", download_forever))
    await begun.wait()
    second = asyncio.create_task(get(cache, 1))
    first.cancel()
    assert (await second).read_bytes() == content(1)
    assert cached_numbers(folder) == {1}


async def test_least_recently_used_asset_is_removed_first(folder: Path) -> None:
    cache = AssetCache(folder, max_bytes=30)
    await use(cache, 1, 2, 3, 1, 4)
    assert cached_numbers(folder) == {1, 3, 4}
    assert cache.bytes == 30


async def test_removal_calls_the_callback(folder: Path) -> None:
    removed: list[str] = []
    cache = AssetCache(folder, max_bytes=20, on_removed=removed.append)
    await use(cache, 1, 2, 3)
    assert removed == [f"{digest(1)}.png"]
    assert set(cache.names) == {f"{digest(2)}.png", f"{digest(3)}.png"}
    # this also happens at startup with another limit
    AssetCache(folder, max_bytes=10, on_removed=removed.append)
    assert removed[1:] == [f"{digest(2)}.png"]


async def test_asset_in_use_is_never_removed(folder: Path) -> None:
    cache = AssetCache(folder, max_bytes=20)
    first, second = await get(cache, 1), await get(cache, 1)
    await use(cache, 2, 3, 4)
    assert cached_numbers(folder) == {1, 4}
    cache.release(first)
    await use(cache, 5, 6)
    assert cached_numbers(folder) == {1, 6}
    cache.release(second)
    await use(cache, 7, 8)
    assert cached_numbers(folder) == {7, 8}


async def test_oversized_asset_is_removed_after_use(folder: Path) -> None:
    cache = AssetCache(folder, max_bytes=5)
    path = await get(cache, 1)
    assert path.is_file()
    cache.release(path)
    assert (cached_numbers(folder), cache.bytes) == (set(), 0)


async def test_files_and_their_order_survive_a_restart(folder: Path) -> None:
    before = AssetCache(folder, max_bytes=100)
    await use(before, 1, 2, 3, 1)
    (folder / ".0123").write_bytes(b"a download that was cut off")
    after = AssetCache(folder, max_bytes=30)
    assert after.bytes == 30
    assert await after.get(digest(3), ".png", not_fetched) == folder / f"{digest(3)}.png"
    await use(after, 4)
    assert cached_numbers(folder) == {1, 3, 4}


async def test_smaller_limit_applies_at_startup(folder: Path) -> None:
    await use(AssetCache(folder, max_bytes=100), 1, 2, 3)
    assert AssetCache(folder, max_bytes=20).bytes == 20
    assert cached_numbers(folder) == {2, 3}


async def test_content_with_a_wrong_digest_is_refused(folder: Path) -> None:
    cache = AssetCache(folder, max_bytes=100)
    with pytest.raises(TransferFailed, match="does not match its checksum"):
        await cache.get(digest(1), ".png", writes(content(2)))
    assert (cached_numbers(folder), cache.bytes) == (set(), 0)
    assert (await get(cache, 1)).read_bytes() == content(1)


async def test_failed_download_leaves_no_file(folder: Path) -> None:
    async def fail(to: Path) -> None:
        to.write_bytes(b"a part")
        raise TransferFailed("gone")

    cache = AssetCache(folder, max_bytes=100)
    with pytest.raises(TransferFailed, match="gone"):
        await cache.get(digest(1), ".png", fail)
    assert cached_numbers(folder) == set()


async def test_deleted_file_is_downloaded_again(folder: Path) -> None:
    cache = AssetCache(folder, max_bytes=100)
    await use(cache, 1)
    (folder / f"{digest(1)}.png").unlink()
    await use(cache, 1)
    assert (cached_numbers(folder), cache.bytes, cache.misses) == ({1}, 10, 2)


async def test_time_of_use_is_stored_in_the_file(folder: Path) -> None:
    cache = AssetCache(folder, max_bytes=100)
    path = await get(cache, 1)
    os.utime(path, (1, 1))
    await use(cache, 1)
    assert path.stat().st_mtime > 1_000
