"""Which properties of a workflow are its prompt and its seed, and which seeds the items of a batch get."""

from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.desk.batches.expand import ROLES, SeedPlan
from comfyrelay.domain.properties import Property


def roles_of(properties: Sequence[Property]) -> dict[str, str]:
    keys = {each.key for each in properties}
    found = {role: key for role, key in ROLES.items() if key in keys}
    if "seed" not in found and (seed := _seed_in(properties)) is not None:
        found["seed"] = seed.key
    # as the options of a script are called
    for role, key in (("prompt", "positive"), ("negative_prompt", "negative")):
        if role not in found and key in keys:
            found[role] = key
    return found


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
