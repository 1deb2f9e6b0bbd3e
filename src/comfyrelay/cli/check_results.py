"""How findings are printed: what is right, what is lacking, and what is broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from comfyrelay.worker.check import CheckFinding

_MARKS = {"fine": "[green]ok[/green]  ", "lacking": "[yellow]note[/yellow]", "broken": "[red]no[/red]  "}


def print_findings(findings: AsyncIterator[CheckFinding], out: Console, *, as_json: bool) -> bool:
    """Each as it comes, or all of them as JSON; whether nothing is broken."""

    async def run() -> bool:
        seen = []
        async for each in findings:
            seen.append(each)
            if not as_json:
                line = f"{_MARKS[each.verdict]} [bold]{escape(each.about)}[/bold]: {escape(each.text)}"
                out.print(line, soft_wrap=True, highlight=False)
        if as_json:
            out.print_json(data=[asdict(each) for each in seen])
        return all(each.verdict != "broken" for each in seen)

    return asyncio.run(run())
