"""Open media files with any supported version of PyAV."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from av.container import InputContainer

# Earlier versions cannot read a file with tags that are not UTF-8, unless told to ignore such errors.
_READS_ALL_TAGS = 19


def open_to_read(file: BinaryIO, **options: Any) -> "InputContainer":
    import av  # noqa: PLC0415 - an optional dependency

    if int(av.__version__.partition(".")[0]) < _READS_ALL_TAGS:
        options["metadata_errors"] = "replace"
    container: InputContainer = av.open(file, mode="r", **options)
    return container


def tags_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return tags as text that can be stored. PyAV may keep bytes that are not UTF-8 as lone surrogates."""
    return {_storable(name): _storable(value) for name, value in metadata.items()}


def _storable(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="replace")
