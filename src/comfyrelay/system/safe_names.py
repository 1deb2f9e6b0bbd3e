"""Names and paths that every system takes: a folder may be copied to another, or shared with it."""

import re
import unicodedata
from pathlib import PurePath, PureWindowsPath
from typing import Final
from urllib.parse import unquote, urlsplit

_IS_WINDOWS: Final = isinstance(PurePath(), PureWindowsPath)
# Most programs on Windows take no longer ones.
LONGEST_PATH: Final = 259
_DEVICE = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³])(?=\s*(?:[.:]|$))", re.IGNORECASE)
_NOT_IN_NAMES = re.compile(r'[\x00-\x1f<>:"/\\|?*]')

_PLAIN_SIGNS: Final = "_ .()+-\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
_AT_NO_END: Final = " .-\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
_LONGEST_PLAIN: Final = 80
# Disks count bytes, and what is plain gets a number and an ending yet.
_MOST_PLAIN_BYTES: Final = 200


def is_usable(name: str) -> bool:
    """Whether a file or a folder can be called this everywhere, and be found under it again."""
    return not (_NOT_IN_NAMES.search(name) or _DEVICE.match(name) or name.endswith((".", " ")))


def plain(text: str) -> str:
    """A name for a file or a folder, made of any text: letters of all scripts, with the marks and joiners without which
    many of them fall apart, digits, and a few signs. Empty where nothing of it is left."""
    whole = unicodedata.normalize("NFC", text)
    kept = "".join(each if _is_plain(each) else "\0" for each in whole)
    words = re.sub("\0+", "-", kept).strip(_AT_NO_END)[:_LONGEST_PLAIN]
    # decode: what was cut in the middle of a letter is left out
    cut = words.encode()[:_MOST_PLAIN_BYTES].decode(errors="ignore").rstrip(_AT_NO_END)
    return usable(cut) if cut else ""


def _is_plain(letter: str) -> bool:
    return letter.isalnum() or letter in _PLAIN_SIGNS or unicodedata.category(letter) in ("Mn", "Mc")


def can_hold(path: str, *, windows: bool = _IS_WINDOWS) -> bool:
    """Whether the disks of this system take all names of a relative path as they are."""
    return not windows or all(map(is_usable, path.split("/")))


def usable(name: str) -> str:
    """The name, or one like it that is usable: on Windows `CON` is a device and not a file, and so is `con.png`."""
    plain = _NOT_IN_NAMES.sub("_", name).rstrip(". ") or "_"
    found = _DEVICE.match(plain)
    return f"{plain[: found.end()]}_{plain[found.end() :]}" if found else plain


def room_below(folder: PurePath, *, windows: bool = _IS_WINDOWS) -> int:
    """How many characters a name in this folder may have."""
    return max(0, LONGEST_PATH - len(str(folder)) - 1) if windows else LONGEST_PATH


def path_of_url(url: str, *, windows: bool = _IS_WINDOWS) -> str | None:
    """The absolute path in a `file:` URL; nothing for one that names another machine, or no folder."""
    parts = urlsplit(url)
    path, host = unquote(parts.path), "" if parts.netloc == "localhost" else parts.netloc
    if parts.scheme != "file" or not path.strip("/") or (host and not windows):
        return None
    if not windows:
        return path
    found = PureWindowsPath(f"//{host}{path}" if host else path.lstrip("/"))
    return str(found) if found.drive and found.root else None


def any_length(folder: PurePath, *, windows: bool = _IS_WINDOWS) -> str:
    """An absolute path, below which Windows has no limit of length."""
    path = str(folder)
    if not windows or path.startswith("\\\\?\\"):
        return path
    return f"\\\\?\\UNC\\{path[2:]}" if path.startswith("\\\\") else f"\\\\?\\{path}"
