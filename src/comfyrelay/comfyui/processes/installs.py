"""Find ComfyUI installs: resolve a folder that the user names, or search the usual places."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from comfyrelay.errors import ConfigurationError
from comfyrelay.system.platform import pick

# Subfolders that may contain the code, in a folder that users call their ComfyUI. `app` is used by Pinokio.
_SUBFOLDERS = ("", "ComfyUI", "app", "app/ComfyUI")
# Usual install folders.
_PATTERNS = (
    "ComfyUI",
    "comfyui",
    "ComfyUI*",
    "comfy/ComfyUI",
    "Documents/comfy/ComfyUI",
    "Documents/ComfyUI",
    "git/ComfyUI",
    "src/ComfyUI",
    "Downloads/ComfyUI*",
    "Desktop/ComfyUI*",
    "pinokio/api/comfy*",
    "StabilityMatrix/Packages/ComfyUI*",
    "StabilityMatrix/Data/Packages/ComfyUI*",
)
_VERSION = re.compile(r"""__version__\s*=\s*["']([^"']+)""")


class InstallKind(StrEnum):
    DESKTOP = "desktop app"
    PORTABLE = "portable build"
    PINOKIO = "Pinokio"
    MANUAL = "manual install"


@dataclass(frozen=True, kw_only=True)
class Install:
    """An installed ComfyUI. `named` is the folder as the user knows it, `code` the folder with `main.py`.

    The desktop app keeps models and custom nodes in `base`, separate from its code, and `extra_models` next to its
    settings.
    """

    kind: InstallKind
    named: Path
    code: Path
    base: Path | None = None
    extra_models: Path | None = None

    @property
    def data(self) -> Path:
        """Folder of models, custom nodes and input files."""
        return self.base or self.code

    @property
    def version(self) -> str | None:
        try:
            found = _VERSION.search((self.code / "comfyui_version.py").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return found[1] if found else None

    def has_option(self, name: str) -> bool:
        """Whether this version supports a command-line option. ComfyUI does not start with unknown options."""
        try:
            return f'"{name}"' in (self.code / "comfy" / "cli_args.py").read_text("utf-8")
        except (OSError, ValueError):
            return False


@dataclass(frozen=True, kw_only=True)
class SystemFolders:
    """Usual folders of this operating system."""

    home: Path
    programs: tuple[Path, ...]
    app_data: Path
    # Disk roots and folders where portable builds are unpacked.
    roots: tuple[Path, ...] = ()

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> "SystemFolders":
        home = Path.home()
        local = Path(environment.get("LOCALAPPDATA", home / "AppData" / "Local"))
        return cls(
            home=home,
            programs=pick(
                windows=(
                    local / "Programs" / "@comfyorgcomfyui-electron" / "resources",
                    local / "Programs" / "ComfyUI" / "resources",
                    local / "Programs" / "comfyui-electron" / "resources",
                ),
                macos=(
                    Path("/Applications/ComfyUI.app/Contents/Resources"),
                    home / "Applications" / "ComfyUI.app" / "Contents" / "Resources",
                ),
                others=(Path("/opt/ComfyUI/resources"), Path("/usr/lib/comfyui/resources")),
            ),
            app_data=pick(
                windows=Path(environment.get("APPDATA", home / "AppData" / "Roaming")),
                macos=home / "Library" / "Application Support",
                others=Path(environment.get("XDG_CONFIG_HOME", home / ".config")),
            ),
            roots=pick(
                windows=(Path("C:/"), Path("D:/"), Path("E:/")),
                macos=(),
                others=(Path("/opt"), Path("/workspace"), Path("/srv"), Path("/data")),
            ),
        )


def resolve_install(folder: Path, places: SystemFolders | None = None) -> Install:
    """Return the ComfyUI in a folder. `ConfigurationError` says which folder to name instead."""
    folder = folder.expanduser().absolute()
    folder = folder.parent if folder.name == "main.py" else folder
    if not folder.is_dir():
        raise ConfigurationError(
            f"The folder {folder} does not exist. Name the folder of your ComfyUI, with `main.py` in it."
        )
    found = _with_code(folder) or _desktop(places or SystemFolders.here(), base=folder)
    if found is None:
        raise ConfigurationError(
            f"No ComfyUI found in {folder}: neither it nor its subfolder ComfyUI contains `main.py` and "
            "`comfy`. `comfyrelay doctor` lists the installs on this machine."
        )
    return found


def find_installs(places: SystemFolders | None = None) -> list[Install]:
    """Find this user's installs without searching whole disks. No duplicates, most likely install first."""
    places = places or SystemFolders.here()
    found: dict[Path, Install] = {}
    for candidate in _candidates(places):
        found.setdefault(candidate.data.resolve(), candidate)
    return list(found.values())


def _candidates(places: SystemFolders) -> Iterator[Install]:
    desktop = _desktop(places)
    if desktop is not None:
        yield desktop
    for root in (places.home, *places.roots):
        for pattern in _PATTERNS:
            for folder in _matching(root, pattern):
                if (install := _with_code(folder)) is not None:
                    yield install


def _matching(root: Path, pattern: str) -> list[Path]:
    try:
        return sorted(path for path in root.glob(pattern) if path.is_dir())
    except OSError:
        # No permission, or a drive without a disk.
        return []


def _with_code(folder: Path) -> Install | None:
    for subfolder in _SUBFOLDERS:
        code = folder / subfolder
        if _is_code(code):
            return Install(kind=_kind(folder, code), named=folder, code=code)
    return None


def _is_code(folder: Path) -> bool:
    """Whether a folder has ComfyUI's code. Many programs have a `main.py`, so ComfyUI's own files must also exist."""
    try:
        has_own_files = (folder / "comfy").is_dir() or (folder / "comfyui_version.py").is_file()
        return (folder / "main.py").is_file() and has_own_files
    except OSError:
        return False


def _kind(folder: Path, code: Path) -> InstallKind:
    if (code.parent / "python_embeded").is_dir():
        return InstallKind.PORTABLE
    if code.name == "app" and ((folder / "pinokio.js").is_file() or (code.parent / "pinokio.js").is_file()):
        return InstallKind.PINOKIO
    return InstallKind.MANUAL


def _desktop(places: SystemFolders, *, base: Path | None = None) -> Install | None:
    """Find the desktop app; with `base`, only if its user chose that folder."""
    own = places.app_data / "ComfyUI"
    chosen = _chosen_base(own / "config.json")
    code = next((program / "ComfyUI" for program in places.programs if _is_code(program / "ComfyUI")), None)
    if chosen is None or code is None or (base is not None and base.resolve() != chosen.resolve()):
        return None
    extra = own / "extra_models_config.yaml"
    return Install(
        kind=InstallKind.DESKTOP, named=chosen, code=code, base=chosen, extra_models=extra if extra.is_file() else None
    )


def _chosen_base(config: Path) -> Path | None:
    try:
        chosen = Path(json.loads(config.read_text("utf-8"))["basePath"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return chosen if chosen.is_dir() else None
