"""Name aspect ratios and warn about input images whose shape does not match."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# Common aspect ratios.
_KNOWN = ((1, 1), (5, 4), (4, 3), (3, 2), (16, 10), (16, 9), (2, 1), (21, 9))
# Relative difference up to which two ratios count as equal, because models round sizes.
_SAME = 0.04
# If more images than this differ, they share one warning.
_MAX_NAMED = 3


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
    """A warning about an input: its `name` and the full sentence."""

    name: str
    text: str


def name_shape(width: int, height: int) -> str:
    """Return `4:3` or `9:16`, or the size of an uncommon shape."""
    ratio = width / height
    for long, short in _KNOWN:
        if _is_same(ratio, long / short):
            return f"{long}:{short}"
        if _is_same(ratio, short / long):
            return f"{short}:{long}"
    return f"{width} × {height}"


def shape_warnings(inputs: Sequence[Shape], *, wanted: tuple[int, int] | None) -> list[InputWarning]:
    """Warn about inputs whose shape differs from that of the result or, if it is unknown, of the majority."""
    known = [shape for shape in inputs if shape.width > 0 and shape.height > 0]
    if wanted is not None:
        width, height = wanted
        others = [shape for shape in known if not _is_same(shape.ratio, width / height)]
        return _warnings(others, f"The result is {width} × {height}, so it may be cropped or stretched.")
    if not known:
        return []
    counts = Counter(name_shape(shape.width, shape.height) for shape in known)
    usual, count = counts.most_common(1)[0]
    others = [shape for shape in known if name_shape(shape.width, shape.height) != usual]
    return _warnings(others, f"Most of the others are {usual}.") if count > len(others) else []


def _warnings(shapes: Sequence[Shape], why: str) -> list[InputWarning]:
    if len(shapes) <= _MAX_NAMED:
        return [
            InputWarning(name=shape.name, text=f"{shape.name} is {name_shape(shape.width, shape.height)}. {why}")
            for shape in shapes
        ]
    first = shapes[0]
    return [InputWarning(name=first.name, text=f"{first.name} and {len(shapes) - 1} more have another shape. {why}")]


def _is_same(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME * max(one, other)
