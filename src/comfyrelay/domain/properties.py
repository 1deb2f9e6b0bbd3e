"""Properties: the typed inputs of a workflow, and the resolution of their values.

A user's value overrides the effect's, which overrides the workflow's default. Users may only set properties that are
`user_configurable`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Any, assert_never

from comfyrelay.errors import InvalidInput
from comfyrelay.text import is_storable


class PropertyType(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


class Role(StrEnum):
    """The meaning of a property, in the order of form fields. Presets name roles, so they work with every workflow."""

    PROMPT = "prompt"
    NEGATIVE_PROMPT = "negative_prompt"
    INPUT = "input"
    SEED = "seed"
    WIDTH = "width"
    HEIGHT = "height"
    MEGAPIXELS = "megapixels"
    # Length is in frames, duration in seconds.
    LENGTH = "length"
    DURATION = "duration"
    STEPS = "steps"
    STRENGTH = "strength"
    MODEL = "model"


# A sentence lists at most this many names.
MAX_NAMED = 20
ASSET_TYPES = frozenset({PropertyType.IMAGE, PropertyType.VIDEO, PropertyType.AUDIO})
_KINDS = {
    PropertyType.IMAGE: "png jpg jpeg webp gif bmp tif tiff avif apng svg exr",
    PropertyType.VIDEO: "mp4 webm mkv mov avi m4v mpg mpeg",
    PropertyType.AUDIO: "wav mp3 flac ogg opus m4a aac",
}
_KIND_OF = {suffix: kind for kind, suffixes in _KINDS.items() for suffix in suffixes.split()}
# Default roles by key. Seeds: `seed`, `noise_seed`, `ksampler_seed_12`; not `seed_strength`.
_SEED_KEY = re.compile(r"(?:^|_)seed(?:_\d+)*$")
_TEXT_ROLES = {
    **dict.fromkeys(("prompt", "positive", "positive_prompt"), Role.PROMPT),
    **dict.fromkeys(("negative_prompt", "negative"), Role.NEGATIVE_PROMPT),
}
_NUMBER_ROLES = {
    "width": Role.WIDTH,
    "height": Role.HEIGHT,
    "megapixels": Role.MEGAPIXELS,
    **dict.fromkeys(("length", "frames", "num_frames"), Role.LENGTH),
    **dict.fromkeys(("duration", "seconds"), Role.DURATION),
    "steps": Role.STEPS,
    **dict.fromkeys(("strength", "denoise"), Role.STRENGTH),
}
# Every node accepts 32-bit seeds; not every node accepts more.
_SEED_LIMIT = 2**32 - 1
# ComfyUI's seeds are unsigned 64-bit numbers.
MAX_BOUND = 2**64 - 1
# Maximum size of all properties of a workflow as JSON, because lists of workflows contain them. Ten lists of 1,000
# model names of 60 characters take 600 KB.
MAX_PROPERTIES_BYTES = 2 * 1024**2


@dataclass(frozen=True, kw_only=True, slots=True)
class Property:
    key: str
    type: PropertyType
    placeholder: str
    default_value: Any = None
    default_value_hash: str | None = None
    required: bool = False
    user_configurable: bool = False
    is_primary_input: bool = False
    choices: Sequence[Any] = field(default=())
    minimum: float | None = None
    maximum: float | None = None
    # Step of the form control. Other values are accepted.
    step: float | None = None
    is_whole: bool = False
    role: Role | None = None
    # Key of the number that this one scales with. For example, the steps of the first of two samplers scale with the
    # total steps.
    scaled_from: str | None = None
    # A choice such as `{a|b}` in this text is drawn for each job.
    is_dynamic_prompt: bool = False
    # Display name.
    label: str | None = None
    # Title of the node, under which forms group the input.
    group: str | None = None

    @property
    def is_asset(self) -> bool:
        return self.type in ASSET_TYPES

    @property
    def is_seed(self) -> bool:
        is_whole = self.default_value is None or isinstance(self.default_value, int)
        return self.type == "number" and is_whole and self.role is Role.SEED

    @property
    def smallest_seed(self) -> int:
        return max(0, math.ceil(self.minimum or 0))

    @property
    def seed_limit(self) -> int:
        """The largest random seed."""
        return _SEED_LIMIT if self.maximum is None else max(0, min(_SEED_LIMIT, math.floor(self.maximum)))

    @property
    def display_name(self) -> str:
        """The label, or a readable form of the key."""
        words = re.sub(r"[_.-]+", " ", self.key).strip()
        return self.label or words[:1].upper() + words[1:]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Property":
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        unknown = sorted(set(fields) - set(known))
        if unknown:
            raise InvalidInput(errors=dict.fromkeys(unknown, "This is not a field of a property."))
        missing = [name for name in ("key", "type", "placeholder") if not known.get(name)]
        if missing:
            raise InvalidInput(errors=dict.fromkeys(missing, "A property needs this field."))
        if known["type"] not in set(PropertyType):
            types = ", ".join(PropertyType)
            raise InvalidInput(errors={"type": f"Unknown property type {known['type']!r}; use one of {types}."})
        if known.get("role") is not None and known["role"] not in set(Role):
            raise InvalidInput(errors={"role": f"Unknown role {known['role']!r}; use one of {', '.join(Role)}."})
        type_ = PropertyType(known["type"])
        role = Role(known["role"]) if known.get("role") is not None else _default_role(known["key"], type_)
        return cls(**{**known, "type": type_, "role": role})


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A resolved value. If `from_user`, an asset's value is a file id, never a path."""

    property: Property
    value: Any
    from_user: bool = False


