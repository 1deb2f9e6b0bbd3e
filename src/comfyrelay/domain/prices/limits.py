"""Limits for everything that customers may set. Without limits, a customer could choose a batch of 4,096 pictures, or
send a video of two hours.

The maximum is in characters for a text, in seconds for a video or sound, and in megapixels for an image. If it is not
set, the proposed maximum applies.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.domain.properties import Property, PropertyType, Role, Value
from comfyrelay.errors import InvalidInput

MAX_SECONDS = 86_400
# Maximum duration of a run of an effect, unless its operator sets another limit.
DEFAULT_RUN_SECONDS = 1800
MAX_MEGAPIXELS = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberLimit:
    """The limits to propose, and the highest maximum that a published effect may have."""

    proposed_minimum: float
    proposed_maximum: float
    highest_maximum: float


_SIDE = NumberLimit(proposed_minimum=64, proposed_maximum=2048, highest_maximum=8192)
_BY_ROLE = {
    Role.WIDTH: _SIDE,
    Role.HEIGHT: _SIDE,
    Role.MEGAPIXELS: NumberLimit(proposed_minimum=0.1, proposed_maximum=4, highest_maximum=64),
    Role.LENGTH: NumberLimit(proposed_minimum=1, proposed_maximum=161, highest_maximum=5000),
    Role.DURATION: NumberLimit(proposed_minimum=1, proposed_maximum=10, highest_maximum=600),
    Role.STEPS: NumberLimit(proposed_minimum=1, proposed_maximum=50, highest_maximum=500),
}
_BATCH = NumberLimit(proposed_minimum=1, proposed_maximum=4, highest_maximum=64)
_BATCH_KEYS = ("batch_size", "batch", "num_images", "amount", "batch_count", "image_count", "n_iter", "count", "repeat")
# Maximum factor between a number without a known meaning and its default: without limits of its node, and with them.
_FACTOR = 10
_NODE_FACTOR = 100
PIXELS = 1_000_000
# Slow-motion recordings have up to 240 frames per second, and take as much work as longer videos with this frame rate.
FRAMES_PER_SECOND = 60
# Durations are rounded.
_USUAL_FRAME_RATE = 61
# The size of a 4K video. For an image, the property has a limit.
MAX_FRAME_PIXELS = 9 * PIXELS


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFacts:
    """The measured size, duration and number of frames of a file."""

    width: int | None = None
    height: int | None = None
    seconds: float | None = None
    frames: int | None = None

    @property
    def pixels(self) -> int:
        return (self.width or 0) * (self.height or 0)

    @property
    def counted_seconds(self) -> float | None:
        """The duration for limits and prices. Of a video with more than 60 frames per second, 60 frames count as one
        second: otherwise a short video could have any number of frames."""
        if self.seconds is None or self.frames is None:
            return self.seconds
        is_usual = self.frames <= max(1, math.ceil(self.seconds * _USUAL_FRAME_RATE))
        return self.seconds if is_usual else self.frames / FRAMES_PER_SECOND


@dataclass(frozen=True, kw_only=True, slots=True)
class InputLimit:
    """The maximum of a text or file if none is set, and the highest maximum that a published effect may have."""

    proposed_maximum: float
    highest_maximum: float
    unit: str


_RECORDED = InputLimit(proposed_maximum=120, highest_maximum=3600, unit="seconds")
_INPUTS = {
    PropertyType.TEXT: InputLimit(proposed_maximum=5000, highest_maximum=50_000, unit="characters"),
    PropertyType.VIDEO: _RECORDED,
    PropertyType.AUDIO: _RECORDED,
    PropertyType.IMAGE: InputLimit(proposed_maximum=50, highest_maximum=200, unit="megapixels"),
}


def limit_of(prop: Property) -> NumberLimit | None:
    """Return the limit of a number if it determines the size of a job, otherwise `None`."""
    if prop.type is not PropertyType.NUMBER:
        return None
    key = prop.key.lower()
    if any(key == name or key.endswith(f"_{name}") or key.startswith(f"{name}_") for name in _BATCH_KEYS):
        return _BATCH
    return _BY_ROLE.get(prop.role) if prop.role is not None else None


def propose_limits(prop: Property) -> tuple[float | None, float | None]:
    """Return the minimum and the maximum to propose for a number. They contain its default."""
    low, high = prop.minimum, prop.maximum
    if prop.type is not PropertyType.NUMBER or prop.is_seed:
        return low, high
    default = prop.default_value if isinstance(prop.default_value, int | float) else None
    limit = limit_of(prop)
    if limit is not None:
        low = max(low if low is not None else limit.proposed_minimum, limit.proposed_minimum)
        high = min(high if high is not None else limit.proposed_maximum, limit.proposed_maximum)
    else:
        reach = max(abs(default or 0) * _FACTOR, 1)
        low = low if low is not None else (-reach if default is not None and default < 0 else 0)
        high = min(high, max(abs(default or 0), 1) * _NODE_FACTOR) if high is not None else reach
    if default is not None:
        low, high = min(low, default), max(high, default)
    return low, max(low, high)


def with_limits(properties: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the properties of a graph with the proposed limits of their numbers."""
    found = []
    for fields in properties:
        prop = Property.from_json(fields)
        low, high = propose_limits(prop)
        if prop.type is PropertyType.NUMBER:
            found.append({**fields, "minimum": low, "maximum": high})
        else:
            found.append({**fields, "maximum": greatest_input(prop)} if prop.type in _INPUTS else dict(fields))
    return found


