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
from comfyrelay.simulator.nodes.results import NodeFunction, Result, Run

_WEBP_METHODS = {"default": 4, "fastest": 0, "slowest": 6}
_EXIF_MODEL = 0x0110
_EXIF_MAKE = 0x010F


def metadata(run: Run) -> dict[str, str]:
    """Metadata that ComfyUI writes into each file: the graph, and the client's extra data."""
    return {"prompt": json.dumps(run.prompt), **{name: json.dumps(value) for name, value in run.extra_pnginfo.items()}}


def save_image(run: Run, *, images: Images, filename_prefix: str) -> Result:
    return _save_pngs(run, images, prefix=filename_prefix, kind="output", compress_level=4)


def preview_image(run: Run, *, images: Images) -> Result:
    letters = "".join(random.choices(string.ascii_lowercase, k=5))
    return _save_pngs(run, images, prefix=f"ComfyUI_temp_{letters}", kind="temp", compress_level=1)


def save_animated_webp(
    run: Run, *, images: Images, filename_prefix: str, fps: float, lossless: bool, quality: int, method: str
) -> Result:
    exif = Image.Exif()
    for tag, (name, value) in zip((_EXIF_MODEL, _EXIF_MAKE), metadata(run).items(), strict=False):
        exif[tag] = f"{name}:{value}"
    options = {"lossless": lossless, "quality": quality, "method": _WEBP_METHODS[method], "exif": exif}
    return _save_animation(run, images, prefix=filename_prefix, extension="webp", fps=fps, options=options)


def save_animated_png(run: Run, *, images: Images, filename_prefix: str, fps: float, compress_level: int) -> Result:
    options = {"compress_level": compress_level, "pnginfo": _png_info(run)}
    return _save_animation(run, images, prefix=filename_prefix, extension="png", fps=fps, options=options)


def save_image_websocket(_run: Run, *, images: Images) -> Result:
    return Result(sent=tuple(_png(image) for image in images))


def preview_any(_run: Run, *, source: Any) -> Result:
    return Result(shown={"text": [_as_text(source)]})


def _save_pngs(run: Run, images: Images, *, prefix: str, kind: str, compress_level: int) -> Result:
    place = run.folders.save_place(prefix, size=images[0].size, kind=kind)
    entries = []
    for index, image in enumerate(images):
        path, entry = place.file("png", offset=index)
        image.save(path, compress_level=compress_level, pnginfo=_png_info(run))
        entries.append(entry)
    return Result(shown={"images": entries})


def _save_animation(
    run: Run, images: Images, *, prefix: str, extension: str, fps: float, options: Mapping[str, Any]
) -> Result:
    path, entry = run.folders.save_place(prefix, size=images[0].size).file(extension)
    images[0].save(path, save_all=True, append_images=images[1:], duration=round(1000 / fps), **options)
    # a single image is not animated
    return Result(shown={"images": [entry], **({"animated": [True]} if len(images) > 1 else {})})


def _png(image: Image.Image) -> bytes:
    file = BytesIO()
    # like ComfyUI: without the graph
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _png_info(run: Run) -> PngInfo:
    info = PngInfo()
    for name, value in metadata(run).items():
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
}
