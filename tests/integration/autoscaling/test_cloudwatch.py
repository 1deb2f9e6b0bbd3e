"""The metrics of fleets in CloudWatch (moto's server), by name and dimension."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import structlog
from aiohttp import web

from comfyrelay.autoscaling import cloudwatch
from comfyrelay.autoscaling.cloudwatch import METRICS, CloudWatch, Publisher, metric_data
from comfyrelay.clock import utc_now
from comfyrelay.errors import ProviderError
from comfyrelay.services.autoscaling.fleet_metrics import FleetMetrics
from tests.support.api import open_api
from tests.support.cloudwatch import (
    METRIC_NAMES,
    SetEndpoint,
    metric_value,
    metrics_client,
    moto_url,
    set_aws_endpoint,
)
from tests.support.world import PATIENCE_SECONDS, SqliteBackend, World

__all__ = ["metrics_client", "moto_url", "set_aws_endpoint"]


def test_metrics_have_the_documented_names() -> None:
    assert set(METRICS) == METRIC_NAMES


def test_median_without_jobs_is_not_sent() -> None:
    sent = metric_data([FleetMetrics(fleet="f", stage="production")], at=utc_now())
    assert {metric["MetricName"] for metric in sent} == METRIC_NAMES - {"JobProcessingP50"}


async def test_all_metrics_are_sent_by_fleet_and_stage_in_batches(
    world: World, metrics_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloudwatch, "BATCH_SIZE", 3)
    desk = await world.desk(concurrency=4)
    _, leased = await desk.submit_and_lease()
    await world.advance(12)
    await world.complete(leased)
    for _ in range(3):
        await desk.submit()
    assert await world.lease(desk.worker) is not None
    await Publisher(world.engine.autoscaling.metrics, CloudWatch(namespace="Eight")).publish()
    assert {name: metric_value(metrics_client, "Eight", name, desk.fleet) for name in METRIC_NAMES} == {
        "QueueDepth": 3,
        "BacklogPerInstance": 3,
        "ActiveWorkers": 1,
        "AvailableCapacity": 3,
        "JobProcessingP50": 12,
        "ErrorRate": 0,
        "LeaseExpiredCount": 0,
        "SpotInterruptionCount": 0,
    }
    listed = metrics_client.list_metrics(Namespace="Eight")["Metrics"]
    assert {tuple(sorted(dimension["Name"] for dimension in metric["Dimensions"])) for metric in listed} == {
        ("FleetSlug", "Stage")
    }


async def test_each_minute_is_claimed_by_one_process(world: World) -> None:
    figures = world.engine.autoscaling.metrics
    claims = await asyncio.gather(*(figures.claim_minute("cloudwatch") for _ in range(5)))
    assert sorted(claims) == [False, False, False, False, True]
    await world.advance(60)
    assert await figures.claim_minute("cloudwatch")


class RefusingCloudWatch:
    """Answers every call with this status, and counts the calls."""

    def __init__(self, status: int) -> None:
        self.calls = 0
        self.status = status
        self._called = asyncio.Condition()

    async def wait_for_calls(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), self._called:
            await self._called.wait_for(lambda: self.calls >= count)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        yield f"http://{host}:{port}"
        await runner.cleanup()

    async def _answer(self, _request: web.Request) -> web.Response:
        async with self._called:
            self.calls += 1
            self._called.notify_all()
        return web.Response(status=self.status)


async def test_failed_put_is_retried_once_and_then_reported(set_aws_endpoint: SetEndpoint) -> None:
    refusing = RefusingCloudWatch(503)
    data = metric_data([FleetMetrics(fleet="f", stage="production")], at=utc_now())
    async with refusing.serve() as url:
        set_aws_endpoint(url)
        with pytest.raises(ProviderError, match="CloudWatch did not accept the metrics"):
            await CloudWatch(namespace="Away").put(data)
    assert refusing.calls == 2


async def test_publishing_continues_while_cloudwatch_is_unreachable(
    world: World, set_aws_endpoint: SetEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = RefusingCloudWatch(403)
    await world.desk()
    figures = world.engine.autoscaling.metrics
    monkeypatch.setattr(cloudwatch, "INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(figures, "claim_minute", AsyncMock(return_value=True))
    async with refusing.serve() as url:
        set_aws_endpoint(url)
        with structlog.testing.capture_logs() as logs:
            task = asyncio.create_task(Publisher(figures, CloudWatch(namespace="Away")).run())
            await refusing.wait_for_calls(3)
        assert not task.done()
        assert {log["event"] for log in logs} == {"cloudwatch.failed"}
        task.cancel()
        await asyncio.wait({task})


async def test_server_publishes_metrics_if_configured(
    sqlite_backend: SqliteBackend, tmp_path: Path, set_aws_endpoint: SetEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = RefusingCloudWatch(403)
    monkeypatch.setattr(cloudwatch, "INTERVAL_SECONDS", 0.01)
    async with refusing.serve() as url:
        set_aws_endpoint(url)
        async with open_api(sqlite_backend, tmp_path, cloudwatch_metrics=True) as api:
            await api.effect()
            await api.clock.set(api.clock.now + timedelta(minutes=1))
            await refusing.wait_for_calls(1)
            assert (await api.anonymous.call("GET", "/healthz")).status_code == 200
