"""The catalogue: workflows, the effects made of them, and the fleets that run them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.comfy.graphs.graph import Graph, check_graph
from comfyrelay.domain.properties import Property, check_overrides, check_properties
from comfyrelay.domain.states import Provider, Stage, WorkflowKind
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.services.catalogue.effect_assets import EffectAssets
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import Listed
from comfyrelay.services.steps import Step
from comfyrelay.store.central import catalogue, fleets, workers
from comfyrelay.store.central.catalogue import Effect, Fleet, Workflow
from comfyrelay.store.database import Tx


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectView:
    effect: Effect
    workflow_slug: str


class Catalogue:
    def __init__(
        self,
        databases: Databases,
        graphs: Graphs,
        assets: EffectAssets,
        *,
        default_fleet: tuple[Stage, str] | None = None,
    ) -> None:
        """`default_fleet`, where there is one, runs every new workflow."""
        self._databases = databases
        self._graphs = graphs
        self._assets = assets
        self._default_fleet = default_fleet

    async def create_workflow(
        self,
        *,
        slug: str,
        graph: Graph,
        properties: Sequence[Mapping[str, Any]] = (),
        name: str | None = None,
        provider: Provider = Provider.SELF_HOSTED,
        output_node_id: str | None = None,
        output_extension: str = "mp4",
        output_mime_type: str = "video/mp4",
        tenant_id: str | None = None,
        kind: WorkflowKind = WorkflowKind.GRAPH,
        is_active: bool = True,
    ) -> Workflow:
        read_properties(properties)
        check_output_node(check_graph(graph), output_node_id)
        path = await self._graphs.store(graph)
        values = {
            "slug": slug,
            "name": name or slug,
            "tenant_id": tenant_id,
            "kind": kind,
            "provider": provider,
            "graph_path": path,
            "properties": await self._assets.with_hashes(properties),
            "output_node_id": output_node_id,
            "output_extension": output_extension.lstrip("."),
            "output_mime_type": output_mime_type,
            "is_active": is_active,
        }

        async def work(tx: Tx) -> Workflow:
            workflow = await catalogue.create_workflow(tx, **values)
            if self._default_fleet is not None:
                stage, fleet_slug = self._default_fleet
                fleet = await catalogue.fleet(tx, stage=stage, slug=fleet_slug, lock=True)
                if fleet is not None:
                    await catalogue.map_also(tx, fleet.id, workflow.id)
                    await workers.assign_fleet(tx, fleet.id)
            return workflow

        return await self._databases.central.run(Step.CATALOGUE, work)

    async def set_workflow_active(self, slug: str, *, is_active: bool) -> Workflow:
        async def work(tx: Tx) -> Workflow:
            workflow = await catalogue.lock_workflow(tx, slug)
            if workflow is None:
                raise NotFound(f"There is no workflow {slug!r}.")
            return await catalogue.update_workflow(tx, workflow.id, is_active=is_active)

        return await self._databases.central.run(Step.CATALOGUE, work)

    async def create_effect(
        self,
        *,
        slug: str,
        workflow_slug: str,
        credits_cost: int,
        property_overrides: Mapping[str, Any] | None = None,
        name: str | None = None,
        is_active: bool = True,
    ) -> Effect:
        if credits_cost < 0:
            raise InvalidInput(errors={"credits_cost": "This must not be negative."})
        overrides = dict(property_overrides or {})
        hashes = await self._hashes_for(workflow_slug, overrides)

        async def work(tx: Tx) -> Effect:
            workflow = await _to_publish(tx, workflow_slug)
            _check_overrides(workflow, overrides)
            return await catalogue.create_effect(
                tx,
                slug=slug,
                name=name or slug,
                workflow_id=workflow.id,
                property_overrides=overrides,
                asset_hashes=hashes,
                credits_cost=credits_cost,
                is_active=is_active,
            )

        return await self._databases.central.run(Step.CATALOGUE, work)

    async def change_effect(self, slug: str, changes: Mapping[str, Any]) -> EffectView:
        """Change an effect; jobs that were submitted before keep what they were promised."""
        more: dict[str, Any] = {}
        if changes.keys() & {"workflow_slug", "property_overrides"}:
            before = await self.effect(slug)
            # by path, so they are right even if somebody changes the effect at the same moment
            more["asset_hashes"] = await self._hashes_for(
                changes.get("workflow_slug", before.workflow_slug),
                changes.get("property_overrides", before.effect.property_overrides),
            )

        async def work(tx: Tx) -> EffectView:
            effect = await catalogue.lock_effect(tx, slug)
            if effect is None:
                raise NotFound(f"There is no effect {slug!r}.")
            values = {**changes, **more}
            if "workflow_slug" in values:
                workflow = await _to_publish(tx, values.pop("workflow_slug"))
                values["workflow_id"] = workflow.id
            else:
                workflow = _of_effect(effect, await catalogue.workflow_to_use(tx, id_=effect.workflow_id))
            _check_overrides(workflow, values.get("property_overrides", effect.property_overrides))
            changed = await catalogue.update_effect(tx, effect.id, **values) if values else effect
            return EffectView(effect=changed, workflow_slug=workflow.slug)

        return await self._databases.central.run(Step.CATALOGUE, work)

    async def _hashes_for(self, workflow_slug: str, overrides: Mapping[str, Any]) -> dict[str, str]:
        async with self._databases.central.read() as tx:
            workflow = await catalogue.workflow(tx, slug=workflow_slug)
        if workflow is None:
            return {}
        # before a path is looked at, it must be a value that the property takes
        _check_overrides(workflow, overrides)
        return await self._assets.of_overrides(workflow.properties, overrides)

    async def delete_effect(self, slug: str) -> None:
        """Nobody can pick it any more; its jobs go on."""
        if not await self._databases.central.run(Step.CATALOGUE, lambda tx: catalogue.delete_effect(tx, slug)):
            raise NotFound(f"There is no effect {slug!r}.")

    async def effect(self, slug: str) -> EffectView:
        async with self._databases.central.read() as tx:
            effect = await catalogue.effect(tx, slug=slug)
            if effect is None:
                raise NotFound(f"There is no effect {slug!r}.")
            workflow = _of_effect(effect, await catalogue.workflow(tx, id_=effect.workflow_id))
        return EffectView(effect=effect, workflow_slug=workflow.slug)

    async def effects(
        self, *, workflow_slug: str | None = None, is_active: bool | None = None, cursor: str | None = None, limit: int
    ) -> Listed[EffectView]:
        async with self._databases.central.read() as tx:
            workflow_id = None
            if workflow_slug is not None:
                workflow = await catalogue.workflow(tx, slug=workflow_slug)
                if workflow is None:
                    return Listed(items=[])
                workflow_id = workflow.id
            found, after = await catalogue.list_effects(
                tx, workflow_id=workflow_id, is_active=is_active, after_slug=cursor, limit=limit
            )
            slugs = await catalogue.workflow_slugs(tx, {each.workflow_id for each in found})
        views = [EffectView(effect=each, workflow_slug=slugs[each.workflow_id]) for each in found]
        return Listed(items=views, next_cursor=after)

    async def create_fleet(
        self,
        *,
        slug: str,
        stage: Stage = Stage.PRODUCTION,
        name: str | None = None,
        max_workers: int | None = None,
        workflow_slugs: Sequence[str] = (),
    ) -> Fleet:
        async def work(tx: Tx) -> Fleet:
            fleet = await catalogue.create_fleet(tx, slug=slug, stage=stage, name=name or slug, max_workers=max_workers)
            await self._map(tx, fleet, workflow_slugs)
            return fleet

        return await self._databases.central.run(Step.CATALOGUE, work)

    async def map_workflows(self, *, stage: Stage, slug: str, workflow_slugs: Sequence[str]) -> None:
        """Change what a fleet runs; its workers' assignments follow at once."""

        async def work(tx: Tx) -> None:
            # Locked, so that a worker that registers this moment gets either all of the old mapping or all of the new.
            await self._map(tx, await _locked_fleet(tx, stage, slug), workflow_slugs)

        await self._databases.central.run(Step.CATALOGUE, work)

    async def change_fleet(self, *, stage: Stage, slug: str, changes: Mapping[str, Any]) -> Fleet:
        async def work(tx: Tx) -> Fleet:
            fleet = await _locked_fleet(tx, stage, slug)
            return await fleets.change(tx, fleet.id, **changes) if changes else fleet

        return await self._databases.central.run(Step.CATALOGUE, work)

    async def delete_fleet(self, *, stage: Stage, slug: str) -> None:
        async def work(tx: Tx) -> None:
            await fleets.remove(tx, await _locked_fleet(tx, stage, slug))

        await self._databases.central.run(Step.CATALOGUE, work)

    async def _map(self, tx: Tx, fleet: Fleet, workflow_slugs: Sequence[str]) -> None:
        found = {slug: await catalogue.workflow_to_use(tx, slug=slug) for slug in dict.fromkeys(workflow_slugs)}
        unknown = {slug: f"There is no workflow {slug!r}." for slug, each in found.items() if each is None}
        if unknown:
            raise InvalidInput(errors={"workflow_slugs": " ".join(unknown.values())})
        await catalogue.map_workflows(tx, fleet.id, [each.id for each in found.values() if each is not None])
        await workers.assign_fleet(tx, fleet.id)


