"""Valid object paths, the same for every store."""

from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.system.atomic import PART_PREFIX

# S3 keys have at most 1,024 bytes, including the configured prefix.
MAX_PATH_BYTES = 900


def check_path(path: str) -> None:
    """Refuse paths that could escape the store, or that some store cannot hold."""
    if not is_path(path):
        raise refused_path(path)


def is_path(path: str) -> bool:
    """Whether this is a valid object path. Listings skip other files."""
    return all(map(_is_plain_name, path.split("/"))) and len(path.encode()) <= MAX_PATH_BYTES


def check_range(start: int, length: int | None) -> None:
    """Refuse a negative range; a range past the end is empty."""
    if start < 0 or (length is not None and length < 0):
        raise InvalidInput("A range cannot have a negative start or length.")


def refused_path(path: str) -> InvalidInput:
    return InvalidInput("This is not a path in object storage.", errors={"path": f"{path!r} is not allowed."})


def no_object(path: str) -> NotFound:
    return NotFound(f"There is no object at {path!r}.")


def _is_plain_name(part: str) -> bool:
    # an incomplete upload has such a name
    if part in ("", ".", "..") or part.startswith(PART_PREFIX) or not part.isprintable() or "\\" in part:
        return False
    # file systems limit names to 255 bytes; printable text always encodes
    return len(part.encode()) <= 255
