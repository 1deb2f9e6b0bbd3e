"""The desk is killed repeatedly: accepted jobs are kept, run once, and keep their order."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from comfyrelay.client import Client, Job
from comfyrelay.errors import ControlPlaneUnreachable
from comfyrelay.simulator import Simulator, Slow
from tests.support.desk import copy_initial_data
from tests.support.full import full_only
from tests.support.graphs import invert
from tests.support.processes import Service, run_command
from tests.support.server_processes import free_port


class DeskProcess:
    # Whether the desk has not been started yet.
    is_new = False

    def __init__(self, folder: Path, simulator: Simulator, *, config: Path | None = None, **settings: str) -> None:
        self.folder = folder
        if not self.is_new:
            copy_initial_data(folder / "data")
        self.environment = {
            **({"COMFYRELAY_CONFIG": str(config)} if config else {}),
            "COMFYRELAY_DATA_DIR": str(folder / "data"),
            "COMFYRELAY_PORT": str(free_port()),
            "COMFYRELAY_DESK_COMFYUI_URL": simulator.url,
            **{f"COMFYRELAY_DESK_{name.upper()}": value for name, value in settings.items()},
        }
        self.client = Client(f"http://127.0.0.1:{self.environment['COMFYRELAY_PORT']}")
        self.service = Service("desk", "up", environment=self.environment, log=folder / "desk.log")

    async def start(self) -> None:
        await self.service.start()
        await self.until_ready()
        assert self.service.is_running, self.service.text()[-4000:]

    async def until_ready(self) -> None:
        """Wait until the desk answers; raise `ControlPlaneUnreachable` if it has ended."""
        async with asyncio.timeout(60):
            while True:
                try:
                    await self.client.desk()
                except ControlPlaneUnreachable:
                    if not self.service.is_running:
                        raise
                    # there is no signal for an opened port
                    await asyncio.sleep(0.05)
                else:
                    return

    async def all_ended(self, batch_id: str) -> dict[str, int]:
        async with asyncio.timeout(120):
            while True:
                batch = await self.client.batch(batch_id)
                if batch.done == batch.total:
                    return {name: count for name, count in batch.counts.items() if count}
                await asyncio.sleep(0.1)

    async def until_one_more_is_done(self, batch_id: str) -> None:
        before = (await self.client.batch(batch_id)).done
        async with asyncio.timeout(60):
            while (await self.client.batch(batch_id)).done == before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def until_in_step(self, batch_id: str, *, of: int) -> None:
        """Wait until an item runs in a node with this many steps."""
        async with asyncio.timeout(60):
            while not any((job.progress or {}).get("steps") == of for job in await self.jobs(batch_id)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def jobs(self, batch_id: str) -> list[Job]:
        found = [job async for job in self.client.jobs(batch_id=batch_id)]
        return sorted(found, key=lambda job: job.item_no)

    async def agrees(self) -> None:
        code, text = await run_command("reconcile", environment=self.environment, log=self.folder / "reconcile.log")
        assert code == 0, text


@asynccontextmanager
async def desk_process(
    folder: Path, simulator: Simulator, *, config: Path | None = None, **settings: str
) -> AsyncIterator[DeskProcess]:
    desk = DeskProcess(folder, simulator, config=config, **settings)
    try:
        await desk.start()
        yield desk
    finally:
        await desk.client.close()
        await desk.service.kill()


async def submit_items(desk: DeskProcess, count: int) -> str:
    workflow = await desk.client.add_graph(invert(), name="mine")
    # the inputs differ, because ComfyUI would otherwise use its cache
    items = [{"input_payload": {"empty_image_color": number}, "label": f"item {number}"} for number in range(count)]
    batch = await desk.client.submit_batch(items, workflow_slug=workflow.data.slug, label="many")
    return str(batch.id)


@pytest.mark.journey
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is a thing of POSIX")
@pytest.mark.parametrize(("items", "kills"), [(8, 2), *full_only((30, 5))])
async def test_every_item_of_a_killed_desk_ends_once_and_in_order(tmp_path: Path, items: int, kills: int) -> None:
    moments = random.Random(7)
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.1, steps=2))
        async with desk_process(tmp_path, simulator, interrupted_jobs="requeue") as desk:
            batch_id = await submit_items(desk, items)
            for _ in range(kills):
                await asyncio.sleep(moments.uniform(0.0, items / 20))
                await desk.service.kill()
                await desk.start()
            assert await desk.all_ended(batch_id) == {"completed": items}
            jobs = await desk.jobs(batch_id)
            assert len(jobs) == items
            began = [str(job.started_at) for job in jobs]
            # start times have a resolution of 0.1 s, so two neighbours may seem swapped
            places = sorted(range(items), key=began.__getitem__)
            assert all(abs(place - number) <= 1 for number, place in enumerate(places)), places
            [folder] = [path for path in (tmp_path / "data" / "outputs").iterdir() if path.is_dir()]
            names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
            assert [name[:4] for name in names] == [f"{number:04d}" for number in range(1, items + 1)]
            await desk.agrees()


async def test_interrupted_job_fails_if_configured_and_a_retry_completes(
    tmp_path: Path,
) -> None:
    async with Simulator() as simulator:
        slow = simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
        async with desk_process(tmp_path, simulator, interrupted_jobs="fail") as desk:
            workflow = await desk.client.add_graph(invert(), name="mine")
            job = await desk.client.submit(workflow_slug=workflow.data.slug)
            async for event in desk.client.events(job.id):
                if event.type == "progress":
                    break
            await desk.service.kill()
            slow.end()
            slow = simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.05))
            await desk.start()
            async for _ in desk.client.events(job.id):
                pass
            found = await desk.client.job(job.id)
            assert found.status == "failed"
            assert "killed" in (found.error or "")
            again = (await desk.client.retry("job", job.id)).data
            async for _ in desk.client.events(again.id):
                pass
            assert (await desk.client.job(again.id)).status == "completed"
            await desk.agrees()


async def test_run_from_before_the_kill_is_stopped(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000, times=1))
        async with desk_process(tmp_path, simulator, interrupted_jobs="requeue") as desk:
            workflow = await desk.client.add_graph(invert(), name="mine")
            job = await desk.client.submit(workflow_slug=workflow.data.slug)
            async for event in desk.client.events(job.id):
                if event.type == "progress":
                    break
            await desk.service.kill()
            await desk.start()
            # the job could not finish while the first run, which takes ten minutes, occupies ComfyUI
            async with asyncio.timeout(60):
                async for _ in desk.client.events(job.id):
                    pass
            assert (await desk.client.job(job.id)).status == "completed"


async def test_pauses_and_order_survive_a_kill(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        slow = simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
        async with desk_process(tmp_path, simulator, interrupted_jobs="requeue", prefetch="0") as desk:
            workflow = await desk.client.add_graph(invert(), name="mine")
            slug = workflow.data.slug
            first, second, third, held = [await desk.client.submit(workflow_slug=slug, label=str(n)) for n in range(4)]
            await desk.client.move("job", third.id, "top")
            await desk.client.pause("job", held.id)
            await desk.service.kill()
            slow.end()
            await desk.start()
            for job in (first, second, third):
                async for _ in desk.client.events(job.id):
                    pass
            ended = [(await desk.client.job(job.id)).completed_at for job in (first, second, third)]
            assert ended[0] is not None
            assert ended[1] is not None
            assert ended[2] is not None
            assert ended[0] < ended[1]
            assert ended[2] < ended[1]
            assert (await desk.client.job(held.id)).status == "paused"
