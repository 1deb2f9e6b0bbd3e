"""Guess media types from file names. The result does not depend on the machine's own type lists."""

import mimetypes
from collections.abc import Mapping
from pathlib import PurePath
from typing import Literal

MediaKind = Literal["audio", "file", "image", "video"]
OCTET_STREAM = "application/octet-stream"

_KINDS: Mapping[str, MediaKind] = {"audio": "audio", "image": "image", "video": "video"}
# Types that Python 3.11 does not know, or names differently.
_MORE_TYPES = {
    ".apng": "image/apng",
    ".exr": "image/x-exr",
    ".flac": "audio/flac",
    ".glb": "model/gltf-binary",
    ".m4a": "audio/mp4",
    ".m4v": "video/x-m4v",
    ".md": "text/markdown",
    ".mkv": "video/x-matroska",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
}
# Self-contained formats only: FFmpeg would open the files and URLs that playlists and session descriptions name, and
# would read a still image as a one-frame video.
VIDEO_CONTAINERS = "mov,matroska,webm,avi,mpegts,mpeg,flv,ogg,asf"
AUDIO_CONTAINERS = f"{VIDEO_CONTAINERS},mp3,flac,wav,w64,aiff,caf,aac,ac3,eac3,au,amr"
# Only Python's own list: `mimetypes.guess_type` also reads the system's lists.
_KNOWN = mimetypes.MimeTypes()


def guess_media_type(name: str) -> str | None:
    """Return a type such as `image/png`; `None` if the name has no known extension."""
    # Python 3.11 knows image/webp only as a non-standard type.
    return _MORE_TYPES.get(PurePath(name).suffix.lower()) or _KNOWN.guess_type(name, strict=False)[0]


def media_kind(mime_type: str) -> MediaKind:
    kind, _, subtype = mime_type.lower().partition("/")
    # SVG is text, which no image decoder can check.
    if kind == "image" and subtype.startswith("svg"):
        return "file"
    return _KINDS.get(kind, "file")
