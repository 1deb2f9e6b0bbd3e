"""Random seeds for jobs without a given seed."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.domain.properties import Property, seeds_to_draw


def draw_seeds(
    properties: Sequence[Property], *, overrides: Mapping[str, Any], user_input: Mapping[str, Any]
) -> dict[str, int]:
    drawn = seeds_to_draw(properties, overrides=overrides, user_input=user_input)
    return {seed.key: max(seed.smallest_seed, new_seed(seed.seed_limit)) for seed in drawn}


def new_seed(largest: int) -> int:
    return secrets.randbelow(largest + 1)
