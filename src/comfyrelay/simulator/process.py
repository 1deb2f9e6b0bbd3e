"""The state that a server process loses when it is killed: queue, history, cache and sockets."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from comfyrelay.simulator.folders import Folders
from comfyrelay.simulator.gpu import SimulatedGpu
from comfyrelay.simulator.misbehaviour import ActiveMisbehaviours, DropSocket, Restart, SilentSocket
from comfyrelay.simulator.nodes.definitions import ChoiceSource, Listings
from comfyrelay.simulator.options import Options
from comfyrelay.simulator.request_log import SimulatorLog
from comfyrelay.simulator.running.cache import Cache
from comfyrelay.simulator.running.executor import ExecutionContext, PromptRun
from comfyrelay.simulator.running.queue import PromptQueue
from comfyrelay.simulator.sockets import Sockets

_IMAGES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
_VIDEOS = frozenset({".mp4", ".webm", ".mov", ".mkv", ".avi"})


class SimulatedProcess:
    def __init__(
        self,
        *,
        options: Options,
        folders: Folders,
        misbehaviours: ActiveMisbehaviours,
        log: SimulatorLog,
        restart: Callable[[float], Awaitable[None]],
    ) -> None:
        self.options = options
        self.folders = folders
        self.misbehaviours = misbehaviours
        self.log = log
        self.features: dict[str, Any] = {
            "supports_preview_metadata": True,
            "max_upload_size": options.max_upload_bytes,
            "extension": {"manager": {"supports_v4": True}},
        }
        if options.is_current:
            self.features |= {"supports_model_type_tags": True, "node_replacements": True, "assets": False}
        self.sockets = Sockets(features=self.features)
        self.cache = Cache()
        self.gpu = SimulatedGpu(options.gpu) if options.gpu is not None else None
        self.queue = PromptQueue(on_change=self._send_status)
        self.run: PromptRun | None = None
        # The last lines of the log, as returned by `/internal/logs/raw`.
        self.console: deque[dict[str, str]] = deque(maxlen=300)
        self.print("The simulator has started.")
        self.print(f"ComfyUI version: {options.version}")
        self._restart = restart
        self._must_free = False
        self._must_unload = False
        self._tasks: list[asyncio.Task[None]] = []

    def print(self, line: str) -> None:
        self.console.append({"t": datetime.now().isoformat(), "m": f"{line}\n"})

    def start(self) -> None:
        if self.gpu is not None:
            self.gpu.open()
        self._tasks = [asyncio.create_task(self.sockets.publish()), asyncio.create_task(self._work())]

    async def stop(self) -> None:
        """Stop at once. The thread of a running node cannot be stopped, so its result is dropped."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.gpu is not None:
            self.gpu.close()

    @property
    def status(self) -> dict[str, Any]:
        return {"exec_info": {"queue_remaining": self.queue.remaining}}

    @property
    def listings(self) -> Listings:
        return {
            ChoiceSource.INPUT_IMAGES: self.folders.list_inputs(_IMAGES),
            ChoiceSource.INPUT_VIDEOS: self.folders.list_inputs(_VIDEOS),
            ChoiceSource.CHECKPOINTS: list(self.options.models.get("checkpoints", ())),
            ChoiceSource.LORAS: list(self.options.models.get("loras", ())),
        }

    @property
    def running_node(self) -> tuple[str, str] | None:
        """Client and node of the running prompt."""
        if self.run is None or self.run.current is None or self.run.messages.client_id is None:
            return None
        return self.run.messages.client_id, self.run.current

    def interrupt(self, prompt_id: str | None = None) -> bool:
        """Interrupt the running prompt. With an id, only if that prompt is running."""
        self.log.interrupts += 1
        if self.run is None or prompt_id not in (None, self.run.prompt_id):
            return False
        self.run.interrupt()
        return True

    def cancel(self, prompt_id: str) -> bool:
        """Interrupt or remove a prompt. Returns `False` if it is neither running nor waiting."""
        if self.run is not None and self.run.prompt_id == prompt_id:
            return self.interrupt(prompt_id)
        return self.queue.delete(prompt_id)

    def free(self, *, cache: bool, models: bool) -> None:
        """Empty the cache and unload models after the running prompt."""
        self._must_free = self._must_free or cache
        self._must_unload = self._must_unload or cache or models
        if self.run is None:
            self._free_if_requested()

    def _free_if_requested(self) -> None:
        if self._must_free:
            self.cache.clear()
            self._must_free = False
        if self._must_unload:
            self._must_unload = False
            if self.gpu is not None:
                self.gpu.unload()

    def _send_status(self) -> None:
        self.sockets.post("status", {"status": self.status}, None)

    async def _work(self) -> None:
        context = ExecutionContext(
            options=self.options,
            folders=self.folders,
            cache=self.cache,
            gpu=self.gpu,
            sockets=self.sockets,
            misbehaviours=self.misbehaviours,
            on_node=self._on_node,
            log=self.log,
        )
        while True:
            item = await self.queue.get()
            self.run = PromptRun(item, context)
            entry = await self.run.run()
            self.queue.finish(entry)
            self.run.messages.end()
            self.run = None
            self._free_if_requested()

    async def _on_node(self, class_type: str) -> None:
        """Trigger the misbehaviours of the whole server that begin with a node of this class."""
        self.log.nodes_executed += 1
        if self.misbehaviours.take(DropSocket, [class_type]):
            self.sockets.drop()
        if self.misbehaviours.take(SilentSocket, [class_type]):
            self.sockets.silence()
        if restart := self.misbehaviours.take(Restart, [class_type]):
            await self._restart(restart.what.down_seconds)
            # Wait until the kill cancels this task.
            await asyncio.Event().wait()
