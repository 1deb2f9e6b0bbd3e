"""Learn job durations, boot times and arrival rates, and remember refusals."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from math import ceil, exp, inf, log
from statistics import median, quantiles

from comfyrelay.domain.autoscaling.machines import FAILED_BOOTS, MachineEndReason, MachineRecord
from comfyrelay.domain.autoscaling.spec import MAX_BOOT_SECONDS, InstanceType, MachineProviderName, MachineSpec

# Duration of a workflow that has not run yet.
UNKNOWN_SECONDS = 60.0
# Minimum weight of a new job. With 0.05, the mean of mixed 5 s and 900 s jobs fluctuated by half, which launched
# machines. A changed duration is learnt within 200 jobs.
MIN_WEIGHT = 0.01
HALF_LIFE_SECONDS = 900.0
# Arrivals observed for a shorter time are averaged over this time.
MIN_RATE_SECONDS = 300.0
# A rate is too high if it predicted this many arrivals since the last one. Of random gaps, 5 % are that long.
SILENT_ARRIVALS = 3.0
DEFAULT_BOOT_SECONDS = 180.0
MIN_SECONDS_LEFT = 1.0
# A local process starts faster than a cloud machine.
LOCAL_BOOT_SECONDS = 30.0
# Number of the newest boots that count.
NEWEST_BOOTS = 20
# Older launches are not observed.
MAX_LAUNCH_AGE_SECONDS = 300.0
# Maximum difference between two reads of one clock.
CLOCK_ERROR_SECONDS = 1.0
# With fewer arrivals there is no rate. After this much silence, observation starts again.
MIN_ARRIVALS = 5
SILENCE_SECONDS = 900.0
# Number of the newest bursts that count, and the minimum number for a prediction.
NEWEST_BURSTS = 20
MIN_BURSTS = 5
# A single following job is no burst: a second machine would save it no more than the duration of the first job. For
# random jobs every five minutes, such machines took 5 % more hours and shortened the p95 wait by 5 of 180 s.
MIN_FOLLOWING_JOBS = 2
# The same limits for the idle gaps of a fleet and for the gaps between arrivals.
NEWEST_GAPS = 50
MIN_GAPS = 5
# If a machine that idles for the cost of a restart covers this share of the gaps, hardly any job waits for a boot.
COVERED_SHARE = 0.98
# If restarts remain frequent, avoiding one counts for this share of its cost.
FREQUENT_RESTART = 0.7
# The last machine idles for at least this share of the cost of a restart.
MIN_IDLE = 0.5
# Delay before a refused launch is repeated, by kind of refusal.
REFUSED_SECONDS = {"capacity": 60.0, "throttled": 15.0, "quota": 300.0, "setup": 60.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Duration:
    jobs: int
    mean_seconds: float

    def including(self, seconds: float) -> "Duration":
        weight = max(1 / (self.jobs + 1), MIN_WEIGHT)
        mean_seconds = self.mean_seconds + weight * (seconds - self.mean_seconds)
        return Duration(jobs=self.jobs + 1, mean_seconds=mean_seconds)

    def expected_seconds(self, running: Sequence[float] = ()) -> float:
        """Return the expected duration of a job while other jobs have been running for these seconds.

        A running job counts with the mean, or with its time so far if that is longer. If durations vary widely, the
        first jobs to complete are short ones: without this rule, a tenth of 900 s jobs among 5 s jobs was unknown for
        15 minutes, while they kept all machines busy.
        """
        overrun = sum(max(0.0, seconds - self.mean_seconds) for seconds in running)
        return self.mean_seconds + overrun / (self.jobs + len(running)) if overrun else self.mean_seconds


NO_RUNS = Duration(jobs=0, mean_seconds=0.0)
UNKNOWN_DURATION = Duration(jobs=0, mean_seconds=UNKNOWN_SECONDS)


@dataclass(slots=True)
class Rate:
    """Arrivals per second with exponential decay: an arrival one half-life ago counts half."""

    _weight: float = 0.0
    _at: datetime | None = None
    # Start and number of the arrivals since the last long silence.
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
            # A late arrival counts as if it had been added on time.
            self._weight += exp(-_DECAY * (self._at - at).total_seconds())

    def at(self, now: datetime) -> float:
        if self._at is not None and self._since is not None and self._at > now:
            # The clock went back: treat the arrivals as if they had happened now.
            self._at, self._since = now, min(self._since, now)
        return self._weight_at(now) * _DECAY

    def correction(self, now: datetime) -> float:
        """Return the factor that corrects the rate: up after a short observation, down after a silence."""
        if self._at is None or self._since is None or self._weight <= 0:
            return 1.0
        age = max((now - self._since).total_seconds(), MIN_RATE_SECONDS)
        factor = 1 / (1 - exp(-_DECAY * age))
        silence = (now - self._at).total_seconds()
        rate = self._weight_at(now) * _DECAY * factor
        return factor * min(1.0, SILENT_ARRIVALS / max(silence, 1e-9) / rate) if rate > 0 else factor

    def observed_seconds(self) -> float:
        """Return how long arrivals have been observed, or 0 if there were too few of them."""
        if self._at is None or self._since is None or self._count < MIN_ARRIVALS:
            return 0.0
        return (self._at - self._since).total_seconds()

    def _weight_at(self, now: datetime) -> float:
        if self._at is None:
            return 0.0
        return self._weight * exp(-_DECAY * max(0.0, (now - self._at).total_seconds()))


_DECAY = log(2) / HALF_LIFE_SECONDS
# A new arrival adds this much to a rate.
ONE_ARRIVAL = _DECAY


@dataclass(slots=True)
class Regularity:
    """How random the arrivals of a fleet are, measured by the newest gaps between them."""

    _newest: deque[datetime] = field(default_factory=lambda: deque(maxlen=NEWEST_GAPS + 1))

    def add(self, at: datetime) -> None:
        self._newest.append(at)

    def variation(self) -> float:
        """Return the squared coefficient of variation of the gaps: 0 means regular, 1 means random or bursty."""
        gaps = [(after - before).total_seconds() for before, after in pairwise(sorted(self._newest))]
        total = sum(gaps) if len(gaps) >= NEWEST_GAPS else 0.0
        if total <= 0:
            return 1.0
        return min(1.0, max(0.0, len(gaps) * sum(gap * gap for gap in gaps) / total**2 - 1))


@dataclass(slots=True)
class IdleGaps:
    """Lengths of the periods in which a fleet had no work. Times are in seconds."""

    _newest: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST_GAPS))
    _since: float | None = None
    _is_busy: bool = True

    def observe(self, now: float, *, is_busy: bool) -> None:
        """Call this for each observation. Gaps between two observations are too short to matter."""
        if is_busy and not self._is_busy and self._since is not None:
            self._newest.append(max(0.0, now - self._since))
        if is_busy:
            self._since = now
        self._is_busy = is_busy

    def newest(self) -> Sequence[float]:
        return tuple(self._newest)


def idle_limit(gaps: Sequence[float], restart_seconds: float, *, is_bursty: bool = False) -> float:
    """Return how long the last machine should idle if a restart costs this many machine seconds.

    Idling for the cost of a restart is at most twice as expensive as knowing the next gap (ski rental). This is the
    limit until enough gaps are known, and also if the learnt limit would have cost more than that. It is also the limit
    if it covers nearly all gaps: the few longer ones cost little, and all jobs of a boot time would wait for a restart.
    In a fleet that is used in bursts, a long gap is usually the end of a burst.
    """
    if len(gaps) < MIN_GAPS:
        return restart_seconds
    ordered = sorted(gaps)
    is_covered = ordered[ceil(COVERED_SHARE * len(gaps)) - 1] <= restart_seconds
    if is_covered and not is_bursty:
        return restart_seconds
    limit = _cheapest_limit(ordered, FREQUENT_RESTART * restart_seconds)
    limit = max(limit, MIN_IDLE * restart_seconds)
    known_future = sum(min(gap, restart_seconds) for gap in gaps)
    return limit if idle_cost(gaps, limit, restart_seconds) <= 2 * known_future else restart_seconds


def idle_cost(gaps: Iterable[float], limit: float, restart_seconds: float) -> float:
    """Return the cost of idling and restarts for these gaps, in machine seconds."""
    return sum(gap if gap <= limit else limit + restart_seconds for gap in gaps)


def _cheapest_limit(ordered: Sequence[float], restart_seconds: float) -> float:
    """Return the limit with the lowest cost for these gaps: 0 or one of the gaps."""
    best, cheapest, idle = len(ordered) * restart_seconds, 0.0, 0.0
    for number, gap in enumerate(ordered, 1):
        idle += gap
        cost = idle + (len(ordered) - number) * (gap + restart_seconds)
        if gap <= restart_seconds and cost <= best:
            best, cheapest = cost, gap
    return cheapest


@dataclass(slots=True)
class FollowingJobs:
    """How many jobs usually follow within a boot time after a job that found no machine."""

    _counts: deque[int] = field(default_factory=lambda: deque(maxlen=NEWEST_BURSTS))
    # Start and count of the current burst.
    _began: datetime | None = None
    _count: int = 0
    _last: datetime | None = None

    def add(self, at: datetime, *, boot_seconds: float, silence_seconds: float) -> None:
        """Count a job. The first job starts no burst, because the silence before it is unknown."""
        if self._last is not None and (at - self._last).total_seconds() >= max(silence_seconds, boot_seconds):
            self._close()
            self._began = at
        elif self._began is not None:
            if (at - self._began).total_seconds() <= boot_seconds:
                self._count += 1
            else:
                self._close()
        self._last = at if self._last is None else max(self._last, at)

    def jobs(self) -> float:
        """Return the median, which a single large burst does not change, or 0 if jobs do not arrive in bursts."""
        jobs = float(median(self._counts)) if len(self._counts) >= MIN_BURSTS else 0.0
        return jobs if jobs >= MIN_FOLLOWING_JOBS else 0.0

    def _close(self) -> None:
        if self._began is not None:
            self._counts.append(self._count)
        self._began, self._count = None, 0


def boot_seconds(newest: Sequence[MachineRecord], spec: MachineSpec) -> float:
    """Return the typical time from order to registered worker; before the first boot, the operator's `boot_seconds`."""
    boots = [
        (machine.registered_at - machine.ordered_at).total_seconds()
        for machine in newest
        if machine.registered_at is not None
    ]
    if (learnt := typical_boot(boots[:NEWEST_BOOTS])) is not None:
        return learnt
    expected = spec.options.get("boot_seconds")
    if isinstance(expected, int | float) and expected > 0:
        return float(min(expected, MAX_BOOT_SECONDS))
    return LOCAL_BOOT_SECONDS if spec.provider == MachineProviderName.LOCAL else DEFAULT_BOOT_SECONDS


