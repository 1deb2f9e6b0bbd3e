"""Identify the machine and derive the worker's id from it."""

import os
import re
import socket
from dataclasses import dataclass

from comfyrelay.worker.host.imds import Imds
from comfyrelay.worker.settings import WorkerSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class HostIdentity:
    worker_id: str
    instance_id: str | None = None
    region: str | None = None
    instance_type: str | None = None
    capacity_type: str | None = None

    @property
    def folder_name(self) -> str:
        """The worker's id as a folder name."""
        return re.sub(r"[^\w.-]", "_", self.worker_id).lstrip(".") or "worker"


async def identify_host(settings: WorkerSettings, imds: Imds | None) -> HostIdentity:
    """Query EC2 metadata, if available. Settings take precedence."""
    instance_id = await imds.text("instance-id") if imds is not None else None
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if imds is None or instance_id is None:
        worker_id = settings.worker_id or socket.gethostname() or "worker"
        return HostIdentity(
            worker_id=worker_id,
            instance_id=worker_id if worker_id.startswith("i-") else None,
            region=region,
            instance_type=settings.instance_type,
            capacity_type=settings.capacity_type,
        )
    is_spot = await imds.text("instance-life-cycle") == "spot"
    return HostIdentity(
        worker_id=settings.worker_id or instance_id,
        instance_id=instance_id,
        region=region or await imds.text("placement/region"),
        instance_type=settings.instance_type or await imds.text("instance-type"),
        capacity_type=settings.capacity_type or ("spot" if is_spot else "on_demand"),
    )
