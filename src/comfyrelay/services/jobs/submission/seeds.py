"""Random seeds for jobs that give none."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.domain.properties import Property, seeds_to_draw


def draw_seeds(
    properties: Sequence[Property], *, overrides: Mapping[str, Any], user_input: Mapping[str, Any]
) -> dict[str, int]:
    wanted = seeds_to_draw(properties, overrides=overrides, user_input=user_input)
    return {each.key: max(each.smallest_seed, new_seed(each.seed_limit)) for each in wanted}


def new_seed(largest: int) -> int:
    return secrets.randbelow(largest + 1)
