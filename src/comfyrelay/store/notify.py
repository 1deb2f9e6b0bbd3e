"""Notify other processes of new work, with PostgreSQL's LISTEN and NOTIFY.

Notifications are best-effort: they may be lost, repeated or early. Receivers check the database, and also poll it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import asyncpg
import structlog

from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

CHANNEL = "comfyrelay_work"
MESSAGES_CHANNEL = "comfyrelay_words"
# Maximum number of messages per NOTIFY. The payload is limited to 8,000 bytes; with ids of 50 characters, it has 7,650.
MAX_MESSAGES = 150
# At most 20 notifications per second and process, because NOTIFY takes a database-wide lock at commit.
DEBOUNCE_SECONDS = 0.05
RECONNECT_SECONDS = 1.0

Listener = Callable[[str], None]


class NotifyChannel:
    """Notifications within one process."""

    def __init__(self) -> None:
        self._wakeup = Wakeup()
        self._wakeups = [self._wakeup]
        self._listeners: list[Listener] = []

    async def notify(self) -> None:
        """Announce new work. Call this method after the commit."""
        self._wake()

    async def wait(self, timeout_seconds: float) -> bool:
        """Wait for a notification; false after the timeout."""
        return await self._wakeup.wait(timeout_seconds)

    def subscribe(self) -> Wakeup:
        """Return a separate wakeup, so that several waiters do not consume each other's notifications."""
        wakeup = Wakeup()
        self._wakeups.append(wakeup)
        return wakeup

    def publish(self, message: str) -> None:
        """Send a message without spaces, such as an id, to all processes, this one first. The message may be lost."""
        self._call_listeners([message])

    def on_message(self, listener: Listener) -> None:
        """Call the listener with each published message. Some messages arrive twice."""
        self._listeners.append(listener)

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None

    def _wake(self) -> None:
        for wakeup in self._wakeups:
            wakeup.notify()

    def _call_listeners(self, messages: Iterable[str]) -> None:
        for message in messages:
            for listener in self._listeners:
                listener(message)


class PostgresNotifyChannel(NotifyChannel):
    """Notifications between processes that share a PostgreSQL database.

    Each process has one listening connection. The connection must reach the server directly, because LISTEN does not
    work through a transaction pooler.
    """

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self._connection: asyncpg.Connection | None = None
        self._listener: asyncio.Task[None] | None = None
        self._sender: asyncio.Task[None] | None = None
        self._unsent = False
        # A dict, so that a message that was published several times is sent only once.
        self._unpublished: dict[str, None] = {}
        self._lost = asyncio.Event()
        self.listening = asyncio.Event()

    async def start(self) -> None:
        if self._listener is None:
            self._listener = asyncio.create_task(self._keep_listening())

    async def stop(self) -> None:
        for task in (self._sender, self._listener):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._sender = self._listener = None
        await self._disconnect()

    async def notify(self) -> None:
        """Wake this process at once, and the others within the debounce time."""
        await super().notify()
        self._unsent = True
        self._send_soon()

    def publish(self, message: str) -> None:
        super().publish(message)
        self._unpublished[message] = None
        self._send_soon()

    def _send_soon(self) -> None:
        if self._listener is not None and self._sender is None:
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        """Send what was announced during the wait. As it follows all the commits, one NOTIFY is enough."""
        try:
            while self._unsent or self._unpublished:
                await asyncio.sleep(DEBOUNCE_SECONDS)
                is_work, self._unsent = self._unsent, False
                messages = [self._unpublished.popitem()[0] for _ in range(min(len(self._unpublished), MAX_MESSAGES))]
                if self._connection is None:
                    continue
                if is_work:
                    await self._connection.execute("SELECT pg_notify($1, '')", CHANNEL)
                if messages:
                    await self._connection.execute("SELECT pg_notify($1, $2)", MESSAGES_CHANNEL, " ".join(messages))
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            # The other processes find the work at their next tick.
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
        await connection.add_listener(CHANNEL, lambda *_: self._wake())
        await connection.add_listener(MESSAGES_CHANNEL, lambda *event: self._call_listeners(event[-1].split()))
        # Wake up once, for announcements from before the connection was open.
        self._wake()
        self.listening.set()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=2)
