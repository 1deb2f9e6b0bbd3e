"""The metrics of fleets in CloudWatch (moto's server), by name and dimension."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import boto3
import pytest
import structlog
from aiohttp import web
from moto.server import ThreadedMotoServer

from comfyrelay.autoscaling import cloudwatch
from comfyrelay.autoscaling.cloudwatch import METRICS, CloudWatch, Publisher, metric_data
from comfyrelay.clock import utc_now
from comfyrelay.errors import ProviderError
from comfyrelay.services.autoscaling.figures import FleetFigures
from tests.support.api import open_api
from tests.support.world import PATIENCE_SECONDS, SqliteBackend, World, open_world

# as the documentation names them
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
def kept(moto_url: str, aws_at: Any) -> Any:
    """The metrics that CloudWatch has, read through its API."""
    aws_at(moto_url)
    return boto3.client("cloudwatch", region_name="us-east-1")


@pytest.fixture
async def small(sqlite_backend: SqliteBackend, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(sqlite_backend, tmp_path) as world:
        yield world


def value_of(kept: Any, namespace: str, metric: str, fleet: str) -> float:
    now = utc_now()
    dimensions = [{"Name": "FleetSlug", "Value": fleet}, {"Name": "Stage", "Value": "production"}]
    found = kept.get_metric_statistics(
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


def test_eight_have_the_names_of_the_document() -> None:
    assert set(METRICS) == NAMES


async def test_all_eight_are_read_back_by_name_fleet_and_stage(small: World, kept: Any) -> None:
    desk = await small.desk(concurrency=4)
    _, leased = await desk.leased()
    await small.advance(12)
    await small.complete(leased)
    for _ in range(3):
        await desk.submit()
    assert await small.lease(desk.worker) is not None
    await Publisher(small.engine.autoscaling.figures, CloudWatch(namespace="Eight")).publish()
    found = {each: value_of(kept, "Eight", each, desk.fleet) for each in NAMES}
    assert found == {
        "QueueDepth": 3,
        "BacklogPerInstance": 3,
        "ActiveWorkers": 1,
        "AvailableCapacity": 3,
        "JobProcessingP50": 12,
        "ErrorRate": 0,
        "LeaseExpiredCount": 0,
        "SpotInterruptionCount": 0,
    }
    listed = kept.list_metrics(Namespace="Eight")["Metrics"]
    assert {tuple(sorted(each["Name"] for each in metric["Dimensions"])) for metric in listed} == {
        ("FleetSlug", "Stage")
    }


async def test_metrics_are_split_into_several_calls(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudwatch, "AT_ONCE", 3)
    figures = [FleetFigures(fleet=f"f{n}", stage="production", queue_depth=n) for n in range(5)]
    await CloudWatch(namespace="Many").put(metric_data(figures, at=utc_now()))
    assert [value_of(kept, "Many", "QueueDepth", f"f{n}") for n in range(5)] == [0, 1, 2, 3, 4]


def test_median_of_no_jobs_is_not_sent() -> None:
    sent = metric_data([FleetFigures(fleet="f", stage="production")], at=utc_now())
    assert {each["MetricName"] for each in sent} == NAMES - {"JobProcessingP50"}


async def test_each_minute_is_claimed_by_one_process(world: World) -> None:
    figures = world.engine.autoscaling.figures
    claims = await asyncio.gather(*(figures.claim_minute("cloudwatch") for _ in range(5)))
    assert sorted(claims) == [False, False, False, False, True]
    await world.advance(60)
    assert await figures.claim_minute("cloudwatch")


class Refusing:
    """A CloudWatch that returns this error and counts its calls."""

    def __init__(self, status: int) -> None:
        self.calls = 0
        self.status = status
        self._news = asyncio.Condition()

    async def answer(self, _request: web.Request) -> web.Response:
        async with self._news:
            self.calls += 1
            self._news.notify_all()
        return web.Response(status=self.status)

    async def until(self, calls: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), self._news:
            await self._news.wait_for(lambda: self.calls >= calls)

    async def serve(self) -> tuple[web.AppRunner, str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        return runner, f"http://{host}:{port}"


async def test_failed_put_is_retried_once_and_then_reported(aws_at: Any) -> None:
    refusing = Refusing(503)
    runner, url = await refusing.serve()
    aws_at(url)
    data = metric_data([FleetFigures(fleet="f", stage="production")], at=utc_now())
    with pytest.raises(ProviderError, match="CloudWatch did not take the figures"):
        await CloudWatch(namespace="Away").put(data)
    assert refusing.calls == 2
    await runner.cleanup()


async def test_unreachable_cloudwatch_does_not_stop_the_publishing(
    small: World, aws_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(403)
    runner, url = await refusing.serve()
    aws_at(url)
    await small.desk()
    figures = small.engine.autoscaling.figures
    monkeypatch.setattr(cloudwatch, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(figures, "claim_minute", AsyncMock(return_value=True))
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(Publisher(figures, CloudWatch(namespace="Away")).run())
        await refusing.until(3)
    assert not task.done()
    assert {log["event"] for log in logs} == {"cloudwatch.failed"}
    task.cancel()
    await asyncio.wait({task})
    await runner.cleanup()


async def test_server_publishes_metrics_if_configured(
    sqlite_backend: SqliteBackend, tmp_path: Path, aws_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(403)
    runner, url = await refusing.serve()
    aws_at(url)
    monkeypatch.setattr(cloudwatch, "EVERY_SECONDS", 0.01)
    async with open_api(sqlite_backend, tmp_path, cloudwatch_metrics=True) as api:
        await api.effect()
        await api.clock.set(api.clock.now + timedelta(minutes=1))
        await refusing.until(1)
        assert (await api.anybody.call("GET", "/healthz")).status_code == 200
    await runner.cleanup()
