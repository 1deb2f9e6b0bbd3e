"""The input, output and temp folders, and the names of saved files."""

import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

_SUFFIX = re.compile(r"^(?P<name>.*) \[(?P<kind>input|output|temp)\]$")


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveTarget:
    """The path of a node's next file: `<folder>/<stem>_<counter>_.<extension>`."""

    folder: Path
    subfolder: str
    stem: str
    counter: int
    kind: str

    def file(self, extension: str, *, offset: int = 0) -> tuple[Path, dict[str, str]]:
        """Return the path and its entry in the client message."""
        stem = self.stem.replace("%batch_num%", str(offset))
        return self._named(f"{stem}_{self.counter + offset:05}_.{extension}")

    def plain_file(self, extension: str) -> tuple[Path, dict[str, str]]:
        """The path in the format that newer savers use for sounds and texts."""
        return self._named(f"{self.stem}_{self.counter:05}.{extension}")

    def _named(self, name: str) -> tuple[Path, dict[str, str]]:
        return self.folder / name, {"filename": name, "subfolder": self.subfolder, "type": self.kind}


class Folders:
    def __init__(self, base: Path, *, follows_links: bool = False) -> None:
        self._follows_links = follows_links
        # Node errors and the checks of /view compare absolute paths.
        self.base = Path(os.path.abspath(base))  # noqa: PTH100 - resolve() would follow links, as ComfyUI does not
        self.input = self.base / "input"
        self.output = self.base / "output"
        self.temp = self.base / "temp"

    def prepare(self) -> None:
        """Create the folders, and empty `temp`, as ComfyUI does at each start."""
        shutil.rmtree(self.temp, ignore_errors=True)
        for folder in (self.input, self.output, self.temp):
            folder.mkdir(parents=True, exist_ok=True)

    def by_type(self, kind: str) -> Path | None:
        return {"input": self.input, "output": self.output, "temp": self.temp}.get(kind)

    def resolve(self, name: str) -> Path:
        """Return the file that a node input names. Unlike in ComfyUI 0.7.0, paths outside of the folders are not read,
        because users of the simulator have no rights to its owner's files. Raises `FileNotFoundError`."""
        plain, kind = split_kind(name)
        path = safe_join(self.by_type(kind or "input") or self.input, plain, follows_links=self._follows_links)
        if path is None:
            raise FileNotFoundError(f"The simulator reads only files in its own folders, not {name}")
        return path

    def has_file(self, name: str) -> bool:
        """Whether a node input names a file in the folders."""
        try:
            return self.resolve(name).is_file()
        except OSError:
            return False

    def list_inputs(self, extensions: frozenset[str]) -> list[str]:
        """List the input files with these extensions. Files in subfolders can be used but are not listed."""
        return sorted(
            file.name for file in self.input.iterdir() if file.is_file() and file.suffix.lower() in extensions
        )

    def save_target(self, prefix: str, *, size: tuple[int, int], kind: str = "output") -> SaveTarget:
        root = self.by_type(kind) or self.output
        prefix = os.path.normpath(_expand(prefix, size))
        subfolder, stem = os.path.split(prefix)
        folder = safe_join(root, subfolder)
        if folder is None:
            raise Exception(
                "**** ERROR: Saving image outside the output folder is not allowed."
                f"\n full_output_folder: {os.path.normpath(root / subfolder)}"
                f"\n         output_dir: {root}\n         commonpath: {os.path.commonpath((root, root / subfolder))}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        return SaveTarget(folder=folder, subfolder=subfolder, stem=stem, counter=_next_counter(folder, stem), kind=kind)


def safe_join(folder: Path, *parts: str, follows_links: bool = False) -> Path | None:
    """Return the path in the folder, or None if it leads out of the folder, also through a link if links are
    forbidden."""
    path = Path(os.path.normpath(folder.joinpath(*parts)))
    try:
        # Links are resolved last, because on Windows, resolving would already connect to a share in the path.
        is_inside = path.is_relative_to(folder)
        if is_inside and not follows_links:
            is_inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):
        # RuntimeError: a cycle of links. ValueError: an unencodable name, or a null byte.
        return None
    return path if is_inside and "\0" not in str(path) else None


def split_kind(name: str) -> tuple[str, str | None]:
    """Split a name such as `x.png [output]` into name and folder."""
    found = _SUFFIX.match(name)
    return (found["name"], found["kind"]) if found else (name, None)


def _expand(prefix: str, size: tuple[int, int]) -> str:
    fields = {"year": "%Y", "month": "%m", "day": "%d", "hour": "%H", "minute": "%M", "second": "%S"}
    now = time.localtime()
    values = {"width": str(size[0]), "height": str(size[1])}
    values |= {name: time.strftime(field, now) for name, field in fields.items()}
    for name, value in values.items():
        prefix = prefix.replace(f"%{name}%", value)
    return prefix


def _next_counter(folder: Path, stem: str) -> int:
    numbered = re.compile(re.escape(stem) + r"_(\d+)[_.]")
    matches = (numbered.match(path.name) for path in folder.iterdir())
    return max((int(match[1]) for match in matches if match), default=0) + 1
