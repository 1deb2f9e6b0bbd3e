"""Import graphs and workflow files of ComfyUI's editor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.editor.filling import MAX_EDITOR_BYTES, copy_editor_file
from comfyrelay.comfyui.editor.loading import as_graph
from comfyrelay.comfyui.editor.workflow import AppView, is_editor_file
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.domain.capabilities import MAX_NAMES_STORED
from comfyrelay.domain.records.catalogue import WaitingForNodes
from comfyrelay.errors import ComfyError, GraphError, MissingOnWorkers, NotInstalled
from comfyrelay.protocol.user import SameName
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.catalogue.node_definitions import NodeDefinitionService
from comfyrelay.services.catalogue.reader_threads import ReaderThreads
from comfyrelay.services.forms.describe import DescribedWorkflow, describe_graph
from comfyrelay.text import format_bytes

_UNREADABLE = (
    "This workflow was saved by ComfyUI's editor, and only ComfyUI knows the fields of its nodes. Start ComfyUI "
    '(on a server: a worker with ComfyUI) and try again, or save it with "Export (API)" in ComfyUI.'
)
# All administrators count as one tenant.
_ADMINISTRATORS = ""
_INSTALL = 'Install what is missing and try again, or save it with "Export (API)" in a ComfyUI that has it.'
_GUESSED = "The types of the inputs were guessed from their values."
_TOO_LARGE_TO_EMBED = (
    f"This file has more than {format_bytes(MAX_EDITOR_BYTES)}, so outputs contain only the graph that ran, without "
    "the layout of the editor."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowImport:
    """A workflow to import. Missing fields are derived from the graph. With `properties`, the graph is not changed."""

    graph: Mapping[str, Any]
    # The graph of an editor file, with other values.
    converted: Graph | None = None
    name: str | None = None
    properties: Sequence[Mapping[str, Any]] | None = None
    output_node_id: str | None = None
    output_extension: str | None = None
    output_mime_type: str | None = None
    wait_for_missing: bool = False
    # What to do if the tenant has a workflow of this name with another graph.
    same_name: SameName = "allow"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedWorkflow:
    """An imported workflow. `source_graph` is the graph in API format, and `graph` is the same graph with placeholders.
    `roles` are the property keys by role, such as prompt or seed. `remark` is a note for the user."""

    source_graph: Graph
    graph: Graph
    properties: Sequence[Mapping[str, Any]]
    roles: Mapping[str, str]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str | None
    remark: str = ""
    # The editor's file with the same placeholders, if the graph was converted from one.
    editor: Mapping[str, Any] | None = None

    @property
    def positions(self) -> dict[str, list[str]]:
        """Return the node inputs of each property that consist only of its placeholder."""
        keys = {str(fields["placeholder"]): str(fields["key"]) for fields in self.properties}
        found: dict[str, list[str]] = {key: [] for key in keys.values()}
        for node_id, node in self.graph.items():
            for name, value in node["inputs"].items():
                if isinstance(value, str) and value in keys:
                    found[keys[value]].append(f"{node_id}.{name}")
        return found


class GraphImporter:
    def __init__(
        self, definitions: NodeDefinitionService, graphs: Graphs, readers: ReaderThreads, *, node_map: Path
    ) -> None:
        """`node_map` is an optional file that names the packages of missing nodes."""
        self._definitions = definitions
        self._node_map = node_map
        self._graphs = graphs
        self._readers = readers

    async def import_workflow(self, new: WorkflowImport, *, tenant_id: str = _ADMINISTRATORS) -> ImportedWorkflow:
        """Import a workflow. Raises `GraphError`, `TooLarge`, or `MissingOnWorkers` if node definitions are missing."""
        if new.properties is not None:
            graph = await self.as_graph(new.graph, tenant_id=tenant_id)
            editor = await self._readers.run(tenant_id, partial(_copy_editor_file, new.graph))
            return ImportedWorkflow(
                source_graph=graph,
                graph=graph,
                properties=new.properties,
                roles={},
                output_node_id=new.output_node_id,
                output_extension=new.output_extension or "mp4",
                output_mime_type=new.output_mime_type,
                remark=_layout_remark(new.graph, editor),
                editor=editor,
            )
        known, why = await self._definitions.load()
        graph = new.converted or await self._convert(new.graph, known, why, tenant_id=tenant_id)
        described = await self._readers.run(tenant_id, partial(_describe, new.graph, graph, known))
        editor = await self._readers.run(tenant_id, partial(_describe_editor_file, new.graph, known or {}, described))
        is_own_type = new.output_extension is not None or new.output_mime_type is not None
        return ImportedWorkflow(
            source_graph=graph,
            graph=described.graph,
            properties=described.properties,
            roles=described.roles,
            output_node_id=new.output_node_id or described.output_node_id,
            output_extension=new.output_extension or described.output_extension,
            output_mime_type=new.output_mime_type if is_own_type else described.output_mime_type,
            remark=f"{_GUESSED} {why}" if known is None else _layout_remark(new.graph, editor),
            editor=editor,
        )

    async def as_graph(self, value: Mapping[str, Any], *, tenant_id: str = _ADMINISTRATORS) -> Graph:
        """Convert a workflow to the API format."""
        known, why = await self._definitions.load() if is_editor_file(value) else (None, "")
        return await self._convert(value, known, why, tenant_id=tenant_id)

    async def _convert(
        self, value: Mapping[str, Any], known: Mapping[str, Any] | None, why: str, *, tenant_id: str
    ) -> Graph:
        try:
            return await self._readers.run(tenant_id, partial(self._checked_graph, value, known or {}))
        except NotInstalled as error:
            detail = f"{_UNREADABLE} {why}" if known is None else f"{error.detail} {_INSTALL}"
            waiting = WaitingForNodes(node_types=error.node_types[:MAX_NAMES_STORED], packages=error.packages)
            raise MissingOnWorkers(detail, missing=waiting.missing) from error
        except ComfyError as error:
            raise GraphError(error.detail) from error

    def _checked_graph(self, value: Mapping[str, Any], known: Mapping[str, Any]) -> Graph:
        if not is_editor_file(value):
            self._graphs.check_size(dict(value))
        graph = as_graph(value, known, node_map=self._node_map)
        self._graphs.check_size(graph)
        self._graphs.check_texts(graph)
        return graph


def _describe(value: Mapping[str, Any], graph: Graph, known: Mapping[str, Any] | None) -> DescribedWorkflow:
    if not is_editor_file(value):
        return describe_graph(graph, known, app=AppView())
    # Imported here, so that a desk loads the converter only for the first file.
    from comfyrelay.comfyui.editor.app_view import read_app_view  # noqa: PLC0415

    return describe_graph(graph, known, app=read_app_view(value, known or {}))


def _layout_remark(value: Mapping[str, Any], editor: Mapping[str, Any] | None) -> str:
    return _TOO_LARGE_TO_EMBED if editor is None and is_editor_file(value) else ""


def _copy_editor_file(value: Mapping[str, Any]) -> dict[str, Any] | None:
    return copy_editor_file(value) if is_editor_file(value) else None


def _describe_editor_file(
    value: Mapping[str, Any], known: Mapping[str, Any], described: DescribedWorkflow
) -> dict[str, Any] | None:
    copy = _copy_editor_file(value)
    if copy is not None:
        from comfyrelay.comfyui.editor.placeholders import put_placeholders  # noqa: PLC0415

        placeholders = {str(fields["placeholder"]) for fields in described.properties}
        put_placeholders(copy, known, described.graph, placeholders)
    return copy
