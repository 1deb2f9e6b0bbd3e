"""The node classes that the stand-in knows: those that need no weights, and a few that do."""

from collections.abc import Mapping

from comfyrelay.sim.nodes.catalogue_images import IMAGES
from comfyrelay.sim.nodes.catalogue_models import NEED_WEIGHTS
from comfyrelay.sim.nodes.catalogue_videos import ANIMATIONS
from comfyrelay.sim.nodes.definitions import NodeDefinition

DEFINITIONS: Mapping[str, NodeDefinition] = {each.class_type: each for each in (*NEED_WEIGHTS, *IMAGES, *ANIMATIONS)}
