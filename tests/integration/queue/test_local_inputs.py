"""Local files copied for jobs: all of them or none, and nothing is left behind."""

from pathlib import Path

import pytest

from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import InvalidInput, TooLarge
from tests.support.world import World, execute


@pytest.fixture
async def user(world: World) -> User:
    return await world.user()


def pictures(folder: Path, count: int) -> list[Path]:
    made = [folder / f"{number}.png" for number in range(count)]
    for each in made:
        each.write_bytes(each.name.encode())
    return made


async def stored(world: World) -> list[bytes]:
    return [await world.engine.objects.get(each.path) async for each in world.engine.objects.list()]


async def known(world: World, user: User) -> dict[str, str]:
    shard = await world.engine.databases.shard_of(user.tenant_id)
    return {each.id: each.original_filename for each in await execute(shard, "SELECT * FROM files")}


async def test_each_is_copied_and_known_by_its_name(world: World, user: User, tmp_path: Path) -> None:
    sources = pictures(tmp_path, 500)
    taken = await world.engine.jobs.uploads.copy_local_files(user, sources)
    assert await known(world, user) == {taken[source]: source.name for source in sources}
    assert sorted(await stored(world)) == sorted(source.name.encode() for source in sources)


async def test_oversized_input_is_refused_before_any_is_copied(world: World, user: User, tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(world.engine.settings.max_upload_bytes + 1)
    with pytest.raises(TooLarge):
        await world.engine.jobs.uploads.copy_local_files(user, [*pictures(tmp_path, 3), large])
    assert await stored(world) == []
    assert await known(world, user) == {}


async def test_unreadable_input_leaves_no_other_copies(world: World, user: User, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    for unreadable in ("folder.png", "gone.png"):
        with pytest.raises(InvalidInput) as refused:
            await world.engine.jobs.uploads.copy_local_files(user, [*pictures(tmp_path, 3), tmp_path / unreadable])
        assert refused.value.errors["file"].startswith(f"{unreadable} cannot be read: ")
    assert await stored(world) == []
    assert await known(world, user) == {}
