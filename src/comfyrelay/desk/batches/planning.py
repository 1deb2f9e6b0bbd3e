"""Which properties of a workflow are its prompt and its seed, and which seeds the items of a batch get."""

from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.desk.batches.expand import SeedPlan
from comfyrelay.domain.properties import Property, Role


def roles_of(properties: Sequence[Property]) -> dict[str, str]:
    """Under which keys a workflow takes them, each the first of its role."""
    wanted = (Role.PROMPT, Role.NEGATIVE_PROMPT)
    found = {str(each.role): each.key for each in reversed(properties) if each.role in wanted}
    seed = _seed_in(properties)
    return found if seed is None else {**found, Role.SEED: seed.key}


def seed_plan(properties: Sequence[Property], wanted: SeedPlan | None, given: Mapping[str, Any]) -> SeedPlan | None:
    """Without a word about seeds, a workflow that has one gets another for each item: the same twice is no use."""
    seed = _seed_in(properties)
    if wanted is None and (seed is None or seed.key in given):
        return None
    plan = wanted or SeedPlan()
    if seed is None or seed.maximum is None:
        return plan
    return SeedPlan(mode=plan.mode, start=plan.start, largest=min(int(seed.maximum), plan.largest))


def _seed_in(properties: Sequence[Property]) -> Property | None:
    """The one that every item gets another value of: by its name, else the first."""
    seeds = [each for each in properties if each.is_seed]
    return next((each for each in seeds if each.key == "seed"), next(iter(seeds), None))
