"""What is found in a media file, and what finding it may cost."""

from dataclasses import dataclass
from typing import Literal

from comfyrelay.media_types import MediaKind

# Why a file is not read: it is no such media, or reading it would cost too much.
Why = Literal["unreadable", "pixels", "frames", "blocks", "memory", "time", "bytes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeLimits:
    """What one probe may cost. Images are read whole, so none may be larger than half of `max_bytes`.

    `timeout_seconds` is for reading what is there, and once more for waiting for storage.
    """

    max_bytes: int = 512 * 1024 * 1024
    max_pixels: int = 100_000_000
    # of images that move; of a video only the first frame is decoded
    max_frames: int = 10_000
    max_memory_bytes: int = 2 * 1024**3
    timeout_seconds: float = 20
    # for a poster and a preview, in all
    drawing_seconds: float = 5


class MediaRefused(Exception):
    """It is not read any further."""

    def __init__(self, why: Why, *, size: tuple[int, int] | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.size = size


def check_pixels(width: int, height: int, limits: ProbeLimits) -> None:
    """Refuse a picture before anything of it is decoded."""
    if width * height > limits.max_pixels:
        raise MediaRefused("pixels", size=(width, height))


def check_frames(frames: int, limits: ProbeLimits) -> None:
    if frames > limits.max_frames:
        raise MediaRefused("frames")


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaInfo:
    """What an object is, as far as it applies and is known; of a `file` nothing is."""

    kind: MediaKind
    width: int | None = None
    height: int | None = None
    duration_seconds: float | None = None
    frames: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A poster or a preview: bytes of a small file."""

    name: Literal["poster", "preview"]
    extension: str
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """What was made to be shown in place of a file, as far as it could be."""

    poster: Piece | None = None
    preview: Piece | None = None
