"""Jobs and batches as text and tables for a terminal."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from comfyrelay import text as texts
from comfyrelay.client.find import SHORT
from comfyrelay.protocol.desk import AboutJob, InputValue
from comfyrelay.protocol.jobs import Batch, Job
from comfyrelay.protocol.progress import Progress
from comfyrelay.protocol.user import Preset, Workflow
from comfyrelay.text import printable

_COLOURS = {
    "queued": "cyan",
    "processing": "blue",
    "completed": "green",
    "failed": "red",
    "canceled": "yellow",
    "paused": "magenta",
}
# The most inputs that are all shown.
FEW_INPUTS = 8
_FIRST = frozenset({"prompt", "negative_prompt", "seed"})


def short(id_: str) -> str:
    return id_[-SHORT:]


def span(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h" if whole < 100 * 3600 else f"{whole // 86400} days"


def since(moment: datetime, now: datetime) -> float:
    return max(0.0, (now - moment).total_seconds())


def size_of(count: int | None) -> str:
    return "" if count is None else texts.size_of(count)


def how_far(progress: Progress, started_at: datetime | None, now: datetime) -> str:
    """The node, step and expected end of a running job."""
    words = []
    if progress.node:
        words.append(printable(progress.node))
    if progress.steps:
        # some nodes count fractions of steps
        words.append(f"step {progress.step or 0:.0f} of {progress.steps:.0f}")
    if not words and progress.phase:
        words.append(printable(progress.phase))
    done = progress.fraction
    # earlier estimates would fluctuate
    if done and 0.05 <= done < 1 and (began := progress.began_at or started_at):
        words.append(f"about {span(since(began, now) * (1 - done) / done)} left")
    return ", ".join(words)


def status_text(status: str) -> Text:
    return Text(status, style=_COLOURS.get(status, ""))


def grid(*columns: str) -> Table:
    """All columns but the last are narrow and complete; the last gets the rest of the terminal."""
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns[:-1]:
        column.no_wrap = True
    return table


def what(name: str, *below: Text | str) -> RenderableType:
    """The name in one line, and the whole text below it."""
    lines = [Text(name, no_wrap=True, overflow="ellipsis")]
    for each in below:
        text = each if isinstance(each, Text) else Text(each, style="dim")
        text.overflow = "fold"
        lines.append(text)
    return Group(*(line for line in lines if line.plain))


def bar(done: float | None) -> ProgressBar:
    return ProgressBar(total=1.0, completed=done or 0.0, width=12)


def age(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else f"{span(since(moment, now))} ago"


def job_table(jobs: Sequence[Job], labels: Mapping[str, str], now: datetime) -> Table:
    table = grid("job", "status", "made", "what")
    for job in jobs:
        status, progress = status_text(job.status), Progress.from_report(job.progress)
        if job.status == "processing" and progress.fraction is not None:
            status.append(f" {progress.fraction:.0%}")
        about = Text(printable(job.error), style="red") if job.error else how_far(progress, job.started_at, now)
        table.add_row(short(job.id), status, age(job.created_at, now), what(labels.get(job.id, ""), about))
    return table


def batch_table(batches: Iterable[Batch]) -> Table:
    table = grid("batch", "", "done", "what")
    for batch in batches:
        remaining = _remaining(batch)
        counts = _counts(batch).append(f"; {remaining} left" if remaining else "")
        label = what(printable(batch.label or ""), counts)
        table.add_row(short(batch.id), bar(batch.progress), f"{batch.done} of {batch.total}", label)
    return table


def workflow_table(workflows: Iterable[Workflow]) -> Table:
    table = grid("workflow", "makes", "name")
    for workflow in workflows:
        makes = workflow.output_extension if workflow.waiting is None else "-"
        table.add_row(workflow.slug, makes, what(printable(workflow.name), printable(workflow.waiting or "")))
    return table


def preset_table(presets: Iterable[Preset]) -> Table:
    table = grid("preset", "values")
    for preset in presets:
        values = ", ".join(f"{key}={value}" for key, value in preset.values.items())
        table.add_row(Text(printable(preset.name)), Text(printable(values)))
    return table


def job_details(job: Job, label: str, about: AboutJob | None, now: datetime, *, is_whole: bool = False) -> Table:
    given = about.inputs if about else []
    run = (about.attempts[-1].about or {}) if about and about.attempts else {}
    inputs = given if is_whole else _worth_showing(given)
    hidden = len(given) - len(inputs)
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
        ("started", _moment(job.started_at) + _waited(job)),
        ("ended", _moment(job.completed_at) + _took(job)),
        ("command", Text(printable(shlex.join(run.get("argv", []))))),
        ("exit code", str(run.get("exit_code", ""))),
        ("seed", "" if job.seed is None or any(input_.role == "seed" for input_ in inputs) else str(job.seed)),
        *((printable(input_.label), Text(printable(str(input_.value)))) for input_ in inputs),
        ("", f"and {hidden} more as the workflow has them: --all" if hidden else ""),
    ]
    return _rows(rows)


def _worth_showing(inputs: Sequence[InputValue]) -> list[InputValue]:
    """The most common and the changed inputs: a graph may have hundreds."""
    if len(inputs) <= FEW_INPUTS:
        return list(inputs)
    return [input_ for input_ in inputs if input_.url or input_.role in _FIRST or not input_.is_default]


def output_lines(job: Job, about: AboutJob | None) -> list[str]:
    """The paths or URLs of all outputs, one per line, because they must not be cut. A desk has paths on its machine, a
    server URLs."""
    if about and about.files:
        return [f"{printable(file.path)}  {size_of(file.size) or 'gone'}" for file in about.files]
    return [
        line
        for output in job.outputs
        for line in (f"{printable(output.filename)}  {size_of(output.size)}", printable(output.url))
    ]


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
    errors = [Text(f"{short(each.id)}  {printable(each.error or '')}", style="red") for each in failed]
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
    done = "" if progress.fraction is None else f"{progress.fraction:.0%}"
    return ", ".join(each for each in (done, how_far(progress, job.started_at, now)) if each)


def _counts(batch: Batch) -> Text:
    parts = [
        Text(f"{count} {status}", style=_COLOURS.get(status, "")) for status, count in batch.counts.items() if count
    ]
    return Text(", ").join(parts)


def _remaining(batch: Batch) -> str:
    seconds = batch.expected_seconds
    return "" if seconds is None else f"about {span(seconds)}"


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def _waited(job: Job) -> str:
    if job.started_at is None:
        return ""
    return f", after {span(since(job.created_at, job.started_at))} in the queue"


def _took(job: Job) -> str:
    if job.started_at is None or job.completed_at is None:
        return ""
    return f", took {span(since(job.started_at, job.completed_at))}"
