"""The servers of a pool, each with a task that watches it."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.pool.events import ClientState, ClientStateChanged, PoolEvent, PoolReady
from comfyrelay.comfyui.pool.gpu_memory import ReportsMemory
from comfyrelay.comfyui.pool.member import Member, MemberTimings
from comfyrelay.errors import Conflict, NotFound

Servers = Iterable[str | ComfyServer] | Mapping[str, str | ComfyServer]


class Roster:
    def __init__(
        self,
        servers: Servers,
        *,
        timings: MemberTimings,
        emit: Callable[[PoolEvent], None],
        wake: Callable[[], None],
    ) -> None:
        self.ready = asyncio.Event()
        self._timings = timings
        self._emit = emit
        self._wake = wake
        self._members: dict[str, Member] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        named = servers.items() if isinstance(servers, Mapping) else ((None, each) for each in servers)
        for name, server in named:
            self.add(server, name=name)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    @property
    def ids(self) -> Collection[str]:
        return self._members.keys()

    @property
    def members(self) -> Collection[Member]:
        return self._members.values()

    def find(self, client_id: str | None) -> Member | None:
        return self._members.get(client_id or "")

    def add(
        self,
        server: str | ComfyServer,
        *,
        name: str | None = None,
        gpu: str | None = None,
        comfyui: ReportsMemory | None = None,
    ) -> Member:
        owned = isinstance(server, str)
        client_id = name or (server if isinstance(server, str) else server.url)
        if client_id in self._members:
            raise Conflict(f'The pool already has a server "{client_id}".')
        connected = ComfyClient(server) if isinstance(server, str) else server
        member = Member(
            client_id,
            connected,
            owned=owned,
            timings=self._timings,
            on_change=self._changed,
            gpu=gpu,
            comfyui=comfyui or (connected if isinstance(connected, ComfyClient) else None),
        )
        self._members[client_id] = member
        return member

    def watch(self, member: Member) -> None:
        self._watches[member.id] = asyncio.create_task(member.watch())

    def take_out(self, client_id: str) -> Member:
        """Give a server no more jobs. Call `dismiss` after its runs have ended."""
        member = self._members.pop(client_id, None)
        if member is None:
            raise NotFound(f'The pool has no server "{client_id}".')
        reason = "It was removed from the pool."
        self._emit(ClientStateChanged(client_id=client_id, state=ClientState.OFFLINE, reason=reason))
        return member

    async def dismiss(self, member: Member) -> None:
        watch = self._watches.pop(member.id, None)
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        if member.owned:
            await member.server.close()

    async def close(self) -> None:
        for member in self:
            await self.dismiss(member)

    def _changed(self, member: Member, reason: str | None) -> None:
        self._emit(ClientStateChanged(client_id=member.id, state=member.state, reason=reason))
        online = tuple(each.id for each in self if each.state is ClientState.ONLINE)
        if online and not self.ready.is_set() and all(each.tried for each in self):
            self.ready.set()
            self._emit(PoolReady(client_ids=online))
        self._wake()
