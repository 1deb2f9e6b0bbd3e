"""Workflows that wait for nodes that no worker has: each is read as soon as its nodes are there."""

import structlog

from comfyrelay.errors import Conflict
from comfyrelay.services.catalogue.node_definitions import NodeDefinitionService
from comfyrelay.services.catalogue.own_workflows import OwnWorkflows
from comfyrelay.services.databases import Databases
from comfyrelay.store.central import library
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

AT_ONCE = 100
# A wakeup comes to one process, which may end before it has followed it.
LOOK_SECONDS = 60.0


class WaitingWorkflows:
    def __init__(
        self, databases: Databases, definitions: NodeDefinitionService, own: OwnWorkflows, *, wakeup: Wakeup
    ) -> None:
        """`wakeup` comes when a worker has brought definitions."""
        self._databases = databases
        self._definitions = definitions
        self._own = own
        self._wakeup = wakeup

    async def follow(self) -> None:
        await self.run_once()
        await self._wakeup.wait(LOOK_SECONDS)

    async def run_once(self) -> int:
        """Read what can be read by now; returns how many that were."""
        done, after = 0, 0
        while True:
            async with self._databases.central.read() as tx:
                found = await library.waiting(tx, after_id=after, limit=AT_ONCE)
            if not found:
                return done
            after = found[-1].id
            known, _ = await self._definitions.known()
            for each in found:
                waiting = each.waits_for
                # reading costs: where none of its nodes has come, nothing has changed
                if waiting is not None and known is not None and not known.keys().isdisjoint(waiting.node_types):
                    try:
                        done += await self._own.read_waiting(each)
                    except Conflict:
                        log.info("waiting.changed", workflow=each.slug)
