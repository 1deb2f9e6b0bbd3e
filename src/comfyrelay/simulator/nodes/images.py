"""Nodes that create, load and change images, with Pillow."""

import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from PIL import Image, ImageChops, ImageFile, ImageOps, ImageSequence
from PIL.Image import Resampling

from comfyrelay.simulator.nodes.media import Images
from comfyrelay.simulator.nodes.results import NodeContext, NodeFunction, NodeResult, check_memory

_METHODS = {
    "nearest-exact": Resampling.NEAREST,
    "bilinear": Resampling.BILINEAR,
    "area": Resampling.BOX,
    "bicubic": Resampling.BICUBIC,
    "lanczos": Resampling.LANCZOS,
}
# Pillow's flag for truncated images is global.
_truncated_lock = threading.Lock()


def load_image(context: NodeContext, *, image: str) -> NodeResult:
    path = context.folders.resolve(image)
    try:
        images, masks = _load_frames(path)
    except OSError:
        with _truncated_lock:
            before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, True
            try:
                images, masks = _load_frames(path)
            finally:
                ImageFile.LOAD_TRUNCATED_IMAGES = before
    return NodeResult(outputs=(images, masks))


def empty_image(_context: NodeContext, *, width: int, height: int, batch_size: int, color: int) -> NodeResult:
    check_memory(width, height, batch_size)
    rgb = (color >> 16 & 0xFF, color >> 8 & 0xFF, color & 0xFF)
    return NodeResult(outputs=([Image.new("RGB", (width, height), rgb)] * batch_size,))


def invert(_context: NodeContext, *, image: Images) -> NodeResult:
    return NodeResult(outputs=(_map_images(image, ImageOps.invert),))


def scale(
    _context: NodeContext, *, image: Images, upscale_method: str, width: int, height: int, crop: str
) -> NodeResult:
    if width == 0 and height == 0:
        return NodeResult(outputs=(image,))
    old_width, old_height = image[0].size
    width = width or max(1, round(old_width * height / old_height))
    height = height or max(1, round(old_height * width / old_width))
    check_memory(width, height, len(image))

    def change(picture: Image.Image) -> Image.Image:
        cropped = _cropped_to_ratio(picture, width / height) if crop == "center" else picture
        return cropped.resize((width, height), _METHODS[upscale_method])

    return NodeResult(outputs=(_map_images(image, change),))


def scale_by(context: NodeContext, *, image: Images, upscale_method: str, scale_by: float) -> NodeResult:
    width, height = (max(1, round(side * scale_by)) for side in image[0].size)
    return scale(context, image=image, upscale_method=upscale_method, width=width, height=height, crop="disabled")


def crop(_context: NodeContext, *, image: Images, width: int, height: int, x: int, y: int) -> NodeResult:
    full_width, full_height = image[0].size
    left, top = min(x, full_width - 1), min(y, full_height - 1)
    box = (left, top, min(left + width, full_width), min(top + height, full_height))
    return NodeResult(outputs=(_map_images(image, lambda picture: picture.crop(box)),))


def repeat(_context: NodeContext, *, image: Images, amount: int) -> NodeResult:
    return NodeResult(outputs=(image * amount,))


def from_batch(_context: NodeContext, *, image: Images, batch_index: int, length: int) -> NodeResult:
    first = min(batch_index, len(image) - 1)
    return NodeResult(outputs=(image[first : first + length],))


def add_noise(_context: NodeContext, *, image: Images, seed: int, strength: float) -> NodeResult:
    source = random.Random(seed)

    def change(picture: Image.Image) -> Image.Image:
        # Generate the noise row by row, because the generator holds the GIL.
        rows = (source.randbytes(picture.width * 3) for _ in range(picture.height))
        noise = Image.frombytes("RGB", picture.size, b"".join(rows))
        scaled = noise.point([int(value * strength) for value in range(256)] * 3)
        return ImageChops.add(picture, scaled, 1, -int(127.5 * strength))

    # Each image of a batch gets different noise, even if the images are one object.
    return NodeResult(outputs=([change(picture) for picture in image],))


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


def _map_images(images: Images, change: Callable[[Image.Image], Image.Image]) -> Images:
    """Change every image. Identical objects are changed once, which keeps long batches cheap."""
    distinct = {id(image): image for image in images}
    changed = {key: change(image) for key, image in distinct.items()}
    return [changed[id(image)] for image in images]


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
