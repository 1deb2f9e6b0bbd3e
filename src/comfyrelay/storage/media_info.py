"""What is found in a media file."""

from dataclasses import dataclass
from typing import Literal

MediaKind = Literal["audio", "file", "image", "video"]


class Unreadable(Exception):
    """It is not media of the wanted kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaInfo:
    """What an object is, as far as it applies and is known; of a `file` nothing is."""

    kind: MediaKind
    width: int | None = None
    height: int | None = None
    duration_seconds: float | None = None
    frames: int | None = None
