"""The price of an effect: fixed, or a formula of what a job does, between a minimum and a maximum."""

import math
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

from comfyrelay.domain.prices.formula import Formula, Interval
from comfyrelay.domain.prices.limits import MAX_MEGAPIXELS, MAX_SECONDS, PIXELS, InputFacts, check_limits
from comfyrelay.domain.properties import Property, PropertyType, Role, Value
from comfyrelay.errors import InvalidInput

# The key of a frame rate, such as `fps`, `create_video_fps` or `fps_2`. The form in the web app uses the same pattern.
_FRAME_RATE = re.compile(r"(^|_)(fps|frame_rate)(_\d+)?$", re.ASCII)
# Names that a formula can use, in addition to the keys of number properties.
FACTS = ("seconds", "frames", "megapixels", "steps")
_ROLES = {"frames": Role.LENGTH, "steps": Role.STEPS}
_parse = lru_cache(maxsize=1024)(Formula)


class PricedEffect(Protocol):
    """The price of an effect. With a formula, `credits_cost` is the minimum."""

    @property
    def credits_cost(self) -> int: ...
    @property
    def price_formula(self) -> str | None: ...
    @property
    def max_credits_cost(self) -> int | None: ...


def price_of(effect: PricedEffect, values: Sequence[Value], measured: InputFacts) -> int:
    """Return the price in tokens of a job that runs with these values."""
    if effect.price_formula is None:
        return effect.credits_cost
    known = facts_of(values, measured)
    return _parse(effect.price_formula).tokens(
        known, minimum=effect.credits_cost, maximum=_require_maximum(effect.max_credits_cost)
    )


def needs_input(effect: PricedEffect, properties: Iterable[Property]) -> bool:
    """Whether the price depends on the measured primary input."""
    if effect.price_formula is None:
        return False
    set_by_values = _available(properties, has_input=False)
    return any(name in ("seconds", "megapixels") and name not in set_by_values for name in _names(effect.price_formula))


def facts_of(values: Sequence[Value], measured: InputFacts) -> dict[str, Fraction]:
    """Return the numbers that a formula can use. Of several properties with the same role, the largest counts."""
    numbers = [(value.property, _exact(value.value)) for value in values if value.property.type is PropertyType.NUMBER]
    facts = {prop.key: number for prop, number in numbers}
    by_role = {role: [number for prop, number in numbers if prop.role is role] for role in Role}
    facts |= {name: max(by_role[role]) for name, role in _ROLES.items() if by_role[role]}
    rates = [number for prop, number in numbers if _is_frame_rate(prop) and number > 0]
    if by_role[Role.DURATION]:
        facts["seconds"] = max(by_role[Role.DURATION])
    elif by_role[Role.LENGTH] and rates:
        facts["seconds"] = max(by_role[Role.LENGTH]) / min(rates)
    elif measured.counted_seconds is not None:
        facts["seconds"] = _exact(measured.counted_seconds)
    if by_role[Role.MEGAPIXELS]:
        facts["megapixels"] = max(by_role[Role.MEGAPIXELS])
    elif by_role[Role.WIDTH] and by_role[Role.HEIGHT]:
        facts["megapixels"] = max(by_role[Role.WIDTH]) * max(by_role[Role.HEIGHT]) / PIXELS
    elif measured.width is not None and measured.height is not None:
        facts["megapixels"] = Fraction(measured.width * measured.height, PIXELS)
    return facts


def check_offer(
    properties: Sequence[Property],
    *,
    credits_cost: int,
    price_formula: str | None,
    max_credits_cost: int | None,
    is_active: bool,
    is_new_price: bool = True,
) -> None:
    """Check the price of an effect and, if it is published, the limits of the numbers that customers may set."""
    check_price(
        credits_cost=credits_cost,
        price_formula=price_formula,
        max_credits_cost=max_credits_cost,
        properties=properties,
        is_new=is_new_price,
    )
    if is_active:
        check_limits(properties)


def check_price(
    *,
    credits_cost: int,
    price_formula: str | None,
    max_credits_cost: int | None,
    properties: Sequence[Property],
    is_new: bool = True,
) -> None:
    """Raise `InvalidInput` unless this is a valid price for an effect of a workflow with these properties.

    A new formula must matter. An existing one may have lost its effect when the workflow changed.
    """
    if price_formula is None:
        if max_credits_cost is not None:
            raise InvalidInput(errors={"max_credits_cost": "Only a price with a formula has a maximum."})
        return
    if max_credits_cost is None:
        raise InvalidInput(errors={"max_credits_cost": "A price with a formula needs a maximum."})
    if max_credits_cost < credits_cost:
        raise InvalidInput(errors={"max_credits_cost": "This must not be less than the minimum."})
    formula = Formula(price_formula)
    ranges = _available(properties, has_input=True)
    if unknown := sorted(formula.names - ranges.keys()):
        text = f"This workflow has no {', '.join(unknown)}. Use: {', '.join(sorted(ranges)) or 'numbers only'}."
        raise InvalidInput(errors={"price_formula": text})
    highest = math.ceil(formula.highest(ranges))
    if is_new and highest < max(credits_cost, 1):
        text = f"This is at most {highest}, so the price would always be {credits_cost}. Set a fixed price instead."
        raise InvalidInput(errors={"price_formula": text})


def _available(properties: Iterable[Property], *, has_input: bool) -> dict[str, Interval]:
    """Return the names that a formula can use, with their possible values."""
    properties = list(properties)
    numbers = [prop for prop in properties if prop.type is PropertyType.NUMBER]
    found = {prop.key: _range(prop) for prop in numbers}
    names = {role: name for name, role in _ROLES.items()}
    found |= {names[prop.role]: _range(prop) for prop in numbers if prop.role in names}
    roles = {prop.role for prop in numbers}
    anything = Interval(Fraction(0), Fraction(MAX_SECONDS))
    has_rate = any(map(_is_frame_rate, numbers))
    inputs = {prop.type for prop in properties if prop.is_primary_input} if has_input else set()
    if Role.DURATION in roles or (Role.LENGTH in roles and has_rate) or inputs & {"video", "audio"}:
        found["seconds"] = anything
    if Role.MEGAPIXELS in roles or {Role.WIDTH, Role.HEIGHT} <= roles or inputs & {"image", "video"}:
        found["megapixels"] = Interval(Fraction(0), Fraction(MAX_MEGAPIXELS))
    return found


def _is_frame_rate(prop: Property) -> bool:
    return _FRAME_RATE.search(prop.key) is not None


def _range(prop: Property) -> Interval:
    low, high = prop.minimum, prop.maximum
    if not prop.user_configurable or low is None or high is None:
        return Interval(Fraction(-MAX_SECONDS), Fraction(MAX_SECONDS))
    return Interval(_exact(low), _exact(high))


def _names(formula: str) -> frozenset[str]:
    return _parse(formula).names


def _exact(value: object) -> Fraction:
    """Return a number as it is written, so that 0.1 is a tenth."""
    return Fraction(str(value))


def _require_maximum(maximum: int | None) -> int:
    # The schema requires a maximum if there is a formula.
    assert maximum is not None
    return maximum
