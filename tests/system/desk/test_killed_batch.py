"""The desk is killed during a batch with default settings: interrupted jobs run again without a click."""

import asyncio
import random
from pathlib import Path

import pytest

from comfyrelay.domain.queue.progress import STARTING_AGAIN
from comfyrelay.protocol.desk import JobAttempt
from comfyrelay.simulator import ActiveMisbehaviour, Simulator, Slow
from tests.support.full import full_only
from tests.support.world import PATIENCE_SECONDS
from tests.system.desk.test_killed import DeskProcess, desk_process, submit_items


async def until_happened(what: ActiveMisbehaviour[Slow]) -> None:
    async with asyncio.timeout(60):
        while not what.happened:  # noqa: ASYNC110  (ComfyUI sends no event)
            await asyncio.sleep(0.02)


async def attempts_of(desk: DeskProcess, job_id: str) -> list[JobAttempt]:
    about = await desk.client.about(job_id)
    assert about is not None
    return about.attempts


@pytest.mark.journey
@pytest.mark.parametrize(("items", "kills"), [(8, 2), *full_only((30, 4))])
async def test_interrupted_items_run_again_and_none_is_lost(tmp_path: Path, items: int, kills: int) -> None:
    moments = random.Random(11)
    async with Simulator() as simulator:
        quick = simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.7, steps=2))
        async with desk_process(tmp_path, simulator) as desk:
            batch_id = await submit_items(desk, items)
            for _ in range(kills):
                # Without progress between the kills, the same item would run out of attempts.
                await desk.until_one_more_is_done(batch_id)
                await asyncio.sleep(moments.uniform(0.0, items / 20 / kills))
                quick.end()
                endless = simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
                await until_happened(endless)
                await desk.service.kill()
                endless.end()
                quick = simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.7, steps=2))
                await desk.start()
            assert await desk.all_ended(batch_id) == {"completed": items}
            jobs = await desk.jobs(batch_id)
            assert [job.item_no for job in jobs] == list(range(items))
            # one item was running at each kill
            attempts = [attempt for job in jobs for attempt in await attempts_of(desk, job.id)]
            killed_runs = [attempt.error for attempt in attempts if attempt.outcome == "failed"]
            # the output of the previous item may not have been stored
            assert kills <= len(killed_runs) <= 2 * kills
            assert set(killed_runs) == {"The worker was killed while it ran this job."}
            [folder] = [path for path in (tmp_path / "data" / "outputs").iterdir() if path.is_dir()]
            names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
            assert [name[:4] for name in names] == [f"{number:04d}" for number in range(1, items + 1)]
            await desk.agrees()


async def test_interrupted_jobs_are_requeued_before_comfyui_returns(
    tmp_path: Path,
) -> None:
    async with Simulator() as simulator:
        endless = simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
        async with desk_process(tmp_path, simulator) as desk:
            batch_id = await submit_items(desk, 3)
            await desk.until_in_step(batch_id, of=6000)
            # a second job is prefetched while the first runs
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not any(job.is_prefetched for job in await desk.jobs(batch_id)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await desk.service.kill()
            await simulator.stop()
            endless.end()
            await desk.start()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while {job.status for job in await desk.jobs(batch_id)} != {"queued"}:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            jobs = await desk.jobs(batch_id)
            # a lost prefetch is shown like a lost run
            assert [job.progress for job in jobs] == [STARTING_AGAIN, STARTING_AGAIN, None]
            assert [job.attempts for job in jobs] == [1, 0, 0]
            waiting = [(await desk.client.job(job.id)).waiting for job in jobs]
            assert all(reason is not None and "ComfyUI" in reason.text for reason in waiting), waiting
            await simulator.start()
            assert await desk.all_ended(batch_id) == {"completed": 3}
            assert [job.attempts for job in await desk.jobs(batch_id)] == [2, 1, 1]
            await desk.agrees()
