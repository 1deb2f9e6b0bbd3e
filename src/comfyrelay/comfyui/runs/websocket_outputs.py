"""Outputs that nodes such as `SaveImageWebsocket` send only over the WebSocket; the history does not list them."""

from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import OutputFile, files_of, texts_of
from comfyrelay.comfyui.runs.history import outputs_to_run
from comfyrelay.comfyui.runs.progress import MAX_SENT_BYTES
from comfyrelay.comfyui.runs.watch import Watch
from comfyrelay.errors import OutputGone, TooLarge


async def sent_outputs(watch: Watch, graph: Graph, entry: dict[str, Any]) -> list[OutputFile]:
    """Return the images sent by output nodes that have no other output, for a run that succeeded.

    Raises `OutputGone` if some were missed: the server sends them only once.
    """
    found = entry.get("outputs")
    made = {node for node, output in (found or {}).items() if files_of(node, output) or texts_of(output)}
    senders = [node for node in outputs_to_run(entry) or graph if node not in made]
    if not any(_sends(graph, node) or watch.progress.sent_by(node) for node in senders):
        return []
    if not await watch.has_received_all():
        raise OutputGone(
            "The connection to the server was lost, so images that this graph sends only over the WebSocket are "
            "missing: save them with SaveImage instead, or run it again."
        )
    if watch.progress.sent_bytes > MAX_SENT_BYTES:
        most = MAX_SENT_BYTES // 1024**2
        raise TooLarge(f"This graph sends more than {most} MiB of images: save them with SaveImage instead.")
    return [file for node in senders for file in watch.progress.sent_by(node)]


def _sends(graph: Graph, node_id: str) -> bool:
    return "websocket" in str(graph.get(node_id, {}).get("class_type")).lower()
