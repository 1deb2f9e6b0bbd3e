"""Formulas for prices, such as `2 + 3 * seconds * max(1, megapixels)`.

The grammar is small: numbers, names, `+ - * /`, parentheses, `min` and `max`. Nothing is executed. All
values are exact fractions, so that the same inputs always have the same price.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from comfyrelay.errors import InvalidInput

MAX_LENGTH = 200
MAX_DEPTH = 20
_TOKEN = re.compile(r"\s*(?:\d{1,9}(?:\.\d{1,6})?(?![\w.])|[A-Za-z_]\w{0,63}(?!\w)|[-+*/(),])", re.ASCII)
_FUNCTIONS = ("min", "max")
T = TypeVar("T")


class _DivisionByZero(Exception):
    """The value of a divisor is, or may be, zero."""


@dataclass(frozen=True, slots=True)
class Interval:
    """All values that a part of a formula can have."""

    low: Fraction
    high: Fraction


@dataclass(frozen=True, slots=True)
class _Node:
    """A number or a name without operands, or an operator with its operands."""

    what: str | Fraction
    operands: tuple["_Node", ...] = ()

    def names(self) -> Iterator[str]:
        if isinstance(self.what, str) and not self.operands:
            yield self.what
        for operand in self.operands:
            yield from operand.names()


class Formula:
    """A parsed formula. Raises `InvalidInput` if the text is not one."""

    def __init__(self, text: str) -> None:
        self._root = _Parser(text).parse()
        self.names = frozenset(self._root.names())

    def tokens(self, values: Mapping[str, Fraction], *, minimum: int, maximum: int) -> int:
        """Return the price, rounded up. It is the maximum if a value is unknown or a divisor is zero."""
        if not self.names <= values.keys():
            return maximum
        try:
            price = _evaluate(self._root, values, _OPERATORS, number=Fraction)
        except _DivisionByZero:
            return maximum
        return max(minimum, min(maximum, math.ceil(price)))

    def highest(self, ranges: Mapping[str, Interval]) -> Fraction:
        """Return a value that the formula does not exceed for values in these ranges. Raises `InvalidInput` if a
        divisor is zero for some of them."""
        try:
            return _evaluate(self._root, ranges, _INTERVAL_OPERATORS, number=lambda value: Interval(value, value)).high
        except _DivisionByZero:
            raise _invalid("It may divide by zero. Use max(1, …) for the divisor.") from None


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise _invalid(f"It has more than {MAX_LENGTH} characters.")
        self._tokens = list(_split(text))
        self._position = 0
        self._depth = 0

    def parse(self) -> _Node:
        root = self._sum()
        if (left := self._peek()) is not None:
            raise _invalid(f"Unexpected {left!r}.")
        return root

    def _peek(self) -> str | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _take(self, wanted: str | None = None) -> str:
        token = self._peek()
        if token is None:
            raise _invalid("It ends too early.")
        if wanted is not None and token != wanted:
            raise _invalid(f"Expected {wanted!r}, not {token!r}.")
        self._position += 1
        return token

    def _sum(self) -> _Node:
        return self._chain("+-", self._product)

    def _product(self) -> _Node:
        return self._chain("*/", self._value)

    def _chain(self, signs: str, part: Callable[[], _Node]) -> _Node:
        node = part()
        while (sign := self._peek()) is not None and sign in signs:
            self._take()
            node = _Node(sign, (node, part()))
        return node

    def _value(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _invalid(f"It is nested more than {MAX_DEPTH} levels deep.")
        try:
            token = self._take()
            if token == "-":
                return _Node("-", (_Node(Fraction(0)), self._value()))
            if token == "(":
                node = self._sum()
                self._take(")")
                return node
            if token[0].isdigit():
                return _Node(Fraction(token))
            if token in _FUNCTIONS:
                return _Node(token, self._arguments())
            if token in "+*/),":
                raise _invalid(f"Unexpected {token!r}.")
            return _Node(token)
        finally:
            self._depth -= 1

    def _arguments(self) -> tuple[_Node, ...]:
        self._take("(")
        found = [self._sum()]
        while self._peek() == ",":
            self._take()
            found.append(self._sum())
        self._take(")")
        return tuple(found)


def _split(text: str) -> Iterator[str]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise _invalid(f"Unexpected {text[position:].strip()[:1]!r}.")
        yield match.group().strip()
        position = match.end()


def _evaluate(
    node: _Node, values: Mapping[str, T], operators: Mapping[str, Callable[..., T]], *, number: Callable[[Fraction], T]
) -> T:
    if isinstance(node.what, Fraction):
        return number(node.what)
    if not node.operands:
        return values[node.what]
    return operators[node.what](*(_evaluate(operand, values, operators, number=number) for operand in node.operands))


def _divide(dividend: Fraction, divisor: Fraction) -> Fraction:
    if divisor == 0:
        raise _DivisionByZero
    return dividend / divisor


_OPERATORS: Mapping[str, Callable[..., Fraction]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
    "/": _divide,
    "min": min,
    "max": max,
}


def _multiply_ranges(one: Interval, other: Interval) -> Interval:
    corners = [a * b for a in (one.low, one.high) for b in (other.low, other.high)]
    return Interval(min(corners), max(corners))


def _divide_ranges(dividend: Interval, divisor: Interval) -> Interval:
    if divisor.low <= 0 <= divisor.high:
        raise _DivisionByZero
    return _multiply_ranges(dividend, Interval(1 / divisor.high, 1 / divisor.low))


_INTERVAL_OPERATORS: Mapping[str, Callable[..., Interval]] = {
    "+": lambda one, other: Interval(one.low + other.low, one.high + other.high),
    "-": lambda one, other: Interval(one.low - other.high, one.high - other.low),
    "*": _multiply_ranges,
    "/": _divide_ranges,
    "min": lambda *parts: Interval(min(part.low for part in parts), min(part.high for part in parts)),
    "max": lambda *parts: Interval(max(part.low for part in parts), max(part.high for part in parts)),
}


def _invalid(problem: str) -> InvalidInput:
    return InvalidInput(errors={"price_formula": f"This is not a price. {problem}"})
