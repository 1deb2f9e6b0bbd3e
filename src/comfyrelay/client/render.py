"""Render jobs and batches as text and tables for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from comfyrelay.client.find import SHORT_LENGTH
from comfyrelay.protocol.jobs import Batch, Job
from comfyrelay.protocol.progress import Progress
from comfyrelay.text import format_bytes, printable

if TYPE_CHECKING:
    from comfyrelay.protocol.desk import AboutJob
    from comfyrelay.protocol.user import OwnWorkflowVersion, Preset, Workflow

_COLOURS = {
    "queued": "cyan",
    "processing": "blue",
    "completed": "green",
    "failed": "red",
    "canceled": "yellow",
    "paused": "magenta",
}
# If a job has more inputs than this, only the most important ones are shown.
MAX_INPUTS = 8
_MAIN_ROLES = frozenset({"prompt", "negative_prompt", "seed"})
# Earlier estimates of the remaining time would fluctuate.
_MIN_PROGRESS = 0.05


def short_id(id_: str) -> str:
    return id_[-SHORT_LENGTH:]


def duration(start: datetime, end: datetime) -> str:
    return format_seconds((end - start).total_seconds())


def format_seconds(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h" if whole < 100 * 3600 else f"{whole // 86400} days"


def progress_text(progress: Progress, started_at: datetime | None, now: datetime) -> str:
    """Return the node, step and remaining time of a running job."""
    parts = []
    if progress.node:
        parts.append(printable(progress.node))
    if progress.steps:
        # Some nodes count fractions of steps.
        parts.append(f"step {progress.step or 0:.0f} of {progress.steps:.0f}")
    if not parts and progress.phase:
        parts.append(printable(progress.phase))
    done = progress.fraction
    if done and _MIN_PROGRESS <= done < 1 and (began := progress.began_at or started_at):
        seconds = max(0.0, (now - began).total_seconds())
        parts.append(f"about {format_seconds(seconds * (1 - done) / done)} left")
    return ", ".join(parts)


def status_text(status: str) -> Text:
    return Text(status, style=_COLOURS.get(status, ""))


def grid(*columns: str) -> Table:
    """Return a table whose last column gets the rest of the terminal. The other columns are narrow and never
    truncated."""
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns[:-1]:
        column.no_wrap = True
    return table


def titled(name: str, details: Text | str = "") -> RenderableType:
    """Return a cell with a name on one line and all details below the name."""
    text = details if isinstance(details, Text) else Text(details, style="dim")
    text.overflow = "fold"
    lines = (Text(name, no_wrap=True, overflow="ellipsis"), text)
    return Group(*(line for line in lines if line.plain))


def bar(fraction: float | None) -> ProgressBar:
    return ProgressBar(total=1.0, completed=fraction or 0.0, width=12)


def age(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else f"{duration(moment, now)} ago"


def job_table(jobs: Sequence[Job], labels: Mapping[str, str], now: datetime) -> Table:
    table = grid("job", "status", "made", "what")
    for job in jobs:
        status, progress = status_text(job.status), Progress.from_report(job.progress)
        if job.status == "processing" and progress.fraction is not None:
            status.append(f" {progress.fraction:.0%}")
        details = Text(printable(job.error), style="red") if job.error else progress_text(progress, job.started_at, now)
        table.add_row(short_id(job.id), status, age(job.created_at, now), titled(labels.get(job.id, ""), details))
    return table


def batch_table(batches: Iterable[Batch]) -> Table:
    table = grid("batch", "", "done", "what")
    for batch in batches:
        remaining = _remaining(batch)
        counts = _counts(batch).append(f"; {remaining} left" if remaining else "")
        label = titled(printable(batch.label or ""), counts)
        table.add_row(short_id(batch.id), bar(batch.progress), f"{batch.done} of {batch.total}", label)
    return table


def workflow_table(workflows: Iterable[Workflow]) -> Table:
    table = grid("workflow", "makes", "name")
    for workflow in workflows:
        makes = workflow.output_extension if workflow.waiting is None else "-"
        table.add_row(workflow.slug, makes, titled(printable(workflow.name), printable(workflow.waiting or "")))
    return table


def version_table(versions: Iterable[OwnWorkflowVersion], now: datetime) -> Table:
    table = grid("version", "since", "what changed")
    for version in versions:
        number = f"{version.number} (current)" if version.is_current else str(version.number)
        table.add_row(number, age(version.created_at, now), Text(printable(" ".join(version.changes))))
    return table


def preset_table(presets: Iterable[Preset]) -> Table:
    table = grid("preset", "values")
    for preset in presets:
        values = ", ".join(f"{key}={value}" for key, value in preset.values.items())
        table.add_row(Text(printable(preset.name)), Text(printable(values)))
    return table


def job_details(job: Job, label: str, about: AboutJob | None, now: datetime, *, is_whole: bool = False) -> Table:
    inputs = about.inputs if about else []
    run = (about.attempts[-1].about or {}) if about and about.attempts else {}
    shown = inputs
    if not is_whole and len(inputs) > MAX_INPUTS:
        # A graph may have hundreds of inputs: show the most common and the changed ones.
        shown = [input_ for input_ in inputs if input_.url or input_.role in _MAIN_ROLES or not input_.is_default]
    hidden = len(inputs) - len(shown)
    waited = took = ""
    if job.started_at is not None:
        waited = f", after {duration(job.created_at, job.started_at)} in the queue"
        took = f", took {duration(job.started_at, job.completed_at)}" if job.completed_at is not None else ""
    rows: list[tuple[str, RenderableType]] = [
        ("job", job.id),
        ("status", status_text(job.status)),
        ("what", Text(label)),
        ("workflow", Text(printable(about.workflow_name)) if about else ""),
        ("progress", _progress(job, now)),
        ("waits", Text(printable(job.waiting.text)) if job.waiting else ""),
        ("error", Text(printable(job.error or ""), style="red")),
        ("attempts", f"{job.attempts} of {job.max_attempts}"),
        ("priority", str(job.priority) if job.priority else ""),
        ("retry of", job.retry_of or ""),
        ("reused from", job.reused_from or ""),
        ("made", _moment(job.created_at)),
        ("started", _moment(job.started_at) + waited),
        ("ended", _moment(job.completed_at) + took),
        ("command", Text(printable(shlex.join(run.get("argv", []))))),
        ("exit code", str(run.get("exit_code", ""))),
        ("seed", "" if job.seed is None or any(input_.role == "seed" for input_ in shown) else str(job.seed)),
        *((printable(input_.label), Text(printable(str(input_.value)))) for input_ in shown),
        ("", f"and {hidden} more with the workflow's values: --all" if hidden else ""),
    ]
    return _rows(rows)


def output_lines(job: Job, about: AboutJob | None) -> list[str]:
    """Return the outputs with their size, one per line, because a table would truncate them. A desk shows paths on its
    machine, a server shows URLs."""
    if about and about.files:
        return [
            f"{printable(file.path)}  {'missing' if file.size is None else format_bytes(file.size)}"
            for file in about.files
        ]
    lines = []
    for output in job.outputs:
        size = "" if output.size is None else format_bytes(output.size)
        lines += [f"{printable(output.filename)}  {size}", printable(output.url)]
    return lines


def batch_details(batch: Batch, failed: Sequence[Job]) -> RenderableType:
    rows: list[tuple[str, RenderableType]] = [
        ("batch", batch.id),
        ("what", Text(printable(batch.label or ""))),
        ("done", f"{batch.done} of {batch.total} ({batch.progress:.0%})"),
        ("items", _counts(batch)),
        ("held", Text(printable(batch.held or ""), style="red")),
        ("left", _remaining(batch)),
        ("made", _moment(batch.created_at)),
    ]
    errors = [Text(f"{short_id(job.id)}  {printable(job.error or '')}", style="red") for job in failed]
    return Group(_rows(rows), *errors)


def _rows(rows: Sequence[tuple[str, RenderableType]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        if not isinstance(value, str | Text) or str(value):
            table.add_row(Text(name, style="dim"), value)
    return table


def _progress(job: Job, now: datetime) -> str:
    if job.status != "processing":
        return ""
    progress = Progress.from_report(job.progress)
    percent = "" if progress.fraction is None else f"{progress.fraction:.0%}"
    return ", ".join(filter(None, (percent, progress_text(progress, job.started_at, now))))


def _counts(batch: Batch) -> Text:
    parts = [
        Text(f"{count} {status}", style=_COLOURS.get(status, "")) for status, count in batch.counts.items() if count
    ]
    return Text(", ").join(parts)


def _remaining(batch: Batch) -> str:
    return "" if batch.expected_seconds is None else f"about {format_seconds(batch.expected_seconds)}"


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"
