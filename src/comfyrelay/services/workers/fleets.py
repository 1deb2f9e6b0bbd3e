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
from comfyrelay.text import counted

# Nested settings, which are merged field by field.
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
        specs = {
            "machines": _merge_explicit(None, machines),
            "autoscaling": _check_limits(_merge_explicit(None, autoscaling)),
        }

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
        """Change the workflows of a fleet and of its workers."""
        if not force:
            async with self._databases.central.read() as tx:
                fleet = await catalogue.fleet(tx, stage=stage, slug=slug)
            if fleet is not None:
                await self._require(slug, fleet, workflow_slugs, bundle=fleet.machine_spec.bundle)

        async def work(tx: Tx) -> None:
            # Lock the fleet, so that a worker registering now gets either the old or the new mapping.
            await _map(tx, await _locked_fleet(tx, stage, slug), workflow_slugs)

        await self._databases.central.run(TransactionStep.CATALOGUE, work)

    async def change(self, *, stage: Stage, slug: str, changes: Mapping[str, Any]) -> FleetRecord:
        """Change the settings of a fleet. `machines` and `autoscaling` are merged field by field, and null resets
        them."""

        async def work(tx: Tx) -> FleetRecord:
            fleet = await _locked_fleet(tx, stage, slug)
            values = dict(changes)
            for name in SPECS:
                if name in values:
                    values[name] = _merge_explicit(getattr(fleet, name), values[name])
            _check_limits(values.get("autoscaling"))
            after = replace(fleet, **{name: values[name] for name in SPECS if name in values})
            if (after.is_scaled, _provider(after)) != (fleet.is_scaled, _provider(fleet)):
                await _require_no_machines(tx, fleet)
            return await fleets.change(tx, fleet.id, **values) if values else fleet

        return await self._databases.central.run(TransactionStep.CATALOGUE, work)

    async def reset_launches(self, *, stage: Stage, slug: str) -> FleetRecord:
        """Forget failed and refused launches after the operator has removed their cause."""

        async def work(tx: Tx) -> FleetRecord:
            fleet = await _locked_fleet(tx, stage, slug)
            return await fleets.change(tx, fleet.id, launches_reset_at=await tx.now())

        return await self._databases.central.run(TransactionStep.CATALOGUE, work)

    async def delete(self, *, stage: Stage, slug: str) -> None:
        async def work(tx: Tx) -> None:
            fleet = await _locked_fleet(tx, stage, slug)
            await _require_no_machines(tx, fleet)
            await fleets.remove(tx, fleet)

        await self._databases.central.run(TransactionStep.CATALOGUE, work)

    async def _require(
        self, slug: str, fleet: FleetRecord | None, workflow_slugs: Sequence[str], *, bundle: Bundle | None
    ) -> None:
        """Check that the fleet can run newly mapped workflows. This runs before locking, because it reads object
        storage."""
        async with self._databases.central.read() as tx:
            found = [await catalogue.workflow(tx, slug=slug_) for slug_ in dict.fromkeys(workflow_slugs)]
            mapped = await fleets.workflow_ids_of(tx, fleet.id) if fleet else set()
            reports = await missing_requirements.reports_of_fleet(tx, fleet.id) if fleet and bundle is None else []
        new = [workflow for workflow in found if workflow is not None and workflow.id not in mapped]
        await self._bundles.require(slug, new, bundle=bundle, reports=reports)


async def _require_no_machines(tx: Tx, fleet: FleetRecord) -> None:
    """Raise `Conflict` if the fleet has machines, because they would be orphaned and keep costing money."""
    if count := len(await machine_rows.present(tx, [fleet.id])):
        raise Conflict(
            f"The {fleet.stage} fleet {fleet.slug!r} still has {counted(count, 'machine')}. Set its "
            "max_machines to 0, and wait until they have ended."
        )


def _provider(fleet: FleetRecord) -> Any:
    """Return the stored provider without parsing the settings, which may be unreadable."""
    return (fleet.machines or {}).get("provider")


async def _map(tx: Tx, fleet: FleetRecord, workflow_slugs: Sequence[str]) -> None:
    found = {slug: await catalogue.workflow_to_use(tx, slug=slug) for slug in dict.fromkeys(workflow_slugs)}
    unknown = {slug: f"There is no workflow {slug!r}." for slug, workflow in found.items() if workflow is None}
    if unknown:
        raise InvalidInput(errors={"workflow_slugs": " ".join(unknown.values())})
    await catalogue.map_workflows(tx, fleet.id, [workflow.id for workflow in found.values() if workflow is not None])
    await workers.assign_fleet(tx, fleet.id)


def _merge_explicit(before: Mapping[str, Any] | None, changes: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Store only explicit values, so that improved defaults apply to all other fields."""
    if changes is None:
        return None
    return {name: value for name, value in {**(before or {}), **changes}.items() if value is not None}


def _check_limits(autoscaling: dict[str, Any] | None) -> dict[str, Any] | None:
    limits = scaling_from_json(autoscaling).limits
    if limits.min_machines > limits.max_machines:
        problem = f"This is more than max_machines, which is {limits.max_machines}."
        raise InvalidInput(errors={"autoscaling.min_machines": problem})
    return autoscaling


async def _locked_fleet(tx: Tx, stage: Stage, slug: str) -> FleetRecord:
    fleet = await catalogue.fleet(tx, stage=stage, slug=slug, lock=True)
    if fleet is None:
        raise NotFound(f"There is no {stage} fleet {slug!r}.")
    return fleet
