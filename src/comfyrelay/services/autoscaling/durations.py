"""Learn job durations from the audit log, so that settling a job needs no extra write."""

from comfyrelay.domain.autoscaling.learning import NO_RUNS, UNKNOWN_SECONDS, Duration
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


class Predictions:
    """The expected durations of jobs on a machine with a speed of 1."""

    def __init__(self, learnt: dict[tuple[int, int], LearnedDuration], last: dict[tuple[int, int], float]) -> None:
        self._learnt = learnt
        self._last = last

    @classmethod
    async def read(cls, tx: Tx, workflow_ids: set[int]) -> "Predictions":
        return cls(await durations.known(tx, workflow_ids), await durations.last_of_effects(tx, workflow_ids))

    def seconds(self, workflow_id: int, effect_id: int | None = None) -> float:
        for key in ((workflow_id, effect_id or WHOLE_WORKFLOW), (workflow_id, WHOLE_WORKFLOW)):
            if key in self._learnt:
                return self._learnt[key].mean_seconds
        return self._last.get((workflow_id, effect_id or WHOLE_WORKFLOW), UNKNOWN_SECONDS)


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
