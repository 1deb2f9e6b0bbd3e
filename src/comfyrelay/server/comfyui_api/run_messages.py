"""Build ComfyUI's WebSocket messages from the states and the progress of jobs."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from comfyrelay.domain.queue.progress import Progress
from comfyrelay.domain.records.jobs import PromptRecord
from comfyrelay.server.comfyui_api.views import end_message, history_messages, outputs_by_node
from comfyrelay.services.comfyui_api.prompts import Prompt

Message = str | bytes
# Types of binary messages.
PREVIEW, PREVIEW_WITH_METADATA = 1, 4
JPEG = 1


def text(kind: str, data: dict[str, Any]) -> str:
    return json.dumps({"type": kind, "data": data})


@dataclass(slots=True)
class PromptMessages:
    """The messages about one prompt for one WebSocket."""

    record: PromptRecord
    has_started: bool = False
    has_ended: bool = False
    node_id: str | None = None
    preview: str | None = None
    _finished: dict[str, dict[str, Any]] = field(default_factory=dict)

    def start(self, timestamp: int) -> Iterator[Message]:
        if self.has_started:
            return
        self.has_started = True
        about = {"prompt_id": self.record.prompt_id, "timestamp": timestamp}
        yield text("execution_start", about)
        # Workers do not report which nodes were cached.
        yield text("execution_cached", {"nodes": [], **about})

    def restart(self) -> None:
        """Reset the state: the run was lost, and the prompt will run again."""
        self.has_started, self.node_id, self.preview = False, None, None
        self._finished.clear()

    def progress(self, progress: Progress) -> Iterator[Message]:
        """Yield messages for the running node and its steps."""
        if progress.node_id is None:
            return
        prompt_id = self.record.prompt_id
        if progress.node_id != self.node_id:
            if self.node_id is not None:
                self._finished[self.node_id] = self._state(self.node_id, 1, 1, "finished")
            self.node_id = progress.node_id
            data = {"node": self.node_id, "display_node": self.node_id, "prompt_id": prompt_id}
            yield text("executing", data)
        value, maximum = progress.step or 0, progress.steps or 1
        nodes = {**self._finished, self.node_id: self._state(self.node_id, value, maximum, "running")}
        yield text("progress_state", {"prompt_id": prompt_id, "nodes": nodes})
        if progress.steps:
            yield text("progress", {"value": value, "max": maximum, "prompt_id": prompt_id, "node": self.node_id})

    def image(self, data: bytes, *, has_metadata: bool) -> bytes:
        """Return the binary message for a JPEG preview."""
        if not has_metadata:
            return struct.pack(">II", PREVIEW, JPEG) + data
        about = json.dumps({**self._names(self.node_id or ""), "image_type": "image/jpeg"}).encode()
        return struct.pack(">II", PREVIEW_WITH_METADATA, len(about)) + about + data

    def end(self, prompt: Prompt) -> Iterator[Message]:
        """Yield messages for the outputs and the end of the prompt, or none if it was canceled before it started."""
        self.has_ended = True
        if prompt.job.started_at is None and not self.has_started:
            return
        started = history_messages(prompt)[0][1]["timestamp"]
        yield from self.start(started)
        for node_id, output in outputs_by_node(prompt).items():
            about = {"node": node_id, "display_node": node_id, "prompt_id": prompt.id}
            yield text("executed", {**about, "output": output})
        yield text(*end_message(prompt))

    def done(self) -> str:
        """Return the last message, which comfy-cli waits for."""
        return text("executing", {"node": None, "prompt_id": self.record.prompt_id})

    def _state(self, node_id: str, value: float, maximum: float, state: str) -> dict[str, Any]:
        return {"value": value, "max": maximum, "state": state, **self._names(node_id)}

    def _names(self, node_id: str) -> dict[str, Any]:
        return {
            "node_id": node_id,
            "prompt_id": self.record.prompt_id,
            "display_node_id": node_id,
            "parent_node_id": None,
            "real_node_id": node_id,
        }
