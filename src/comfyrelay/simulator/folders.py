"""The input, output and temp folders, and the names of saved files."""

import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

_SUFFIX = re.compile(r"^(?P<name>.*) \[(?P<kind>input|output|temp)\]$")


@dataclass(frozen=True, kw_only=True, slots=True)
class SavePlace:
    """Where a node's next file goes: `<folder>/<stem>_<counter>_.<extension>`."""

    folder: Path
    subfolder: str
    stem: str
    counter: int
    kind: str

    def file(self, extension: str, *, offset: int = 0) -> tuple[Path, dict[str, str]]:
        """Return the path and its entry in the client message."""
        stem = self.stem.replace("%batch_num%", str(offset))
        name = f"{stem}_{self.counter + offset:05}_.{extension}"
        return self.folder / name, {"filename": name, "subfolder": self.subfolder, "type": self.kind}


class Folders:
    def __init__(self, base: Path) -> None:
        # node errors and the checks of /view compare absolute paths
        self.base = Path(os.path.abspath(base))  # noqa: PTH100 - resolve() would follow links, as ComfyUI does not
        self.input = self.base / "input"
        self.output = self.base / "output"
        self.temp = self.base / "temp"

    def prepare(self) -> None:
        """Create the folders; temp is emptied, as at each start of ComfyUI."""
        shutil.rmtree(self.temp, ignore_errors=True)
        for folder in (self.input, self.output, self.temp):
            folder.mkdir(parents=True, exist_ok=True)

    def of(self, kind: str) -> Path | None:
        return {"input": self.input, "output": self.output, "temp": self.temp}.get(kind)

    def inside(self, folder: Path, *parts: str) -> Path | None:
        """Return the path below the folder, or None if it escapes it."""
        path = os.path.normpath(folder.joinpath(*parts))
        return Path(path) if os.path.commonpath((folder, path)) == str(folder) else None

    def resolve(self, name: str) -> Path:
        """Return the file that a node input names. Like ComfyUI 0.7.0 it follows `../` and absolute paths."""
        plain, kind = split_kind(name)
        return (self.of(kind or "input") or self.input) / plain

    def listed(self, extensions: frozenset[str]) -> list[str]:
        """Input files with such an extension; files in subfolders are usable, but not listed."""
        files = (each for each in self.input.iterdir() if each.is_file())
        return sorted(file.name for file in files if file.suffix.lower() in extensions)

    def save_place(self, prefix: str, *, size: tuple[int, int], kind: str = "output") -> SavePlace:
        root = self.of(kind) or self.output
        prefix = os.path.normpath(_expand(prefix, size))
        subfolder, stem = os.path.split(prefix)
        folder = self.inside(root, subfolder)
        if folder is None:
            raise Exception(
                "**** ERROR: Saving image outside the output folder is not allowed."
                f"\n full_output_folder: {os.path.normpath(root / subfolder)}"
                f"\n         output_dir: {root}\n         commonpath: {os.path.commonpath((root, root / subfolder))}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        return SavePlace(folder=folder, subfolder=subfolder, stem=stem, counter=_next_counter(folder, stem), kind=kind)


def split_kind(name: str) -> tuple[str, str | None]:
    """Split a name such as `x.png [output]` into name and folder."""
    found = _SUFFIX.match(name)
    return (found["name"], found["kind"]) if found else (name, None)


def _expand(prefix: str, size: tuple[int, int]) -> str:
    now = time.localtime()
    values = {
        "width": str(size[0]),
        "height": str(size[1]),
        "year": str(now.tm_year),
        "month": f"{now.tm_mon:02}",
        "day": f"{now.tm_mday:02}",
        "hour": f"{now.tm_hour:02}",
        "minute": f"{now.tm_min:02}",
        "second": f"{now.tm_sec:02}",
    }
    for name, value in values.items():
        prefix = prefix.replace(f"%{name}%", value)
    return prefix


def _next_counter(folder: Path, stem: str) -> int:
    numbered = re.compile(re.escape(stem) + r"_(\d+)_")
    found = (numbered.match(each.name) for each in folder.iterdir())
    return max((int(each[1]) for each in found if each), default=0) + 1
