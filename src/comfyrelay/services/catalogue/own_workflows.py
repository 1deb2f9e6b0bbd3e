"""Workflows that users import. They are private to the tenant and restricted by the graph policy."""

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from comfyrelay.comfyui.editor.filling import fill_editor_file
from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders
from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.domain.properties import ASSET_TYPES, apply_preset, describe_changes, list_names
from comfyrelay.domain.queue.states import JobStatus, WorkflowKind
from comfyrelay.domain.records.catalogue import WaitingForNodes, WorkflowRecord
from comfyrelay.errors import (
    Conflict,
    GraphError,
    GraphNotAllowed,
    InvalidInput,
    MissingOnWorkers,
    NotFound,
    TooLarge,
    WorkflowNameTaken,
)
from comfyrelay.media_types import guess_media_type
from comfyrelay.protocol.fields import MAX_LINE_LENGTH, MAX_NAME_LENGTH
from comfyrelay.services.accounts.own_workflows import OwnWorkflowAccess
from comfyrelay.services.catalogue.graph_import import GraphImporter, ImportedWorkflow, WorkflowImport
from comfyrelay.services.catalogue.reader_threads import ReaderThreads
from comfyrelay.services.catalogue.workflows import Workflows
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import ResultPage, cut_page
from comfyrelay.store.central import catalogue, library, tenants
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.library import graphs, presets

MEDIA_TYPES = ("image/", "video/", "audio/")
# The only type that is not inspected: browsers never execute it.
TEXT_TYPE = "text/plain"
TEXT_EXTENSION = "txt"
PRESETS_PER_PAGE = 200
MAX_PRESETS_NAMED = 5

# Fields that are stored for a pending import. The name is not stored, because it may change in the meantime.
_IMPORT_FIELDS = ("graph", "properties", "output_node_id", "output_extension", "output_mime_type")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplacedWorkflow:
    """A workflow with a new graph. `differences` are sentences about the changed inputs."""

    workflow: WorkflowRecord
    imported: ImportedWorkflow
    differences: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedWorkflow:
    """A workflow of a tenant. `imported` is `None` while the workflow waits for nodes. `is_new` is false if the tenant
    already had the workflow."""

    workflow: WorkflowRecord
    imported: ImportedWorkflow | None
    is_new: bool
    has_fleet: bool


