"""What a file is, as far as its name tells: the same on every machine, whatever list of types that has."""

import mimetypes
from pathlib import PurePath
from typing import Literal

MediaKind = Literal["audio", "file", "image", "video"]
ANYTHING = "application/octet-stream"

# What Python 3.11 does not know of, or not as others call it.
_MORE_TYPES = {
    ".apng": "image/apng",
    ".exr": "image/x-exr",
    ".flac": "audio/flac",
    ".glb": "model/gltf-binary",
    ".m4a": "audio/mp4",
    ".m4v": "video/x-m4v",
    ".mkv": "video/x-matroska",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
}
# Python's own; `mimetypes.guess_type` also looks at what is installed.
_KNOWN = mimetypes.MimeTypes()


def guess_media_type(name: str) -> str | None:
    """As `image/png`; `None` where the name tells nothing."""
    # not strict, because Python 3.11 knows image/webp only so
    return _MORE_TYPES.get(PurePath(name).suffix.lower()) or _KNOWN.guess_type(name, strict=False)[0]


def media_kind(mime_type: str) -> MediaKind:
    """Return what objects of this type are."""
    kind, _, subtype = mime_type.lower().partition("/")
    # a drawing in SVG is text, which no decoder can check
    if kind == "image" and not subtype.startswith("svg"):
        return "image"
    if kind == "audio":
        return "audio"
    return "video" if kind == "video" else "file"