def _default_role(key: str, type_: PropertyType) -> Role | None:
    if type_ in ASSET_TYPES:
        return Role.INPUT
    if type_ is PropertyType.NUMBER:
        return Role.SEED if _SEED_KEY.search(key) else _NUMBER_ROLES.get(key)
    return _TEXT_ROLES.get(key) if type_ is PropertyType.TEXT else None


def kind_of(name: str) -> PropertyType | None:
    """Return the media kind of a file by its extension, or `None` if unknown."""
    return _KIND_OF.get(PurePath(name).suffix.lower().removeprefix("."))


def check_properties(properties: Sequence[Property]) -> None:
    """Raise `InvalidInput` if the properties of a workflow are inconsistent."""
    errors: dict[str, str] = {}
    keys = [property_.key for property_ in properties]
    placeholders = [property_.placeholder for property_ in properties]
    by_key = {property_.key: property_ for property_ in properties}
    for property_ in properties:
        if keys.count(property_.key) > 1:
            errors[property_.key] = "Two properties have this key."
        elif placeholders.count(property_.placeholder) > 1:
            errors[property_.key] = "Two properties have this placeholder."
        elif property_.type is PropertyType.CHOICE and not property_.choices:
            errors[property_.key] = "Add at least one choice."
        elif property_.is_primary_input and not property_.is_asset:
            errors[property_.key] = "The primary input must be an image, a video or audio."
        elif problem := _bounds_problem(property_):
            errors[property_.key] = problem
        elif property_.default_value is not None and (problem := problem_with(property_, property_.default_value)):
            errors[property_.key] = f"Default value: {problem}"
        elif property_.is_dynamic_prompt and property_.type is not PropertyType.TEXT:
            errors[property_.key] = "Only a text can be a dynamic prompt."
        elif property_.step is not None and property_.step <= 0:
            errors[property_.key] = "The step must be larger than zero."
        elif property_.scaled_from is not None and not _can_scale(property_, by_key.get(property_.scaled_from)):
            errors[property_.key] = "Only a number can scale with another number; both need defaults above zero."
    if sum(property_.is_primary_input for property_ in properties) > 1:
        errors["is_primary_input"] = "Only one property can be the primary input."
    if errors:
        raise InvalidInput(errors=errors)


def _bounds_problem(prop: Property) -> str | None:
    low, high = prop.minimum, prop.maximum
    if any(bound is not None and not -MAX_BOUND <= bound <= MAX_BOUND for bound in (low, high)):
        return f"Bounds must be between -{MAX_BOUND} and {MAX_BOUND}."
    if low is not None and high is not None and low > high:
        return "The minimum is larger than the maximum."
    if prop.is_seed and high is not None and prop.smallest_seed > high:
        return "The bounds of a seed must include a whole number that is not negative."
    return None


