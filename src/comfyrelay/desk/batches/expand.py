"""Expand lists into batch items: inputs × prompts × negative prompts × sweep axes × tries, each with a seed."""

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

from comfyrelay.desk.batches.axes import SweepAxis, value_text
from comfyrelay.desk.batches.wildcards import Wildcards
from comfyrelay.domain.bulk import MAX_ITEMS, BatchAxis, Mode, SeedMode
from comfyrelay.errors import InvalidInput
from comfyrelay.text import excerpt, one_line

# ComfyUI seeds are unsigned 64-bit integers.
MAX_SEED = 2**64 - 1
# JavaScript represents integers up to this exactly, so that a page can show random seeds and send them back.
MAX_RANDOM_SEED = 2**53 - 1
# Default property keys by role.
ROLES: Mapping[str, str] = MappingProxyType({role: role for role in ("prompt", "negative_prompt", "seed")})
# Maximum length of a job's label, and of the texts of an axis.
MAX_LABEL_LENGTH = 200
# Maximum length of the prompt in a label.
_LABEL_LENGTH = 60
_JOIN = " · "
# With random choices, each item has its own text; without wildcards, all items share one.
MAX_DRAWN_CHARACTERS = 64 * 1024**2
# The key of an item's input while lists are combined. No property has this key.
_INPUT = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedPlan:
    """Seeds of a batch: the same for every item, incremented per item as in ComfyUI, or random. Items of a sweep share
    the seed of their try.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Expansion:
    """The items of a batch, and the lists of more than one value that they combine. The last axis varies fastest."""

    items: list[PlannedItem]
    axes: list[BatchAxis]


@dataclass(frozen=True, kw_only=True, slots=True)
class _List:
    """A list to combine. `noun` is for messages: `3 prompts`. `parts` are the entries that each value adds to an
    item."""

    axis: BatchAxis
    noun: str
    parts: Sequence[Mapping[str, Any]]


def expand(
    *,
    inputs: Sequence[Path | str | None] = (),
    prompts: Sequence[str] = (),
    negatives: Sequence[str] = (),
    sweep: Sequence[SweepAxis] = (),
    tries: int = 1,
    seeds: SeedPlan | None = None,
    mode: Mode = Mode.PRODUCT,
    base: Mapping[str, Any] | None = None,
    by_try: Sequence[Mapping[str, Any]] = (),
    roles: Mapping[str, str] = ROLES,
    names: Mapping[str, str] | None = None,
    wildcards: Wildcards | None = None,
    rng: random.Random | None = None,
) -> Expansion:
    """Combine lists into items, ordered by input, prompt, negative prompt, sweep axis and try. Empty lists are ignored.

    `pairwise` combines value n of inputs, prompts and sweep axes. `base` holds the values of all items, `by_try` the
    values of all items of a try. `roles` maps prompt, negative prompt and seed to the workflow's property keys. `names`
    are the names of inputs that are ids. With `wildcards`, each item gets a random choice.
    """
    swept = {axis.key for axis in sweep}
    for role, is_given in {"prompt": prompts, "negative_prompt": negatives, "seed": seeds is not None}.items():
        if is_given and role not in roles:
            raise _refusal(role, f"This workflow has no {role.replace('_', ' ')}.")
        if is_given and roles[role] in swept:
            raise _refusal(roles[role], f"Sweep this field, or give a list of its values, not both: {role}.")
    stems = {input_: _stem(input_, names or {}) for input_ in inputs}
    texts = {"prompt": prompts, "negative_prompt": negatives}
    lists = _lists([(input_, stems[input_]) for input_ in inputs], texts, sweep, roles, mode=mode)
    _check_count(lists, tries)
    drawn = _seeds(seeds, rng or random.Random()) if seeds is not None else itertools.repeat(None)
    # Swept values can be compared only with the same seed.
    of_tries = list(itertools.islice(drawn, tries)) if sweep else []
    picks = random.Random(seeds.start) if seeds is not None and seeds.mode is not SeedMode.RANDOM else random.Random()
    prompt_key = roles.get("prompt", "")
    items = []
    characters = 0
    combinations = itertools.product(*(list_.parts for list_ in lists))
    for parts, number in itertools.product(combinations, range(1, tries + 1)):
        varied = {key: value for part in parts for key, value in part.items()}
        source = varied.pop(_INPUT, None)
        payload = {**(base or {}), **(by_try[number - 1] if by_try else {}), **varied}
        if (seed := of_tries[number - 1] if sweep else next(drawn)) is not None:
            payload[roles["seed"]] = seed
        if wildcards is not None:
            characters += _resolve(payload, wildcards, roles, picks)
            if characters > MAX_DRAWN_CHARACTERS:
                raise _refusal("items", "The prompts of all items together are too long. Add fewer items at a time.")
        is_named = prompts or wildcards is not None or prompt_key in swept
        prompt = payload.get(prompt_key) if is_named else None
        labels = (f"{axis.name} {value_text(payload[axis.key])}" for axis in sweep if axis.key != prompt_key)
        label = _label(stems.get(source, ""), prompt, labels, try_=number if tries > 1 else None)
        seed = payload.get(roles.get("seed", ""))
        items.append(
            PlannedItem(input=source, payload=payload, seed=seed if isinstance(seed, int) else None, label=label)
        )
    axes = [list_.axis for list_ in lists]
    if tries > 1:
        axes.append(BatchAxis(key="tries", name="Try", values=[str(number) for number in range(1, tries + 1)]))
    return Expansion(items=items, axes=[axis for axis in axes if len(axis.values) > 1])


def _lists(
    inputs: Sequence[tuple[Path | str | None, str]],
    texts: Mapping[str, Sequence[str]],
    sweep: Sequence[SweepAxis],
    roles: Mapping[str, str],
    *,
    mode: Mode,
) -> list[_List]:
    prompt, negative = (
        _list(roles.get(role, role), name, f"{name.lower()}s", texts[role], [value_text(text) for text in texts[role]])
        for role, name in (("prompt", "Prompt"), ("negative_prompt", "Negative prompt"))
    )
    found = [_list(_INPUT, "Input", "inputs", [input_ for input_, _ in inputs], [name for _, name in inputs]), prompt]
    axes = [_list(axis.key, axis.name, f"values of {axis.name}", axis.values, axis.texts) for axis in sweep]
    if mode is Mode.PAIRWISE:
        # Without a sweep, inputs and prompts are paired. Otherwise, only the given lists are paired.
        paired = [list_ for list_ in (*found, *axes) if list_.parts or not sweep]
        return [_pair_lists(paired), *([negative] if negative.parts else [])]
    return [list_ for list_ in (*found, negative, *axes) if list_.parts]


def _list(key: str, name: str, noun: str, values: Sequence[Any], texts: Sequence[str]) -> _List:
    parts = [{key: value} for value in values]
    axis_key = "input" if key == _INPUT else key
    return _List(axis=_axis(axis_key, name, texts), noun=noun, parts=parts)


def _axis(key: str, name: str, values: Iterable[str]) -> BatchAxis:
    """Return an axis with texts that a request accepts. File names and pairs of long prompts may be longer."""
    short, *texts = (excerpt(text, length=MAX_LABEL_LENGTH) for text in (name, *values))
    return BatchAxis(key=key, name=short, values=texts)


def _pair_lists(lists: Sequence[_List]) -> _List:
    """Return the combinations of value n of each list, as one list."""
    counts = [len(list_.parts) for list_ in lists]
    if len(set(counts)) > 1:
        *first, last = (f"{count:,} {list_.noun}" for count, list_ in zip(counts, lists, strict=True))
        shortest = min(lists, key=lambda list_: len(list_.parts))
        field_name = "prompts" if lists[-1].noun == "prompts" else shortest.axis.key
        raise _refusal(
            field_name,
            f"Pairwise needs lists of the same length, but there are {', '.join(first)} and {last}.",
        )
    rows = list(zip(*(list_.parts for list_ in lists), strict=True))
    texts = zip(*(list_.axis.values for list_ in lists), strict=True)
    return _List(
        axis=_axis(
            "pairs",
            _JOIN.join(list_.axis.name for list_ in lists),
            (_JOIN.join(filter(None, values)) for values in texts),
        ),
        noun="pairs",
        parts=[{key: value for part in row for key, value in part.items()} for row in rows],
    )


def _resolve(payload: dict[str, Any], wildcards: Wildcards, roles: Mapping[str, str], rng: random.Random) -> int:
    """Replace the wildcards of the prompts by a random choice, and return the length of the texts."""
    length = 0
    for role in ("prompt", "negative_prompt"):
        text = payload.get(roles.get(role, ""))
        if isinstance(text, str):
            try:
                payload[roles[role]] = wildcards.template(text).pick(rng)
            except InvalidInput as error:
                raise _refusal(roles[role], error.detail) from None
            length += len(payload[roles[role]])
    return length


def _stem(source: Path | str | None, names: Mapping[str, str]) -> str:
    name = names.get(source, source) if isinstance(source, str) else source
    return "" if name is None else one_line(PurePath(name).stem)


def _label(name: str, prompt: Any, values: Iterable[str], *, try_: int | None) -> str:
    text = excerpt(prompt, length=_LABEL_LENGTH) if isinstance(prompt, str) else ""
    # The try distinguishes items, so it is not truncated.
    end = "" if try_ is None else f"try {try_}"
    start = _JOIN.join(filter(None, (name, text, *values)))[: MAX_LABEL_LENGTH - len(_JOIN) - len(end)]
    return _JOIN.join(filter(None, (start, end)))


def _check_count(lists: Sequence[_List], tries: int) -> None:
    if tries < 1:
        raise _refusal("tries", "There must be at least one try.")
    count = math.prod(len(list_.parts) for list_ in lists) * tries
    if not 1 <= count <= MAX_ITEMS:
        names = " × ".join([*(f"{len(list_.parts):,} {list_.noun}" for list_ in lists), f"{tries:,} tries"])
        raise _refusal("items", f"This makes {count:,} items ({names}); a batch has between 1 and {MAX_ITEMS:,}.")


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
