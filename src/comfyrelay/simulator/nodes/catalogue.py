"""The available node classes, from a recording of a real server."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comfyrelay.simulator.nodes.definitions import ChoiceSource, NodeDefinition
from comfyrelay.simulator.options import Options

# The choices of these inputs come from this server rather than the recording.
_LISTED = {
    "CheckpointLoaderSimple": ("ckpt_name", ChoiceSource.CHECKPOINTS),
    "LoraLoader": ("lora_name", ChoiceSource.LORAS),
    "LoraLoaderModelOnly": ("lora_name", ChoiceSource.LORAS),
    "LoadImage": ("image", ChoiceSource.INPUT_IMAGES),
    "LoadVideo": ("file", ChoiceSource.INPUT_VIDEOS),
}


def _definition(class_type: str, described: Mapping[str, Any]) -> NodeDefinition:
    listed, listing = _LISTED.get(class_type, (None, None))
    return NodeDefinition(
        described=described,
        required=described["input"]["required"],
        optional=described["input"].get("optional", {}),
        output=described["output"],
        is_output=described["output_node"],
        listed=listed,
        listing=listing,
    )


DEFINITIONS: Mapping[str, NodeDefinition] = {
    class_type: _definition(class_type, described)
    for class_type, described in json.loads(Path(__file__).with_name("object_info.json").read_text("utf-8")).items()
}


# Nodes that were added to ComfyUI after 0.7.0.
_NEWER = frozenset({"SaveText"})


def definitions_of(options: Options) -> Mapping[str, NodeDefinition]:
    """Return the node classes of the simulated version."""
    if options.is_current:
        return DEFINITIONS
    return {class_type: definition for class_type, definition in DEFINITIONS.items() if class_type not in _NEWER}
