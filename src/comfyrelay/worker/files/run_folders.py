"""ComfyUI keeps what it was given and what it made. On a worker's own machine, a job's files are removed after it."""

import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import structlog

from comfyrelay.comfyui.client.uploads import safe_name
from comfyrelay.comfyui.graphs.foreign_files import UPLOAD_FOLDER
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.system.files import remove, remove_tree
from comfyrelay.worker.files.inputs import job_folder
from comfyrelay.worker.lease import Lease

log = structlog.get_logger(__name__)

# Where runs save and preview; each run of ours has a folder of its own in them.
_MADE = ("output", "temp")
_NAME = re.compile(r"[A-Za-z0-9_-]+")


class ComfyFolders:
    """The folders that hold the `input`, `output` and `temp` of each server; servers elsewhere have none here.

    `asset_folder` is where this worker's effect assets are on them.
    """

    def __init__(self, folders: Callable[[], Iterable[Path]], *, asset_folder: str) -> None:
        # servers may come and go
        self._find_folders = folders
        self._assets = Path(UPLOAD_FOLDER, asset_folder)

    @property
    def _folders(self) -> Collection[Path]:
        return dict.fromkeys(self._find_folders())

    @property
    def are_known(self) -> bool:
        return bool(self._folders)

    def remove(self, *, lease: Lease, result: RunResult | None, prompt_ids: Iterable[str]) -> None:
        """Remove the files of a job wherever they are, as far as that is possible; what is not, is only logged."""
        self.remove_inputs(job_folder(lease))
        runs = {*prompt_ids, *([result.prompt_id] if result else ())}
        self.remove_made(runs, result.files if result else ())

    def remove_inputs(self, folder: str) -> None:
        """Remove the folder that holds the files of one job."""
        for base in self._folders:
            _remove(base / "input", Path(UPLOAD_FOLDER, folder), is_folder=True)

    def remove_made(self, prompt_ids: Collection[str], files: Collection[OutputFile]) -> None:
        """Remove what runs have saved and previewed."""
        for base in self._folders:
            for kind in _MADE:
                for prompt_id in filter(_NAME.fullmatch, prompt_ids):
                    _remove(base / kind, Path(UPLOAD_FOLDER, prompt_id), is_folder=True)
            for file in files:
                if file.type in _MADE:
                    # ComfyUI on Windows names folders in its own way, and this may be WSL
                    for subfolder in {file.subfolder, file.subfolder.replace("\\", "/")}:
                        _remove(base / file.type, Path(subfolder, file.filename), is_folder=False)

    def remove_asset(self, name: str) -> None:
        """An effect asset is no longer kept here, so its copies go, too; `name` is its name in the cache."""
        for base in self._folders:
            _remove(base / "input", self._assets / safe_name(name, name), is_folder=False)

    def keep_assets(self, names: Iterable[str]) -> None:
        """Remove the copies of all assets but these: of a cache that is gone, or that somebody emptied."""
        kept = {safe_name(name, name) for name in names}
        for base in self._folders:
            for path in (base / "input" / self._assets).glob("*"):
                if path.name not in kept:
                    _remove(base / "input", self._assets / path.name, is_folder=False)


def _remove(root: Path, path: Path, *, is_folder: bool) -> None:
    """Remove something below a folder, and never anything else; what a path leads through may be a link."""
    place = root / path
    try:
        if not place.parent.resolve().is_relative_to(root.resolve()):
            log.warning("comfy_folders.not_ours", path=str(path))
        elif is_folder:
            remove_tree(place)
        else:
            remove(place)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        log.warning("comfy_folders.not_removed", path=str(path), why=str(error))
