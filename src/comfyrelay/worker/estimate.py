"""How long a run will still take, and whether that fits into a notice."""

from collections import OrderedDict

# How much the last run counts: a change of models shows after a few, one odd run hardly.
WEIGHT = 0.3
MOST_WORKFLOWS = 1000


def seconds_left(*, elapsed: float, progress: float, typical: float | None) -> float | None:
    """Seconds until the run ends, as far as anybody can tell; `None` if nobody can.

    `progress` goes from 0 to 1; 0 says nothing. It is counted in nodes and steps, so it can run ahead (loaders are done
    in no time, the sampler is not) or fall behind (a model comes from a cold disk). `typical` is what runs of this
    workflow took here, but one of another length is the same workflow. So of the two the larger counts: a job that is
    given back for nothing loses what it has done, and one that is cut off at the end loses that and the notice too.

    A run that took longer than is typical has shown that it is not typical: then its progress alone counts. Without
    any, it is expected to be late by as much again.
    """
    if progress >= 1:
        return 0.0
    if progress > 0:
        return max(elapsed / progress, typical or 0.0) - elapsed
    return None if typical is None else abs(typical - elapsed)


def fits(seconds_left: float | None, notice_seconds: float | None, *, margin: float) -> bool:
    """Whether a run may go on. `margin` is for what comes after it: storing its output and taking leave."""
    if notice_seconds is None:
        return True
    return seconds_left is not None and seconds_left + margin <= notice_seconds


class Typical:
    """What runs took here, and storing what they made, by workflow hash: a moving average of each."""

    def __init__(self) -> None:
        self._run: OrderedDict[str, float] = OrderedDict()
        self._store: OrderedDict[str, float] = OrderedDict()

    def ran(self, workflow_hash: str, seconds: float) -> None:
        _learn(self._run, workflow_hash, seconds)

    def stored(self, workflow_hash: str, seconds: float) -> None:
        _learn(self._store, workflow_hash, seconds)

    def run_seconds(self, workflow_hash: str) -> float | None:
        return self._run.get(workflow_hash)

    def store_seconds(self, workflow_hash: str) -> float | None:
        return self._store.get(workflow_hash)


def _learn(known: OrderedDict[str, float], workflow_hash: str, seconds: float) -> None:
    before = known.get(workflow_hash, seconds)
    known[workflow_hash] = before + WEIGHT * (seconds - before)
    known.move_to_end(workflow_hash)
    if len(known) > MOST_WORKFLOWS:
        known.popitem(last=False)
