"""The command that prints and sends fleet metrics."""

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from comfyrelay.clock import utc_now
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from tests.support import commands
from tests.support.world import SqliteBackend

# as in the documentation
NAMES = {
    "QueueDepth",
    "BacklogPerInstance",
    "ActiveWorkers",
    "AvailableCapacity",
    "JobProcessingP50",
    "ErrorRate",
    "LeaseExpiredCount",
    "SpotInterruptionCount",
}


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws_at(monkeypatch: pytest.MonkeyPatch) -> Any:
    def point(url: str) -> None:
        for name, value in {
            "AWS_ENDPOINT_URL": url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }.items():
            monkeypatch.setenv(name, value)

    return point


@pytest.fixture
def metrics_client(moto_url: str, aws_at: Any) -> Any:
    """A CloudWatch client."""
    aws_at(moto_url)
    return boto3.client("cloudwatch", region_name="us-east-1")


def value_of(metrics_client: Any, namespace: str, metric: str, fleet: str) -> float:
    now = utc_now()
    dimensions = [{"Name": "FleetSlug", "Value": fleet}, {"Name": "Stage", "Value": "production"}]
    found = metrics_client.get_metric_statistics(
        Namespace=namespace,
        MetricName=metric,
        Dimensions=dimensions,
        StartTime=now - timedelta(minutes=5),
        EndTime=now + timedelta(minutes=5),
        Period=60,
        Statistics=["Average"],
    )["Datapoints"]
    [point] = found
    return float(point["Average"])


async def test_command_prints_or_sends_metrics(
    sqlite_backend: SqliteBackend, tmp_path: Path, metrics_client: Any
) -> None:
    async with sqlite_backend.databases(["main"]) as (central, shards, _):
        settings = Settings(data_dir=tmp_path, database_url=central, shards=shards)
        async with Engine(settings) as engine:
            await engine.workers.fleets.create(slug="home")
        env = {
            **os.environ,
            "COMFYRELAY_DATA_DIR": str(tmp_path),
            "COMFYRELAY_DATABASE_URL": central,
            "COMFYRELAY_SHARDS": json.dumps(shards),
            "COMFYRELAY_CLOUDWATCH_NAMESPACE": "Command",
        }
        printed = await commands.run("fleet", "publish-metrics", "--dry-run", env=env)
        assert {load["MetricName"] for load in json.loads(printed.out)} == NAMES - {"JobProcessingP50"}
        assert metrics_client.list_metrics(Namespace="Command")["Metrics"] == []
        sent = await commands.run("fleet", "publish-metrics", "--once", env=env)
        assert (sent.code, sent.err) == (0, "7 metrics sent.\n")
        assert value_of(metrics_client, "Command", "ActiveWorkers", "home") == 0
