"""Auto Scaling calls for this instance. The synchronous methods block: call them in a thread."""

import asyncio
from functools import cached_property
from typing import Any

import structlog

from comfyrelay.extras import require
from comfyrelay.worker.host.machine import HostIdentity

log = structlog.get_logger(__name__)


class ScalingGroup:
    def __init__(self, name: str, *, instance_id: str, region: str, endpoint_url: str | None = None) -> None:
        require("aws")
        self._names = {"AutoScalingGroupName": name}
        self._instance_id = instance_id
        self._region = region
        self._endpoint_url = endpoint_url

    def protect(self, protected: bool) -> None:
        """Turn scale-in protection on or off."""
        self._client.set_instance_protection(
            **self._names, InstanceIds=[self._instance_id], ProtectedFromScaleIn=protected
        )

    def complete_termination(self, hook: str) -> None:
        """Complete the termination lifecycle hook."""
        self._client.complete_lifecycle_action(
            **self._names, InstanceId=self._instance_id, LifecycleHookName=hook, LifecycleActionResult="CONTINUE"
        )

    async def retry_complete_termination(self, hook: str) -> None:
        """Complete the hook, so that the group need not wait for its timeout. Errors are logged."""
        for pause in (1.0, 3.0, 0.0):
            try:
                await asyncio.to_thread(self.complete_termination, hook)
            except Exception as error:
                log.warning("worker.termination_not_completed", hook=hook, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(pause)
            else:
                log.info("worker.termination_completed", hook=hook)
                return

    @cached_property
    def _client(self) -> Any:
        # The import is slow and rarely needed.
        import boto3  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415

        config = Config(connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 1})
        # boto3's default session is not thread-safe.
        return boto3.session.Session().client(
            "autoscaling", region_name=self._region, endpoint_url=self._endpoint_url, config=config
        )


def find_scaling_group(name: str | None, host: HostIdentity) -> ScalingGroup | None:
    """Return the Auto Scaling group of this instance, if one is configured and this is an EC2 instance."""
    if name and host.instance_id and host.region:
        return ScalingGroup(name, instance_id=host.instance_id, region=host.region)
    if name:
        log.warning("worker.no_protection", why="ASG_NAME is set, but this is not an EC2 instance.")
    return None
