"""Submit a prompt of a ComfyUI client as a job."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from comfyrelay.comfyui.editor.workflow import editor_file_in
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.nodes import files_in
from comfyrelay.comfyui.graphs.preflight import choices_of, input_specs, is_upload
from comfyrelay.comfyui.graphs.validation import Problem, ValidatedGraph, needed, validate
from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import JobRecord, PromptRecord
from comfyrelay.domain.space import check_space
from comfyrelay.errors import Conflict, NotFound
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.catalogue.node_definitions import NodeDefinitionService
from comfyrelay.services.comfyui_api.input_files import InputFiles
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.graph_jobs import GraphJobs, GraphRequest, asset_reference
from comfyrelay.services.queue.control import JobControl
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import comfyui, ledger

# Separates the keys of this API from the keys of other APIs.
KEY_PREFIX = "comfyui:"


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRequest:
    """A prompt as sent by a client. `targets` are the output nodes to run; `None` means all."""

    user: User
    graph: Graph
    prompt_id: str | None = None
    client_id: str | None = None
    workflow_id: str | None = None
    extra_data: Mapping[str, Any] = field(default_factory=dict)
    targets: Sequence[str] | None = None
    is_first: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmittedPrompt:
    record: PromptRecord
    job: JobRecord
    node_errors: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedPrompt:
    """The reason why no output of a prompt can run, in ComfyUI's format."""

    error: Problem
    node_errors: Mapping[str, Any]


class PromptSubmission:
    def __init__(
        self,
        databases: Databases,
        definitions: NodeDefinitionService,
        graph_jobs: GraphJobs,
        control: JobControl,
        input_files: InputFiles,
        *,
        graphs: Graphs,
        max_space_bytes: int | None,
    ) -> None:
        """`max_space_bytes` limits the space that a tenant's jobs without a price take."""
        self._graphs = graphs
        self._max_space_bytes = max_space_bytes
        self._databases = databases
        self._definitions = definitions
        self._graph_jobs = graph_jobs
        self._control = control
        self._input_files = input_files

    async def submit(self, request: PromptRequest) -> SubmittedPrompt | RefusedPrompt:
        """Submit a prompt. A repeated request with the same `prompt_id` returns the same job."""
        tenant_id = request.user.tenant_id
        if request.prompt_id is not None and (known := await self._known(tenant_id, request.prompt_id)) is not None:
            return known
        # The validation takes much longer than this check.
        await asyncio.to_thread(self._graphs.check_size, request.graph)
        definitions, _ = await self._definitions.load(of_clients=True)
        names = await asyncio.to_thread(_named_files, request.graph, definitions)
        ids = await self._input_files.resolve(tenant_id, set(names.values())) if names else {}
        checked = await asyncio.to_thread(
            _check, request, definitions, {place for place in names if names[place] not in ids}
        )
        if checked.error is not None:
            return RefusedPrompt(error=checked.error, node_errors=checked.node_errors)
        graph = needed(request.graph, checked.outputs)
        sent = {"prompt": request.graph, "extra_data": dict(request.extra_data), "outputs": checked.outputs}
        write = partial(self._write, request, sent, size=len(await asyncio.to_thread(orjson.dumps, sent)))
        submitted = await self._graph_jobs.submit(
            GraphRequest(
                user=request.user,
                graph=_with_assets(graph, {place: ids[name] for place, name in names.items() if name in ids}),
                drawn=editor_file_in(request.extra_data),
                idempotency_key=None if request.prompt_id is None else f"{KEY_PREFIX}{request.prompt_id}",
                is_validated=True,
            ),
            also=write,
        )
        if request.is_first and submitted.is_new:
            # A worker may have leased the job in the meantime.
            with suppress(Conflict, NotFound):
                await self._control.move(tenant_id, submitted.job.id, MoveTo.TOP)
        record = _record(request, sent, submitted.job)
        return SubmittedPrompt(record=record, job=submitted.job, node_errors=checked.node_errors)

    async def _write(
        self, request: PromptRequest, sent: Mapping[str, Any], tx: Tx, job: JobRecord, *, size: int
    ) -> None:
        is_free = job.reserved_tokens == 0
        if is_free:
            check_space(await ledger.take_space(tx, job.tenant_id, size), max_bytes=self._max_space_bytes)
        record = _record(request, sent, job)
        await comfyui.add_prompt(tx, job.tenant_id, record, space_bytes=size if is_free else None)

    async def _known(self, tenant_id: str, prompt_id: str) -> SubmittedPrompt | None:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            job_ids = await comfyui.prompts_by_id(tx, tenant_id, [prompt_id])
            found = await comfyui.prompts_of(tx, tenant_id, list(job_ids.values())) if job_ids else []
        return SubmittedPrompt(record=found[0][0], job=found[0][1]) if found else None


def _record(request: PromptRequest, sent: Mapping[str, Any], job: JobRecord) -> PromptRecord:
    return PromptRecord(
        job_id=job.id,
        prompt_id=request.prompt_id or job.id,
        client_id=request.client_id,
        workflow_id=request.workflow_id,
        sent=sent,
    )


def _check(
    request: PromptRequest, definitions: Mapping[str, Any] | None, missing: Collection[tuple[str, str]]
) -> ValidatedGraph:
    marked = (
        missing
        if definitions is None
        else {place for place in missing if _is_marked(request.graph, place, definitions)}
    )
    return validate(request.graph, definitions, targets=request.targets, missing_files=marked)


def _named_files(graph: Graph, definitions: Mapping[str, Any] | None) -> dict[tuple[str, str], str]:
    """Return the texts of inputs that may name a file, by node and input."""
    if definitions is None:
        return {(file.node_id, file.input): file.name for file in files_in(graph) if file.class_type.startswith("Load")}
    return {
        (node_id, name): value
        for node_id, node in graph.items()
        for name, spec in input_specs(definitions.get(node["class_type"]))
        if isinstance(value := node["inputs"].get(name), str)
        # Nodes of packs may list their files without marking the input as an upload.
        and (is_upload(spec) or ((choices := choices_of(spec)) is not None and value not in choices))
    }


def _is_marked(graph: Graph, place: tuple[str, str], definitions: Mapping[str, Any]) -> bool:
    node_id, wanted = place
    specs = input_specs(definitions.get(graph[node_id]["class_type"]))
    return any(name == wanted and is_upload(spec) for name, spec in specs)


def _with_assets(graph: Graph, ids: Mapping[tuple[str, str], str]) -> Graph:
    found = dict(graph)
    for (node_id, name), id_ in ids.items():
        if node_id in found:
            node = found[node_id]
            found[node_id] = {**node, "inputs": {**node["inputs"], name: asset_reference(id_)}}
    return found
