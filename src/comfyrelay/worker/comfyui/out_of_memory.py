"""Handle servers that run out of GPU memory, and create messages for users whose jobs do not fit."""

import re
from collections.abc import Callable
from datetime import datetime

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.nodes import models_in
from comfyrelay.comfyui.pool import SmartFailover
from comfyrelay.domain.queue.memory import ADVICE, in_gib
from comfyrelay.errors import ComfyError, OutOfMemory


class OutOfMemoryFailover(SmartFailover):
    """Block a server of a worker only if it runs out of memory and other servers may not. The control plane decides
    about other failures, but does not know the individual servers of a worker."""

    def __init__(self, on_blamed: Callable[[str, OutOfMemory], None]) -> None:
        super().__init__()
        self._on_blamed = on_blamed

    def record_failure(self, client_id: str, workflow_hash: str, error: ComfyError) -> datetime | None:
        if not isinstance(error, OutOfMemory):
            return None
        self._on_blamed(client_id, error)
        return super().record_failure(client_id, workflow_hash, error)


def too_large_message(error: OutOfMemory, graph: Graph) -> str:
    """Explain an out-of-memory error on a GPU that the job had to itself."""
    if error.others_bytes:
        held = f"other programs held {in_gib(error.others_bytes)} of the GPU"
        return f"{error.detail}, while {held}. Stop the other programs, or try again later."
    if error.gpu_bytes == 0:
        size = "alone on this machine, without a GPU"
    else:
        size = f"with the {in_gib(error.gpu_bytes)} of the GPU to itself" if error.gpu_bytes else "alone on its GPU"
    what = " with ".join(filter(None, (_dimensions(graph), _first_model(graph))))
    about = f" ({what})" if what else ""
    return f"{error.detail}, even {size}{about}. {ADVICE}"


def retry_line(error: OutOfMemory) -> str:
    """Return a line for the log of a job that runs again."""
    if error.others_bytes:
        held = f"other programs held {in_gib(error.others_bytes)} of the GPU"
        return f"{error.detail}, while {held}: it runs on another GPU."
    return f"{error.detail}: it runs again, {'on another GPU' if error.ran_alone else 'alone on its GPU'}."


def _dimensions(graph: Graph) -> str:
    """Return the largest dimensions in a graph, such as `1024 × 1024, 81 frames`."""
    sized = [
        node["inputs"]
        for node in graph.values()
        if isinstance(node["inputs"].get("width"), int) and isinstance(node["inputs"].get("height"), int)
    ]
    if not sized:
        return ""
    inputs = max(sized, key=lambda inputs: inputs["width"] * inputs["height"])
    units = {"length": "frames", "batch_size": "per batch"}
    counts = [
        f", {count} {unit}" for name, unit in units.items() if isinstance(count := inputs.get(name), int) and count > 1
    ]
    return f"{inputs['width']} × {inputs['height']}{''.join(counts)}"


def _first_model(graph: Graph) -> str:
    names = [re.split(r"[\\/]", model.name)[-1][:60] for model in models_in(graph)]
    return names[0] if names else ""
