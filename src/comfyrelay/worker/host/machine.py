"""Identify the machine and derive the worker's id from it."""

import os
import re
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


async def machine(settings: WorkerSettings, imds: Imds | None) -> HostIdentity:
    """Query EC2 metadata, if available. Settings take precedence."""
    instance_id = await imds.instance_id() if imds is not None else None
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if imds is None or instance_id is None:
        named = settings.worker_id or settings.host_name
        own = named if named.startswith("i-") else None
        return HostIdentity(
            worker_id=named,
            instance_id=own,
            region=region,
            instance_type=settings.instance_type,
            capacity_type=settings.capacity_type,
        )
    return HostIdentity(
        worker_id=settings.worker_id or instance_id,
        instance_id=instance_id,
        region=region or await imds.region(),
        instance_type=settings.instance_type or await imds.instance_type(),
        capacity_type=settings.capacity_type or ("spot" if await imds.is_spot() else "on_demand"),
    )
