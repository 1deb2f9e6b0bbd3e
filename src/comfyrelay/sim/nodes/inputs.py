"""Short ways to write down inputs and node classes."""

from typing import Any

from comfyrelay.sim.nodes.definitions import InputSpec, NodeDefinition

LARGEST_SIDE = 16384
_LARGEST_SEED = 2**64 - 1


def whole(default: int, low: int, high: int, **more: object) -> InputSpec:
    return ["INT", {"default": default, "min": low, "max": high, **more}]


def number(default: float, low: float, high: float, **more: object) -> InputSpec:
    return ["FLOAT", {"default": default, "min": low, "max": high, **more}]


def side(default: int = 512, low: int = 1) -> InputSpec:
    return whole(default, low, LARGEST_SIDE, step=1)


def seed() -> InputSpec:
    return whole(0, 0, _LARGEST_SEED, control_after_generate=True)


def one_of(*options: str, **more: object) -> InputSpec:
    return ["COMBO", {**more, "multiselect": False, "options": list(options)}]


def prefix(default: str = "ComfyUI") -> InputSpec:
    return ["STRING", {"default": default, "multiline": False}]


def core(class_type: str, display_name: str, category: str, /, **fields: Any) -> NodeDefinition:
    values: dict[str, Any] = {"module": "nodes", **fields}
    return NodeDefinition(class_type=class_type, display_name=display_name, category=category, **values)


def extra(class_type: str, category: str, /, **fields: Any) -> NodeDefinition:
    values: dict[str, Any] = {"display_name": None, "module": "comfy_extras.nodes_images", **fields}
    return NodeDefinition(class_type=class_type, category=category, is_new_style=True, **values)


def video(class_type: str, display_name: str | None, /, **fields: Any) -> NodeDefinition:
    return extra(class_type, "image/video", display_name=display_name, module="comfy_extras.nodes_video", **fields)
