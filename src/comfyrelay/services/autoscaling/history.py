"""Completed jobs of a fleet, as input of policy simulations."""

from collections.abc import AsyncIterator
from datetime import timedelta

from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import history, observations
from comfyrelay.store.central.autoscaling.history import PastJobRow
from comfyrelay.store.central.queue import dispatches

AT_ONCE = 1000
MAX_ID = 2**63 - 1


class History:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def done(self, stage: Stage, slug: str, *, days: float) -> AsyncIterator[PastJobRow]:
        """Completed jobs of the fleet's workflows, newest first, one page per transaction."""
        before = MAX_ID
        while True:
            async with self._databases.central.read() as tx:
                fleet = await catalogue.fleet(tx, stage=stage, slug=slug)
                if fleet is None:
                    raise NotFound(f"There is no {stage} fleet {slug!r}.")
                workflows = (await observations.workflows_of(tx, [fleet.id])).get(fleet.id, set())
                page = await history.done(tx, stage, workflows, before=before, most=AT_ONCE)
                oldest = await dispatches.now(tx) - timedelta(days=days)
            for each in page:
                if each.created_at < oldest:
                    return
                yield each
            if len(page) < AT_ONCE:
                return
            before = page[-1].id
