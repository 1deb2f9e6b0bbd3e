"""Estimates for running batches and single jobs."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from rich.console import Console, RenderableType

from comfyrelay.client import Batch, Client, DeskStatus, Job, render
from comfyrelay.client.labels import JobLabels
from comfyrelay.client.top import take_snapshot
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.protocol.desk import PrefetchedJob
from comfyrelay.protocol.jobs import QueueUnit
from comfyrelay.protocol.progress import Progress
from comfyrelay.simulator import Simulator, Slow
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.world import PATIENCE_SECONDS

EXAMPLE = {"effect_slug": "invert-image", "input_subdir": "examples"}


def rendered(table: RenderableType) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


async def jobs_of(client: Client, batch: Batch) -> list[Job]:
    return sorted([job async for job in client.jobs(batch_id=batch.id)], key=lambda job: job.item_no)


async def test_running_batch_shows_its_estimated_duration(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.3, steps=3))
        async with open_desk(make_desk(tmp_path, comfyui_url=[simulator.url])) as desk:
            client = desk.client
            batch = await client.add_batch({**EXAMPLE, "tries": 4})
            assert batch.expected_seconds is None
            jobs = await jobs_of(client, batch)
            await desk.ended(jobs[1].id)
            now = await client.batch(batch.id)
            [listed] = await client.recent_batches(limit=5)
            for shown_batch in (now, listed):
                # tests/unit/domain/test_batch_duration.py covers the calculation
                assert shown_batch.expected_seconds is not None
                assert shown_batch.expected_seconds > 0
            assert "about " in rendered(render.batch_table([now]))
            assert "about " in rendered(render.batch_details(now, []))
            await desk.ended(jobs[-1].id)
            assert (await client.batch(batch.id)).expected_seconds is None


async def test_jobs_without_a_batch_can_be_listed_separately(desk: OpenDesk) -> None:
    batch = await desk.client.add_batch({**EXAMPLE, "tries": 3})
    effects = {effect.slug: effect.id for effect in await desk.client.effects()}
    picture = await desk.client.upload(desk.desk.input_folder / "examples" / "sample.png")
    single = await desk.client.submit(effect_id=effects["invert-image"], input_file_id=picture)
    assert [job.id async for job in desk.client.jobs(no_batch=True)] == [single.id]
    assert len([job async for job in desk.client.jobs(batch_id=batch.id)]) == 3
    assert len([job async for job in desk.client.jobs()]) == 4


async def test_prefetched_job_counts_as_waiting_until_it_runs(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=600))
        async with open_desk(make_desk(tmp_path, comfyui_url=[simulator.url], shutdown_seconds=0)) as desk:
            client = desk.client
            batch = await client.add_batch({**EXAMPLE, "tries": 3})
            jobs = await jobs_of(client, batch)
            now = await wait_for_status(client, lambda now: bool(now.fetched) and now.counts[JobStatus.PROCESSING] == 1)
            assert now.fetched == [PrefetchedJob(id=jobs[1].id, batch_id=batch.id)]
            assert (now.counts[JobStatus.PROCESSING], now.counts[JobStatus.QUEUED]) == (1, 2)
            assert now.worker is not None
            assert (now.worker.leases, now.worker.max_concurrency) == (1, 1)
            assert now.running == [QueueUnit(id=batch.id, is_batch=True)]
            assert [item.id for item in (await take_snapshot(client, JobLabels(client))).running] == [jobs[0].id]
            # the phase is reported at once, although the slow node reports nothing for a second
            progress = (await client.job(jobs[0].id)).progress
            assert progress is not None
            assert progress["phase"] == "running"
            await client.cancel("job", jobs[0].id)
            await wait_for_status(client, lambda now: [prefetched.id for prefetched in now.fetched] == [jobs[2].id])
            second = await client.job(jobs[1].id)
            began_at, started_at = Progress.from_report(second.progress).began_at, second.started_at
            assert second.status == "processing"
            assert began_at is not None
            assert started_at is not None
            # the job was prefetched before it ran
            assert began_at > started_at


async def test_duration_of_a_prefetched_job_is_its_run_time(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.5, steps=10))
        async with open_desk(make_desk(tmp_path, comfyui_url=[simulator.url])) as desk:
            client = desk.client
            batch = await client.add_batch({**EXAMPLE, "tries": 2})
            jobs = await jobs_of(client, batch)
            first, second = [await desk.ended(job.id) for job in jobs]
            starts = [datetime.fromisoformat(str(job.started_at)) for job in (first, second)]
            # the second job was prefetched while the first ran, and began after the slow node of the first
            assert (starts[1] - starts[0]).total_seconds() >= 0.5
            about = await client.about(jobs[1].id)
            assert about is not None
            assert about.attempts[0].started_at == second.started_at


async def wait_for_status(client: Client, condition: Callable[[DeskStatus], bool]) -> DeskStatus:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            now = await client.now()
            if now is not None and condition(now):
                return now
            await asyncio.sleep(0.05)
