"""The reaper ends leases whose workers fell silent, and dispatches that nobody may lease any more."""

from datetime import datetime

import structlog

from comfyrelay.domain import lifecycle
from comfyrelay.domain.lifecycle import Dispatch, Move
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.decisions import Decisions
from comfyrelay.services.steps import Step
from comfyrelay.store.central import dispatches

log = structlog.get_logger(__name__)

AT_ONCE = 500


class Reaper:
    def __init__(self, databases: Databases, decisions: Decisions) -> None:
        self._databases = databases
        self._decisions = decisions

    async def run_once(self) -> int:
        """Reap until nothing is due; returns how many dispatches were moved."""
        reaped = 0
        while True:
            async with self._databases.central.read() as tx:
                due = [
                    *await dispatches.expired(tx, limit=AT_ONCE),
                    *await dispatches.exhausted(tx, limit=AT_ONCE),
                ]
            moved = await self._reap(due) if due else 0
            reaped += moved
            if moved < AT_ONCE:
                return reaped

    async def _reap(self, due: list[int]) -> int:
        # Finding and reaping are two steps: a heartbeat may have come in between, so each is judged once more.
        decided = await self._decisions.decide(Step.REAP, due, _judge, by="reap")
        if decided.moves:
            log.info("reaper.reaped", count=len(decided.moves))
        return len(decided.moves)


def _judge(dispatch: Dispatch, now: datetime) -> Move | None:
    return lifecycle.expire(dispatch, now=now) or lifecycle.exhaust(dispatch, now=now)
