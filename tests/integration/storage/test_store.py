"""Every store behaves the same."""

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.storage.objects import ObjectStore
from tests.support.storage import paths_in, read

BAD_PATHS = [
    *("", ".", "..", "../a", "a/../../b", "a/../b", "/etc/passwd", "a//b", "a/", "./a", "a/.", "a\\..\\b", "C:\\a"),
    *("a\x00b", "a\nb", "a\x7f", "\ud800", "x" * 256, "é" * 128, "x/" * 500 + "x", ".put-1", "a/.put-/b"),
]


async def test_stored_object_can_be_read(store: ObjectStore) -> None:
    await store.put("tenants/7/ü 1.png", b"\x00data")
    assert await store.get("tenants/7/ü 1.png") == b"\x00data"
    assert await store.exists("tenants/7/ü 1.png")


async def test_names_may_have_any_printable_character(store: ObjectStore) -> None:
    for name in ("a+b&c=d?e#f%2F.png", "…", "'\"<>|*:;@$,~`^!()[]{}", " a ", "..a", "日本語 😀"):
        await store.put(f"names/{name}", name.encode())
        assert await store.get(f"names/{name}") == name.encode()
        assert await paths_in(store, "names") == [f"names/{name}"]
        await store.remove_many([f"names/{name}"])
        assert not await store.exists(f"names/{name}")


async def test_second_put_replaces_the_first(store: ObjectStore) -> None:
    await store.put("a", b"a longer first")
    await store.put("a", b"second")
    assert await store.get("a") == b"second"


async def test_etag_changes_when_an_object_is_replaced(store: ObjectStore) -> None:
    tags = []
    for data in (b"first", b"other", b"third"):
        await store.put("a", data)
        stats = [await store.stat("a") for _ in range(2)]
        assert stats[0] is not None
        assert stats[0] == stats[1]
        tags.append(stats[0].etag)
    assert len(set(tags)) == 3


async def test_copy_is_independent_of_its_source(store: ObjectStore) -> None:
    await store.put("a/upload.png", b"first")
    await store.copy("a/upload.png", "b/output.png")
    await store.put("a/upload.png", b"second")
    assert (await store.get("b/output.png"), await store.get("a/upload.png")) == (b"first", b"second")
    await store.remove("a/upload.png")
    stat = await store.stat("b/output.png")
    assert stat is not None
    assert (stat.size, stat.content_type) == (5, "image/png")


async def test_invalid_copy_is_refused(store: ObjectStore) -> None:
    with pytest.raises(NotFound, match="nothing"):
        await store.copy("nothing", "a")
    assert await paths_in(store) == []
    await store.put("a", b"a")
    for source, target in (("../a", "b"), ("a", "../b")):
        with pytest.raises(InvalidInput):
            await store.copy(source, target)


async def test_missing_object_is_not_found(store: ObjectStore) -> None:
    await store.put("folder/a", b"")
    await store.put("file", b"")
    for path in ("nothing", "folder", "file/below"):
        assert not await store.exists(path)
        assert await store.stat(path) is None
        for call in (store.get(path), read(store, path), read(store, path, start=3), read(store, path, length=0)):
            with pytest.raises(NotFound, match=path):
                await call


async def test_stat_has_size_type_and_time(store: ObjectStore) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)
    await store.put("a.webp", b"12345")
    stat = await store.stat("a.webp")
    assert stat is not None
    assert (stat.size, stat.content_type) == (5, "image/webp")
    assert before <= stat.modified_at <= datetime.now(UTC)


async def test_object_is_streamed_in_pieces(store: ObjectStore) -> None:
    for size in (0, 1, 3_000_000):
        data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        await store.put("a", data)
        pieces = [piece async for piece in store.stream("a")]
        assert b"".join(pieces) == data
        assert all(0 < len(piece) <= 2**20 for piece in pieces)
        assert len(pieces) > 1 or size < 2**20


