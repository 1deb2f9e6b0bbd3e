"""Execute one prompt node by node, each in a thread, and report to its client."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from io import BytesIO
from secrets import token_hex
from typing import Any

from PIL import Image

from comfyrelay.comfyui.graphs.graph import Graph, is_link
from comfyrelay.simulator.active_misbehaviours import ActiveMisbehaviours
from comfyrelay.simulator.folders import Folders
from comfyrelay.simulator.gpu import SimulatedGpu
from comfyrelay.simulator.misbehaviour import EmptyOutputs, Fail, LateHistory, OutOfMemory, Slow, Stuck, Vary
from comfyrelay.simulator.nodes.calls import known_values, run_node
from comfyrelay.simulator.nodes.catalogue import DEFINITIONS
from comfyrelay.simulator.nodes.models import glimpse, steps_of
from comfyrelay.simulator.nodes.results import Run
from comfyrelay.simulator.options import Options
from comfyrelay.simulator.request_log import SimulatorLog
from comfyrelay.simulator.running.cache import Cache, CachedNode, signatures_of
from comfyrelay.simulator.running.errors import STAGED_TRACEBACK, Interrupted, StagedError, out_of_memory, type_name
from comfyrelay.simulator.running.messages import PromptMessages
from comfyrelay.simulator.running.ordering import RunOrder
from comfyrelay.simulator.running.queue import Item
from comfyrelay.simulator.sockets import Sockets

# Maximum size of a preview.
PREVIEW_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """Shared by prompts: folders, results of earlier prompts, and sockets."""

    options: Options
    folders: Folders
    cache: Cache
    gpu: SimulatedGpu | None
    sockets: Sockets
    misbehaviours: ActiveMisbehaviours
    log: SimulatorLog
    # called with the node class when a node starts
    on_node: Callable[[str], Awaitable[None]]


class PromptRun:
    def __init__(self, item: Item, workshop: Workshop) -> None:
        _, self.prompt_id, self._graph, extra_data, self._outputs, _ = item
        self._workshop = workshop
        self._extra_data = extra_data
        self.messages = PromptMessages(
            workshop.sockets, prompt_id=self.prompt_id, client_id=extra_data.get("client_id")
        )
        self.current: str | None = None
        self._is_interrupted = False
        self._executed: list[str] = []
        self._values: dict[str, tuple[Any, ...]] = {}
        self._shown: dict[str, dict[str, Any]] = {}
        self._current_inputs: dict[str, Any] = {}

    def interrupt(self) -> None:
        """Takes effect when the next node starts, or at the next step."""
        self._is_interrupted = True

    async def run(self) -> dict[str, Any]:
        """Run the prompt and return its history entry."""
        self.messages.start()
        signatures = await asyncio.to_thread(signatures_of, self._graph, self._workshop.folders)
        self._workshop.cache.begin(signatures)
        cached = [node_id for node_id in self._graph if self._workshop.cache.get(node_id)]
        self.messages.cached(cached)
        is_success = await self._run_nodes(cached)
        self.current = None
        if is_success:
            self.messages.success()
            await self._wait_with_history()
        return self._entry(is_success)

    async def _run_nodes(self, cached: list[str]) -> bool:
        output_nodes = {each for each, node in self._graph.items() if DEFINITIONS[node["class_type"]].is_output}
        for node_id in RunOrder(self._graph, outputs=self._outputs, output_nodes=output_nodes, cached=cached):
            kept = self._workshop.cache.get(node_id)
            if kept is not None:
                self._use_kept(node_id, kept)
                continue
            try:
                await self._run_node(node_id)
            except Interrupted:
                self.messages.interrupted({**self._failed_at(node_id), "executed": list(self._executed)})
                return False
            except Exception as error:
                self.messages.error({**self._failed_at(node_id), **self._described(error)})
                return False
        return True

    def _use_kept(self, node_id: str, kept: CachedNode) -> None:
        # ComfyUI 0.7.0 drops the output of a cached node when no client is connected
        if self.messages.client_id is not None:
            self.messages.executed(node_id, kept.shown["output"] if kept.shown else None)
            if kept.shown:
                self._shown[node_id] = kept.shown
        self.messages.finished(node_id)

    async def _run_node(self, node_id: str) -> None:
        class_type = self._graph[node_id]["class_type"]
        self.current = node_id
        self._current_inputs = self._inputs(node_id)
        self.messages.executing(node_id)
        self._stop_if_interrupted()
        await self._misbehave(node_id, class_type)
        await self._sample(node_id, class_type)
        drawn = {"drawn": token_hex()} if self._workshop.misbehaviours.take(Vary, [class_type]) else {}
        run = Run(
            folders=self._workshop.folders,
            prompt=self._graph,
            extra_pnginfo={**(self._extra_data.get("extra_pnginfo") or {}), **drawn},
        )
        result = await asyncio.to_thread(run_node, class_type, run, self._current_inputs)
        self._values[node_id] = result.outputs
        for step, image in enumerate(result.sent):
            self.messages.progress(node_id, step, len(result.sent), image, image_type="image/png")
        shown = None
        if result.shown is not None:
            meta = {"node_id": node_id, "display_node": node_id, "parent_node": None, "real_node_id": node_id}
            shown = self._shown[node_id] = {"output": dict(result.shown), "meta": meta}
            self.messages.executed(node_id, shown["output"])
        if not result.sent:
            # sent images cannot be repeated, so such a node is never cached
            self._workshop.cache.put(node_id, CachedNode(outputs=result.outputs, shown=shown))
        self._executed.append(node_id)
        self.messages.finished(node_id)

    @property
    def _has_previews(self) -> bool:
        """Whether samplers send previews: as the prompt says, otherwise as the server was started."""
        asked = self._extra_data.get("preview_method")
        known = asked in ("none", "auto", "latent2rgb", "taesd")
        return (asked if known else self._workshop.options.preview_method) != "none"

    async def _sample(self, node_id: str, class_type: str) -> None:
        """Report each sampler step, check for interrupts, and send previews."""
        steps = steps_of(class_type, self._current_inputs)
        gpu = self._workshop.gpu if steps else None
        if gpu is not None:
            await self._load(gpu)
        with gpu.sampling() if gpu is not None else nullcontext():
            await self._take_steps(node_id, steps, gpu)

    async def _load(self, gpu: SimulatedGpu) -> None:
        """Load the sampler's model into GPU memory and allocate its work memory."""
        model, latent = str(self._current_inputs["model"]), self._current_inputs["latent_image"]
        if not gpu.has(model):
            self._workshop.log.models_loaded += 1
            await asyncio.sleep(gpu.options.load_seconds)
        pixels = latent.width * latent.height * latent.count
        if not await asyncio.to_thread(gpu.load, model, pixels=pixels):
            raise out_of_memory()

    async def _take_steps(self, node_id: str, steps: int, gpu: SimulatedGpu | None) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        for step in range(1, steps + 1):
            shared = gpu.options.gpu_seconds * gpu.busy if gpu is not None else 0.0
            await asyncio.sleep(self._workshop.options.step_seconds + shared)
            self._stop_if_interrupted()
            image = None
            if self._has_previews and loop.time() >= next_at:
                image = await asyncio.to_thread(glimpse, self._current_inputs, step / steps)
                next_at = loop.time() + PREVIEW_SECONDS
            self.messages.progress(node_id, step, steps, image)

    async def _misbehave(self, node_id: str, class_type: str) -> None:
        await self._workshop.on_node(class_type)
        misbehaviours = self._workshop.misbehaviours
        if stuck := misbehaviours.take(Stuck, [class_type]):
            await stuck.wait_until_ended()
        if slow := misbehaviours.take(Slow, [class_type]):
            await self._be_slow(node_id, slow.what)
        if misbehaviours.take(OutOfMemory, [class_type]):
            raise out_of_memory()
        if fail := misbehaviours.take(Fail, [class_type]):
            raise StagedError(exception_type=fail.what.exception_type, message=fail.what.message)

    async def _be_slow(self, node_id: str, slow: Slow) -> None:
        if not slow.steps:
            await asyncio.sleep(slow.seconds)
        for step in range(1, slow.steps + 1):
            await asyncio.sleep(slow.seconds / slow.steps)
            self._stop_if_interrupted()
            self.messages.progress(node_id, step, slow.steps, _preview(step / slow.steps) if slow.previews else None)

    async def _wait_with_history(self) -> None:
        if late := self._workshop.misbehaviours.take(LateHistory, self.classes):
            await asyncio.sleep(late.what.seconds)

    @property
    def classes(self) -> list[str]:
        return classes_of(self._graph)

    def _stop_if_interrupted(self) -> None:
        if self._is_interrupted:
            raise Interrupted

    def _inputs(self, node_id: str) -> dict[str, Any]:
        node = self._graph[node_id]
        values = {name: self._value(value) for name, value in node["inputs"].items()}
        return known_values(node["class_type"], values)

    def _value(self, value: Any) -> Any:
        if not is_link(value) or value[0] not in self._graph:
            return value
        before = self._values.get(value[0])
        if before is None:
            kept = self._workshop.cache.get(value[0])
            before = kept.outputs if kept else ()
        return before[int(value[1])]

    def _failed_at(self, node_id: str) -> dict[str, Any]:
        return {"node_id": node_id, "node_type": self._graph[node_id]["class_type"]}

    def _described(self, error: Exception) -> dict[str, Any]:
        is_staged = isinstance(error, StagedError)
        return {
            "executed": list(self._executed),
            "exception_message": f"{error}\n",
            "exception_type": error.exception_type if isinstance(error, StagedError) else type_name(type(error)),
            "traceback": list(STAGED_TRACEBACK) if is_staged else traceback.format_tb(error.__traceback__),
            "current_inputs": {name: [_readable(value)] for name, value in self._current_inputs.items()},
            "current_outputs": list(self._graph),
        }

    def _entry(self, is_success: bool) -> dict[str, Any]:
        is_emptied = is_success and self._workshop.misbehaviours.take(EmptyOutputs, self.classes) is not None
        shown = {} if is_emptied else self._shown
        return {
            "outputs": {node_id: each["output"] for node_id, each in shown.items()},
            "status": {
                "status_str": "success" if is_success else "error",
                "completed": is_success,
                "messages": self.messages.kept,
            },
            "meta": {node_id: each["meta"] for node_id, each in shown.items()},
        }


def classes_of(graph: Graph) -> list[str]:
    return [node["class_type"] for node in graph.values()]


def _readable(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value) if not isinstance(value, Mapping) else {str(key): _readable(each) for key, each in value.items()}


def _preview(part: float) -> bytes:
    """A small image that gets brighter with progress."""
    file = BytesIO()
    Image.new("RGB", (64, 64), (round(255 * part),) * 3).save(file, "JPEG")
    return file.getvalue()
