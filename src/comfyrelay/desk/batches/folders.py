"""Read batch inputs from folders and prompts from files, and build readable output names."""

import re
import unicodedata
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path, PureWindowsPath

from comfyrelay.domain.properties import kind_of
from comfyrelay.errors import InvalidInput
from comfyrelay.text import is_storable, natural_key

MAX_PROMPT_BYTES = 16 * 1024 * 1024
# With number, seed and suffix this stays well below the 255 bytes of a file name.
_LABEL_BYTES = 120
_PARTS = re.compile(r"[\\/]")
_SUFFIX = re.compile(r"\.?([A-Za-z0-9]{1,10})")
_RULE = "---"


def inputs_in(root: Path, subdir: str = "") -> list[Path]:
    """Return the media files in a folder below `root` in natural order, without hidden files and subfolders.

    `subdir` comes from a request, so paths that escape `root` are refused: `..`, absolute paths and links.
    """
    windows = PureWindowsPath(subdir)
    if "\0" in subdir or windows.drive or windows.root or ".." in _PARTS.split(subdir):
        raise _refused(f"{subdir!r} is not allowed: name a folder inside the input folder, without '..'.")
    try:
        base = root.resolve(strict=True)
        folder = (base / subdir).resolve(strict=True)
        if not folder.is_relative_to(base):
            raise _refused(f"{subdir!r} is a link that leads out of the input folder.")
        found = [each for each in folder.iterdir() if kind_of(each.name) and not each.name.startswith(".")]
        for each in found:
            if not each.resolve().is_relative_to(base):
                raise _refused(f"{each.name!r} is a link that leads out of the input folder.")
        return sorted(filter(Path.is_file, found), key=lambda each: natural_key(each.name))
    except (OSError, RuntimeError, ValueError) as error:
        # a link cycle is a RuntimeError, an unencodable name a ValueError
        why = (isinstance(error, OSError) and error.strerror) or "it is not the name of a folder"
        raise _refused(f"The folder {subdir or '.'!r} cannot be read: {why}.") from None


def readable_name(label: str, seed: int | None, n: int, suffix: str, *, room: int = 255) -> str:
    """Return a file name that describes its content and is valid on Windows: `0007_cat-a-red-fox_seed42.mp4`.

    Names with different numbers differ even without regard to case. The label is truncated to fit into `room`.
    """
    found = _SUFFIX.fullmatch(suffix)
    number, sown = f"{n:04d}", "" if seed is None else f"seed{seed}"
    ending = f".{found[1].lower()}" if found else ""
    words = _plain(label)[: max(0, room - len(f"{number}__{sown}{ending}"))].strip("-")
    return "_".join(filter(None, (number, words, sown))) + ending


def prompts_from(file: Path) -> list[str]:
    """Read prompts from a text file: one per line, or blocks separated by `---` lines.

    Empty prompts are skipped. The text is UTF-8, or UTF-16 with a byte order mark.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_PROMPT_BYTES + 1)
        if len(content) > MAX_PROMPT_BYTES:
            raise InvalidInput(f"The file {file} is too large for prompts: at most {MAX_PROMPT_BYTES} bytes.")
        # Windows editors and shells write byte order marks, and some write UTF-16
        text = content.decode("utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"The prompts cannot be read from {file}: {error.strerror}.") from None
    except ValueError:
        raise InvalidInput(f"The file {file} is not text in UTF-8.") from None
    if not is_storable(text):
        raise InvalidInput(f"The file {file} contains a character that cannot be stored.")
    # not splitlines: it also splits at characters that may occur in a prompt
    lines = re.split(r"\r\n|\r|\n", text)
    rules = [at for at, line in enumerate(lines) if line.strip() == _RULE]
    blocks = _between(lines, rules) if rules else lines
    prompts = [block.strip() for block in blocks if block.strip()]
    if not prompts:
        raise InvalidInput(f"There is no prompt in the file {file}.")
    return prompts


def _between(lines: list[str], rules: list[int]) -> list[str]:
    starts, ends = [0, *(at + 1 for at in rules)], [*rules, len(lines)]
    return ["\n".join(lines[start:end]) for start, end in zip(starts, ends, strict=True)]


def _refused(why: str) -> InvalidInput:
    return InvalidInput(why, errors={"input_subdir": why})


def _plain(label: str) -> str:
    """Letters and digits of any script, joined by hyphens."""
    letters = (
        letter if unicodedata.category(letter)[0] in "LMN" or letter == "_" else " "
        for letter in unicodedata.normalize("NFC", label)
    )
    words = "-".join("".join(letters).split())
    # decoding drops a truncated character
    return words.encode()[:_LABEL_BYTES].decode(errors="ignore").strip("-")
