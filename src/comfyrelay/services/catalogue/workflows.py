"""Create, read, change, delete and inspect workflows, for administrators."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from comfyrelay.comfyui.graphs.cycles import check_cycles
from comfyrelay.comfyui.graphs.foreign_files import LONGEST_PATH
from comfyrelay.comfyui.graphs.graph import Graph, check_graph, input_texts, replace_placeholders
from comfyrelay.comfyui.graphs.nodes import files_in, models_in
from comfyrelay.comfyui.graphs.placeholders import placeholders_of
from comfyrelay.domain.capabilities import Fit, Fitness, Requirements, fitness
from comfyrelay.domain.prices.effects import check_offer
from comfyrelay.domain.properties import Property, check_overrides
from comfyrelay.domain.queue.states import Provider, Stage, WorkflowKind, WorkflowProvider
from comfyrelay.domain.records.catalogue import WaitingForNodes, WorkflowRecord, WorkflowVersionRecord
from comfyrelay.domain.records.workers import WorkerReport
from comfyrelay.errors import Conflict, InvalidInput, NotFound
from comfyrelay.services.catalogue.assets import Assets
from comfyrelay.services.catalogue.checks import check_output_node, read_properties
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import ResultPage
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.queue import dispatch_list
from comfyrelay.store.central.workers import worker_list, workers
from comfyrelay.store.database import Tx

# Maximum number of texts of one property that are filled with each of its choices. A model has one or two inputs.
MAX_FILLED_TEXTS = 2000
# Returns the existing workflow for the path of a graph, if any.
FindExisting = Callable[[Tx, str], Awaitable[WorkflowRecord | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowView:
    """A workflow with its graph and warnings that do not prevent it from running."""

    workflow: WorkflowRecord
    graph: Graph
    warnings: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerFitness:
    worker: WorkerReport
    fitness: Fitness


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowInspection:
    """The requirements of a workflow, and a page of its workers."""

    requirements: Requirements
    assigned_workers: int
    workers: ResultPage[WorkerFitness]

    @property
    def text(self) -> str:
        if not self.assigned_workers:
            return "This workflow is not assigned to any worker: map it to a fleet that has workers."
        counts = {fit: sum(worker.fitness.fit is fit for worker in self.workers.items) for fit in Fit}
        return (
            f"{counts[Fit.ABLE]} of {len(self.workers.items)} workers can run this workflow "
            f"({counts[Fit.UNABLE]} cannot, {counts[Fit.UNKNOWN]} unknown)."
        )


class Workflows:
    def __init__(
        self,
        databases: Databases,
        graphs: Graphs,
        assets: Assets,
        *,
        default_fleets: Sequence[tuple[Stage, str]] = (),
    ) -> None:
        """New workflows are mapped to the existing `default_fleets`."""
        self._databases = databases
        self._graphs = graphs
        self._assets = assets
        self._default_fleets = default_fleets

    async def create(
        self,
        *,
        slug: str,
        graph: Graph,
        editor: Mapping[str, Any] | None = None,
        properties: Sequence[Mapping[str, Any]] = (),
        name: str | None = None,
        provider: Provider | WorkflowProvider = Provider.SELF_HOSTED,
        self_hosted_micros_per_second: int | None = None,
        cloud_micros_per_second: int | None = None,
        burst_micros_per_hour: int | None = None,
        output_node_id: str | None = None,
        output_extension: str = "mp4",
        output_mime_type: str = "video/mp4",
        tenant_id: str | None = None,
        added_as: str | None = None,
        kind: WorkflowKind = WorkflowKind.GRAPH,
        is_active: bool = True,
        keep_loaded: bool = False,
        is_unlisted: bool = False,
        waiting: WaitingForNodes | None = None,
        find_existing: FindExisting | None = None,
    ) -> WorkflowRecord:
        """Create a workflow, unless `find_existing` returns one. For a `waiting` workflow, `graph` is the whole
        import."""
        _check_price(provider, cloud_micros_per_second)
        if waiting is not None:
            path = await self._graphs.store_import(graph, tenant_id=tenant_id)
        else:
            await asyncio.to_thread(self._check, graph, properties, output_node_id)
            check_output_node(graph, output_node_id)
            path = await self._graphs.store(graph, tenant_id=tenant_id, properties=properties, editor=editor)
        values = {
            "slug": slug,
            "name": name or slug,
            "tenant_id": tenant_id,
            "added_as": added_as,
            "kind": kind,
            **_providers(provider),
            "self_hosted_micros_per_second": self_hosted_micros_per_second,
            "cloud_micros_per_second": cloud_micros_per_second,
            "burst_micros_per_hour": burst_micros_per_hour,
            "graph_path": path,
            "output_node_id": output_node_id,
            "output_extension": output_extension.lstrip("."),
            "output_mime_type": output_mime_type,
            "is_active": is_active,
            "keep_loaded": keep_loaded,
            "is_unlisted": is_unlisted,
            "waiting": None if waiting is None else asdict(waiting),
        }

        async def work(tx: Tx) -> WorkflowRecord:
            if find_existing is not None and (known := await find_existing(tx, path)) is not None:
                return known
            workflow = await catalogue.create_workflow(tx, **values)
            for stage, fleet_slug in self._default_fleets:
                fleet = await catalogue.fleet(tx, stage=stage, slug=fleet_slug, lock=True)
                if fleet is not None:
                    await catalogue.map_workflow(tx, fleet.id, workflow.id)
                    await workers.assign_fleet(tx, fleet.id)
            return workflow

        async with self._assets.saving() as saved:
            values["properties"] = await saved.save_defaults(properties)
            return await self._databases.central.run(TransactionStep.CATALOGUE, work)

    async def set_active(self, slug: str, *, is_active: bool) -> WorkflowRecord:
        async def work(tx: Tx) -> WorkflowRecord:
            workflow = await catalogue.lock_workflow(tx, slug)
            if workflow is None:
                raise _not_found(slug)
            return await catalogue.update_workflow(tx, workflow.id, is_active=is_active)

        return await self._databases.central.run(TransactionStep.CATALOGUE, work)

    async def page(
        self, *, tenant_id: str | None = None, is_active: bool | None = None, cursor: str | None = None, limit: int
    ) -> ResultPage[WorkflowRecord]:
        """Return workflows of the catalogue, or private workflows of a tenant."""
        async with self._databases.central.read() as tx:
            found, after = await catalogue.list_workflows(
                tx, tenant_id=tenant_id, is_active=is_active, after_slug=cursor, limit=limit
            )
        return ResultPage(items=found, next_cursor=after)

    async def get(self, slug: str) -> WorkflowView:
        """Return a workflow with its graph. The graph of a waiting workflow is not converted yet."""
        workflow = await self._workflow(slug)
        return await asyncio.to_thread(_view, workflow, await self._read_graph(workflow))

    async def change(
        self, slug: str, changes: Mapping[str, Any], *, before: WorkflowRecord | None = None
    ) -> WorkflowView:
        """Change a workflow. Submitted jobs keep their graph. Raises `Conflict` if the workflow differs from
        `before`."""
        before = before or await self._workflow(slug)
        values = dict(changes)
        if "graph" in values:
            graph, editor = values.pop("graph"), values.pop("editor", None)
            output = values.get("output_node_id", before.output_node_id)
            await asyncio.to_thread(self._check, graph, (), output)
            described = values.get("properties", before.properties)
            path = await self._graphs.store(graph, tenant_id=before.tenant_id, properties=described, editor=editor)
            values |= {"graph_path": path, "waiting": None}
        else:
            graph = await self._read_graph(before)
        if before.waiting is None or "graph" in changes:
            check_output_node(graph, values.get("output_node_id", before.output_node_id))
        parsed: Sequence[Property] | None = None
        if "properties" in values:
            parsed = await asyncio.to_thread(read_properties, values["properties"])
        _check_price(
            values.get("provider", before.may_run_at),
            values.get("cloud_micros_per_second", before.cloud_micros_per_second),
        )
        if "provider" in values:
            values |= _providers(values["provider"])
        if "output_extension" in values:
            values["output_extension"] = values["output_extension"].lstrip(".")
        async with self._assets.saving() as saved:
            if "properties" in values:
                values["properties"] = await saved.save_defaults(values["properties"])
            changed = await self._databases.central.run(
                TransactionStep.CATALOGUE, lambda tx: _change(tx, before, values, parsed)
            )
        return await asyncio.to_thread(_view, changed, graph)

    async def load_import(self, workflow: WorkflowRecord) -> dict[str, Any]:
        """Return the stored import of a waiting workflow."""
        return await self._graphs.load_import(workflow.graph_path)

    async def set_waiting(self, before: WorkflowRecord, waiting: WaitingForNodes) -> None:
        """Update the nodes that a workflow waits for. Raises `Conflict` if the workflow differs from `before`."""
        values = {"waiting": asdict(waiting)}
        await self._databases.central.run(TransactionStep.CATALOGUE, lambda tx: _change(tx, before, values))

    async def delete(self, slug: str, *, check: Callable[[WorkflowRecord], Awaitable[None]] | None = None) -> None:
        """Delete a workflow. `check` is called while the workflow is locked, and may raise an error to refuse."""

        async def work(tx: Tx) -> None:
            workflow = await catalogue.lock_workflow(tx, slug, to_delete=True)
            if workflow is None:
                raise _not_found(slug)
            if check is not None:
                await check(workflow)
            if effects := await catalogue.effects_of(tx, workflow.id):
                names = ", ".join(effect.slug for effect in effects)
                raise Conflict(f"Effects use this workflow: {names}. Delete them first, or disable the workflow.")
            if await dispatch_list.has_unfinished(tx, workflow.id):
                raise Conflict("This workflow has unfinished jobs. Wait for them or cancel them first.")
            await catalogue.delete_workflow(tx, workflow.id)

        await self._databases.central.run(TransactionStep.CATALOGUE, work)

    async def versions(self, slug: str, *, cursor: int | None = None, limit: int) -> ResultPage[WorkflowVersionRecord]:
        """Return the versions of a workflow, newest first."""
        workflow = await self._workflow(slug)
        async with self._databases.central.read() as tx:
            found, after = await catalogue.list_versions(tx, workflow.id, before=cursor, limit=limit)
        return ResultPage(items=found, next_cursor=None if after is None else str(after))

    async def version(self, slug: str, number: int) -> tuple[WorkflowVersionRecord, Graph]:
        workflow = await self._workflow(slug)
        async with self._databases.central.read() as tx:
            found = await catalogue.version(tx, workflow.id, number)
        if found is None:
            raise NotFound(f"The workflow {slug!r} has no version {number}.")
        return found, await self._graphs.get(found.graph_path)

    async def inspect(self, slug: str, *, cursor: str | None = None, limit: int) -> WorkflowInspection:
        """Compare the requirements of a workflow with the reports of its workers."""
        workflow = await self._workflow(slug)
        requirements = await self._read_requirements(workflow)
        async with self._databases.central.read() as tx:
            count = await worker_list.assigned_to(tx, workflow.id)
            found, after = await worker_list.reports_of(tx, workflow.id, after_id=cursor, limit=limit)
        # Reports of hundreds of workers take megabytes, so compare them in a thread.
        compared = await asyncio.to_thread(_compare, requirements, found)
        page = ResultPage(items=compared, next_cursor=after)
        return WorkflowInspection(requirements=requirements, assigned_workers=count, workers=page)

    async def find_missing(self, slugs: Sequence[str], capabilities: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return the nodes and models that a worker with these capabilities is missing, by workflow."""
        found = {}
        for slug in slugs:
            workflow = await self._workflow(slug)
            result = fitness(await self._read_requirements(workflow), capabilities)
            found[slug] = [*result.missing_node_types, *result.missing_models]
        return {slug: names for slug, names in found.items() if names}

    def _check(self, graph: Graph, properties: Sequence[Mapping[str, Any]], output_node_id: str | None) -> None:
        self._graphs.check_size(graph)
        check_cycles(check_graph(graph), output_node_id)
        read_properties(properties)

    async def _read_graph(self, workflow: WorkflowRecord) -> Graph:
        if workflow.waiting is None:
            return await self._graphs.get(workflow.graph_path)
        found: Graph = (await self.load_import(workflow))["graph"]
        return found

    async def _read_requirements(self, workflow: WorkflowRecord) -> Requirements:
        if (waiting := workflow.waits_for) is not None:
            return Requirements(node_types=frozenset(waiting.node_types), models=frozenset())
        graph = await self._graphs.get(workflow.graph_path)
        return await asyncio.to_thread(_requirements, graph, workflow.parsed_properties)

    async def _workflow(self, slug: str) -> WorkflowRecord:
        async with self._databases.central.read() as tx:
            workflow = await catalogue.workflow(tx, slug=slug)
        if workflow is None:
            raise _not_found(slug)
        return workflow


