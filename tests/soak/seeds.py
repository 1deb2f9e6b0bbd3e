"""Run one seed in a world: inject the plan, heal, drain, and check the guarantees."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.soak import invariants
from tests.soak.clients import Client
from tests.soak.faults import heal, inject
from tests.soak.invariants import BrokenGuarantee
from tests.soak.plan import TENANTS, Fault, Kind, Plan
from tests.soak.world import World


@dataclass(kw_only=True)
class Result:
    seed: int
    # total seconds, seconds until the last fault was healed, and seconds of the drain after that
    seconds: float = 0.0
    fault_seconds: float = 0.0
    drain_seconds: float = 0.0
    ends: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    # faults that this machine does not support, with the reasons
    skipped: list[str] = field(default_factory=list)
    # the number of requests that met a network fault
    requests: int = 0
    # error logs that break no guarantee
    unexpected: list[str] = field(default_factory=list)
    # the broken guarantees, or the error of the soak test itself
    broken: str | None = None
    is_own_failure: bool = False

    @property
    def own_seconds(self) -> float:
        """The duration without the time of the faults."""
        return self.seconds - self.fault_seconds

    def line_of(self, patterns: Sequence[str]) -> str | None:
        """Return the first line about a broken guarantee that matches one of these patterns.

        Errors of the soak test itself do not count.
        """
        lines = [] if self.broken is None or self.is_own_failure else self.broken.splitlines()
        return next((line for line in lines if any(re.search(pattern, line) for pattern in patterns)), None)


async def run_seed(world: World, plan: Plan) -> Result:
    began_at = asyncio.get_running_loop().time()
    result = Result(seed=plan.seed)
    clients = [Client(world, world.tenants[name], plan.seed) for name in TENANTS]
    for wire in world.wires.values():
        wire.forget()
    world.receiver.ids.clear()
    logged = {name: len(process.text()) for name, process in world.processes.items()}
    try:
        await _run_plan(world, plan, clients)
        healed_at = time.monotonic()
        result.fault_seconds = asyncio.get_running_loop().time() - began_at
        await world.wait_until_ready()
        await invariants.drain(world, clients)
        result.drain_seconds = time.monotonic() - healed_at
        result.ends = dict(await invariants.check(world, clients))
    except* (BrokenGuarantee, AssertionError, TimeoutError) as group:
        result.broken = "\n".join(_texts(group))
    if errors := invariants.server_errors(world.wires):
        result.broken = "\n".join([*([result.broken] if result.broken else []), *errors])
    skipped = [fault for fault in plan.faults if _is_unsupported(world, fault)]
    result.skipped = [f"{fault.kind} {fault.target}: nothing can be mounted here" for fault in skipped]
    result.faults = dict(
        Counter(f"{fault.kind} {fault.target.split('-')[0]}" for fault in plan.faults if fault not in skipped)
    )
    result.requests = sum(len(wire.hit) for wire in world.wires.values())
    result.unexpected = invariants.unexpected(world, logged)
    result.seconds = asyncio.get_running_loop().time() - began_at
    return result


async def _run_plan(world: World, plan: Plan, clients: list[Client]) -> None:
    began_at = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        submitting = [
            group.create_task(client.run([act for act in plan.acts if act.tenant == client.tenant.name], began_at))
            for client in clients
        ]
        faults = [group.create_task(inject(world, fault, began_at)) for fault in plan.faults]
        await asyncio.wait(faults)
        await heal(world)
        await asyncio.wait(submitting, timeout=invariants.PATIENCE_SECONDS)
        if unanswered := [task for task in submitting if not task.done()]:
            for task in unanswered:
                task.cancel()
            raise BrokenGuarantee(f"{len(unanswered)} clients still wait for a response")


def _is_unsupported(world: World, fault: Fault) -> bool:
    """Only a separate disk can be filled."""
    return (
        fault.kind is Kind.FULL_DISK
        and fault.target in world.postgres
        and not world.postgres[fault.target].disk.is_mounted
    )


def _texts(group: BaseExceptionGroup[BaseException]) -> list[str]:
    found = []
    for exception in group.exceptions:
        found += (
            _texts(exception)
            if isinstance(exception, BaseExceptionGroup)
            else [f"{type(exception).__name__}: {exception}"]
        )
    return found
