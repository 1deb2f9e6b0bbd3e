"""Check that an image is readable, measure it, and edit it."""

import io
import struct
from os import SEEK_END
from typing import BinaryIO

from PIL import ExifTags, Image, TiffImagePlugin

from comfyrelay.media.info import ImageEdit, MediaInfo, MediaRefused, ProbeLimits, check_frames, check_pixels

# Pure image formats only: Pillow would pass EPS to Ghostscript, for example.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
# Encoders fill each GIF block (255 bytes) except the last of each part. At most this many blocks may be smaller than
# usual.
SMALL_BLOCKS, USUAL_BLOCK_BYTES = 100_000, 100
# EXIF orientations that swap width and height.
_ON_ITS_SIDE = (5, 6, 7, 8)
_EXTENSION, _FRAME = b"\x21", b"\x2c"


def read_image(file: BinaryIO, limits: ProbeLimits) -> MediaInfo:
    """Decode the image. Raises Pillow's errors or `MediaRefused`."""
    # Pillow is slow with many GIF blocks, so count the blocks before Pillow reads the file.
    gif = _read_gif(file, limits) if file.read(4) == b"GIF8" else None
    file.seek(0)
    with Image.open(file, formats=FORMATS) as image:
        check_pixels(image.width, image.height, limits)
        frames, width, height = gif or (0, *image.size)
        frames = frames or _frames(image, limits)
        check_frames(frames, limits)
        # PNG's override of `getexif` would decode the whole image.
        if Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1) in _ON_ITS_SIDE:
            width, height = height, width
        info = MediaInfo(kind="image", width=width, height=height, frames=frames)
        has_checksums = image.format == "PNG"
        image.verify()
    if not has_checksums:
        # These formats must be decoded to detect truncation.
        file.seek(0)
        with Image.open(file, formats=FORMATS) as image:
            # The JPEG decoder reads every byte even when it decodes at an eighth of the size.
            image.draft(None, (image.width // 8, image.height // 8))
            image.load()
    return info


def edit_image(data: bytes, mask: bytes, edit: ImageEdit, limits: ProbeLimits) -> bytes:
    """Change the channels or the format of an image in the same way as ComfyUI."""
    edited = (
        _apply_mask(_open_image(data, limits), _open_image(mask, limits))
        if mask
        else _apply_edit(_open_image(data, limits), edit)
    )
    out = io.BytesIO()
    options = {"compress_level": 4} if edit.extension == "png" else {"quality": edit.quality}
    edited.save(out, edit.extension.upper(), **options)
    return out.getvalue()


def _apply_mask(image: Image.Image, mask: Image.Image) -> Image.Image:
    masked = image.convert("RGBA")
    # Raises an error if the sizes differ, as in ComfyUI.
    masked.putalpha(mask.convert("RGBA").getchannel("A"))
    return masked


def _apply_edit(image: Image.Image, edit: ImageEdit) -> Image.Image:
    if edit.channel == "a":
        alpha = Image.new("RGBA", image.size)
        alpha.putalpha(image.convert("RGBA").getchannel("A"))
        return alpha
    return image.convert("RGB") if edit.channel == "rgb" or edit.extension == "jpeg" else image


def _open_image(data: bytes, limits: ProbeLimits) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    check_pixels(image.width, image.height, limits)
    return image


def _frames(image: Image.Image, limits: ProbeLimits) -> int:
    if image.format == "MPO":
        # A photo, followed by pictures such as its depth, which ComfyUI does not read.
        return 1
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return getattr(image, "n_frames", 1)
    # TIFF pages are a linked list that may be endless.
    for number in range(limits.max_frames + 1):
        try:
            image.seek(number)
        except EOFError:
            image.seek(0)
            return number
    return limits.max_frames + 1


def _read_gif(file: BinaryIO, limits: ProbeLimits) -> tuple[int, int, int]:
    """Return the number of frames, and the width and height that contain the screen and all frames: Pillow enlarges the
    image to a frame that exceeds the screen."""
    blocks_left = SMALL_BLOCKS + file.seek(0, SEEK_END) // USUAL_BLOCK_BYTES
    file.seek(6)
    width, height = struct.unpack("<HH", file.read(4))
    _skip_colours(file, file.read(1), after=2)
    frames = 0
    while frames <= limits.max_frames and (block_type := file.read(1)) in (_EXTENSION, _FRAME):
        if block_type == _FRAME:
            frames += 1
            left, top, frame_width, frame_height, flags = struct.unpack("<HHHHc", file.read(9))
            width, height = max(width, left + frame_width), max(height, top + frame_height)
            _skip_colours(file, flags, after=1)
        else:
            file.seek(1, 1)
        blocks_left -= 1
        while blocks_left >= 0 and (length := file.read(1)[:1].rstrip(b"\0")):
            file.seek(length[0], 1)
            blocks_left -= 1
        if blocks_left < 0:
            raise MediaRefused("blocks")
    check_pixels(width, height, limits)
    return frames, width, height


def _skip_colours(file: BinaryIO, flags: bytes, *, after: int) -> None:
    """Skip a GIF colour table, if the flags announce one, and `after` bytes."""
    has_colours = bool(flags) and flags[0] & 0x80
    file.seek((3 << (flags[0] & 7) + 1 if has_colours else 0) + after, 1)
