"""Which files may be uploaded, and what they are called in object storage."""

import mimetypes
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from comfyrelay.errors import InvalidInput, TooLarge
from comfyrelay.text import printable, size_of

MEDIA_TYPES = ("image/", "video/", "audio/")
_EXTENSION = re.compile(r"\.[a-z0-9]{1,8}")


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnouncedUpload:
    """What a user announces."""

    mime_type: str
    size: int
    original_filename: str
    effect_id: int | None = None


def check_upload(new: AnnouncedUpload, *, max_bytes: int) -> None:
    if not new.mime_type.startswith(MEDIA_TYPES):
        name = printable(new.original_filename)
        problem = f"{name} cannot be used here: it is {new.mime_type}, and only pictures, videos and audio can be."
        raise InvalidInput(errors={"mime_type": problem})
    if new.size > max_bytes:
        name = printable(new.original_filename)
        raise TooLarge(f"{name} is too large: it has {size_of(new.size)}, and the limit is {size_of(max_bytes)}.")


def extension_of(new: AnnouncedUpload) -> str:
    """What the name ends in, if that can be in a path; ComfyUI looks at it."""
    given = PurePosixPath(new.original_filename).suffix.lower()
    if _EXTENSION.fullmatch(given):
        return given
    return mimetypes.guess_extension(new.mime_type) or ""
