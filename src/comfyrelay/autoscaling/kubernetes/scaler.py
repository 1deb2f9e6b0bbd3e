"""An external scaler for KEDA: reports the desired replica count, and streams the activation as soon as jobs wait."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message_factory import GetMessageClass

from comfyrelay.autoscaling.kubernetes.deletion_cost import DeletionCosts, ScaledFleet
from comfyrelay.autoscaling.kubernetes.desired import DesiredReplicas, GetDesired
from comfyrelay.autoscaling.kubernetes.externalscaler_pb2 import (
    DESCRIPTOR,
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    MetricSpec,
    MetricValue,
    ScaledObjectRef,
)
from comfyrelay.autoscaling.kubernetes.shared_wakeup import TICK_SECONDS, WaitForWakeup, WakeupBroadcast
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import ComfyRelayError, ConfigurationError, InvalidInput, NotFound

log = structlog.get_logger(__name__)

METRIC = "desired-machines"
# Kubernetes divides the metric by the target. With a target of 1, the metric is the replica count.
TARGET = 1
STOP_SECONDS = 1.0

T = TypeVar("T")
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Scaler:
    """The methods of the service `ExternalScaler`. An unknown count is an error: KEDA then keeps the replicas."""

    def __init__(
        self,
        get_desired: GetDesired,
        broadcast: WakeupBroadcast,
        *,
        on_request: Callable[[ScaledFleet], None] = lambda _fleet: None,
    ) -> None:
        self._get_desired = get_desired
        self._broadcast = broadcast
        self._on_request = on_request

    async def IsActive(self, request: ScaledObjectRef, context: Context) -> IsActiveResponse:
        desired = await _or_abort(context, self._desired(request))
        return IsActiveResponse(result=desired.count > 0)

    async def StreamIsActive(self, request: ScaledObjectRef, context: Context) -> AsyncIterator[IsActiveResponse]:
        """Keep the stream open while the database is unreachable, because KEDA takes up to a minute to reopen it."""
        sent: bool | None = None
        await _or_abort(context, _scaled_fleet(request))
        while True:
            wakeup = self._broadcast.next
            try:
                is_active = (await self._desired(request)).count > 0
            except NotFound as error:
                await context.abort(grpc.StatusCode.NOT_FOUND, error.detail)
            except ComfyRelayError as error:
                log.warning("scaler.unknown", fleet=request.scalerMetadata.get("fleet"), error=str(error))
            else:
                if is_active != sent:
                    yield IsActiveResponse(result=is_active)
                    sent = is_active
            await wakeup.wait()

    async def GetMetricSpec(self, request: ScaledObjectRef, context: Context) -> GetMetricSpecResponse:
        await _or_abort(context, _scaled_fleet(request))
        spec = MetricSpec(metricName=METRIC, targetSize=TARGET, targetSizeFloat=float(TARGET))
        return GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: GetMetricsRequest, context: Context) -> GetMetricsResponse:
        desired = await _or_abort(context, self._desired(request.scaledObjectRef))
        value = metric_value(desired.count, desired.present)
        metric = MetricValue(metricName=METRIC, metricValue=desired.count, metricValueFloat=value)
        return GetMetricsResponse(metricValues=[metric])

    async def _desired(self, ref: ScaledObjectRef) -> DesiredReplicas:
        fleet = await _scaled_fleet(ref)
        desired = await self._get_desired(fleet.stage, fleet.slug)
        self._on_request(fleet)
        return desired


def metric_value(count: int, present: int) -> float:
    """Return a value that Kubernetes rounds up to `count`.

    Kubernetes ignores differences of up to a tenth, so it would keep the tenth of ten machines. To scale down, report
    half a machine less.
    """
    return count - 0.5 if 0 < count < present else float(count)


@asynccontextmanager
async def serve_scaler(
    get_desired: GetDesired,
    wait_for_wakeup: WaitForWakeup,
    *,
    bind: str,
    costs: DeletionCosts | None = None,
    tick_seconds: float = TICK_SECONDS,
) -> AsyncIterator[int]:
    """Serve the scaler inside the block, and yield the port. `costs` tracks each fleet that KEDA requests."""
    broadcast = WakeupBroadcast(wait_for_wakeup, tick_seconds=tick_seconds)
    scaler = Scaler(get_desired, broadcast, on_request=costs.track if costs is not None else lambda _fleet: None)
    # With port reuse, a second process on the same port would get half of the calls.
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([_handlers(scaler)])
    try:
        _check_bind(bind)
        port = server.add_insecure_port(bind)
    except (OSError, OverflowError, RuntimeError, ValueError):
        raise ConfigurationError(f"Cannot listen on {bind}. Set an address and a free port: 0.0.0.0:8421.") from None
    await server.start()
    loops = [asyncio.create_task(broadcast.run())]
    if costs is not None:
        loops.append(asyncio.create_task(costs.run(get_desired)))
    try:
        yield port
    finally:
        for loop in loops:
            loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loop
        await server.stop(STOP_SECONDS)


def _handlers(scaler: Scaler) -> grpc.GenericRpcHandler:
    """Map the methods of the service in `externalscaler.proto` to the methods of the scaler."""
    service = DESCRIPTOR.services_by_name["ExternalScaler"]
    handlers = {}
    for method in service.methods:
        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        handlers[method.name] = make(
            getattr(scaler, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _check_bind(bind: str) -> None:
    """Check the address first, because gRPC prints its own error lines if it cannot bind."""
    host, _, port = bind.rpartition(":")
    if not host:
        raise ValueError(bind)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host.strip("[]"), int(port)), family=family).close()


async def _scaled_fleet(ref: ScaledObjectRef) -> ScaledFleet:
    metadata = dict(ref.scalerMetadata)
    slug = metadata.get("fleet")
    if not slug:
        raise InvalidInput("The trigger has no fleet: add `fleet: SLUG` to its metadata.")
    stage = metadata.get("stage", Stage.PRODUCTION)
    if stage not in list(Stage):
        raise InvalidInput(f"Unknown stage {stage!r}: set `stage` in the trigger's metadata to {' or '.join(Stage)}.")
    return ScaledFleet(namespace=ref.namespace, stage=Stage(stage), slug=slug)


async def _or_abort(context: Context, work: Awaitable[T]) -> T:
    """Return the result, or abort the call with the gRPC status of the error."""
    try:
        return await work
    except InvalidInput as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.detail)
    except NotFound as error:
        await context.abort(grpc.StatusCode.NOT_FOUND, error.detail)
    except ComfyRelayError as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, error.detail)
    raise AssertionError("abort raises")