def check_limits(properties: Sequence[Property]) -> None:
    """Raise `InvalidInput` unless everything that a customer may set has sane limits."""
    errors = {prop.key: problem for prop in properties if (problem := _problem(prop)) is not None}
    if errors:
        first = next(iter(errors.items()))
        text = f"This workflow cannot be published: customers could choose jobs of any size. {first[0]}: {first[1]}"
        raise InvalidInput(text, errors={f"properties.{key}": problem for key, problem in errors.items()})


def _problem(prop: Property) -> str | None:
    if (input_limit := _INPUTS.get(prop.type)) is not None and (prop.user_configurable or prop.is_primary_input):
        return _input_problem(prop, input_limit)
    if prop.type is not PropertyType.NUMBER or not prop.user_configurable or prop.is_seed:
        return None
    proposed = "{:g} to {:g}".format(*propose_limits(prop))
    if prop.minimum is None or prop.maximum is None:
        return f"Set a minimum and a maximum, such as {proposed}."
    limit = limit_of(prop)
    if limit is not None and prop.maximum > limit.highest_maximum:
        return f"Lower the maximum to {limit.highest_maximum:g} or less, such as {proposed}."
    return None


def _input_problem(prop: Property, limit: InputLimit) -> str | None:
    if prop.maximum is None or 0 < prop.maximum <= limit.highest_maximum:
        return None
    highest, proposed = limit.highest_maximum, limit.proposed_maximum
    return f"Set the maximum to at most {highest:g} {limit.unit}, such as {proposed:g}."


def greatest_input(prop: Property) -> float | None:
    """Return the limit of a text in characters, of a video or sound in seconds, and of an image in megapixels."""
    limit = _INPUTS.get(prop.type)
    if limit is None or prop.maximum is not None:
        return prop.maximum
    return max(limit.proposed_maximum, len(str(prop.default_value or "")))


def check_inputs(
    values: Iterable[Value],
    properties: Iterable[Property],
    measured: Mapping[str, InputFacts],
    *,
    primary_id: str | None,
) -> None:
    """Raise `InvalidInput` if a text or file of a customer is larger than its limit."""
    errors = {}
    for value in values:
        prop, given = value.property, value.value
        if not value.from_user or prop.type not in _INPUTS:
            continue
        problem = _file_problem(prop, measured.get(given)) if prop.is_asset else _text_problem(prop, given)
        if problem is not None:
            errors[prop.key] = problem
    primary = next((prop for prop in properties if prop.is_primary_input), None)
    if primary is not None and (problem := _file_problem(primary, measured.get(primary_id or ""))) is not None:
        errors["input_file_id"] = problem
    if errors:
        raise InvalidInput(errors=errors)


def _text_problem(prop: Property, text: str) -> str | None:
    limit = greatest_input(prop)
    return f"This must have at most {limit:g} characters." if limit is not None and len(text) > limit else None


def _file_problem(prop: Property, facts: InputFacts | None) -> str | None:
    limit = greatest_input(prop)
    if facts is None or limit is None:
        return None
    return _image_problem(facts, limit) if prop.type is PropertyType.IMAGE else _recording_problem(facts, limit)


def _image_problem(facts: InputFacts, megapixels: float) -> str | None:
    if facts.frames is not None and facts.frames > 1:
        # ComfyUI would run the effect once for each picture.
        return "This image is animated. Upload a single picture."
    return f"This image has more than {megapixels:g} megapixels." if facts.pixels > megapixels * PIXELS else None


def _recording_problem(facts: InputFacts, seconds: float) -> str | None:
    if facts.seconds is None or facts.counted_seconds is None:
        return "The duration of this file is unknown. Save it as MP4 or MP3, and upload it again."
    if facts.seconds > seconds:
        return f"This must be at most {seconds:g} seconds long."
    if facts.counted_seconds > seconds:
        return (
            f"This video has more than {FRAMES_PER_SECOND} frames per second. It must have at most "
            f"{seconds * FRAMES_PER_SECOND:,.0f} frames, and has {facts.frames:,}. Shorten it, or save it with "
            f"{FRAMES_PER_SECOND} frames per second."
        )
    return "This video is larger than 4K." if facts.pixels > MAX_FRAME_PIXELS else None
