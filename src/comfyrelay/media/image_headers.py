"""What the first bytes of an image claim: decoders make room for all of it before they find that it is not there."""

import re
import struct
from dataclasses import dataclass

# What comes before the size and the number of frames: more of it than any program writes is not gone through.
MOST_PARTS = 1000
_PNG = b"\x89PNG\r\n\x1a\n"
# The markers of JPEG that hold its size: all of these but three that mean something else.
_JPEG_MARKER = re.compile(rb"\xff++([^\xff])", re.S)
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    width: int
    height: int
    frames: int = 1


def claim_of(head: bytes) -> Claim | None:
    """What a PNG, JPEG, GIF, WebP or BMP says of itself; `None` for what is none of these, or says it further on."""
    try:
        if head.startswith(_PNG):
            return _png(head)
        if head.startswith(b"\xff\xd8"):
            return _jpeg(head)
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            return _webp(head)
        if head[:4] == b"GIF8":
            width, height = struct.unpack_from("<HH", head, 6)
            return Claim(width=width, height=height)
        if head[:2] == b"BM":
            return _bmp(head)
    except struct.error:
        # it ends before it has said so
        pass
    return None


def _png(head: bytes) -> Claim:
    width, height = struct.unpack_from(">II", head, 16)
    frames, at = 1, len(_PNG)
    for _ in range(MOST_PARTS):
        if at + 12 > len(head) or head[at + 4 : at + 8] == b"IDAT":
            break
        if head[at + 4 : at + 8] == b"acTL":
            (frames,) = struct.unpack_from(">I", head, at + 8)
        at += 12 + int.from_bytes(head[at : at + 4])
    return Claim(width=width, height=height, frames=frames)


def _jpeg(head: bytes) -> Claim | None:
    at = 2
    for _ in range(MOST_PARTS):
        # a marker may be filled up with more of its first byte
        found = _JPEG_MARKER.match(head, at)
        if found is None:
            return None
        if found[1][0] in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", head, found.end() + 3)
            return Claim(width=width, height=height)
        at = found.end() + int.from_bytes(head[found.end() : found.end() + 2])
    return None


def _webp(head: bytes) -> Claim | None:
    match head[12:16]:
        case b"VP8X":
            low_width, high_width, low_height, high_height = struct.unpack_from("<HBHB", head, 24)
            return Claim(width=(low_width | high_width << 16) + 1, height=(low_height | high_height << 16) + 1)
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", head, 21)
            return Claim(width=(bits & 0x3FFF) + 1, height=(bits >> 14 & 0x3FFF) + 1)
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", head, 26)
            return Claim(width=width & 0x3FFF, height=height & 0x3FFF)
        case _:
            return None


def _bmp(head: bytes) -> Claim:
    (header_bytes,) = struct.unpack_from("<I", head, 14)
    width, height = struct.unpack_from("<HH" if header_bytes == 12 else "<ii", head, 18)
    # the height of one that is stored from the top is negative
    return Claim(width=abs(width), height=abs(height))
