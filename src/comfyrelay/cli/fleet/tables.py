"""Tables that truncate nothing in narrow terminals."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from comfyrelay.text import printable

_GAPS = ("  ", " ")
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class TableRow:
    cells: Sequence[str]
    # sentences below the row
    notes: Sequence[str] = ()


def show(out: Console, head: Sequence[str], rows: Sequence[TableRow]) -> None:
    """Put the first cell on a separate line if a row is too wide even with narrow gaps."""
    cells = [head, *(each.cells for each in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    gap = next((each for each in _GAPS if sum(widths) + len(each) * (len(widths) - 1) <= out.width), None)
    _line(out, head, widths, gap=gap, style="bold")
    for row in rows:
        _line(out, row.cells, widths, gap=gap)
        for note in row.notes:
            lines = textwrap.fill(
                printable(note),
                max(out.width, 20),
                initial_indent=_INDENT,
                subsequent_indent=_INDENT,
                break_on_hyphens=False,
            )
            out.print(Text(lines, style="dim"), soft_wrap=True)


def _line(out: Console, cells: Sequence[str], widths: Sequence[int], *, gap: str | None, style: str = "") -> None:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    if gap is None:
        out.print(Text(cells[0], style=style), soft_wrap=True)
        padded = ["", *padded[1:]]
    out.print(Text((gap or _INDENT).join(padded).rstrip(), style=style), soft_wrap=True)
