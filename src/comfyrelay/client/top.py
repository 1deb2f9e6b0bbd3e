"""`comfyrelay top`: the queue, who works, how far they are, and how the last jobs ended."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.text import Text

from comfyrelay.client import render
from comfyrelay.client.client import LARGEST_PAGE, Client
from comfyrelay.client.labels import Labels
from comfyrelay.clock import utc_now
from comfyrelay.errors import ControlPlaneUnreachable, Forbidden
from comfyrelay.portable.terminal import END, keys
from comfyrelay.protocol.desk import Now, Unit
from comfyrelay.protocol.jobs import Batch, Job
from comfyrelay.text import printable

OUTCOMES = 8
NEXT = 5
BATCHES = 6


@dataclass(frozen=True, slots=True)
class Coming:
    kind: str
    id: str
    what: str


@dataclass(frozen=True, slots=True)
class Busy:
    """A worker, and how much it does."""

    name: str
    state: str
    leases: int
    max_concurrency: int
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Where there is no desk, counts stop at a page, and `more` names the states that have more than that; the order
    of what waits is not known, and workers are told to administrators only."""

    url: str
    counts: dict[str, int]
    more: list[str]
    waits_for: str | None
    comfyui_away: list[str]
    workers: list[Busy] | None
    running: list[Job]
    next: list[Coming]
    batches: list[Batch]
    outcomes: list[Job]
    labels: dict[str, str]


async def take_snapshot(client: Client, labels: Labels) -> Snapshot:
    now = await client.now()
    running, queued, paused, batches, outcomes = await asyncio.gather(
        client.some_jobs(status="processing", limit=LARGEST_PAGE),
        client.some_jobs(status="queued", limit=LARGEST_PAGE),
        client.some_jobs(status="paused", limit=LARGEST_PAGE),
        client.some_batches(limit=LARGEST_PAGE),
        _outcomes(client),
    )
    fetched = {each.id for each in now.fetched} if now else set()
    runs = [each for each in running[0] if each.id not in fetched]
    counts = {str(status): count for status, count in now.counts.items()} if now else {}
    pages = {"processing": running, "queued": queued, "paused": paused}
    return Snapshot(
        url=client.url,
        counts={status: counts.get(status, len(jobs)) for status, (jobs, _) in pages.items()},
        more=[] if now else [status for status, (_, has_more) in pages.items() if has_more],
        waits_for=await _why(client, queued[0]) if queued[0] and not runs else None,
        comfyui_away=now.comfyui_away if now else [],
        workers=await _workers(client, now),
        running=runs,
        next=[await _coming(client, each, labels) for each in now.waiting[:NEXT]] if now else [],
        batches=[each for each in batches if each.done < each.total][:BATCHES],
        outcomes=outcomes,
        labels=await labels.of([*runs, *outcomes]),
    )


async def _outcomes(client: Client) -> list[Job]:
    pages = await asyncio.gather(
        *(client.some_jobs(status=each, limit=OUTCOMES) for each in ("completed", "failed", "canceled"))
    )
    ended = [job for jobs, _ in pages for job in jobs]
    return sorted(ended, key=lambda each: each.completed_at or each.created_at, reverse=True)[:OUTCOMES]


async def _workers(client: Client, now: Now | None) -> list[Busy] | None:
    if now is not None:
        return (
            [Busy("this machine", now.worker.state, now.worker.leases, now.worker.max_concurrency)]
            if now.worker
            else []
        )
    try:
        found = await client.workers()
    except Forbidden:
        return None
    return [
        Busy(each.display_name or each.worker_id, each.state, each.leases, each.max_concurrency, each.version or "")
        for each in found
    ]


async def _coming(client: Client, unit: Unit, labels: Labels) -> Coming:
    if unit.is_batch:
        batch = await client.batch(unit.id)
        remaining = batch.total - batch.done
        return Coming("batch", batch.id, f"{printable(batch.label or '')} ({remaining} left)".strip())
    job = await client.job(unit.id)
    return Coming("job", job.id, (await labels.of([job]))[job.id])


