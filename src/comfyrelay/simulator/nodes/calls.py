"""Look up and call the function of a node class."""

from collections.abc import Mapping
from typing import Any

from comfyrelay.simulator.nodes.catalogue import DEFINITIONS
from comfyrelay.simulator.nodes.images import IMAGE_NODES
from comfyrelay.simulator.nodes.models import MODEL_NODES
from comfyrelay.simulator.nodes.results import NodeFunction, Result, Run
from comfyrelay.simulator.nodes.savers import SAVER_NODES
from comfyrelay.simulator.nodes.videos import VIDEO_NODES


def _needs_weights(_run: Run, **_inputs: Any) -> Result:
    raise RuntimeError("The simulator has no models: it runs only nodes that need no weights.")


FUNCTIONS: Mapping[str, NodeFunction] = {
    **dict.fromkeys(DEFINITIONS, _needs_weights),
    **IMAGE_NODES,
    **MODEL_NODES,
    **SAVER_NODES,
    **VIDEO_NODES,
}


def run_node(class_type: str, run: Run, values: Mapping[str, Any]) -> Result:
    return FUNCTIONS[class_type](run, **values)


def known_values(class_type: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the values that the class has inputs for; a graph may hold others, for other versions of the class."""
    definition = DEFINITIONS[class_type]
    return {name: value for name, value in values.items() if name in definition.required or name in definition.optional}
