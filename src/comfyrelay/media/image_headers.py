"""Read image dimensions from the first bytes: decoders allocate memory for the claimed size before they read the
data."""

import math
import re
import struct
from dataclasses import dataclass

# No program writes more chunks before the size and the frame count.
MAX_PARTS = 1000
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG_MARKER = re.compile(rb"\xff++([^\xff])", re.S)
# A flag of WebP.
_IS_ANIMATED = 2
# These markers hold the size.
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageHeader:
    """The size and frame count that a file claims to have. The count of an animation may only be in the whole file:
    then it is `None`."""

    width: int
    height: int
    frames: int | None = 1


def read_image_header(head: bytes) -> ImageHeader | None:
    """Read the header of a PNG, JPEG, GIF, WebP or BMP. Returns `None` for other formats, or if `head` is too short."""
    try:
        if head.startswith(_PNG):
            return _png(head)
        if head.startswith(b"\xff\xd8"):
            return _jpeg(head)
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            return _webp(head)
        if head[:4] == b"GIF8":
            return _gif(head)
        if head[:2] == b"BM":
            return _bmp(head)
    except struct.error:
        # The file is truncated.
        pass
    return None


def _png(head: bytes) -> ImageHeader:
    width, height = struct.unpack_from(">II", head, 16)
    frames, has_default_image, at = 1, False, len(_PNG)
    for _ in range(MAX_PARTS):
        if at + 12 > len(head):
            break
        name = head[at + 4 : at + 8]
        if name == b"IDAT":
            return ImageHeader(width=width, height=height, frames=frames + has_default_image)
        if name == b"IHDR":
            # Of several sizes, Pillow uses the last one.
            width, height = max((width, height), struct.unpack_from(">II", head, at + 8), key=math.prod)
        elif name == b"acTL":
            frames, has_default_image = max(1, *struct.unpack_from(">I", head, at + 8)), True
        elif name == b"fcTL":
            # The image is the first one of the animation.
            has_default_image = False
        at += 12 + int.from_bytes(head[at : at + 4])
    return ImageHeader(width=width, height=height, frames=frames if frames > 1 else None)


def _jpeg(head: bytes) -> ImageHeader | None:
    at = 2
    for _ in range(MAX_PARTS):
        # Markers may be padded with 0xFF.
        marker = _JPEG_MARKER.match(head, at)
        if marker is None:
            return None
        if marker[1][0] in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", head, marker.end() + 3)
            return ImageHeader(width=width, height=height)
        at = marker.end() + int.from_bytes(head[marker.end() : marker.end() + 2])
    return None


def _gif(head: bytes) -> ImageHeader:
    width, height, flags = struct.unpack_from("<HHB", head, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    is_in_extension = False
    for _ in range(MAX_PARTS):
        part = head[at : at + 1]
        if is_in_extension:
            at += 1 + int.from_bytes(part)
            is_in_extension = part not in (b"", b"\0")
        elif part == b"!":
            at += 2
            is_in_extension = True
        elif part == b"," and at + 9 <= len(head):
            # Pillow enlarges the image to a frame that exceeds the screen.
            left, top, frame_width, frame_height = struct.unpack_from("<HHHH", head, at + 1)
            width, height = max(width, left + frame_width), max(height, top + frame_height)
            break
        else:
            break
    return ImageHeader(width=width, height=height, frames=None)


def _webp(head: bytes) -> ImageHeader | None:
    match head[12:16]:
        case b"VP8X":
            flags, low_width, high_width, low_height, high_height = struct.unpack_from("<BxxxHBHB", head, 20)
            return ImageHeader(
                width=(low_width | high_width << 16) + 1,
                height=(low_height | high_height << 16) + 1,
                frames=None if flags & _IS_ANIMATED else 1,
            )
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", head, 21)
            return ImageHeader(width=(bits & 0x3FFF) + 1, height=(bits >> 14 & 0x3FFF) + 1)
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", head, 26)
            return ImageHeader(width=width & 0x3FFF, height=height & 0x3FFF)
        case _:
            return None


def _bmp(head: bytes) -> ImageHeader:
    (header_bytes,) = struct.unpack_from("<I", head, 14)
    width, height = struct.unpack_from("<HH" if header_bytes == 12 else "<ii", head, 18)
    # The height of a top-down BMP is negative.
    return ImageHeader(width=abs(width), height=abs(height))
