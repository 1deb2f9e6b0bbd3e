"""Shapes of pictures in words, and which of them do not fit what is to be made of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# Sides that people know shapes by.
_KNOWN = ((1, 1), (5, 4), (4, 3), (3, 2), (16, 10), (16, 9), (2, 1), (21, 9))
# Closer than this two shapes look the same: sizes are rounded to what a model takes.
_SAME = 0.04
# Of a list in a sentence.
_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    name: str
    width: int
    height: int

    @property
    def ratio(self) -> float:
        return self.width / self.height


@dataclass(frozen=True, kw_only=True, slots=True)
class InputWarning:
    """Something about inputs that their owner may not have meant: `name` is whose, `text` the whole sentence."""

    name: str
    text: str


def in_words(width: int, height: int) -> str:
    """`4:3`, `9:16`; of a shape without a name, its size."""
    ratio = width / height
    for long, short in _KNOWN:
        if _is_same(ratio, long / short):
            return f"{long}:{short}"
        if _is_same(ratio, short / long):
            return f"{short}:{long}"
    return f"{width} × {height}"


def odd_shapes(inputs: Sequence[Shape], *, wanted: tuple[int, int] | None) -> list[InputWarning]:
    """Those of another shape than the result has or, where that is not known, than most of them have."""
    known = [each for each in inputs if each.width > 0 and each.height > 0]
    if wanted is not None:
        width, height = wanted
        odd = [each for each in known if not _is_same(each.ratio, width / height)]
        return _remarks(odd, f"The result is {width} × {height}: expect it to be cropped or stretched.")
    if not known:
        return []
    counted = Counter(in_words(each.width, each.height) for each in known)
    usual, times = counted.most_common(1)[0]
    odd = [each for each in known if in_words(each.width, each.height) != usual]
    # without a majority there is nothing to differ from
    return _remarks(odd, f"Most of the others are {usual}.") if times > len(odd) else []


def _remarks(odd: Sequence[Shape], why: str) -> list[InputWarning]:
    if len(odd) <= _MOST_NAMED:
        return [
            InputWarning(name=each.name, text=f"{each.name} is {in_words(each.width, each.height)}. {why}")
            for each in odd
        ]
    first = odd[0]
    words = f"{first.name} and {len(odd) - 1} more have another shape."
    return [InputWarning(name=first.name, text=f"{words} {why}")]


def _is_same(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME * max(one, other)
