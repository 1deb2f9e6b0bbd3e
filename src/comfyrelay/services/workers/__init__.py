"""Workers and their fleets."""

from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.queue import Queue
from comfyrelay.services.workers.bundles import Bundles
from comfyrelay.services.workers.fleets import Fleets
from comfyrelay.services.workers.identity import Identities
from comfyrelay.services.workers.instances import InstanceCheck
from comfyrelay.services.workers.logs import WorkerLogService
from comfyrelay.services.workers.node_allow_list import NodeAllowLists
from comfyrelay.services.workers.slots import SlotViews
from comfyrelay.services.workers.views import FleetViews
from comfyrelay.services.workers.workers import Workers

__all__ = ["WorkerServices"]


class WorkerServices:
    def __init__(self, context: ServiceContext, queue: Queue, graphs: Graphs) -> None:
        settings = context.settings
        self.fleets = Fleets(context.databases, bundles=Bundles(graphs))
        self.identities = Identities(
            certificates=settings.aws_identity_certificates,
            accounts={str(stage): accounts for stage, accounts in settings.aws_identity_accounts.items()},
            max_age_seconds=settings.aws_identity_max_age_seconds,
        )
        self.workers = Workers(context, queue.decisions, self.identities)
        self.views = FleetViews(context)
        self.slots = SlotViews(context)
        self.logs = WorkerLogService(context.databases, context.notify_channel, on_request=queue.polls.release_poll)
        self.nodes = NodeAllowLists(context)
        self.instances = InstanceCheck(is_on=settings.validate_asg_instance)