def read_properties(properties: Sequence[Mapping[str, Any]]) -> list[Property]:
    """A workflow's properties, checked each for itself and as a whole."""
    found = []
    for number, fields in enumerate(properties):
        try:
            found.append(Property.from_json(fields))
        except InvalidInput as error:
            raise _under(f"properties.{number}", error) from error
    try:
        check_properties(found)
    except InvalidInput as error:
        raise _under("properties", error) from error
    return found


def check_output_node(graph: Graph, output_node_id: str | None) -> None:
    if output_node_id is not None and output_node_id not in graph:
        raise InvalidInput(errors={"output_node_id": f"The graph has no node {output_node_id!r}."})


def _check_overrides(workflow: Workflow, overrides: Mapping[str, Any]) -> None:
    try:
        check_overrides([Property.from_json(each) for each in workflow.properties], overrides)
    except InvalidInput as error:
        raise _under("property_overrides", error) from error


def _under(field: str, error: InvalidInput) -> InvalidInput:
    return InvalidInput(errors={f"{field}.{key}": text for key, text in error.errors.items()})


async def _to_publish(tx: Tx, slug: str) -> Workflow:
    """A workflow to make an effect of. One that is private to a tenant is nobody else's to run."""
    workflow = await catalogue.workflow_to_use(tx, slug=slug)
    if workflow is None or workflow.tenant_id is not None:
        raise InvalidInput(errors={"workflow_slug": f"There is no workflow {slug!r}."})
    return workflow


def _of_effect(effect: Effect, workflow: Workflow | None) -> Workflow:
    # a workflow cannot be deleted while effects use it
    assert workflow is not None, f"the workflow of the effect {effect.slug!r} is gone"
    return workflow


async def _locked_fleet(tx: Tx, stage: Stage, slug: str) -> Fleet:
    fleet = await catalogue.fleet(tx, stage=stage, slug=slug, lock=True)
    if fleet is None:
        raise NotFound(f"There is no {stage} fleet {slug!r}.")
    return fleet
