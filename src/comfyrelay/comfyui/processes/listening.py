"""Find the folder of a ComfyUI on this machine that was started by its user.

Only a ComfyUI of the same user with the usual folders is found, because files of jobs are deleted there.
"""

from collections.abc import Sequence
from pathlib import Path, PurePath
from urllib.parse import urlsplit

from comfyrelay.http_client import is_loopback
from comfyrelay.system.processes import listening_process

_KINDS = ("input", "output", "temp")


def find_base(url: str) -> Path | None:
    """Return the folder that contains `input` and `output` of the ComfyUI at this address; `None` if uncertain."""
    parts = urlsplit(url)
    if not is_loopback(parts.hostname or ""):
        return None
    process = listening_process(parts.port or (443 if parts.scheme == "https" else 80))
    return None if process is None else base_of(process.arguments, process.folder)


def base_of(arguments: Sequence[str], folder: Path) -> Path | None:
    """Return the base folder of a ComfyUI with this command line, which was started in `folder`."""
    main = next((folder / argument for argument in arguments if PurePath(argument).name == "main.py"), None)
    if main is None or not (main.parent / "comfy").is_dir():
        return None
    base = folder / (_option(arguments, "--base-directory") or main.parent)
    for kind in _KINDS:
        given = _option(arguments, f"--{kind}-directory")
        # ComfyUI creates a folder `temp` in its temporary directory.
        usual = base if kind == "temp" else base / kind
        if given is not None and (folder / given).resolve() != usual.resolve():
            return None
    return base.resolve() if (base / "output").is_dir() else None


def _option(arguments: Sequence[str], name: str) -> str | None:
    for number, argument in enumerate(arguments):
        if argument == name and number + 1 < len(arguments):
            return arguments[number + 1]
        if argument.startswith(f"{name}="):
            return argument.removeprefix(f"{name}=")
    return None
