"""How waiting pollers learn of new work.

A wake-up is a hint: it may be lost, doubled or early. Whoever waits looks for itself, and a tick stands behind it.
"""

import asyncio
import contextlib
from typing import Protocol

import asyncpg
import structlog

from comfyrelay.hint import Hint

log = structlog.get_logger(__name__)

CHANNEL = "comfyrelay_work"
# At most 20 notifications a second from one process: NOTIFY takes a lock of the whole database at commit.
DEBOUNCE_SECONDS = 0.05
RECONNECT_SECONDS = 1.0


class Wakeup(Protocol):
    async def notify(self) -> None:
        """There may be new work. Called after the commit that made it."""

    async def wait(self, timeout_seconds: float) -> bool:
        """Wait for a hint; false when none came in time."""

    def subscribe(self) -> Hint:
        """A hint of one's own, given whenever `wait` is: what another takes is not taken from whoever has it."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class LocalWakeup:
    """For one process."""

    def __init__(self) -> None:
        self._hint = Hint()
        self._subscribed: list[Hint] = []

    async def notify(self) -> None:
        self._give()

    def subscribe(self) -> Hint:
        hint = Hint()
        self._subscribed.append(hint)
        return hint

    def _give(self) -> None:
        for each in (self._hint, *self._subscribed):
            each.give()

    async def wait(self, timeout_seconds: float) -> bool:
        return await self._hint.wait(timeout_seconds)

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None


class PostgresWakeup(LocalWakeup):
    """For several processes on one PostgreSQL: `NOTIFY` after commit, and one listening connection a process.

    The connection is outside the pool and goes straight to the server: LISTEN does not survive a transaction pooler.
    """

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self._connection: asyncpg.Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._sender: asyncio.Task[None] | None = None
        self._unsent = False
        self._lost = asyncio.Event()
        self.listening = asyncio.Event()

    async def start(self) -> None:
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_listening())

    async def stop(self) -> None:
        for task in (self._sender, self._keeper):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._sender = self._keeper = None
        await self._disconnect()

    async def notify(self) -> None:
        """Wake this process at once, the others within the debounce."""
        await super().notify()
        self._unsent = True
        if self._keeper is not None and self._sender is None:
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        """What is announced while this waits is covered by what it sends: that comes after their commits too."""
        try:
            while self._unsent:
                await asyncio.sleep(DEBOUNCE_SECONDS)
                self._unsent = False
                if self._connection is not None:
                    await self._connection.execute("SELECT pg_notify($1, '')", CHANNEL)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            # The others find the work at their next tick.
            log.info("wakeup.notify_failed")
        finally:
            self._sender = None

    async def _keep_listening(self) -> None:
        while True:
            self._lost.clear()
            try:
                await self._listen()
                await self._lost.wait()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.warning("wakeup.listen_failed", error=str(error))
            self.listening.clear()
            await self._disconnect()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self) -> None:
        connection = await asyncpg.connect(self._dsn, timeout=5)
        self._connection = connection
        connection.add_termination_listener(lambda *_: self._lost.set())
        await connection.add_listener(CHANNEL, lambda *_: self._give())
        # Look once: whatever was announced while nobody listened is found this way.
        self._give()
        self.listening.set()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=2)
