"""Follow the events of a job, over a connection that may break."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from urllib.parse import quote

from comfyrelay.client.calls import Calls
from comfyrelay.errors import ControlPlaneUnreachable
from comfyrelay.protocol.jobs import JobEvent
from comfyrelay.retry import Backoff, Retries

# The server sends something every 15 s.
SILENCE_SECONDS = 45.0
BACKOFF = Backoff(first_seconds=0.2, max_seconds=5.0)


async def follow(calls: Calls, job_id: str, *, after: int, patience_seconds: float) -> AsyncGenerator[JobEvent, None]:
    """Yield every event after the given one, once and in order, until the last event of the job.

    A broken connection is reopened, and missed events are replayed. Raises `ControlPlaneUnreachable` if the server
    cannot be reached for `patience_seconds`.
    """
    loop = asyncio.get_running_loop()
    answered_at = loop.time()
    retries = Retries(BACKOFF)
    while True:
        headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
        path = f"/api/ai-jobs/{quote(job_id, safe='')}/events"
        try:
            async with calls.stream(path, headers=headers, silence_seconds=SILENCE_SECONDS) as response:
                if response.status_code == 204:
                    return
                answered_at = loop.time()
                retries.reset()
                async for event in parsed(response.aiter_lines()):
                    if event.id is not None:
                        after = event.id
                    yield event
                    if event.is_last:
                        return
                    answered_at = loop.time()
        except ControlPlaneUnreachable:
            if loop.time() - answered_at > patience_seconds:
                raise
        # The connection broke, or the server is stopping.
        await retries.wait()


async def parsed(lines: AsyncIterator[str]) -> AsyncIterator[JobEvent]:
    """Parse server-sent events, without comments and events with invalid JSON."""
    fields: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
            continue
        event, fields = _event(fields), {}
        if event is not None:
            yield event


def _event(fields: dict[str, str]) -> JobEvent | None:
    try:
        data = json.loads(fields["data"])
    except (KeyError, ValueError):
        return None
    number = fields.get("id", "")
    if not isinstance(data, dict):
        return None
    return JobEvent(type=fields.get("event", "message"), data=data, id=int(number) if number.isdecimal() else None)
