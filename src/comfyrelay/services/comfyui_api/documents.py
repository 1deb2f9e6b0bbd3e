"""Workflows that open in ComfyUI's editor: of a job, of a user, or, for administrators, of the catalogue."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from comfyrelay.comfyui.editor.filling import fill_editor_file
from comfyrelay.comfyui.editor.layout import lay_out
from comfyrelay.comfyui.editor.workflow import editor_file_in, is_editor_file
from comfyrelay.comfyui.graphs.graph import replace_placeholders
from comfyrelay.domain.queue.states import WorkflowKind
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.errors import NotFound
from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.comfyui_api.prompts import Prompts
from comfyrelay.services.jobs import Jobs


class EditorDocuments:
    def __init__(self, catalogue: Catalogue, jobs: Jobs, prompts: Prompts, *, users_are_owners: bool) -> None:
        """With `users_are_owners`, as on a desk, users may also see the graphs of effects."""
        self._catalogue = catalogue
        self._jobs = jobs
        self._prompts = prompts
        self._users_are_owners = users_are_owners

    async def of_job(self, tenant_id: str, job_id: str) -> Mapping[str, Any]:
        """Return the workflow of a job with its values. Raises `NotFound` if there is none."""
        record = (await self._prompts.records(tenant_id, [job_id])).get(job_id)
        if record is not None:
            return await self._laid_out(editor_file_in(record.extra_data) or record.graph)
        found = await self._jobs.job_workflows.filled(tenant_id, job_id, only_own=not self._users_are_owners)
        return await self._laid_out(found)

    async def of_workflow(self, tenant_id: str, slug: str) -> Mapping[str, Any]:
        """Return a workflow of the user with its default values. Raises `NotFound` if there is none."""
        return await self._of_record(await self._catalogue.own_workflows.find(tenant_id, slug))

    async def of_catalogue(self, slug: str) -> Mapping[str, Any]:
        """Return any workflow with its default values, for administrators. Raises `NotFound` if there is none."""
        return await self._of_record((await self._catalogue.workflows.get(slug)).workflow)

    async def _of_record(self, record: WorkflowRecord) -> Mapping[str, Any]:
        if record.kind != WorkflowKind.GRAPH:
            raise NotFound("This workflow has no graph.")
        if record.waiting is not None:
            new = await self._catalogue.graphs.load_import(record.graph_path)
            return await self._laid_out(new["graph"])
        values = {prop.placeholder: prop.default_value or "" for prop in record.parsed_properties}
        editor = await self._catalogue.graphs.get_editor(record.graph_path)
        if editor is not None:
            return await asyncio.to_thread(lambda: fill_editor_file(json.loads(editor), values))
        graph = await self._catalogue.graphs.get(record.graph_path)
        return await self._laid_out(replace_placeholders(graph, values))

    async def _laid_out(self, workflow: Mapping[str, Any]) -> Mapping[str, Any]:
        if is_editor_file(workflow):
            return workflow
        definitions, _ = await self._catalogue.node_definitions.load()
        return await asyncio.to_thread(lay_out, dict(workflow), definitions or {})
