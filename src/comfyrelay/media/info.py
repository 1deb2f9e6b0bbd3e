"""Media information and the limits for obtaining it."""

from dataclasses import dataclass
from typing import Literal

from comfyrelay.media_types import MediaKind

# Why a file is refused: it is not such media, or reading it would exceed a limit.
Why = Literal["unreadable", "pixels", "frames", "blocks", "memory", "time", "bytes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeLimits:
    """Limits of one probe.

    Images are read completely, so none may exceed half of `max_bytes`. `timeout_seconds` applies to reading, and again
    to waiting for storage.
    """

    max_bytes: int = 512 * 1024 * 1024
    max_pixels: int = 100_000_000
    # for animated images; of a video only the first frame is decoded
    max_frames: int = 10_000
    max_memory_bytes: int = 2 * 1024**3
    timeout_seconds: float = 20
    # for poster and preview together
    drawing_seconds: float = 5


class MediaRefused(Exception):
    """The file is not read any further."""

    def __init__(self, why: Why, *, size: tuple[int, int] | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.size = size


def check_pixels(width: int, height: int, limits: ProbeLimits) -> None:
    """Refuse an image before decoding it."""
    if width * height > limits.max_pixels:
        raise MediaRefused("pixels", size=(width, height))


def check_frames(frames: int, limits: ProbeLimits) -> None:
    if frames > limits.max_frames:
        raise MediaRefused("frames")


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaInfo:
    """What is known about an object; empty for kind `file`."""

    kind: MediaKind
    width: int | None = None
    height: int | None = None
    duration_seconds: float | None = None
    frames: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A poster or a preview: the bytes of a small file."""

    name: Literal["poster", "preview"]
    extension: str
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """Poster and preview of a file, as far as they could be made."""

    poster: Piece | None = None
    preview: Piece | None = None