def typical_boot(boots: Sequence[float]) -> float | None:
    """Return the 75th percentile of boot times in seconds."""
    if len(boots) >= 2:
        return max(1.0, quantiles(boots, n=4, method="inclusive")[2])
    return max(1.0, boots[0]) if boots else None


def seconds_left(expected: float, passed: float) -> float:
    """Return the remaining time of a boot. A boot that takes longer than expected is assumed to end soon."""
    return max(MIN_SECONDS_LEFT, expected - passed)


def run_seconds_left(expected: float, passed: float) -> float:
    """Return the remaining time of a job. A job that overruns is expected to take the time of its overrun again.

    With a quarter of that time, the p95 wait for short jobs behind long ones was up to 1.8 times that of the reference.
    """
    return max(MIN_SECONDS_LEFT, abs(expected - passed))


def seconds_ago(then: datetime, now: datetime) -> float:
    """Return the age of a time. A future time, from a wrong clock, is infinitely old, so that nothing waits for it."""
    ago = (now - then).total_seconds()
    return max(0.0, ago) if ago >= -CLOCK_ERROR_SECONDS else inf


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedLaunches:
    """The number of consecutive rounds of launches without a worker, and the time of the last failure."""

    rounds: int = 0
    last_at: datetime | None = None


def failed_launches(newest: Iterable[MachineRecord], now: datetime, *, since: datetime | None = None) -> FailedLaunches:
    """Count the rounds of launches since the last machine that became a worker.

    A round is all machines that were ordered before its first failure was known: ten machines launched together fail
    for one reason. Booting, refused and unneeded machines and orders from the future do not count. `since` is the time
    at which the operator reset the count.
    """
    past = [machine for machine in newest if seconds_ago(machine.ordered_at, now) != inf]
    last_success = max((machine.ordered_at for machine in past if machine.registered_at is not None), default=None)
    failed = sorted(
        (machine.ordered_at, failed_at)
        for machine in past
        if machine.end_reason in FAILED_BOOTS
        and machine.registered_at is None
        and (last_success is None or machine.ordered_at > last_success)
        and (failed_at := machine.ending_at or machine.ended_at) is not None
        and (since is None or failed_at > since)
    )
    rounds, first_failure = 0, None
    for ordered_at, failed_at in failed:
        if first_failure is None or ordered_at >= first_failure:
            rounds, first_failure = rounds + 1, failed_at
        first_failure = min(first_failure, failed_at)
    return FailedLaunches(rounds=rounds, last_at=max((failed_at for _, failed_at in failed), default=None))


