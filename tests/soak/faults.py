"""Inject and heal the faults of a plan."""

import asyncio
from contextlib import suppress

from tests.soak.plan import ANY_WORKER, DATABASES, LEASE_SECONDS, ON_THE_WIRE, ONCE, WORKERS, Fault, Kind
from tests.soak.wire import Active, Wire
from tests.soak.world import World

# How long a fault waits for its request, because a submitted job must run first.
TRIGGER_SECONDS = 6.0
# How long a server that was killed during a request remains down.
DOWN_SECONDS = 0.5


async def inject(world: World, fault: Fault, began_at: float) -> None:
    """Inject the fault at its time and for its duration."""
    await asyncio.sleep(began_at + fault.at - asyncio.get_running_loop().time())
    wire = world.wires.get(fault.target)
    process = world.processes.get(fault.target)
    match fault.kind:
        case Kind.KILL_SENDER:
            await _kill_sender(world, fault)
        case Kind.KILL_RECEIVER:
            await _kill_receiver(world, fault)
        case kind if kind in ON_THE_WIRE:
            assert wire is not None
            wire.add(fault)
        case Kind.KILL | Kind.STOP_DATABASE if fault.target in DATABASES:
            await _stop_database(world, fault)
        case Kind.SKEW:
            assert process is not None
            await process.kill()
            await world.start(fault.target, skew_seconds=fault.seconds)
        case Kind.KILL:
            assert process is not None
            await process.kill()
            await asyncio.sleep(fault.seconds)
            await world.start(fault.target)
        case Kind.PAUSE:
            assert process is not None
            process.pause()
            await asyncio.sleep(fault.seconds)
            process.resume()
        case Kind.FULL_DISK if fault.target in DATABASES:
            await _fill_database(world, fault)
        case Kind.FULL_DISK if process is not None:
            process.fill_disk()
            await asyncio.sleep(fault.seconds)
            process.free_disk()
        case Kind.FULL_DISK | Kind.CUT_OFF | Kind.STORAGE_ERRORS:
            assert wire is not None
            await _break_wire(wire, fault)
        case Kind.WEBHOOKS_REFUSED:
            world.receiver.refusing += fault.count


async def _break_wire(wire: Wire, fault: Fault) -> None:
    if fault.kind is Kind.CUT_OFF:
        wire.cut()
    name = {Kind.CUT_OFF: "is_cut", Kind.FULL_DISK: "is_full", Kind.STORAGE_ERRORS: "answers_errors"}[fault.kind]
    setattr(wire, name, True)
    await asyncio.sleep(fault.seconds)
    setattr(wire, name, False)


async def _kill_sender(world: World, fault: Fault) -> None:
    """Kill the sender of the request, which restarts long after its lease has expired."""
    active = _arm(world, fault)
    if (path := await _wait_until_met(active)) is None:
        return
    sender = next((name for name in WORKERS if fault in world.wires[name].hit), None) or await world.holder_of(path)
    if sender is None:
        # the databases are down, or the job was just requeued
        return
    report = world.wires[sender].reports[-1] if fault.target == ANY_WORKER else None
    await world.processes[sender].kill()
    if report is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(fault.seconds):
                await world.wait_for_another_lease(report["dispatch_id"], report["lease_token"])
        active.may_pass.set()
    else:
        await asyncio.sleep(1.3 * LEASE_SECONDS)
    await world.start(sender)


def _arm(world: World, fault: Fault) -> Active:
    first, *others = WORKERS if fault.target == ANY_WORKER else [fault.target]
    active = world.wires[first].add(fault)
    for name in others:
        world.wires[name].share(active)
    return active


async def _wait_until_met(active: Active) -> str | None:
    try:
        async with asyncio.timeout(TRIGGER_SECONDS):
            return await active.met
    except TimeoutError:
        return None


async def _kill_receiver(world: World, fault: Fault) -> None:
    """Kill the server that gets the request, after this delay."""
    active = _arm(world, fault)
    if (address := await _wait_until_met(active)) is None:
        return
    [name] = [name for name, url in world.addresses.items() if url == address]
    if fault.route == ONCE:
        # the tenant has the job, but the queue does not
        async with world.hold_queue() as wait_for_insert:
            active.may_pass.set()
            await wait_for_insert()
            await world.processes[name].kill()
    else:
        active.may_pass.set()
        await asyncio.sleep(fault.seconds)
        await world.processes[name].kill()
    await asyncio.sleep(DOWN_SECONDS)
    await world.start(name)


async def _stop_database(world: World, fault: Fault) -> None:
    postgres = world.postgres[fault.target]
    if not postgres.is_up:
        # another fault has stopped it
        return
    if fault.kind is Kind.KILL:
        await postgres.kill()
    else:
        await postgres.stop_at_once()
    await asyncio.sleep(fault.seconds)
    await postgres.start()


async def _fill_database(world: World, fault: Fault) -> None:
    postgres = world.postgres[fault.target]
    if not postgres.disk.is_mounted:
        # this is reported in the result
        return
    postgres.disk.fill()
    await asyncio.sleep(fault.seconds)
    postgres.disk.make_room()
    if postgres.is_up:
        await postgres.revive()


async def heal(world: World) -> None:
    """Restart everything, reset the clocks and restore the network."""
    for wire in world.wires.values():
        wire.heal()
    world.receiver.refusing = 0
    for postgres in world.postgres.values():
        if postgres.is_up:
            await postgres.revive()
        else:
            await postgres.start()
    for name, process in world.processes.items():
        process.free_disk()
        process.resume()
        await world.start(name)
