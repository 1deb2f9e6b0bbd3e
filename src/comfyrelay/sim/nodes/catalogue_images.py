"""The node classes that make, change, save and show images."""

from comfyrelay.sim.nodes.definitions import Listing
from comfyrelay.sim.nodes.inputs import core, extra, number, seed, side, whole

_SCALING = [["nearest-exact", "bilinear", "area", "bicubic", "lanczos"]]

IMAGES = (
    core(
        "SaveImage",
        "Save Image",
        "image",
        required={"images": ["IMAGE", {}], "filename_prefix": ["STRING", {"default": "ComfyUI"}]},
        has_metadata=True,
        is_output=True,
    ),
    core("PreviewImage", "Preview Image", "image", required={"images": ["IMAGE"]}, has_metadata=True, is_output=True),
    core(
        "LoadImage",
        "Load Image",
        "image",
        required={"image": [Listing.INPUT_IMAGES, {"image_upload": True}]},
        output=("IMAGE", "MASK"),
        file_input="image",
    ),
    core(
        "ImageScale",
        "Upscale Image",
        "image/upscaling",
        required={
            "image": ["IMAGE"],
            "upscale_method": _SCALING,
            "width": side(low=0),
            "height": side(low=0),
            "crop": [["disabled", "center"]],
        },
        output=("IMAGE",),
    ),
    core(
        "ImageScaleBy",
        "Upscale Image By",
        "image/upscaling",
        required={"image": ["IMAGE"], "upscale_method": _SCALING, "scale_by": number(1.0, 0.01, 8.0, step=0.01)},
        output=("IMAGE",),
    ),
    core("ImageInvert", "Invert Image", "image", required={"image": ["IMAGE"]}, output=("IMAGE",)),
    core(
        "EmptyImage",
        "EmptyImage",
        "image",
        required={
            "width": side(),
            "height": side(),
            "batch_size": whole(1, 1, 4096),
            "color": whole(0, 0, 0xFFFFFF, step=1, display="color"),
        },
        output=("IMAGE",),
    ),
    extra(
        "ImageCrop",
        "image/transform",
        display_name="Image Crop",
        required={
            "image": ["IMAGE", {}],
            "width": side(),
            "height": side(),
            "x": side(default=0, low=0),
            "y": side(default=0, low=0),
        },
        output=("IMAGE",),
    ),
    extra(
        "RepeatImageBatch",
        "image/batch",
        required={"image": ["IMAGE", {}], "amount": whole(1, 1, 4096)},
        output=("IMAGE",),
    ),
    extra(
        "ImageFromBatch",
        "image/batch",
        required={"image": ["IMAGE", {}], "batch_index": whole(0, 0, 4095), "length": whole(1, 1, 4096)},
        output=("IMAGE",),
    ),
    extra(
        "ImageAddNoise",
        "image",
        required={"image": ["IMAGE", {}], "seed": seed(), "strength": number(0.5, 0.0, 1.0, step=0.01)},
        output=("IMAGE",),
    ),
    core(
        "PreviewAny",
        "Preview as Text",
        "utils",
        module="comfy_extras.nodes_preview_any",
        required={"source": ["*", {}]},
        is_output=True,
    ),
)
