"""Learn job durations from the audit log, so that settling a job needs no extra write."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from comfyrelay.domain.autoscaling.learning import NO_RUNS, UNKNOWN_DURATION, Duration
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.autoscaling import cursors, durations, machines, observations
from comfyrelay.store.central.autoscaling.durations import WHOLE_WORKFLOW, CompletionEntry, LearnedDuration
from comfyrelay.store.database import Tx

CURSOR = "durations"
BATCH_SIZE = 1000
# Maximum number of log entries that a new installation reads.
MAX_LOOKBACK = 10_000


class Durations:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def learn(self) -> int:
        """Read the new log entries, and return the number of completed jobs.

        An entry that is committed after a later entry may be skipped, but a single job does not matter.
        """
        central, learnt = self._databases.central, 0
        async with central.read() as tx:
            if await cursors.position(tx, CURSOR) == await durations.newest_entry(tx):
                return 0
        while True:
            count, is_end = await central.run(TransactionStep.LEARN, _learn)
            learnt += count
            if is_end:
                return learnt


class RunningJob(NamedTuple):
    """`seconds` is how long the job has been running, for a machine with a speed of 1."""

    workflow_id: int
    effect_id: int | None
    seconds: float


class Predictions:
    """The expected durations of jobs on a machine with a speed of 1."""

    def __init__(
        self,
        learnt: Mapping[tuple[int, int], LearnedDuration],
        last: Mapping[tuple[int, int], float],
        running: Iterable[RunningJob] = (),
    ) -> None:
        self._learnt = learnt
        self._last = last
        self._running: dict[tuple[int, int], list[float]] = defaultdict(list)
        for job in running:
            for effect_id in {WHOLE_WORKFLOW, job.effect_id or WHOLE_WORKFLOW}:
                self._running[job.workflow_id, effect_id].append(job.seconds)
        # Cached, because most effects have no duration of their own.
        self._expected = cache(self._calculate)

    @classmethod
    async def read(cls, tx: Tx, workflow_ids: set[int]) -> "Predictions":
        return cls(await durations.known(tx, workflow_ids), await durations.last_of_effects(tx, workflow_ids))

    def while_running(self, running: Iterable[RunningJob]) -> "Predictions":
        return Predictions(self._learnt, self._last, running)

    def seconds(self, workflow_id: int, effect_id: int | None = None) -> float:
        own, whole = (workflow_id, effect_id or WHOLE_WORKFLOW), (workflow_id, WHOLE_WORKFLOW)
        return self._expected(whole if own not in self._learnt and whole in self._learnt else own)

    def _calculate(self, key: tuple[int, int]) -> float:
        duration = UNKNOWN_DURATION
        if (learnt := self._learnt.get(key)) is not None:
            duration = Duration(jobs=learnt.jobs, mean_seconds=learnt.mean_seconds)
        elif (last := self._last.get(key)) is not None:
            duration = Duration(jobs=1, mean_seconds=last)
        return duration.expected_seconds(self._running.get(key, ()))


async def _learn(tx: Tx) -> tuple[int, bool]:
    # Every server learns, so a lock prevents two servers from counting the same job.
    after = await cursors.lock(tx, CURSOR) or max(0, await durations.newest_entry(tx) - MAX_LOOKBACK)
    entries = await durations.completed_after(tx, after, limit=BATCH_SIZE)
    if not entries:
        return 0, True
    done = [entry for entry in entries if entry.workflow_id is not None and entry.seconds is not None]
    if done:
        await _write(tx, done)
    await cursors.move(tx, CURSOR, entries[-1].id)
    return len(done), len(entries) < BATCH_SIZE


async def _write(tx: Tx, done: list[CompletionEntry]) -> None:
    speeds = await _speeds(tx, {job.worker_id for job in done})
    before = await durations.known(tx, {job.workflow_id for job in done if job.workflow_id is not None})
    found = {key: Duration(jobs=known.jobs, mean_seconds=known.mean_seconds) for key, known in before.items()}
    changed = set()
    for job in done:
        assert job.workflow_id is not None
        assert job.seconds is not None
        seconds = job.seconds * speeds.get(job.worker_id, 1.0)
        for effect_id in {WHOLE_WORKFLOW, job.effect_id or WHOLE_WORKFLOW}:
            key = (job.workflow_id, effect_id)
            found[key] = found.get(key, NO_RUNS).including(seconds)
            changed.add(key)
    await durations.write(
        tx, [LearnedDuration(*key, found[key].jobs, found[key].mean_seconds) for key in sorted(changed)]
    )


async def _speeds(tx: Tx, worker_ids: set[str]) -> dict[str, float]:
    """Return the speed of each worker's machine. Durations are learnt for a speed of 1."""
    types = await machines.types_of(tx, worker_ids)
    if not types:
        return {}
    speeds = {
        (fleet.id, instance_type.name): instance_type.speed
        for fleet in await observations.all_fleets(tx)
        for instance_type in fleet.machine_spec.instance_types
    }
    return {worker: speeds.get(fleet_and_type, 1.0) for worker, fleet_and_type in types.items()}
