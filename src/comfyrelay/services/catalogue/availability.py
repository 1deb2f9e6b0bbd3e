"""Check whether any worker meets the requirements of added graphs and submitted jobs.

Requirements are stored by workflow hash, together with the workers that are missing some of them. A submission with a
known hash therefore needs only one query and no worker reports, and claims skip unsuitable workers. A worker that
registers or reports new capabilities is compared with all stored requirements.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from comfyrelay.comfyui.editor.packages import read_node_map
from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders
from comfyrelay.comfyui.graphs.model_sources import source_of, sources_in
from comfyrelay.comfyui.graphs.nodes import models_in
from comfyrelay.domain.capabilities import (
    MAX_NAMES_IN_REFUSAL,
    MAX_NAMES_STORED,
    Fit,
    Fitness,
    MissingRequirement,
    ReportedCapabilities,
    RequirementKind,
    Requirements,
    UnmetRequirements,
    known_until,
    merge_unmet,
    refusal_text,
)
from comfyrelay.domain.queue.states import Provider, WorkflowKind
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.errors import MissingOnWorkers
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import chunks
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import memory, missing_requirements
from comfyrelay.store.central.queue.missing_requirements import Pair, RawRequirements
from comfyrelay.store.database import Tx

# Inputs with free text, which may look like a model name.
_FREE_TEXT = re.compile(r"(^|_)(text|prompt|value|string|filename|prefix|path|url)(_|$)", re.I)
# The minimum interval between two updates of the time at which a hash was last used.
USED_INTERVAL_SECONDS = 600.0
# Requirements are kept for this long after the last job, which is longer than any submission takes.
UNUSED_SECONDS = 86_400.0
# How long a GPU counts as too small.
MEMORY_SECONDS = 7 * 86_400.0
WAIT_ADVICE = "Install what is missing, or add it anyway: then it waits until a worker has it."
# For clients whose API cannot wait for missing requirements.
CHANGE_ADVICE = "Send a graph that needs only what a worker has, or have an administrator install what is missing."
# Number of hashes per read. The requirements of one hash have at most as many names as a graph has nodes.
HASH_CHUNK = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingRequirements:
    """Requirements that no worker meets. With `shows_names`, the user may see the names of workers. `sources` are the
    author's sources of missing models, and `packages` are the packages of missing nodes, where known."""

    items: Sequence[MissingRequirement]
    workers: int
    shows_names: bool
    sources: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        text = refusal_text(self.items, workers=self.workers, shows_names=self.shows_names)
        models = islice(self.sources.items(), MAX_NAMES_IN_REFUSAL)
        nodes = islice(self.packages.items(), MAX_NAMES_IN_REFUSAL)
        return " ".join(
            [
                text,
                *(f"The author gets {name} from {source}." for name, source in models),
                *(f"{name} is in the package {package}." for name, package in nodes),
            ]
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "kind": item.kind,
                "name": item.name,
                "workers": len(item.workers),
                "on": list(item.workers) if self.shows_names else [],
                "source": (self.packages if item.kind is RequirementKind.NODE else self.sources).get(item.name),
            }
            for item in self.items
        ]


