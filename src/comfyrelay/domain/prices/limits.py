"""Limits of the numbers that customers may set. Without them, a customer could choose a batch of 4,096 pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.domain.properties import Property, PropertyType, Role
from comfyrelay.errors import InvalidInput

MAX_SECONDS = 86_400
MAX_MEGAPIXELS = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberLimit:
    """The limits to propose, and the highest maximum of a published effect."""

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
_BATCH_KEYS = ("batch_size", "batch", "num_images", "amount")
# How far a number without a known meaning may go from its default.
_FACTOR = 10


def limit_of(prop: Property) -> NumberLimit | None:
    """Return the limit of a number that makes a job larger, if it is one."""
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
        high = high if high is not None else reach
    if default is not None:
        low, high = min(low, default), max(high, default)
    return low, max(low, high)


def with_limits(properties: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the properties of a graph with the proposed limits of their numbers."""
    found = []
    for fields in properties:
        prop = Property.from_json(fields)
        low, high = propose_limits(prop)
        found.append({**fields, "minimum": low, "maximum": high} if prop.type is PropertyType.NUMBER else dict(fields))
    return found


def check_limits(properties: Sequence[Property]) -> None:
    """Raise `InvalidInput` unless every number that a customer may set has sane limits."""
    errors = {prop.key: problem for prop in properties if (problem := _problem(prop)) is not None}
    if errors:
        first = next(iter(errors.items()))
        text = f"This workflow cannot be published: customers could choose any size of a job. {first[0]}: {first[1]}"
        raise InvalidInput(text, errors={f"properties.{key}": problem for key, problem in errors.items()})


def _problem(prop: Property) -> str | None:
    if prop.type is not PropertyType.NUMBER or not prop.user_configurable or prop.is_seed:
        return None
    proposed = "{:g} to {:g}".format(*propose_limits(prop))
    if prop.minimum is None or prop.maximum is None:
        return f"Set a minimum and a maximum, such as {proposed}."
    limit = limit_of(prop)
    if limit is not None and prop.maximum > limit.highest_maximum:
        return f"Lower the maximum to {limit.highest_maximum:g} or less, such as {proposed}."
    return None
