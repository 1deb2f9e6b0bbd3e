"""Build the command line, environment and private folders of a ComfyUI process."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from comfyrelay.comfyui.graphs.foreign_files import UPLOAD_FOLDER
from comfyrelay.comfyui.processes.gpus import LocalGpu
from comfyrelay.comfyui.processes.installs import Install, InstallKind
from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.errors import ConfigurationError
from comfyrelay.system.atomic import part_of, remove_parts
from comfyrelay.system.commands.environment import inherited_environment
from comfyrelay.system.files import remove_tree

LOOPBACK = "127.0.0.1"
# The worker's secrets whose names do not have our prefix.
SECRET_NAMES = frozenset({"COMFY_CLOUD_API_KEY", "FLEET_SECRET"})
# Largest input file that is copied if it cannot be linked.
MAX_COPIED_BYTES = 64 * 1024**2
# Options that ComfyRelay sets for each process.
OWN_OPTIONS = frozenset(
    {
        "--auto-launch",
        "--cuda-device",
        "--database-url",
        # This option would override the variables that select one GPU.
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
# Folders whose contents are useless after the process exits. Workflows saved in the editor are in `user`.
_TEMPORARY = ("input", "output", "temp")
_FOLDERS = (*_TEMPORARY, "user")
# Defaults that the operator can override. PyTorch has a thread for each core. Between tasks, these threads would spin
# on the cores that the Python threads of all ComfyUI processes need (docs/howto/several-on-one-gpu.md).
_DEFAULTS = {"OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True, kw_only=True)
class ProcessLaunch:
    argv: Sequence[str]
    environment: dict[str, str]
    folder: Path
    url: str
    # Identifies the process in its responses, to detect another program on the same port.
    mark: str


def child_environment(more: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that ComfyUI and its custom nodes may see, without any of our secrets. `more` are variables
    that the operator named."""
    return without_own_secrets(inherited_environment(more))


def without_own_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove our settings, the fleet secret and the Comfy Cloud key, even if the operator named them."""
    return {
        name: value
        for name, value in environment.items()
        # The names of our settings are case-insensitive.
        if name.upper() not in SECRET_NAMES and not name.upper().startswith(ENV_PREFIX)
    }


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise `ConfigurationError` if an argument sets an option that ComfyRelay sets."""
    names = [argument.partition("=")[0] for argument in arguments if argument.startswith("--") and argument != "--"]
    # ComfyUI also accepts abbreviated options.
    taken = sorted(option for option in OWN_OPTIONS if any(option.startswith(name) for name in names))
    if taken:
        raise ConfigurationError(
            f"ComfyRelay sets {', '.join(taken)} for each ComfyUI it starts: remove it from the arguments."
        )


def launch(
    install: Install,
    *,
    python: Path,
    arguments: Sequence[str],
    gpu: LocalGpu,
    folder: Path,
    port: int,
    variables: Sequence[str] = (),
) -> ProcessLaunch:
    """Build the launch of a process with private folders. Models and custom nodes are used from the install.

    `variables` are names of environment variables that the process gets in addition to the usual ones.
    """
    output = folder / "output"
    argv: list[str] = [str(python)]
    if install.kind is InstallKind.PORTABLE:
        # Ignore packages in the user's site folder, as in the start script of the portable build.
        argv.append("-s")
    argv += [str(install.code / "main.py"), "--listen", LOOPBACK, "--port", str(port), "--disable-auto-launch"]
    if install.base is not None:
        argv += ["--base-directory", str(install.base)]
    if install.extra_models is not None:
        argv += ["--extra-model-paths-config", str(install.extra_models)]
    argv += ["--input-directory", str(folder / "input"), "--output-directory", str(output)]
    # ComfyUI creates the folder `temp` in this folder.
    argv += ["--temp-directory", str(folder)]
    for option, value in (
        ("--user-directory", str(folder / "user")),
        ("--database-url", f"sqlite:///{(folder / 'user' / 'comfyui.db').as_posix()}"),
    ):
        if install.has_option(option):
            argv += [option, value]
    environment = child_environment(variables)
    # The variable refers to our environment, but packages of custom nodes must be installed in ComfyUI's environment.
    environment.pop("VIRTUAL_ENV", None)
    return ProcessLaunch(
        argv=[*argv, *arguments],
        environment={**_DEFAULTS, **environment, "PYTHONUNBUFFERED": "1", **gpu.variables},
        folder=install.code,
        url=f"http://{LOOPBACK}:{port}",
        mark=str(output),
    )


def make_folders(folder: Path) -> None:
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)


def empty_folders(folder: Path) -> None:
    """Remove files of an earlier process, whose outputs have been downloaded or are orphaned.

    Saved workflows and editor settings are kept.
    """
    remove_parts(folder)
    for name in _TEMPORARY:
        with suppress(FileNotFoundError):
            remove_tree(folder / name)


def link_inputs(source: Path, target: Path) -> list[str]:
    """Link the files in ComfyUI's own input folder, to which workflows may refer, into a process's input folder.

    Without permission for symbolic links, as on Windows, use hard links, or copy small files from another disk. Returns
    the files that could not be linked.
    """
    existing = {path.name for path in target.iterdir()}
    failed: list[str] = []
    try:
        files = [*source.iterdir()] if source.is_dir() else []
    except OSError:
        return [str(source)]
    for file in files:
        place = target / file.name
        # Files that were uploaded for jobs do not belong to the user.
        if file.name == UPLOAD_FOLDER or (file.name in existing and not _are_folders(file, place)):
            continue
        try:
            failed += _link(file, place)
        except OSError:
            failed.append(str(file))
    return failed


def _link(source: Path, place: Path) -> list[str]:
    with suppress(OSError, NotImplementedError):
        place.symlink_to(source, target_is_directory=source.is_dir())
        return []
    if source.is_dir():
        place.mkdir(exist_ok=True)
        return link_inputs(source, place)
    with suppress(OSError):
        os.link(source, place)
        return []
    if source.stat().st_size > MAX_COPIED_BYTES:
        return [str(source)]
    with part_of(place) as part:
        shutil.copy2(source, part)
    return []


def _are_folders(source: Path, place: Path) -> bool:
    """Whether both are folders and the second is not a link, so that it may lack files of the first."""
    return source.is_dir() and place.is_dir() and not place.is_symlink()
