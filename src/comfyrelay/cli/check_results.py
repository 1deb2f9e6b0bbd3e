"""Print check results: fine, warning or broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from comfyrelay.protocol.desk import CheckResult

_MARKS = {"fine": "[green]ok[/green]  ", "warning": "[yellow]note[/yellow]", "broken": "[red]no[/red]  "}


def print_results(results: AsyncIterator[CheckResult], out: Console, *, as_json: bool) -> bool:
    """Print each as it arrives, or all as JSON. Returns whether nothing is broken."""

    async def run() -> bool:
        seen = []
        async for result in results:
            seen.append(result)
            if not as_json:
                line = f"{_MARKS[result.verdict]} [bold]{escape(result.about)}[/bold]: {escape(result.text)}"
                out.print(line, soft_wrap=True, highlight=False)
        if as_json:
            out.print_json(data=[each.model_dump(mode="json") for each in seen])
        return all(each.verdict != "broken" for each in seen)

    return asyncio.run(run())