RANGES: list[tuple[int, int | None, bytes]] = [
    *((0, None, b"0123456789"), (3, None, b"3456789"), (9, None, b"9"), (10, None, b""), (99, None, b"")),
    *((0, 0, b""), (0, 4, b"0123"), (3, 4, b"3456"), (3, 1, b"3"), (8, 99, b"89"), (10, 1, b""), (3, 0, b"")),
]


async def test_valid_range_is_streamed_and_a_negative_one_is_refused(store: ObjectStore) -> None:
    await store.put("a", b"0123456789")
    for start, length, expected in RANGES:
        assert await read(store, "a", start=start, length=length) == expected, (start, length)
    for call in (read(store, "a", start=-1), read(store, "a", length=-1)):
        with pytest.raises(InvalidInput, match="range"):
            await call
    await store.put("empty", b"")
    assert await read(store, "empty", length=10) == b""


async def test_stream_can_be_abandoned(store: ObjectStore) -> None:
    await store.put("a", bytes(5_000_000))
    async for piece in store.stream("a"):
        assert piece
        break
    assert len(await store.get("a")) == 5_000_000


async def test_removal_is_idempotent(store: ObjectStore) -> None:
    await store.put("a/b", b"")
    await store.remove("a/b")
    await store.remove("a/b")
    await store.remove("other/folder/x")
    assert not await store.exists("a/b")


async def test_objects_are_removed_in_one_call(store: ObjectStore) -> None:
    await asyncio.gather(*(store.put(f"many/{number}", b"") for number in range(20)))
    await store.remove_many([*(f"many/{number}" for number in range(19)), "many/none", "none/at/all"])
    await store.remove_many([])
    assert await paths_in(store) == ["many/19"]


async def test_listing_has_all_objects_below_a_folder(store: ObjectStore) -> None:
    for path in ("tenants/1/a", "tenants/1/deep/er/b", "tenants/10/c", "d"):
        await store.put(path, path.encode())
    assert await paths_in(store, "tenants/1") == ["tenants/1/a", "tenants/1/deep/er/b"]
    assert await paths_in(store) == ["d", "tenants/1/a", "tenants/1/deep/er/b", "tenants/10/c"]
    assert await paths_in(store, "nothing") == []
    entries = [entry async for entry in store.list("tenants/10")]
    assert [entry.size for entry in entries] == [len("tenants/10/c")]
    assert abs(entries[0].modified_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_unsafe_path_is_refused(store: ObjectStore) -> None:
    for path in BAD_PATHS:
        calls: list[Awaitable[object]] = [
            *(store.put(path, b"x"), store.get(path), store.exists(path), store.stat(path), read(store, path)),
            *(store.remove(path), store.remove_many(["fine", path]), store.sign_download(path, ttl_seconds=1)),
            store.sign_upload(path, content_type="a/b", ttl_seconds=1),
        ]
        if path:
            calls.append(paths_in(store, path))
        for call in calls:
            with pytest.raises(InvalidInput) as caught:
                await call
            assert "path" in caught.value.errors


_names = st.sampled_from(["a", "b", "..", ".", "", " ", "~", "\x00", "\\", "%2e%2e", "..;", "…", "C:", "\u2028", "nul"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.one_of(st.lists(_names, max_size=5).map("/".join), st.text(max_size=20)))
async def test_accepted_path_stays_inside_the_store(store: ObjectStore, path: str) -> None:
    try:
        await store.put(path, b"inside")
    except InvalidInput:
        return
    assert await store.get(path) == b"inside"
    assert path in await paths_in(store)
    await store.remove(path)
    assert await paths_in(store) == []


async def test_reader_never_gets_a_partial_object(store: ObjectStore) -> None:
    contents = [bytes([number]) * 1_000_000 for number in range(8)]
    await store.put("a", contents[0])
    seen = await asyncio.gather(*(store.get("a") for _ in range(8)), *(store.put("a", content) for content in contents))
    assert all(content in contents for content in seen if content is not None)
    assert await store.get("a") in contents


async def test_check_of_a_working_store_leaves_no_objects(store: ObjectStore) -> None:
    await store.check()
    assert await paths_in(store) == []
