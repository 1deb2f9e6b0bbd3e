"""Fleets: their workflows, worker limits and machines."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from comfyrelay.domain.autoscaling.spec import Bundle
from comfyrelay.domain.autoscaling.spec_json import machines_from_json, scaling_from_json
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.errors import Conflict, InvalidInput, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.services.workers.bundles import Bundles
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import machines as machine_rows
from comfyrelay.store.central.queue import missing_requirements
from comfyrelay.store.central.workers import fleets, workers
from comfyrelay.store.database import Tx

# Nested settings that are merged field by field.
SPECS = ("machines", "autoscaling")


class Fleets:
    def __init__(self, databases: Databases, *, bundles: Bundles) -> None:
        self._databases = databases
        self._bundles = bundles

    async def create(
        self,
        *,
        slug: str,
        stage: Stage = Stage.PRODUCTION,
        name: str | None = None,
        max_workers: int | None = None,
        machines: Mapping[str, Any] | None = None,
        autoscaling: Mapping[str, Any] | None = None,
        workflow_slugs: Sequence[str] = (),
        force: bool = False,
    ) -> FleetRecord:
        if not force:
            await self._require(slug, None, workflow_slugs, bundle=machines_from_json(machines).bundle)
        specs = {"machines": _merged(None, machines), "autoscaling": _checked(_merged(None, autoscaling))}

        async def work(tx: Tx) -> FleetRecord:
            fleet = await catalogue.create_fleet(
                tx, slug=slug, stage=stage, name=name or slug, max_workers=max_workers, **specs
            )
            await _map(tx, fleet, workflow_slugs)
            return fleet

        return await self._databases.central.run(TransactionStep.CATALOGUE, work)

    async def map_workflows(
        self, *, stage: Stage, slug: str, workflow_slugs: Sequence[str], force: bool = False
    ) -> None:
        """Change a fleet's workflows; its workers' assignments follow at once."""
        if not force:
            async with self._databases.central.read() as tx:
                fleet = await catalogue.fleet(tx, stage=stage, slug=slug)
            if fleet is not None:
                await self._require(slug, fleet, workflow_slugs, bundle=fleet.machine_spec.bundle)

        async def work(tx: Tx) -> None:
            # Locked, so that a worker that registers now gets the old or the new mapping completely.
            await _map(tx, await _locked_fleet(tx, stage, slug), workflow_slugs)

        await self._databases.central.run(TransactionStep.CATALOGUE, work)

    async def change(self, *, stage: Stage, slug: str, changes: Mapping[str, Any]) -> FleetRecord:
        """`machines` and `autoscaling` are merged field by field; null resets them."""

        async def work(tx: Tx) -> FleetRecord:
            fleet = await _locked_fleet(tx, stage, slug)
            values = dict(changes)
            for name in SPECS:
                if name in values:
                    values[name] = _merged(getattr(fleet, name), values[name])
            _checked(values.get("autoscaling"))
            after = replace(fleet, **{name: values[name] for name in SPECS if name in values})
            if (after.is_scaled, _provider(after)) != (fleet.is_scaled, _provider(fleet)):
                await _require_none_there(tx, fleet)
            return await fleets.change(tx, fleet.id, **values) if values else fleet

        return await self._databases.central.run(TransactionStep.CATALOGUE, work)

    async def delete(self, *, stage: Stage, slug: str) -> None:
        async def work(tx: Tx) -> None:
            fleet = await _locked_fleet(tx, stage, slug)
            await _require_none_there(tx, fleet)
            await fleets.remove(tx, fleet)

        await self._databases.central.run(TransactionStep.CATALOGUE, work)

    async def _require(
        self, slug: str, fleet: FleetRecord | None, workflow_slugs: Sequence[str], *, bundle: Bundle | None
    ) -> None:
        """Checked before locking, because graphs are in object storage. Earlier mappings are not checked again."""
        async with self._databases.central.read() as tx:
            found = [await catalogue.workflow(tx, slug=fromkey) for fromkey in dict.fromkeys(workflow_slugs)]
            mapped = await fleets.workflow_ids_of(tx, fleet.id) if fleet else set()
            reports = await missing_requirements.reports_of_fleet(tx, fleet.id) if fleet and bundle is None else []
        new = [each for each in found if each is not None and each.id not in mapped]
        await self._bundles.require(slug, new, bundle=bundle, reports=reports)


async def _require_none_there(tx: Tx, fleet: FleetRecord) -> None:
    """Refuse: its machines would be orphaned and keep costing."""
    if there := len(await machine_rows.present(tx, [fleet.id])):
        raise Conflict(
            f"The {fleet.stage} fleet {fleet.slug!r} still has {there} machine{'s' if there > 1 else ''}. Set its "
            "max_machines to 0, and wait until they have ended."
        )


def _provider(fleet: FleetRecord) -> Any:
    """As stored: unreadable settings must be changed first."""
    return (fleet.machines or {}).get("provider")


async def _map(tx: Tx, fleet: FleetRecord, workflow_slugs: Sequence[str]) -> None:
    found = {slug: await catalogue.workflow_to_use(tx, slug=slug) for slug in dict.fromkeys(workflow_slugs)}
    unknown = {slug: f"There is no workflow {slug!r}." for slug, each in found.items() if each is None}
    if unknown:
        raise InvalidInput(errors={"workflow_slugs": " ".join(unknown.values())})
    await catalogue.map_workflows(tx, fleet.id, [each.id for each in found.values() if each is not None])
    await workers.assign_fleet(tx, fleet.id)


def _merged(before: Mapping[str, Any] | None, said: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Store only explicit values, so that better defaults reach all other fleets."""
    if said is None:
        return None
    return {name: value for name, value in {**(before or {}), **said}.items() if value is not None}


def _checked(autoscaling: dict[str, Any] | None) -> dict[str, Any] | None:
    limits = scaling_from_json(autoscaling).limits
    if limits.min_machines > limits.max_machines:
        why = f"This is more than max_machines, which is {limits.max_machines}."
        raise InvalidInput(errors={"autoscaling.min_machines": why})
    return autoscaling


async def _locked_fleet(tx: Tx, stage: Stage, slug: str) -> FleetRecord:
    fleet = await catalogue.fleet(tx, stage=stage, slug=slug, lock=True)
    if fleet is None:
        raise NotFound(f"There is no {stage} fleet {slug!r}.")
    return fleet
