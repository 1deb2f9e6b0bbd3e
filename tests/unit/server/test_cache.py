"""The cache stores results of lookups."""

from comfyrelay.server.http.cache import Cached


async def test_result_is_looked_up_once() -> None:
    looked_up: list[str] = []

    async def look_up(key: str) -> str:
        looked_up.append(key)
        return key.upper()

    cached = Cached(look_up)
    assert [await cached("a") for _ in range(2)] == ["A", "A"]
    cached.forget(lambda result: result == "B")
    assert await cached("a") == "A"
    assert looked_up == ["a"]
    cached.forget(lambda result: result == "A")
    assert await cached("a") == "A"
    assert looked_up == ["a", "a"]


async def test_missing_result_is_not_cached() -> None:
    found: dict[str, str] = {}

    async def look_up(key: str) -> str | None:
        return found.get(key)

    cached = Cached(look_up)
    assert await cached("a") is None
    found["a"] = "A"
    assert await cached("a") == "A"


async def test_unknown_keys_do_not_replace_results() -> None:
    looked_up: list[str] = []

    async def look_up(key: str) -> str | None:
        looked_up.append(key)
        return "A" if key == "a" else None

    cached = Cached(look_up)
    await cached("a")
    for number in range(3):
        await cached(f"guess {number}")
    assert [*cached._entries] == ["a"]
    assert await cached("a") == "A"
    assert looked_up.count("a") == 1
