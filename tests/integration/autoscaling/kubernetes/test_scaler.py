"""The scaler answers KEDA over a socket."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from comfyrelay.autoscaling.kubernetes.desired import DesiredReplicas
from comfyrelay.autoscaling.kubernetes.scaler import METRIC, metric_value, serve_scaler
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedMachine
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import ConfigurationError, NotFound, StorageUnavailable
from comfyrelay.wakeup import Wakeup
from tests.integration.autoscaling.kubernetes.keda import Keda, connect_keda, replicas_after
from tests.support.world import PATIENCE_SECONDS

FLEET = "gpus"
LONG_SECONDS = 10 * PATIENCE_SECONDS


class FakeDecisions:
    def __init__(self) -> None:
        self.count = 0
        self.machines: list[ObservedMachine] = []
        self.error: Exception | None = None
        self.wakeup = Wakeup()
        self._read = asyncio.Event()

    async def notify_and_wait(self) -> None:
        """Return after the scaler has read the decision again."""
        self._read.clear()
        self.wakeup.notify()
        await self._read.wait()

    async def desired_replicas(self, stage: Stage, slug: str) -> DesiredReplicas:
        self._read.set()
        if self.error is not None:
            raise self.error
        if (stage, slug) != (Stage.PRODUCTION, FLEET):
            raise NotFound(f"There is no {stage} fleet {slug!r}.")
        return DesiredReplicas(count=self.count, reason="test", machines=self.machines)


@pytest.fixture
def decisions() -> FakeDecisions:
    return FakeDecisions()


@pytest.fixture
async def keda(decisions: FakeDecisions) -> AsyncIterator[Keda]:
    """Yield a client of a scaler. Its tick is longer than any test, so only wakeups cause new decisions."""
    scaler = serve_scaler(
        decisions.desired_replicas, decisions.wakeup.wait, bind="127.0.0.1:0", tick_seconds=LONG_SECONDS
    )
    async with scaler as port, connect_keda(port) as client:
        yield client


async def test_metric_is_the_decided_count(keda: Keda, decisions: FakeDecisions) -> None:
    decisions.count = 7
    assert await keda.metric(fleet=FLEET, stage="production") == (METRIC, 7, 7.0)


async def test_fleet_is_active_while_it_needs_a_machine(keda: Keda, decisions: FakeDecisions) -> None:
    assert not await keda.is_active(fleet=FLEET)
    decisions.count = 1
    assert await keda.is_active(fleet=FLEET)


async def test_wakeup_activates_the_fleet_at_once(keda: Keda, decisions: FakeDecisions) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        stream = keda.stream(fleet=FLEET)
        assert not (await stream.read()).result
        decisions.count = 3
        decisions.wakeup.notify()
        assert (await stream.read()).result
        decisions.count = 0
        decisions.wakeup.notify()
        assert not (await stream.read()).result
        stream.cancel()


async def test_wakeup_reaches_every_stream(keda: Keda, decisions: FakeDecisions) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        streams = [keda.stream(fleet=FLEET) for _ in range(3)]
        for stream in streams:
            assert not (await stream.read()).result
        decisions.count = 1
        decisions.wakeup.notify()
        for stream in streams:
            assert (await stream.read()).result
            stream.cancel()


async def test_stream_sends_only_changes(keda: Keda, decisions: FakeDecisions) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        decisions.count = 1
        stream = keda.stream(fleet=FLEET)
        assert (await stream.read()).result
        for count in (5, 2):
            decisions.count = count
            await decisions.notify_and_wait()
        decisions.count = 0
        decisions.wakeup.notify()
        assert not (await stream.read()).result
        stream.cancel()


async def test_unknown_count_is_an_error_and_never_zero(keda: Keda, decisions: FakeDecisions) -> None:
    decisions.error = StorageUnavailable("No answer.")
    for call in (keda.is_active(fleet=FLEET), keda.metric(fleet=FLEET)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.value.details() == "No answer."


async def test_stream_stays_open_while_the_database_is_unreachable(keda: Keda, decisions: FakeDecisions) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        stream = keda.stream(fleet=FLEET)
        assert not (await stream.read()).result
        decisions.error = StorageUnavailable()
        await decisions.notify_and_wait()
        decisions.error, decisions.count = None, 1
        decisions.wakeup.notify()
        assert (await stream.read()).result
        stream.cancel()


@pytest.mark.parametrize(
    ("metadata", "code", "text"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "has no fleet"),
        ({"fleet": FLEET, "stage": "prod"}, grpc.StatusCode.INVALID_ARGUMENT, "staging or production"),
        ({"fleet": "others"}, grpc.StatusCode.NOT_FOUND, "There is no production fleet 'others'."),
    ],
)
async def test_invalid_trigger_metadata_is_explained(
    keda: Keda, metadata: dict[str, str], code: grpc.StatusCode, text: str
) -> None:
    for call in (keda.is_active(**metadata), keda.stream(**metadata).read()):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is code
        assert text in (refused.value.details() or "")


async def test_other_calls_are_unimplemented(keda: Keda) -> None:
    call: Any = keda.channel.unary_unary("/externalscaler.ExternalScaler/Other")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(b"")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_address_in_use_is_refused(decisions: FakeDecisions) -> None:
    async with serve_scaler(decisions.desired_replicas, decisions.wakeup.wait, bind="127.0.0.1:0") as port:
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}"):
            async with serve_scaler(decisions.desired_replicas, decisions.wakeup.wait, bind=f"127.0.0.1:{port}"):
                pass


async def test_draining_machines_are_not_counted(keda: Keda, decisions: FakeDecisions) -> None:
    decisions.count = 1
    decisions.machines = [ObservedMachine(id=str(number), state=MachineState.DRAINING) for number in range(5)]
    assert await keda.metric(fleet=FLEET) == (METRIC, 1, 1.0)


def test_kubernetes_scales_down_to_the_decided_count() -> None:
    for present in range(1, 15):
        for count in range(1, present):
            assert replicas_after(metric_value(count, present), present) == count


def test_kubernetes_scales_up_to_the_decided_count() -> None:
    for present in range(1, 10):
        for count in range(present, 30):
            assert replicas_after(metric_value(count, present), present) == count


@pytest.mark.parametrize(
    "bind", ["foo", "foo:bar", ":8421", "127.0.0.1", "127.0.0.1:70000", "[::1", "nowhere.invalid:0"]
)
async def test_invalid_address_is_refused_without_grpc_output(
    decisions: FakeDecisions, bind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match="Set an address and a free port"):
        async with serve_scaler(decisions.desired_replicas, decisions.wakeup.wait, bind=bind):
            pass
    assert capfd.readouterr().err == ""