def _can_scale(prop: Property, source: Property | None) -> bool:
    if source is None or source.scaled_from is not None:
        return False
    return all(scaled.type is PropertyType.NUMBER and (scaled.default_value or 0) > 0 for scaled in (prop, source))


def resolve(
    properties: Sequence[Property], *, overrides: Mapping[str, Any], user_input: Mapping[str, Any]
) -> list[Value]:
    """Resolve the value of every property that has one. The primary input is sent as a file, not as user input."""
    by_key = {property_.key: property_ for property_ in properties}
    errors = _refused_keys(by_key, user_input)
    values: list[Value] = []
    for property_ in properties:
        given = user_input.get(property_.key)
        from_user = property_.key not in errors and given is not None
        value = given if from_user else _default(property_, by_key, overrides, user_input)
        if property_.key in errors:
            continue
        if value is None and property_.type is PropertyType.TEXT and not property_.required:
            # Otherwise the placeholder itself would appear in the prompt.
            value = ""
        if value is None:
            if property_.required and not property_.is_primary_input:
                errors[property_.key] = "This input is required."
        elif problem := problem_with(property_, value):
            errors[property_.key] = problem
        else:
            # Some nodes of ComfyUI reject 8.0 as a whole number.
            value = int(value) if property_.is_whole and isinstance(value, float) else value
            values.append(Value(property=property_, value=value, from_user=from_user))
    if errors:
        raise InvalidInput(errors=errors)
    return values


