"""One ComfyUI process: started under a launcher that ends it with all it started, however we end; heard, and asked."""

import asyncio

import httpx

from comfyrelay.comfyui.processes.launch import ProcessLaunch
from comfyrelay.comfyui.processes.log import ProcessLog
from comfyrelay.errors import NotStarted
from comfyrelay.http_client import http_client, object_in
from comfyrelay.system.commands import detached
from comfyrelay.system.commands.process_group import FIRM_SECONDS, Child

GRACE_SECONDS = 10.0
ANSWER_SECONDS = 5.0
LOOK_SECONDS = 0.5
# For what it said last to come through the pipe.
LAST_WORDS_SECONDS = 2.0
# What the launcher makes of SIGKILL.
_KILLED = 128 + 9
_CANNOT_START = 127


class ManagedProcess:
    def __init__(self, child: Child, launch: ProcessLaunch, log: ProcessLog) -> None:
        self.url = launch.url
        self.log = log
        self._child = child
        self._mark = launch.mark
        self._http = http_client(timeout=ANSWER_SECONDS, trust_env=False)
        self._family: dict[int, float] = {}
        self.ended = asyncio.create_task(self._listen_until_gone())

    @classmethod
    async def start(cls, launch: ProcessLaunch, log: ProcessLog) -> "ManagedProcess":
        log.begin(" ".join(launch.argv))
        try:
            child = await Child.start(
                launch.argv, folder=launch.folder, environment=launch.environment, grace_seconds=GRACE_SECONDS
            )
        except OSError as error:
            raise NotStarted(f"ComfyUI cannot be started: {error.strerror}.") from None
        return cls(child, launch, log)

    async def family(self) -> dict[int, float]:
        """All that must be gone when this is over, by process id, with when each was started. Whose parent has ended is
        found by nobody later, so this is asked for now and then."""
        own = self._child.pid
        found = await asyncio.to_thread(lambda: {own: detached.started_at(own), **detached.descendants(own)})
        self._family = dict(self._remaining()) | {pid: at for pid, at in found.items() if at}
        return self._family

    def _remaining(self) -> list[tuple[int, float]]:
        return [(pid, at) for pid, at in self._family.items() if detached.is_process(pid=pid, started=at)]

    async def answers(self) -> bool:
        """Whether it answers, and not somebody else at its port."""
        try:
            answer = await self._http.get(f"{self.url}/system_stats")
        except (httpx.HTTPError, OSError):
            return False
        argv = (object_in(answer).get("system") or {}).get("argv")
        return answer.status_code == 200 and (not isinstance(argv, list) or self._mark in argv)

    async def stop(self) -> None:
        """Politely, then firmly, with all that it has started; returns when it is gone.

        Being canceled does not hurry this: it takes a bounded time, and nothing may be left running.
        """
        going = asyncio.create_task(self._end())
        is_canceled = False
        while not going.done():
            try:
                await asyncio.wait([going])
            except asyncio.CancelledError:
                is_canceled = True
        await going
        if is_canceled:
            raise asyncio.CancelledError

    async def _end(self) -> None:
        self._child.let_go()
        await asyncio.wait({self.ended}, timeout=GRACE_SECONDS + FIRM_SECONDS)
        # the launcher does this; it may have been killed itself
        await asyncio.gather(
            *(
                asyncio.to_thread(detached.end, pid=pid, started=at, seconds=GRACE_SECONDS)
                for pid, at in self._remaining()
            )
        )
        await self._http.aclose()

    @property
    def how_it_ended(self) -> str:
        code = self._child.exit_code
        if code == _KILLED:
            return "it was killed, most likely because the machine ran out of memory"
        if code == _CANNOT_START:
            return "its Python cannot be run"
        if code is not None and code < 0:
            return f"the launcher that watches over it was ended by signal {-code}"
        return f"exit code {code}"

    async def _listen_until_gone(self) -> None:
        """Until it is gone: where its launcher was killed, something that it had started may hold the pipe for long."""
        listening = asyncio.create_task(self._listen())
        while self._child.exit_code is None and not listening.done():
            await asyncio.wait({listening}, timeout=LOOK_SECONDS)
        if listening.done():
            await self._child.ended()
        else:
            await asyncio.wait({listening}, timeout=LAST_WORDS_SECONDS)
            listening.cancel()

    async def _listen(self) -> None:
        while piece := await self._child.read():
            self.log.write(piece)
