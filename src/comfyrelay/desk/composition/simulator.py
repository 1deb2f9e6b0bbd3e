"""The built-in simulator, its fleet, and the check whether ComfyUI answers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.desk.composition.first_start import FLEET
from comfyrelay.desk.examples import EXAMPLES
from comfyrelay.desk.simulated_jobs import TRIED_MODELS, Trying
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.domain.records.jobs import DispatchFilter
from comfyrelay.errors import ComfyError, Conflict, NotFound
from comfyrelay.protocol.desk import SimulatedJobs
from comfyrelay.services.engine import Engine

if TYPE_CHECKING:
    from comfyrelay.simulator import Simulator

# The fleet and the worker of simulated jobs.
SIMULATOR = "simulator"
ANSWER_SECONDS = 3.0


@asynccontextmanager
async def open_simulator(engine: Engine, trying: Trying, *, step_seconds: float) -> AsyncIterator["Simulator | None"]:
    """`None` if no job needs the simulator."""
    if trying.mode is SimulatedJobs.NOTHING and not await _has_open_jobs(engine, trying):
        yield None
        return
    await _create_fleet(engine, trying)
    # only loaded here, with its HTTP library
    from comfyrelay.simulator import Simulator  # noqa: PLC0415

    folder = engine.settings.data_dir / "simulator"
    folder.mkdir(exist_ok=True)
    async with Simulator(folder=folder, step_seconds=step_seconds, models=TRIED_MODELS) as simulator:
        yield simulator


async def check_comfyui(engine: Engine, trying: Trying, urls: Sequence[str]) -> list[str]:
    """The URLs where no ComfyUI answers yet."""
    trying.examples = await _example_ids(engine)
    answers = await asyncio.gather(*map(_answers, urls))
    silent = [url for url, is_up in zip(urls, answers, strict=True) if not is_up]
    if len(silent) < len(urls):
        trying.note_comfyui()
    return silent


async def _answers(url: str) -> bool:
    async with ComfyClient(url) as client:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await client.check()
        except (ComfyError, TimeoutError):
            return False
    return True


async def _example_ids(engine: Engine) -> frozenset[int]:
    found: set[int] = set()
    for each in EXAMPLES:
        with suppress(NotFound):
            found.add((await engine.catalogue.workflows.get(each.slug)).workflow.id)
    return frozenset(found)


async def _has_open_jobs(engine: Engine, trying: Trying) -> bool:
    for status in (DispatchStatus.QUEUED, DispatchStatus.LEASED, DispatchStatus.PAUSED):
        wanted = DispatchFilter(stage=trying.tries_stage, status=status)
        if (await engine.operations.inspection.dispatches(wanted, limit=1)).items:
            return True
    return False


async def _create_fleet(engine: Engine, trying: Trying) -> None:
    """It may run every workflow that the desk's own fleet runs."""
    slugs = (await engine.workers.views.get(trying.stage, FLEET)).workflow_slugs
    with suppress(Conflict):
        await engine.workers.fleets.create(slug=SIMULATOR, stage=trying.tries_stage, workflow_slugs=slugs)
