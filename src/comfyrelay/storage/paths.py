"""Which paths name an object: the same ones in every store."""

from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.system.atomic import PART_PREFIX

# S3 keys have 1,024 bytes, and a configured prefix needs some of them.
MAX_PATH_BYTES = 900


def check_path(path: str) -> None:
    """Refuse every path that could lead out of the store, or that some store could not hold."""
    if not is_path(path):
        raise refused_path(path)


def is_path(path: str) -> bool:
    """Whether an object may be called like this; in a listing, what may not was put there by somebody else."""
    return all(map(_is_plain_name, path.split("/"))) and len(path.encode()) <= MAX_PATH_BYTES


def check_range(start: int, length: int | None) -> None:
    """Refuse a range that no object has; one that is merely past the end is empty."""
    if start < 0 or (length is not None and length < 0):
        raise InvalidInput("A range cannot have a negative start or length.")


def refused_path(path: str) -> InvalidInput:
    """Say that this path cannot name an object."""
    return InvalidInput("This is not a path in object storage.", errors={"path": f"{path!r} is not allowed."})


def no_object(path: str) -> NotFound:
    """Say that nothing is at this path."""
    return NotFound(f"There is no object at {path!r}.")


def _is_plain_name(part: str) -> bool:
    # an upload on its way has such a name beside its final one
    if part in ("", ".", "..") or part.startswith(PART_PREFIX) or not part.isprintable() or "\\" in part:
        return False
    # file systems take no longer names; printable text always encodes
    return len(part.encode()) <= 255
