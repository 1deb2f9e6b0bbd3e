"""Route WebSocket messages to the runs they belong to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.runs.events import EventListener
from comfyrelay.comfyui.runs.progress import RunProgress
from comfyrelay.comfyui.runs.socket import EventSocket, parse_frame, parse_message
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.comfyui.runs.unknown_kinds import UnknownKinds
from comfyrelay.comfyui.runs.watch import QueueReader, Watch
from comfyrelay.http_client import Http

KNOWN_MESSAGES = frozenset(
    {
        *{"status", "feature_flags", "progress", "progress_state", "progress_text", "executing", "executed"},
        *{"execution_start", "execution_cached", "execution_success", "execution_error", "execution_interrupted"},
    }
)


class MessageRouter:
    """The WebSocket of one server and the runs that listen to it."""

    def __init__(self, http: Http, *, on_lost: Callable[[], None]) -> None:
        self._http = http
        self._on_lost = on_lost
        self.socket = EventSocket(
            http.url,
            headers=http.headers,
            use_proxy=http.use_proxy,
            on_message=self.handle_message,
            on_lost=self._handle_loss,
        )
        self.queue = QueueReader(http)
        self.queue_remaining: int | None = None
        self._watches: dict[str, Watch] = {}
        self._running: str | None = None
        self.unknown_kinds = UnknownKinds(http.url)

    @contextmanager
    def watching(
        self, graph: Graph, prompt_id: str, *, timeouts: RunTimeouts, factor: int, on_event: EventListener
    ) -> Iterator[Watch]:
        """Listen for one run. Enter before submitting the run: its first events may arrive before the response."""
        progress = RunProgress(graph=graph, prompt_id=prompt_id, on_event=on_event)
        watch = Watch(
            http=self._http,
            socket=self.socket,
            queue=self.queue,
            progress=progress,
            timeouts=timeouts,
            loading_factor=factor,
            is_behind=bool(self._watches),
        )
        self._watches[prompt_id] = watch
        try:
            yield watch
        finally:
            del self._watches[prompt_id]

    def handle_message(self, message: str | bytes) -> None:
        """Pass a message to its run. Unknown kinds are logged once and ignored."""
        if isinstance(message, bytes):
            self._handle_frame(message)
        elif (parsed := parse_message(message)) is not None:
            self._handle_text(*parsed)

    def _handle_text(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "status":
            match data:
                case {"status": {"exec_info": {"queue_remaining": int() as remaining}}}:
                    self.queue_remaining = remaining
            return
        if kind not in KNOWN_MESSAGES:
            self.unknown_kinds.log_once("comfyui.unknown_message", kind)
        prompt_id = data.get("prompt_id")
        if kind == "execution_start" and isinstance(prompt_id, str):
            self._running = prompt_id
        # Messages about other clients' runs also arrive here.
        if isinstance(prompt_id, str) and (watch := self._watches.get(prompt_id)) is not None:
            watch.handle_message(kind, data)

    def _handle_frame(self, frame: bytes) -> None:
        preview = parse_frame(frame)
        if preview is None:
            return
        # Older servers do not name the run, but execute only one run at a time.
        watch = self._watches.get(preview.prompt_id or self._running or "")
        if watch is not None:
            watch.progress.preview(preview.image, preview.mime_type, preview.node_id)
            watch.record_message()

    def _handle_loss(self) -> None:
        self.queue_remaining = None
        self._on_lost()
        for watch in self._watches.values():
            watch.check_now()
