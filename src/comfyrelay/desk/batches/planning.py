"""Plan the items of a batch for a workflow: its prompt and seed properties, its sweep axes, and wildcards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.graphs.dynamic_prompts import Template
from comfyrelay.desk.batches.axes import read_axes
from comfyrelay.desk.batches.expand import Expansion, SeedPlan, expand
from comfyrelay.desk.batches.wildcards import Wildcards
from comfyrelay.domain.bulk import MAX_ITEMS, Mode, SeedMode, WildcardMode
from comfyrelay.domain.properties import Property, Role, defaults
from comfyrelay.errors import InvalidInput
from comfyrelay.services.jobs.submission.seeds import draw_seeds

# Error messages do not write out larger counts.
_MAX_SHOWN = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLists:
    """The requested lists of a batch. `names` are the names of inputs that are ids."""

    inputs: Sequence[Path | str] = ()
    prompts: Sequence[str] = ()
    negatives: Sequence[str] = ()
    sweep: Mapping[str, Any] = field(default_factory=dict)
    tries: int = 1
    seeds: SeedPlan | None = None
    mode: Mode = Mode.PRODUCT
    wildcards: WildcardMode = WildcardMode.OFF
    names: Mapping[str, str] = field(default_factory=dict)


def plan_items(
    lists: BatchLists,
    properties: Sequence[Property],
    *,
    base: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    wildcards_folder: Path | None = None,
) -> Expansion:
    """Return the items of a batch. `base` holds the values of all items, `overrides` the values of the effect.

    Items of a sweep without a given seed share the random seed of their try.
    """
    roles = roles_of(properties)
    axes = read_axes(lists.sweep, properties)
    values, texts = dict(base), {"prompt": list(lists.prompts), "negative_prompt": list(lists.negatives)}
    wildcards = None
    if lists.wildcards is not WildcardMode.OFF:
        wildcards = Wildcards(folder=wildcards_folder)
        usual = {**defaults(properties, overrides or {}), **base}
        swept = {axis.key for axis in axes}
        for role, given in texts.items():
            key = roles.get(role, "")
            if not key or key in swept:
                continue
            templates = [_template(wildcards, text, key) for text in given or [str(usual.get(key) or "")]]
            if lists.wildcards is WildcardMode.ALL and (given or _varies(templates)):
                texts[role] = _combinations(templates, key)
            elif not given and _varies(templates):
                values[key] = usual[key]
    seeds = seed_plan(properties, lists.seeds, values)
    by_try: list[dict[str, int]] = []
    if axes and seeds is None:
        # With different seeds, the swept values could not be compared.
        fixed = {**values, **{axis.key: axis.values for axis in axes}}
        by_try = [draw_seeds(properties, overrides=overrides or {}, user_input=fixed) for _ in range(lists.tries)]
    return expand(
        inputs=lists.inputs,
        prompts=texts["prompt"],
        negatives=texts["negative_prompt"],
        sweep=axes,
        tries=lists.tries,
        seeds=seeds,
        mode=lists.mode,
        base=values,
        by_try=by_try,
        roles=roles,
        names=lists.names,
        # Each combination is now a prompt, in which an escaped brace is a plain brace.
        wildcards=wildcards if lists.wildcards is WildcardMode.RANDOM else None,
    )


def _template(wildcards: Wildcards, text: str, key: str) -> Template:
    try:
        return wildcards.template(text)
    except InvalidInput as error:
        raise InvalidInput(error.detail, errors={key: error.detail}) from None


def _varies(templates: Sequence[Template]) -> bool:
    return any(template.count > 1 for template in templates)


def _combinations(templates: Sequence[Template], key: str) -> list[str]:
    count = sum(template.count for template in templates)
    if count > MAX_ITEMS:
        # Python formats integers with at most 4,300 digits.
        shown = f"{count:,}" if count < _MAX_SHOWN else f"more than {_MAX_SHOWN:,}"
        reason = f"The wildcards have {shown} combinations; a batch has at most {MAX_ITEMS:,} items."
        raise InvalidInput(reason, errors={key: reason})
    return [text for template in templates for text in template.all()]


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
    """Return the seed property that varies per item: the property named `seed`, or else the first property."""
    seeds = [property_ for property_ in properties if property_.is_seed]
    return next((seed for seed in seeds if seed.key == "seed"), next(iter(seeds), None))