class OwnWorkflows:
    def __init__(
        self,
        databases: Databases,
        workflows: Workflows,
        importer: GraphImporter,
        readers: ReaderThreads,
        access: OwnWorkflowAccess,
        *,
        policy: GraphPolicy,
        max_workflows: int,
    ) -> None:
        """`max_workflows` is the limit per tenant."""
        self._databases = databases
        self._workflows = workflows
        self._importer = importer
        self._readers = readers
        self._access = access
        self._policy = policy
        self._max_workflows = max_workflows

    async def add(self, tenant_id: str, new: WorkflowImport) -> AddedWorkflow:
        """Add a workflow, or return the tenant's existing workflow with the same graph.

        If no worker has the nodes, the workflow becomes pending if it may wait; otherwise raises `MissingOnWorkers`.
        """
        await self._access.require(tenant_id)
        imported: ImportedWorkflow | None = None
        try:
            imported = await self.import_graph(tenant_id, new)
            values = workflow_values(imported)
        except MissingOnWorkers as error:
            if not new.wait_for_missing:
                anyway = f"{error.detail} Or add it anyway: then it waits until a worker has them."
                raise MissingOnWorkers(anyway, missing=error.missing) from error
            values = self._pending_values(new, WaitingForNodes.from_missing(error.missing))
        slug, name = new_slug(new.name), await self._free_name(tenant_id, new)

        async def find_existing(tx: Tx, graph_path: str) -> WorkflowRecord | None:
            # The lock serializes concurrent imports of the same graph.
            await tenants.lock(tx, tenant_id)
            found = await library.own_with_graph(tx, tenant_id, graph_path)
            is_described = new.properties is None
            existing = next((known for known in found if _is_same(known, values, is_described=is_described)), None)
            if existing is None and new.same_name == "refuse":
                await _refuse_same_name(tx, tenant_id, new.name)
            if existing is None and await library.count_own(tx, tenant_id) >= self._max_workflows:
                raise Conflict(
                    f"You already have {self._max_workflows} workflows, which is the limit "
                    f"({ENV_PREFIX}MAX_OWN_WORKFLOWS): remove workflows that you no longer need."
                )
            if existing is None:
                return None
            changes: dict[str, Any] = {}
            if imported is not None and is_described and not await catalogue.effects_of(tx, existing.id):
                # The choices may have changed since the first import.
                changes["properties"] = values["properties"]
            # Even without changes, the new time tells `remove` that the workflow was added again.
            return await catalogue.update_workflow(tx, existing.id, **changes)

        made = await self._workflows.create(
            slug=slug, name=name, added_as=new.name, tenant_id=tenant_id, find_existing=find_existing, **values
        )
        async with self._databases.central.read() as tx:
            has_fleet = await library.has_fleet(tx, made.id)
        return AddedWorkflow(workflow=made, imported=imported, is_new=made.slug == slug, has_fleet=has_fleet)

    async def page(self, tenant_id: str, *, before_id: int | None, limit: int) -> ResultPage[WorkflowRecord]:
        """Return the workflows of a tenant, newest first."""
        async with self._databases.central.read() as tx:
            found, has_more = await library.own_workflows(tx, tenant_id, before_id=before_id, limit=limit)
        return cut_page(found, has_more=has_more)

    async def rename(self, tenant_id: str, slug: str, name: str) -> WorkflowRecord:
        await self.find(tenant_id, slug)
        return (await self._workflows.change(slug, {"name": name})).workflow

    async def replace(self, tenant_id: str, slug: str, new: WorkflowImport) -> ReplacedWorkflow:
        """Replace the graph of a workflow, which keeps its slug, jobs and presets. The earlier graph becomes a version.
        Submitted jobs keep their graph."""
        await self._access.require(tenant_id)
        before = await self.find(tenant_id, slug)
        _refuse_script(before)
        imported = await self.import_graph(tenant_id, new)
        changes = workflow_values(imported)
        if new.name is not None:
            changes["name"] = new.name
        after = (await self._workflows.change(slug, changes, before=before)).workflow
        differences = [] if before.waiting is not None else describe_changes(before.properties, after.properties)
        differences += await self._lost_preset_values(tenant_id, before, after)
        return ReplacedWorkflow(workflow=after, imported=imported, differences=differences)

    async def import_pending(self, before: WorkflowRecord) -> bool:
        """Import a pending workflow. Returns whether workers have its nodes now. Raises `Conflict` if the workflow was
        changed in the meantime."""
        assert before.tenant_id is not None
        try:
            stored = await self._workflows.load_import(before)
            imported = await self.import_graph(before.tenant_id, WorkflowImport(**stored))
            await self._workflows.change(before.slug, workflow_values(imported), before=before)
        except MissingOnWorkers as error:
            waiting = WaitingForNodes.from_missing(error.missing)
        except (GraphError, InvalidInput, NotFound, TooLarge) as error:
            waiting = WaitingForNodes(node_types=[], problem=error.detail)
        else:
            return True
        await self._workflows.set_waiting(before, waiting)
        return False

    async def remove(self, tenant_id: str, slug: str, *, unless_needed: bool = False) -> None:
        """Delete a workflow, but not its jobs.

        With `unless_needed`, raises `Conflict` if the workflow was added again or changed, or if it has several jobs,
        or a job that has not completed and may be retried.
        """
        _refuse_script(await self.find(tenant_id, slug))
        await self._workflows.delete(slug, check=self._refuse_if_needed if unless_needed else None)

    async def _refuse_if_needed(self, workflow: WorkflowRecord) -> None:
        assert workflow.tenant_id is not None
        if workflow.updated_at != workflow.created_at:
            raise Conflict("This workflow was added again or changed since it was created.")
        async with (await self._databases.shard_of(workflow.tenant_id)).read() as tx:
            found = await graphs.job_statuses(tx, workflow, limit=2)
        if any(status != JobStatus.COMPLETED for status in found):
            raise Conflict("This workflow has a job that did not complete, which can be retried.")
        if len(found) > 1:
            raise Conflict("This workflow has other jobs.")

    async def find(self, tenant_id: str, slug: str) -> WorkflowRecord:
        async with self._databases.central.read() as tx:
            found = await library.own_workflow(tx, tenant_id, slug)
        if found is None:
            raise NotFound(f"You have no workflow {slug!r}.")
        return found

    async def _lost_preset_values(self, tenant_id: str, before: WorkflowRecord, after: WorkflowRecord) -> list[str]:
        """Return a sentence for each preset with an input that the workflow no longer has."""
        old, new = before.parsed_properties, after.parsed_properties
        found, before_id, has_more = [], None, True
        shard = await self._databases.shard_of(tenant_id)
        while has_more:
            async with shard.read() as tx:
                page, has_more = await presets.page(tx, tenant_id, before_id=before_id, limit=PRESETS_PER_PAGE)
            for preset in page:
                before_id = preset.id
                known = apply_preset(preset.settings, old).ignored
                lost = [key for key in apply_preset(preset.settings, new).ignored if key not in known]
                if lost:
                    found.append(f"The workflow has lost {list_names(lost)}, which the preset {preset.name!r} sets.")
        return found[:MAX_PRESETS_NAMED]

    async def _free_name(self, tenant_id: str, new: WorkflowImport) -> str | None:
        """Return the name, with a number if the name is taken and `same_name` is `number`."""
        if new.name is None or new.same_name != "number":
            return new.name
        async with self._databases.central.read() as tx:
            taken = await library.own_names(tx, tenant_id)
        return new.name if new.name not in taken else _add_number(new.name, taken)

    def _pending_values(self, new: WorkflowImport, waiting: WaitingForNodes) -> dict[str, Any]:
        """Return the fields of a pending workflow. Raises `GraphNotAllowed` for nodes that the policy forbids."""
        for node_type in waiting.node_types:
            if len(node_type) > MAX_NAME_LENGTH:
                raise GraphError(f"The workflow contains a name of more than {MAX_NAME_LENGTH} characters.")
            if (why := self._policy.why_not(node_type)) is not None:
                raise GraphNotAllowed(f"Your workflows may not use the node {node_type}: {why}.")
        return {
            "graph": {name: getattr(new, name) for name in _IMPORT_FIELDS if getattr(new, name) is not None},
            "waiting": waiting,
            "properties": [],
            "output_node_id": None,
            # The type of the output is unknown until the import.
            "output_extension": "bin",
            "output_mime_type": "application/octet-stream",
        }

    async def import_graph(
        self, tenant_id: str, new: WorkflowImport, change: Callable[[ImportedWorkflow], ImportedWorkflow] | None = None
    ) -> ImportedWorkflow:
        """Import a workflow, change it, and check it against the policy."""
        imported = await self._importer.import_workflow(new, tenant_id=tenant_id)
        imported = change(imported) if change is not None else imported
        _check_properties(imported.properties)
        if new.properties is None:
            imported = await self._readers.run(tenant_id, partial(_drop_forbidden, imported, self._policy))
        await self._readers.run(tenant_id, lambda: self._policy.check(_fill_defaults(imported), own=_files(imported)))
        return imported


