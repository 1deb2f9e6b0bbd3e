"""Messages of a running prompt, to its client and for its history."""

import time
from typing import Any

from comfyrelay.simulator.sockets import Sockets


class PromptMessages:
    """Messages of one prompt. Without a client, most messages are not sent; progress is sent to every socket."""

    def __init__(self, sockets: Sockets, *, prompt_id: str, client_id: str | None) -> None:
        self._sockets = sockets
        self._prompt_id = prompt_id
        self.client_id = client_id
        self.recorded: list[list[Any]] = []
        self._progress: dict[str, dict[str, Any]] = {}

    def record(self, kind: str, *, to_all: bool = False, **fields: Any) -> None:
        """Send a message and add it to the history. Without a client, it is sent only if `to_all` is set."""
        data = {"prompt_id": self._prompt_id, **fields, "timestamp": int(time.time() * 1000)}
        self.recorded.append([kind, data])
        if to_all:
            self._sockets.post(kind, data, self.client_id)
        else:
            self._send_to_owner(kind, data)

    def executing(self, node_id: str) -> None:
        self._progress[node_id] = self._state(node_id, 0.0, 1.0, "running")
        self._send_progress()
        self._send_to_owner("executing", {"node": node_id, "display_node": node_id, "prompt_id": self._prompt_id})

    def executed(self, node_id: str, output: Any) -> None:
        fields = {"node": node_id, "display_node": node_id, "output": output, "prompt_id": self._prompt_id}
        self._send_to_owner("executed", fields)

    def finished(self, node_id: str) -> None:
        before = self._progress.get(node_id, {"max": 1})
        self._progress[node_id] = self._state(node_id, before["max"], before["max"], "finished")
        self._send_progress()

    def progress(
        self, node_id: str, value: int, maximum: int, preview: bytes | None, *, image_type: str = "image/jpeg"
    ) -> None:
        self._progress[node_id] = self._state(node_id, value, maximum, "running")
        self._send_progress()
        fields = {"value": value, "max": maximum, "prompt_id": self._prompt_id, "node": node_id}
        metadata = {**self._names(node_id), "image_type": image_type}
        # A preview with metadata precedes its step; a preview without metadata follows it.
        if preview is not None:
            self._sockets.post_preview(preview, metadata, self.client_id, described=True)
        self._sockets.post("progress", fields, self.client_id)
        if preview is not None:
            self._sockets.post_preview(preview, metadata, self.client_id, described=False)

    def end(self) -> None:
        self._send_to_owner("executing", {"node": None, "prompt_id": self._prompt_id})

    def _send_to_owner(self, kind: str, data: dict[str, Any]) -> None:
        if self.client_id is not None:
            self._sockets.post(kind, data, self.client_id)

    def _send_progress(self) -> None:
        fields = {"prompt_id": self._prompt_id, "nodes": dict(self._progress)}
        self._sockets.post("progress_state", fields, self.client_id)

    def _state(self, node_id: str, value: float, maximum: float, state: str) -> dict[str, Any]:
        return {"value": value, "max": maximum, "state": state, **self._names(node_id)}

    def _names(self, node_id: str) -> dict[str, Any]:
        return {
            "node_id": node_id,
            "prompt_id": self._prompt_id,
            "display_node_id": node_id,
            "parent_node_id": None,
            "real_node_id": node_id,
        }
