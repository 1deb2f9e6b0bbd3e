"""Who runs it: workers and their fleets."""

from dataclasses import dataclass
from typing import Self

from comfyrelay.services.fleet.fleets import Fleets
from comfyrelay.services.fleet.instances import Instances
from comfyrelay.services.fleet.views import FleetViews
from comfyrelay.services.fleet.workers import Workers
from comfyrelay.services.ground import Ground
from comfyrelay.services.queue import Queue

__all__ = ["Fleet"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    fleets: Fleets
    workers: Workers
    views: FleetViews
    instances: Instances

    @classmethod
    def over(cls, ground: Ground, queue: Queue, *, desk_worker: str | None) -> Self:
        settings, databases = ground.settings, ground.databases
        return cls(
            fleets=Fleets(databases),
            workers=Workers(
                databases,
                queue.decisions,
                max_fleet_workers=settings.max_fleet_workers,
                stale_seconds=settings.worker_stale_seconds,
                desk_worker=desk_worker,
            ),
            views=FleetViews(databases, worker_stale_seconds=settings.worker_stale_seconds),
            instances=Instances(is_on=settings.validate_asg_instance),
        )
