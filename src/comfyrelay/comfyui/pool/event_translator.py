"""Translate events of a run on a server into events of a pool job."""

from collections.abc import Callable
from typing import Any, assert_never

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.pool.events import (
    JobAccepted,
    JobNoted,
    JobOutput,
    JobPreview,
    JobPrinted,
    JobProgress,
    JobStarted,
    PoolJobEvent,
)
from comfyrelay.comfyui.pool.jobs import Record
from comfyrelay.comfyui.runs.events import (
    Finished,
    NodeStarted,
    Noted,
    OutputReady,
    Preview,
    Printed,
    Queued,
    RunEvent,
    Started,
    Step,
)


class EventTranslator:
    """Translate the events of one attempt. A stopped attempt emits metadata only."""

    def __init__(self, record: Record, graph: Graph, emit: Callable[[Record, PoolJobEvent], None]) -> None:
        self._record = record
        self._graph = graph
        self._emit = emit

    def translate(self, event: RunEvent) -> None:
        if self._record.stop is not None and not isinstance(event, Noted):
            return
        self._record.prompt_id = event.prompt_id
        match event:
            case Queued():
                unknown = 1 if self._record.is_behind else None
                self._emit_as(JobAccepted, event, position=unknown if event.position is None else event.position)
            case Started():
                self._record.has_started = True
                self._emit_as(JobStarted, event)
            case NodeStarted():
                self._emit_progress(event, class_type=event.class_type)
            case Step():
                # Nodes that another node creates while it runs are not in the graph.
                class_type = self._graph.get(event.node_id, {}).get("class_type", "")
                self._emit_progress(event, class_type=class_type, value=event.value, maximum=event.maximum)
            case Preview():
                self._emit_as(JobPreview, event, node_id=event.node_id, image=event.image, mime_type=event.mime_type)
            case OutputReady():
                self._emit_as(JobOutput, event, node_id=event.node_id, files=event.files, texts=event.texts)
            case Printed():
                self._emit_as(JobPrinted, event, line=event.line)
            case Noted():
                self._emit_as(JobNoted, event, about=event.about)
            case Finished():
                # The pool emits its own event once the job is settled.
                return
            case _:
                assert_never(event)

    def _emit_progress(self, event: NodeStarted | Step, **fields: Any) -> None:
        self._record.progress = event.progress
        self._emit_as(JobProgress, event, node_id=event.node_id, progress=event.progress, **fields)

    def _emit_as(self, event_class: type[PoolJobEvent], event: RunEvent, **fields: Any) -> None:
        self._emit(self._record, self._record.event(event_class, prompt_id=event.prompt_id, **fields))
