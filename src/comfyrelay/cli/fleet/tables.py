"""Tables that are not truncated in narrow terminals."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from comfyrelay.cli.output import out
from comfyrelay.text import printable

_GAPS = ("  ", " ")
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class TableRow:
    cells: Sequence[str]
    # Sentences below the row.
    notes: Sequence[str] = ()


def print_table(head: Sequence[str], rows: Sequence[TableRow]) -> None:
    """Print a table. If rows are too wide even with narrow gaps, the first cell gets a separate line."""
    cells = [head, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    gap = next((gap for gap in _GAPS if sum(widths) + len(gap) * (len(widths) - 1) <= out.width), None)
    _print_row(head, widths, gap=gap, style="bold")
    for row in rows:
        _print_row(row.cells, widths, gap=gap)
        for note in row.notes:
            lines = textwrap.fill(
                printable(note),
                max(out.width, 20),
                initial_indent=_INDENT,
                subsequent_indent=_INDENT,
                break_on_hyphens=False,
            )
            out.print(Text(lines, style="dim"), soft_wrap=True)


def _print_row(cells: Sequence[str], widths: Sequence[int], *, gap: str | None, style: str = "") -> None:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    if gap is None:
        out.print(Text(cells[0], style=style), soft_wrap=True)
        padded = ["", *padded[1:]]
    out.print(Text((gap or _INDENT).join(padded).rstrip(), style=style), soft_wrap=True)
