"""Check whether a fleet can run a workflow, based on its machine bundle or its workers."""

import asyncio
from collections.abc import Iterable, Sequence

from comfyrelay.domain.autoscaling.spec import Bundle
from comfyrelay.domain.capabilities import (
    MAX_NAMES_IN_REFUSAL,
    MissingRequirement,
    RequirementKind,
    Requirements,
    fitness,
    merge_unmet,
    name_requirements,
    refusal_text,
)
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.errors import MissingOnWorkers, NotFound
from comfyrelay.services.catalogue.availability import (
    MissingRequirements,
    default_requirements,
    find_unmet,
    has_requirements,
)
from comfyrelay.services.catalogue.graphs import Graphs

ADVICE = "Add what is missing, or map the workflow with `force`. Its jobs will wait until a worker has everything."


class Bundles:
    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs

    async def require(
        self,
        fleet_slug: str,
        new: Iterable[WorkflowRecord],
        *,
        bundle: Bundle | None,
        reports: Sequence[tuple[str, str]],
    ) -> None:
        """Raise `MissingOnWorkers` if the fleet's machines are missing a requirement of one of these workflows.

        Without a bundle, the `reports` of the fleet's workers are checked. Without workers, nothing is known to be
        missing.
        """
        if bundle is None and not reports:
            return
        texts: list[str] = []
        missing: list[MissingRequirement] = []
        for workflow in filter(has_requirements, new):
            try:
                needs = await default_requirements(workflow, self._graphs)
            except NotFound:
                # An unreadable graph fails with its own error on every machine.
                continue
            if bundle is not None:
                found = _missing_in_bundle(bundle, needs)
                why = f"the bundle of the fleet {fleet_slug!r} lacks {_names(found)}."
            else:
                unmet = await asyncio.to_thread(find_unmet, needs, reports)
                found = merge_unmet(unmet) if len(unmet) == len(reports) else []
                why = refusal_text(found, workers=len(unmet), shows_names=True)
            if found:
                texts.append(f"For {workflow.slug!r}: {why}")
                missing += found
        if texts:
            requirements = MissingRequirements(items=missing, workers=len(reports), shows_names=True)
            raise MissingOnWorkers(" ".join([*texts, ADVICE]), missing=requirements.to_json())


def _missing_in_bundle(bundle: Bundle, needs: Requirements) -> list[MissingRequirement]:
    has = {"node_types": sorted(bundle.node_types), "models": sorted(bundle.models)}
    found = fitness(needs, has)
    kinds = ((RequirementKind.NODE, found.missing_node_types), (RequirementKind.MODEL, found.missing_models))
    return [MissingRequirement(kind=kind, name=name, workers=()) for kind, names in kinds for name in names]


def _names(found: Sequence[MissingRequirement]) -> str:
    nodes, models = (
        [gap.name for gap in found if gap.kind is kind] for kind in (RequirementKind.NODE, RequirementKind.MODEL)
    )
    return name_requirements(nodes, models, limit=MAX_NAMES_IN_REFUSAL)
