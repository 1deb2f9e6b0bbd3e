"""Learn job durations, boot times and arrival rates, and remember refusals."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import exp, inf, log
from statistics import median, quantiles

from comfyrelay.domain.autoscaling.machines import FAILED_BOOTS, MachineEndReason, MachineRecord
from comfyrelay.domain.autoscaling.spec import MAX_BOOT_SECONDS, InstanceType, MachineProviderName, MachineSpec

# For a workflow that has not run yet.
UNKNOWN_SECONDS = 60.0
# Minimum weight of a new job: a changed workflow is learnt within a few dozen jobs.
MIN_WEIGHT = 0.05
HALF_LIFE_SECONDS = 300.0
DEFAULT_BOOT_SECONDS = 180.0
MIN_SECONDS_LEFT = 1.0
# A local process starts faster than a cloud machine.
LOCAL_BOOT_SECONDS = 30.0
# Number of newest boots that count.
NEWEST_BOOTS = 20
LAUNCHES_SECONDS = 300.0
# Two reads of one clock may differ by this much.
CLOCK_ERROR_SECONDS = 1.0
# Fewer arrivals give no rate, and after this silence a new stream starts.
MIN_ARRIVALS = 5
SILENCE_SECONDS = 3 * HALF_LIFE_SECONDS
# Number of newest bursts that count, and the minimum for a prediction.
NEWEST_BURSTS = 20
MIN_BURSTS = 5
# How long a refused launch is not repeated, by kind of refusal.
REFUSED_SECONDS = {"capacity": 60.0, "throttled": 15.0, "quota": 300.0, "setup": 60.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Duration:
    jobs: int
    mean_seconds: float

    def including(self, seconds: float) -> "Duration":
        weight = max(1 / (self.jobs + 1), MIN_WEIGHT)
        return Duration(
            jobs=self.jobs + 1,
            mean_seconds=self.mean_seconds + weight * (seconds - self.mean_seconds),
        )


NO_RUNS = Duration(jobs=0, mean_seconds=0.0)


@dataclass(slots=True)
class Rate:
    """Arrivals per second with exponential decay: those one half-life ago count half."""

    _weight: float = 0.0
    _at: datetime | None = None
    # start and number of arrivals without a long silence
    _since: datetime | None = None
    _count: int = 0

    def add(self, at: datetime) -> None:
        if self._at is None or self._since is None or (at - self._at).total_seconds() > SILENCE_SECONDS:
            self._since, self._count = at, 0
        self._since = min(self._since, at)
        self._count += 1
        if self._at is None or at >= self._at:
            self._weight = self._weight_at(at) + 1.0
            self._at = at
        else:
            # a late arrival counts as what is left of it
            self._weight += exp(-_DECAY * (self._at - at).total_seconds())

    def at(self, now: datetime) -> float:
        if self._at is not None and self._since is not None and self._at > now:
            # the clock went back: treat the arrivals as of now
            self._at, self._since = now, min(self._since, now)
        return self._weight_at(now) * _DECAY

    def observed_seconds(self) -> float:
        """How long arrivals were observed: a few in a row give no rate."""
        if self._at is None or self._since is None or self._count < MIN_ARRIVALS:
            return 0.0
        return (self._at - self._since).total_seconds()

    def _weight_at(self, now: datetime) -> float:
        if self._at is None:
            return 0.0
        return self._weight * exp(-_DECAY * max(0.0, (now - self._at).total_seconds()))


_DECAY = log(2) / HALF_LIFE_SECONDS
# What a new arrival adds to a rate.
ONE_ARRIVAL = _DECAY


@dataclass(slots=True)
class Rates:
    """By stage and workflow."""

    _rates: dict[tuple[str, int], Rate] = field(default_factory=dict)

    def add(self, stage: str, workflow: int, at: datetime) -> None:
        self._rates.setdefault((stage, workflow), Rate()).add(at)

    def of(self, stage: str, workflow: int) -> Rate:
        return self._rates.get((stage, workflow)) or Rate()


@dataclass(slots=True)
class FollowingJobs:
    """How many jobs usually follow one that found no machine, within the boot it waits for; none if most stay alone."""

    _followed: deque[int] = field(default_factory=lambda: deque(maxlen=NEWEST_BURSTS))
    _began: datetime | None = None
    _now: int = 0
    _last: datetime | None = None

    def add(self, at: datetime, *, boot_seconds: float, silence_seconds: float) -> None:
        """Count a job. The very first one teaches nothing."""
        if self._last is not None and (at - self._last).total_seconds() >= max(silence_seconds, boot_seconds):
            self._close()
            self._began = at
        elif self._began is not None:
            if (at - self._began).total_seconds() <= boot_seconds:
                self._now += 1
            else:
                self._close()
        self._last = at if self._last is None else max(self._last, at)

    def jobs(self) -> float:
        """The median, which a single flood does not move."""
        return float(median(self._followed)) if len(self._followed) >= MIN_BURSTS else 0.0

    def _close(self) -> None:
        if self._began is not None:
            self._followed.append(self._now)
        self._began, self._now = None, 0


def boot_seconds(newest: Sequence[MachineRecord], spec: MachineSpec) -> float:
    """Boot time from order to registered worker:

    the 75th percentile of the newest. Before the first, the operator's `boot_seconds`.
    """
    took = [
        (each.registered_at - each.ordered_at).total_seconds() for each in newest if each.registered_at is not None
    ][:NEWEST_BOOTS]
    return typical_boot(took) or _expected_boot(spec)


def _expected_boot(spec: MachineSpec) -> float:
    expected = spec.options.get("boot_seconds")
    if isinstance(expected, int | float) and expected > 0:
        return float(min(expected, MAX_BOOT_SECONDS))
    return LOCAL_BOOT_SECONDS if spec.provider is MachineProviderName.LOCAL else DEFAULT_BOOT_SECONDS


def typical_boot(took: Sequence[float]) -> float | None:
    if len(took) >= 2:
        return max(1.0, quantiles(took, n=4, method="inclusive")[2])
    return max(1.0, took[0]) if took else None


def seconds_left(expected: float, passed: float) -> float:
    """Remaining time of a boot or job. One that takes longer than expected is about to end."""
    return max(MIN_SECONDS_LEFT, expected - passed)


def seconds_ago(then: datetime, now: datetime) -> float:
    """A future time comes from a wrong clock: treat it as long past, so that nothing waits for it."""
    ago = (now - then).total_seconds()
    return max(0.0, ago) if ago >= -CLOCK_ERROR_SECONDS else inf


def failed_boots(newest: Iterable[MachineRecord], now: datetime) -> list[MachineRecord]:
    """Newest consecutive launches that never became a worker.

    Booting, refused and unneeded machines do not count, nor future times.
    """
    failed = []
    for each in newest:
        if seconds_ago(each.ordered_at, now) == inf:
            continue
        if each.registered_at is not None:
            break
        if each.ended in FAILED_BOOTS:
            failed.append(each)
    return failed


def launches_ago(newest: Iterable[MachineRecord], now: datetime) -> list[float]:
    ago = [seconds_ago(each.ordered_at, now) for each in newest if each.ended != MachineEndReason.REFUSED]
    return [each for each in ago if each <= LAUNCHES_SECONDS]


@dataclass(frozen=True, kw_only=True, slots=True)
class Available:
    """Instance types that may be tried, and whether none is left because all were refused recently."""

    types: Sequence[InstanceType]
    all_types_refused: bool
    # a refusal for the whole fleet, and when it is retried
    refusal: str | None = None


def available_types(types: Sequence[InstanceType], newest: Iterable[MachineRecord], now: datetime) -> Available:
    refused: set[str | None] = set()
    longest, refusal = 0.0, None
    for each in newest:
        if each.ended == MachineEndReason.REFUSED and each.ended_at is not None:
            _, kind, text = (each.reason or "").split(":", 2)
            seconds_left = REFUSED_SECONDS.get(kind, 60.0) - seconds_ago(each.ended_at, now)
            if seconds_left > 0:
                # a refusal without a type applies to the fleet
                refused.add(each.instance_type if kind == "capacity" else None)
                if kind != "capacity" and seconds_left > longest:
                    longest, refusal = seconds_left, f"{text.rstrip('.')} (tried again in {seconds_left:.0f} s)"
    left = [] if None in refused else [type_ for type_ in types if type_.name not in refused]
    return Available(types=left, all_types_refused=not left and bool(refused), refusal=refusal)


def refusal(kind: str, text: str) -> str:
    """The end reason of a refused machine."""
    return f"{MachineEndReason.REFUSED}:{kind}:{text}"
