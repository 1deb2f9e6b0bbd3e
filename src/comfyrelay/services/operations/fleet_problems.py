"""Find problems of workers and fleets for alerts. The overview shows them in its own way."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from comfyrelay.domain.queue.states import WorkerState
from comfyrelay.domain.queue.worker_order import WorkerSort
from comfyrelay.services.databases import Databases
from comfyrelay.services.operations.outages import Outage, OutageKind
from comfyrelay.services.operations.samples import Samples
from comfyrelay.store.central.workers import worker_list

# Maximum number of problems of each kind, because longer messages are not useful.
MAX_NAMED = 20

_TEXTS = {
    OutageKind.COMFYUI: (
        "its ComfyUI does not respond.",
        "This worker gets no jobs. Its jobs run on others.",
        "Open the worker in the console: it shows the last lines of ComfyUI.",
    ),
    OutageKind.WORKER: (
        "the worker is offline.",
        "Its jobs run on other workers, or wait for it.",
        "Check its machine and network, or remove the worker in the console.",
    ),
    OutageKind.UNRUNNABLE: (
        "no worker can run some of the waiting jobs.",
        "These jobs wait until a worker with their workflow, nodes and models is online.",
        "Open a waiting job in the console: it says what is missing.",
    ),
    OutageKind.LAUNCHES: (
        "launched machines do not become workers.",
        "Jobs of this fleet wait longer.",
        "Open the machines of the fleet in the console, remove the cause, and reset its launches.",
    ),
}


class FleetProblems:
    def __init__(
        self,
        databases: Databases,
        samples: Samples,
        *,
        failing_fleets: Callable[[], Awaitable[Sequence[str]]],
        worker_offline_seconds: float,
    ) -> None:
        """`failing_fleets` returns the names of fleets whose launches fail."""
        self._databases = databases
        self._samples = samples
        self._failing_fleets = failing_fleets
        self._offline_seconds = worker_offline_seconds

    async def find(self) -> list[Outage]:
        async with self._databases.central.read() as tx:
            now = await tx.now()
            places = await worker_list.places(tx, offline_seconds=self._offline_seconds, sort=WorkerSort.NAME)
        states = {
            OutageKind.COMFYUI: WorkerState.NO_COMFYUI,
            OutageKind.WORKER: WorkerState.OFFLINE,
        }
        named = {
            kind: [worker.worker_id for worker in places if worker.state == state] for kind, state in states.items()
        }
        load = await self._samples.now()
        named[OutageKind.UNRUNNABLE] = ["queue"] if load.unrunnable or load.waiting_offline else []
        named[OutageKind.LAUNCHES] = list(await self._failing_fleets())
        return [_outage(kind, name, now) for kind, names in named.items() for name in sorted(names)[:MAX_NAMED]]


def _outage(kind: OutageKind, name: str, now: datetime) -> Outage:
    detail, means, advice = _TEXTS[kind]
    return Outage(kind=kind, name=name, detail=detail, means=means, advice=advice, is_severe=False, since=now)
