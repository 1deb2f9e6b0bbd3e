"""How long a run may take, and where."""

from dataclasses import dataclass

from comfyrelay.comfyui.graphs.graph import Graph


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTimeouts:
    """Seconds, each for one kind of waiting; `None` waits for ever.

    `queue_seconds` is time behind other runs, `start_seconds` time at the head of the queue, `node_seconds` time
    without a sign of progress, `run_seconds` the time from start to end. The first run of a workflow on a server
    loads its models, so `node_seconds` counts two to four times then.
    """

    queue_seconds: float | None = None
    start_seconds: float | None = 60.0
    node_seconds: float | None = 300.0
    run_seconds: float | None = 3600.0
    # A server that is loading a model may not answer for minutes; one whose port is closed is gone.
    unreachable_seconds: float = 120.0
    refused_seconds: float = 3.0


def loading_factor(graph: Graph) -> int:
    """How many times longer the nodes of a graph may take while its models are being loaded."""
    loaders = sum("Loader" in node["class_type"] for node in graph.values())
    if loaders == 0:
        return 1
    return 2 if loaders <= 2 else 3 if loaders <= 4 else 4
