"""Convert the WebSocket messages of one run into events."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.nodes import output_nodes, title_of
from comfyrelay.comfyui.outputs import OutputFile, files_of, texts_of, websocket_file
from comfyrelay.comfyui.runs.events import NodeStarted, OutputReady, Preview, Queued, RunEvent, Started, Step

# Limit for the images that one run may send over the WebSocket, because they are kept in memory.
MAX_SENT_BYTES = 512 * 1024**2


class RunProgress:
    """State of one run as reported by its messages. `over` is only a signal: the server's history proves that the run
    ended. Previews and images from WebSocket output nodes arrive the same way, so images of possible output nodes are
    kept until the history shows whether these nodes have other outputs."""

    def __init__(
        self,
        *,
        graph: Graph,
        prompt_id: str,
        on_event: Callable[[RunEvent], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.prompt_id = prompt_id
        self.started = False
        self.succeeded = False
        self.over = False
        self.has_messages = False
        self.outputs: dict[str, Any] = {}
        self.cached: set[str] = set()
        self.sent_bytes = 0
        self.failure: tuple[str, dict[str, Any]] | None = None
        self._graph = graph
        self._on_event = on_event
        self._may_be_outputs = frozenset(output_nodes(graph))
        self._sent: dict[str, list[OutputFile]] = {}
        self._node_id: str | None = None
        self._clock = clock
        # The node whose time is measured, and since when. A node may run several times.
        self._timed: tuple[str, float] | None = None
        self._node_seconds: defaultdict[str, float] = defaultdict(float)
        self._done: set[str] = set()
        self._position: int | None = None
        self._step: tuple[str, float, float] | None = None

    @property
    def node_seconds(self) -> dict[str, float]:
        """The duration of each node that has run: the time until the next node started."""
        return {**self._node_seconds}

    def mark_accepted(self) -> None:
        self._on_event(Queued(prompt_id=self.prompt_id))

    def set_position(self, position: int) -> None:
        if position != self._position and not self.started:
            self._position = position
            self._on_event(Queued(prompt_id=self.prompt_id, position=position))

    def start(self) -> None:
        if not self.started:
            self.started = True
            self._on_event(Started(prompt_id=self.prompt_id))

    def handle_message(self, kind: str, data: dict[str, Any]) -> None:
        """Handle a message about this run. Kinds that custom nodes or newer servers add are ignored."""
        self.has_messages = True
        match kind:
            case "execution_start":
                self.start()
            case "execution_cached":
                self.cached.update(map(str, data.get("nodes") or ()))
                self._done |= self.cached
            case "executing":
                self._handle_executing(data.get("node"))
            case "progress":
                self._handle_step(str(data.get("node")), data.get("value"), data.get("max"))
            case "progress_state":
                self._handle_states(data.get("nodes"))
            case "executed":
                self._handle_executed(str(data.get("node")), data.get("output"))
            case "execution_success":
                self.succeeded = True
                self._time_node(None)
            # A blocked branch is reported as an error, but the run continues.
            case "execution_error" if data.get("exception_type") == "ExecutionBlocked":
                pass
            case "execution_error" | "execution_interrupted":
                self.failure = (kind, data)
                self.over = True
                self._time_node(None)

    def preview(self, image: bytes, mime_type: str, node_id: str | None) -> None:
        self.has_messages = True
        # Older servers do not name the node, but execute only one node at a time.
        self._collect_sent(node_id or self._node_id or "", image, mime_type)
        self._on_event(Preview(prompt_id=self.prompt_id, node_id=node_id, image=image, mime_type=mime_type))

    def sent_by(self, node_id: str) -> list[OutputFile]:
        """Return the images that this node sent over the WebSocket."""
        return self._sent.get(node_id, [])

    def _collect_sent(self, node_id: str, image: bytes, mime_type: str) -> None:
        if node_id not in self._may_be_outputs:
            return
        self.sent_bytes += len(image)
        if self.sent_bytes > MAX_SENT_BYTES:
            return
        sent = self._sent.setdefault(node_id, [])
        sent.append(websocket_file(node_id, len(sent) + 1, image, mime_type))

    def _time_node(self, node_id: str | None) -> None:
        """End the measurement of the last node, and begin that of the next node."""
        now = self._clock()
        if self._timed is not None:
            last, since = self._timed
            self._node_seconds[last] += now - since
        self._timed = (node_id, now) if node_id is not None else None

    def _handle_executing(self, node: object) -> None:
        if node is None:
            self.over = True
            self._time_node(None)
            return
        node_id = self._node_id = str(node)
        self._time_node(node_id)
        self.start()
        known = node_id in self._graph
        self._on_event(
            NodeStarted(
                prompt_id=self.prompt_id,
                node_id=node_id,
                class_type=self._graph[node_id]["class_type"] if known else "",
                title=title_of(self._graph, node_id) if known else "",
                progress=self._progress(),
            )
        )

    def _handle_states(self, nodes: object) -> None:
        if not isinstance(nodes, dict):
            return
        for node_id, state in nodes.items():
            if not isinstance(state, dict):
                continue
            if state.get("state") == "finished":
                self._done.add(str(node_id))
            elif (state.get("max") or 0) > 1:
                self._handle_step(str(node_id), state.get("value"), state.get("max"))

    def _handle_step(self, node_id: str, value: object, maximum: object) -> None:
        if not isinstance(value, int | float) or not isinstance(maximum, int | float) or maximum <= 0:
            return
        step = (node_id, float(value), float(maximum))
        # Each step arrives twice, as `progress` and as `progress_state`.
        if step == self._step or value <= 0:
            return
        self._step = step
        progress = self._progress(min(value / maximum, 1.0))
        self._on_event(
            Step(prompt_id=self.prompt_id, node_id=node_id, value=step[1], maximum=step[2], progress=progress)
        )

    def _handle_executed(self, node_id: str, output: object) -> None:
        self._done.add(node_id)
        if isinstance(output, dict):
            self.outputs[node_id] = output
        self._on_event(
            OutputReady(
                prompt_id=self.prompt_id,
                node_id=node_id,
                files=tuple(files_of(node_id, output)),
                texts=texts_of(output),
            )
        )

    def _progress(self, part: float = 0.0) -> float:
        done = len(self._done & self._graph.keys())
        return min((done + part) / len(self._graph), 1.0)
