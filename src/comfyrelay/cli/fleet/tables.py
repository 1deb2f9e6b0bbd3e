"""Tables that cut nothing, however narrow the terminal is."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from comfyrelay.text import printable

_GAP = 2


@dataclass(frozen=True, slots=True)
class Row:
    cells: Sequence[str]
    # sentences, each below the row in lines of its own
    notes: Sequence[str] = ()


def show(out: Console, head: Sequence[str], rows: Sequence[Row]) -> None:
    """Where a row has no room, its first cell gets a line of its own."""
    lines = [head, *(each.cells for each in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    is_wide = sum(widths) + _GAP * (len(widths) - 1) > out.width
    _line(out, head, widths, is_wide=is_wide, style="bold")
    for row in rows:
        _line(out, row.cells, widths, is_wide=is_wide)
        for note in row.notes:
            out.print(Padding(Text(printable(note), style="dim"), (0, 0, 0, 2)))


def _line(out: Console, cells: Sequence[str], widths: Sequence[int], *, is_wide: bool, style: str = "") -> None:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    gap = " " * _GAP
    if is_wide:
        out.print(Text(cells[0], style=style), soft_wrap=True)
        padded = ["", *padded[1:]]
    out.print(Text(gap.join(padded).rstrip(), style=style), soft_wrap=True)
