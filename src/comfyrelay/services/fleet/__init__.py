"""Who runs it: workers and their fleets."""

from collections.abc import Collection

from comfyrelay.domain.states import Stage
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.fleet.bundles import Bundles
from comfyrelay.services.fleet.fleets import Fleets
from comfyrelay.services.fleet.instances import Instances
from comfyrelay.services.fleet.nodes import Nodes
from comfyrelay.services.fleet.views import FleetViews
from comfyrelay.services.fleet.workers import Workers
from comfyrelay.services.ground import Ground
from comfyrelay.services.queue import Queue

__all__ = ["Fleet"]


class Fleet:
    def __init__(self, ground: Ground, queue: Queue, graphs: Graphs, *, desk_workers: Collection[str]) -> None:
        settings, databases = ground.settings, ground.databases
        self.fleets = Fleets(databases, bundles=Bundles(graphs))
        self.workers = Workers(
            databases,
            queue.decisions,
            max_fleet_workers=settings.max_fleet_workers,
            stale_seconds=settings.worker_stale_seconds,
            desk_workers=desk_workers,
            default_fleet=ground.default_fleet,
        )
        self.views = FleetViews(databases, worker_stale_seconds=settings.worker_stale_seconds)
        self.nodes = Nodes(databases, stage=Stage(settings.stage), policy=ground.graph_policy)
        self.instances = Instances(is_on=settings.validate_asg_instance)
