"""Jobs that are submitted together with their graph, as clients of ComfyUI do.

The graph is stored as an unlisted workflow, so that its job is queued, paid for, retried and repaired like any other.
Graphs that differ only in values share one workflow. A workflow is removed after its last job, or when its tenant has
too many unlisted workflows and its jobs have ended. Such jobs keep their graph, but cannot be retried.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

from comfyrelay.comfyui.editor.workflow import is_editor_file
from comfyrelay.comfyui.graphs.explain import is_model
from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders
from comfyrelay.comfyui.graphs.validation import ASSET, ValidatedGraph, needed, validate
from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.domain.payloads import StoredFile
from comfyrelay.domain.properties import ASSET_TYPES, PropertyType
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.errors import (
    ComfyRelayError,
    Conflict,
    DatabaseUnavailable,
    IdempotencyConflict,
    InvalidInput,
    InvalidNodes,
    MissingAsset,
    NotFound,
    WorkflowLimitReached,
)
from comfyrelay.services.accounts.own_workflows import OwnWorkflowAccess
from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.catalogue.graph_import import ImportedWorkflow, WorkflowImport
from comfyrelay.services.catalogue.own_workflows import new_slug, workflow_values
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.jobs.submission.requests import ItemRequest, JobRequest
from comfyrelay.services.jobs.submission.submit import JobSubmission, OnWritten, SubmittedJob
from comfyrelay.services.jobs.views.jobs import JobViews
from comfyrelay.store.central import catalogue, library, tenants
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import jobs
from comfyrelay.store.tenant.library import graphs, media
from comfyrelay.text import is_storable

WORKFLOW_NAME = "Comfy API"
PER_PAGE = 200
# Longer than a submission takes from using a workflow to writing its job.
UNUSED_SECONDS = 1800.0
# Shorter for a tenant at the limit, to make room for new graphs.
UNUSED_AT_LIMIT_SECONDS = 60.0
# A workflow that was used this recently is neither removed nor marked as used again.
RECENT_SECONDS = 30.0
MAX_RECENT = 1000
MAX_REMOVED = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphRequest:
    """A graph to run once. `inputs` are values by property, or by node and input (`6.text`). `drawn` is the editor file
    that the graph was exported from, which saved images contain. Without an idempotency key, the job is always new."""

    user: User
    graph: Mapping[str, Any]
    idempotency_key: str | None = None
    drawn: Mapping[str, Any] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    webhook_url: str | None = None
    # The servers that sent the job here.
    via: Sequence[str] = ()
    # Whether the caller has validated the graph against the node definitions.
    is_validated: bool = False


class GraphJobs:
    def __init__(
        self,
        context: ServiceContext,
        services: Catalogue,
        access: OwnWorkflowAccess,
        submission: JobSubmission,
        views: JobViews,
    ) -> None:
        self._databases = context.databases
        self._max_workflows = context.settings.max_own_workflows
        self._catalogue = services
        self._access = access
        self._submission = submission
        self._views = views
        self._users_are_owners = context.hooks.users_are_owners
        # Ids of workflows by tenant and content.
        self._recent: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    async def submit(self, request: GraphRequest, *, also: OnWritten | None = None) -> SubmittedJob:
        """Submit a job, or return the existing job of the idempotency key. Raises `InvalidNodes` if ComfyUI would
        refuse the graph, and `MissingAsset` if the graph names a file that the user does not have. `also` is called in
        the transaction that writes the job."""
        tenant_id = request.user.tenant_id
        await self._access.require(tenant_id)
        key = request.idempotency_key
        if key is not None and (known := await self._by_key(tenant_id, key)) is not None:
            return known
        graph, drawn = request.graph, request.drawn
        if is_editor_file(graph):
            drawn = graph
        graph = await self._catalogue.importer.as_graph(graph, tenant_id=tenant_id)
        by_key, graph = _set_inputs(graph, request.inputs)
        # Inputs by key are part of the graph only after its import, which checks their values.
        if not request.is_validated and not by_key:
            graph = await self._validate(graph)
        refs = _asset_ids(graph)
        files = await self._files(tenant_id, refs, by_key)
        sent = _insert_file_names(graph, refs, files)
        new = WorkflowImport(graph=drawn or sent, converted=sent)
        workflow, imported = await self._add(tenant_id, new, {place: _kind(files[id_]) for place, id_ in refs.items()})
        values, file_ids = _values(imported, by_key, refs)
        primary = next((str(fields["key"]) for fields in imported.properties if fields.get("is_primary_input")), "")
        item = ItemRequest(
            input_file_id=file_ids.pop(primary, None),
            input_payload={**values, **file_ids},
            metadata=request.metadata,
            via=request.via,
        )
        wanted = JobRequest(
            tenant_id=tenant_id,
            user_id=request.user.id,
            idempotency_key=key or str(uuid4()),
            workflow_slug=workflow.slug,
            priority=request.priority,
            webhook_url=request.webhook_url,
            wait_for_missing=None,
            shows_workers=request.user.is_admin,
            item=item,
        )
        try:
            return await self._submission.submit_once(wanted, also=also, workflow=workflow)
        except IdempotencyConflict:
            # A concurrent request has used the key.
            if (known := await self._by_key(tenant_id, wanted.idempotency_key)) is None:
                raise
            return known

    async def _validate(self, graph: Graph) -> Graph:
        """Return the nodes that ComfyUI would run: if some outputs are invalid, it runs only the others."""
        definitions, _ = await self._catalogue.node_definitions.load(of_clients=True)
        checked = await asyncio.to_thread(validate, graph, definitions)
        if _may_be_on_another_worker(checked):
            return graph
        if checked.error is not None:
            raise InvalidNodes(_sentence(checked), node_errors=checked.node_errors)
        return needed(graph, checked.outputs) if checked.node_errors else graph

    async def _by_key(self, tenant_id: str, key: str) -> SubmittedJob | None:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            known = await jobs.by_key(tx, tenant_id, key)
        return None if known is None else SubmittedJob(job=known, is_new=False)

    async def graph_of(self, tenant_id: str, job_id: str) -> Graph:
        """Return the graph of a job with its values. The user's files appear as references to assets. Raises `NotFound`
        for a job of an effect, because users must not see the graphs of effects."""
        job, payload = await self._views.job_with_payload(tenant_id, job_id)
        async with self._databases.central.read() as tx:
            workflow = (await catalogue.workflows_by_id(tx, [job.workflow_id])).get(job.workflow_id)
        if workflow is None or (workflow.tenant_id != tenant_id and not self._users_are_owners):
            raise NotFound("This job ran no workflow of yours.")
        template = await self._catalogue.graphs.get(payload.graph_path)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            ids = await media.ids_at(tx, tenant_id, [asset.path for asset in payload.assets])
        assets = {
            asset.placeholder: asset_reference(ids[asset.path]) if asset.path in ids else asset.name or asset.path
            for asset in payload.assets
        }
        return replace_placeholders(template, {**payload.values, **assets})

    async def remove_unused(self) -> None:
        """Delete the unlisted workflows whose jobs were all deleted."""
        after = 0
        while True:
            async with self._databases.central.read() as tx:
                found = await library.unused_unlisted(tx, unused_seconds=UNUSED_SECONDS, after_id=after, limit=PER_PAGE)
            for workflow in found:
                after = workflow.id
                with suppress(Conflict, DatabaseUnavailable, NotFound):
                    await self._catalogue.workflows.delete(workflow.slug, check=partial(self._refuse_used, workflow))
            if len(found) < PER_PAGE:
                return

    async def _refuse_used(self, before: WorkflowRecord, now: WorkflowRecord) -> None:
        async with (await self._databases.shard_of(_require_tenant(now))).read() as tx:
            has_jobs = await graphs.job_statuses(tx, now, limit=1)
        if has_jobs or now.updated_at != before.updated_at:
            raise Conflict("A job needs this workflow.")

    async def _files(
        self, tenant_id: str, refs: Mapping[str, str], by_key: Mapping[str, Any]
    ) -> Mapping[str, StoredFile]:
        named = {**refs, **{key: id_ for key, value in by_key.items() if (id_ := _asset_id(key, value)) is not None}}
        wanted = {id_ for id_ in named.values() if is_storable(id_)}
        if not wanted and not named:
            return {}
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            files = await media.stored_files(tx, tenant_id, wanted)
        missing = {place: "You have no such asset." for place, id_ in named.items() if id_ not in files}
        if missing:
            raise MissingAsset(f"You have no such asset: {', '.join(sorted(missing))}.", errors=missing)
        return files

    async def _add(
        self, tenant_id: str, new: WorkflowImport, files: Mapping[str, PropertyType]
    ) -> tuple[WorkflowRecord, ImportedWorkflow]:
        imported = await self._import(tenant_id, new, files)
        values = workflow_values(imported)
        key = tenant_id, await asyncio.to_thread(_digest, values)
        if (recent := await self._recently_used(key)) is not None:
            return recent, imported

        async def find_existing(tx: Tx, graph_path: str) -> WorkflowRecord | None:
            # The lock serializes concurrent submissions of the same graph.
            await tenants.lock(tx, tenant_id)
            found = await library.unlisted_with_graph(tx, tenant_id, graph_path)
            existing = next((known for known in found if _has_same_form(known, values)), None)
            if existing is not None:
                # The new time keeps the workflow until the job is written.
                return await catalogue.update_workflow(tx, existing.id)
            if await library.count_unlisted(tx, tenant_id) >= self._max_workflows:
                raise WorkflowLimitReached(
                    f"Your jobs have {self._max_workflows} different graphs, which is the limit "
                    f"({ENV_PREFIX}MAX_OWN_WORKFLOWS): delete jobs that you no longer need."
                )
            return None

        create = partial(
            self._catalogue.workflows.create,
            slug=new_slug("api"),
            name=WORKFLOW_NAME,
            tenant_id=tenant_id,
            is_unlisted=True,
            find_existing=find_existing,
            **values,
        )
        try:
            workflow = await create()
        except WorkflowLimitReached:
            await self._make_room(tenant_id)
            workflow = await create()
        self._recent[key] = workflow.id
        while len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)
        return workflow, imported

    async def _recently_used(self, key: tuple[str, bytes]) -> WorkflowRecord | None:
        """Return the workflow with this content, unless it must be written. Most graphs of a client differ only in
        values."""
        if (workflow_id := self._recent.get(key)) is None:
            return None
        async with self._databases.central.read() as tx:
            return await library.recently_used(tx, workflow_id, used_seconds=RECENT_SECONDS)

    async def _import(self, tenant_id: str, new: WorkflowImport, files: Mapping[str, PropertyType]) -> ImportedWorkflow:
        import_graph = partial(self._catalogue.own_workflows.import_graph, tenant_id)
        change = partial(_add_file_properties, files=files)
        try:
            return await import_graph(new, change)
        except ComfyRelayError:
            if new.converted is None or new.graph is new.converted:
                raise
            # The editor file may be unreadable. The graph can run without it.
            return await import_graph(replace(new, graph=new.converted), change)

    async def _make_room(self, tenant_id: str) -> None:
        """Delete the unlisted workflows of a tenant whose jobs ended longest ago."""
        async with self._databases.central.read() as tx:
            found = await library.oldest_unlisted(
                tx, tenant_id, unused_seconds=UNUSED_AT_LIMIT_SECONDS, limit=self._max_workflows
            )
        removed = 0
        for workflow in found:
            with suppress(Conflict, DatabaseUnavailable, NotFound):
                await self._catalogue.workflows.delete(workflow.slug, check=partial(self._refuse_unfinished, workflow))
                removed += 1
            if removed == MAX_REMOVED:
                return

    async def _refuse_unfinished(self, before: WorkflowRecord, now: WorkflowRecord) -> None:
        async with (await self._databases.shard_of(_require_tenant(now))).read() as tx:
            is_unfinished = await graphs.has_unfinished(tx, now)
        if is_unfinished or now.updated_at != before.updated_at:
            raise Conflict("A job needs this workflow.")


def asset_reference(id_: str) -> dict[str, Any]:
    """Return the value of a graph's input that names a file of the user."""
    return {"__type": ASSET, "info": {"id": id_}}


