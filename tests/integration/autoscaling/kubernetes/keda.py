"""KEDA as a scaler sees it: a client that protoc makes of the published messages; and what Kubernetes does then."""

import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc.aio
import pytest
from grpc_tools import protoc

PROTO = Path(__file__).with_name("externalscaler.proto")
TOLERANCE = 0.1


@pytest.fixture(scope="session")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The generated modules: messages, and the client with them."""
    folder = tmp_path_factory.mktemp("externalscaler")
    words = ["protoc", f"-I{PROTO.parent}", f"--python_out={folder}", f"--grpc_python_out={folder}", PROTO.name]
    assert protoc.main(words) == 0
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("externalscaler_pb2_grpc")
    finally:
        sys.path.remove(str(folder))
        for name in ("externalscaler_pb2", "externalscaler_pb2_grpc"):
            sys.modules.pop(name, None)


class Keda:
    def __init__(self, wire: ModuleType, channel: grpc.aio.Channel) -> None:
        self.messages = sys.modules["externalscaler_pb2"]
        self.stub = wire.ExternalScalerStub(channel)

    def ref(self, namespace: str = "gpu", **metadata: str) -> Any:
        return self.messages.ScaledObjectRef(name="workers", namespace=namespace, scalerMetadata=metadata)

    async def is_active(self, **metadata: str) -> bool:
        found: bool = (await self.stub.IsActive(self.ref(**metadata))).result
        return found

    async def metric(self, **metadata: str) -> tuple[str, int, float]:
        [spec] = (await self.stub.GetMetricSpec(self.ref(**metadata))).metricSpecs
        request = self.messages.GetMetricsRequest(scaledObjectRef=self.ref(**metadata), metricName=spec.metricName)
        [value] = (await self.stub.GetMetrics(request)).metricValues
        assert (spec.targetSize, spec.targetSizeFloat) == (1, 1.0)
        return value.metricName, value.metricValue, value.metricValueFloat

    def stream(self, **metadata: str) -> Any:
        return self.stub.StreamIsActive(self.ref(**metadata))


@asynccontextmanager
async def keda(wire: ModuleType, port: int) -> AsyncIterator[Keda]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Keda(wire, channel)


def replicas_after(metric: float, replicas: int) -> int:
    """What the HorizontalPodAutoscaler makes of an average value with a target of 1, as Kubernetes documents it."""
    return replicas if abs(1.0 - metric / replicas) <= TOLERANCE else ceil(metric)
