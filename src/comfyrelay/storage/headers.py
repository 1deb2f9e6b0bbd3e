"""Encode user text in HTTP headers, so that it cannot inject another header."""

import re
from pathlib import PurePosixPath
from urllib.parse import quote

from comfyrelay.errors import InvalidInput
from comfyrelay.media_types import OCTET_STREAM, guess_media_type

# An emoji takes 12 encoded characters, and servers accept some 8,000 per header.
MAX_NAME_LENGTH = 150

_TOKEN = r"[A-Za-z0-9!#$&^_.+-]+"
_CONTENT_TYPE = re.compile(rf'{_TOKEN}/{_TOKEN}(; ?{_TOKEN}=({_TOKEN}|"[ !#-\[\]-~]*"))*')
# Characters that RFC 5987 leaves unencoded, in addition to letters and digits.
_ATTRIBUTE_CHARACTERS = "!#$&+-.^_`|~"


def check_content_type(content_type: str) -> str:
    """Return the content type. Raises `InvalidInput` if it is invalid."""
    if not _is_content_type(content_type):
        raise InvalidInput(
            "This is not a content type.", errors={"content_type": f"{content_type[:100]!r} is not like image/png."}
        )
    return content_type


def servable_content_type(content_type: str | None) -> str | None:
    """Return the content type for a response, with a fallback for an invalid one."""
    return content_type if content_type is None or _is_content_type(content_type) else OCTET_STREAM


def _is_content_type(text: str) -> bool:
    return len(text) <= 255 and _CONTENT_TYPE.fullmatch(text) is not None


def guess_content_type(path: str) -> str | None:
    """Guess the content type from an object's name."""
    return guess_media_type(PurePosixPath(path).name)


def safe_filename(filename: str) -> str:
    """Return the last part of a name as a safe name for display and files: printable and of limited length."""
    last = filename.replace("\\", "/").rstrip("/").rpartition("/")[2]
    # Unprintable characters could split a header or reverse the text direction.
    name = "".join(filter(str.isprintable, last)).strip(" .") or "download"
    if len(name) <= MAX_NAME_LENGTH:
        return name
    stem, dot, suffix = name.rpartition(".")
    shorter = f"{stem[: MAX_NAME_LENGTH - 11]}{dot}{suffix[:10]}" if stem else name[:MAX_NAME_LENGTH]
    return shorter.rstrip(" .")


def content_disposition(filename: str) -> str:
    """Return the header that makes browsers save a download under this name (RFC 6266)."""
    name = safe_filename(filename)
    ascii_name = "".join(letter if " " <= letter <= "~" and letter not in '"\\%' else "_" for letter in name)
    header = f'attachment; filename="{ascii_name}"'
    if ascii_name != name:
        header += f"; filename*=UTF-8''{quote(name, safe=_ATTRIBUTE_CHARACTERS)}"
    return header