class Availability:
    def __init__(
        self,
        databases: Databases,
        graphs: Graphs,
        *,
        stage: str,
        on_missing: Callable[[], None],
        node_map: Path,
        stage_of: Callable[[int], str] | None = None,
    ) -> None:
        """`stage_of` overrides the requested stage of a workflow's jobs. `node_map` is an optional file that names the
        packages of missing nodes."""
        self._databases = databases
        self._graphs = graphs
        self._stage = stage
        self._on_missing = on_missing
        self._node_map = node_map
        self._stage_of = stage_of

    async def check_workflow(self, workflow: WorkflowRecord, *, shows_names: bool) -> MissingRequirements | None:
        """Check a workflow with its default values. Stores nothing, because the workflow may never get a job."""
        if not has_requirements(workflow):
            return None
        requirements = await default_requirements(workflow, self._graphs)
        stage = self._stage if self._stage_of is None else self._stage_of(workflow.id)
        async with self._databases.central.read() as tx:
            reports = await missing_requirements.reports_for(tx, workflow_id=workflow.id, stage=stage)
        unmet = await asyncio.to_thread(find_unmet, requirements, reports)
        return await self._merge(workflow, unmet if len(unmet) == len(reports) else [], shows_names=shows_names)

    async def require(
        self,
        workflow: WorkflowRecord,
        wanted: Mapping[str, Mapping[str, Any]],
        *,
        stage: str,
        may_wait: bool | None,
        shows_names: bool,
        is_of_effect: bool,
    ) -> None:
        """Raise `MissingOnWorkers` if no worker can run one of the jobs, unless jobs may wait; `None` if the client
        cannot choose that. `wanted` contains the values of one job per workflow hash."""
        missing = await self.find_missing(workflow, wanted, stage=stage, shows_names=shows_names)
        if missing is not None and not may_wait:
            raise MissingOnWorkers(
                f"{missing.text} {CHANGE_ADVICE if may_wait is None else WAIT_ADVICE}",
                missing=missing.to_json(),
                is_of_effect=is_of_effect,
            )

    async def find_missing(
        self, workflow: WorkflowRecord, wanted: Mapping[str, Mapping[str, Any]], *, stage: str, shows_names: bool
    ) -> MissingRequirements | None:
        """Return the missing requirements, if there are eligible workers and none of them can run the jobs. Without
        workers, or with a worker that does not report its capabilities, nothing is known to be missing."""
        if not has_requirements(workflow):
            return None
        id_ = workflow.id
        stage = stage if self._stage_of is None else self._stage_of(id_)
        verdicts = partial(
            missing_requirements.coverage,
            hashes=wanted.keys(),
            workflow_id=id_,
            stage=stage,
            recent_seconds=USED_INTERVAL_SECONDS,
        )
        async with self._databases.central.read() as tx:
            found = await verdicts(tx)
        if new := {digest: values for digest, values in wanted.items() if digest not in found}:
            await self._add_requirements(workflow, new)
        if old := [digest for digest, verdict in found.items() if not verdict.was_used_recently]:
            await self._databases.central.run(
                TransactionStep.AVAILABILITY, lambda tx: missing_requirements.record_used(tx, old)
            )
        if not new and not any(verdict.is_unserved for verdict in found.values()):
            return None
        async with self._databases.central.read() as tx:
            unserved = [digest for digest, verdict in (await verdicts(tx)).items() if verdict.is_unserved]
            unmet = (
                await missing_requirements.missing_for_workflow(tx, unserved, workflow_id=id_, stage=stage)
                if unserved
                else []
            )
        return await self._merge(workflow, unmet, shows_names=shows_names)

    async def _merge(
        self, workflow: WorkflowRecord, unmet: Sequence[UnmetRequirements], *, shows_names: bool
    ) -> MissingRequirements | None:
        if not unmet:
            return None
        self._on_missing()
        items = merge_unmet(unmet)
        known = await asyncio.to_thread(sources_in, await self._graphs.get(workflow.graph_path))
        models = [item.name for item in items if item.kind is RequirementKind.MODEL]
        nodes = [item.name for item in items if item.kind is RequirementKind.NODE]
        packages = await asyncio.to_thread(read_node_map, self._node_map) if nodes else {}
        return MissingRequirements(
            items=items,
            workers=len(unmet),
            shows_names=shows_names,
            sources={name: source for name in models if (source := source_of(known, name)) is not None},
            packages={name: packages[name] for name in nodes if name in packages},
        )

    async def delete_unused(self) -> int:
        """Delete requirements that were unused for a day, and old records of GPUs that were too small."""

        async def work(tx: Tx) -> int:
            old = await memory.delete_old(tx, seconds=MEMORY_SECONDS)
            return old + await missing_requirements.delete_unused(tx, unused_seconds=UNUSED_SECONDS)

        return await self._databases.central.run(TransactionStep.AVAILABILITY, work)

    async def _add_requirements(self, workflow: WorkflowRecord, new: Mapping[str, Mapping[str, Any]]) -> None:
        """Store the requirements of new hashes, and the workers that are missing some of them."""
        graph = await self._graphs.get(workflow.graph_path)
        added = await asyncio.to_thread(
            lambda: {digest: requirements_of(graph, values) for digest, values in new.items()}
        )

        async def work(tx: Tx) -> None:
            await missing_requirements.lock(tx)
            await missing_requirements.write_requirements(tx, added)
            reports = await missing_requirements.all_reports(tx)
            # Reports of hundreds of workers take megabytes, so compare them in a thread.
            await missing_requirements.write_missing(tx, await asyncio.to_thread(_compare_workers, added, reports))

        await self._databases.central.run(TransactionStep.AVAILABILITY, work)


async def default_requirements(workflow: WorkflowRecord, graphs: Graphs) -> Requirements:
    """Return the requirements of a workflow with its default values."""
    values = {
        prop.placeholder: prop.default_value for prop in workflow.parsed_properties if prop.default_value is not None
    }
    graph = await graphs.get(workflow.graph_path)
    return await asyncio.to_thread(requirements_of, graph, values)


