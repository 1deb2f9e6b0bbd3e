"""Import pending workflows when workers have their nodes."""

import structlog

from comfyrelay.errors import Conflict
from comfyrelay.services.catalogue.node_definitions import NodeDefinitionService
from comfyrelay.services.catalogue.own_workflows import OwnWorkflows
from comfyrelay.services.databases import Databases
from comfyrelay.store.central import library
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

PAGE_SIZE = 100
# Workflows are also imported at this interval, because a wakeup reaches only one process, which may exit before the
# import.
POLL_SECONDS = 60.0


class PendingWorkflows:
    def __init__(
        self, databases: Databases, definitions: NodeDefinitionService, own: OwnWorkflows, *, wakeup: Wakeup
    ) -> None:
        """`wakeup` is notified when a worker reports new definitions."""
        self._databases = databases
        self._definitions = definitions
        self._own = own
        self._wakeup = wakeup

    async def run_and_wait(self) -> None:
        await self.run_once()
        await self._wakeup.wait(POLL_SECONDS)

    async def run_once(self) -> int:
        """Import the workflows whose nodes are now known, and return their number."""
        done, after = 0, 0
        while True:
            async with self._databases.central.read() as tx:
                found = await library.waiting(tx, after_id=after, limit=PAGE_SIZE)
            if not found:
                return done
            after = found[-1].id
            known, _ = await self._definitions.load()
            for workflow in found:
                waiting = workflow.waits_for
                # An import is expensive: try it only if a worker has at least one of the nodes.
                if waiting is not None and known is not None and not known.keys().isdisjoint(waiting.node_types):
                    try:
                        done += await self._own.import_pending(workflow)
                    except Conflict:
                        log.info("pending_workflow.changed", workflow=workflow.slug)
