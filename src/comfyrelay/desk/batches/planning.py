"""Which properties of a workflow are its prompt and its seed, and which seeds the items of a batch get."""

from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.desk.batches.expand import SeedPlan
from comfyrelay.domain.bulk import SeedMode
from comfyrelay.domain.properties import Property, Role


def roles_of(properties: Sequence[Property]) -> dict[str, str]:
    """Under which keys a workflow takes them, each the first of its role."""
    wanted = (Role.PROMPT, Role.NEGATIVE_PROMPT)
    found = {str(each.role): each.key for each in reversed(properties) if each.role in wanted}
    seed = _seed_in(properties)
    return found if seed is None else {**found, Role.SEED: seed.key}


def seed_plan(properties: Sequence[Property], wanted: SeedPlan | None, given: Mapping[str, Any]) -> SeedPlan | None:
    """Without a word about seeds, or by chance, each job draws its own when it is accepted, all that it has."""
    seed = _seed_in(properties)
    if wanted is None or (wanted.mode is SeedMode.RANDOM and seed is not None and seed.key not in given):
        return None
    if seed is None:
        return wanted
    limit = seed.seed_limit if wanted.mode is SeedMode.RANDOM else seed.maximum
    largest = wanted.largest if limit is None else min(int(limit), wanted.largest)
    return SeedPlan(mode=wanted.mode, start=wanted.start, largest=largest)


def _seed_in(properties: Sequence[Property]) -> Property | None:
    """The one that every item gets another value of: by its name, else the first."""
    seeds = [each for each in properties if each.is_seed]
    return next((each for each in seeds if each.key == "seed"), next(iter(seeds), None))
