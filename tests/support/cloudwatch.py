"""CloudWatch, served by moto, and a reader of its metrics."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from comfyrelay.clock import utc_now

# The names that the documentation lists.
METRIC_NAMES = {
    "QueueDepth",
    "BacklogPerInstance",
    "ActiveWorkers",
    "AvailableCapacity",
    "JobProcessingP50",
    "ErrorRate",
    "LeaseExpiredCount",
    "SpotInterruptionCount",
}
SetEndpoint = Callable[[str], None]


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def set_aws_endpoint(monkeypatch: pytest.MonkeyPatch) -> SetEndpoint:
    def set_endpoint(url: str) -> None:
        for name, value in {
            "AWS_ENDPOINT_URL": url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }.items():
            monkeypatch.setenv(name, value)

    return set_endpoint


@pytest.fixture
def metrics_client(moto_url: str, set_aws_endpoint: SetEndpoint) -> Any:
    set_aws_endpoint(moto_url)
    return boto3.client("cloudwatch", region_name="us-east-1")


def metric_value(metrics_client: Any, namespace: str, metric: str, fleet: str) -> float:
    now = utc_now()
    [point] = metrics_client.get_metric_statistics(
        Namespace=namespace,
        MetricName=metric,
        Dimensions=[{"Name": "FleetSlug", "Value": fleet}, {"Name": "Stage", "Value": "production"}],
        StartTime=now - timedelta(minutes=5),
        EndTime=now + timedelta(minutes=5),
        Period=60,
        Statistics=["Average"],
    )["Datapoints"]
    return float(point["Average"])