def launches_ago(newest: Iterable[MachineRecord], now: datetime) -> list[float]:
    """Return the ages of recent launches in seconds."""
    launched = [machine for machine in newest if machine.end_reason != MachineEndReason.REFUSED]
    ages = [seconds_ago(machine.ordered_at, now) for machine in launched]
    return [age for age in ages if age <= MAX_LAUNCH_AGE_SECONDS]


@dataclass(frozen=True, kw_only=True, slots=True)
class AvailableTypes:
    """Instance types that may be launched, and whether there are none because all were refused recently.

    `refusal` is the text of a refusal for the whole fleet, with the time until the next attempt.
    """

    types: Sequence[InstanceType]
    all_types_refused: bool
    refusal: str | None = None


def available_types(
    types: Sequence[InstanceType], newest: Iterable[MachineRecord], now: datetime, *, since: datetime | None = None
) -> AvailableTypes:
    """Return the types without recent refusals. `since` is the time at which the operator reset the refusals."""
    refused: set[str | None] = set()
    longest, refusal = 0.0, None
    for machine in newest:
        if machine.end_reason == MachineEndReason.REFUSED and machine.ended_at is not None:
            if since is not None and machine.ended_at <= since:
                continue
            _, kind, text = (machine.reason or "").split(":", 2)
            seconds_left = REFUSED_SECONDS.get(kind, 60.0) - seconds_ago(machine.ended_at, now)
            if seconds_left > 0:
                # A refusal without a type applies to the fleet.
                refused.add(machine.instance_type if kind == "capacity" else None)
                if kind != "capacity" and seconds_left > longest:
                    longest, refusal = seconds_left, f"{text.rstrip('.')} (next attempt in {seconds_left:.0f} s)"
    available = [] if None in refused else [type_ for type_ in types if type_.name not in refused]
    return AvailableTypes(types=available, all_types_refused=not available and bool(refused), refusal=refusal)


def refusal_reason(kind: str, text: str) -> str:
    """Return the end reason of a refused machine."""
    return f"{MachineEndReason.REFUSED}:{kind}:{text}"
