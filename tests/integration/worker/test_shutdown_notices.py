"""A shutdown notice says why a worker deregisters and by when; the more urgent of two notices applies."""

import asyncio
import itertools
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from comfyrelay.worker.host.imds import Imds
from comfyrelay.worker.host.shutdown_notices import RETRY_INTERVALS, Notice, Notices
from tests.support.ec2_metadata import LIFECYCLE, REBALANCE, SPOT, Metadata
from tests.support.full import full_only
from tests.support.world import PATIENCE_SECONDS

SHUTDOWN_SECONDS = 30.0
ASG_SECONDS = 110.0


@asynccontextmanager
async def watch_notices(url: str, *, interval_seconds: float = 0.005) -> AsyncIterator[Notices]:
    imds = Imds(url, pause_seconds=0.0)
    notices = Notices(
        imds=imds, interval_seconds=interval_seconds, shutdown_seconds=SHUTDOWN_SECONDS, asg_seconds=ASG_SECONDS
    )
    notices.watch()
    try:
        yield notices
    finally:
        await notices.close()
        await imds.close()


def is_watching(notices: Notices) -> bool:
    return notices._watching is not None and not notices._watching.done()


async def wait_for_newer(notices: Notices, notice: Notice | None) -> Notice:
    return await asyncio.wait_for(notices.wait_newer(notice), PATIENCE_SECONDS)


async def test_there_is_no_notice_until_ec2_sends_one() -> None:
    async with Metadata() as metadata, watch_notices(metadata.url) as notices:
        for path in (SPOT, LIFECYCLE, REBALANCE):
            await metadata.until_asked(path, 2)
        assert notices.current is None
        assert is_watching(notices)


@pytest.mark.parametrize(
    ("seconds", "left"),
    [(120, 120), (90, 90), (3600, 120), (0, 0), (-30, 0)],
)
async def test_spot_notice_sets_the_remaining_time(seconds: float, left: float) -> None:
    async with Metadata() as metadata, watch_notices(metadata.url) as notices:
        metadata.interrupt(seconds=seconds)
        notice = await wait_for_newer(notices, None)
        assert (notice.reason, notice.at_once) == ("spot_interruption", False)
        # both times are in whole seconds
        assert notice.seconds == pytest.approx(left, abs=2)
        assert notice.seconds is not None
        assert notice.seconds_left is not None
        assert notice.seconds_left <= notice.seconds


async def test_remaining_time_follows_the_clock_of_ec2() -> None:
    async with Metadata(clock_seconds=-7200) as metadata, watch_notices(metadata.url) as notices:
        metadata.interrupt(seconds=100)
        assert (await wait_for_newer(notices, None)).seconds == pytest.approx(100, abs=2)


@pytest.mark.parametrize("text", ['{"action": "terminate"}', '{"action": "stop", "time": "soon"}'])
async def test_notice_without_a_valid_time_applies_at_once(text: str) -> None:
    async with Metadata() as metadata, watch_notices(metadata.url) as notices:
        metadata.arm(SPOT, text)
        notice = await wait_for_newer(notices, None)
        assert (notice.reason, notice.seconds) == ("spot_interruption", 0.0)


@pytest.mark.parametrize("text", ["", "<html></html>", "[]", "null", '{"time": "2030-01-01T00:00:00Z"}'])
async def test_invalid_notice_is_ignored(text: str) -> None:
    async with Metadata() as metadata, watch_notices(metadata.url) as notices:
        metadata.arm(SPOT, text)
        metadata.arm(REBALANCE, text)
        await metadata.until_asked(SPOT, 2)
        await metadata.until_asked(REBALANCE, 2)
        assert notices.current is None


async def test_rebalance_recommendation_sets_no_deadline() -> None:
    async with Metadata() as metadata, watch_notices(metadata.url) as notices:
        metadata.recommend_rebalance()
        notice = await wait_for_newer(notices, None)
        assert (notice.reason, notice.seconds, notice.seconds_left) == ("spot_rebalance", None, None)


@pytest.mark.parametrize("state", ["Terminated", "Warmed:Terminated"])
async def test_termination_by_the_group_leaves_the_configured_time(state: str) -> None:
    async with Metadata() as metadata, watch_notices(metadata.url) as notices:
        metadata.arm(LIFECYCLE, state)
        notice = await wait_for_newer(notices, None)
        assert (notice.reason, notice.seconds) == ("asg_termination", ASG_SECONDS)


@pytest.mark.parametrize("state", ["InService", "Standby", "Detached", "Warmed:Running", "Warmed:Stopped"])
async def test_other_group_states_cause_no_notice(state: str) -> None:
    async with Metadata() as metadata, watch_notices(metadata.url) as notices:
        metadata.arm(LIFECYCLE, state)
        await metadata.until_asked(LIFECYCLE, 2)
        assert notices.current is None


async def test_only_a_more_urgent_notice_replaces_the_current_one() -> None:
    async with Metadata() as metadata, watch_notices(metadata.url) as notices:
        metadata.recommend_rebalance()
        rebalance = await wait_for_newer(notices, None)
        # the same recommendation again, first unchanged, then with a later time
        await metadata.until_asked(REBALANCE, 2)
        metadata.recommend_rebalance()
        await metadata.until_asked(REBALANCE, 2)
        assert notices.current is rebalance

        metadata.interrupt(seconds=100)
        spot = await wait_for_newer(notices, rebalance)
        assert spot.reason == "spot_interruption"
        # a clock jump does not make the notice more urgent
        metadata.clock_seconds += 60
        await metadata.until_asked(SPOT, 2)
        assert notices.current is spot

        metadata.interrupt(seconds=10)
        sooner = await wait_for_newer(notices, spot)
        assert sooner.seconds == pytest.approx(10, abs=2)