def _compare(requirements: Requirements, found: Sequence[WorkerReport]) -> list[WorkerFitness]:
    # Workers with the same image send the same report, so parse it once.
    fits = {report: fitness(requirements, orjson.loads(report)) for report in {worker.report for worker in found}}
    return [WorkerFitness(worker=worker, fitness=fits[worker.report]) for worker in found]


async def _change(
    tx: Tx, before: WorkflowRecord, values: Mapping[str, Any], properties: Sequence[Property] | None = None
) -> WorkflowRecord:
    now = await catalogue.lock_workflow(tx, before.slug)
    if now is None:
        raise _not_found(before.slug)
    if now != before:
        raise Conflict("This workflow was changed in the meantime. Reload it and try again.")
    if properties is not None:
        await _keep_effects_valid(tx, before, properties)
    return await catalogue.update_workflow(tx, before.id, **values) if values else now


async def _keep_effects_valid(tx: Tx, workflow: WorkflowRecord, properties: Sequence[Property]) -> None:
    """Refuse properties that would invalidate the overrides or the price of an effect, or remove its limits."""
    for effect in await catalogue.effects_of(tx, workflow.id):
        try:
            check_overrides(properties, effect.property_overrides)
            check_offer(
                properties,
                credits_cost=effect.credits_cost,
                price_formula=effect.price_formula,
                max_credits_cost=effect.max_credits_cost,
                is_active=effect.is_active,
                is_new_price=False,
            )
        except InvalidInput as error:
            problems = " ".join(f"{key}: {text}" for key, text in error.errors.items())
            raise InvalidInput(
                errors={"properties": f"The effect {effect.slug!r} would become invalid. {problems}"}
            ) from error


