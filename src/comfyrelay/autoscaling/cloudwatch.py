"""The figures of fleets as CloudWatch gets them: eight metrics, by fleet and stage, once a minute."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.errors import ComfyRelayError, ConfigurationError, ProviderError
from comfyrelay.extras import require
from comfyrelay.services.autoscaling.figures import FiguresOfFleets, FleetFigures

log = structlog.get_logger(__name__)

# By metric: the figure, and its unit.
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
# CloudWatch takes 1,000 in a call of at most 1 MB.
AT_ONCE = 500
EVERY_SECONDS = 60.0
CLAIM = "cloudwatch"


def metric_data(figures: Sequence[FleetFigures], *, at: datetime) -> list[dict[str, Any]]:
    """What is sent. A median of no jobs is not sent: it is none, not zero."""
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
        for fleet in figures
        for metric, (figure, unit) in METRICS.items()
        if (value := getattr(fleet, figure)) is not None
    ]


class CloudWatch:
    def __init__(self, *, namespace: str) -> None:
        require("aws")
        self._namespace = namespace
        self._made: Any = None

    async def put(self, data: Sequence[Mapping[str, Any]]) -> None:
        """Send them. What fails is tried once more; then `ProviderError`."""
        await asyncio.to_thread(self._put, data)

    def _put(self, data: Sequence[Mapping[str, Any]]) -> None:
        # it takes long to import, and few need it
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        try:
            for first in range(0, len(data), AT_ONCE):
                self._client.put_metric_data(Namespace=self._namespace, MetricData=data[first : first + AT_ONCE])
        except (BotoCoreError, ClientError) as error:
            raise ProviderError(f"CloudWatch did not take the figures: {error}") from None

    @property
    def _client(self) -> Any:
        if self._made is None:
            import boto3  # noqa: PLC0415
            from botocore.config import Config  # noqa: PLC0415

            # boto3 itself looks only at AWS_DEFAULT_REGION
            session = boto3.session.Session(region_name=os.environ.get("AWS_REGION") or None)
            if session.region_name is None:
                raise ConfigurationError("CloudWatch cannot be reached: set AWS_REGION.")
            retries: Any = {"mode": "standard", "total_max_attempts": 2}
            config = Config(connect_timeout=5, read_timeout=10, retries=retries)
            self._made = session.client("cloudwatch", config=config)
        return self._made


class Publisher:
    """Sends the figures each minute; of several processes one does, whichever comes first that minute."""

    def __init__(self, figures: FiguresOfFleets, cloudwatch: CloudWatch) -> None:
        self._figures = figures
        self._cloudwatch = cloudwatch

    async def publish(self) -> int:
        """Send them now, whoever else did; returns how many."""
        data = metric_data(await self._figures.read(), at=utc_now())
        await self._cloudwatch.put(data)
        return len(data)

    async def run(self) -> None:
        """Until it is canceled. Nothing that fails ends it."""
        while True:
            try:
                if await self._figures.claim_minute(CLAIM):
                    await self.publish()
            except ComfyRelayError as error:
                log.warning("cloudwatch.failed", why=error.detail)
            except Exception:
                log.exception("cloudwatch.failed")
            await asyncio.sleep(EVERY_SECONDS - utc_now().timestamp() % EVERY_SECONDS)
