"""What ComfyUI may still write when a job is over here: files of runs that were stopped or have failed, which it may be
alone to know of, and uploads that it has not answered."""

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
# A worker that leaves waits this long for runs to end; its next process does the rest.
CLOSE_SECONDS = 2.0
# In which a server that answers again has read what was sent to it before.
READ_SECONDS = 1.0
# One that has not answered for so long has been started anew, or will be, and has lost what it had not read.
LONGEST_HANG_SECONDS = 3600.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Leftovers:
    """ComfyUI looks up between nodes and steps only, so a saver that is at work when its run is interrupted writes its
    files after that. They are removed when the run is over; until then it is written down. One that hangs while it is
    sent a job's input reads that when it goes on, and writes it, though nobody has waited for it since."""

    def __init__(self, state: StateFolder, *, servers: Servers, folders: ComfyFolders) -> None:
        self._state = state
        self._servers = servers
        self._folders = folders
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._uploads: dict[tuple[str, str], asyncio.Task[None]] = {}

    def recall(self) -> None:
        """Take up what an earlier process has left."""
        unfinished = self._state.unfinished_runs()
        self.add(unfinished)
        for _, prompt_id in unfinished:
            if prompt_id not in self._tasks:
                # its server is no longer this worker's
                self._state.forget_unfinished(prompt_id)
        for client_id, folder in self._state.unanswered_uploads():
            self.add_upload(client_id, folder)
            if (client_id, folder) not in self._uploads:
                # nobody can say any more whether it was read
                self._folders.remove_inputs(folder)
                self._state.forget_upload(client_id, folder)

    def add(self, runs: Iterable[tuple[str, str]]) -> None:
        """Remove the files of these runs, by server and prompt id, as soon as each of them is over."""
        for client_id, prompt_id in runs:
            server = self._servers.find(client_id)
            if server is None or prompt_id in self._tasks or not _NAME.fullmatch(prompt_id):
                # nothing of Comfy Cloud's is on our disks, and an id that is not ours is no name for a file
                continue
            try:
                self._state.record_unfinished(client_id, prompt_id)
            except OSError as error:
                log.warning("worker.not_written_down", prompt_id=prompt_id, why=str(error))
            self._tasks[prompt_id] = asyncio.create_task(self._sweep(server, prompt_id))

    def add_upload(self, client_id: str, folder: str) -> None:
        """Remove a job's inputs once more when this server answers: it has yet to say that it has read one of them."""
        upload = (client_id, folder)
        server = self._servers.find(client_id)
        if server is None or upload in self._uploads or not _NAME.fullmatch(folder) or not self._folders.are_known:
            return
        try:
            self._state.record_upload(client_id, folder)
        except OSError as error:
            log.warning("worker.not_written_down", folder=folder, why=str(error))
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
        # without the server nobody knows more than the names of folders
        files = await _patiently(lambda: _files_of(server, prompt_id), otherwise=())
        self._folders.remove_made([prompt_id], files)
        self._state.forget_unfinished(prompt_id)
        del self._tasks[prompt_id]

    async def _sweep_upload(self, server: RecoveringClient, client_id: str, folder: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_HANG_SECONDS):
                await _patiently(server.prompts, otherwise=None)
        await asyncio.sleep(READ_SECONDS)
        self._folders.remove_inputs(folder)
        self._state.forget_upload(client_id, folder)
        del self._uploads[client_id, folder]


async def _patiently(ask: Callable[[], Awaitable[T | None]], *, otherwise: D) -> T | D:
    """Ask a server until there is an answer; `otherwise` is that of one that this worker has no more."""
    retries = Retries(Backoff(first_seconds=FIRST_PAUSE_SECONDS, longest_seconds=LONGEST_PAUSE_SECONDS))
    while True:
        try:
            if (answer := await ask()) is not None:
                return answer
        except Conflict:
            return otherwise
        except ComfyError:
            # it is away
            pass
        await retries.wait()


async def _files_of(server: RecoveringClient, prompt_id: str) -> Sequence[OutputFile] | None:
    """What a run has made, as far as only the server knows; `None` while it is not over."""
    return None if prompt_id in await server.prompts() else await server.forget(prompt_id)
