"""One ComfyUI process, started by a launcher that stops the whole process tree even if we are killed."""

import asyncio

import httpx

from comfyrelay.comfyui.processes.launch import ProcessLaunch
from comfyrelay.comfyui.processes.log import ProcessLog
from comfyrelay.errors import NotStarted
from comfyrelay.http_client import http_client, object_in
from comfyrelay.system.commands import detached
from comfyrelay.system.commands.process_group import KILL_SECONDS, Child

GRACE_SECONDS = 10.0
RESPONSE_SECONDS = 5.0
POLL_SECONDS = 0.5
# Time for the last output to arrive through the pipe.
LAST_OUTPUT_SECONDS = 2.0
# Exit code of the launcher after SIGKILL.
_KILLED = 128 + 9
_CANNOT_START = 127


class ComfyProcess:
    def __init__(self, child: Child, launch: ProcessLaunch, log: ProcessLog) -> None:
        self.url = launch.url
        self.log = log
        self._child = child
        self._mark = launch.mark
        self._http = http_client(timeout=RESPONSE_SECONDS, trust_env=False)
        self._tree: dict[int, float] = {}
        self.exited = asyncio.create_task(self._read_until_exit())

    @classmethod
    async def start(cls, launch: ProcessLaunch, log: ProcessLog) -> "ComfyProcess":
        log.start(" ".join(launch.argv))
        try:
            child = await Child.start(
                launch.argv, folder=launch.folder, environment=launch.environment, grace_seconds=GRACE_SECONDS
            )
        except OSError as error:
            raise NotStarted(f"ComfyUI cannot be started: {error.strerror}.") from None
        return cls(child, launch, log)

    async def refresh_tree(self) -> dict[int, float]:
        """Return the start time of every process in the tree by process id. Descendants cannot be found after their
        parent has exited, so callers refresh the tree regularly."""
        own = self._child.pid
        found = await asyncio.to_thread(lambda: {own: detached.started_at(own), **detached.descendants(own)})
        self._tree = dict(self._remaining()) | {pid: at for pid, at in found.items() if at}
        return self._tree

    def _remaining(self) -> list[tuple[int, float]]:
        return [(pid, at) for pid, at in self._tree.items() if detached.is_running(pid=pid, started=at)]

    async def responds(self) -> bool:
        """Whether this process responds, rather than another program on its port."""
        try:
            answer = await self._http.get(f"{self.url}/system_stats")
        except (httpx.HTTPError, OSError):
            return False
        argv = (object_in(answer).get("system") or {}).get("argv")
        return answer.status_code == 200 and (not isinstance(argv, list) or self._mark in argv)

    async def stop(self) -> None:
        """Terminate the process tree, kill it after a grace period, and wait until all processes have exited.

        Cancellation does not shorten the wait, because no process may keep running. The wait is limited.
        """
        stopping = asyncio.create_task(self._terminate())
        is_canceled = False
        while not stopping.done():
            try:
                await asyncio.wait([stopping])
            except asyncio.CancelledError:
                is_canceled = True
        await stopping
        if is_canceled:
            raise asyncio.CancelledError

    async def _terminate(self) -> None:
        self._child.close_input()
        await asyncio.wait({self.exited}, timeout=GRACE_SECONDS + KILL_SECONDS)
        # The launcher also terminates descendants, but it may have been killed.
        await asyncio.gather(
            *(
                asyncio.to_thread(detached.terminate, pid=pid, started=at, seconds=GRACE_SECONDS)
                for pid, at in self._remaining()
            )
        )
        await self._http.aclose()

    @property
    def exit_description(self) -> str:
        code = self._child.exit_code
        if code == _KILLED:
            return "it was killed, most likely because the machine ran out of memory"
        if code == _CANNOT_START:
            return "its Python does not run"
        if code is not None and code < 0:
            return f"its launcher was killed by signal {-code}"
        return f"exit code {code}"

    async def _read_until_exit(self) -> None:
        """Read output until the process exits. If the launcher was killed, a descendant may keep the pipe open for a
        long time."""
        reading = asyncio.create_task(self._read_output())
        while self._child.exit_code is None and not reading.done():
            await asyncio.wait({reading}, timeout=POLL_SECONDS)
        if reading.done():
            await self._child.wait()
        else:
            await asyncio.wait({reading}, timeout=LAST_OUTPUT_SECONDS)
            reading.cancel()

    async def _read_output(self) -> None:
        while piece := await self._child.read():
            self.log.write(piece)
