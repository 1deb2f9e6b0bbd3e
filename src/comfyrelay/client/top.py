"""`comfyrelay top`: the queue, the workers and their progress, and the last finished jobs."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from comfyrelay.client import render
from comfyrelay.client.calls import Done
from comfyrelay.client.client import LARGEST_PAGE, Client, Kind
from comfyrelay.client.labels import Labels
from comfyrelay.clock import utc_now
from comfyrelay.errors import ComfyRelayError, ControlPlaneUnreachable, Forbidden, NotFound
from comfyrelay.protocol.desk import DeskStatus
from comfyrelay.protocol.jobs import Batch, Job, QueueUnit
from comfyrelay.protocol.progress import Progress
from comfyrelay.system.terminal import END, keys
from comfyrelay.text import printable

KEYS = "j k choose   p pause, resume   x cancel   r retry   t u d top, up, down   q quits"
QUIT = (END, "q")
_UP, _DOWN = "\x1b[a", "\x1b[b"
STEPS = {"j": 1, _DOWN: 1, "k": -1, _UP: -1}
MOVES = {"t": "top", "u": "up", "d": "down"}
_KEY = re.compile(r"\x1b\[[A-Z]|.", re.S)
OUTCOMES = 8
NEXT = 5
BATCHES = 6


@dataclass(frozen=True, slots=True)
class Choice:
    """A row that the keys act on."""

    kind: Kind
    id: str
    is_paused: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {render.short(self.id)}"


@dataclass(frozen=True, slots=True)
class NextUp:
    kind: Kind
    id: str
    what: str


@dataclass(frozen=True, slots=True)
class Busy:
    """A worker and its load."""

    name: str
    state: str
    leases: int
    max_concurrency: int
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class TopView:
    """Without a desk, counts stop at a page, and `more` names the states with more; the queue order is unknown, and
    workers are only shown to administrators."""

    url: str
    counts: dict[str, int]
    more: list[str]
    waits_for: str | None
    comfyui_unreachable: list[str]
    workers: list[Busy] | None
    # for each GPU that several ComfyUI may share: why that many
    gpus: list[str]
    running: list[Job]
    next: list[NextUp]
    # without a batch
    paused: list[Job]
    batches: list[Batch]
    outcomes: list[Job]
    labels: dict[str, str]


async def take_snapshot(client: Client, labels: Labels) -> TopView:
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
    held = [each for each in paused[0] if each.batch_id is None][:NEXT]
    counts = {str(status): count for status, count in now.counts.items()} if now else {}
    pages = {"processing": running, "queued": queued, "paused": paused}
    return TopView(
        url=client.url,
        counts={status: counts.get(status, len(jobs)) for status, (jobs, _) in pages.items()},
        more=[] if now else [status for status, (_, has_more) in pages.items() if has_more],
        waits_for=await _why(client, queued[0]) if queued[0] and not runs else None,
        comfyui_unreachable=now.comfyui_unreachable if now else [],
        workers=await _workers(client, now),
        gpus=await _gpus(client),
        running=runs,
        next=[await _coming(client, each, labels) for each in now.waiting[:NEXT]] if now else [],
        paused=held,
        batches=[batch for batch in batches if batch.done < batch.total][:BATCHES],
        outcomes=outcomes,
        labels=await labels.of([*runs, *held, *outcomes]),
    )


async def _outcomes(client: Client) -> list[Job]:
    pages = await asyncio.gather(
        *(client.some_jobs(status=each, limit=OUTCOMES) for each in ("completed", "failed", "canceled"))
    )
    ended = [job for jobs, _ in pages for job in jobs]
    return sorted(ended, key=lambda each: each.completed_at or each.created_at, reverse=True)[:OUTCOMES]


async def _workers(client: Client, now: DeskStatus | None) -> list[Busy] | None:
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


async def _gpus(client: Client) -> list[str]:
    try:
        found = await client.slots()
    except (Forbidden, NotFound):
        # only administrators see them, and older servers have none
        return []
    shared = [each for each in found if each.on_gpu is not None and (each.packing or each.on_gpu > 1)]
    about = [f"{each.name}, {each.gpu or 'GPU'}: {each.packing or f'{each.on_gpu} on this GPU.'}" for each in shared]
    return list(dict.fromkeys(about))


async def _coming(client: Client, unit: QueueUnit, labels: Labels) -> NextUp:
    if unit.is_batch:
        batch = await client.batch(unit.id)
        remaining = batch.total - batch.done
        return NextUp("batch", batch.id, f"{printable(batch.label or '')} ({remaining} left)".strip())
    job = await client.job(unit.id)
    return NextUp("job", job.id, (await labels.of([job]))[job.id])


async def _why(client: Client, queued: Sequence[Job]) -> str | None:
    """Why nothing runs although jobs wait, from the oldest one."""
    oldest = queued[-1].id
    waiting = (await client.job(oldest)).waiting
    return f"job {render.short(oldest)}: {waiting.text}" if waiting else None


def shown(seen: TopView, now: datetime, chosen: Choice | None = None) -> RenderableType:
    parts: list[RenderableType] = [_headline(seen), *_about_workers(seen)]
    parts += [Text(printable(each), style="dim") for each in seen.gpus]
    parts += [Text(printable(each), style="red") for each in seen.comfyui_unreachable]
    if seen.waits_for and not seen.comfyui_unreachable:
        parts.append(Text(printable(seen.waits_for), style="yellow"))
    if seen.running:
        parts += [_rule("running"), _running(seen, now)]
    if seen.next:
        parts += [_rule("next"), _next(seen)]
    if seen.paused:
        parts += [_rule("paused"), render.job_table(seen.paused, seen.labels, now)]
    if seen.batches:
        parts += [_rule("batches"), render.batch_table(seen.batches)]
    if seen.outcomes:
        parts += [_rule("last"), _last(seen, now)]
    if chosen is not None:
        _mark(parts, render.short(chosen.id))
    return Group(*parts)


def _mark(parts: Sequence[RenderableType], id_: str) -> None:
    """Invert the colours of every row with this id."""
    for table in parts:
        if isinstance(table, Table):
            for column in table.columns:
                for row, cell in enumerate(column.cells):
                    if cell == id_:
                        table.rows[row].style = "reverse"


def _headline(seen: TopView) -> Text:
    text = Text.assemble(("ComfyRelay ", "bold"), (seen.url, "dim"))
    for status, count in seen.counts.items():
        more = "+" if status in seen.more else ""
        text.append("   ").append_text(render.status_text(status)).append(f" {count}{more}", style="bold")
    return text


def _about_workers(seen: TopView) -> list[RenderableType]:
    if seen.workers is None:
        return []
    if not seen.workers:
        return [Text("No worker has registered.", style="yellow")]
    table = render.grid("worker", "state", "busy", "version")
    for worker in seen.workers:
        busy = f"{worker.leases} of {worker.max_concurrency}"
        table.add_row(Text(printable(worker.name)), worker.state, busy, Text(printable(worker.version)))
    return [table]


def _running(seen: TopView, now: datetime) -> RenderableType:
    table = render.grid("job", "", "", "since", "what")
    for each in seen.running:
        progress = Progress.from_report(each.progress)
        # from the worker's report, because it may have been prefetched long before
        began = progress.began_at or each.started_at
        table.add_row(
            render.short(each.id),
            render.bar(progress.fraction),
            "" if progress.fraction is None else f"{progress.fraction:.0%}",
            render.span(render.since(began, now)) if began else "",
            render.what(seen.labels.get(each.id, ""), render.how_far(progress, each.started_at, now)),
        )
    return table


def _next(seen: TopView) -> RenderableType:
    table = render.grid("", "", "what")
    for each in seen.next:
        table.add_row(each.kind, render.short(each.id), render.what(each.what))
    return table


def _last(seen: TopView, now: datetime) -> RenderableType:
    table = render.grid("job", "", "ended", "what")
    for job in seen.outcomes:
        made = ", ".join(out.filename for out in job.outputs)
        about = Text(printable(job.error), style="red") if job.error else printable(made)
        table.add_row(
            render.short(job.id),
            render.status_text(job.status),
            render.age(job.completed_at, now),
            render.what(seen.labels.get(job.id, ""), about),
        )
    return table


def _rule(title: str) -> Rule:
    return Rule(title, style="dim", align="left")


async def watch(client: Client, console: Console, *, every_seconds: float) -> None:
    """Until q or Ctrl-C. Reconnects to a server that is unreachable."""
    labels, hands = Labels(client), Hands(client)
    seen: TopView | None = None
    view: RenderableType | None = None
    pressed: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    due = loop.time()
    with keys(pressed.put_nowait), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            if loop.time() >= due:
                try:
                    seen = await take_snapshot(client, labels)
                    view = None
                except ControlPlaneUnreachable as error:
                    view = Text(f"{error} Trying again.", style="yellow")
                due = loop.time() + every_seconds
            if view is None and seen is not None:
                view = shown(seen, utc_now(), hands.choose(seen))
            # first, because the end may be cut off
            live.update(Group(hands.line, view or ""), refresh=True)
            with contextlib.suppress(TimeoutError):
                for key in _split(await asyncio.wait_for(pressed.get(), due - loop.time())):
                    if key in QUIT:
                        return
                    if await hands.press(key, seen):
                        due = loop.time()
                    view = None


class Hands:
    """The selected row, and the actions of the keys."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._place = 0
        self._chosen: Choice | None = None
        self._to_cancel: Choice | None = None
        self._message = Text(KEYS, style="dim")

    @property
    def line(self) -> Text:
        return self._message

    def choose(self, seen: TopView) -> Choice | None:
        """The same row at its new position; if it no longer exists, the row at its old position."""
        found = choices(seen)
        ids = [each.id for each in found]
        if self._chosen is not None and self._chosen.id in ids:
            self._place = ids.index(self._chosen.id)
        self._place = min(self._place, max(0, len(found) - 1))
        self._chosen = found[self._place] if found else None
        return self._chosen

    async def press(self, key: str, seen: TopView | None) -> bool:
        """Whether the queue may have changed."""
        chosen, to_cancel, self._to_cancel = self._chosen, self._to_cancel, None
        self._message = Text(KEYS, style="dim")
        if seen is None or chosen is None:
            return False
        if key in STEPS:
            found = choices(seen)
            self._place = min(max(0, self._place + STEPS[key]), len(found) - 1)
            self._chosen = found[self._place]
            return False
        if key == "x":
            self._to_cancel = chosen
            self._message = Text(f"Cancel {chosen}? y cancels it, any other key does not.", style="yellow")
            return False
        verb = self._verb(key, chosen, to_cancel)
        if verb is None:
            return False
        try:
            self._message = Text(f"{chosen}: {printable((await verb).message)}")
        except ComfyRelayError as error:
            self._message = Text(f"{chosen}: {printable(str(error))}", style="red")
        return True

    def _verb(self, key: str, it: Choice, to_cancel: Choice | None) -> Awaitable[Done[Job | Batch]] | None:
        match key:
            case "y" if to_cancel is not None:
                return self._client.cancel(to_cancel.kind, to_cancel.id)
            case "p" if it.is_paused:
                return self._client.resume(it.kind, it.id)
            case "p":
                return self._client.pause(it.kind, it.id)
            case "r":
                return self._client.retry(it.kind, it.id)
            case "t" | "u" | "d":
                return self._client.move(it.kind, it.id, MOVES[key])
        return None


def choices(seen: TopView) -> list[Choice]:
    """The selectable rows, each once, in display order."""
    paused = {batch.id for batch in seen.batches if batch.counts.get("paused")}
    found = [
        *(Choice("job", each.id) for each in seen.running),
        *(Choice(each.kind, each.id, is_paused=each.id in paused) for each in seen.next),
        *(Choice("job", each.id, is_paused=True) for each in seen.paused),
        *(Choice("batch", batch.id, is_paused=batch.id in paused) for batch in seen.batches),
        *(Choice("job", outcome.id) for outcome in seen.outcomes),
    ]
    return list({each.id: each for each in reversed(found)}.values())[::-1]


def _split(keys: str) -> list[str]:
    """Several keys may arrive at once; an arrow key is three characters."""
    return [each.lower() for each in _KEY.findall(keys)] or [END]
