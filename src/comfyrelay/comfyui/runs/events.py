"""Events of a run, for callbacks and as a stream. Each event names its run by `prompt_id`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from comfyrelay.comfyui.outputs import OutputFile, RunResult

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    """The server accepted the run. `position` is the number of runs ahead of it, or `None` if unknown."""

    prompt_id: str
    position: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    prompt_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeStarted:
    """`progress` covers the whole run, from 0 to 1, as far as reported by nodes."""

    prompt_id: str
    node_id: str
    class_type: str
    title: str
    progress: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A node has completed `value` of `maximum` steps."""

    prompt_id: str
    node_id: str
    value: float
    maximum: float
    progress: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    prompt_id: str
    node_id: str | None
    image: bytes
    mime_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputReady:
    """An output node has finished. `files` and `texts` are its outputs."""

    prompt_id: str
    node_id: str
    files: tuple[OutputFile, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """A script printed a line. Graphs never send this event."""

    prompt_id: str
    line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Noted:
    """Metadata to store with the run, regardless of its outcome: for a script, its command. Also sent while the run is
    being stopped. If a run is stopped during its submission, this event is sent without metadata, because the server
    may have started the run."""

    prompt_id: str
    about: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    prompt_id: str
    result: RunResult


RunEvent = Queued | Started | NodeStarted | Step | Preview | OutputReady | Printed | Noted | Finished
EventListener = Callable[[RunEvent], None]


def guard_listener(listener: EventListener | None) -> EventListener:
    """Wrap a listener so that its exceptions are logged and do not affect the run."""

    def listen(event: RunEvent) -> None:
        try:
            if listener is not None:
                listener(event)
        except Exception:
            log.exception("comfy.listener_failed", event_type=type(event).__name__)

    return listen


async def stream_events(run: Callable[[EventListener], Awaitable[RunResult]]) -> AsyncIterator[RunEvent]:
    """Yield the events of a run and re-raise its error. Stops the run if the consumer leaves early."""
    events: asyncio.Queue[RunEvent | None] = asyncio.Queue()

    async def run_and_close() -> None:
        try:
            await run(events.put_nowait)
        finally:
            events.put_nowait(None)

    task = asyncio.create_task(run_and_close())
    try:
        while (event := await events.get()) is not None:
            yield event
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
