"""The catalogue: workflows, the effects made of them, and the fleets that run them."""

from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.comfy.graph import Graph
from comfyrelay.domain.properties import Property, check_overrides, check_properties
from comfyrelay.domain.states import Provider, Stage, WorkflowKind
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.graphs import Graphs
from comfyrelay.services.steps import Step
from comfyrelay.store import catalogue, workers
from comfyrelay.store.catalogue import Effect, Fleet, Workflow
from comfyrelay.store.database import Tx


class Catalogue:
    def __init__(self, databases: Databases, graphs: Graphs) -> None:
        self._databases = databases
        self._graphs = graphs

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
    ) -> Workflow:
        check_properties([Property.from_json(each) for each in properties])
        if output_node_id is not None and output_node_id not in graph:
            raise InvalidInput(errors={"output_node_id": f"The graph has no node {output_node_id!r}."})
        path = await self._graphs.store(graph)
        values = {
            "slug": slug,
            "name": name or slug,
            "tenant_id": tenant_id,
            "kind": WorkflowKind.GRAPH,
            "provider": provider,
            "graph_path": path,
            "properties": [dict(each) for each in properties],
            "output_node_id": output_node_id,
            "output_extension": output_extension.lstrip("."),
            "output_mime_type": output_mime_type,
        }
        return await self._databases.central.run(Step.CATALOGUE, lambda tx: catalogue.create_workflow(tx, **values))

    async def set_workflow_active(self, slug: str, *, is_active: bool) -> Workflow:
        async def work(tx: Tx) -> Workflow:
            workflow = await self._workflow(tx, slug)
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
    ) -> Effect:
        if credits_cost < 0:
            raise InvalidInput(errors={"credits_cost": "This must not be negative."})

        async def work(tx: Tx) -> Effect:
            workflow = await self._workflow(tx, workflow_slug)
            overrides = dict(property_overrides or {})
            check_overrides([Property.from_json(each) for each in workflow.properties], overrides)
            return await catalogue.create_effect(
                tx,
                slug=slug,
                name=name or slug,
                workflow_id=workflow.id,
                property_overrides=overrides,
                credits_cost=credits_cost,
            )

        return await self._databases.central.run(Step.CATALOGUE, work)

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
            fleet = await catalogue.fleet(tx, stage=stage, slug=slug)
            if fleet is None:
                raise NotFound(f"There is no {stage} fleet {slug!r}.")
            await self._map(tx, fleet, workflow_slugs)

        await self._databases.central.run(Step.CATALOGUE, work)

    async def _map(self, tx: Tx, fleet: Fleet, workflow_slugs: Sequence[str]) -> None:
        found = [await self._workflow(tx, slug) for slug in workflow_slugs]
        await catalogue.map_workflows(tx, fleet.id, [each.id for each in found])
        for worker in await workers.of_fleet(tx, fleet.id):
            await workers.assign(tx, worker)

    async def _workflow(self, tx: Tx, slug: str) -> Workflow:
        workflow = await catalogue.workflow(tx, slug=slug)
        if workflow is None:
            raise NotFound(f"There is no workflow {slug!r}.")
        return workflow
