"""Compute the plan of a seed in advance; the same seed always gives the same plan."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SERVERS = ("server-1", "server-2")
WORKERS = ("gpu-1", "gpu-2", "gpu-3")
COMFYUIS = ("comfyui-1", "comfyui-2", "comfyui-3")
# The first server has the central database and one shard, the second has the other shard.
DATABASES = ("core", "side")
TENANTS = ("ann", "ben", "cleo", "dan")
CLIENTS = "clients"
# any process may send the request
ANY_WORKER = "workers"
STORAGE = "storage"
RECEIVER = "receiver"
LEASE_SECONDS = 3.0
# Jobs are submitted and faults start within this many seconds.
WINDOW_SECONDS = 2.5


class Kind(StrEnum):
    KILL = "kill"
    STOP_DATABASE = "stop at once"
    PAUSE = "pause"
    SKEW = "skew the clock of"
    FULL_DISK = "fill the disk of"
    CUT_OFF = "cut off"
    STORAGE_ERRORS = "answer with errors at"
    WEBHOOKS_REFUSED = "refuse webhooks at"
    # faults of single requests
    LOSE_REQUEST = "lose requests of"
    LOSE_ANSWER = "lose answers to"
    DUPLICATE = "duplicate requests of"
    DELAY = "delay requests of"
    # the sender gets no response, and the request arrives much later
    ARRIVE_LATE = "deliver late requests of"
    # the same, but the sender is also killed for longer than its lease
    KILL_SENDER = "kill the sender of, and deliver late, requests of"
    # the server that received the request is killed during the request or just after it
    KILL_RECEIVER = "kill the receiver of requests of"


ON_THE_WIRE = frozenset(
    {
        Kind.LOSE_REQUEST,
        Kind.LOSE_ANSWER,
        Kind.DUPLICATE,
        Kind.DELAY,
        Kind.ARRIVE_LATE,
        Kind.KILL_SENDER,
        Kind.KILL_RECEIVER,
    }
)
OUTPUT = "PUT /.*/ai-jobs/"
COMPLETE = "POST /api/worker/complete"
FAIL = "POST /api/worker/fail"
# from a client that does not retry; servers ignore the mark
ONCE = r"POST /api/ai-jobs\?once"


@dataclass(frozen=True, kw_only=True)
class Fault:
    at: float
    kind: Kind
    target: str
    # how long the fault lasts, or how long a request is delayed
    seconds: float = 0.0
    # for network faults, a pattern for the start of method and path, and the number of requests
    route: str = ""
    count: int = 1

    def __str__(self) -> str:
        on = f" {self.route} ×{self.count}" if self.kind in ON_THE_WIRE else ""
        lasts = f" for {self.seconds:+.0f} s" if self.kind is Kind.SKEW else f" {self.seconds:.1f} s"
        return f"{self.at:.1f} {self.kind} {self.target}{on}{lasts if self.seconds else ''}"


class Verb(StrEnum):
    PLAIN = "submit"
    IMAGE = "upload and submit"
    BATCH = "submit a batch"
    DOOMED = "submit a failing job"
    ONCE = "submit without a retry"
    CANCEL = "cancel"
    PAUSE = "pause"
    CREDIT = "credit"


@dataclass(frozen=True, kw_only=True)
class Act:
    """An act of a client; `number` selects one of its jobs or is the size of a batch."""

    at: float
    tenant: str
    verb: Verb
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    seed: int
    acts: Sequence[Act]
    faults: Sequence[Fault]


def plan_of(seed: int) -> Plan:
    dice = random.Random(f"soak {seed}")
    acts = [act for tenant in TENANTS for act in _acts(dice, tenant)]
    # in each seed, a process dies during a request, because this tests durable state most
    kill = _kill_during_request(dice)
    if (verb := {FAIL: Verb.DOOMED, ONCE: Verb.ONCE}.get(kill.route)) is not None:
        acts.append(Act(at=kill.at + 0.1, tenant=dice.choice(TENANTS), verb=verb))
    faults = sorted([kill, *(_fault(dice) for _ in range(dice.randint(1, 4)))], key=lambda fault: fault.at)
    return Plan(seed=seed, acts=sorted(acts, key=lambda act: act.at), faults=faults)


def _acts(dice: random.Random, tenant: str) -> list[Act]:
    submissions = dice.choices(
        [Verb.PLAIN, Verb.IMAGE, Verb.BATCH, Verb.DOOMED], weights=[8, 6, 2, 1], k=dice.randint(2, 3)
    )
    acts = [
        Act(at=_moment(dice), tenant=tenant, verb=verb, number=dice.randint(2, 3) if verb is Verb.BATCH else 0)
        for verb in submissions
    ]
    for verb, chance in ((Verb.CANCEL, 0.3), (Verb.PAUSE, 0.2), (Verb.CREDIT, 0.5)):
        if dice.random() < chance:
            acts.append(Act(at=_moment(dice) + 0.3, tenant=tenant, verb=verb, number=dice.randint(0, 3)))
    return acts


def _fault(dice: random.Random) -> Fault:
    [make] = dice.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))
    return make(dice, _moment(dice) + 0.2)


def _kill(dice: random.Random, at: float) -> Fault:
    target = dice.choice(dice.choices([SERVERS, WORKERS, COMFYUIS, DATABASES], weights=[4, 4, 3, 2])[0])
    return Fault(at=at, kind=Kind.KILL, target=target, seconds=dice.uniform(0, 1))


def _stop_database(dice: random.Random, at: float) -> Fault:
    return Fault(at=at, kind=Kind.STOP_DATABASE, target=dice.choice(DATABASES), seconds=dice.uniform(0, 1))


def _pause(dice: random.Random, at: float) -> Fault:
    # mostly lease holders, and for longer than a lease
    target = dice.choice([*WORKERS, *WORKERS, *COMFYUIS[:1], *SERVERS])
    longest = 1.5 * LEASE_SECONDS if target in WORKERS else 0.7 * LEASE_SECONDS
    return Fault(at=at, kind=Kind.PAUSE, target=target, seconds=dice.uniform(0.7, 1) * longest)


def _skew(dice: random.Random, at: float) -> Fault:
    seconds = dice.choice([-86_400.0, -3_600.0, 3_600.0, 86_400.0])
    return Fault(at=at, kind=Kind.SKEW, target=dice.choice(WORKERS), seconds=seconds)


def _fill_disk(dice: random.Random, at: float) -> Fault:
    target = dice.choice([*WORKERS, *COMFYUIS, STORAGE, STORAGE, *DATABASES, *DATABASES])
    return Fault(at=at, kind=Kind.FULL_DISK, target=target, seconds=dice.uniform(0.5, 2))


def _cut_off(dice: random.Random, at: float) -> Fault:
    target = dice.choice([*WORKERS, CLIENTS, STORAGE, STORAGE])
    longest = 1.5 * LEASE_SECONDS if target in WORKERS else 2.0
    return Fault(at=at, kind=Kind.CUT_OFF, target=target, seconds=dice.uniform(0.5, longest))


def _storage_errors(dice: random.Random, at: float) -> Fault:
    return Fault(at=at, kind=Kind.STORAGE_ERRORS, target=STORAGE, seconds=dice.uniform(0.3, 2))


def _refuse_webhooks(dice: random.Random, at: float) -> Fault:
    return Fault(at=at, kind=Kind.WEBHOOKS_REFUSED, target=RECEIVER, count=dice.randint(1, 3))


def _fault_on_the_wire(dice: random.Random, at: float) -> Fault:
    target = dice.choice([*WORKERS, *WORKERS, CLIENTS, CLIENTS, STORAGE])
    if target in WORKERS:
        others = [f"POST /api/worker/{call}" for call in ("heartbeat", "poll", "")]
        route = dice.choice([COMPLETE, COMPLETE, COMPLETE, *others])
    elif target == CLIENTS:
        route = dice.choice(["POST /api/ai-jobs", "POST /api/ai-jobs", "POST /api/admin/", "POST /api/", "GET /api/"])
    else:
        route = dice.choice([OUTPUT, "PUT /", "GET /", "HEAD /"])
    kinds = [Kind.LOSE_REQUEST, Kind.LOSE_ANSWER, Kind.LOSE_ANSWER, Kind.DUPLICATE, Kind.DUPLICATE, Kind.DELAY]
    kind = dice.choice([*kinds, Kind.ARRIVE_LATE, Kind.ARRIVE_LATE])
    # mostly longer than the lease of the request
    seconds = {
        Kind.DELAY: dice.uniform(0.2, 1.2 * LEASE_SECONDS),
        Kind.ARRIVE_LATE: dice.uniform(0.8, 1.8) * LEASE_SECONDS,
    }.get(kind, 0.0)
    return Fault(at=at, kind=kind, target=target, route=route, count=dice.randint(1, 3), seconds=seconds)


def _kill_sender(dice: random.Random, at: float) -> Fault:
    if dice.random() < 0.5:
        return _late_report(dice, at)
    # after another worker has completed the job
    seconds = dice.uniform(1.6, 2.2) * LEASE_SECONDS
    return Fault(at=at, kind=Kind.KILL_SENDER, target=STORAGE, route=OUTPUT, seconds=seconds)


def _late_report(dice: random.Random, at: float) -> Fault:
    # while another worker has the job, which may happen this late
    seconds = dice.uniform(2, 2.5) * LEASE_SECONDS
    return Fault(at=at, kind=Kind.KILL_SENDER, target=ANY_WORKER, route=COMPLETE, seconds=seconds)


def _kill_during_request(dice: random.Random) -> Fault:
    at = _moment(dice)
    choices = [
        # kill a worker, whose report arrives when another worker has the job
        None,
        None,
        # kill a server: the decision is usually stored for the tenant and still in the outbox
        (ANY_WORKER, FAIL, 0.5),
        (ANY_WORKER, FAIL, 0.5),
        (ANY_WORKER, COMPLETE, 0.5),
        # kill a server: the tenant has the job, but the queue does not
        (CLIENTS, ONCE, 0.0),
        (CLIENTS, ONCE, 0.0),
    ]
    if (chosen := dice.choice(choices)) is None:
        return _late_report(dice, at)
    target, route, longest = chosen
    seconds = dice.uniform(0.2, 1) * longest
    return Fault(at=at, kind=Kind.KILL_RECEIVER, target=target, route=route, seconds=seconds)


# The weight of each fault.
_WEIGHTS = {
    _kill: 13,
    _stop_database: 2,
    _pause: 5,
    _skew: 2,
    _fill_disk: 3,
    _cut_off: 2,
    _storage_errors: 2,
    _refuse_webhooks: 1,
    _fault_on_the_wire: 9,
    _kill_sender: 5,
}


def _moment(dice: random.Random) -> float:
    return dice.uniform(0, WINDOW_SECONDS)
