"""Workflows that users bring themselves: private to their tenant, held to stricter rules than an operator's."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders
from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.domain.properties import ASSET_TYPES, differing
from comfyrelay.domain.queue.states import WorkflowKind
from comfyrelay.domain.records.catalogue import WaitingForNodes, WorkflowRecord
from comfyrelay.errors import (
    Conflict,
    GraphError,
    GraphNotAllowed,
    InvalidInput,
    MissingOnWorkers,
    NotFound,
    TooLarge,
)
from comfyrelay.media_types import guess_media_type
from comfyrelay.protocol.fields import LONGEST_NAME
from comfyrelay.services.catalogue.graph_import import Incoming, ReadWorkflow, WorkflowImport
from comfyrelay.services.catalogue.reader_threads import Readers
from comfyrelay.services.catalogue.workflows import Workflows
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import Listed, listed
from comfyrelay.settings import ENV_PREFIX
from comfyrelay.store.central import catalogue, library, tenants
from comfyrelay.store.database import Tx

MEDIA_TYPES = ("image/", "video/", "audio/")
# Of what nobody looks into, only this: no browser runs it, whatever is in it.
TEXT_TYPE = "text/plain"
TEXT_EXTENSION = "txt"


# All but its name, which may change while it waits.
_BROUGHT = ("graph", "properties", "output_node_id", "output_extension", "output_mime_type")


@dataclass(frozen=True, kw_only=True, slots=True)
class Replaced:
    """`differences` says, in sentences, which inputs are not what they were."""

    workflow: WorkflowRecord
    read: ReadWorkflow
    differences: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Added:
    """`read` is nothing where it waits for nodes; `is_new` is false where the tenant had it already; `has_fleet`,
    whether some fleet runs it."""

    workflow: WorkflowRecord
    read: ReadWorkflow | None
    is_new: bool
    has_fleet: bool


class OwnWorkflows:
    def __init__(
        self,
        databases: Databases,
        workflows: Workflows,
        incoming: Incoming,
        readers: Readers,
        *,
        policy: GraphPolicy,
        most: int,
    ) -> None:
        """`most` is how many a tenant may have."""
        self._databases = databases
        self._workflows = workflows
        self._incoming = incoming
        self._readers = readers
        self._policy = policy
        self._most = most

    async def add(self, tenant_id: str, new: WorkflowImport) -> Added:
        """A new workflow; or the one that is there, where the tenant has brought the same before, whatever its name.

        What cannot be read for nodes that no worker has is `MissingOnWorkers`, or waits for them."""
        read: ReadWorkflow | None = None
        try:
            read = await self._read(tenant_id, new)
            values = _values(read)
        except MissingOnWorkers as error:
            if not new.wait_for_missing:
                anyway = f"{error.detail} Or add it anyway: then it waits until a worker has them."
                raise MissingOnWorkers(anyway, missing=error.missing) from error
            values = self._unread(new, [each["name"] for each in error.missing])
        slug = _slug(new.name)

        async def same(tx: Tx, graph_path: str) -> WorkflowRecord | None:
            # two who bring the same at once wait for each other
            await tenants.lock(tx, tenant_id)
            found = await library.own_with_graph(tx, tenant_id, graph_path)
            is_described = new.properties is None
            mutant = next((each for each in found if _is_same(each, values, is_described=is_described)), None)
            if mutant is None and await library.count_own(tx, tenant_id) >= self._most:
                raise Conflict(
                    f"You have {self._most} workflows of your own, and may have no more "
                    f"({ENV_PREFIX}MAX_OWN_WORKFLOWS): remove some that you no longer need."
                )
            if mutant is None or read is None or not is_described or await catalogue.effects_of(tx, mutant.id):
                return mutant
            # the choices may be newer than those of the time when it was brought
            return await catalogue.update_workflow(tx, mutant.id, properties=values["properties"])

        made = await self._workflows.create(slug=slug, name=new.name, tenant_id=tenant_id, same=same, **values)
        async with self._databases.central.read() as tx:
            has_fleet = await library.has_fleet(tx, made.id)
        return Added(workflow=made, read=read, is_new=made.slug == slug, has_fleet=has_fleet)

    async def page(self, tenant_id: str, *, before_id: int | None, limit: int) -> Listed[WorkflowRecord]:
        """Newest first."""
        async with self._databases.central.read() as tx:
            found = await library.own_workflows(tx, tenant_id, before_id=before_id, limit=limit + 1)
        return listed(found, lambda each: each.id, limit=limit)

    async def rename(self, tenant_id: str, slug: str, name: str) -> WorkflowRecord:
        await self._own(tenant_id, slug)
        return (await self._workflows.change(slug, {"name": name})).workflow

    async def replace(self, tenant_id: str, slug: str, new: WorkflowImport) -> Replaced:
        """Run another graph under the same slug. Jobs that were submitted before keep theirs."""
        before = await self._own(tenant_id, slug)
        _refuse_script(before)
        read = await self._read(tenant_id, new)
        changes = _values(read)
        if new.name is not None:
            changes["name"] = new.name
        after = (await self._workflows.change(slug, changes, before=before)).workflow
        differences = [] if before.waiting is not None else differing(before.properties, after.properties)
        return Replaced(workflow=after, read=read, differences=differences)

    async def read_waiting(self, before: WorkflowRecord) -> bool:
        """Read what waited for nodes, if they are there now; false when it waits on. `Conflict` when somebody has
        changed it meanwhile."""
        assert before.tenant_id is not None
        try:
            brought = await self._workflows.brought(before)
            read = await self._read(before.tenant_id, WorkflowImport(**brought))
            await self._workflows.change(before.slug, _values(read), before=before)
        except MissingOnWorkers as error:
            waiting = WaitingForNodes(node_types=[each["name"] for each in error.missing])
        except (GraphError, InvalidInput, NotFound, TooLarge) as error:
            waiting = WaitingForNodes(node_types=[], problem=error.detail)
        else:
            return True
        await self._workflows.note_waiting(before, waiting)
        return False

    async def remove(self, tenant_id: str, slug: str) -> None:
        """No job can be made with it any more. Those that were made with it stay as they are."""
        _refuse_script(await self._own(tenant_id, slug))
        await self._workflows.delete(slug)

    async def _own(self, tenant_id: str, slug: str) -> WorkflowRecord:
        async with self._databases.central.read() as tx:
            found = await library.own_workflow(tx, tenant_id, slug)
        if found is None:
            raise NotFound(f"There is no workflow {slug!r} of yours.")
        return found

    def _unread(self, new: WorkflowImport, node_types: Sequence[str]) -> dict[str, Any]:
        """What a workflow is made of that waits for these nodes. What the policy never lets run is not waited for."""
        for each in node_types:
            if len(each) > LONGEST_NAME:
                raise GraphError(f"The workflow contains a name of more than {LONGEST_NAME} characters.")
            if (why := self._policy.why_not(each)) is not None:
                raise GraphNotAllowed(f"A workflow of your own may not have the node {each}: {why}.")
        return {
            "graph": {name: getattr(new, name) for name in _BROUGHT if getattr(new, name) is not None},
            "waiting": WaitingForNodes(node_types=node_types),
            "properties": [],
            "output_node_id": None,
            # nobody knows yet what it makes
            "output_extension": "bin",
            "output_mime_type": "application/octet-stream",
        }

    async def _read(self, tenant_id: str, new: WorkflowImport) -> ReadWorkflow:
        """As it was brought, held to the policy."""
        read = await self._incoming.read(new, tenant_id=tenant_id)
        _check_properties(read.properties)
        if new.properties is None:
            read = await self._readers.run(tenant_id, partial(_without_forbidden, read, self._policy))
        await self._readers.run(tenant_id, lambda: self._policy.check(_with_defaults(read), own=_files(read)))
        return read


def _values(read: ReadWorkflow) -> dict[str, Any]:
    """What a workflow is made of."""
    return {
        "graph": read.graph,
        "properties": read.properties,
        "output_node_id": read.output_node_id,
        "output_extension": read.output_extension,
        "output_mime_type": _mime_type(read),
    }


def _files(read: ReadWorkflow) -> set[str]:
    return {str(each["placeholder"]) for each in read.properties if each["type"] in ASSET_TYPES}


def _with_defaults(read: ReadWorkflow) -> Graph:
    defaults = {str(each["placeholder"]): each.get("default_value") for each in read.properties}
    return replace_placeholders(read.graph, {name: value for name, value in defaults.items() if value is not None})


def _without_forbidden(read: ReadWorkflow, policy: GraphPolicy) -> ReadWorkflow:
    """Without the properties that could name any file: such an input may hold what the graph says, and nothing else."""
    files = _files(read)
    dropped = []
    for each in read.properties:
        try:
            policy.check(_inputs_that_are(each["placeholder"], read.graph), own=files)
        except GraphNotAllowed:
            dropped.append(each)
    keys = {each["key"] for each in dropped}
    return replace(
        read,
        graph=replace_placeholders(read.graph, {each["placeholder"]: each["default_value"] for each in dropped}),
        properties=[each for each in read.properties if each["key"] not in keys],
        roles={role: key for role, key in read.roles.items() if key not in keys},
    )


def _inputs_that_are(placeholder: str, graph: Graph) -> Graph:
    found: Graph = {}
    for id_, node in graph.items():
        inputs = {name: value for name, value in node["inputs"].items() if value == placeholder}
        if inputs:
            found[id_] = {"class_type": node["class_type"], "inputs": inputs}
    return found


def _is_same(known: WorkflowRecord, values: Mapping[str, Any], *, is_described: bool) -> bool:
    """Of what was found out, the same values at the same places: the choices that a worker has are not the user's."""
    if not known.is_active or known.output_node_id != values["output_node_id"]:
        return False
    if known.output_extension != values["output_extension"]:
        return False
    if not is_described:
        return list(known.properties) == list(values["properties"])
    return _defaults(known.properties) == _defaults(values["properties"])