def notice(seconds: float | None, *, came_at: float = 0.0, at_once: bool = False) -> Notice:
    return Notice(reason="any", seconds=seconds, came_at=came_at, at_once=at_once)


@pytest.mark.parametrize(
    ("new", "known", "is_newer"),
    [
        (notice(None), None, True),
        (notice(None), notice(None), False),
        (notice(120), notice(None), True),
        (notice(None), notice(120), False),
        (notice(120), notice(120), False),
        (notice(30), notice(120), True),
        (notice(120), notice(30), False),
        # it has fewer seconds but came later: the end time decides
        (notice(60, came_at=100), notice(120), False),
        (notice(10, came_at=100), notice(120), True),
        (notice(0, at_once=True), notice(0), True),
        (notice(0, at_once=True, came_at=500), notice(120), True),
        (notice(0), notice(0, at_once=True, came_at=500), False),
        (notice(0, at_once=True, came_at=1), notice(0, at_once=True, came_at=2), True),
        (notice(0, at_once=True, came_at=3), notice(0, at_once=True, came_at=2), False),
    ],
)
def test_earlier_end_and_immediate_stop_are_more_urgent(new: Notice, known: Notice | None, is_newer: bool) -> None:
    assert new.is_more_urgent(known) is is_newer


async def test_every_waiter_gets_the_notice() -> None:
    notices = Notices(imds=None, shutdown_seconds=SHUTDOWN_SECONDS, asg_seconds=ASG_SECONDS)
    waiting = [asyncio.create_task(wait_for_newer(notices, None)) for _ in range(3)]
    await asyncio.sleep(0)
    first = notice(None)
    notices.add(first)
    assert await asyncio.gather(*waiting) == [first] * 3
    # a later waiter gets the notice at once; a waiter that already knows it keeps waiting
    assert await wait_for_newer(notices, None) is first
    later = asyncio.create_task(wait_for_newer(notices, first))
    notices.add(notice(None))
    await asyncio.sleep(0)
    assert not later.done()
    second = notice(5)
    notices.add(second)
    assert await later is second


async def test_polling_stops_after_a_few_tries_on_other_machines() -> None:
    connections = 0

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    # every check makes three requests
    async with server, watch_notices(f"http://{host}:{port}", interval_seconds=0.001) as notices:
        assert notices._watching is not None
        await asyncio.wait_for(notices._watching, PATIENCE_SECONDS)
        assert connections == 3 * (1 + len(RETRY_INTERVALS))
        assert notices.current is None


async def test_polling_continues_on_ec2_while_metadata_is_unreachable() -> None:
    async with Metadata() as metadata, watch_notices(metadata.url) as notices:
        await metadata.until_asked(SPOT)
        metadata.refuses = True
        # there are more checks, of three requests each, than on other machines
        await metadata.until(lambda: metadata.refused >= 3 * (len(RETRY_INTERVALS) + 3))
        assert is_watching(notices)
        metadata.refuses = False
        metadata.interrupt()
        assert (await wait_for_newer(notices, None)).reason == "spot_interruption"


LOOPS = {
    "default": "asyncio.new_event_loop",
    "uvloop": "__import__('uvloop').new_event_loop",
    "without signal handlers": "Windows",
}
PROGRAM = """
import asyncio, json
from comfyrelay.worker.host.shutdown_notices import Notices

class Windows(asyncio.SelectorEventLoop):
    def add_signal_handler(self, *_):
        raise NotImplementedError

async def main():
    notices = Notices(imds=None, shutdown_seconds=30, asg_seconds=110)
    notices.handle_signals()
    print("ready", flush=True)
    notice = None
    while notice is None or not notice.at_once:
        notice = await notices.wait_newer(notice)
        print(json.dumps([notice.reason, notice.seconds, notice.at_once]), flush=True)
    await notices.close()

with asyncio.Runner(loop_factory=LOOP) as runner:
    runner.run(main())
"""


@asynccontextmanager
async def program(loop: str) -> AsyncIterator[asyncio.subprocess.Process]:
    source = PROGRAM.replace("LOOP", LOOPS[loop])
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", source, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), PATIENCE_SECONDS)).decode().strip()


@pytest.mark.parametrize(
    ("loop", "first", "second"),
    [
        ("default", signal.SIGTERM, signal.SIGINT),
        ("uvloop", signal.SIGTERM, signal.SIGTERM),
        ("without signal handlers", signal.SIGINT, signal.SIGINT),
        *full_only(*itertools.product(LOOPS, (signal.SIGTERM, signal.SIGINT), (signal.SIGTERM, signal.SIGINT))),
    ],
)
async def test_first_signal_leaves_time_and_second_signal_stops_at_once(
    loop: str, first: signal.Signals, second: signal.Signals
) -> None:
    async with program(loop) as process:
        assert await line(process) == "ready"
        process.send_signal(first)
        assert await line(process) == '["shutdown", 30, false]'
        process.send_signal(second)
        assert await line(process) == '["shutdown", 0.0, true]'
        assert await process.wait() == 0


async def test_closing_restores_the_signal_handlers() -> None:
    before = signal.getsignal(signal.SIGTERM)
    notices = Notices(imds=None, shutdown_seconds=SHUTDOWN_SECONDS, asg_seconds=ASG_SECONDS)
    notices.handle_signals()
    assert signal.getsignal(signal.SIGTERM) != before
    await notices.close()
    assert signal.getsignal(signal.SIGTERM) == before
