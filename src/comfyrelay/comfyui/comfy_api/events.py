"""The event stream of a job: progress and previews. The source of truth is `GET /jobs/{id}`, never the stream."""

import base64
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.nodes import title_of
from comfyrelay.comfyui.runs.events import NodeStarted, Preview, Queued, RunEvent, Started, Step

# The largest events are previews.
MAX_EVENT_BYTES = 8 * 1024**2
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


async def events_in(response: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the data of each event. Raises `httpx.RemoteProtocolError` if an event is too large."""
    unread = b""
    async for piece in response.aiter_bytes():
        *blocks, unread = _BLANK_LINE.split(unread + piece)
        if len(unread) > MAX_EVENT_BYTES:
            raise httpx.RemoteProtocolError("An event is too large.", request=response.request)
        for block in blocks:
            name, lines = "", []
            for line in block.decode("utf-8", "replace").splitlines():
                field, _, value = line.partition(":")
                if field == "event":
                    name = value.strip()
                elif field == "data":
                    lines.append(value)
            if isinstance(data := _json("\n".join(lines)), dict):
                yield name, data


class JobProgress:
    """Convert the state and the events of a job into the events of a run."""

    def __init__(self, *, graph: Graph, prompt_id: str, on_event: Callable[[RunEvent], None]) -> None:
        self.prompt_id = prompt_id
        self.started = False
        self._graph = graph
        self._on_event = on_event
        self._position: int | None = None
        self._last: tuple[object, ...] | None = None

    def mark_accepted(self) -> None:
        self._on_event(Queued(prompt_id=self.prompt_id))

    def set_position(self, position: object) -> None:
        """Report the number of jobs ahead of this one, if it has changed."""
        if isinstance(position, int) and position != self._position and not self.started:
            self._position = position
            self._on_event(Queued(prompt_id=self.prompt_id, position=position))

    def start(self) -> None:
        if not self.started:
            self.started = True
            self._on_event(Started(prompt_id=self.prompt_id))

    def show(self, progress: Any) -> None:
        """Report a progress snapshot."""
        match progress:
            case {"value": int() | float() as value, "current_node": str() as node_id, "nodes_total": _}:
                self._show(progress, node_id, min(max(float(value), 0.0), 1.0))

    def preview(self, data: Mapping[str, Any]) -> None:
        match data:
            case {"data_base64": str() as encoded, "content_type": str() as mime_type}:
                try:
                    image = base64.b64decode(encoded, validate=True)
                except ValueError:
                    return
                node_id = data.get("node_id") or None
                self._on_event(Preview(prompt_id=self.prompt_id, node_id=node_id, image=image, mime_type=mime_type))

    def _show(self, snapshot: Mapping[str, Any], node_id: str, value: float) -> None:
        step, steps = snapshot.get("step"), snapshot.get("steps")
        if (node_id, step, steps, value) == self._last:
            return
        self._last = (node_id, step, steps, value)
        if isinstance(step, int) and isinstance(steps, int) and steps > 0:
            self._on_event(Step(prompt_id=self.prompt_id, node_id=node_id, value=step, maximum=steps, progress=value))
            return
        is_known = node_id in self._graph
        self._on_event(
            NodeStarted(
                prompt_id=self.prompt_id,
                node_id=node_id,
                class_type=self._graph[node_id]["class_type"] if is_known else "",
                title=title_of(self._graph, node_id) if is_known else "",
                progress=value,
            )
        )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
