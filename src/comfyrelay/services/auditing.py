"""Record the changes that people make, and refuse a change if the object has changed since the person read it.

A route or a command opens a scope. While it is open, each transaction of the central database reads the object before
and after, and writes the entry. A change in a shard cannot share a transaction with its entry: the entry is written
first, marked as not done, and completed afterwards.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from comfyrelay.domain.records.operations import AuditFilter, AuditLogEntry, NewAuditLogEntry
from comfyrelay.errors import ChangedMeanwhile
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import ResultPage
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import audit_log
from comfyrelay.store.central.audit_log import Snapshot
from comfyrelay.store.database import Tx

T = TypeVar("T")
Work = Callable[[Tx], Awaitable[Any]]
Run = Callable[[Work], Awaitable[Any]]
_current: ContextVar["ChangeScope | None"] = ContextVar("audit_scope", default=None)


@dataclass
class ChangeScope:
    """One request or command of a person. `kind` and `keys` identify the object, if snapshots of it exist."""

    entry: NewAuditLogEntry
    kind: str | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    # The version of the object that the person has seen. If `None`, no change is refused.
    expected: str | None = None
    # Returns the values to record if there is no snapshot.
    request: Callable[[], dict[str, Any] | None] = lambda: None
    # The keys of an object that was created in the scope.
    created: Mapping[str, Any] | None = None
    entry_id: int | None = None
    # The whole object before the first change.
    first: Snapshot | None = None
    has_changed: bool = False
    is_closed: bool = False
    # The outcome of the change, such as the refunded amounts. It is part of the entry.
    results: dict[str, list[Any]] = field(default_factory=dict)

    async def read(self, tx: Tx, *, lock: bool = False) -> Snapshot | None:
        if self.kind is None or not self.keys:
            return None
        return await audit_log.snapshot(tx, self.kind, self.keys, lock=lock)

    def check(self, before: Snapshot | None) -> None:
        """Raise `ChangedMeanwhile` if the person has seen another version. After a change in this scope, nothing is
        checked."""
        if self.expected is not None and not self.has_changed and audit_log.etag(before) != self.expected:
            raise ChangedMeanwhile

    def described(self, after: Snapshot | None, *, is_done: bool) -> NewAuditLogEntry:
        if self.first is None and after is None:
            return replace(self.entry, after=self.shown_request, is_done=is_done)
        old, new = _difference(self.first, after)
        if (old, new) == ({}, {}):
            old, new = None, self.shown_request
        old, new = audit_log.without_secrets(old), audit_log.without_secrets(new)
        return replace(self.entry, before=old, after=new, is_done=is_done)

    @property
    def shown_request(self) -> dict[str, Any] | None:
        shown: dict[str, Any] | None = audit_log.without_secrets(self.request())
        return {**(shown or {}), **self.results} or None


class AuditLog:
    def __init__(self, databases: Databases) -> None:
        self._central = databases.central
        databases.central.around = self._around_central
        for shard in databases.shards.values():
            shard.around = self._around_shard

    @contextmanager
    def scope(self, scope: ChangeScope) -> Iterator[ChangeScope]:
        """Record the changes inside the block."""
        token = _current.set(scope)
        try:
            yield scope
        finally:
            # Tasks that were started inside the block must not record their own changes.
            scope.is_closed = True
            _current.reset(token)

    async def version(self, kind: str, keys: Mapping[str, Any]) -> str | None:
        """Return the version of an object."""
        async with self._central.read() as tx:
            return audit_log.etag(await audit_log.snapshot(tx, kind, keys))

    async def finish(self, scope: ChangeScope, *, created: Mapping[str, Any] | None = None) -> str | None:
        """Complete the entry of a successful change, and return the object's new version. `created` are the keys of a
        new object."""
        if created is not None:
            scope.keys = created
            scope.entry = replace(scope.entry, subject=subject_of(scope.kind or "", created))

        async def work(tx: Tx) -> Snapshot | None:
            after = await scope.read(tx)
            described = scope.described(after, is_done=True)
            if scope.entry_id is None:
                await audit_log.record(tx, described)
            else:
                await audit_log.complete(tx, scope.entry_id, described)
            return after

        scope.is_closed = True
        if scope.entry_id is not None and created is None and not scope.results:
            # The transaction of the change has already completed the entry.
            async with self._central.read() as tx:
                return audit_log.etag(await scope.read(tx))
        return audit_log.etag(await self._central.run(TransactionStep.AUDIT, work))

    @asynccontextmanager
    async def command(
        self, name: str, kind: str, keys: Mapping[str, Any], *, user: str, host: str
    ) -> AsyncIterator[ChangeScope]:
        """Record the changes inside the block as changes by a command, which `user` runs on the machine `host`. A
        command that creates an object sets `created`."""
        named = keys_of(kind, keys)
        entry = NewAuditLogEntry(
            actor_id=None, actor=f"{user} (command)", address=host, action=name, subject=subject_of(kind, keys)
        )
        scope = ChangeScope(entry=entry, kind=kind if keys_of(kind) is not None else None, keys=named or {})
        with self.scope(scope):
            yield scope
            await self.finish(scope, created=scope.created)

    async def page(self, wanted: AuditFilter, *, cursor: int | None = None, limit: int) -> ResultPage[AuditLogEntry]:
        async with self._central.read() as tx:
            found, before = await audit_log.page(tx, wanted, before_id=cursor, limit=limit)
        return ResultPage(items=found, next_cursor=None if before is None else str(before))

    async def _around_central(self, run: Run, work: Work) -> Any:
        scope = _open_scope()
        if scope is None:
            return await run(work)

        async def audited(tx: Tx) -> tuple[Any, int, Snapshot | None, bool]:
            before = await scope.read(tx, lock=True)
            scope.check(before)
            result = await work(tx)
            after = await scope.read(tx)
            first = before if scope.entry_id is None else scope.first
            described = replace(scope, first=first).described(after, is_done=True)
            if scope.entry_id is None:
                entry_id = await audit_log.record(tx, described)
            else:
                entry_id = scope.entry_id
                await audit_log.complete(tx, entry_id, described)
            return result, entry_id, first, before != after

        result, scope.entry_id, scope.first, has_changed = await run(audited)
        scope.has_changed = scope.has_changed or has_changed
        return result

    async def _around_shard(self, run: Run, work: Work) -> Any:
        scope = _open_scope()
        if scope is None or scope.entry_id is not None:
            return await run(work)
        # The entry is in another database, so it is written first: no change is without an entry.
        planned = replace(scope.entry, after=scope.shown_request, is_done=False)
        entry_id = await self._write(lambda tx: audit_log.record(tx, planned))
        try:
            result = await run(work)
        except BaseException:
            await self._write(lambda tx: audit_log.remove(tx, entry_id))
            raise
        scope.entry_id = entry_id
        await self._write(lambda tx: audit_log.complete(tx, entry_id, replace(planned, is_done=True)))
        return result

    async def _write(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        token = _current.set(None)
        try:
            return await self._central.run(TransactionStep.AUDIT, work)
        finally:
            _current.reset(token)


def add_result(name: str, result: Any) -> None:
    """Add a result to the audit entry of the change that is in progress, if any."""
    scope = _open_scope()
    if scope is not None:
        scope.results.setdefault(name, []).append(result)


def keys_of(kind: str, given: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the keys of an object of this kind. `given` contains them by name or by column. Returns `None` if the kind
    has no snapshots or a key is missing."""
    if kind not in audit_log.KINDS:
        return None
    names = audit_log.KINDS[kind].keys
    if given is None:
        return {}
    keys = {name: given.get(name, given.get(column)) for name, column in names.items()}
    return None if None in keys.values() else keys


def subject_of(kind: str, keys: Mapping[str, Any]) -> str:
    return "/".join([kind, *(str(value) for value in keys.values())])


def _open_scope() -> ChangeScope | None:
    scope = _current.get()
    return None if scope is None or scope.is_closed else scope


def _set_fields(found: Snapshot | None) -> Snapshot | None:
    return None if found is None else {name: value for name, value in found.items() if value is not None}


def _difference(before: Snapshot | None, after: Snapshot | None) -> tuple[Snapshot | None, Snapshot | None]:
    """Return only the fields that differ."""
    if before is None or after is None:
        return _set_fields(before), _set_fields(after)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: before.get(name) for name in names}, {name: after.get(name) for name in names}