async def _why(client: Client, queued: Sequence[Job]) -> str | None:
    """Why nothing runs although something waits; the oldest of them is as good as any."""
    waiting = (await client.job(queued[-1].id)).waiting
    return waiting.text if waiting else None


def shown(seen: Snapshot, now: datetime) -> RenderableType:
    parts: list[RenderableType] = [_headline(seen), *_about_workers(seen)]
    parts += [Text(printable(each), style="red") for each in seen.comfyui_away]
    if seen.waits_for and not seen.comfyui_away:
        parts.append(Text(printable(seen.waits_for), style="yellow"))
    if seen.running:
        parts += [_rule("running"), _running(seen, now)]
    if seen.next:
        parts += [_rule("next"), _next(seen)]
    if seen.batches:
        parts += [_rule("batches"), render.batch_table(seen.batches)]
    if seen.outcomes:
        parts += [_rule("last"), _last(seen, now)]
    return Group(*parts)


def _headline(seen: Snapshot) -> Text:
    text = Text.assemble(("ComfyRelay ", "bold"), (seen.url, "dim"))
    for status, count in seen.counts.items():
        more = "+" if status in seen.more else ""
        text.append("   ").append_text(render.status_text(status)).append(f" {count}{more}", style="bold")
    return text


def _about_workers(seen: Snapshot) -> list[RenderableType]:
    if seen.workers is None:
        return []
    if not seen.workers:
        return [Text("No worker has registered.", style="yellow")]
    table = render.grid("worker", "state", "busy", "version")
    for each in seen.workers:
        busy = f"{each.leases} of {each.max_concurrency}"
        table.add_row(Text(printable(each.name)), each.state, busy, Text(printable(each.version)))
    return [table]


def _running(seen: Snapshot, now: datetime) -> RenderableType:
    table = render.grid("job", "", "", "what", "since", "")
    for each in seen.running:
        done, began = render.part_done(each.progress), render.began_at(each.progress, each.started_at)
        table.add_row(
            render.short(each.id),
            ProgressBar(total=1.0, completed=done or 0.0, width=20),
            "" if done is None else f"{done:.0%}",
            Text(seen.labels.get(each.id, "")),
            render.span(render.since(began, now)) if began else "",
            Text(render.how_far(each.progress, each.started_at, now)),
        )
    return table


def _next(seen: Snapshot) -> RenderableType:
    table = render.grid("", "", "what")
    for each in seen.next:
        table.add_row(each.kind, render.short(each.id), Text(each.what))
    return table


def _last(seen: Snapshot, now: datetime) -> RenderableType:
    table = render.grid("job", "", "what", "ended", "")
    for each in seen.outcomes:
        made = ", ".join(out.filename for out in each.outputs)
        table.add_row(
            render.short(each.id),
            render.status_text(each.status),
            Text(seen.labels.get(each.id, "")),
            f"{render.span(render.since(each.completed_at, now))} ago" if each.completed_at else "",
            Text(printable(each.error or made), style="red" if each.error else ""),
        )
    return table


def _rule(title: str) -> Rule:
    return Rule(title, style="dim", align="left")


async def watch(client: Client, console: Console, *, every_seconds: float) -> None:
    """Show it until q or Ctrl-C. A server that is away is waited for."""
    labels = Labels(client)
    with _quit_key() as is_over, Live(console=console, screen=True, auto_refresh=False) as live:
        while not is_over.is_set():
            try:
                view = shown(await take_snapshot(client, labels), utc_now())
            except ControlPlaneUnreachable as error:
                view = Text(f"{error} Trying again.", style="yellow")
            live.update(Group(view, Text("\nq quits", style="dim")), refresh=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), every_seconds)


@contextmanager
def _quit_key() -> Iterator[asyncio.Event]:
    """Set once q is pressed. Without a terminal there is still Ctrl-C."""
    pressed = asyncio.Event()

    def on_keys(found: str) -> None:
        if found == END or "q" in found.lower():
            pressed.set()

    with keys(on_keys):
        yield pressed
