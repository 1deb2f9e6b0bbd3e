"""Validate object paths and ranges by the same rules for every store."""

from comfyrelay.errors import Conflict, InvalidInput, NotFound
from comfyrelay.system.atomic import PART_PREFIX

# S3 keys have at most 1,024 bytes, including the configured prefix.
MAX_PATH_BYTES = 900


def check_path(path: str) -> None:
    """Raise `InvalidInput` for a path that could escape from the store, or that some store does not support."""
    if not is_path(path):
        raise refused_path(path)


def is_path(path: str) -> bool:
    """Whether this is a valid object path. Listings skip files with other paths."""
    return all(map(_is_plain_name, path.split("/"))) and len(path.encode()) <= MAX_PATH_BYTES


def check_range(start: int, length: int | None) -> None:
    """Raise `InvalidInput` for a negative range. A range past the end is empty."""
    if start < 0 or (length is not None and length < 0):
        raise InvalidInput("A range cannot have a negative start or length.")


def refused_path(path: str) -> InvalidInput:
    return InvalidInput("This is not a path in object storage.", errors={"path": f"{path!r} is not allowed."})


def no_object(path: str) -> NotFound:
    return NotFound(f"There is no object at {path!r}.")


def already_uploaded() -> Conflict:
    return Conflict(
        "This URL has already received another file. To send a different file, announce it as a new upload."
    )


def too_large(max_bytes: int) -> InvalidInput:
    return InvalidInput(f"The upload is too large: at most {max_bytes} bytes are allowed.")


def _is_plain_name(part: str) -> bool:
    # The prefix marks incomplete uploads.
    if part in ("", ".", "..") or part.startswith(PART_PREFIX) or not part.isprintable() or "\\" in part:
        return False
    # File systems limit names to 255 bytes. Printable text can always be encoded.
    return len(part.encode()) <= 255
