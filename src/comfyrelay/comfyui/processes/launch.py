"""How a ComfyUI is started: its command line, its environment, and folders that no other process writes to."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from comfyrelay.comfyui.graphs.foreign_files import UPLOAD_FOLDER
from comfyrelay.comfyui.processes.environment import without_ours
from comfyrelay.comfyui.processes.gpus import LocalGpu
from comfyrelay.comfyui.processes.installs import Install, InstallKind
from comfyrelay.errors import ConfigurationError
from comfyrelay.system.atomic import part_of
from comfyrelay.system.files import remove_tree

LOOPBACK = "127.0.0.1"
# Of a file that can only be lent by a copy.
MOST_COPIED_BYTES = 64 * 1024**2
# What we choose for each process ourselves.
OURS = frozenset(
    {
        "--auto-launch",
        "--cuda-device",
        "--database-url",
        # it would replace the variables that show one GPU
        "--default-device",
        "--input-directory",
        "--listen",
        "--output-directory",
        "--port",
        "--temp-directory",
        "--tls-certfile",
        "--tls-keyfile",
        "--user-directory",
    }
)
# What is in them is nobody's once the process is over; what its user has saved in the editor is in `user`.
_PASSING = ("input", "output", "temp")
_FOLDERS = (*_PASSING, "user")
# What whoever starts us can set otherwise. PyTorch has a thread for each core; between two pieces of work they would
# spin, on the cores that the Python threads of all ComfyUI on this machine need (docs/howto/several-on-one-gpu.md).
_UNLESS_SET = {"OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True, kw_only=True)
class ProcessLaunch:
    argv: Sequence[str]
    environment: dict[str, str]
    folder: Path
    url: str
    # by which its answers tell it from somebody else at that port
    mark: str


def check_arguments(arguments: Sequence[str]) -> None:
    names = [each.partition("=")[0] for each in arguments if each.startswith("--") and len(each) > len("--")]
    # ComfyUI takes the beginning of an option for the whole
    taken = sorted(option for option in OURS if any(option.startswith(name) for name in names))
    if taken:
        raise ConfigurationError(
            f"ComfyRelay chooses {', '.join(taken)} for each ComfyUI that it starts: leave it out of its arguments."
        )


def launch(
    install: Install, *, python: Path, arguments: Sequence[str], gpu: LocalGpu, folder: Path, port: int
) -> ProcessLaunch:
    """A process of its own in `folder`. Models and custom nodes stay where this ComfyUI finds them."""
    output = folder / "output"
    words: list[str] = [str(python)]
    if install.kind is InstallKind.PORTABLE:
        # as its own starter does: what the user has installed elsewhere is not for it
        words.append("-s")
    words += [str(install.code / "main.py"), "--listen", LOOPBACK, "--port", str(port), "--disable-auto-launch"]
    if install.base is not None:
        words += ["--base-directory", str(install.base)]
    if install.extra_models is not None:
        words += ["--extra-model-paths-config", str(install.extra_models)]
    words += ["--input-directory", str(folder / "input"), "--output-directory", str(output)]
    # it makes the folder `temp` in it
    words += ["--temp-directory", str(folder)]
    for option, value in (
        ("--user-directory", str(folder / "user")),
        ("--database-url", f"sqlite:///{(folder / 'user' / 'comfyui.db').as_posix()}"),
    ):
        if install.has_option(option):
            words += [option, value]
    environment = without_ours()
    # it would be ours, and packages that custom nodes install belong into ComfyUI's
    environment.pop("VIRTUAL_ENV", None)
    return ProcessLaunch(
        argv=[*words, *arguments],
        environment={**_UNLESS_SET, **environment, "PYTHONUNBUFFERED": "1", **gpu.variables},
        folder=install.code,
        url=f"http://{LOOPBACK}:{port}",
        mark=str(output),
    )


def make_folders(folder: Path) -> None:
    for each in _FOLDERS:
        (folder / each).mkdir(parents=True, exist_ok=True)


def empty_folders(folder: Path) -> None:
    """Remove what an earlier life has left: its outputs were fetched, or are nobody's. Workflows that were saved in the
    editor, and its settings, stay."""
    for each in _PASSING:
        with suppress(FileNotFoundError):
            remove_tree(folder / each)


def lend_inputs(source: Path, target: Path) -> list[str]:
    """Workflows name files that their user has put into ComfyUI's own input folder: each process finds them by links.

    Where those are not allowed, as on Windows, a file gets a second name, or is copied if it is small and on another
    disk. Returns which cannot be lent at all.
    """
    there = {each.name for each in target.iterdir()}
    left: list[str] = []
    try:
        wanted = [*source.iterdir()] if source.is_dir() else []
    except OSError:
        return [str(source)]
    for each in wanted:
        place = target / each.name
        # what jobs brought there is not the user's
        if each.name == UPLOAD_FOLDER or (each.name in there and not _are_folders(each, place)):
            continue
        try:
            left += _lend(each, place)
        except OSError:
            left.append(str(each))
    return left


def _lend(source: Path, place: Path) -> list[str]:
    with suppress(OSError, NotImplementedError):
        place.symlink_to(source, target_is_directory=source.is_dir())
        return []
    if source.is_dir():
        place.mkdir(exist_ok=True)
        return lend_inputs(source, place)
    with suppress(OSError):
        os.link(source, place)
        return []
    if source.stat().st_size > MOST_COPIED_BYTES:
        return [str(source)]
    with part_of(place) as part:
        shutil.copy2(source, part)
    return []


def _are_folders(source: Path, place: Path) -> bool:
    """Of which the second is one of its own, that may lack what the first has by now."""
    return source.is_dir() and place.is_dir() and not place.is_symlink()
