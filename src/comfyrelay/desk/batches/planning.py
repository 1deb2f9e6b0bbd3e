"""Find the prompt and seed properties of a workflow, and plan the seeds of a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.desk.batches.expand import SeedPlan
from comfyrelay.domain.bulk import SeedMode
from comfyrelay.domain.properties import Property, Role


def roles_of(properties: Sequence[Property]) -> dict[str, str]:
    """Property keys by role, the first of each role."""
    wanted = (Role.PROMPT, Role.NEGATIVE_PROMPT)
    found = {str(property_.role): property_.key for property_ in reversed(properties) if property_.role in wanted}
    seed = _seed_in(properties)
    return found if seed is None else {**found, Role.SEED: seed.key}


def seed_plan(properties: Sequence[Property], wanted: SeedPlan | None, given: Mapping[str, Any]) -> SeedPlan | None:
    """If no seed is given, or seeds are random, each job draws its seeds when it is accepted."""
    seed = _seed_in(properties)
    if wanted is None or (wanted.mode is SeedMode.RANDOM and seed is not None and seed.key not in given):
        return None
    if seed is None:
        return wanted
    limit = seed.seed_limit if wanted.mode is SeedMode.RANDOM else seed.maximum
    largest = wanted.largest if limit is None else min(int(limit), wanted.largest)
    return SeedPlan(mode=wanted.mode, start=wanted.start, largest=largest)


def _seed_in(properties: Sequence[Property]) -> Property | None:
    """The seed property that varies per item: by name, otherwise the first."""
    seeds = [property_ for property_ in properties if property_.is_seed]
    return next((seed for seed in seeds if seed.key == "seed"), next(iter(seeds), None))
