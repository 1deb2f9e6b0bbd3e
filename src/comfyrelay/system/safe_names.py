"""File names and paths that are valid on every system, so that folders can be copied and shared."""

import re
import unicodedata
from pathlib import PurePath, PureWindowsPath
from typing import Final
from urllib.parse import unquote, urlsplit

_IS_WINDOWS: Final = isinstance(PurePath(), PureWindowsPath)
# The limit of most programs on Windows.
LONGEST_PATH: Final = 259
_DEVICE = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³])(?=\s*(?:[.:]|$))", re.IGNORECASE)
_NOT_IN_NAMES = re.compile(r'[\x00-\x1f<>:"/\\|?*]')

_PLAIN_SIGNS: Final = "_ .()+-\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
_AT_NO_END: Final = " .-\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
_LONGEST_PLAIN: Final = 80
# File systems limit bytes; a number and an extension are added to the name later.
_MAX_PLAIN_BYTES: Final = 200


def is_usable(name: str) -> bool:
    """Whether a file or folder can have this name on every system."""
    return not (_NOT_IN_NAMES.search(name) or _DEVICE.match(name) or name.endswith((".", " ")))


def plain(text: str) -> str:
    """Return a file name made from any text, empty if nothing is left. Letters of all scripts with their marks and
    joiners, digits and a few signs are kept."""
    whole = unicodedata.normalize("NFC", text)
    kept = "".join(each if _is_plain(each) else "\0" for each in whole)
    words = re.sub("\0+", "-", kept).strip(_AT_NO_END)[:_LONGEST_PLAIN]
    # drop a character that was cut in the middle
    cut = words.encode()[:_MAX_PLAIN_BYTES].decode(errors="ignore").rstrip(_AT_NO_END)
    return usable(cut) if cut else ""


def _is_plain(letter: str) -> bool:
    return letter.isalnum() or letter in _PLAIN_SIGNS or unicodedata.category(letter) in ("Mn", "Mc")


def is_valid_path(path: str, *, windows: bool = _IS_WINDOWS) -> bool:
    """Whether all names of a relative path are valid on this system."""
    return not windows or all(map(is_usable, path.split("/")))


def usable(name: str) -> str:
    """Return the name, or a similar one that is usable: on Windows, `CON` and `con.png` are devices."""
    plain = _NOT_IN_NAMES.sub("_", name).rstrip(". ") or "_"
    found = _DEVICE.match(plain)
    return f"{plain[: found.end()]}_{plain[found.end() :]}" if found else plain


def max_name_length(folder: PurePath, *, windows: bool = _IS_WINDOWS) -> int:
    """Return the maximum length of a name in this folder."""
    return max(0, LONGEST_PATH - len(str(folder)) - 1) if windows else LONGEST_PATH


def path_of_url(url: str, *, windows: bool = _IS_WINDOWS) -> str | None:
    """Return the absolute path of a `file:` URL; `None` if it names another machine or no path."""
    parts = urlsplit(url)
    path, host = unquote(parts.path), "" if parts.netloc == "localhost" else parts.netloc
    if parts.scheme != "file" or not path.strip("/") or (host and not windows):
        return None
    if not windows:
        return path
    found = PureWindowsPath(f"//{host}{path}" if host else path.lstrip("/"))
    return str(found) if found.drive and found.root else None


def extended_path(folder: PurePath, *, windows: bool = _IS_WINDOWS) -> str:
    """Return an absolute path without Windows' limit on its length."""
    path = str(folder)
    if not windows or path.startswith("\\\\?\\"):
        return path
    return f"\\\\?\\UNC\\{path[2:]}" if path.startswith("\\\\") else f"\\\\?\\{path}"
