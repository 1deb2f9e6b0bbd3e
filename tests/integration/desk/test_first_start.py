"""The first start of a desk may be interrupted anywhere, and the next start continues it."""

from pathlib import Path

import pytest

from comfyrelay.desk.data_folder import open_data_folder
from comfyrelay.desk.examples import EXAMPLES, SAMPLE_NAME, write_sample
from comfyrelay.desk.startup.first_start import LOCAL_EMAIL, PRESETS, create_initial_data
from comfyrelay.settings import Settings
from comfyrelay.store.database import Boundary
from tests.support.world import Crash, World

MAX_STEPS = 100


async def interrupt(world: World, settings: Settings, *, after: int) -> bool:
    """Crash the first start at this transaction boundary; return False if it ended earlier."""
    remaining = after

    async def crash(_step: str, _where: Boundary) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            raise Crash

    world.on_boundary(crash)
    try:
        await create_initial_data(world.engine, settings)
    except Crash:
        return True
    finally:
        await world.restart()
    return False


async def test_repeatedly_interrupted_first_start_continues(world: World, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    for after in range(MAX_STEPS):
        if not await interrupt(world, settings, after=after):
            break
    else:
        pytest.fail(f"The first start did not end within {MAX_STEPS} steps: check for a step that is repeated.")
    assert after > len(EXAMPLES)
    user, is_new = await create_initial_data(world.engine, settings)
    assert list(PRESETS) == ["look-dev", "medium", "production"]
    assert (user.email, is_new) == (LOCAL_EMAIL, False)
    found = await world.engine.catalogue.presets.page(user.tenant_id, before_id=None, limit=100)
    assert [item.name for item in found.items] == list(PRESETS)
    for example in EXAMPLES:
        assert (await world.engine.catalogue.effects.get(example.slug)).workflow_slug == example.slug


async def test_removed_preset_is_not_recreated(world: World, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    user, _ = await create_initial_data(world.engine, settings)
    [first, *_] = (await world.engine.catalogue.presets.page(user.tenant_id, before_id=None, limit=100)).items
    await world.engine.catalogue.presets.remove(user.tenant_id, first.id)
    await create_initial_data(world.engine, settings)
    remaining = await world.engine.catalogue.presets.page(user.tenant_id, before_id=None, limit=100)
    assert first.name not in [item.name for item in remaining.items]


def test_sample_is_written_completely_and_only_once(tmp_path: Path) -> None:
    folder = tmp_path / "inputs"
    # a killed first start leaves a partial folder
    (tmp_path / ".inputs.part" / "examples").mkdir(parents=True)
    (tmp_path / ".inputs.part" / "examples" / SAMPLE_NAME).write_bytes(b"half")
    assert write_sample(folder).read_bytes()[:4] == b"\x89PNG"
    write_sample(folder).unlink()
    assert not write_sample(folder).exists()


def test_only_a_new_data_folder_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "used" / "mine.txt").parent.mkdir(mode=0o755)
    (tmp_path / "used" / "mine.txt").touch()
    for name, mode in {"used": 0o755, "new": 0o700}.items():
        open_data_folder(tmp_path / name).release()
        assert (tmp_path / name).stat().st_mode & 0o777 == mode
