"""Nodes that create, load and change images, with Pillow."""

import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from PIL import Image, ImageChops, ImageFile, ImageOps, ImageSequence
from PIL.Image import Resampling

from comfyrelay.simulator.nodes.media import Images
from comfyrelay.simulator.nodes.results import NodeFunction, Result, Run, check_memory

_METHODS = {
    "nearest-exact": Resampling.NEAREST,
    "bilinear": Resampling.BILINEAR,
    "area": Resampling.BOX,
    "bicubic": Resampling.BICUBIC,
    "lanczos": Resampling.LANCZOS,
}
# Pillow's flag for truncated images is global
_truncated_lock = threading.Lock()


def load_image(run: Run, *, image: str) -> Result:
    path = run.folders.resolve(image)
    try:
        images, masks = _load_frames(path)
    except OSError:
        with _truncated_lock:
            before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, True
            try:
                images, masks = _load_frames(path)
            finally:
                ImageFile.LOAD_TRUNCATED_IMAGES = before
    return Result(outputs=(images, masks))


def empty_image(_run: Run, *, width: int, height: int, batch_size: int, color: int) -> Result:
    check_memory(width, height, batch_size)
    rgb = (color >> 16 & 0xFF, color >> 8 & 0xFF, color & 0xFF)
    return Result(outputs=([Image.new("RGB", (width, height), rgb)] * batch_size,))


def invert(_run: Run, *, image: Images) -> Result:
    return Result(outputs=(_each(image, ImageOps.invert),))


def scale(_run: Run, *, image: Images, upscale_method: str, width: int, height: int, crop: str) -> Result:
    if width == 0 and height == 0:
        return Result(outputs=(image,))
    old_width, old_height = image[0].size
    width = width or max(1, round(old_width * height / old_height))
    height = height or max(1, round(old_height * width / old_width))
    check_memory(width, height, len(image))

    def change(each: Image.Image) -> Image.Image:
        whole = _cropped_to_ratio(each, width / height) if crop == "center" else each
        return whole.resize((width, height), _METHODS[upscale_method])

    return Result(outputs=(_each(image, change),))


def scale_by(run: Run, *, image: Images, upscale_method: str, scale_by: float) -> Result:
    width, height = (max(1, round(side * scale_by)) for side in image[0].size)
    return scale(run, image=image, upscale_method=upscale_method, width=width, height=height, crop="disabled")


def crop(_run: Run, *, image: Images, width: int, height: int, x: int, y: int) -> Result:
    full_width, full_height = image[0].size
    left, top = min(x, full_width - 1), min(y, full_height - 1)
    box = (left, top, min(left + width, full_width), min(top + height, full_height))
    return Result(outputs=(_each(image, lambda each: each.crop(box)),))


def repeat(_run: Run, *, image: Images, amount: int) -> Result:
    return Result(outputs=(image * amount,))


def from_batch(_run: Run, *, image: Images, batch_index: int, length: int) -> Result:
    first = min(batch_index, len(image) - 1)
    return Result(outputs=(image[first : first + length],))


def add_noise(_run: Run, *, image: Images, seed: int, strength: float) -> Result:
    source = random.Random(seed)

    def change(each: Image.Image) -> Image.Image:
        # row by row, because the generator holds the GIL
        rows = (source.randbytes(each.width * 3) for _ in range(each.height))
        noise = Image.frombytes("RGB", each.size, b"".join(rows))
        scaled = noise.point([int(value * strength) for value in range(256)] * 3)
        return ImageChops.add(each, scaled, 1, -int(127.5 * strength))

    # each image of a batch gets different noise, even if the images are one object
    return Result(outputs=([change(each) for each in image],))


def _load_frames(path: Path) -> tuple[Images, Images]:
    images: Images = []
    masks: Images = []
    with Image.open(path) as file:
        for frame in ImageSequence.Iterator(file):
            upright = ImageOps.exif_transpose(frame)
            if images and upright.size != images[0].size:
                continue
            images.append(upright.convert("RGB"))
            masks.append(ImageOps.invert(upright.convert("RGBA").getchannel("A")))
    return images, masks


def _cropped_to_ratio(image: Image.Image, ratio: float) -> Image.Image:
    width, height = image.size
    cut_x = max(0, round((width - height * ratio) / 2))
    cut_y = max(0, round((height - width / ratio) / 2))
    return image.crop((cut_x, cut_y, width - cut_x, height - cut_y))


def _each(images: Images, change: Callable[[Image.Image], Image.Image]) -> Images:
    """Change every image; identical objects are changed once, which keeps long batches cheap."""
    done: dict[int, Image.Image] = {}
    for image in images:
        if id(image) not in done:
            done[id(image)] = change(image)
    return [done[id(image)] for image in images]


IMAGE_NODES: Mapping[str, NodeFunction] = {
    "LoadImage": load_image,
    "EmptyImage": empty_image,
    "ImageInvert": invert,
    "ImageScale": scale,
    "ImageScaleBy": scale_by,
    "ImageCrop": crop,
    "RepeatImageBatch": repeat,
    "ImageFromBatch": from_batch,
    "ImageAddNoise": add_noise,
}
