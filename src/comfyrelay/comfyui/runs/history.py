"""Parse the server's queue and history, which are authoritative for the outcome of a run."""

from typing import Any, NamedTuple

from comfyrelay.comfyui.failures import explain_execution_error
from comfyrelay.comfyui.outputs import unknown_items
from comfyrelay.comfyui.runs.unknown_kinds import UnknownKinds
from comfyrelay.errors import ComfyError, NodeFailed, RunInterrupted

KNOWN_STATES = frozenset({"success", "error"})


def failure_in(entry: dict[str, Any]) -> ComfyError | None:
    """Return how a run failed, or `None` if it succeeded. The messages decide, because `status_str` can be stale."""
    for kind, data in messages_of(entry):
        if kind == "execution_error":
            return explain_execution_error(data)
        if kind == "execution_interrupted":
            return RunInterrupted("Another client interrupted the run on the server.", node_id=data.get("node_id"))
    status = entry.get("status")
    if isinstance(status, dict) and status.get("status_str") == "error":
        return NodeFailed("The run failed without an error message.")
    return None


def outputs_in(entry: dict[str, Any]) -> dict[str, Any]:
    outputs = entry.get("outputs")
    return outputs if isinstance(outputs, dict) else {}


def log_unknown(entry: dict[str, Any], kinds: UnknownKinds) -> None:
    """Log an unknown state and unknown kinds of output."""
    status = entry.get("status")
    state = status.get("status_str") if isinstance(status, dict) else None
    if isinstance(state, str) and state not in KNOWN_STATES:
        kinds.log_once("comfyui.unknown_status", state)
    for output in outputs_in(entry).values():
        for key, _ in unknown_items(output):
            kinds.log_once("comfyui.unknown_output", key)


def cached_nodes(entry: dict[str, Any]) -> list[str]:
    return [
        str(node) for kind, data in messages_of(entry) if kind == "execution_cached" for node in data.get("nodes") or ()
    ]


def outputs_to_run(entry: dict[str, Any]) -> list[str] | None:
    """Return the output nodes that a run in the history executed; `None` if the entry does not list them."""
    match entry.get("prompt"):
        case [_, _, _, _, list() as nodes, *_]:
            return [str(node) for node in nodes]
    return None


def run_seconds(entry: dict[str, Any]) -> float:
    """Return the duration in seconds by the server's clock."""
    times = [data["timestamp"] for _, data in messages_of(entry) if isinstance(data.get("timestamp"), int | float)]
    return float(max(times) - min(times)) / 1000 if times else 0.0


def messages_of(entry: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    status = entry.get("status")
    messages = status.get("messages") if isinstance(status, dict) else None
    return [
        (message[0], message[1])
        for message in messages or ()
        if isinstance(message, list) and len(message) == 2 and isinstance(message[1], dict)
    ]


def position_in(queue: dict[str, Any], prompt_id: str) -> int | None:
    """Return the number of runs ahead: -1 if it is running, `None` if it is not in the queue."""
    running = _items(queue.get("queue_running"))
    if any(item[1] == prompt_id for item in running):
        return -1
    # The server lists pending items in heap order.
    pending = sorted(_items(queue.get("queue_pending")), key=lambda item: item[0])
    for position, item in enumerate(pending):
        if item[1] == prompt_id:
            return position + len(running)
    return None


class Prompt(NamedTuple):
    """A submitted graph and its `extra_data`."""

    graph: dict[str, Any]
    extra_data: dict[str, Any]


def prompts_in(queue: dict[str, Any]) -> dict[str, Prompt]:
    """Return all queued and running prompts by prompt id."""
    items = [*_items(queue.get("queue_running")), *_items(queue.get("queue_pending"))]
    return {str(item[1]): _prompt(item) for item in items}


def prompt_of(entry: dict[str, Any]) -> Prompt:
    """Return the prompt of a history entry."""
    item = entry.get("prompt")
    return _prompt(item if isinstance(item, list) else [])


def _prompt(item: list[Any]) -> Prompt:
    graph, extra_data, *_ = [*item[2:], None, None]
    return Prompt(*(part if isinstance(part, dict) else {} for part in (graph, extra_data)))


def _items(found: object) -> list[Any]:
    """Return the well-formed items of a queue: number, id, graph and more."""
    listed = found if isinstance(found, list) else []
    return [item for item in listed if isinstance(item, list) and len(item) > 1 and isinstance(item[0], int | float)]