def _require_tenant(workflow: WorkflowRecord) -> str:
    assert workflow.tenant_id is not None
    return workflow.tenant_id


def _may_be_on_another_worker(checked: ValidatedGraph) -> bool:
    """Whether only nodes or models are missing. Each worker may have different ones, so they are compared later."""
    if checked.error is not None and not checked.node_errors:
        return bool(checked.error["type"] == "missing_node_type")
    problems = [each for node in checked.node_errors.values() for each in node["errors"]]
    return bool(problems) and all(
        each["type"] == "value_not_in_list"
        and is_model(each["extra_info"]["input_name"], each["extra_info"]["received_value"])
        for each in problems
    )


def _sentence(checked: ValidatedGraph) -> str:
    for node_id, node in checked.node_errors.items():
        first = node["errors"][0]
        return f"Node {node_id} ({node['class_type']}): {first['message']}: {first['details']}"
    error = checked.error or {}
    return ": ".join(part for part in (error.get("message"), error.get("details")) if part)


def _set_inputs(graph: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Set the inputs given by node and name. Return the other inputs, and the graph."""
    graph = dict(graph)
    by_key: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, value in inputs.items():
        node_id, dot, input_name = name.partition(".")
        node = graph.get(node_id)
        if not dot:
            by_key[name] = value
        elif not isinstance(node, dict) or not isinstance(node.get("inputs"), dict):
            errors[name] = f"The graph has no node {node_id!r}."
        else:
            graph[node_id] = {**node, "inputs": {**node["inputs"], input_name: value}}
    if errors:
        raise InvalidInput(errors=errors)
    return by_key, graph


def _asset_ids(graph: Mapping[str, Any]) -> dict[str, str]:
    """Return the ids of the assets by place (`node.input`)."""
    return {
        f"{node_id}.{name}": id_
        for node_id, node in graph.items()
        if isinstance(node, dict) and isinstance(node.get("inputs"), dict)
        for name, value in node["inputs"].items()
        if (id_ := _asset_id(f"{node_id}.{name}", value)) is not None
    }


def _asset_id(place: str, value: Any) -> str | None:
    """Return the id in a reference to an asset; `None` for other values."""
    if not isinstance(value, dict) or value.get("__type") != ASSET:
        return None
    info = value.get("info")
    id_ = info.get("id") if isinstance(info, dict) else None
    if not isinstance(id_, str):
        raise MissingAsset(f"{place}: the reference to an asset needs its id in info.id.")
    return id_


def _insert_file_names(
    graph: dict[str, Any], refs: Mapping[str, str], files: Mapping[str, StoredFile]
) -> dict[str, Any]:
    """Return the graph with a file name for each asset, from which the importer recognises inputs for files."""
    named = dict(graph)
    for place, id_ in refs.items():
        node_id, _, name = place.partition(".")
        node = named[node_id]
        # The id distinguishes inputs with different files.
        named[node_id] = {**node, "inputs": {**node["inputs"], name: files[id_].path.rpartition("/")[2]}}
    return named


def _kind(file: StoredFile) -> PropertyType:
    return PropertyType(file.mime_type.partition("/")[0])


def _add_file_properties(imported: ImportedWorkflow, *, files: Mapping[str, PropertyType]) -> ImportedWorkflow:
    """Turn inputs with assets into file properties, if the importer has not recognised them."""
    positions = imported.positions
    known = {
        place
        for fields in imported.properties
        if fields["type"] in ASSET_TYPES
        for place in positions[str(fields["key"])]
    }
    # ComfyUI does not run a node that no output needs.
    new = sorted(place for place in files if place not in known and place.partition(".")[0] in imported.graph)
    if not new:
        return imported
    graph = {node_id: {**node, "inputs": dict(node["inputs"])} for node_id, node in imported.graph.items()}
    added = []
    for number, place in enumerate(new):
        node_id, _, name = place.partition(".")
        placeholder = f"{{{{ASSET_FILE_{number}}}}}"
        graph[node_id]["inputs"][name] = placeholder
        shown = {"required": True, "user_configurable": True, "label": name}
        added.append({"key": f"asset_file_{number}", "type": str(files[place]), "placeholder": placeholder, **shown})
    kept = [
        fields
        for fields in imported.properties
        if not positions[str(fields["key"])] or not set(positions[str(fields["key"])]) <= set(new)
    ]
    return replace(imported, graph=graph, properties=[*kept, *added])


def _values(
    imported: ImportedWorkflow, by_key: Mapping[str, Any], refs: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values and the files of a job by property, from the graph and from `by_key`."""
    positions = imported.positions
    files = {key: refs[place] for key, places in positions.items() for place in places if place in refs}
    files |= {key: id_ for key, value in by_key.items() if (id_ := _asset_id(key, value)) is not None}
    assets = [fields for fields in imported.properties if fields["type"] in ASSET_TYPES]
    for fields in assets:
        if isinstance(by_key.get(str(fields["key"])), str):
            files[str(fields["key"])] = by_key[str(fields["key"])]
    _refuse_server_files(imported, [key for fields in assets if (key := str(fields["key"])) not in files])
    # Default values are included, because seeds in the graph must not be replaced by random seeds.
    values = {
        str(fields["key"]): fields["default_value"]
        for fields in imported.properties
        if fields["type"] not in ASSET_TYPES
        and fields.get("user_configurable")
        and fields.get("default_value") is not None
    }
    return {**values, **{key: value for key, value in by_key.items() if key not in files}}, files


def _refuse_server_files(imported: ImportedWorkflow, keys: Iterable[str]) -> None:
    places = [place for key in keys for place in imported.positions[key]]
    if places:
        problem = "This names a file of a ComfyUI server. Upload the file as an asset and refer to the asset instead."
        details = dict.fromkeys(places, problem)
        shown = ", ".join(f"{place} ({imported.graph[place.partition('.')[0]]['class_type']})" for place in places)
        raise MissingAsset(f"{shown}: {problem}", errors=details)


def _has_same_form(known: WorkflowRecord, values: Mapping[str, Any]) -> bool:
    """Return whether a workflow takes the same values and has the same output. Each job sends all its values."""
    names = ("output_node_id", "output_extension", "output_mime_type")
    is_same_output = [getattr(known, name) for name in names] == [values[name] for name in names]
    return known.is_active and is_same_output and _form(known.properties) == _form(values["properties"])


def _digest(values: Mapping[str, Any]) -> bytes:
    """Return a hash of a workflow's stored values, except default values, because each job sends its own values."""
    content = json.dumps({**values, "properties": _form(values["properties"])}, sort_keys=True)
    return hashlib.sha256(content.encode()).digest()


def _form(properties: Sequence[Mapping[str, Any]]) -> str:
    forms = [{name: value for name, value in fields.items() if name != "default_value"} for fields in properties]
    # Compare JSON, because `True == 1` in Python.
    return json.dumps(forms, sort_keys=True)
