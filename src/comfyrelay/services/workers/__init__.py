"""Workers and their fleets."""

from collections.abc import Callable, Collection, Sequence

from comfyrelay.domain.queue.states import Stage
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.queue import Queue
from comfyrelay.services.workers.bundles import Bundles
from comfyrelay.services.workers.fleets import Fleets
from comfyrelay.services.workers.identity import Identities
from comfyrelay.services.workers.instances import Instances
from comfyrelay.services.workers.node_allow_list import Nodes
from comfyrelay.services.workers.slots import SlotViews
from comfyrelay.services.workers.views import FleetViews
from comfyrelay.services.workers.workers import Workers

__all__ = ["WorkerServices"]


class WorkerServices:
    def __init__(
        self,
        context: ServiceContext,
        queue: Queue,
        graphs: Graphs,
        *,
        desk_workers: Collection[str],
        comfyui_unreachable: Callable[[str], Sequence[str]],
    ) -> None:
        settings, databases = context.settings, context.databases
        self.fleets = Fleets(databases, bundles=Bundles(graphs))
        self.identities = Identities(
            certificates=settings.aws_identity_certificates,
            accounts={str(stage): each for stage, each in settings.aws_identity_accounts.items()},
            max_age_seconds=settings.aws_identity_max_age_seconds,
        )
        self.workers = Workers(
            databases,
            queue.decisions,
            self.identities,
            max_fleet_workers=settings.max_fleet_workers,
            max_workers=settings.max_workers,
            stale_seconds=settings.worker_stale_seconds,
            desk_workers=desk_workers,
            default_fleet=context.default_fleet,
        )
        self.views = FleetViews(databases, worker_stale_seconds=settings.worker_stale_seconds)
        self.slots = SlotViews(
            databases, worker_stale_seconds=settings.worker_stale_seconds, comfyui_unreachable=comfyui_unreachable
        )
        self.nodes = Nodes(databases, stage=Stage(settings.stage), policy=context.graph_policy)
        self.instances = Instances(is_on=settings.validate_asg_instance)
