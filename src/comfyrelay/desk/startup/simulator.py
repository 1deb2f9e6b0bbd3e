"""Start the built-in simulator if a job needs it, and check whether ComfyUI answers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from secrets import token_urlsafe
from typing import TYPE_CHECKING

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.desk.examples import EXAMPLES
from comfyrelay.desk.simulated_jobs import SIMULATED_MODELS, SimulationPolicy
from comfyrelay.desk.startup.first_start import FLEET
from comfyrelay.desk.startup.later import import_later
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


async def prepare_simulator(engine: Engine, simulation: SimulationPolicy) -> bool:
    """Create the fleet of the simulator, which may run the same workflows as the desk's own fleet. Returns whether a
    job needs the simulator."""
    if simulation.mode is SimulatedJobs.NOTHING and not await _has_open_jobs(engine, simulation):
        return False
    slugs = (await engine.workers.views.get(simulation.stage, FLEET)).workflow_slugs
    with suppress(Conflict):
        await engine.workers.fleets.create(slug=SIMULATOR, stage=simulation.simulated_stage, workflow_slugs=slugs)
    return True


@asynccontextmanager
async def open_simulator(engine: Engine, *, step_seconds: float | None) -> AsyncIterator["Simulator | None"]:
    """Run the simulator with this time per step. If the time is `None`, yield `None`."""
    if step_seconds is None:
        yield None
        return
    await import_later("comfyrelay.simulator")
    from comfyrelay.simulator import Simulator

    folder = engine.settings.data_dir / "simulator"
    folder.mkdir(exist_ok=True)
    # Other users of this machine can connect to the port, too.
    secret = token_urlsafe(32)
    async with Simulator(folder=folder, secret=secret, step_seconds=step_seconds, models=SIMULATED_MODELS) as simulator:
        yield simulator


async def check_comfyui(engine: Engine, simulation: SimulationPolicy, urls: Sequence[str]) -> list[str]:
    """Return the URLs at which no ComfyUI answers yet."""
    simulation.examples = await _example_ids(engine)
    answers = await asyncio.gather(*map(_answers, urls))
    silent = [url for url, is_up in zip(urls, answers, strict=True) if not is_up]
    if len(silent) < len(urls):
        simulation.note_comfyui()
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
    for example in EXAMPLES:
        with suppress(NotFound):
            found.add((await engine.catalogue.workflows.get(example.slug)).workflow.id)
    return frozenset(found)


async def _has_open_jobs(engine: Engine, simulation: SimulationPolicy) -> bool:
    for status in (DispatchStatus.QUEUED, DispatchStatus.LEASED, DispatchStatus.PAUSED):
        wanted = DispatchFilter(stage=simulation.simulated_stage, status=status)
        if (await engine.operations.inspection.dispatches(wanted, limit=1)).items:
            return True
    return False
