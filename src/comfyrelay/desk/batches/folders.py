"""Read batch inputs from folders and prompts from files, and build readable output names."""

import itertools
import re
import unicodedata
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from datetime import date
from pathlib import Path, PureWindowsPath

from comfyrelay.desk.settings import DEFAULT_NAMES, NAME_FIELD
from comfyrelay.domain.properties import kind_of
from comfyrelay.errors import InvalidInput
from comfyrelay.text import is_storable, natural_key

MAX_PROMPT_BYTES = 16 * 1024 * 1024
# With the number, seed and suffix, a name is still well below the limit of 255 bytes.
_LABEL_BYTES = 120
_SEPARATOR = re.compile(r"[\\/]")
_SUFFIX = re.compile(r"\.?([A-Za-z0-9]{1,10})")
_PROMPT_SEPARATOR = "---"
_SEPARATORS = re.compile(r"([_ -])[_ -]+")


def inputs_in(root: Path, subdir: str = "") -> list[Path]:
    """Return the media files in a folder below `root` in natural order, without hidden files and subfolders.

    `subdir` comes from a request, so paths that escape `root` are refused: `..`, absolute paths and links.
    """
    windows = PureWindowsPath(subdir)
    if "\0" in subdir or windows.drive or windows.root or ".." in _SEPARATOR.split(subdir):
        raise _refusal(f"{subdir!r} is not allowed: name a folder inside the input folder, without '..'.")
    try:
        base = root.resolve(strict=True)
        folder = (base / subdir).resolve(strict=True)
        if not folder.is_relative_to(base):
            raise _refusal(f"{subdir!r} is a link that leads out of the input folder.")
        found = [path for path in folder.iterdir() if kind_of(path.name) and not path.name.startswith(".")]
        for path in found:
            if not path.resolve().is_relative_to(base):
                raise _refusal(f"{path.name!r} is a link that leads out of the input folder.")
        return sorted(filter(Path.is_file, found), key=lambda path: natural_key(path.name))
    except (OSError, RuntimeError, ValueError) as error:
        # A link cycle is a RuntimeError, an unencodable name a ValueError.
        reason = (isinstance(error, OSError) and error.strerror) or "it is not the name of a folder"
        raise _refusal(f"The folder {subdir or '.'!r} cannot be read: {reason}.") from None


def readable_name(
    label: str, seed: int | None, n: int, suffix: str, *, max_length: int = 255, names: str = DEFAULT_NAMES
) -> str:
    """Return a file name that describes its content and is valid on Windows: `0007_cat-a-red-fox_seed42.mp4`.

    `names` is the setting `output_names`. With `{number}` in it, names with different numbers differ even without
    regard to case. The label is truncated to `max_length`.
    """
    found = _SUFFIX.fullmatch(suffix)
    ending = f".{found[1].lower()}" if found else ""
    seed_part = "" if seed is None else f"seed{seed}"
    values = {"number": f"{n:04d}", "seed": seed_part, "date": f"{date.today():%Y-%m-%d}", "label": ""}
    others = NAME_FIELD.sub(lambda field: values[field[1]], names)
    values["label"] = _hyphenated(label)[: max(0, max_length - len(f"{others}{ending}"))].strip("-")
    # An empty part leaves no separator.
    name = _SEPARATORS.sub(r"\1", NAME_FIELD.sub(lambda field: values[field[1]], names)).strip("_- ")
    return (name or values["number"]) + ending


def prompts_from(file: Path) -> list[str]:
    """Read prompts from a text file: one per line, or blocks separated by `---` lines.

    Empty prompts are skipped. The text is UTF-8, or UTF-16 with a byte order mark.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_PROMPT_BYTES + 1)
        if len(content) > MAX_PROMPT_BYTES:
            raise InvalidInput(f"The file {file} is too large for prompts: at most {MAX_PROMPT_BYTES} bytes.")
        # Windows editors and shells write byte order marks, and some write UTF-16.
        text = content.decode("utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"The prompts cannot be read from {file}: {error.strerror}.") from None
    except ValueError:
        raise InvalidInput(f"The file {file} is not text in UTF-8.") from None
    if not is_storable(text):
        raise InvalidInput(f"The file {file} contains a character that cannot be stored.")
    # `splitlines` would also split at characters that may occur in a prompt.
    lines = re.split(r"\r\n|\r|\n", text)
    if any(line.strip() == _PROMPT_SEPARATOR for line in lines):
        groups = itertools.groupby(lines, key=lambda line: line.strip() == _PROMPT_SEPARATOR)
        lines = ["\n".join(group) for is_separator, group in groups if not is_separator]
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise InvalidInput(f"There is no prompt in the file {file}.")
    return prompts


def _refusal(reason: str) -> InvalidInput:
    return InvalidInput(reason, errors={"input_subdir": reason})


def _hyphenated(label: str) -> str:
    """Return the letters and digits of any script, joined by hyphens."""
    chars = (
        char if unicodedata.category(char)[0] in "LMN" or char == "_" else " "
        for char in unicodedata.normalize("NFC", label)
    )
    words = "-".join("".join(chars).split())
    # `ignore` drops a character that was truncated in the middle.
    return words.encode()[:_LABEL_BYTES].decode(errors="ignore").strip("-")
