"""Clients for ComfyUI and the Comfy API: run graphs, transfer files, explain failures.

Usable without the rest of ComfyRelay:

    async with ComfyClient("http://127.0.0.1:8188") as comfy:
        result = await comfy.run(load_graph(Path("graph.json")))
        await comfy.download(result.file, Path("out.png"))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.client.uploads import Attachment, Uploaded
from comfyrelay.comfyui.comfy_api.client import ComfyApiClient
from comfyrelay.comfyui.graphs.graph import Graph, check_graph, load_graph, placeholders_in, replace_placeholders
from comfyrelay.comfyui.graphs.hash import workflow_hash
from comfyrelay.comfyui.graphs.nodes import NamedFile, files_in, find_node, models_in, output_nodes, set_input, title_of
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.comfyui.runs.events import (
    Finished,
    NodeStarted,
    OutputReady,
    Preview,
    Printed,
    Queued,
    RunEvent,
    Started,
    Step,
)
from comfyrelay.comfyui.runs.timeouts import RunTimeouts

if TYPE_CHECKING:
    from comfyrelay.comfyui.editor.convert import convert_workflow
    from comfyrelay.comfyui.editor.embedded import Embedded, read_embedded
    from comfyrelay.comfyui.editor.loading import load_workflow

__all__ = [
    "Attachment",
    "ComfyApiClient",
    "ComfyClient",
    "ComfyServer",
    "Embedded",
    "Finished",
    "Graph",
    "NamedFile",
    "NodeStarted",
    "OutputFile",
    "OutputReady",
    "Preview",
    "Printed",
    "Queued",
    "RunEvent",
    "RunResult",
    "RunTimeouts",
    "Started",
    "Step",
    "Uploaded",
    "check_graph",
    "convert_workflow",
    "files_in",
    "find_node",
    "load_graph",
    "load_workflow",
    "models_in",
    "output_nodes",
    "placeholders_in",
    "read_embedded",
    "replace_placeholders",
    "set_input",
    "title_of",
    "workflow_hash",
]
# Imported on first use, because only reading workflow files needs the editor's modules.
_LAZY = {
    "convert_workflow": "convert",
    **dict.fromkeys(("Embedded", "read_embedded"), "embedded"),
    "load_workflow": "loading",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"comfyrelay.comfyui.editor.{_LAZY[name]}"), name)
