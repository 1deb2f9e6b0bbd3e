"""Socket messages become events, and the history is read."""

import struct
from typing import Any

import pytest

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.runs.events import NodeStarted, OutputReady, Queued, RunEvent, Started, Step
from comfyrelay.comfyui.runs.history import cached_nodes, failure_in, position_in, run_seconds
from comfyrelay.comfyui.runs.progress import RunProgress
from comfyrelay.comfyui.runs.socket import PreviewFrame, parse_frame, parse_message
from comfyrelay.comfyui.runs.timeouts import loading_factor
from comfyrelay.errors import NodeFailed, RunInterrupted

GRAPH: Graph = {
    "1": {"class_type": "LoadImage", "inputs": {}},
    "2": {"class_type": "KSampler", "inputs": {}, "_meta": {"title": "Sampler"}},
    "3": {"class_type": "SaveImage", "inputs": {}},
    "4": {"class_type": "SaveImage", "inputs": {}},
}


def received(*messages: tuple[str, dict[str, Any]]) -> tuple[RunProgress, list[RunEvent]]:
    events: list[RunEvent] = []
    progress = RunProgress(graph=GRAPH, prompt_id="p", on_event=events.append)
    for kind, data in messages:
        progress.handle_message(kind, data)
    return progress, events


def test_run_events_are_in_order() -> None:
    file = {"filename": "a.png", "subfolder": "", "type": "output"}
    progress, events = received(
        ("execution_start", {}),
        ("execution_cached", {"nodes": ["1"]}),
        ("executing", {"node": "2"}),
        ("progress", {"node": "2", "value": 5, "max": 10}),
        ("progress_state", {"nodes": {"2": {"state": "finished", "value": 10, "max": 10}}}),
        ("executing", {"node": "3"}),
        ("executed", {"node": "3", "output": {"images": [file]}}),
        ("execution_success", {}),
        ("executing", {"node": None}),
    )
    assert [type(event) for event in events] == [Started, NodeStarted, Step, NodeStarted, OutputReady]
    sampler = events[1]
    assert isinstance(sampler, NodeStarted)
    assert (sampler.class_type, sampler.title, sampler.progress) == ("KSampler", "Sampler", 0.25)
    assert [event.progress for event in events if isinstance(event, Step | NodeStarted)] == [0.25, 0.375, 0.5]
    assert progress.succeeded
    assert progress.over
    assert progress.outputs == {"3": {"images": [file]}}


def test_node_takes_until_the_next_one_starts() -> None:
    now = 0.0
    progress = RunProgress(graph=GRAPH, prompt_id="p", on_event=lambda _: None, clock=lambda: now)
    messages: list[tuple[float, str, dict[str, Any]]] = [
        (0.0, "execution_cached", {"nodes": ["1"]}),
        (1.0, "executing", {"node": "2"}),
        (4.0, "executing", {"node": "3"}),
        # A node in a loop runs again.
        (4.5, "executing", {"node": "2"}),
        (6.5, "execution_success", {}),
        (9.0, "executing", {"node": None}),
    ]
    for now, kind, data in messages:  # noqa: B007  (the clock reads it)
        progress.handle_message(kind, data)
    assert progress.node_seconds == {"2": 5.0, "3": 0.5}


def test_repeated_step_is_reported_once() -> None:
    _, events = received(
        ("progress", {"node": "2", "value": 1, "max": 4}),
        ("progress_state", {"nodes": {"2": {"state": "running", "value": 1, "max": 4}}}),
    )
    assert len(events) == 1


def test_start_seen_first_by_polling_is_reported_once() -> None:
    progress, events = received(("execution_start", {}))
    progress.start()
    progress.set_position(3)
    assert events == [Started(prompt_id="p")]


def test_queue_position_is_reported_when_it_changes() -> None:
    progress, events = received()
    for position in (2, 2, 1):
        progress.set_position(position)
    assert events == [Queued(prompt_id="p", position=2), Queued(prompt_id="p", position=1)]


def test_blocked_branch_does_not_end_the_run() -> None:
    progress, _ = received(("execution_error", {"exception_type": "ExecutionBlocked"}))
    assert not progress.over
    assert progress.failure is None


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("crystools.monitor", {"cpu": 1}),
        ("progress", {"node": "2", "value": None, "max": 0}),
        ("progress_state", {"nodes": None}),
        ("executed", {"node": "3", "output": None}),
        ("executing", {"node": "of-a-subgraph:7"}),
    ],
)
def test_malformed_messages_are_ignored(kind: str, data: dict[str, Any]) -> None:
    progress, _ = received((kind, data))
    assert not progress.over


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"type": 1, "data": {}}', '{"type": "x", "data": null}', "no json"])
def test_invalid_message_text_is_ignored(text: str) -> None:
    assert parse_message(text) is None


def test_both_preview_formats_are_parsed() -> None:
    assert parse_frame(struct.pack(">II", 1, 2) + b"png") == PreviewFrame(image=b"png", mime_type="image/png")
    about = b'{"node_id": "2", "prompt_id": "p", "image_type": "image/jpeg"}'
    assert parse_frame(struct.pack(">II", 4, len(about)) + about + b"jpg") == PreviewFrame(
        image=b"jpg", mime_type="image/jpeg", prompt_id="p", node_id="2"
    )


@pytest.mark.parametrize("frame", [b"", b"\0\0", struct.pack(">II", 3, 1) + b"1text", struct.pack(">II", 4, 9) + b"{"])
def test_other_frames_are_ignored(frame: bytes) -> None:
    assert parse_frame(frame) is None


def entry(*messages: tuple[str, dict[str, Any]], status: str = "success") -> dict[str, Any]:
    return {"status": {"status_str": status, "messages": [list(message) for message in messages]}}


def test_messages_decide_the_outcome_over_a_stale_status() -> None:
    error = ("execution_error", {"node_id": "2", "node_type": "KSampler", "exception_message": "no"})
    assert isinstance(failure_in(entry(error, status="success")), NodeFailed)
    assert isinstance(failure_in(entry(("execution_interrupted", {}), status="error")), RunInterrupted)
    assert isinstance(failure_in(entry(status="error")), NodeFailed)
    assert failure_in(entry(("execution_success", {}))) is None


def test_history_has_cached_nodes_and_duration() -> None:
    ended = entry(
        ("execution_start", {"timestamp": 1_000}),
        ("execution_cached", {"nodes": ["1"], "timestamp": 1_100}),
        ("execution_success", {"timestamp": 3_500}),
    )
    assert cached_nodes(ended) == ["1"]
    assert run_seconds(ended) == 2.5


def test_queue_position_counts_the_running_prompt() -> None:
    # ComfyUI's queue is a heap, not a sorted list.
    queue = {"queue_running": [[1, "r"]], "queue_pending": [[2, "a"], [9, "c"], [5, "b"]]}
    assert [position_in(queue, prompt_id) for prompt_id in "rabc"] == [-1, 1, 2, 3]
    assert position_in(queue, "x") is None


@pytest.mark.parametrize(("loaders", "factor"), [(0, 1), (1, 2), (2, 2), (3, 3), (4, 3), (5, 4), (9, 4)])
def test_model_loaders_extend_the_timeout(loaders: int, factor: int) -> None:
    graph: Graph = {str(n): {"class_type": "UNETLoader", "inputs": {}} for n in range(loaders)}
    assert loading_factor(graph | {"x": {"class_type": "SaveImage", "inputs": {}}}) == factor
