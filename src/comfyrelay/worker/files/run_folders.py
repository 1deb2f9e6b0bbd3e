"""Delete a job's files from ComfyUI's folders on this machine."""

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

# Runs write to these folders, each into its own subfolder.
_OUTPUT_FOLDERS = ("output", "temp")
_NAME = re.compile(r"[A-Za-z0-9_-]+")


class ComfyFolders:
    """Folders with the `input`, `output` and `temp` of each local server.

    `asset_folder` is the subfolder for this worker's effect assets. In `shared` folders, only our subfolders are
    cleaned, because a saver without a file prefix may list a user's file.
    """

    def __init__(
        self,
        folders: Callable[[], Iterable[Path]],
        *,
        asset_folder: str,
        shared: Callable[[], Collection[Path]] = tuple,
    ) -> None:
        # Looked up each time, because servers are added and removed.
        self._find_folders = folders
        self._find_shared = shared
        self._assets = Path(UPLOAD_FOLDER, asset_folder)

    @property
    def _folders(self) -> Collection[Path]:
        return dict.fromkeys(self._find_folders())

    @property
    def are_known(self) -> bool:
        return bool(self._folders)

    def remove(self, *, lease: Lease, result: RunResult | None, prompt_ids: Iterable[str]) -> None:
        """Delete the files of a job on all servers. Failures are only logged."""
        self.remove_inputs(job_folder(lease))
        runs = {*prompt_ids, *([result.prompt_id] if result else ())}
        self.remove_outputs(runs, result.files if result else ())

    def remove_inputs(self, folder: str) -> None:
        """Delete the input folder of one job."""
        for base in self._folders:
            _remove(base / "input", Path(UPLOAD_FOLDER, folder), is_folder=True)

    def remove_outputs(self, prompt_ids: Collection[str], files: Collection[OutputFile]) -> None:
        """Delete saved files and previews of runs."""
        for base in self._folders:
            for kind in _OUTPUT_FOLDERS:
                for prompt_id in filter(_NAME.fullmatch, prompt_ids):
                    _remove(base / kind, Path(UPLOAD_FOLDER, prompt_id), is_folder=True)
            for file in files if base not in self._find_shared() else ():
                if file.type in _OUTPUT_FOLDERS:
                    # ComfyUI may run on Windows, which uses backslashes, and this process in WSL.
                    for subfolder in {file.subfolder, file.subfolder.replace("\\", "/")}:
                        _remove(base / file.type, Path(subfolder, file.filename), is_folder=False)

    def remove_asset(self, name: str) -> None:
        """Delete the copies of an asset that was removed from the cache. `name` is its name in the cache."""
        for base in self._folders:
            _remove(base / "input", self._assets / safe_name(name, name), is_folder=False)

    def keep_assets(self, names: Iterable[str]) -> None:
        """Delete the copies of all other assets, which were left by a cache that was removed or emptied."""
        cached = {safe_name(name, name) for name in names}
        for base in self._folders:
            for path in (base / "input" / self._assets).glob("*"):
                if path.name not in cached:
                    _remove(base / "input", self._assets / path.name, is_folder=False)


def _remove(root: Path, path: Path, *, is_folder: bool) -> None:
    """Delete a path, unless a symbolic link in the path leads out of `root`."""
    target = root / path
    try:
        if not target.parent.resolve().is_relative_to(root.resolve()):
            log.warning("comfy_folders.outside_root", path=str(path))
        elif is_folder:
            remove_tree(target)
        else:
            remove(target)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        log.warning("comfy_folders.not_removed", path=str(path), why=str(error))