async def _refuse_same_name(tx: Tx, tenant_id: str, name: str | None) -> None:
    known = None if name is None else await library.own_named(tx, tenant_id, name)
    if known is not None:
        raise WorkflowNameTaken(
            f"You have a workflow {known.name!r} with another graph. Replace it, which keeps its jobs and presets, or "
            "keep both.",
            workflow_slug=known.slug,
        )


def _add_number(name: str, taken: Collection[str]) -> str:
    suffixes = (f" ({number})" for number in count(2))
    return next(
        found for suffix in suffixes if (found := f"{name[: MAX_LINE_LENGTH - len(suffix)]}{suffix}") not in taken
    )


def workflow_values(imported: ImportedWorkflow) -> dict[str, Any]:
    """Return the fields of a workflow with this graph."""
    return {
        "graph": imported.graph,
        "editor": imported.editor,
        "properties": imported.properties,
        "output_node_id": imported.output_node_id,
        "output_extension": imported.output_extension,
        "output_mime_type": _mime_type(imported),
    }


def _files(imported: ImportedWorkflow) -> set[str]:
    return {str(fields["placeholder"]) for fields in imported.properties if fields["type"] in ASSET_TYPES}


def _fill_defaults(imported: ImportedWorkflow) -> Graph:
    defaults = {str(fields["placeholder"]): fields.get("default_value") for fields in imported.properties}
    return replace_placeholders(imported.graph, {name: value for name, value in defaults.items() if value is not None})


