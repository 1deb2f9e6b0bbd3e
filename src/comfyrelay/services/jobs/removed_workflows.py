"""Add the workflow of a job again, after the user removed it."""

from comfyrelay.comfyui.graphs.graph import replace_placeholders
from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.queue.states import WorkflowKind
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.errors import Conflict
from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.catalogue.graph_import import WorkflowImport
from comfyrelay.services.catalogue.own_workflows import AddedWorkflow
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.views.jobs import JobViews
from comfyrelay.store.central import catalogue


class RemovedWorkflows:
    def __init__(self, databases: Databases, services: Catalogue, views: JobViews) -> None:
        self._databases = databases
        self._catalogue = services
        self._views = views

    async def add_again(self, tenant_id: str, job_id: str) -> AddedWorkflow:
        """Add the workflow of a job, or return the tenant's existing workflow with the same graph."""
        job, payload = await self._views.job_with_payload(tenant_id, job_id)
        async with self._databases.central.read() as tx:
            record = (await catalogue.workflows_by_id(tx, [job.workflow_id])).get(job.workflow_id)
        if record is None or record.tenant_id != tenant_id or record.kind != WorkflowKind.GRAPH:
            raise Conflict("This job did not run a workflow of yours, so there is none to add.")
        new = await self._import_of(payload, record)
        return await self._catalogue.own_workflows.add(tenant_id, new)

    async def _import_of(self, payload: JobPayload, record: WorkflowRecord) -> WorkflowImport:
        graph = await self._catalogue.graphs.get(payload.graph_path)
        if record.graph_path != payload.graph_path:
            # The workflow was changed after the job, so its properties do not describe this graph.
            names = {asset.placeholder: asset.name or asset.path for asset in payload.assets}
            filled = replace_placeholders(graph, {**payload.values, **names})
            return WorkflowImport(graph=filled, name=record.name, same_name="number")
        return WorkflowImport(
            graph=graph,
            name=record.name,
            properties=record.properties,
            output_node_id=record.output_node_id,
            output_extension=record.output_extension,
            output_mime_type=record.output_mime_type,
            same_name="number",
        )
