"""The desk killed with -9 over a batch, with nothing set: what was interrupted is failed, and one retry ends it."""

import asyncio
import random
from pathlib import Path

import pytest

from comfyrelay.sim import Sim, Slow
from tests.desk.test_desk_killed import desk_process, submit_items


@pytest.mark.parametrize(("items", "kills"), [(8, 2), pytest.param(30, 4, marks=pytest.mark.soak)])
async def test_what_was_interrupted_is_failed_and_one_retry_finishes_the_batch(
    tmp_path: Path, items: int, kills: int
) -> None:
    moments = random.Random(11)
    async with Sim() as sim:
        quick = sim.misbehave(Slow(class_type="ImageInvert", seconds=0.1, steps=2))
        async with desk_process(tmp_path, sim) as desk:
            batch_id = await submit_items(desk, items)
            for _ in range(kills - 1):
                await asyncio.sleep(moments.uniform(0.0, items / 20))
                await desk.service.kill()
                await desk.start()
            quick.end()
            endless = sim.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
            await desk.until_in_step(batch_id, of=6000)
            await desk.service.kill()
            endless.end()
            await desk.start()
            counts = await desk.all_ended(batch_id)
            assert sum(counts.values()) == items
            assert counts.keys() <= {"completed", "failed"}
            # at most one runs at a time
            assert counts.get("failed", 0) <= kills
            for each in await desk.jobs(batch_id):
                assert (each.error is None) == (each.status == "completed")
                assert "killed" in (each.error or "killed")
            # the last kill came while one ran
            assert counts.get("failed", 0) >= 1
            again = await desk.client.retry("batch", batch_id)
            assert f"{counts['failed']} job" in again.message
            assert await desk.all_ended(batch_id) == {"completed": items}
            done = [each.item_no for each in await desk.jobs(batch_id) if each.status == "completed"]
            assert done == list(range(items))
            [folder] = [each for each in (tmp_path / "data" / "outputs").iterdir() if each.is_dir()]
            names = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
            assert [name[:4] for name in names] == [f"{number:04d}" for number in range(1, items + 1)]
            await desk.agrees()
