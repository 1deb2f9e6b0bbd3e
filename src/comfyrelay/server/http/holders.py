"""Holders of the connections of a server, and the number that each may hold.

A connection counts for the address that it comes from, and after authentication for its user, too. A signed URL counts
for its address and its tenant. A worker's connection counts for the worker only, and the signed URL of a lease for its
tenant only, because all workers of a site may share one address. A trusted proxy forwards the requests of many callers,
so its connections count only while they serve a request.
"""

from collections.abc import Hashable, Iterable
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from starlette.types import Scope

from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.errors import TooManyRequests
from comfyrelay.settings import Settings

STATE_KEY = "comfyrelay.connection"
# The limits are lowered to a share of all connections, but not below the number that one browser with a few pages
# needs.
MIN_LIMIT = 16
# Each slot of a worker parks one heartbeat, and sends its reports on a second connection.
CONNECTIONS_PER_SLOT = 2
RETRY_SECONDS = 10.0

C = TypeVar("C", bound=Hashable)


class HolderKind(StrEnum):
    ADDRESS = "address"
    TENANT = "tenant"
    TENANT_WORKERS = "tenant_workers"
    USER = "user"
    WORKER = "worker"


class Holder(NamedTuple):
    kind: HolderKind
    name: str


class HeldConnection(Protocol):
    def hold(self, holder: Holder, *, slots: int) -> int | None:
        """Count the connection for a holder. Return the limit if the holder has too many connections."""


def hold_connection(scope: Scope, kind: HolderKind, name: str, *, slots: int = 0) -> None:
    """Count the connection of a request for its caller. Raises `TooManyRequests` over the limit."""
    state: dict[str, Any] = scope.get("state", {})
    connection: HeldConnection | None = state.get(STATE_KEY)
    limit = connection.hold(Holder(kind, name), slots=slots) if connection is not None else None
    if limit is not None:
        raise too_many_connections(kind, limit)


def too_many_connections(kind: HolderKind, limit: int) -> TooManyRequests:
    holder, setting = {
        HolderKind.ADDRESS: ("Your address has", "max_connections_per_address"),
        HolderKind.TENANT: ("The files of this account have", "max_connections_per_address"),
        HolderKind.TENANT_WORKERS: ("The jobs of this account have", "max_connections_per_address"),
        HolderKind.USER: ("You have", "max_connections_per_caller"),
        HolderKind.WORKER: ("This worker has", "max_connections_per_caller"),
    }[kind]
    return TooManyRequests(
        f"{holder} {limit} open connections to this server, which is the limit ({ENV_PREFIX}{setting.upper()}). Close "
        "some of them, and try again.",
        retry_after_seconds=RETRY_SECONDS,
    )


class Holders(Generic[C]):
    """The connections of each holder, with the longest unused one first."""

    def __init__(self, settings: Settings, *, max_connections: int) -> None:
        self._per_address = min(settings.max_connections_per_address, max(MIN_LIMIT, max_connections // 2))
        self._per_caller = min(settings.max_connections_per_caller, max(MIN_LIMIT, max_connections // 4))
        self._connections: dict[Holder, dict[C, None]] = {}
        self._holders: dict[C, tuple[Holder, ...]] = {}

    def limit(self, holder: Holder, *, slots: int = 0) -> int:
        if holder.kind in (HolderKind.USER, HolderKind.WORKER):
            return self._per_caller + CONNECTIONS_PER_SLOT * slots
        return self._per_address

    def connections_of(self, holder: Holder) -> Iterable[C]:
        return self._connections.get(holder, {})

    def count(self, holder: Holder) -> int:
        return len(self._connections.get(holder, ()))

    def holders_of(self, connection: C) -> tuple[Holder, ...]:
        return self._holders.get(connection, ())

    def assign(self, connection: C, holders: tuple[Holder, ...]) -> None:
        """Count a connection for exactly these holders, as their newest connection."""
        for holder in self._holders.pop(connection, ()):
            del self._connections[holder][connection]
            if not self._connections[holder]:
                del self._connections[holder]
        for holder in holders:
            self._connections.setdefault(holder, {})[connection] = None
        if holders:
            self._holders[connection] = holders
