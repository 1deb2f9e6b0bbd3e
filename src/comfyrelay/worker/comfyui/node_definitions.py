"""Upload this worker's node definitions to the control plane, which uses them to convert workflows."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import structlog

from comfyrelay.comfyui.graphs.node_definitions import PackedDefinitions, merge, pack
from comfyrelay.errors import ComfyError, ComfyRelayError, NotFound, Unauthorized
from comfyrelay.wakeup import Wakeup
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.control import ControlPlane, retry_until_reachable

log = structlog.get_logger(__name__)


class NodeDefinitionSender:
    """Announces node definitions that may have changed, and uploads them if the control plane does not have them."""

    def __init__(self, control: ControlPlane, servers: Servers) -> None:
        self._control = control
        self._servers = servers
        self._due = Wakeup()

    def send_soon(self) -> None:
        self._due.notify()

    async def keep(self) -> None:
        """Run until cancelled. Failures never affect jobs and are retried when the next upload is due."""
        while True:
            await self._due.wait()
            try:
                await self._send()
            except NotFound:
                log.debug("worker.definitions_unwanted", why="The control plane is older than this worker.")
            except Unauthorized:
                # The poller will register again, which makes the upload due again.
                log.debug("worker.definitions_not_sent", why="This worker is not registered.")
            except ComfyRelayError as error:
                log.warning("worker.definitions_not_sent", why=error.detail)
            except Exception:
                log.exception("worker.definitions_crashed")

    async def _send(self) -> None:
        """Send the merged definitions of all reachable servers. They do not name the servers that have a node."""
        definitions: list[Mapping[str, Any]] = []
        for client in self._servers.own.values():
            with suppress(ComfyError):
                # The definitions are as old as the last refresh of the capabilities.
                definitions.append(await client.object_info())
        if not definitions:
            return
        packed: PackedDefinitions = await asyncio.to_thread(lambda: pack(merge(definitions)))
        if not await retry_until_reachable(lambda: self._control.has_definitions(packed.sha256)):
            data = await asyncio.to_thread(lambda: packed.data)
            await retry_until_reachable(lambda: self._control.send_definitions(packed.sha256, data))
            log.info("worker.definitions_sent", sha256=packed.sha256, size=len(data))
