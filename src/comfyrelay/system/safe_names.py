"""Build file names and paths that are valid on every system, so that folders can be copied and shared."""

import re
import unicodedata
from pathlib import PurePath, PureWindowsPath
from typing import Final
from urllib.parse import unquote, urlsplit

_IS_WINDOWS: Final = isinstance(PurePath(), PureWindowsPath)
# The limit of most programs on Windows.
MAX_PATH_LENGTH: Final = 259
_DEVICE = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³])(?=\s*(?:[.:]|$))", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[\x00-\x1f<>:"/\\|?*]')

_PLAIN_SIGNS: Final = "_ .()+-\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
_TRIMMED_SIGNS: Final = " .-\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
_MAX_PLAIN_LENGTH: Final = 80
# File systems limit the bytes of a name. Callers append a number and an extension.
_MAX_PLAIN_BYTES: Final = 200


def is_usable(name: str) -> bool:
    """Whether a file or folder can have this name on every system."""
    return not (_FORBIDDEN.search(name) or _DEVICE.match(name) or name.endswith((".", " ")))


def plain_name(text: str) -> str:
    """Return a file name made from any text; may be empty. Keeps letters of all scripts with their marks and joiners,
    digits and a few signs."""
    chars = (char if _is_plain(char) else "\0" for char in unicodedata.normalize("NFC", text))
    words = re.sub("\0+", "-", "".join(chars)).strip(_TRIMMED_SIGNS)[:_MAX_PLAIN_LENGTH]
    # `ignore` drops a character that is cut off in the middle.
    name = words.encode()[:_MAX_PLAIN_BYTES].decode(errors="ignore").rstrip(_TRIMMED_SIGNS)
    return usable_name(name) if name else ""


def _is_plain(char: str) -> bool:
    return char.isalnum() or char in _PLAIN_SIGNS or unicodedata.category(char) in ("Mn", "Mc")


def is_valid_path(path: str, *, windows: bool = _IS_WINDOWS) -> bool:
    """Whether all names of a relative path are valid on this system."""
    return not windows or all(map(is_usable, path.split("/")))


def usable_name(name: str) -> str:
    """Return the name, or a similar one that is usable: on Windows, `CON` and `con.png` are devices."""
    allowed = _FORBIDDEN.sub("_", name).rstrip(". ") or "_"
    return _DEVICE.sub(r"\g<0>_", allowed, count=1) if _DEVICE.match(allowed) else allowed


def max_name_length(folder: PurePath, *, windows: bool = _IS_WINDOWS) -> int:
    """Return the maximum length of a name in this folder."""
    return max(0, MAX_PATH_LENGTH - len(str(folder)) - 1) if windows else MAX_PATH_LENGTH


def path_of_url(url: str, *, windows: bool = _IS_WINDOWS) -> str | None:
    """Return the absolute path of a `file:` URL; `None` if it has another host or no path."""
    parts = urlsplit(url)
    path, host = unquote(parts.path), "" if parts.netloc == "localhost" else parts.netloc
    if parts.scheme != "file" or not path.strip("/") or (host and not windows):
        return None
    if not windows:
        return path
    found = PureWindowsPath(f"//{host}{path}" if host else path.lstrip("/"))
    return str(found) if found.drive and found.root else None


def extended_path(folder: PurePath, *, windows: bool = _IS_WINDOWS) -> str:
    """Return an absolute path that Windows does not limit in length."""
    path = str(folder)
    if not windows or path.startswith("\\\\?\\"):
        return path
    return f"\\\\?\\UNC\\{path[2:]}" if path.startswith("\\\\") else f"\\\\?\\{path}"
