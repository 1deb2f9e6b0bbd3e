"""Sweep axes: the values of one field that a batch combines with its other lists.

An axis is a list of values, or a text. The text contains numbers, ranges (`1..8:0.5`) and random numbers from a range
(`5 of 1..8`), separated by commas; for a choice, its values or `*`; for a text property, one value per line. A JSON
list always works.
"""

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from comfyrelay.domain.bulk import MAX_ITEMS
from comfyrelay.domain.properties import Property, PropertyType, problem_with
from comfyrelay.errors import InvalidInput
from comfyrelay.text import excerpt

ALL = "*"
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?"
# Longer parts are not numbers, and computing with larger numbers takes seconds.
_MAX_PART, _MAX_EXPONENT = 100, 30
_RANGE = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})(?:\s*:\s*({_NUMBER}))?")
_RANDOM = re.compile(rf"(\d{{1,9}})\s+of\s+({_NUMBER})\s*\.\.\s*({_NUMBER})(?:\s*:\s*({_NUMBER}))?")
# Random fractions without a step have this many digits after the point.
_RANDOM_DIGITS = 3
_VALUE_LENGTH = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepAxis:
    """The values of one property."""

    key: str
    name: str
    values: Sequence[Any]

    @property
    def texts(self) -> list[str]:
        return [value_text(value) for value in self.values]


def value_text(value: Any) -> str:
    """Return a value in the form that labels show."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return excerpt(str(value), length=_VALUE_LENGTH)


def read_axes(
    given: Mapping[str, Any], properties: Sequence[Property], *, rng: random.Random | None = None
) -> list[SweepAxis]:
    """Return the axes of a sweep. A key is the key of a property, or a role that one property has."""
    found: dict[str, SweepAxis] = {}
    for name, values in given.items():
        prop = _property(name, properties)
        if prop.key in found:
            raise _refusal(prop.key, "This field is swept twice.")
        found[prop.key] = SweepAxis(
            key=prop.key, name=prop.display_name, values=_checked(prop, values, rng or random.Random())
        )
    return list(found.values())


def _property(name: str, properties: Sequence[Property]) -> Property:
    by_key = {prop.key: prop for prop in properties}
    of_role = [prop for prop in properties if prop.role is not None and prop.role == name]
    prop = by_key.get(name) or (of_role[0] if len(of_role) == 1 else None)
    usable = [prop.key for prop in properties if prop.user_configurable and not prop.is_asset]
    if prop is None or prop.key not in usable:
        known = ", ".join(sorted(usable)) or "none"
        reason = "This is a file. Add several input files instead." if prop is not None and prop.is_asset else ""
        raise _refusal(name, reason or f"There is no such field to sweep. There are: {known}.")
    return prop


def _checked(prop: Property, given: Any, rng: random.Random) -> list[Any]:
    values = list(_parsed(prop, given, rng)) if isinstance(given, str) else given
    if not isinstance(values, list) or not values:
        raise _refusal(prop.key, f"There is no value to sweep. {_advice(prop)}")
    if len(values) > MAX_ITEMS:
        raise _too_many(prop)
    for value in values:
        if problem := problem_with(prop, value):
            raise _refusal(prop.key, f"{value_text(value)}: {problem}")
    return [int(value) if prop.is_whole and isinstance(value, float) else value for value in values]


def _parsed(prop: Property, text: str, rng: random.Random) -> Iterable[Any]:
    if text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except ValueError:
            raise _refusal(prop.key, "This is not a JSON list.") from None
        return values if isinstance(values, list) else [values]
    if prop.type is PropertyType.TEXT:
        return [line.strip() for line in re.split(r"\r\n|\r|\n", text) if line.strip()]
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if prop.type is PropertyType.NUMBER:
        return _numbers(prop, parts, rng)
    choices = [True, False] if prop.type is PropertyType.BOOLEAN else list(prop.choices)
    if parts == [ALL]:
        return choices
    words = {"true": True, "on": True, "false": False, "off": False} if prop.type is PropertyType.BOOLEAN else {}
    by_text = {**{str(choice): choice for choice in choices}, **words}
    # The error about an invalid choice lists the choices.
    return [by_text.get(part, part) for part in parts]


def _numbers(prop: Property, parts: Iterable[str], rng: random.Random) -> list[int | float]:
    numbers: list[int | float] = []
    for part in parts:
        if len(part) > _MAX_PART:
            raise _invalid_number(prop, part)
        if found := _RANDOM.fullmatch(part):
            numbers += _random(prop, found, rng)
        elif found := _RANGE.fullmatch(part):
            numbers += _range(prop, *(None if text is None else _decimal(prop, text) for text in found.groups()))
        else:
            numbers.append(_number(_decimal(prop, part)))
        if len(numbers) > MAX_ITEMS:
            raise _too_many(prop)
    return numbers


def _range(prop: Property, start: Decimal | None, end: Decimal | None, step: Decimal | None) -> list[int | float]:
    assert start is not None
    assert end is not None
    step = _step(prop, step)
    count = int(abs(end - start) / step) + 1
    if count > MAX_ITEMS:
        raise _too_many(prop)
    # A range may also count down.
    signed = step if start <= end else -step
    return [_number(start + place * signed) for place in range(count)]


def _random(prop: Property, found: re.Match[str], rng: random.Random) -> list[int | float]:
    """Return distinct random numbers from a range, in ascending order."""
    count = int(found[1])
    low, high = sorted(_decimal(prop, found[place]) for place in (2, 3))
    step = _step(prop, _decimal(prop, found[4]) if found[4] else None, smallest=Decimal(1).scaleb(-_RANDOM_DIGITS))
    places = int((high - low) / step) + 1
    if count > MAX_ITEMS:
        raise _too_many(prop)
    if not 1 <= count <= places:
        raise _refusal(prop.key, f"{found[0]}: There are {places:,} different values, so draw 1 to {places:,}.")
    # `sample` refuses the range of seeds, which has more than 2**63 values.
    drawn: set[int] = set()
    while len(drawn) < count:
        drawn.add(rng.randrange(places))
    return [_number(low + place * step) for place in sorted(drawn)]


def _step(prop: Property, given: Decimal | None, *, smallest: Decimal = Decimal(1)) -> Decimal:
    step = abs(given) if given is not None else Decimal(1) if prop.is_whole else smallest
    if not step:
        raise _refusal(prop.key, "The step of a range must not be 0.")
    return step


def _decimal(prop: Property, text: str) -> Decimal:
    # Decimal numbers add up exactly: 0.1 + 0.2 is 0.3.
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise _invalid_number(prop, text) from None
    if not number.is_finite() or abs(number.adjusted()) > _MAX_EXPONENT:
        raise _invalid_number(prop, text)
    return number


def _invalid_number(prop: Property, text: str) -> InvalidInput:
    return _refusal(prop.key, f"{excerpt(text, length=40)!r} is not a number or a range. {_advice(prop)}")


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _advice(prop: Property) -> str:
    match prop.type:
        case PropertyType.NUMBER:
            return "Write 10, 20, 30, or a range 1..8:0.5, or 5 of 1..8 for random values."
        case PropertyType.TEXT:
            return "Write one value per line."
        case _:
            return f"Write values with commas, or {ALL} for all."


def _too_many(prop: Property) -> InvalidInput:
    return _refusal(prop.key, f"These are more than {MAX_ITEMS:,} values.")


def _refusal(key: str, reason: str) -> InvalidInput:
    return InvalidInput(f"{key}: {reason}", errors={key: reason})
