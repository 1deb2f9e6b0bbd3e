"""Find the prompt and seed properties of a workflow, and plan the seeds of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from comfyrelay.desk.batches.expand import SeedPlan
from comfyrelay.domain.bulk import SeedMode
from comfyrelay.domain.properties import Property, Role


def roles_of(properties: Sequence[Property]) -> dict[str, str]:
    """Return the key of the first property of each role."""
    wanted = (Role.PROMPT, Role.NEGATIVE_PROMPT)
    found = {str(property_.role): property_.key for property_ in reversed(properties) if property_.role in wanted}
    seed = _seed_in(properties)
    return found if seed is None else {**found, Role.SEED: seed.key}


def seed_plan(properties: Sequence[Property], wanted: SeedPlan | None, given: Mapping[str, Any]) -> SeedPlan | None:
    """Return the seeds of the items; `None` if each job draws its own random seed when it is accepted."""
    seed = _seed_in(properties)
    if wanted is None or (wanted.mode is SeedMode.RANDOM and seed is not None and seed.key not in given):
        return None
    if seed is None:
        return wanted
    limit = seed.seed_limit if wanted.mode is SeedMode.RANDOM else seed.maximum
    return wanted if limit is None else replace(wanted, maximum=min(int(limit), wanted.maximum))


def _seed_in(properties: Sequence[Property]) -> Property | None:
    """Return the seed property that varies per item: the one named `seed`, otherwise the first."""
    seeds = [property_ for property_ in properties if property_.is_seed]
    return next((seed for seed in seeds if seed.key == "seed"), next(iter(seeds), None))
