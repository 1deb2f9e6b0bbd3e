"""Media information and the limits for obtaining it."""

from dataclasses import dataclass
from typing import Literal

from comfyrelay.media_types import MediaKind

# A file is refused if it is not such media, or if reading it would exceed a limit.
RefusalReason = Literal["unreadable", "pixels", "frames", "blocks", "memory", "time", "bytes", "tracks", "workflow"]
# Actions of a probe process: measure a file, draw its poster and preview, find its embedded workflow, or edit an image.
ProbeTask = Literal["probe", "draw", "workflow", "edit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeLimits:
    """Limits of one probe.

    Images are read completely, so none may exceed half of `max_bytes`. `timeout_seconds` applies to reading, and again
    to waiting for storage.
    """

    max_bytes: int = 512 * 1024 * 1024
    max_pixels: int = 100_000_000
    # Applies to animated images. Only the first frame of a video is decoded.
    max_frames: int = 10_000
    max_memory_bytes: int = 2 * 1024**3
    timeout_seconds: float = 20
    # Covers the poster and the preview together.
    drawing_seconds: float = 5
    # Apply to an embedded workflow, as JSON.
    max_workflow_bytes: int = 8 * 1024**2
    max_workflow_values: int = 250_000


class MediaRefused(Exception):
    """The file is invalid or exceeds a limit."""

    def __init__(self, why: RefusalReason, *, size: tuple[int, int] | None = None) -> None:
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
    """Properties of a media file. For kind `file`, all other fields are `None`."""

    kind: MediaKind
    width: int | None = None
    height: int | None = None
    duration_seconds: float | None = None
    frames: int | None = None
    # Why the file was not decoded, if it exceeds a limit. In that case, its size is the size that its header claims, if
    # any.
    unread: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendition:
    """A small file that shows a larger one: its poster or its preview."""

    name: Literal["poster", "preview"]
    extension: str
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageEdit:
    """A change to an image: the channels to keep, and the format to save it in.

    An image of `mask_bytes` may follow the file. Its alpha channel becomes the alpha channel of the result.
    """

    extension: Literal["png", "webp", "jpeg"] = "png"
    quality: int = 90
    channel: Literal["rgba", "rgb", "a"] = "rgba"
    mask_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Renditions:
    """The poster and the preview of a file. `None` means that it could not be drawn."""

    poster: Rendition | None = None
    preview: Rendition | None = None