def _providers(provider: Provider | WorkflowProvider) -> dict[str, Any]:
    """Return the provider fields of a workflow. Jobs that may run anywhere start on self-hosted workers."""
    may_burst = provider == WorkflowProvider.ANY
    return {"provider": Provider.SELF_HOSTED if may_burst else Provider(provider), "may_burst": may_burst}


def _check_price(provider: Provider | WorkflowProvider, cloud_micros_per_second: int | None) -> None:
    if provider == WorkflowProvider.ANY and cloud_micros_per_second is None:
        raise InvalidInput(
            errors={
                "cloud_micros_per_second": "A workflow that may burst to Comfy Cloud needs a price per second there, "
                "in millionths of your currency."
            }
        )


def _not_found(slug: str) -> NotFound:
    return NotFound(f"There is no workflow {slug!r}.")


def _view(workflow: WorkflowRecord, graph: Graph) -> WorkflowView:
    waiting = workflow.waits_for
    warnings = _warnings(graph, workflow.properties) if waiting is None else [waiting.text]
    return WorkflowView(workflow=workflow, graph=graph, warnings=warnings)


def _warnings(graph: Graph, properties: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = {fields["placeholder"]: fields["key"] for fields in properties}
    wanted = placeholders_of(keys)
    used = wanted.found_in(input_texts(graph))
    unused = [
        f"The placeholder {placeholder!r} of the property {key!r} appears in no node, so its value has no effect."
        for placeholder, key in keys.items()
        if placeholder not in used
    ]
    files = [
        f"Node {file.node_id} ({file.class_type}) names the file {file.name!r}, which a worker may not have: "
        "make it a property."
        for file in files_in(graph)
        if not wanted.found_in([file.name])
    ]
    return [*unused, *files]


def _requirements(graph: Graph, properties: Sequence[Property]) -> Requirements:
    """Return the nodes of a graph, and the models named by the graph, its defaults and the choices that users have."""
    defaults = {prop.placeholder: prop.default_value for prop in properties if prop.default_value is not None}
    models = {model.name for model in models_in(replace_placeholders(graph, defaults))}
    chosen = [prop for prop in properties if prop.choices and prop.user_configurable]
    texts = _short_texts(graph, [prop.placeholder for prop in chosen])
    for prop in chosen:
        for choice in prop.choices:
            # Fill in only the texts with the placeholder, because a property may have many choices.
            inputs = dict(enumerate(texts.get(prop.placeholder, ())[: MAX_FILLED_TEXTS // len(prop.choices)]))
            node = {"class_type": "", "inputs": inputs}
            models.update(
                model.name
                for model in models_in(replace_placeholders({"": node}, {**defaults, prop.placeholder: choice}))
            )
    return Requirements(node_types=frozenset(node["class_type"] for node in graph.values()), models=frozenset(models))


def _short_texts(graph: Graph, placeholders: Sequence[str]) -> dict[str, list[str]]:
    """Return, by placeholder, the texts that contain it and are short enough to name a model."""
    found: dict[str, list[str]] = {}
    wanted = placeholders_of(placeholders)
    values = (value for node in graph.values() for value in node["inputs"].values() if isinstance(value, str))
    for text in dict.fromkeys(values):
        for name in wanted.found_in([text]) if len(text) <= LONGEST_PATH else ():
            found.setdefault(name, []).append(text)
    return found
