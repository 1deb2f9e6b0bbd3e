"""Check announced uploads and choose their file extension."""

import mimetypes
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from comfyrelay.errors import InvalidInput, TooLarge, UploadLimitReached
from comfyrelay.text import counted, format_bytes, printable

MEDIA_TYPES = ("image/", "video/", "audio/")
_EXTENSION = re.compile(r"\.[a-z0-9]{1,8}")


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnouncedUpload:
    """An upload that a user announces before sending the file."""

    mime_type: str
    size: int
    original_filename: str
    effect_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadUsage:
    """The number and the size of a tenant's uploads. An upload counts from its announcement until its removal."""

    files: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadLimits:
    """The maximum number and size of a tenant's uploads. `None` means no limit."""

    max_files: int | None = None
    max_bytes: int | None = None

    @property
    def are_set(self) -> bool:
        return self.max_files is not None or self.max_bytes is not None

    def check(self, usage: UploadUsage, *, new_files: int, new_bytes: int, unused_hours: float) -> None:
        """Raise `UploadLimitReached` if new uploads would exceed a limit."""
        limit = None
        if self.max_bytes is not None and usage.bytes + new_bytes > self.max_bytes:
            limit = f"{format_bytes(self.max_bytes)} in all, and {format_bytes(new_bytes)} more would exceed it"
        elif self.max_files is not None and usage.files + new_files > self.max_files:
            limit = counted(self.max_files, "file")
        if limit is not None:
            raise UploadLimitReached(
                f"Your uploads ({counted(usage.files, 'file')}, {format_bytes(usage.bytes)}) have reached your limit: "
                f"{limit}. Delete uploads or videos that you no longer need. "
                f"Uploads that no job has used are deleted after {unused_hours:g} hours."
            )


# Uploads of all guests of a desk together. The owner has no limit there.
GUEST_LIMITS = UploadLimits(max_files=10_000, max_bytes=20 * 1024**3)
# Disk space that guests' uploads must leave free, so that outputs and databases of the owner can be written.
MIN_FREE_BYTES_OF_GUESTS = 5 * 1024**3


def check_guest_space(free_bytes: int, *, new_bytes: int) -> None:
    """Raise `UploadLimitReached` if an upload of a guest would fill the disk."""
    if free_bytes - new_bytes < MIN_FREE_BYTES_OF_GUESTS:
        raise UploadLimitReached(
            f"The disk of the desk is nearly full: {format_bytes(free_bytes)} are free, and uploads of guests must "
            f"leave {format_bytes(MIN_FREE_BYTES_OF_GUESTS)}. Ask the owner of the desk to free space."
        )


def check_upload(new: AnnouncedUpload, *, max_bytes: int) -> None:
    name = printable(new.original_filename)
    if not new.mime_type.startswith(MEDIA_TYPES):
        problem = f"{name} cannot be used: it is {new.mime_type}, but only images, videos and audio are supported."
        raise InvalidInput(errors={"mime_type": problem})
    if new.size > max_bytes:
        raise TooLarge(f"{name} is too large: {format_bytes(new.size)}, but the limit is {format_bytes(max_bytes)}.")


def uploads_folder(tenant_id: str) -> str:
    """Return the beginning of the storage paths of a tenant's uploads."""
    return f"tenants/{tenant_id}/uploads/"


def guest_uploads_folder(tenant_id: str) -> str:
    """Return the beginning of the storage paths of uploads by guests of a desk."""
    return f"{uploads_folder(tenant_id)}guests/"


def tenant_of_upload(path: str) -> str | None:
    """Return the tenant of an upload's storage path; `None` for other paths."""
    _, _, rest = path.partition("tenants/")
    tenant_id = rest.partition("/")[0]
    return tenant_id if tenant_id and path.startswith(uploads_folder(tenant_id)) else None


def extension_of(new: AnnouncedUpload) -> str:
    """Return the extension for the storage path. ComfyUI recognizes the file format by the extension."""
    given = PurePosixPath(new.original_filename).suffix.lower()
    if _EXTENSION.fullmatch(given):
        return given
    return mimetypes.guess_extension(new.mime_type) or ""
