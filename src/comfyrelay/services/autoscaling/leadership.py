"""Leader election with a lease on a database row.

Only the database's clock counts. Each leader has a term, and every transaction of a leader checks the term first. A
leader that was suspended and replaced therefore cannot change anything.
"""

import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from comfyrelay.domain.autoscaling.machines import Leader
from comfyrelay.errors import LeadershipLost
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.autoscaling import leaders
from comfyrelay.store.database import Tx

T = TypeVar("T")

log = structlog.get_logger(__name__)

TTL_SECONDS = 10.0


class Leadership:
    def __init__(
        self, databases: Databases, name: str, *, ttl_seconds: float | None = None, holder: str | None = None
    ) -> None:
        self._databases = databases
        self.name = name
        self.ttl_seconds = TTL_SECONDS if ttl_seconds is None else ttl_seconds
        # Unique for each start of a process.
        self.holder = holder or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._leader: Leader | None = None
        self._until = 0.0

    @property
    def renew_seconds(self) -> float:
        """The interval between claims."""
        return self.ttl_seconds / 3

    @property
    def leader(self) -> Leader | None:
        """The current term, as far as this process knows. `run` checks it."""
        return self._leader if time.monotonic() < self._until else None

    async def claim(self) -> Leader | None:
        """Take or renew leadership. Return `None` while another process leads."""
        began = time.monotonic()
        before = self._leader
        found = await self._databases.central.run(
            TransactionStep.LEAD, lambda tx: leaders.claim(tx, self.name, self.holder, seconds=self.ttl_seconds)
        )
        self._leader, self._until = found, began + self.ttl_seconds
        if (found and found.term) != (before and before.term):
            log.info("leadership.changed", name=self.name, leads=found is not None, term=found and found.term)
        return found

    async def run(self, step: TransactionStep, work: Callable[[Tx], Awaitable[T]]) -> T:
        """Run a transaction that only the leader may run. Raises `LeadershipLost`."""
        leader = self.leader
        if leader is None:
            raise LeadershipLost

        async def fenced(tx: Tx) -> T:
            if not await leaders.holds(tx, leader):
                self._leader = None
                raise LeadershipLost
            return await work(tx)

        return await self._databases.central.run(step, fenced)

    async def resign(self) -> None:
        """Give up leadership, so that another process can take over at once.

        Resigns by name and not by term, because a canceled claim may have started a new term.
        """
        self._leader = None
        await self._databases.central.run(TransactionStep.LEAD, lambda tx: leaders.resign(tx, self.name, self.holder))

    async def current(self) -> Leader | None:
        """Return the current leader."""
        async with self._databases.central.read() as tx:
            return await leaders.current(tx, self.name)
