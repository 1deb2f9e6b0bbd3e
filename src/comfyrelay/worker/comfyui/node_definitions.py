"""Brings the definitions of this worker's nodes to the control plane, which reads workflows with them."""

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from comfyrelay.comfyui.graphs.node_definitions import PackedDefinitions, merge, pack
from comfyrelay.errors import ComfyError, ComfyRelayError, NotFound, Unauthorized
from comfyrelay.wakeup import Wakeup
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.control import ControlPlane, patiently

log = structlog.get_logger(__name__)


class NodeDefinitionSender:
    """They are named whenever they may have changed, and sent when the control plane does not have them."""

    def __init__(self, control: ControlPlane, servers: Servers) -> None:
        self._control = control
        self._servers = servers
        self._due = Wakeup()

    def send_soon(self) -> None:
        self._due.notify()

    async def keep(self) -> None:
        """Until canceled. Whatever goes wrong with it, jobs go on; it is tried again when it is due the next time."""
        while True:
            await self._due.wait()
            try:
                await self._bring()
            except NotFound:
                log.debug("worker.definitions_unwanted", why="The control plane is older than this worker.")
            except Unauthorized:
                # whoever polls registers again, and then it is due again
                log.debug("worker.definitions_not_sent", why="This worker is not registered.")
            except ComfyRelayError as error:
                log.warning("worker.definitions_not_sent", why=error.detail)
            except Exception:
                log.exception("worker.definitions_broke")

    async def _bring(self) -> None:
        found = await self._gathered()
        if not found:
            return
        packed: PackedDefinitions = await asyncio.to_thread(lambda: pack(merge(found)))
        if not await patiently(lambda: self._control.has_definitions(packed.sha256)):
            data = await asyncio.to_thread(lambda: packed.data)
            await patiently(lambda: self._control.send_definitions(packed.sha256, data))
            log.info("worker.definitions_sent", sha256=packed.sha256, size=len(data))

    async def _gathered(self) -> list[Mapping[str, Any]]:
        """Of every server that has answered: they say how nodes are read, not who has them all."""
        found: list[Mapping[str, Any]] = []
        for client in self._servers.own:
            try:
                # as of the last look at what there is
                found.append(await client.object_info())
            except ComfyError:
                continue
        return found
