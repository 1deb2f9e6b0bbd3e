"""Open WebSockets by client id, and message routing."""

import asyncio
import json
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientConnectionResetError, WSMsgType, web

_PREVIEW = 1
_PREVIEW_WITH_METADATA = 4
_FORMATS = {"image/jpeg": 1, "image/png": 2}


@dataclass(kw_only=True, slots=True, eq=False)
class Socket:
    request: web.Request
    response: web.WebSocketResponse
    flags: dict[str, Any] = field(default_factory=dict)
    is_silent: bool = False

    async def send(self, message: str | bytes) -> None:
        if self.is_silent:
            return
        try:
            if isinstance(message, bytes):
                await self.response.send_bytes(message)
            else:
                await self.response.send_str(message)
        except (ClientConnectionResetError, ConnectionError):
            # The peer has disconnected, which its handler will notice.
            return


class Sockets:
    def __init__(self, *, features: dict[str, Any]) -> None:
        self._features = features
        self._by_client: dict[str, Socket] = {}
        # Includes sockets whose client id was taken over by another socket.
        self._open: set[Socket] = set()
        self._outbox: asyncio.Queue[tuple[str | bytes, str | None]] = asyncio.Queue()
        self._observers: dict[str, Callable[[str, dict[str, Any]], None]] = {}

    def observe(self, client_id: str, observer: Callable[[str, dict[str, Any]], None]) -> None:
        """Call `observer` with each message to this client, which has no socket. Images are sent as `preview`."""
        self._observers[client_id] = observer

    def post(self, kind: str, data: dict[str, Any], client_id: str | None) -> None:
        """Send a message to the client's socket, or to all sockets. Without a socket, the message is dropped."""
        if (observer := self._observers.get(client_id or "")) is not None:
            observer(kind, data)
        self._outbox.put_nowait((_text(kind, data), client_id))

    def post_preview(self, image: bytes, metadata: dict[str, Any], client_id: str | None, *, described: bool) -> None:
        """Send an image to the sockets that want metadata (`described`), or to the other sockets."""
        if described and (observer := self._observers.get(client_id or "")) is not None:
            observer("preview", {**metadata, "image": image})
        for receiver in list(self._by_client) if client_id is None else [client_id]:
            socket = self._by_client.get(receiver)
            if socket is not None and bool(socket.flags.get("supports_preview_metadata")) is described:
                self._outbox.put_nowait((_preview(image, metadata, described=described), receiver))

    async def publish(self) -> None:
        """Send queued messages in order, until cancelled."""
        while True:
            message, client_id = await self._outbox.get()
            receivers = [*self._by_client.values()] if client_id is None else [self._by_client.get(client_id)]
            for socket in receivers:
                if socket is not None:
                    await socket.send(message)

    async def serve(self, request: web.Request, *, status: dict[str, Any], running: tuple[str, str] | None) -> Socket:
        """Serve one connection. `running` is the client and node of the running prompt."""
        response = web.WebSocketResponse()
        await response.prepare(request)
        client_id = request.query.get("clientId") or uuid.uuid4().hex
        socket = Socket(request=request, response=response)
        self._by_client[client_id] = socket
        self._open.add(socket)
        try:
            await socket.send(_text("status", {"status": status, "sid": client_id}))
            if running is not None and running[0] == client_id:
                await socket.send(_text("executing", {"node": running[1]}))
            await self._listen(socket)
        finally:
            # ComfyUI removes the id even if another socket has taken it over, which silences a reconnected client.
            self._by_client.pop(client_id, None)
            self._open.discard(socket)
        return socket

    async def _listen(self, socket: Socket) -> None:
        is_first = True
        async for message in socket.response:
            if message.type is not WSMsgType.TEXT:
                continue
            try:
                body = json.loads(message.data)
            except ValueError:
                continue
            if is_first and isinstance(body, dict) and body.get("type") == "feature_flags":
                socket.flags = body.get("data") or {}
                await socket.send(_text("feature_flags", self._features))
            is_first = False

    @property
    def clients(self) -> list[str]:
        return list(self._by_client)

    def drop(self) -> None:
        """Drop every connection without a close frame."""
        for socket in self._open:
            if socket.request.transport is not None:
                socket.request.transport.abort()

    def silence(self) -> None:
        """Keep every socket open but silent."""
        for socket in self._open:
            socket.is_silent = True


def _text(kind: str, data: dict[str, Any]) -> str:
    return json.dumps({"type": kind, "data": data})


def _preview(image: bytes, metadata: dict[str, Any], *, described: bool) -> bytes:
    if described:
        about = json.dumps(metadata).encode()
        return struct.pack(">II", _PREVIEW_WITH_METADATA, len(about)) + about + image
    return struct.pack(">II", _PREVIEW, _FORMATS[metadata["image_type"]]) + image
