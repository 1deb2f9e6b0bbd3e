"""Nodes that save images and show texts."""

import json
import random
import string
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from comfyrelay.simulator.nodes.media import Images
from comfyrelay.simulator.nodes.results import NodeContext, NodeFunction, NodeResult

_WEBP_METHODS = {"default": 4, "fastest": 0, "slowest": 6}
# Prefixes may contain the size of an image, which other files do not have.
NO_SIZE = (0, 0)
_EXIF_MODEL = 0x0110
_EXIF_MAKE = 0x010F


def metadata(context: NodeContext) -> dict[str, str]:
    """Return the metadata that ComfyUI writes into each file: the graph, and the client's extra data."""
    return {
        "prompt": json.dumps(context.prompt),
        **{name: json.dumps(value) for name, value in context.extra_pnginfo.items()},
    }


def save_image(context: NodeContext, *, images: Images, filename_prefix: str) -> NodeResult:
    return _save_pngs(context, images, prefix=filename_prefix, kind="output", compress_level=4)


def preview_image(context: NodeContext, *, images: Images) -> NodeResult:
    letters = "".join(random.choices(string.ascii_lowercase, k=5))
    return _save_pngs(context, images, prefix=f"ComfyUI_temp_{letters}", kind="temp", compress_level=1)


def save_animated_webp(
    context: NodeContext, *, images: Images, filename_prefix: str, fps: float, lossless: bool, quality: int, method: str
) -> NodeResult:
    exif = Image.Exif()
    for tag, (name, value) in zip((_EXIF_MODEL, _EXIF_MAKE), metadata(context).items(), strict=False):
        exif[tag] = f"{name}:{value}"
    options = {"lossless": lossless, "quality": quality, "method": _WEBP_METHODS[method], "exif": exif}
    return _save_animation(context, images, prefix=filename_prefix, extension="webp", fps=fps, options=options)


def save_animated_png(
    context: NodeContext, *, images: Images, filename_prefix: str, fps: float, compress_level: int
) -> NodeResult:
    options = {"compress_level": compress_level, "pnginfo": _png_info(context)}
    return _save_animation(context, images, prefix=filename_prefix, extension="png", fps=fps, options=options)


def save_image_websocket(_context: NodeContext, *, images: Images) -> NodeResult:
    return NodeResult(websocket_images=tuple(_png(image) for image in images))


def primitive_string(_context: NodeContext, *, value: str) -> NodeResult:
    return NodeResult(outputs=(value,))


def save_text(context: NodeContext, *, text: str, filename_prefix: str, format: str) -> NodeResult:
    path, entry = context.folders.save_target(filename_prefix, size=NO_SIZE).plain_file(format)
    path.write_text(text, "utf-8")
    return NodeResult(outputs=(text,), ui={"text": [text], "files": [entry]})


def preview_any(_context: NodeContext, *, source: Any) -> NodeResult:
    return NodeResult(ui={"text": [_as_text(source)]})


def _save_pngs(context: NodeContext, images: Images, *, prefix: str, kind: str, compress_level: int) -> NodeResult:
    target = context.folders.save_target(prefix, size=images[0].size, kind=kind)
    entries = []
    for index, image in enumerate(images):
        path, entry = target.file("png", offset=index)
        image.save(path, compress_level=compress_level, pnginfo=_png_info(context))
        entries.append(entry)
    return NodeResult(ui={"images": entries})


def _save_animation(
    context: NodeContext, images: Images, *, prefix: str, extension: str, fps: float, options: Mapping[str, Any]
) -> NodeResult:
    path, entry = context.folders.save_target(prefix, size=images[0].size).file(extension)
    images[0].save(path, save_all=True, append_images=images[1:], duration=round(1000 / fps), **options)
    # A single image is not animated.
    return NodeResult(ui={"images": [entry], **({"animated": [True]} if len(images) > 1 else {})})


def _png(image: Image.Image) -> bytes:
    file = BytesIO()
    # As in ComfyUI, this PNG does not contain the graph.
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _png_info(context: NodeContext) -> PngInfo:
    info = PngInfo()
    for name, value in metadata(context).items():
        info.add_text(name, value)
    return info


def _as_text(value: object) -> str:
    if value is None or isinstance(value, str | bool | int | float):
        return str(value)
    try:
        return json.dumps(value)
    except TypeError:
        return str(value)


SAVER_NODES: Mapping[str, NodeFunction] = {
    "SaveImage": save_image,
    "PreviewImage": preview_image,
    "SaveAnimatedWEBP": save_animated_webp,
    "SaveAnimatedPNG": save_animated_png,
    "SaveImageWebsocket": save_image_websocket,
    "PreviewAny": preview_any,
    "PrimitiveString": primitive_string,
    "SaveText": save_text,
}
