"""Delete files that ComfyUI may still write after a job has ended: outputs of stopped runs and unanswered uploads."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import structlog

from comfyrelay.comfyui.outputs import OutputFile
from comfyrelay.errors import ComfyError, Conflict
from comfyrelay.retry import Backoff, Retries
from comfyrelay.worker.comfyui.recovery import RecoveringClient
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.files.run_folders import ComfyFolders
from comfyrelay.worker.state import StateFolder

log = structlog.get_logger(__name__)

T = TypeVar("T")
D = TypeVar("D")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
# How long a stopping worker waits for runs to end. The next process deletes the remaining files.
CLOSE_SECONDS = 2.0
# After a server responds again, it has read earlier uploads within this time.
READ_SECONDS = 1.0
# A server that has been silent for this long has restarted and lost uploads that it had not read.
LONGEST_HANG_SECONDS = 3600.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


class OrphanedFiles:
    """Tracks runs and uploads that may still write files.

    ComfyUI checks for an interrupt only between nodes and steps, so a save node may still write its files. Such runs
    are recorded on disk, and their files are deleted when the run has ended. A hanging ComfyUI may also write an upload
    long after the caller has stopped waiting for it.
    """

    def __init__(self, state: StateFolder, *, servers: Servers, folders: ComfyFolders) -> None:
        self._state = state
        self._servers = servers
        self._folders = folders
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._uploads: dict[tuple[str, str], asyncio.Task[None]] = {}

    def resume(self) -> None:
        """Resume the deletions that an earlier process recorded."""
        unfinished = self._state.unfinished_runs()
        self.add(unfinished)
        for _, prompt_id in unfinished:
            if prompt_id not in self._tasks:
                # The server is no longer configured.
                self._state.forget_unfinished(prompt_id)
        for client_id, folder in self._state.unanswered_uploads():
            self.add_upload(client_id, folder)
            if (client_id, folder) not in self._uploads:
                # Without the server, it is unknown whether it has read the upload.
                self._folders.remove_inputs(folder)
                self._state.forget_upload(client_id, folder)

    def add(self, runs: Iterable[tuple[str, str]]) -> None:
        """Delete the files of these runs, given as (server, prompt id), as soon as each run has ended."""
        for client_id, prompt_id in runs:
            server = self._servers.own.get(client_id)
            if server is None or prompt_id in self._tasks or not _NAME.fullmatch(prompt_id):
                # Comfy Cloud has no files on this machine, and other ids are not safe as file names.
                continue
            try:
                self._state.record_unfinished(client_id, prompt_id)
            except OSError as error:
                log.warning("worker.state_not_saved", prompt_id=prompt_id, why=str(error))
            self._tasks[prompt_id] = asyncio.create_task(self._sweep(server, prompt_id))

    def add_upload(self, client_id: str, folder: str) -> None:
        """Delete a job's inputs again when this server responds, because an upload got no response."""
        upload = (client_id, folder)
        server = self._servers.own.get(client_id)
        if server is None or upload in self._uploads or not _NAME.fullmatch(folder) or not self._folders.are_known:
            return
        try:
            self._state.record_upload(client_id, folder)
        except OSError as error:
            log.warning("worker.state_not_saved", folder=folder, why=str(error))
        log.info("worker.inputs_removed_later", server=client_id, folder=folder)
        self._uploads[upload] = asyncio.create_task(self._sweep_upload(server, client_id, folder))

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._uploads.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sweep(self, server: RecoveringClient, prompt_id: str) -> None:
        # Without the server, only the folder names are known.
        files = await _retry_until_answered(lambda: _files_of(server, prompt_id), otherwise=())
        self._folders.remove_outputs([prompt_id], files)
        self._state.forget_unfinished(prompt_id)
        del self._tasks[prompt_id]

    async def _sweep_upload(self, server: RecoveringClient, client_id: str, folder: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_HANG_SECONDS):
                await _retry_until_answered(server.prompts, otherwise=None)
        await asyncio.sleep(READ_SECONDS)
        self._folders.remove_inputs(folder)
        self._state.forget_upload(client_id, folder)
        del self._uploads[client_id, folder]


async def _retry_until_answered(request: Callable[[], Awaitable[T | None]], *, otherwise: D) -> T | D:
    """Repeat a request until a server responds. `otherwise` is the result for a removed server."""
    retries = Retries(Backoff(first_seconds=FIRST_PAUSE_SECONDS, max_seconds=LONGEST_PAUSE_SECONDS))
    while True:
        try:
            if (answer := await request()) is not None:
                return answer
        except Conflict:
            return otherwise
        except ComfyError:
            # The server is unreachable.
            pass
        await retries.wait()


async def _files_of(server: RecoveringClient, prompt_id: str) -> Sequence[OutputFile] | None:
    """Return the files of a run that only the server knows, or `None` while the run is queued or running."""
    return None if prompt_id in await server.prompts() else await server.delete_finished_run(prompt_id)
