"""KEDA asks, over a socket, with a client that was generated from its own messages."""

import asyncio
from collections.abc import AsyncIterator
from types import ModuleType

import grpc
import grpc.aio
import pytest

from comfyrelay.autoscaling.kubernetes.desired import Desired
from comfyrelay.autoscaling.kubernetes.scaler import METRIC, metric, serving
from comfyrelay.domain.autoscaling.observation import MachineState, SeenMachine
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import ConfigurationError, NotFound, StorageUnavailable
from comfyrelay.wakeup import Wakeup
from tests.integration.autoscaling.kubernetes.keda import Keda, keda, replicas_after, wire
from tests.support.world import PATIENCE_SECONDS

__all__ = ["wire"]

FLEET = "gpus"
LONG_SECONDS = 10 * PATIENCE_SECONDS


class Decided:
    """What is decided, as the test says it."""

    def __init__(self) -> None:
        self.count = 0
        self.machines: list[SeenMachine] = []
        self.error: Exception | None = None
        self.wakeup = Wakeup()
        self._looked = asyncio.Event()

    async def seen(self) -> None:
        """Give a wakeup, and return when somebody has looked."""
        self._looked.clear()
        self.wakeup.notify()
        await self._looked.wait()

    async def desired_of(self, stage: Stage, slug: str) -> Desired:
        self._looked.set()
        if self.error is not None:
            raise self.error
        if (stage, slug) != (Stage.PRODUCTION, FLEET):
            raise NotFound(f"There is no {stage} fleet {slug!r}.")
        return Desired(count=self.count, reason="as the test says", machines=self.machines)


@pytest.fixture
def decided() -> Decided:
    return Decided()


@pytest.fixture
async def asking(wire: ModuleType, decided: Decided) -> AsyncIterator[Keda]:
    """No tick comes within the patience of a test: only wakeups do."""
    serve = serving(decided.desired_of, decided.wakeup.wait, bind="127.0.0.1:0", tick_seconds=LONG_SECONDS)
    async with serve as port, keda(wire, port) as found:
        yield found


async def test_the_metric_is_the_number_that_was_decided(asking: Keda, decided: Decided) -> None:
    decided.count = 7
    assert await asking.metric(fleet=FLEET, stage="production") == (METRIC, 7, 7.0)


async def test_a_fleet_is_active_while_it_should_have_a_machine(asking: Keda, decided: Decided) -> None:
    assert not await asking.is_active(fleet=FLEET)
    decided.count = 1
    assert await asking.is_active(fleet=FLEET)


async def test_a_hint_is_enough_to_activate_a_fleet_at_once(asking: Keda, decided: Decided) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        stream = asking.stream(fleet=FLEET)
        assert not (await stream.read()).result
        decided.count = 3
        decided.wakeup.notify()
        assert (await stream.read()).result
        decided.count = 0
        decided.wakeup.notify()
        assert not (await stream.read()).result
        stream.cancel()


async def test_every_stream_hears_of_one_hint(asking: Keda, decided: Decided) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        streams = [asking.stream(fleet=FLEET) for _ in range(3)]
        for each in streams:
            assert not (await each.read()).result
        decided.count = 1
        decided.wakeup.notify()
        for each in streams:
            assert (await each.read()).result
            each.cancel()


async def test_a_stream_tells_only_what_changed(asking: Keda, decided: Decided) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        decided.count = 1
        stream = asking.stream(fleet=FLEET)
        assert (await stream.read()).result
        for count in (5, 2):
            decided.count = count
            await decided.seen()
        decided.count = 0
        decided.wakeup.notify()
        assert not (await stream.read()).result
        stream.cancel()


async def test_what_cannot_be_known_is_an_error_and_never_zero(asking: Keda, decided: Decided) -> None:
    decided.error = StorageUnavailable("Nobody answers.")
    for call in (asking.is_active(fleet=FLEET), asking.metric(fleet=FLEET)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.value.details() == "Nobody answers."


async def test_a_stream_outlives_a_database_that_is_away(asking: Keda, decided: Decided) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        stream = asking.stream(fleet=FLEET)
        assert not (await stream.read()).result
        decided.error = StorageUnavailable()
        await decided.seen()
        decided.error, decided.count = None, 1
        decided.wakeup.notify()
        assert (await stream.read()).result
        stream.cancel()


@pytest.mark.parametrize(
    ("metadata", "code", "said"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "names no fleet"),
        ({"fleet": FLEET, "stage": "prod"}, grpc.StatusCode.INVALID_ARGUMENT, "staging, production"),
        ({"fleet": "others"}, grpc.StatusCode.NOT_FOUND, "There is no production fleet 'others'."),
    ],
)
async def test_a_trigger_that_names_no_fleet_is_told_what_to_write(
    asking: Keda, metadata: dict[str, str], code: grpc.StatusCode, said: str
) -> None:
    for call in (asking.is_active(**metadata), asking.stream(**metadata).read()):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is code
        assert said in (refused.value.details() or "")


async def test_an_optional_call_that_is_not_offered_is_told_as_such(asking: Keda) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asking.stub.StreamMetricSpec(asking.ref(fleet=FLEET)).read()
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_address_that_is_taken_is_told(decided: Decided, wire: ModuleType) -> None:
    async with serving(decided.desired_of, decided.wakeup.wait, bind="127.0.0.1:0") as port:
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}"):
            async with serving(decided.desired_of, decided.wakeup.wait, bind=f"127.0.0.1:{port}"):
                pass


async def test_machines_that_drain_are_not_there_any_more(asking: Keda, decided: Decided) -> None:
    decided.count = 1
    decided.machines = [SeenMachine(id=str(each), state=MachineState.DRAINING) for each in range(5)]
    assert await asking.metric(fleet=FLEET) == (METRIC, 1, 1.0)


@pytest.mark.parametrize("present", range(1, 15))
def test_kubernetes_makes_as_many_pods_as_were_decided_when_there_are_fewer(present: int) -> None:
    for count in range(1, present):
        assert replicas_after(metric(count, present), present) == count


@pytest.mark.parametrize("present", range(1, 10))
def test_kubernetes_makes_as_many_pods_as_were_decided_when_there_are_more(present: int) -> None:
    for count in range(present, 30):
        assert replicas_after(metric(count, present), present) == count


@pytest.mark.parametrize(
    "bind", ["foo", "foo:bar", ":8421", "127.0.0.1", "127.0.0.1:70000", "[::1", "nowhere.invalid:0"]
)
async def test_an_address_that_is_none_is_refused_in_our_words_alone(
    decided: Decided, bind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match="Write an address and a free port"):
        async with serving(decided.desired_of, decided.wakeup.wait, bind=bind):
            pass
    assert capfd.readouterr().err == ""
