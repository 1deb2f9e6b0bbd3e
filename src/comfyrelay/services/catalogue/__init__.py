"""The catalogue: workflows, effects and their files, and presets."""

from comfyrelay.comfyui.editor.packages import NODE_MAP
from comfyrelay.domain.queue.states import Stage
from comfyrelay.services.accounts.own_workflows import OwnWorkflowAccess
from comfyrelay.services.catalogue.assets import Assets
from comfyrelay.services.catalogue.availability import Availability
from comfyrelay.services.catalogue.effects import Effects
from comfyrelay.services.catalogue.embedded_workflow import EmbeddedWorkflows
from comfyrelay.services.catalogue.graph_import import GraphImporter
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.catalogue.library import Library
from comfyrelay.services.catalogue.node_definitions import NodeDefinitionService
from comfyrelay.services.catalogue.own_versions import OwnVersions
from comfyrelay.services.catalogue.own_workflows import OwnWorkflows
from comfyrelay.services.catalogue.pending_workflows import PendingWorkflows
from comfyrelay.services.catalogue.presets import Presets
from comfyrelay.services.catalogue.private_graphs import PrivateGraphs
from comfyrelay.services.catalogue.reader_threads import ReaderThreads
from comfyrelay.services.catalogue.workflows import Workflows
from comfyrelay.services.context import ServiceContext
from comfyrelay.wakeup import Wakeup

__all__ = ["Catalogue"]


class Catalogue:
    def __init__(self, context: ServiceContext, own_access: OwnWorkflowAccess) -> None:
        settings, databases, objects, hooks = context.settings, context.databases, context.objects, context.hooks
        self.private_graphs = PrivateGraphs(
            databases, max_bytes=settings.max_graph_bytes, max_tenant_bytes=settings.max_workflow_bytes
        )
        self.graphs = Graphs(objects, self.private_graphs, max_nodes=settings.max_graph_nodes)
        self.assets = Assets(objects, max_bytes=settings.max_upload_bytes, ttl_seconds=settings.presigned_ttl_seconds)
        default = [context.default_fleet] if context.default_fleet is not None else []
        fleets = [*default, *hooks.more_fleets]
        self.workflows = Workflows(databases, self.graphs, self.assets, default_fleets=fleets)
        self.effects = Effects(databases, self.assets)
        self.library = Library(databases, self.assets)
        new_definitions = Wakeup()
        self.node_definitions = NodeDefinitionService(
            databases,
            objects,
            stage=Stage(settings.stage),
            graph_fleets=fleets,
            live=hooks.live_definitions,
            on_new=new_definitions.notify,
        )
        readers = ReaderThreads()
        node_map = settings.data_dir / NODE_MAP
        self.importer = GraphImporter(self.node_definitions, self.graphs, readers, node_map=node_map)
        self.own_workflows = OwnWorkflows(
            databases,
            self.workflows,
            self.importer,
            readers,
            own_access,
            policy=context.graph_policy,
            max_workflows=settings.max_own_workflows,
        )
        self.own_versions = OwnVersions(databases, self.own_workflows, self.graphs)
        self.pending_workflows = PendingWorkflows(
            databases, self.node_definitions, self.own_workflows, wakeup=new_definitions
        )
        self.embedded_workflows = EmbeddedWorkflows(objects, settings)
        self.presets = Presets(databases)
        self.availability = Availability(
            databases,
            self.graphs,
            stage=settings.stage,
            on_missing=hooks.on_missing,
            node_map=node_map,
            stage_of=hooks.stage_of,
        )