def defaults(properties: Sequence[Property], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all properties without user input."""
    by_key = {property_.key: property_ for property_ in properties}
    return {property_.key: _default(property_, by_key, overrides, {}) for property_ in properties}


def seeds_to_draw(
    properties: Sequence[Property], *, overrides: Mapping[str, Any], user_input: Mapping[str, Any]
) -> list[Property]:
    """Return the seeds to draw at random for a job.

    If the user sets one seed, none is drawn: the user wants to reproduce a result. Seeds set by an effect, and defaults
    that users may not change, are kept.
    """
    seeds = [property_ for property_ in properties if property_.is_seed]
    if any(user_input.get(seed.key) is not None for seed in seeds):
        return []
    return [
        seed
        for seed in seeds
        if overrides.get(seed.key) is None and (seed.user_configurable or seed.default_value is None)
    ]


def _default(
    prop: Property, by_key: Mapping[str, Property], overrides: Mapping[str, Any], user_input: Mapping[str, Any]
) -> Any:
    """Return the value of a property that the user does not set. A scaled value keeps its ratio to its source."""
    value = overrides.get(prop.key, prop.default_value)
    source = by_key.get(prop.scaled_from or "")
    if source is None:
        return value
    effect_value = overrides.get(source.key, source.default_value)
    # An override is relative to the effect's own value of the source.
    base = effect_value if prop.key in overrides else source.default_value
    given = user_input.get(source.key)
    current = effect_value if given is None else given
    if current == base or problem_with(source, current) or not value or not base or value > base:
        return value
    scaled = value * current / base
    scaled = max(1, math.floor(scaled + 0.5)) if prop.is_whole else scaled
    scaled = scaled if prop.minimum is None else max(scaled, prop.minimum)
    return scaled if prop.maximum is None else min(scaled, prop.maximum)


def check_overrides(properties: Sequence[Property], overrides: Mapping[str, Any]) -> None:
    by_key = {property_.key: property_ for property_ in properties}
    errors = {key: "The workflow has no such property." for key in overrides if key not in by_key}
    for key, value in overrides.items():
        if key in by_key and value is not None and (problem := problem_with(by_key[key], value)):
            errors[key] = problem
    if errors:
        raise InvalidInput(errors=errors)


def _refused_keys(by_key: Mapping[str, Property], user_input: Mapping[str, Any]) -> dict[str, str]:
    inputs = [prop.key for prop in by_key.values() if prop.user_configurable and not prop.is_primary_input]
    known = ", ".join(sorted(inputs)) or "none"
    errors: dict[str, str] = {}
    for key in user_input:
        if key not in by_key:
            errors[key] = f"Unknown input. Available inputs: {known}."
        elif by_key[key].is_primary_input:
            errors[key] = "Send the primary input as input_file_id or video_id."
        elif not by_key[key].user_configurable:
            errors[key] = f"The effect sets this input. Available inputs: {known}."
    return errors


def problem_with(prop: Property, value: Any) -> str | None:
    """Return why a value is invalid for a property, or `None`."""
    match prop.type:
        case PropertyType.TEXT:
            return _text_problem(value)
        case PropertyType.BOOLEAN:
            return None if isinstance(value, bool) else "This must be true or false."
        case PropertyType.NUMBER:
            return _number_problem(prop, value)
        case PropertyType.CHOICE:
            if value in prop.choices:
                return None
            return f"This must be one of: {', '.join(map(str, prop.choices))}."
        case PropertyType.IMAGE | PropertyType.VIDEO | PropertyType.AUDIO:
            is_id = isinstance(value, str) and value and is_storable(value)
            return None if is_id else "This must be the id of a file."
    assert_never(prop.type)


def _text_problem(value: Any) -> str | None:
    if not isinstance(value, str):
        return "This must be text."
    return None if is_storable(value) else "This contains a character that cannot be stored."


def _number_problem(prop: Property, value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        return "This must be a number."
    if prop.is_whole and value != int(value):
        return "This must be a whole number."
    if prop.minimum is not None and value < prop.minimum:
        return f"This must be at least {_format_bound(prop.minimum)}."
    if prop.maximum is not None and value > prop.maximum:
        return f"This must be at most {_format_bound(prop.maximum)}."
    return None


def _format_bound(bound: float) -> str:
    """Format integers with all digits, because a seed may have twenty."""
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class AppliedPreset:
    """The values of a preset for a workflow; `ignored` has the keys that the workflow does not have."""

    values: Mapping[str, Any]
    ignored: Sequence[str]

    @property
    def remark(self) -> str:
        return f"Not used by this workflow: {', '.join(self.ignored)}." if self.ignored else ""


def apply_preset(preset: Mapping[str, Any], properties: Sequence[Property]) -> AppliedPreset:
    """Apply each key to the property with that key, or to all properties with that role, for example to
    the steps of every sampler.

    A property key takes precedence over a role. Values that are invalid for a property are skipped.
    """
    configurable = [property_ for property_ in properties if property_.user_configurable and not property_.is_asset]
    values: dict[str, Any] = {}
    ignored = []
    for key, value in preset.items():
        targets = [prop for prop in configurable if prop.key == key or (prop.role == key and prop.key not in preset)]
        valid = [prop.key for prop in targets if not problem_with(prop, value)]
        if not valid:
            ignored.append(key)
        values.update(dict.fromkeys(valid, value))
    return AppliedPreset(values=values, ignored=ignored)


def describe_changes(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe how the inputs of a newer workflow version differ, because presets and scripts may depend on them."""
    old, new = ({str(entry["key"]): entry for entry in entries} for entries in (before, after))
    both = [key for key in old if key in new]
    new_types = [key for key in both if old[key]["type"] != new[key]["type"]]
    new_defaults = [key for key in both if key not in new_types and not _has_same_default(old[key], new[key])]
    changes = {
        "Removed inputs": [key for key in old if key not in new],
        "Inputs with a new type": [f"{key} ({old[key]['type']}, now {new[key]['type']})" for key in new_types],
        "Inputs with a new default": new_defaults,
        "New inputs": [key for key in new if key not in old],
    }
    return [f"{title}: {list_names(names)}." for title, names in changes.items() if names]


def _has_same_default(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    first, second = one.get("default_value"), other.get("default_value")
    # In Python, `True == 1`.
    return bool(first == second) and isinstance(first, bool) == isinstance(second, bool)


def list_names(names: Sequence[str]) -> str:
    """List at most `MAX_NAMED` names, and say how many more there are."""
    more = len(names) - MAX_NAMED
    return ", ".join([*names[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])])
