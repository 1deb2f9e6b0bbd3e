"""Header values made of what users type: correctly encoded, and never with a line of their own."""

import re
from pathlib import PurePosixPath
from urllib.parse import quote

from comfyrelay.errors import InvalidInput
from comfyrelay.media_types import ANYTHING, guess_media_type

# Emoji take 12 characters each when encoded, and servers take some 8,000 in a header.
MAX_NAME_LENGTH = 150

_TOKEN = r"[A-Za-z0-9!#$&^_.+-]+"
_CONTENT_TYPE = re.compile(rf'{_TOKEN}/{_TOKEN}(; ?{_TOKEN}=({_TOKEN}|"[ !#-\[\]-~]*"))*')
# The characters that RFC 5987 leaves as they are, besides letters and digits.
_ATTRIBUTE_CHARACTERS = "!#$&+-.^_`|~"


def check_content_type(content_type: str) -> str:
    """Return the content type, or refuse what is none."""
    if len(content_type) > 255 or not _CONTENT_TYPE.fullmatch(content_type):
        raise InvalidInput(
            "This is not a content type.", errors={"content_type": f"{content_type[:100]!r} is not like image/png."}
        )
    return content_type


def servable_content_type(content_type: str | None) -> str | None:
    """The type that a stored file is served under: one that is none makes nothing else unreadable."""
    if content_type is None or (len(content_type) <= 255 and _CONTENT_TYPE.fullmatch(content_type)):
        return content_type
    return ANYTHING


def guess_content_type(path: str) -> str | None:
    """Return the content type that an object's name suggests."""
    return guess_media_type(PurePosixPath(path).name)


def safe_filename(filename: str) -> str:
    """Return a name that is safe to show and to save under: the last part of it, printable and not too long."""
    last = filename.replace("\\", "/").rstrip("/").rpartition("/")[2]
    # what is not printable can split a header, or turn the order of letters around on the screen
    name = "".join(filter(str.isprintable, last)).strip(" .") or "download"
    if len(name) <= MAX_NAME_LENGTH:
        return name
    stem, dot, suffix = name.rpartition(".")
    shorter = f"{stem[: MAX_NAME_LENGTH - 11]}{dot}{suffix[:10]}" if stem else name[:MAX_NAME_LENGTH]
    return shorter.rstrip(" .")


def content_disposition(filename: str) -> str:
    """Return the header that makes a browser save a download under this name (RFC 6266)."""
    name = safe_filename(filename)
    ascii_name = "".join(letter if " " <= letter <= "~" and letter not in '"\\%' else "_" for letter in name)
    header = f'attachment; filename="{ascii_name}"'
    if ascii_name != name:
        header += f"; filename*=UTF-8''{quote(name, safe=_ATTRIBUTE_CHARACTERS)}"
    return header
