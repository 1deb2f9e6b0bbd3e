"""Either all local input files of a request are copied, or none."""

from pathlib import Path

import pytest

from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import InvalidInput, TooLarge
from tests.support.world import World, execute


@pytest.fixture
async def user(world: World) -> User:
    return await world.user()


def write_images(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"{number}.png" for number in range(count)]
    for path in paths:
        path.write_bytes(path.name.encode())
    return paths


async def read_objects(world: World) -> list[bytes]:
    return [await world.engine.objects.get(file.path) async for file in world.engine.objects.list()]


async def read_file_names(world: World, user: User) -> dict[str, str]:
    shard = await world.engine.databases.shard_of(user.tenant_id)
    return {row.id: row.original_filename for row in await execute(shard, "SELECT * FROM files")}


async def test_every_file_is_copied_and_keeps_its_name(world: World, user: User, tmp_path: Path) -> None:
    sources = write_images(tmp_path, 20)
    file_ids = await world.engine.jobs.uploads.copy_local_files(user, sources)
    assert await read_file_names(world, user) == {file_ids[source]: source.name for source in sources}
    assert sorted(await read_objects(world)) == sorted(source.name.encode() for source in sources)


async def test_oversized_file_is_refused_before_any_file_is_copied(world: World, user: User, tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(world.engine.settings.max_upload_bytes + 1)
    with pytest.raises(TooLarge):
        await world.engine.jobs.uploads.copy_local_files(user, [*write_images(tmp_path, 3), large])
    assert await read_objects(world) == []
    assert await read_file_names(world, user) == {}


async def test_unreadable_file_leaves_no_copies(world: World, user: User, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    for unreadable in ("folder.png", "missing.png"):
        with pytest.raises(InvalidInput) as refused:
            await world.engine.jobs.uploads.copy_local_files(user, [*write_images(tmp_path, 3), tmp_path / unreadable])
        assert refused.value.errors["file"].startswith(f"{unreadable} cannot be read: ")
    assert await read_objects(world) == []
    assert await read_file_names(world, user) == {}