def _drop_forbidden(imported: ImportedWorkflow, policy: GraphPolicy) -> ImportedWorkflow:
    """Drop the properties that could name arbitrary files. Their inputs keep the value of the graph."""
    files = _files(imported)
    inputs = _inputs_by_text(imported.graph)
    dropped = []
    for fields in imported.properties:
        try:
            policy.check(inputs.get(fields["placeholder"], {}), own=files)
        except GraphNotAllowed:
            dropped.append(fields)
    keys = {fields["key"] for fields in dropped}
    values = {fields["placeholder"]: fields["default_value"] for fields in dropped}
    return replace(
        imported,
        graph=replace_placeholders(imported.graph, values),
        editor=None if imported.editor is None else fill_editor_file(imported.editor, values),
        properties=[fields for fields in imported.properties if fields["key"] not in keys],
        roles={role: key for role, key in imported.roles.items() if key not in keys},
    )


def _inputs_by_text(graph: Graph) -> dict[str, Graph]:
    """Return the inputs with each text, as graphs."""
    found: dict[str, Graph] = {}
    for id_, node in graph.items():
        for name, value in node["inputs"].items():
            if isinstance(value, str):
                same = found.setdefault(value, {})
                same.setdefault(id_, {"class_type": node["class_type"], "inputs": {}})["inputs"][name] = value
    return found


def _is_same(known: WorkflowRecord, values: Mapping[str, Any], *, is_described: bool) -> bool:
    """Return whether a workflow has the same inputs and output. Derived properties are compared by their defaults,
    because their choices depend on the workers."""
    output = (known.output_node_id, known.output_extension)
    if not known.is_active or output != (values["output_node_id"], values["output_extension"]):
        return False
    if not is_described:
        return list(known.properties) == list(values["properties"])
    return _defaults(known.properties) == _defaults(values["properties"])


def _defaults(properties: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    # Compare JSON, because `True == 1` in Python.
    return [(str(fields["placeholder"]), json.dumps(fields.get("default_value"))) for fields in properties]


def _refuse_script(workflow: WorkflowRecord) -> None:
    if workflow.kind != WorkflowKind.GRAPH:
        raise Conflict("This workflow is the configured script of the desk. Change [desk.script] instead.")


def _check_properties(properties: Sequence[Mapping[str, Any]]) -> None:
    # The default of a file is a path in object storage, which holds the files of all tenants.
    errors = {
        str(fields["key"]): "A file input cannot have a default. Send a file id with each job."
        for fields in properties
        if fields["type"] in ASSET_TYPES and fields.get("default_value") is not None
    }
    if errors:
        raise InvalidInput(errors=errors)


def _mime_type(imported: ImportedWorkflow) -> str:
    found = imported.output_mime_type or guess_media_type(f"output.{imported.output_extension}") or ""
    if found == TEXT_TYPE:
        if imported.output_extension.lstrip(".").lower() != TEXT_EXTENSION:
            raise InvalidInput(errors={"output_extension": f"Text outputs need the extension .{TEXT_EXTENSION}."})
    elif not found.startswith(MEDIA_TYPES):
        raise InvalidInput(errors={"output_mime_type": f"The output must be an image, a video, audio or {TEXT_TYPE}."})
    return found


def new_slug(name: str | None) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", (name or "").lower()).strip("-")[:40].strip("-")
    return f"{words or 'workflow'}-{secrets.token_hex(6)}"
