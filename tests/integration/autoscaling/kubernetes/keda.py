"""A KEDA client for tests, and the formula of the HorizontalPodAutoscaler."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import ceil
from typing import Any

import grpc.aio

from comfyrelay.autoscaling.kubernetes.externalscaler_pb2 import (
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    ScaledObjectRef,
)

TOLERANCE = 0.1


class Keda:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    def call(self, method: str, answer: Any) -> Any:
        kind = self.channel.unary_stream if method == "StreamIsActive" else self.channel.unary_unary
        return kind(
            f"/externalscaler.ExternalScaler/{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer.FromString,
        )

    def ref(self, namespace: str = "gpu", **metadata: str) -> ScaledObjectRef:
        return ScaledObjectRef(name="workers", namespace=namespace, scalerMetadata=metadata)

    async def is_active(self, **metadata: str) -> bool:
        result: bool = (await self.call("IsActive", IsActiveResponse)(self.ref(**metadata))).result
        return result

    async def metric(self, **metadata: str) -> tuple[str, int, float]:
        [spec] = (await self.call("GetMetricSpec", GetMetricSpecResponse)(self.ref(**metadata))).metricSpecs
        request = GetMetricsRequest(scaledObjectRef=self.ref(**metadata), metricName=spec.metricName)
        [value] = (await self.call("GetMetrics", GetMetricsResponse)(request)).metricValues
        assert (spec.targetSize, spec.targetSizeFloat) == (1, 1.0)
        return value.metricName, value.metricValue, value.metricValueFloat

    def stream(self, **metadata: str) -> Any:
        return self.call("StreamIsActive", IsActiveResponse)(self.ref(**metadata))


@asynccontextmanager
async def connect_keda(port: int) -> AsyncIterator[Keda]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Keda(channel)


def replicas_after(metric: float, replicas: int) -> int:
    """The HorizontalPodAutoscaler's documented formula for an average value with a target of 1."""
    return replicas if abs(1.0 - metric / replicas) <= TOLERANCE else ceil(metric)
