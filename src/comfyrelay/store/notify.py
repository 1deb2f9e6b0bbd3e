"""How waiting pollers learn of new work.

A wake-up is a wakeup: it may be lost, doubled or early. Whoever waits looks for itself, and a tick stands behind it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Protocol

import asyncpg
import structlog

from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

CHANNEL = "comfyrelay_work"
WORDS_CHANNEL = "comfyrelay_words"
# PostgreSQL takes less than 8,000 bytes at once: so many words of 50 letters are 7,650.
MOST_WORDS = 150
# At most 20 notifications a second from one process: NOTIFY takes a lock of the whole database at commit.
DEBOUNCE_SECONDS = 0.05
RECONNECT_SECONDS = 1.0


Listener = Callable[[str], None]


class NotifyChannel(Protocol):
    async def notify(self) -> None:
        """There may be new work. Called after the commit that made it."""

    async def wait(self, timeout_seconds: float) -> bool:
        """Wait for a wakeup; false when none came in time."""

    def subscribe(self) -> Wakeup:
        """A wakeup of one's own, given whenever `wait` is: what another takes is not taken from whoever has it."""

    def publish(self, word: str) -> None:
        """Say a word without blanks, such as an id, to every process, this one first. It may be lost."""

    def on_word(self, listener: Listener) -> None:
        """Call this with each word that is said; some come twice."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class LocalNotifyChannel:
    """For one process."""

    def __init__(self) -> None:
        self._wakeup = Wakeup()
        self._subscribed: list[Wakeup] = []
        self._listeners: list[Listener] = []

    async def notify(self) -> None:
        self._give()

    def publish(self, word: str) -> None:
        self._call_listeners([word])

    def on_word(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def _call_listeners(self, words: Iterable[str]) -> None:
        for word in words:
            for listener in self._listeners:
                listener(word)

    def subscribe(self) -> Wakeup:
        wakeup = Wakeup()
        self._subscribed.append(wakeup)
        return wakeup

    def _give(self) -> None:
        for each in (self._wakeup, *self._subscribed):
            each.notify()

    async def wait(self, timeout_seconds: float) -> bool:
        return await self._wakeup.wait(timeout_seconds)

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None


class PostgresNotifyChannel(LocalNotifyChannel):
    """For several processes on one PostgreSQL: `NOTIFY` after commit, and one listening connection a process.

    The connection is outside the shard and goes straight to the server: LISTEN does not survive a transaction pooler.
    """

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self._connection: asyncpg.Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._sender: asyncio.Task[None] | None = None
        self._unsent = False
        # by when they were said
        self._unpublished: dict[str, None] = {}
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
        self._send_soon()

    def publish(self, word: str) -> None:
        super().publish(word)
        self._unpublished[word] = None
        self._send_soon()

    def _send_soon(self) -> None:
        if self._keeper is not None and self._sender is None:
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        """What is announced while this waits is covered by what it sends: that comes after their commits too."""
        try:
            while self._unsent or self._unpublished:
                await asyncio.sleep(DEBOUNCE_SECONDS)
                is_work, self._unsent = self._unsent, False
                words = [self._unpublished.popitem()[0] for _ in range(min(len(self._unpublished), MOST_WORDS))]
                if self._connection is None:
                    continue
                if is_work:
                    await self._connection.execute("SELECT pg_notify($1, '')", CHANNEL)
                if words:
                    await self._connection.execute("SELECT pg_notify($1, $2)", WORDS_CHANNEL, " ".join(words))
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            # The others find the work at their next tick.
            log.info("notify_channel.notify_failed")
        finally:
            self._sender = None

    async def _keep_listening(self) -> None:
        while True:
            self._lost.clear()
            try:
                await self._listen()
                await self._lost.wait()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.warning("notify_channel.listen_failed", error=str(error))
            self.listening.clear()
            await self._disconnect()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self) -> None:
        connection = await asyncpg.connect(self._dsn, timeout=5)
        self._connection = connection
        connection.add_termination_listener(lambda *_: self._lost.set())
        await connection.add_listener(CHANNEL, lambda *_: self._give())
        await connection.add_listener(WORDS_CHANNEL, lambda *heard: self._call_listeners(heard[-1].split()))
        # Look once: whatever was announced while nobody listened is found this way.
        self._give()
        self.listening.set()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=2)
