"""Whether any worker has what a job needs: asked when a graph is added and when it is submitted.

What jobs need is kept by their workflow hash, and with it which workers are known to lack something of it. So a
submission of a known hash is one query that reads no worker's report, a claim knows what to leave alone, and a worker
that comes, or gets what it lacked, is held against everything that waits.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson

from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders
from comfyrelay.comfyui.graphs.nodes import models_in
from comfyrelay.domain.capabilities import (
    MOST_NAMES_KEPT,
    Equipment,
    Fit,
    Fitness,
    Gap,
    Lacking,
    NeedKind,
    Needs,
    known_until,
    refusal,
)
from comfyrelay.domain.capabilities import gaps as gaps_between
from comfyrelay.domain.properties import Property
from comfyrelay.domain.queue.states import Provider, WorkflowKind
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.errors import MissingOnWorkers
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import memory
from comfyrelay.store.central.queue import missing_requirements as gaps
from comfyrelay.store.database import Tx

# Inputs that people type into: what they say may end like a model's name, and no server lists it.
_TYPED = re.compile(r"(^|_)(text|prompt|value|string|filename|prefix|path|url)(_|$)", re.I)
# That a hash is used is written down this often at most,
LATELY_SECONDS = 600.0
# and its needs are kept for so long after its last job: longer than a submission is ever under way.
UNUSED_SECONDS = 86_400.0
# That a GPU is too small is believed for a week.
MEMORY_SECONDS = 7 * 86_400.0
# Each has at most as many names as a graph has nodes.
HASHES_AT_ONCE = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingRequirements:
    """What keeps every worker from a job. `shows_names`: whether whoever asks may know the workers by name."""

    gaps: Sequence[Gap]
    workers: int
    shows_names: bool

    @property
    def text(self) -> str:
        return refusal(self.gaps, workers=self.workers, shows_names=self.shows_names)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "kind": each.kind,
                "name": each.name,
                "workers": len(each.workers),
                "on": list(each.workers) if self.shows_names else [],
            }
            for each in self.gaps
        ]


class Availability:
    def __init__(
        self,
        databases: Databases,
        graphs: Graphs,
        *,
        stage: str,
        on_missing: Callable[[], None],
        stage_of: Callable[[int], str] | None = None,
    ) -> None:
        """`stage_of` decides at which stage the jobs of a workflow run, whatever was asked for."""
        self._databases = databases
        self._graphs = graphs
        self._stage = stage
        self._on_missing = on_missing
        self._stage_of = stage_of

    async def of_workflow(self, workflow: WorkflowRecord, *, shows_names: bool) -> MissingRequirements | None:
        """What a workflow lacks that has just been added, with its values as they are. Nothing is noted: there may
        never be a job of it."""
        if not is_judged(workflow):
            return None
        needs = await usual_needs(workflow, self._graphs)
        stage = self._stage if self._stage_of is None else self._stage_of(workflow.id)
        async with self._databases.central.read() as tx:
            reports = await gaps.reports_for(tx, workflow_id=workflow.id, stage=stage)
        lacking = await asyncio.to_thread(lacking_of, needs, reports)
        if not lacking or len(lacking) < len(reports):
            return None
        self._on_missing()
        return MissingRequirements(gaps=gaps_between(lacking), workers=len(lacking), shows_names=shows_names)

    async def require(
        self,
        workflow: WorkflowRecord,
        wanted: Mapping[str, Mapping[str, Any]],
        *,
        stage: str,
        waits: bool,
        shows_names: bool,
    ) -> None:
        """`wanted` has, by workflow hash, the values of one job. `MissingOnWorkers` when no worker can run one of them
        and it may not wait."""
        missing = await self.missing(workflow, wanted, stage=stage, shows_names=shows_names)
        if missing is not None and not waits:
            raise MissingOnWorkers(
                f"{missing.text} Install what is missing, or add it anyway: then it waits until a worker has it.",
                missing=missing.to_json(),
            )

    async def missing(
        self, workflow: WorkflowRecord, wanted: Mapping[str, Mapping[str, Any]], *, stage: str, shows_names: bool
    ) -> MissingRequirements | None:
        """What is missing where workers could be given the jobs and none of them has everything. With nobody there to
        ask, or somebody who does not say, nothing is known to be missing."""
        if not is_judged(workflow):
            return None
        id_ = workflow.id
        stage = stage if self._stage_of is None else self._stage_of(id_)
        async with self._databases.central.read() as tx:
            found = await gaps.verdicts(tx, wanted.keys(), workflow_id=id_, stage=stage, lately_seconds=LATELY_SECONDS)
        if new := {digest: values for digest, values in wanted.items() if digest not in found}:
            await self._learn(workflow, new)
        if old := [digest for digest, verdict in found.items() if not verdict.was_used_lately]:
            await self._databases.central.run(TransactionStep.AVAILABILITY, lambda tx: gaps.note_used(tx, old))
        if not new and not any(each.is_unserved for each in found.values()):
            return None
        async with self._databases.central.read() as tx:
            found = await gaps.verdicts(tx, wanted.keys(), workflow_id=id_, stage=stage, lately_seconds=LATELY_SECONDS)
            unserved = [digest for digest, each in found.items() if each.is_unserved]
            lacking = await gaps.of_workflow(tx, unserved, workflow_id=id_, stage=stage) if unserved else []
        if not lacking:
            return None
        self._on_missing()
        return MissingRequirements(gaps=gaps_between(lacking), workers=len(lacking), shows_names=shows_names)

    async def forget_unused(self) -> int:
        """Forget what no job has needed for a day, and which GPUs were too small long ago."""

        async def work(tx: Tx) -> int:
            old = await memory.forget_old(tx, seconds=MEMORY_SECONDS)
            return old + await gaps.forget_unused(tx, unused_seconds=UNUSED_SECONDS)

        return await self._databases.central.run(TransactionStep.AVAILABILITY, work)

    async def _learn(self, workflow: WorkflowRecord, new: Mapping[str, Mapping[str, Any]]) -> None:
        """Note what jobs of these hashes need, and who of all workers lacks what of it."""
        graph = await self._graphs.get(workflow.graph_path)
        needed = await asyncio.to_thread(lambda: {digest: needs_of(graph, values) for digest, values in new.items()})

        async def work(tx: Tx) -> None:
            await gaps.lock(tx)
            await gaps.write_needs(tx, needed)
            reports = await gaps.reports(tx)
            # in a thread: hundreds of workers with thousands of nodes each are megabytes
            await gaps.write(tx, await asyncio.to_thread(_gaps_of_all, needed, reports))

        await self._databases.central.run(TransactionStep.AVAILABILITY, work)


async def usual_needs(workflow: WorkflowRecord, graphs: Graphs) -> Needs:
    """What a workflow needs with its values as they are."""
    properties = [Property.from_json(each) for each in workflow.properties]
    values = {each.placeholder: each.default_value for each in properties if each.default_value is not None}
    graph = await graphs.get(workflow.graph_path)
    return await asyncio.to_thread(needs_of, graph, values)


def needs_of(graph: Graph, values: Mapping[str, Any]) -> Needs:
    """What a graph needs with these values in it: a choice of a model is one of them."""
    filled = replace_placeholders(graph, values)
    return Needs(
        node_types=frozenset(node["class_type"] for node in graph.values()),
        models=frozenset(model.name for model in models_in(filled) if not _TYPED.search(model.input)),
    )


class WorkerFit(NamedTuple):
    """What a worker lacks, held against all needs that were known a moment ago."""

    against: Set[str]
    lacking: Mapping[str, Fitness]


async def held_against_needs(databases: Databases, capabilities: Mapping[str, Any]) -> WorkerFit:
    """Before anything is locked, in a thread, and part by part: there may be megabytes of it."""
    equipment = await asyncio.to_thread(Equipment.of, capabilities)
    async with databases.central.read() as tx:
        known = sorted(await gaps.hashes(tx))
    lacking: dict[str, Fitness] = {}
    for first in range(0, len(known), HASHES_AT_ONCE):
        async with databases.central.read() as tx:
            raw = await gaps.needs_of(tx, known[first : first + HASHES_AT_ONCE])
        lacking |= await asyncio.to_thread(_held, raw, equipment)
    return WorkerFit(frozenset(known), lacking)


async def note_gaps(tx: Tx, worker_id: str, capabilities: Mapping[str, Any], held: WorkerFit) -> None:
    """Note anew what a worker lacks, under the lock of `gaps.lock`; what jobs have come to need since is judged now."""
    await gaps.clear_worker(tx, worker_id)
    known = await gaps.hashes(tx)
    found = {digest: each for digest, each in held.lacking.items() if digest in known}
    if late := known - held.against:
        equipment = await asyncio.to_thread(Equipment.of, capabilities)
        found |= await asyncio.to_thread(_held, await gaps.needs_of(tx, late), equipment)
    await gaps.write(tx, {(worker_id, digest): each for digest, each in found.items()})


def _held(raw: Iterable[gaps.RawNeeds], equipment: Equipment) -> dict[str, Fitness]:
    found = {}
    for row in raw:
        node_types, models = (frozenset(orjson.loads(text)) for text in (row.node_types, row.models))
        judged = equipment.fitness(Needs(node_types=node_types, models=models))
        if judged.fit is Fit.LACKING:
            found[row.workflow_hash] = _cut(judged)
    return found


def _cut(each: Fitness) -> Fitness:
    """With no more names than are written down."""
    nodes, models = each.missing_node_types[:MOST_NAMES_KEPT], each.missing_models[:MOST_NAMES_KEPT]
    return replace(each, missing_node_types=nodes, missing_models=models)


def lacking_of(needs: Needs, reports: Iterable[tuple[str, str]]) -> list[Lacking]:
    """What each worker lacks that lacks something."""
    judged = [(name, Equipment.of(orjson.loads(report)).fitness(needs)) for name, report in reports]
    return [
        Lacking(
            worker=name,
            node_types=each.missing_node_types[:MOST_NAMES_KEPT],
            models=each.missing_models[:MOST_NAMES_KEPT],
            silent=each.silent,
            until=known_until(((NeedKind.NODE, each.missing_node_types), (NeedKind.MODEL, each.missing_models))),
        )
        for name, each in judged
        if each.fit is Fit.LACKING
    ]


def is_judged(workflow: WorkflowRecord) -> bool:
    """Whether it has a graph whose nodes and models workers of ours must have."""
    is_graph = workflow.kind == WorkflowKind.GRAPH and workflow.waiting is None
    return is_graph and workflow.provider == Provider.SELF_HOSTED


def _gaps_of_all(needed: Mapping[str, Needs], reports: Mapping[str, str]) -> dict[gaps.Pair, Fitness]:
    found: dict[gaps.Pair, Fitness] = {}
    for worker_id, report in reports.items():
        found |= _gaps_of_one(needed, worker_id, Equipment.of(orjson.loads(report)))
    return found


def _gaps_of_one(needed: Mapping[str, Needs], worker_id: str, equipment: Equipment) -> dict[gaps.Pair, Fitness]:
    judged = {(worker_id, digest): equipment.fitness(needs) for digest, needs in needed.items()}
    return {pair: _cut(each) for pair, each in judged.items() if each.fit is Fit.LACKING}
