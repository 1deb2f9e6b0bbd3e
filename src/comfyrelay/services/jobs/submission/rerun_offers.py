"""The price of running an ended job again: the current price of its effect, or of the user's own workflows.

This does not apply to a retry, which replaces a run that failed or was canceled, and keeps the price that its user
accepted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.domain.payloads import JobPayload, StoredFile
from comfyrelay.domain.prices.effects import price_of
from comfyrelay.domain.prices.limits import InputFacts, check_inputs
from comfyrelay.domain.properties import Property, Value, problem_with
from comfyrelay.domain.records.catalogue import EffectRecord
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import Conflict, InvalidInput
from comfyrelay.pacing import paced
from comfyrelay.services.accounts.own_workflows import OwnWorkflowAccess
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.submission.measured_inputs import MeasuredInputs
from comfyrelay.store.central import catalogue
from comfyrelay.store.database import Database
from comfyrelay.store.tenant import jobs
from comfyrelay.store.tenant.library import media


@dataclass(frozen=True, kw_only=True, slots=True)
class RerunOffer:
    """The price and the maximum run time of a job that runs again."""

    tokens: int = 0
    millitokens_per_second: int | None = None
    max_run_seconds: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Offered:
    effect: EffectRecord
    properties: Sequence[Property]


class RerunOffers:
    def __init__(self, databases: Databases, own_access: OwnWorkflowAccess, input_facts: MeasuredInputs) -> None:
        self._databases = databases
        self._own_access = own_access
        self._input_facts = input_facts

    async def of(self, shard: Database, old: Sequence[JobRecord]) -> Mapping[str, RerunOffer]:
        """Return the offer for each job, except for jobs whose effect was deleted. Raises `Conflict` if a job exceeds
        the current limits of its effect."""
        effects = await self._effects({job.effect_id for job in old if job.effect_id is not None})
        of_effects = [job for job in old if job.effect_id in effects]
        files: Mapping[str, StoredFile] = {}
        payloads: Mapping[str, Any] = {}
        if of_effects:
            async with shard.read() as tx:
                payloads = await jobs.payloads(tx, [job.id for job in of_effects])
                inputs = {job.input_file_id for job in of_effects if job.input_file_id is not None}
                files = await media.stored_files(tx, of_effects[0].tenant_id, inputs) if inputs else {}
        measured = await self._measure(of_effects, effects, files)
        own = await self._own_workflows({job.workflow_id for job in old if job.effect_id is None})
        offers: dict[str, RerunOffer] = {}
        async for job in paced(old):
            if job.effect_id is None:
                offers[job.id] = self._own_offer() if job.workflow_id in own else RerunOffer()
            elif job.effect_id in effects and job.id in payloads:
                payload = JobPayload.from_json(payloads[job.id])
                offers[job.id] = _of_effect(job, effects[job.effect_id], payload, measured)
        return offers

    async def _effects(self, ids: set[int]) -> dict[int, _Offered]:
        found: dict[int, _Offered] = {}
        if not ids:
            return found
        async with self._databases.central.read() as tx:
            for effect_id in sorted(ids):
                effect, workflow = await catalogue.effect_with_workflow(tx, effect_id)
                if effect is not None and workflow is not None:
                    found[effect_id] = _Offered(effect=effect, properties=workflow.parsed_properties)
        return found

    async def _measure(
        self, old: Sequence[JobRecord], effects: Mapping[int, _Offered], files: Mapping[str, StoredFile]
    ) -> dict[str, InputFacts]:
        measured: dict[str, InputFacts] = {}
        for effect_id, offered in effects.items():
            named = {job.input_file_id for job in old if job.effect_id == effect_id}
            own = [file for file in files.values() if file.id in named]
            measured |= await self._input_facts.of(own, offered.effect, offered.properties)
        return measured

    async def _own_workflows(self, ids: set[int]) -> set[int]:
        """Return those of the workflows that belong to a tenant, or none if their runs are free. Test runs of catalogue
        workflows are always free."""
        if self._own_access.price is None or not ids:
            return set()
        async with self._databases.central.read() as tx:
            found = await catalogue.workflows_by_id(tx, ids)
        return {workflow.id for workflow in found.values() if workflow.tenant_id is not None}

    def _own_offer(self) -> RerunOffer:
        price = self._own_access.price
        assert price is not None
        return RerunOffer(
            tokens=price.reserved_tokens,
            millitokens_per_second=price.millitokens_per_second,
            max_run_seconds=price.max_seconds,
        )


def _of_effect(
    job: JobRecord, offered: _Offered, payload: JobPayload, measured: Mapping[str, InputFacts]
) -> RerunOffer:
    values = [
        Value(property=prop, value=payload.values[prop.placeholder], from_user=prop.user_configurable)
        for prop in offered.properties
        if not prop.is_asset and prop.placeholder in payload.values
    ]
    _check_limits(job, offered, values, measured)
    facts = measured.get(job.input_file_id or "", InputFacts())
    tokens = price_of(offered.effect, values, facts)
    return RerunOffer(tokens=tokens, max_run_seconds=offered.effect.max_run_seconds)


def _check_limits(
    job: JobRecord, offered: _Offered, values: Sequence[Value], measured: Mapping[str, InputFacts]
) -> None:
    """Refuse values that a customer can no longer choose."""
    problems = {
        value.property.key: problem
        for value in values
        if value.from_user and not value.property.is_seed
        if (problem := problem_with(value.property, value.value)) is not None
    }
    try:
        check_inputs(values, offered.properties, measured, primary_id=job.input_file_id)
    except InvalidInput as error:
        problems |= error.errors
    if problems:
        key, problem = next(iter(problems.items()))
        raise Conflict(
            f"The limits of {offered.effect.name!r} have changed. {key}: {problem} Open the effect to start a new job."
        )
