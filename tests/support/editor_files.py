"""Small workflows, written as ComfyUI's editor saves them."""

from collections.abc import Sequence
from typing import Any

# The part of the node definitions that a conversion reads.
DEFINITIONS: dict[str, Any] = {
    "EmptyImage": {
        "input": {
            "required": {
                "width": ["INT", {"default": 512}],
                "height": ["INT", {"default": 512}],
                "batch_size": ["INT", {"default": 1}],
                "color": ["INT", {"default": 0}],
            }
        },
        "output": ["IMAGE"],
        "display_name": "Empty Image",
    },
    "ImageInvert": {"input": {"required": {"image": ["IMAGE"]}}, "output": ["IMAGE"]},
    "ImageScaleBy": {
        "input": {
            "required": {
                "image": ["IMAGE"],
                "upscale_method": [["nearest-exact", "bilinear", "area"], {}],
                "scale_by": ["FLOAT", {"default": 1.0}],
            }
        },
        "output": ["IMAGE"],
    },
    "ImageBlend": {
        "input": {
            "required": {
                "image1": ["IMAGE"],
                "image2": ["IMAGE"],
                "blend_factor": ["FLOAT", {"default": 0.5}],
                "blend_mode": [["normal", "multiply"], {}],
            }
        },
        "output": ["IMAGE"],
    },
    "SaveImage": {
        "input": {"required": {"images": ["IMAGE"], "filename_prefix": ["STRING", {"default": "ComfyUI"}]}},
        "output": [],
        "output_node": True,
    },
    "PrimitiveFloat": {"input": {"required": {"value": ["FLOAT", {}]}}, "output": ["FLOAT"]},
    "KSampler": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "seed": ["INT", {"default": 0, "control_after_generate": True}],
                "steps": ["INT", {"default": 20}],
                "sampler_name": [["euler", "dpmpp_2m"], {}],
            }
        },
        "output": ["LATENT"],
    },
    "CLIPTextEncode": {
        "input": {"required": {"text": ["STRING", {"multiline": True, "dynamicPrompts": True}], "clip": ["CLIP"]}},
        "output": ["CONDITIONING"],
    },
    "SaveClip": {
        "input": {
            "required": {
                "format": [
                    "COMFY_DYNAMICCOMBO_V3",
                    {
                        "options": [
                            {"key": "mp4", "inputs": {"required": {"crf": ["INT", {"default": 19}]}}},
                            {"key": "webm", "inputs": {"required": {"codec": [["vp9", "av1"], {}]}}},
                        ]
                    },
                ],
                "filename_prefix": ["STRING", {"default": "clip"}],
                "images": ["COMFY_AUTOGROW_V3", {"template": {"input": {"required": {"image": ["IMAGE"]}}}}],
            }
        },
        "output": [],
        "output_node": True,
    },
    "VHS_VideoCombine": {
        "input": {"required": {"images": ["IMAGE"], "frame_rate": ["FLOAT", {"default": 8}], "format": [["gif"], {}]}},
        "output": [],
        "output_node": True,
    },
    "Load3D": {"input": {"required": {"model_file": [["a.glb"], {}], "image": ["LOAD_3D", {}]}}, "output": ["IMAGE"]},
}

Slot = tuple[str, str, int | None] | tuple[str, str, int | None, str]


def node(
    node_id: int,
    class_type: str,
    inputs: Sequence[Slot] = (),
    outputs: Sequence[tuple[str, str]] = (("IMAGE", "IMAGE"),),
    values: Any = (),
    **more: Any,
) -> dict[str, Any]:
    """Return a node; an input is a name, type and link, and optionally the widget that it replaces."""
    return {
        "id": node_id,
        "type": class_type,
        "mode": 0,
        "inputs": [
            {"name": slot[0], "type": slot[1], "link": slot[2]}
            | ({"widget": {"name": slot[3]}} if len(slot) > 3 else {})
            for slot in inputs
        ],
        "outputs": [{"name": name, "type": kind, "links": []} for name, kind in outputs],
        "properties": {},
        "widgets_values": values if isinstance(values, dict) else list(values),
    } | more


def empty(node_id: int = 1, values: Sequence[Any] = (64, 48, 1, 255), **more: Any) -> dict[str, Any]:
    return node(node_id, "EmptyImage", values=values, **more)


def invert(node_id: int, link: int, **more: Any) -> dict[str, Any]:
    return node(node_id, "ImageInvert", [("image", "IMAGE", link)], **more)


def save(node_id: int, link: int | None, **more: Any) -> dict[str, Any]:
    return node(node_id, "SaveImage", [("images", "IMAGE", link)], (), ["out"], **more)


def workflow(nodes: Sequence[Any], links: Sequence[Sequence[Any]] = (), **more: Any) -> dict[str, Any]:
    """Return a workflow of format 0.4; a link is id, origin, slot, target, slot."""
    return {"nodes": list(nodes), "links": [[*link, "*"] for link in links], "version": 0.4} | more


def subgraph(
    subgraph_id: str,
    nodes: Sequence[Any],
    links: Sequence[tuple[int, int, int, int, int]],
    inputs: Sequence[tuple[str, str, list[int]]],
    outputs: Sequence[tuple[str, str, list[int]]],
) -> dict[str, Any]:
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
    return {
        "id": subgraph_id,
        "nodes": list(nodes),
        "links": [dict(zip(names, link, strict=True)) for link in links],
        "inputs": [{"name": name, "type": kind, "linkIds": ids} for name, kind, ids in inputs],
        "outputs": [{"name": name, "type": kind, "linkIds": ids} for name, kind, ids in outputs],
    }
