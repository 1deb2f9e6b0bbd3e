"""Print results to standard output, and notes and progress to standard error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from comfyrelay.protocol.desk import CheckResult

_MARKS = {"fine": "[green]ok[/green]  ", "warning": "[yellow]note[/yellow]", "broken": "[red]no[/red]  "}
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def print_line(text: object) -> None:
    out.print(str(text), markup=False, soft_wrap=True)


def print_note(text: object, *, style: str | None = None) -> None:
    err.print(str(text), markup=False, soft_wrap=True, style=style)


def print_json(data: Any) -> None:
    from pydantic_core import to_jsonable_python

    out.print_json(data=to_jsonable_python(data))


def print_result(data: Any, shown: Any, *, as_json: bool) -> None:
    """Print `data` as JSON, or a table or text for people."""
    if as_json:
        print_json(data)
    else:
        out.print(shown, soft_wrap=isinstance(shown, str))


def print_check_results(
    results: AsyncIterator[CheckResult], *, as_json: bool, into: list[CheckResult] | None = None
) -> bool:
    """Print each result as it arrives, or all as JSON, and append them to `into`. Returns whether no result is
    `broken`."""

    import asyncio

    async def run() -> bool:
        received = [] if into is None else into
        async for result in results:
            received.append(result)
            if not as_json:
                line = f"{_MARKS[result.verdict]} [bold]{escape(result.about)}[/bold]: {escape(result.text)}"
                out.print(line, soft_wrap=True)
        if as_json:
            print_json(received)
        return all(result.verdict != "broken" for result in received)

    return asyncio.run(run())


@contextmanager
def progress_bar(description: str, amount: type[ProgressColumn]) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal. The yielded function takes the done and the total amount."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), amount(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
