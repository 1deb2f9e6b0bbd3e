"""Read the completed jobs of a fleet, for the simulation of policies."""

from collections.abc import AsyncIterator
from datetime import timedelta

from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import NotFound
from comfyrelay.protocol.fields import MAX_ID
from comfyrelay.services.databases import Databases
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import history, observations
from comfyrelay.store.central.autoscaling.history import PastJobRow

BATCH_SIZE = 1000


class History:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def done(self, stage: Stage, slug: str, *, days: float) -> AsyncIterator[PastJobRow]:
        """Yield the completed jobs of the fleet's workflows, newest first. Each page is read in its own transaction."""
        before = MAX_ID
        while True:
            async with self._databases.central.read() as tx:
                fleet = await catalogue.fleet(tx, stage=stage, slug=slug)
                if fleet is None:
                    raise NotFound(f"There is no {stage} fleet {slug!r}.")
                workflows = (await observations.workflows_of(tx, [fleet.id])).get(fleet.id, set())
                page = await history.completed(tx, stage, workflows, before=before, limit=BATCH_SIZE)
                oldest = await tx.now() - timedelta(days=days)
            for job in page:
                if job.created_at < oldest:
                    return
                yield job
            if len(page) < BATCH_SIZE:
                return
            before = page[-1].id
