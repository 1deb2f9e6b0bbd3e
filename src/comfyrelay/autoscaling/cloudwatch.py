"""Publish fleet metrics to CloudWatch: eight metrics by fleet and stage, once a minute."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.errors import ComfyRelayError, ConfigurationError, ProviderError
from comfyrelay.extras import require
from comfyrelay.services.autoscaling.fleet_metrics import FleetMetrics, FleetMetricsService

log = structlog.get_logger(__name__)

# The field and unit of each metric.
METRICS: Mapping[str, tuple[str, str]] = {
    "QueueDepth": ("queue_depth", "Count"),
    "BacklogPerInstance": ("backlog_per_instance", "Count"),
    "ActiveWorkers": ("active_workers", "Count"),
    "AvailableCapacity": ("available_capacity", "Count"),
    "JobProcessingP50": ("job_processing_p50", "Seconds"),
    "ErrorRate": ("error_rate", "None"),
    "LeaseExpiredCount": ("lease_expired_count", "Count"),
    "SpotInterruptionCount": ("spot_interruption_count", "Count"),
}
# CloudWatch accepts 1,000 values per call of at most 1 MB.
BATCH_SIZE = 500
INTERVAL_SECONDS = 60.0
CLAIM = "cloudwatch"


def metric_data(metrics: Sequence[FleetMetrics], *, at: datetime) -> list[dict[str, Any]]:
    """Return the metric values to send. A median without jobs is omitted, not zero."""
    return [
        {
            "MetricName": metric,
            "Dimensions": [
                {"Name": "FleetSlug", "Value": fleet.fleet},
                {"Name": "Stage", "Value": str(fleet.stage)},
            ],
            "Timestamp": at,
            "Value": float(value),
            "Unit": unit,
        }
        for fleet in metrics
        for metric, (figure, unit) in METRICS.items()
        if (value := getattr(fleet, figure)) is not None
    ]


class CloudWatch:
    def __init__(self, *, namespace: str) -> None:
        require("aws")
        self._namespace = namespace

    async def put(self, data: Sequence[Mapping[str, Any]]) -> None:
        """Send the values, with one retry. Raises `ProviderError`."""
        await asyncio.to_thread(self._put, data)

    def _put(self, data: Sequence[Mapping[str, Any]]) -> None:
        # Slow to import and rarely needed.
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        try:
            for first in range(0, len(data), BATCH_SIZE):
                self._client.put_metric_data(Namespace=self._namespace, MetricData=data[first : first + BATCH_SIZE])
        except (BotoCoreError, ClientError) as error:
            raise ProviderError(f"CloudWatch did not accept the metrics: {error}") from None

    @cached_property
    def _client(self) -> Any:
        # Slow to import and rarely needed.
        import boto3  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415

        # boto3 only reads AWS_DEFAULT_REGION.
        session = boto3.session.Session(region_name=os.environ.get("AWS_REGION") or None)
        if session.region_name is None:
            raise ConfigurationError("The AWS region of CloudWatch is not set: set AWS_REGION.")
        retries: Any = {"mode": "standard", "total_max_attempts": 2}
        config = Config(connect_timeout=5, read_timeout=10, retries=retries)
        return session.client("cloudwatch", config=config)


class Publisher:
    """Publishes the metrics every minute. If several processes run, only one of them publishes."""

    def __init__(self, metrics: FleetMetricsService, cloudwatch: CloudWatch) -> None:
        self._metrics = metrics
        self._cloudwatch = cloudwatch

    async def publish(self) -> int:
        """Publish now, even if another process has done so, and return the number of values."""
        data = metric_data(await self._metrics.read(), at=utc_now())
        await self._cloudwatch.put(data)
        return len(data)

    async def run(self) -> None:
        """Run until cancelled. Errors are logged."""
        while True:
            try:
                if await self._metrics.claim_minute(CLAIM):
                    await self.publish()
            except ComfyRelayError as error:
                log.warning("cloudwatch.failed", why=error.detail)
            except Exception:
                log.exception("cloudwatch.failed")
            await asyncio.sleep(INTERVAL_SECONDS - utc_now().timestamp() % INTERVAL_SECONDS)
