"""The desk killed with -9 over a batch, with nothing set: what was interrupted is failed, and one retry ends it."""

import asyncio
import random
from pathlib import Path

import pytest

from comfyrelay.sim import Sim, Slow
from tests.desk.test_desk_killed import DeskProcess, desk_process, submit_items


async def until_only_one_is_under_way(desk: DeskProcess, batch_id: str, *, after: int) -> int:
    """Wait until a later item is in its long node, and the ends of all before it are written down; which it is."""
    async with asyncio.timeout(60):
        while True:
            jobs = await desk.jobs(batch_id)
            for each in jobs[after + 1 :]:
                in_step = (each.progress or {}).get("steps") == 6000
                if in_step and all(before.has_ended for before in jobs[: each.item_no]):
                    return each.item_no
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("items", "kills"), [(8, 2), pytest.param(30, 4, marks=pytest.mark.long)])
async def test_what_was_interrupted_is_failed_and_one_retry_finishes_the_batch(
    tmp_path: Path, items: int, kills: int
) -> None:
    moments = random.Random(11)
    async with Sim() as sim:
        quick = sim.misbehave(Slow(class_type="ImageInvert", seconds=0.1, steps=2))
        async with desk_process(tmp_path, sim) as desk:
            batch_id = await submit_items(desk, items)
            killed = -1
            for _ in range(kills):
                await asyncio.sleep(moments.uniform(0.0, items / 20 / kills))
                quick.end()
                endless = sim.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
                killed = await until_only_one_is_under_way(desk, batch_id, after=killed)
                await desk.service.kill()
                endless.end()
                quick = sim.misbehave(Slow(class_type="ImageInvert", seconds=0.1, steps=2))
                await desk.start()
            counts = await desk.all_ended(batch_id)
            assert sum(counts.values()) == items
            assert counts.keys() <= {"completed", "failed"}
            # one ran at each kill
            assert counts["failed"] == kills
            for each in await desk.jobs(batch_id):
                assert (each.error is None) == (each.status == "completed")
                assert "killed" in (each.error or "killed")
            again = await desk.client.retry("batch", batch_id)
            assert f"{counts['failed']} job" in again.message
            assert await desk.all_ended(batch_id) == {"completed": items}
            done = [each.item_no for each in await desk.jobs(batch_id) if each.status == "completed"]
            assert done == list(range(items))
            [folder] = [each for each in (tmp_path / "data" / "outputs").iterdir() if each.is_dir()]
            names = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
            assert [name[:4] for name in names] == [f"{number:04d}" for number in range(1, items + 1)]
            await desk.agrees()
