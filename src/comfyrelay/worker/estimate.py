"""Estimate the remaining time of a run, and whether it can finish before a shutdown."""

from collections import OrderedDict

# Weight of the last run. The average follows a change of models within a few runs, but a single outlier has little
# effect.
WEIGHT = 0.3
MAX_WORKFLOWS = 1000


def seconds_left(*, elapsed: float, progress: float, typical: float | None) -> float | None:
    """Return the estimated seconds until the run ends, or `None` if unknown.

    `progress` is between 0 and 1, and 0 means unknown. Because it counts nodes and steps, it can run ahead (loaders are
    fast, samplers slow) or behind (a model on a cold disk). `typical` is the average for this workflow, whose runs may
    differ in length. The larger estimate is used: requeueing too early loses the run, but being cut off loses the run
    and the notice period.

    A run that has exceeded the typical time is estimated from its progress alone. Without progress, its remaining time
    is estimated as the time by which it is late.
    """
    if progress >= 1:
        return 0.0
    if progress > 0:
        return max(elapsed / progress, typical or 0.0) - elapsed
    return None if typical is None else abs(typical - elapsed)


def fits(seconds_left: float | None, notice_seconds: float | None, *, margin: float) -> bool:
    """Whether a run may continue. `margin` is reserved for storing the output and deregistering."""
    if notice_seconds is None:
        return True
    return seconds_left is not None and seconds_left + margin <= notice_seconds


class TypicalDurations:
    """Moving averages of run and upload times by workflow hash."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, float] = OrderedDict()
        self._uploads: OrderedDict[str, float] = OrderedDict()

    def record_run(self, workflow_hash: str, seconds: float) -> None:
        _learn(self._runs, workflow_hash, seconds)

    def record_upload(self, workflow_hash: str, seconds: float) -> None:
        _learn(self._uploads, workflow_hash, seconds)

    def run_seconds(self, workflow_hash: str) -> float | None:
        return self._runs.get(workflow_hash)

    def upload_seconds(self, workflow_hash: str) -> float | None:
        return self._uploads.get(workflow_hash)


def _learn(averages: OrderedDict[str, float], workflow_hash: str, seconds: float) -> None:
    average = averages.get(workflow_hash, seconds)
    averages[workflow_hash] = average + WEIGHT * (seconds - average)
    averages.move_to_end(workflow_hash)
    if len(averages) > MAX_WORKFLOWS:
        averages.popitem(last=False)