def requirements_of(graph: Graph, values: Mapping[str, Any]) -> Requirements:
    """Return the requirements of a graph with these values, which may name models."""
    filled = replace_placeholders(graph, values)
    return Requirements(
        node_types=frozenset(node["class_type"] for node in graph.values()),
        models=frozenset(model.name for model in models_in(filled) if not _FREE_TEXT.search(model.input)),
    )


class ComparedWorker(NamedTuple):
    """The requirements that a worker is missing, and the hashes that it was compared with."""

    hashes: Set[str]
    missing: Mapping[str, Fitness]


async def compare_with_requirements(databases: Databases, capabilities: Mapping[str, Any]) -> ComparedWorker:
    """Compare a worker with all stored requirements, before taking locks. Requirements may take megabytes, so they are
    compared in chunks and in a thread."""
    reported = await asyncio.to_thread(ReportedCapabilities.from_report, capabilities)
    async with databases.central.read() as tx:
        known = sorted(await missing_requirements.known_hashes(tx))
    missing: dict[str, Fitness] = {}
    for chunk in chunks(known, HASH_CHUNK):
        async with databases.central.read() as tx:
            raw = await missing_requirements.requirements_of(tx, chunk)
        missing |= await asyncio.to_thread(_find_missing, raw, reported)
    return ComparedWorker(frozenset(known), missing)


async def write_missing(tx: Tx, worker_id: str, capabilities: Mapping[str, Any], compared: ComparedWorker) -> None:
    """Replace the missing requirements of a worker. The caller holds `missing_requirements.lock`. Hashes that were
    added since the comparison are compared now."""
    await missing_requirements.clear_worker(tx, worker_id)
    known = await missing_requirements.known_hashes(tx)
    found = {digest: fitness for digest, fitness in compared.missing.items() if digest in known}
    if late := known - compared.hashes:
        reported = await asyncio.to_thread(ReportedCapabilities.from_report, capabilities)
        found |= await asyncio.to_thread(_find_missing, await missing_requirements.requirements_of(tx, late), reported)
    await missing_requirements.write_missing(tx, {(worker_id, digest): fitness for digest, fitness in found.items()})


def _find_missing(raw: Iterable[RawRequirements], reported: ReportedCapabilities) -> dict[str, Fitness]:
    found = {}
    for row in raw:
        node_types, models = (frozenset(orjson.loads(text)) for text in (row.node_types, row.models))
        result = reported.fitness(Requirements(node_types=node_types, models=models))
        if result.fit is Fit.UNABLE:
            found[row.workflow_hash] = _shorten(result)
    return found


def _shorten(fitness: Fitness) -> Fitness:
    nodes, models = fitness.missing_node_types[:MAX_NAMES_STORED], fitness.missing_models[:MAX_NAMES_STORED]
    return replace(fitness, missing_node_types=nodes, missing_models=models)


def find_unmet(requirements: Requirements, reports: Iterable[tuple[str, str]]) -> list[UnmetRequirements]:
    """Return the unmet requirements of each worker that is missing some."""
    unmet = []
    for worker, report in reports:
        fitness = ReportedCapabilities.from_report(orjson.loads(report)).fitness(requirements)
        nodes, models = fitness.missing_node_types, fitness.missing_models
        if fitness.fit is Fit.UNABLE:
            unmet.append(
                UnmetRequirements(
                    worker=worker,
                    node_types=nodes[:MAX_NAMES_STORED],
                    models=models[:MAX_NAMES_STORED],
                    unreported=fitness.unreported,
                    until=known_until(((RequirementKind.NODE, nodes), (RequirementKind.MODEL, models))),
                )
            )
    return unmet


def has_requirements(workflow: WorkflowRecord) -> bool:
    """Return whether the workflow is a graph for self-hosted workers, which must have its nodes and models."""
    is_graph = workflow.kind == WorkflowKind.GRAPH and workflow.waiting is None
    return is_graph and workflow.provider == Provider.SELF_HOSTED


def _compare_workers(added: Mapping[str, Requirements], reports: Mapping[str, str]) -> dict[Pair, Fitness]:
    found: dict[Pair, Fitness] = {}
    for worker_id, report in reports.items():
        reported = ReportedCapabilities.from_report(orjson.loads(report))
        compared = {(worker_id, digest): reported.fitness(requirements) for digest, requirements in added.items()}
        found |= {pair: _shorten(fitness) for pair, fitness in compared.items() if fitness.fit is Fit.UNABLE}
    return found
