"""An external scaler for KEDA: it is told the number that was decided, and at once when there is something to do."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog

from comfyrelay.autoscaling.kubernetes import messages
from comfyrelay.autoscaling.kubernetes.deletion_cost import DeletionCosts, FleetPods
from comfyrelay.autoscaling.kubernetes.desired import Desired, DesiredOf
from comfyrelay.autoscaling.kubernetes.shared_wakeup import TICK_SECONDS, ScalingTurns, WaitForWakeup
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import ComfyRelayError, ConfigurationError, InvalidInput, NotFound

log = structlog.get_logger(__name__)

METRIC = "desired-machines"
# Kubernetes divides the metric by the target: with 1, the metric is the number of pods.
TARGET = 1
STOP_SECONDS = 1.0

T = TypeVar("T")


class Scaler:
    """The four calls of KEDA. What cannot be known is an error: KEDA then leaves the pods as they are."""

    def __init__(
        self, desired_of: DesiredOf, turns: ScalingTurns, *, on_asked: Callable[[FleetPods], None] = lambda _fleet: None
    ) -> None:
        """`on_asked` is told of each fleet that is scaled."""
        self._desired_of = desired_of
        self._turns = turns
        self._on_asked = on_asked

    def handlers(self) -> grpc.GenericRpcHandler:
        ref, request = messages.ScaledObjectRef, messages.GetMetricsRequest
        stream = grpc.unary_stream_rpc_method_handler(self._stream_is_active, ref.FromString, _bytes)
        return grpc.method_handlers_generic_handler(
            messages.SERVICE,
            {
                "IsActive": grpc.unary_unary_rpc_method_handler(self._is_active, ref.FromString, _bytes),
                "StreamIsActive": stream,
                "GetMetricSpec": grpc.unary_unary_rpc_method_handler(self._metric_spec, ref.FromString, _bytes),
                "GetMetrics": grpc.unary_unary_rpc_method_handler(self._metrics, request.FromString, _bytes),
            },
        )

    async def _is_active(self, ref: Any, context: Any) -> Any:
        desired = await _or_abort(context, self._desired(ref))
        return messages.IsActiveResponse(result=desired.count > 0)

    async def _stream_is_active(self, ref: Any, context: Any) -> AsyncIterator[Any]:
        """Tells it at once, and whenever it changes. A database that is away does not end the stream: KEDA would take
        up to a minute to open another one."""
        told: bool | None = None
        await _or_abort(context, self._known(ref))
        while True:
            turn = self._turns.next
            try:
                is_active = (await self._desired(ref)).count > 0
            except NotFound as error:
                await context.abort(grpc.StatusCode.NOT_FOUND, error.detail)
            except ComfyRelayError as error:
                log.warning("scaler.unknown", fleet=ref.scalerMetadata.get("fleet"), error=str(error))
            else:
                if is_active != told:
                    yield messages.IsActiveResponse(result=is_active)
                    told = is_active
            await turn.wait()

    async def _metric_spec(self, ref: Any, context: Any) -> Any:
        await _or_abort(context, self._known(ref))
        spec = messages.MetricSpec(metricName=METRIC, targetSize=TARGET, targetSizeFloat=float(TARGET))
        return messages.GetMetricSpecResponse(metricSpecs=[spec])

    async def _metrics(self, request: Any, context: Any) -> Any:
        desired = await _or_abort(context, self._desired(request.scaledObjectRef))
        value = messages.MetricValue(
            metricName=METRIC, metricValue=desired.count, metricValueFloat=metric(desired.count, desired.present)
        )
        return messages.GetMetricsResponse(metricValues=[value])

    async def _known(self, ref: Any) -> FleetPods:
        return _fleet_of(ref)

    async def _desired(self, ref: Any) -> Desired:
        fleet = _fleet_of(ref)
        desired = await self._desired_of(fleet.stage, fleet.slug)
        self._on_asked(fleet)
        return desired


def metric(count: int, present: int) -> float:
    """What Kubernetes rounds up to `count`. It does nothing about a difference of a tenth, so that of ten machines the
    tenth would stay: on the way down it is half a machine less."""
    return count - 0.5 if 0 < count < present else float(count)


@asynccontextmanager
async def serving(
    desired_of: DesiredOf,
    wait_for_wakeup: WaitForWakeup,
    *,
    bind: str,
    costs: DeletionCosts | None = None,
    tick_seconds: float = TICK_SECONDS,
) -> AsyncIterator[int]:
    """Answer KEDA at `bind` until this is left; yields the port. `costs` are kept of the pods of those it asks for."""
    turns = ScalingTurns(wait_for_wakeup, tick_seconds=tick_seconds)
    scaler = Scaler(desired_of, turns, on_asked=costs.follow if costs is not None else lambda _fleet: None)
    # another process at the same port would get every other call
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((scaler.handlers(),))
    try:
        _try_to_listen(bind)
        port = server.add_insecure_port(bind)
    except (OSError, OverflowError, RuntimeError, ValueError):
        raise ConfigurationError(f"Cannot listen at {bind}. Write an address and a free port: 0.0.0.0:8421.") from None
    await server.start()
    loops = [asyncio.create_task(turns.run())]
    if costs is not None:
        loops.append(asyncio.create_task(costs.run(desired_of)))
    try:
        yield port
    finally:
        for each in loops:
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each
        await server.stop(STOP_SECONDS)


def _try_to_listen(bind: str) -> None:
    """gRPC would write lines of its own about what it cannot bind."""
    host, _, port = bind.rpartition(":")
    if not host:
        raise ValueError(bind)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host.strip("[]"), int(port)), family=family).close()


def _fleet_of(ref: Any) -> FleetPods:
    metadata = dict(ref.scalerMetadata)
    slug = metadata.get("fleet")
    if not slug:
        raise InvalidInput("The trigger names no fleet: write `fleet: SLUG` into its metadata.")
    stage = metadata.get("stage", Stage.PRODUCTION)
    if stage not in list(Stage):
        raise InvalidInput(f"There is no stage {stage!r}: write one of {', '.join(Stage)} into the trigger's metadata.")
    return FleetPods(namespace=ref.namespace, stage=Stage(stage), slug=slug)


async def _or_abort(context: Any, work: Awaitable[T]) -> T:
    try:
        return await work
    except InvalidInput as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.detail)
    except NotFound as error:
        await context.abort(grpc.StatusCode.NOT_FOUND, error.detail)
    except ComfyRelayError as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, error.detail)
    raise AssertionError("abort raises")


def _bytes(message: Any) -> bytes:
    found: bytes = message.SerializeToString()
    return found
