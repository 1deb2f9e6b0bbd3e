"""Graphs that users bring themselves: workflows private to their tenant, held to stricter rules than an operator's."""

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comfyrelay.comfy.graphs.graph import Graph, check_graph
from comfyrelay.comfy.graphs.policy import GraphPolicy
from comfyrelay.domain.properties import ASSET_TYPES
from comfyrelay.domain.records.catalogue import Workflow
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.media_types import guess_media_type
from comfyrelay.services.catalogue.workflows import Workflows
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import Listed, listed
from comfyrelay.services.steps import Step
from comfyrelay.store.central import library
from comfyrelay.store.database import Tx

MEDIA_TYPES = ("image/", "video/", "audio/")
# Of what nobody looks into, only this: no browser runs it, whatever is in it.
TEXT_TYPE = "text/plain"
TEXT_EXTENSION = "txt"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewWorkflow:
    graph: Graph
    name: str | None = None
    properties: Sequence[Mapping[str, Any]] = field(default=())
    output_node_id: str | None = None
    output_extension: str = "mp4"
    output_mime_type: str | None = None


class OwnWorkflows:
    def __init__(self, databases: Databases, workflows: Workflows, *, policy: GraphPolicy) -> None:
        self._databases = databases
        self._workflows = workflows
        self._policy = policy

    async def create(self, tenant_id: str, new: NewWorkflow) -> Workflow:
        self._workflows.check_size(new.graph)
        check_graph(new.graph)
        _check_properties(new)
        assets = {str(each["placeholder"]) for each in new.properties if each["type"] in ASSET_TYPES}
        await asyncio.to_thread(self._policy.check, new.graph, own=assets)
        return await self._workflows.create(
            slug=_slug(new.name),
            name=new.name,
            graph=new.graph,
            properties=new.properties,
            output_node_id=new.output_node_id,
            output_extension=new.output_extension,
            output_mime_type=_mime_type(new),
            tenant_id=tenant_id,
        )

    async def create_once(self, tenant_id: str, new: NewWorkflow) -> Workflow:
        """The workflow that the same graph made before under this name; else a new one."""
        made = await self.create(tenant_id, new)
        async with self._databases.central.read() as tx:
            older = await library.older_twin(tx, made)
        if older is None:
            return made
        await self.remove(tenant_id, made.slug)
        return older

    async def page(self, tenant_id: str, *, before_id: int | None, limit: int) -> Listed[Workflow]:
        """Newest first."""
        async with self._databases.central.read() as tx:
            found = await library.own_workflows(tx, tenant_id, before_id=before_id, limit=limit + 1)
        return listed(found, lambda each: each.id, limit=limit)

    async def remove(self, tenant_id: str, slug: str) -> None:
        """Remove a workflow that no job was made with. Its graph may be another workflow's, too, and stays."""

        async def work(tx: Tx) -> None:
            found = await library.own_workflow(tx, tenant_id, slug)
            if found is None:
                raise NotFound(f"There is no workflow {slug!r} of yours.")
            await library.remove_workflow(tx, found.id)

        await self._databases.central.run(Step.CATALOGUE, work)


def _check_properties(new: NewWorkflow) -> None:
    # the default of a file is a path in object storage, and that holds everybody's files
    errors = {
        str(each["key"]): "A file has no default here: send the id of one of yours with each job."
        for each in new.properties
        if each["type"] in ASSET_TYPES and each.get("default_value") is not None
    }
    if errors:
        raise InvalidInput(errors=errors)


def _mime_type(new: NewWorkflow) -> str:
    found = new.output_mime_type or guess_media_type(f"output.{new.output_extension}") or ""
    if found == TEXT_TYPE:
        if new.output_extension.lstrip(".").lower() != TEXT_EXTENSION:
            raise InvalidInput(errors={"output_extension": f"A text is a .{TEXT_EXTENSION} file."})
    elif not found.startswith(MEDIA_TYPES):
        raise InvalidInput(errors={"output_mime_type": f"The output must be an image, a video, audio or {TEXT_TYPE}."})
    return found


def _slug(name: str | None) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", (name or "").lower()).strip("-")[:40].strip("-")
    return f"{words or 'workflow'}-{secrets.token_hex(6)}"
