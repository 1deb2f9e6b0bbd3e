"""Fleets: which workflows a group of workers runs, and how many workers it may have."""

from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.domain.records.fleet import Fleet
from comfyrelay.domain.states import Stage
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.steps import Step
from comfyrelay.store.central import catalogue, fleets, workers
from comfyrelay.store.database import Tx


class Fleets:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def create(
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
            await _map(tx, fleet, workflow_slugs)
            return fleet

        return await self._databases.central.run(Step.CATALOGUE, work)

    async def map_workflows(self, *, stage: Stage, slug: str, workflow_slugs: Sequence[str]) -> None:
        """Change what a fleet runs; its workers' assignments follow at once."""

        async def work(tx: Tx) -> None:
            # Locked, so that a worker that registers this moment gets either all of the old mapping or all of the new.
            await _map(tx, await _locked_fleet(tx, stage, slug), workflow_slugs)

        await self._databases.central.run(Step.CATALOGUE, work)

    async def change(self, *, stage: Stage, slug: str, changes: Mapping[str, Any]) -> Fleet:
        async def work(tx: Tx) -> Fleet:
            fleet = await _locked_fleet(tx, stage, slug)
            return await fleets.change(tx, fleet.id, **changes) if changes else fleet

        return await self._databases.central.run(Step.CATALOGUE, work)

    async def delete(self, *, stage: Stage, slug: str) -> None:
        async def work(tx: Tx) -> None:
            await fleets.remove(tx, await _locked_fleet(tx, stage, slug))

        await self._databases.central.run(Step.CATALOGUE, work)


async def _map(tx: Tx, fleet: Fleet, workflow_slugs: Sequence[str]) -> None:
    found = {slug: await catalogue.workflow_to_use(tx, slug=slug) for slug in dict.fromkeys(workflow_slugs)}
    unknown = {slug: f"There is no workflow {slug!r}." for slug, each in found.items() if each is None}
    if unknown:
        raise InvalidInput(errors={"workflow_slugs": " ".join(unknown.values())})
    await catalogue.map_workflows(tx, fleet.id, [each.id for each in found.values() if each is not None])
    await workers.assign_fleet(tx, fleet.id)


async def _locked_fleet(tx: Tx, stage: Stage, slug: str) -> Fleet:
    fleet = await catalogue.fleet(tx, stage=stage, slug=slug, lock=True)
    if fleet is None:
        raise NotFound(f"There is no {stage} fleet {slug!r}.")
    return fleet
