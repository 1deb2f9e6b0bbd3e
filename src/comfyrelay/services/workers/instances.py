"""Check that a worker that claims to be an EC2 instance belongs to an Auto Scaling group."""

import asyncio
from typing import Any

import structlog

from comfyrelay.errors import Forbidden

log = structlog.get_logger(__name__)

PREFIX = "i-"


class InstanceCheck:
    """The check is off by default, and passes if AWS is unreachable."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._client: Any = None

    async def check(self, worker_id: str) -> None:
        if not self._is_on or not worker_id.startswith(PREFIX):
            return
        try:
            found = await asyncio.to_thread(self._describe, worker_id)
        except Exception:
            # Fleets must be able to start while the API of AWS is down.
            log.warning("instance.check_failed", worker_id=worker_id, exc_info=True)
            return
        if not found:
            raise Forbidden(f"The instance {worker_id!r} belongs to no Auto Scaling group.")

    def _describe(self, worker_id: str) -> bool:
        if self._client is None:
            # boto3 is slow to import and rarely needed.
            import boto3  # noqa: PLC0415
            from botocore.config import Config  # noqa: PLC0415

            config = Config(connect_timeout=3, read_timeout=5, retries={"max_attempts": 1})
            self._client = boto3.client("autoscaling", config=config)
        answer = self._client.describe_auto_scaling_instances(InstanceIds=[worker_id])
        return bool(answer["AutoScalingInstances"])
