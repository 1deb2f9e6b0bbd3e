"""Learn job durations from the audit log; settling needs no extra write."""

from comfyrelay.domain.autoscaling.learning import NO_RUNS, UNKNOWN_SECONDS, Duration
from comfyrelay.services.autoscaling.leadership import Leadership
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.autoscaling import durations, machines, observations
from comfyrelay.store.central.autoscaling.durations import ALL, Completed, Learnt
from comfyrelay.store.database import Tx

CURSOR = "durations"
AT_ONCE = 1000
# How far back a new process reads.
LOOKED_BACK = 10_000


class Durations:
    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    async def learn(self) -> int:
        """Continue reading the log. Returns the number of jobs learnt.

        An entry that commits after a later one may be skipped: a single job does not matter.
        """
        learnt = 0
        while True:
            count, is_end = await self._leadership.run(TransactionStep.LEARN, _learn)
            learnt += count
            if is_end:
                return learnt


class Predictions:
    """Expected job durations on a machine with a speed of 1."""

    def __init__(self, learnt: dict[tuple[int, int], Learnt], last: dict[tuple[int, int], float]) -> None:
        self._learnt = learnt
        self._last = last

    @classmethod
    async def read(cls, tx: Tx, workflow_ids: set[int]) -> "Predictions":
        return cls(await durations.known(tx, workflow_ids), await durations.last_of_effects(tx, workflow_ids))

    def seconds(self, workflow_id: int, effect_id: int | None = None) -> float:
        for key in ((workflow_id, effect_id or ALL), (workflow_id, ALL)):
            if key in self._learnt:
                return self._learnt[key].mean_seconds
        return self._last.get((workflow_id, effect_id or ALL), UNKNOWN_SECONDS)


async def _learn(tx: Tx) -> tuple[int, bool]:
    after = await durations.position(tx, CURSOR)
    if after is None:
        after = max(0, await durations.newest_entry(tx) - LOOKED_BACK)
    entries = await durations.completed_after(tx, after, most=AT_ONCE)
    if not entries:
        return 0, True
    done = [entry for entry in entries if entry.workflow_id is not None and entry.seconds is not None]
    if done:
        await _write(tx, done)
    await durations.set_position(tx, CURSOR, entries[-1].id)
    return len(done), len(entries) < AT_ONCE


async def _write(tx: Tx, done: list[Completed]) -> None:
    speeds = await _speeds(tx, {each.worker_id for each in done})
    before = await durations.known(tx, {each.workflow_id for each in done if each.workflow_id is not None})
    found = {key: Duration(jobs=each.jobs, mean_seconds=each.mean_seconds) for key, each in before.items()}
    changed = set()
    for job in done:
        assert job.workflow_id is not None
        assert job.seconds is not None
        seconds = job.seconds * speeds.get(job.worker_id, 1.0)
        for effect_id in {ALL, job.effect_id or ALL}:
            key = (job.workflow_id, effect_id)
            found[key] = found.get(key, NO_RUNS).including(seconds)
            changed.add(key)
    await durations.write(
        tx,
        [Learnt(*key, found[key].jobs, found[key].mean_seconds) for key in sorted(changed)],
    )


async def _speeds(tx: Tx, worker_ids: set[str]) -> dict[str, float]:
    """Machine speed by worker: durations are learnt for a speed of 1."""
    types = await machines.types_of(tx, worker_ids)
    if not types:
        return {}
    speeds = {
        (fleet.id, kind.name): kind.speed
        for fleet in await observations.fleets_of(tx)
        for kind in fleet.machine_spec.instance_types
    }
    return {worker: speeds.get(which, 1.0) for worker, which in types.items()}
