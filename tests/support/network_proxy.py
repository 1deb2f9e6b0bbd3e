"""A TCP proxy in the event loop of the test, which can cut, hold and slow down connections."""

import asyncio
import contextlib
import re
from asyncio import StreamReader, StreamWriter
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.support.world import PATIENCE_SECONDS

PIECE_BYTES = 64 * 1024
# The end of a multipart request from httpx.
END_OF_FORM = b"--\r\n"
_REQUEST = re.compile(rb"([A-Z]+ \S+) HTTP/1\.1\r\n")

_ERROR = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Proxy:
    """Forward connections to one target, which may be unreachable at times."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._open: set[StreamWriter] = set()
        # client data with this prefix or suffix is held
        self._held_prefix: bytes | None = None
        self._held_suffix = b""
        self._released = asyncio.Event()
        self._refused_prefix: bytes | None = None
        self._lost_prefix = b""
        self._answers_to_lose = 0
        self._news = asyncio.Condition()
        self.held = 0
        # all requests as `GET /path?query`, whether forwarded or not
        self.requests: list[str] = []
        self.delay_seconds = 0.0
        self.bytes_per_second: float | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        await self.restore()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def cut(self) -> None:
        """Close all connections and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()

    async def restore(self) -> None:
        """Accept and forward everything again."""
        self.release()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    def hold(self, prefix: bytes = b"", *, suffix: bytes = b"") -> None:
        """Hold requests with this prefix (`PUT /files/`) and everything after them, or chunks with this suffix.

        Without either, the proxy is a black hole: it accepts connections and never responds.
        """
        self._held_prefix = prefix
        self._held_suffix = suffix
        self._released.clear()

    def refuse(self, prefix: bytes) -> None:
        """Answer requests with this prefix with a 500."""
        self._refused_prefix = prefix

    def lose_answers(self, prefix: bytes, count: int = 1) -> None:
        """Forward the next requests with this prefix, but close the connection instead of responding."""
        self._lost_prefix, self._answers_to_lose = prefix, count

    def release(self) -> None:
        """Forward held requests, and stop holding and refusing."""
        self._refused_prefix = None
        self._held_prefix = None
        self._released.set()

    async def until_held(self, count: int = 1) -> None:
        """Wait until `count` requests are held."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._news:
            await self._news.wait_for(lambda: self.held >= count)

    def asked(self, prefix: str) -> int:
        """Return the number of requests with this prefix."""
        return sum(request.startswith(prefix) for request in self.requests)

    async def until_asked(self, prefix: str, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), self._news:
            await self._news.wait_for(lambda: self.asked(prefix) >= count)

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._connect(reader, writer)
        finally:
            self._connections.discard(task)

    async def _connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            target_reader, target_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, target_writer}
        lost = asyncio.Event()
        self._open |= both
        try:
            if self._server is None:
                # the connection was cut in the meantime
                return
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, target_writer, back=writer, lost=lost))
                group.create_task(self._pump(target_reader, writer, lost=lost))
        finally:
            self._open -= both
            for connection in both:
                connection.transport.abort()

    async def _pump(
        self, reader: StreamReader, writer: StreamWriter, *, lost: asyncio.Event, back: StreamWriter | None = None
    ) -> None:
        """Forward one direction; for requests, `back` leads to the client, and `lost` drops the next response."""
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                if back is None and lost.is_set():
                    writer.transport.abort()
                    return
                if back is not None and self._answers_to_lose and piece.startswith(self._lost_prefix):
                    self._answers_to_lose -= 1
                    lost.set()
                if back is not None:
                    await self._look(piece)
                    if self._refused_prefix is not None and piece.startswith(self._refused_prefix):
                        back.write(_ERROR)
                        # until the client disconnects
                        while await reader.read(PIECE_BYTES):
                            pass
                        break
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                if self.bytes_per_second is not None:
                    await asyncio.sleep(len(piece) / self.bytes_per_second)
                writer.write(piece)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()

    async def _look(self, piece: bytes) -> None:
        if request := _REQUEST.match(piece):
            self.requests.append(request[1].decode())
            await self._tell(0)
        prefix = self._held_prefix
        if prefix is not None and piece.startswith(prefix) and piece.endswith(self._held_suffix):
            await self._wait()

    async def _wait(self) -> None:
        await self._tell(+1)
        try:
            await self._released.wait()
        finally:
            await self._tell(-1)

    async def _tell(self, change: int) -> None:
        async with self._news:
            self.held += change
            self._news.notify_all()
