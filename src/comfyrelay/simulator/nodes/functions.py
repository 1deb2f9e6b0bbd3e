"""The functions of all node classes."""

from collections.abc import Mapping
from typing import Any

from comfyrelay.simulator.nodes.catalogue import DEFINITIONS
from comfyrelay.simulator.nodes.images import IMAGE_NODES
from comfyrelay.simulator.nodes.meshes import MESH_NODES
from comfyrelay.simulator.nodes.models import MODEL_NODES
from comfyrelay.simulator.nodes.results import NodeContext, NodeFunction, NodeResult
from comfyrelay.simulator.nodes.savers import SAVER_NODES
from comfyrelay.simulator.nodes.sounds import SOUND_NODES
from comfyrelay.simulator.nodes.videos import VIDEO_NODES


def _needs_weights(_context: NodeContext, **_inputs: Any) -> NodeResult:
    raise RuntimeError("The simulator has no models: it runs only nodes that need no weights.")


FUNCTIONS: Mapping[str, NodeFunction] = {
    **dict.fromkeys(DEFINITIONS, _needs_weights),
    **IMAGE_NODES,
    **MESH_NODES,
    **MODEL_NODES,
    **SAVER_NODES,
    **SOUND_NODES,
    **VIDEO_NODES,
}
