"""Expand lists into batch items: inputs × prompts × negative prompts × tries, each with a seed."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

from comfyrelay.domain.bulk import MAX_ITEMS, Mode, SeedMode
from comfyrelay.errors import InvalidInput
from comfyrelay.text import excerpt, one_line

# ComfyUI seeds are unsigned 64-bit integers.
MAX_SEED = 2**64 - 1
# JavaScript represents integers up to this exactly, so that a page can show random seeds and send them back.
MAX_RANDOM_SEED = 2**53 - 1
# Default property keys by role.
ROLES: Mapping[str, str] = MappingProxyType({role: role for role in ("prompt", "negative_prompt", "seed")})
_LABEL_LENGTH = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedPlan:
    """Seeds of a batch: the same for every item, incremented per item as in ComfyUI, or random.

    `maximum` is the maximum of the workflow's seed property. Incremented seeds wrap to 0 after it.
    """

    mode: SeedMode = SeedMode.RANDOM
    start: int = 0
    maximum: int = MAX_SEED


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedItem:
    """A planned job: its input file, its property values, and a label that distinguishes it."""

    input: Path | str | None
    payload: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    label: str = ""


def expand(
    *,
    inputs: Sequence[Path | str | None] = (),
    prompts: Sequence[str] = (),
    negatives: Sequence[str] = (),
    tries: int = 1,
    seeds: SeedPlan | None = None,
    mode: Mode = Mode.PRODUCT,
    base: Mapping[str, Any] | None = None,
    roles: Mapping[str, str] = ROLES,
    rng: random.Random | None = None,
) -> list[PlannedItem]:
    """Return the items ordered by input, prompt, negative prompt and try. Empty lists are ignored.

    `pairwise` combines input n with prompt n. `base` holds values of all items. `roles` maps prompt, negative prompt
    and seed to the workflow's property keys.
    """
    _check_count(len(inputs), len(prompts), len(negatives), tries, mode=mode)
    for role, is_given in {"prompt": prompts, "negative_prompt": negatives, "seed": seeds is not None}.items():
        if is_given and role not in roles:
            raise _refusal(role, f"This workflow has no {role.replace('_', ' ')}.")
    sources: Sequence[Path | str | None] = inputs or [None]
    texts: Sequence[str | None] = prompts or [None]
    negative_texts: Sequence[str | None] = negatives or [None]
    pairs = zip(sources, texts, strict=True) if mode is Mode.PAIRWISE else itertools.product(sources, texts)
    drawn = _seeds(seeds, rng or random.Random()) if seeds is not None else itertools.repeat(None)
    items = []
    for (source, prompt), negative, number in itertools.product(pairs, negative_texts, range(1, tries + 1)):
        given = {"prompt": prompt, "negative_prompt": negative, "seed": next(drawn)}
        payload = {**(base or {}), **{roles[role]: value for role, value in given.items() if value is not None}}
        seed = payload.get(roles.get("seed", ""))
        name = "" if source is None else one_line(PurePath(source).stem)
        parts = (name, excerpt(prompt or "", length=_LABEL_LENGTH), f"try {number}" if tries > 1 else "")
        items.append(
            PlannedItem(
                input=source,
                payload=payload,
                seed=seed if isinstance(seed, int) else None,
                label=" · ".join(filter(None, parts)),
            )
        )
    return items


def _check_count(inputs: int, prompts: int, negatives: int, tries: int, *, mode: Mode) -> None:
    if tries < 1:
        raise _refusal("tries", "There must be at least one try.")
    if mode is Mode.PAIRWISE and inputs != prompts:
        raise _refusal(
            "prompts",
            f"Pairwise needs one prompt for each input, but there are {inputs} inputs and {prompts} prompts.",
        )
    pairs = inputs if mode is Mode.PAIRWISE else (inputs or 1) * (prompts or 1)
    count = pairs * (negatives or 1) * tries
    if not 1 <= count <= MAX_ITEMS:
        raise _refusal("items", f"This makes {count:,} items; a batch has between 1 and {MAX_ITEMS:,}.")


def _refusal(field_name: str, reason: str) -> InvalidInput:
    return InvalidInput(reason, errors={field_name: reason})


def _seeds(plan: SeedPlan, rng: random.Random) -> Iterator[int]:
    if not 0 <= plan.start <= plan.maximum <= MAX_SEED:
        raise _refusal("seed", f"The first seed must be between 0 and {min(plan.maximum, MAX_SEED)}.")
    if plan.mode is SeedMode.FIXED:
        yield from itertools.repeat(plan.start)
    if plan.mode is SeedMode.INCREMENT:
        yield from (number % (plan.maximum + 1) for number in itertools.count(plan.start))
    count = min(plan.maximum, MAX_RANDOM_SEED) + 1
    used: set[int] = set()
    while True:
        seed = rng.randrange(count)
        # The same seed would produce the same image.
        if seed not in used or len(used) == count:
            used.add(seed)
            yield seed
