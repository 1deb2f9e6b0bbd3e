"""List the versions of a tenant's own workflow, and restore a version."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, is_link, replace_placeholders
from comfyrelay.domain.properties import describe_changes, list_names
from comfyrelay.domain.records.catalogue import WorkflowVersionRecord
from comfyrelay.errors import Conflict, NotFound
from comfyrelay.services.catalogue.graph_import import WorkflowImport
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.catalogue.own_workflows import OwnWorkflows, ReplacedWorkflow
from comfyrelay.services.databases import Databases
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.catalogue import MAX_PRIVATE_VERSIONS

# A prompt may have thousands of characters.
MAX_VALUE_LENGTH = 40
_FIRST = "Added."
_OLDEST = f"The oldest of the {MAX_PRIVATE_VERSIONS} versions that are kept."
_SAME = "Only the choices of its inputs changed."


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnVersion:
    """A version of a workflow. `changes` are sentences about the differences from the version before it."""

    number: int
    created_at: datetime
    is_current: bool
    changes: Sequence[str]


class OwnVersions:
    def __init__(self, databases: Databases, own: OwnWorkflows, graphs: Graphs) -> None:
        self._databases = databases
        self._own = own
        self._graphs = graphs

    async def list(self, tenant_id: str, slug: str) -> list[OwnVersion]:
        """Return the kept versions of a workflow, newest first. A workflow that waits for nodes may have none."""
        workflow = await self._own.find(tenant_id, slug)
        async with self._databases.central.read() as tx:
            records, _ = await catalogue.list_versions(tx, workflow.id, before=None, limit=MAX_PRIVATE_VERSIONS)
        graphs = [await self._graphs.get(record.graph_path) for record in records]
        changes = await asyncio.to_thread(_describe_all, records, graphs)
        return [
            OwnVersion(
                number=record.number,
                created_at=record.created_at,
                is_current=position == 0 and workflow.waiting is None,
                changes=sentences,
            )
            for position, (record, sentences) in enumerate(zip(records, changes, strict=True))
        ]

    async def bring_back(self, tenant_id: str, slug: str, number: int) -> ReplacedWorkflow:
        """Use an earlier version for new jobs again. It is added as the newest version, so this can be undone."""
        workflow = await self._own.find(tenant_id, slug)
        async with self._databases.central.read() as tx:
            wanted = await catalogue.version(tx, workflow.id, number)
            newest = await catalogue.version(tx, workflow.id)
        if wanted is None:
            raise NotFound(f"The workflow {workflow.name!r} has no version {number}. Earlier versions are not kept.")
        if wanted == newest and workflow.waiting is None:
            raise Conflict(f"Version {number} is the current version already.")
        # The properties are given, so the graph is not described again. The policy is checked again.
        return await self._own.replace(
            tenant_id,
            slug,
            WorkflowImport(
                graph=await self._graphs.get(wanted.graph_path),
                properties=wanted.properties,
                output_node_id=wanted.output_node_id,
                output_extension=wanted.output_extension,
                output_mime_type=wanted.output_mime_type,
            ),
        )


def _describe_all(records: Sequence[WorkflowVersionRecord], graphs: Sequence[Graph]) -> list[list[str]]:
    """Compare each version with the version before it. The oldest version is only described."""
    if not records:
        return []
    filled = [_fill_defaults(record, graph) for record, graph in zip(records, graphs, strict=True)]
    compared = [
        describe_graph_changes(old_graph, new_graph) or describe_changes(old.properties, new.properties) or [_SAME]
        for (new, new_graph), (old, old_graph) in pairwise(zip(records, filled, strict=True))
    ]
    return [*compared, [_FIRST if records[-1].number == 1 else _OLDEST]]


def _fill_defaults(record: WorkflowVersionRecord, graph: Graph) -> Graph:
    """Fill in the values that the properties took from the graph. Files have no default value, so their key is used."""
    values = {
        str(fields["placeholder"]): fields["key"] if fields.get("default_value") is None else fields["default_value"]
        for fields in record.properties
    }
    return replace_placeholders(graph, values)


def describe_graph_changes(before: Graph, after: Graph) -> list[str]:
    """Return a sentence for each kind of change. Nodes with the same id and class are the same node."""
    kept = [id_ for id_, node in after.items() if id_ in before and before[id_]["class_type"] == node["class_type"]]
    values: list[str] = []
    links: list[str] = []
    for id_ in kept:
        for name, old, new in _changed_inputs(before[id_]["inputs"], after[id_]["inputs"]):
            place = f"{_name(after, id_)} {name}"
            if is_link(old) or is_link(new):
                links.append(place)
            else:
                values.append(f"{place} ({_shorten(old)}, now {_shorten(new)})")
    changes = {
        "Added nodes": [_name(after, id_) for id_ in after if id_ not in kept],
        "Removed nodes": [_name(before, id_) for id_ in before if id_ not in kept],
        "Changed values": values,
        "Changed links": links,
    }
    return [f"{title}: {list_names(names)}." for title, names in changes.items() if names]


def _changed_inputs(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        # Compare JSON, because `True == 1` in Python.
        if json.dumps(old) != json.dumps(new):
            yield name, old, new


def _name(graph: Graph, id_: str) -> str:
    return f"{graph[id_]['class_type']} ({id_})"


def _shorten(value: Any) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 1]}…"