def _defaults(properties: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    # as JSON: to Python `true` is 1
    return [(str(each["placeholder"]), json.dumps(each.get("default_value"))) for each in properties]


def _refuse_script(workflow: WorkflowRecord) -> None:
    if workflow.kind != WorkflowKind.GRAPH:
        raise Conflict("This workflow is the script of the desk's configuration: change [desk.script] instead.")


def _check_properties(properties: Sequence[Mapping[str, Any]]) -> None:
    # the default of a file is a path in object storage, and that holds everybody's files
    errors = {
        str(each["key"]): "A file has no default here: send the id of one of yours with each job."
        for each in properties
        if each["type"] in ASSET_TYPES and each.get("default_value") is not None
    }
    if errors:
        raise InvalidInput(errors=errors)


def _mime_type(read: ReadWorkflow) -> str:
    found = read.output_mime_type or guess_media_type(f"output.{read.output_extension}") or ""
    if found == TEXT_TYPE:
        if read.output_extension.lstrip(".").lower() != TEXT_EXTENSION:
            raise InvalidInput(errors={"output_extension": f"A text is a .{TEXT_EXTENSION} file."})
    elif not found.startswith(MEDIA_TYPES):
        raise InvalidInput(errors={"output_mime_type": f"The output must be an image, a video, audio or {TEXT_TYPE}."})
    return found


def _slug(name: str | None) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", (name or "").lower()).strip("-")[:40].strip("-")
    return f"{words or 'workflow'}-{secrets.token_hex(6)}"
