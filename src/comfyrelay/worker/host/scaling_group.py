"""Auto Scaling calls for this instance. They block: call them in a thread."""

from typing import Any

from comfyrelay.extras import require


class ScalingGroup:
    def __init__(self, name: str, *, instance_id: str, region: str, endpoint_url: str | None = None) -> None:
        require("aws")
        self._names = {"AutoScalingGroupName": name}
        self._instance_id = instance_id
        self._region = region
        self._endpoint_url = endpoint_url
        self._made: Any = None

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

    @property
    def _client(self) -> Any:
        if self._made is None:
            # imported here because it is slow and rarely needed
            import boto3  # noqa: PLC0415
            from botocore.config import Config  # noqa: PLC0415

            config = Config(connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 1})
            # its own session: boto3's default session is not thread-safe
            self._made = boto3.session.Session().client(
                "autoscaling", region_name=self._region, endpoint_url=self._endpoint_url, config=config
            )
        return self._made
