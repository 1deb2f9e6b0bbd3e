"""Find the Python for which a ComfyUI's packages were installed."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from comfyrelay.comfyui.processes.installs import Install, InstallKind
from comfyrelay.errors import ConfigurationError
from comfyrelay.system.commands.environment import inherited_environment
from comfyrelay.system.platform import pick

CHECK_SECONDS = 60.0
# Usual names of virtual environments next to ComfyUI. `env` is used by Pinokio, `conda_env` by some installers.
_ENVIRONMENTS = ("venv", ".venv", "env", "conda_env", "installer_files/env")


def find_python(
    install: Install, *, given: Path | None = None, setting: str = "", variables: Mapping[str, str] = os.environ
) -> Path:
    """Return the Python that starts this ComfyUI. `setting` is the name of the setting for it.

    Raises `ConfigurationError` if none is found.
    """
    if given is not None:
        return _check_named(given.expanduser().absolute(), setting)
    broken = None
    for folder in _environments(install):
        if (python := python_in(folder)) is not None:
            return python
        broken = broken or folder
    if broken is not None:
        # Another Python would lack these packages and fail later with a less helpful error.
        raise ConfigurationError(
            f"The Python environment {broken} of ComfyUI cannot be used: its python is missing or a broken link. "
            f"Recreate it and install ComfyUI's requirements.txt there, or name another Python with {setting}."
        )
    if (active := _active(variables)) is not None:
        return active
    if find_spec("torch") is not None:
        return Path(sys.executable)
    raise ConfigurationError(
        f"No Python was found for the ComfyUI in {install.named}: it has no folder venv or .venv, and this Python has "
        f"no torch. Set {setting} to the Python that you start it with."
    )


def check_python(python: Path) -> tuple[str | None, str]:
    """Return why this Python cannot run ComfyUI (`None` if it can), and the version of its torch."""
    command = (str(python), "-c", "import torch; print(torch.__version__)")
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=CHECK_SECONDS, check=False, text=True, env=inherited_environment()
        )
    except OSError as error:
        return f"it does not run ({error.strerror}).", ""
    except subprocess.TimeoutExpired:
        return f"it did not import torch within {CHECK_SECONDS:.0f} s.", ""
    if done.returncode:
        return f"{(done.stderr.strip().splitlines() or ['it fails without output'])[-1]}.", ""
    return None, done.stdout.strip()


def python_in(environment: Path) -> Path | None:
    """Return the Python of a virtual environment, a conda environment or the portable build's folder."""
    names = pick(
        windows=("Scripts/python.exe", "python.exe"),
        macos=("bin/python", "bin/python3"),
        others=("bin/python", "bin/python3"),
    )
    return next((environment / name for name in names if (environment / name).is_file()), None)


def _environments(install: Install) -> Iterator[Path]:
    """Yield existing environments, including those without a Python."""
    if install.kind is InstallKind.PORTABLE:
        yield install.code.parent / "python_embeded"
    places = dict.fromkeys((install.data, install.code, install.named, install.code.parent))
    for place in places:
        for name in _ENVIRONMENTS:
            if (place / name / "pyvenv.cfg").is_file() or (place / name / "conda-meta").is_dir():
                yield place / name


def _active(variables: Mapping[str, str]) -> Path | None:
    """Return the Python of the active environment if that has torch; ComfyRelay's own does not."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = Path(variables.get(name) or "-")
        if folder.is_dir() and (python := python_in(folder)) is not None and _has_torch(folder):
            return python
    return None


def _has_torch(environment: Path) -> bool:
    return any(environment.glob("lib*/python*/site-packages/torch")) or any(environment.glob("Lib/site-packages/torch"))


def _check_named(path: Path, setting: str) -> Path:
    if path.is_dir() and (python := python_in(path)) is not None:
        return python
    if path.is_file() and os.access(path, os.X_OK):
        return path
    raise ConfigurationError(
        f"{setting} is {path}, which is not a Python: name its executable or the folder of its environment."
    )
