"""The workflow of a job, even if the user has removed the workflow."""

import asyncio
import json
from pathlib import PurePosixPath
from typing import Any

from comfyrelay.comfyui.editor.filling import fill_editor_file
from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders
from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.queue.states import WorkflowKind
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.errors import Conflict, NotFound
from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.catalogue.graph_import import WorkflowImport
from comfyrelay.services.catalogue.own_workflows import AddedWorkflow
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.views.jobs import JobViews
from comfyrelay.store.central import catalogue


class JobWorkflows:
    def __init__(self, databases: Databases, services: Catalogue, views: JobViews) -> None:
        self._databases = databases
        self._catalogue = services
        self._views = views

    async def add_again(self, tenant_id: str, job_id: str) -> AddedWorkflow:
        """Add the workflow of a job, or return the tenant's existing workflow with the same graph."""
        record, payload = await self._find(tenant_id, job_id)
        if record is None or record.tenant_id != tenant_id or record.kind != WorkflowKind.GRAPH:
            raise Conflict("This job did not run a workflow of yours, so there is none to add.")
        new = await self._to_import(payload, record)
        return await self._catalogue.own_workflows.add(tenant_id, new)

    async def filled(self, tenant_id: str, job_id: str, *, only_own: bool = False) -> dict[str, Any]:
        """Return the editor file with the values of the job, or else the job's graph. Tenants must not see the graphs
        of effects: with `only_own`, the workflow must be the tenant's."""
        record, payload = await self._find(tenant_id, job_id)
        if record is None or record.kind != WorkflowKind.GRAPH or (only_own and record.tenant_id != tenant_id):
            raise NotFound(
                "This job ran no ComfyUI workflow." if not only_own else "This job ran no workflow of yours."
            )
        editor = await self._catalogue.graphs.get_editor(payload.graph_path)
        graph = await self._catalogue.graphs.get(payload.graph_path)
        if editor is None:
            return await asyncio.to_thread(_fill, graph, payload)
        return await asyncio.to_thread(lambda: fill_editor_file(json.loads(editor), _values(payload)))

    async def _find(self, tenant_id: str, job_id: str) -> tuple[WorkflowRecord | None, JobPayload]:
        job, payload = await self._views.job_with_payload(tenant_id, job_id)
        async with self._databases.central.read() as tx:
            return (await catalogue.workflows_by_id(tx, [job.workflow_id])).get(job.workflow_id), payload

    async def _to_import(self, payload: JobPayload, record: WorkflowRecord) -> WorkflowImport:
        graph = await self._catalogue.graphs.get(payload.graph_path)
        if record.graph_path != payload.graph_path:
            # The workflow has changed since the job, so its properties do not describe this graph.
            return WorkflowImport(graph=_fill(graph, payload), name=record.name, same_name="number")
        return WorkflowImport(
            graph=graph,
            name=record.name,
            properties=record.properties,
            output_node_id=record.output_node_id,
            output_extension=record.output_extension,
            output_mime_type=record.output_mime_type,
            same_name="number",
        )


def _fill(graph: Graph, payload: JobPayload) -> Graph:
    return replace_placeholders(graph, _values(payload))


def _values(payload: JobPayload) -> dict[str, Any]:
    """Return the values of a job by placeholder. Files have the names that the user gave them."""
    names = {asset.placeholder: asset.name or PurePosixPath(asset.path).name for asset in payload.assets}
    return {**payload.values, **names}
