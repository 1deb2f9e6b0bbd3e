"""Check announced uploads and choose their file extension."""

import mimetypes
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from comfyrelay.errors import InvalidInput, TooLarge
from comfyrelay.text import format_bytes, printable

MEDIA_TYPES = ("image/", "video/", "audio/")
_EXTENSION = re.compile(r"\.[a-z0-9]{1,8}")


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnouncedUpload:
    """An upload that a user announces before sending the file."""

    mime_type: str
    size: int
    original_filename: str
    effect_id: int | None = None


def check_upload(new: AnnouncedUpload, *, max_bytes: int) -> None:
    name = printable(new.original_filename)
    if not new.mime_type.startswith(MEDIA_TYPES):
        problem = f"{name} cannot be used: it is {new.mime_type}, but only images, videos and audio are supported."
        raise InvalidInput(errors={"mime_type": problem})
    if new.size > max_bytes:
        raise TooLarge(f"{name} is too large: {format_bytes(new.size)}, but the limit is {format_bytes(max_bytes)}.")


def extension_of(new: AnnouncedUpload) -> str:
    """Return the extension for the storage path. ComfyUI tells the file format by the extension."""
    given = PurePosixPath(new.original_filename).suffix.lower()
    if _EXTENSION.fullmatch(given):
        return given
    return mimetypes.guess_extension(new.mime_type) or ""
