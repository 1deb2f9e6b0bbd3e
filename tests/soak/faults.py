"""Letting the faults of a plan happen, and healing them."""

import asyncio

from tests.soak.plan import DATABASES, LEASE_SECONDS, ON_THE_WIRE, STORAGE, WORKERS, Fault, Kind
from tests.soak.world import World

# How long a fault waits for the request that it is about.
MEET_SECONDS = 3.0


async def happen(world: World, fault: Fault, began_at: float) -> None:
    """At its time, for as long as it lasts."""
    await asyncio.sleep(began_at + fault.at - asyncio.get_running_loop().time())
    wire = world.wires.get(fault.target)
    process = world.processes.get(fault.target)
    match fault.kind:
        case Kind.KILL_SENDER:
            assert wire is not None
            await _without_sender(world, fault, wire.add(fault).met)
        case kind if kind in ON_THE_WIRE:
            assert wire is not None
            wire.add(fault)
        case Kind.KILL | Kind.STOP_DATABASE if fault.target in DATABASES:
            await _without_database(world, fault)
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
            process.go_on()
        case Kind.FULL_DISK if wire is not None and fault.target == STORAGE:
            wire.is_full = True
            await asyncio.sleep(fault.seconds)
            wire.is_full = False
        case Kind.FULL_DISK:
            assert process is not None
            process.fill_disk()
            await asyncio.sleep(fault.seconds)
            process.free_disk()
        case Kind.CUT_OFF:
            assert wire is not None
            wire.cut()
            await asyncio.sleep(fault.seconds)
            wire.is_cut = False
        case Kind.STORAGE_ERRORS:
            assert wire is not None
            wire.answers_errors = True
            await asyncio.sleep(fault.seconds)
            wire.answers_errors = False
        case Kind.WEBHOOKS_REFUSED:
            world.receiver.refusing += fault.count


async def _without_sender(world: World, fault: Fault, met: asyncio.Future[str]) -> None:
    """Who has sent the request is killed, and comes back when its lease is over for long."""
    try:
        async with asyncio.timeout(MEET_SECONDS):
            path = await met
    except TimeoutError:
        return
    sender = fault.target if fault.target in WORKERS else await world.holder_of(path)
    if sender is None:
        # the databases are away, or the job has just been given back
        return
    await world.processes[sender].kill()
    await asyncio.sleep(1.3 * LEASE_SECONDS)
    await world.start(sender)


async def _without_database(world: World, fault: Fault) -> None:
    postgres = world.postgres[fault.target]
    if not postgres.is_up:
        # another fault has it
        return
    if fault.kind is Kind.KILL:
        await postgres.kill()
    else:
        await postgres.stop_at_once()
    await asyncio.sleep(fault.seconds)
    await postgres.start()


async def heal(world: World) -> None:
    """All is well again: everything runs, with the right clock, and can be reached."""
    for wire in world.wires.values():
        wire.heal()
    world.receiver.refusing = 0
    for postgres in world.postgres.values():
        if not postgres.is_up:
            await postgres.start()
    for name, process in world.processes.items():
        process.free_disk()
        process.go_on()
        await world.start(name)
