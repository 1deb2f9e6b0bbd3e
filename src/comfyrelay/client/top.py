"""`comfyrelay top`: show the queue, the workers and their progress, and the last finished jobs."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from comfyrelay.client import render
from comfyrelay.client.calls import ActionResult
from comfyrelay.client.client import MAX_PAGE, Client, Kind
from comfyrelay.client.labels import JobLabels
from comfyrelay.clock import utc_now
from comfyrelay.errors import ComfyRelayError, ControlPlaneUnreachable, Forbidden, NotFound
from comfyrelay.protocol.jobs import Batch, Job, QueueUnit
from comfyrelay.protocol.progress import Progress
from comfyrelay.system.terminal import END, keys
from comfyrelay.text import printable

if TYPE_CHECKING:
    from comfyrelay.protocol.desk import DeskStatus

KEYS = "j k choose   p pause, resume   x cancel   r retry   t u d top, up, down   q quits"
QUIT = (END, "q")
_UP, _DOWN = "\x1b[a", "\x1b[b"
STEPS = {"j": 1, _DOWN: 1, "k": -1, _UP: -1}
MOVES = {"t": "top", "u": "up", "d": "down"}
# An arrow key is three characters.
_KEY = re.compile(r"\x1b\[[A-Z]|.", re.S)
MAX_FINISHED = 8
MAX_NEXT = 5
MAX_BATCHES = 6


@dataclass(frozen=True, slots=True)
class TopRow:
    """A row that the keys act on."""

    kind: Kind
    id: str
    is_paused: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {render.short_id(self.id)}"


@dataclass(frozen=True, slots=True)
class QueuedUnit:
    """A job or batch at the front of the queue."""

    kind: Kind
    id: str
    what: str


@dataclass(frozen=True, slots=True)
class TopWorker:
    name: str
    state: str
    leases: int
    max_concurrency: int
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class TopView:
    """A snapshot of the queue.

    A server, unlike a desk, counts at most one page of jobs: `more` names the states with more jobs. It does not reveal
    the order of the queue, and shows workers only to administrators.
    """

    url: str
    counts: dict[str, int]
    # The time when the queue was paused, the number of jobs that it holds, and a sentence about both.
    paused_at: datetime | None
    held: int
    pause: str | None
    more: list[str]
    waits_for: str | None
    comfyui_unreachable: list[str]
    workers: list[TopWorker] | None
    # For each GPU with several ComfyUI processes, the reason for their number.
    gpus: list[str]
    running: list[Job]
    next: list[QueuedUnit]
    # Jobs without a batch.
    paused: list[Job]
    batches: list[Batch]
    outcomes: list[Job]
    labels: dict[str, str]


async def take_snapshot(client: Client, labels: JobLabels) -> TopView:
    now = await client.now()
    queue, processing, queued, paused, batches, finished = await asyncio.gather(
        client.queue_counts(),
        client.recent_jobs(status="processing", limit=MAX_PAGE),
        client.recent_jobs(status="queued", limit=MAX_PAGE),
        client.recent_jobs(status="paused", limit=MAX_PAGE),
        client.recent_batches(limit=MAX_PAGE),
        _finished(client),
    )
    prefetched = {job.id for job in now.fetched} if now else set()
    running = [job for job in processing[0] if job.id not in prefetched]
    paused_jobs = [job for job in paused[0] if job.batch_id is None][:MAX_NEXT]
    counts = {str(status): count for status, count in now.counts.items()} if now else {}
    pages = {"processing": processing, "queued": queued, "paused": paused}
    return TopView(
        url=client.url,
        counts={status: counts.get(status, len(jobs)) for status, (jobs, _) in pages.items()},
        paused_at=queue.paused_at,
        held=queue.held,
        pause=queue.pause_text,
        more=[] if now else [status for status, (_, has_more) in pages.items() if has_more],
        waits_for=await _wait_reason(client, queued[0]) if queued[0] and not running else None,
        comfyui_unreachable=now.comfyui_unreachable if now else [],
        workers=await _workers(client, now),
        gpus=await _gpus(client),
        running=running,
        next=[await _queued_unit(client, unit, labels) for unit in now.waiting[:MAX_NEXT]] if now else [],
        paused=paused_jobs,
        batches=[batch for batch in batches if batch.done < batch.total][:MAX_BATCHES],
        outcomes=finished,
        labels=await labels.of([*running, *paused_jobs, *finished]),
    )


async def _finished(client: Client) -> list[Job]:
    statuses = ("completed", "failed", "canceled")
    pages = await asyncio.gather(*(client.recent_jobs(status=status, limit=MAX_FINISHED) for status in statuses))
    jobs = [job for page, _ in pages for job in page]
    return sorted(jobs, key=lambda job: job.completed_at or job.created_at, reverse=True)[:MAX_FINISHED]


async def _workers(client: Client, now: DeskStatus | None) -> list[TopWorker] | None:
    if now is not None:
        worker = now.worker
        return [TopWorker("this machine", worker.state, worker.leases, worker.max_concurrency)] if worker else []
    try:
        workers = await client.workers()
    except Forbidden:
        return None
    return [
        TopWorker(
            worker.display_name or worker.worker_id,
            worker.state,
            worker.leases,
            worker.max_concurrency,
            worker.version or "",
        )
        for worker in workers
    ]


async def _gpus(client: Client) -> list[str]:
    try:
        slots = await client.slots()
    except (Forbidden, NotFound):
        # Only administrators see slots, and older servers have none.
        return []
    lines = [
        f"{slot.name}, {slot.gpu or 'GPU'}: {slot.packing or f'{slot.on_gpu} on this GPU.'}"
        for slot in slots
        if slot.on_gpu is not None and (slot.packing or slot.on_gpu > 1)
    ]
    return list(dict.fromkeys(lines))


async def _queued_unit(client: Client, unit: QueueUnit, labels: JobLabels) -> QueuedUnit:
    if unit.is_batch:
        batch = await client.batch(unit.id)
        remaining = batch.total - batch.done
        return QueuedUnit("batch", batch.id, f"{printable(batch.label or '')} ({remaining} left)".strip())
    job = await client.job(unit.id)
    return QueuedUnit("job", job.id, (await labels.of([job]))[job.id])


async def _wait_reason(client: Client, queued: Sequence[Job]) -> str | None:
    """Return the reason why the oldest queued job does not run."""
    oldest = queued[-1].id
    waiting = (await client.job(oldest)).waiting
    return f"job {render.short_id(oldest)}: {waiting.text}" if waiting else None


def render_view(view: TopView, now: datetime, selected: TopRow | None = None) -> RenderableType:
    parts: list[RenderableType] = [_headline(view), *_worker_table(view)]
    if view.pause is not None:
        parts.append(Text(view.pause, style="yellow"))
    parts += [Text(printable(line), style="dim") for line in view.gpus]
    parts += [Text(printable(reason), style="red") for reason in view.comfyui_unreachable]
    if view.waits_for and not view.comfyui_unreachable and view.pause is None:
        parts.append(Text(printable(view.waits_for), style="yellow"))
    if view.running:
        parts += [_rule("running"), _running_table(view, now)]
    if view.next:
        parts += [_rule("next"), _next_table(view)]
    if view.paused:
        parts += [_rule("paused"), render.job_table(view.paused, view.labels, now)]
    if view.batches:
        parts += [_rule("batches"), render.batch_table(view.batches)]
    if view.outcomes:
        parts += [_rule("last"), _finished_table(view, now)]
    if selected is not None:
        _highlight(parts, render.short_id(selected.id))
    return Group(*parts)


def _highlight(parts: Sequence[RenderableType], id_: str) -> None:
    """Invert the colors of every row with this id."""
    for table in parts:
        if isinstance(table, Table):
            for column in table.columns:
                for row, cell in enumerate(column.cells):
                    if cell == id_:
                        table.rows[row].style = "reverse"


def _headline(view: TopView) -> Text:
    text = Text.assemble(("ComfyRelay ", "bold"), (view.url, "dim"))
    for status, count in view.counts.items():
        more = "+" if status in view.more else ""
        text.append("   ").append_text(render.status_text(status)).append(f" {count}{more}", style="bold")
    return text


def _worker_table(view: TopView) -> list[RenderableType]:
    if view.workers is None:
        return []
    if not view.workers:
        return [Text("No worker has registered.", style="yellow")]
    table = render.grid("worker", "state", "busy", "version")
    for worker in view.workers:
        busy = f"{worker.leases} of {worker.max_concurrency}"
        table.add_row(Text(printable(worker.name)), worker.state, busy, Text(printable(worker.version)))
    return [table]


def _running_table(view: TopView, now: datetime) -> RenderableType:
    table = render.grid("job", "", "", "since", "what")
    for job in view.running:
        progress = Progress.from_report(job.progress)
        # The job may have been prefetched long before, so the time that the worker reports is more exact.
        began = progress.began_at or job.started_at
        table.add_row(
            render.short_id(job.id),
            render.bar(progress.fraction),
            "" if progress.fraction is None else f"{progress.fraction:.0%}",
            render.duration(began, now) if began else "",
            render.titled(view.labels.get(job.id, ""), render.progress_text(progress, job.started_at, now)),
        )
    return table


def _next_table(view: TopView) -> RenderableType:
    table = render.grid("", "", "what")
    for unit in view.next:
        table.add_row(unit.kind, render.short_id(unit.id), render.titled(unit.what))
    return table


def _finished_table(view: TopView, now: datetime) -> RenderableType:
    table = render.grid("job", "", "ended", "what")
    for job in view.outcomes:
        outputs = ", ".join(output.filename for output in job.outputs)
        details = Text(printable(job.error), style="red") if job.error else printable(outputs)
        table.add_row(
            render.short_id(job.id),
            render.status_text(job.status),
            render.age(job.completed_at, now),
            render.titled(view.labels.get(job.id, ""), details),
        )
    return table


def _rule(title: str) -> Rule:
    return Rule(title, style="dim", align="left")


async def watch(client: Client, console: Console, *, every_seconds: float) -> None:
    """Show the queue until q or Ctrl-C. Keep trying if the server is unreachable."""
    labels, keyboard = JobLabels(client), KeyHandler(client)
    view: TopView | None = None
    rendered: RenderableType | None = None
    pressed: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    due = loop.time()
    with keys(pressed.put_nowait), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            if loop.time() >= due:
                try:
                    view = await take_snapshot(client, labels)
                    rendered = None
                except ControlPlaneUnreachable as error:
                    rendered = Text(f"{error} Trying again.", style="yellow")
                due = loop.time() + every_seconds
            if rendered is None and view is not None:
                rendered = render_view(view, utc_now(), keyboard.select(view))
            # The end of the screen may be cut off, so the message comes first.
            live.update(Group(keyboard.message, rendered or ""), refresh=True)
            with contextlib.suppress(TimeoutError):
                # Several keys may arrive together.
                for character in _KEY.findall(await asyncio.wait_for(pressed.get(), due - loop.time())) or [END]:
                    key = character.lower()
                    if key in QUIT:
                        return
                    if await keyboard.press(key, view):
                        due = loop.time()
                    rendered = None


class KeyHandler:
    """Holds the selected row, and runs the actions of the keys."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._position = 0
        self._selected: TopRow | None = None
        self._to_cancel: TopRow | None = None
        self.message = Text(KEYS, style="dim")

    def select(self, view: TopView) -> TopRow | None:
        """Return the selected row. If it no longer exists, the row at its old position is selected."""
        rows = selectable_rows(view)
        ids = [row.id for row in rows]
        if self._selected is not None and self._selected.id in ids:
            self._position = ids.index(self._selected.id)
        self._position = min(self._position, max(0, len(rows) - 1))
        self._selected = rows[self._position] if rows else None
        return self._selected

    async def press(self, key: str, view: TopView | None) -> bool:
        """Handle a key. Returns whether the queue may have changed."""
        selected, to_cancel, self._to_cancel = self._selected, self._to_cancel, None
        self.message = Text(KEYS, style="dim")
        if view is None or selected is None:
            return False
        if key in STEPS:
            rows = selectable_rows(view)
            self._position = min(max(0, self._position + STEPS[key]), len(rows) - 1)
            self._selected = rows[self._position]
            return False
        if key == "x":
            self._to_cancel = selected
            self.message = Text(f"Cancel {selected}? y cancels it, any other key does not.", style="yellow")
            return False
        action = self._action(key, selected, to_cancel)
        if action is None:
            return False
        try:
            self.message = Text(f"{selected}: {printable((await action).message)}")
        except ComfyRelayError as error:
            self.message = Text(f"{selected}: {printable(str(error))}", style="red")
        return True

    def _action(self, key: str, row: TopRow, to_cancel: TopRow | None) -> Awaitable[ActionResult[Job | Batch]] | None:
        match key:
            case "y" if to_cancel is not None:
                return self._client.cancel(to_cancel.kind, to_cancel.id)
            case "p" if row.is_paused:
                return self._client.resume(row.kind, row.id)
            case "p":
                return self._client.pause(row.kind, row.id)
            case "r":
                return self._client.retry(row.kind, row.id)
            case "t" | "u" | "d":
                return self._client.move(row.kind, row.id, MOVES[key])
        return None


def selectable_rows(view: TopView) -> list[TopRow]:
    """Return the selectable rows, each once, in display order."""
    paused = {batch.id for batch in view.batches if batch.counts.get("paused")}
    rows = [
        *(TopRow("job", job.id) for job in view.running),
        *(TopRow(unit.kind, unit.id, is_paused=unit.id in paused) for unit in view.next),
        *(TopRow("job", job.id, is_paused=True) for job in view.paused),
        *(TopRow("batch", batch.id, is_paused=batch.id in paused) for batch in view.batches),
        *(TopRow("job", job.id) for job in view.outcomes),
    ]
    return list({row.id: row for row in reversed(rows)}.values())[::-1]
