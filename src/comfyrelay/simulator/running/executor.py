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
from comfyrelay.simulator.folders import Folders
from comfyrelay.simulator.gpu import SimulatedGpu
from comfyrelay.simulator.misbehaviour import (
    ActiveMisbehaviours,
    EmptyOutputs,
    Fail,
    LateHistory,
    NewKinds,
    OutOfMemory,
    Slow,
    Stuck,
    Vary,
)
from comfyrelay.simulator.nodes.catalogue import DEFINITIONS
from comfyrelay.simulator.nodes.functions import FUNCTIONS
from comfyrelay.simulator.nodes.models import sampler_preview, steps_of
from comfyrelay.simulator.nodes.results import NodeContext
from comfyrelay.simulator.options import Options
from comfyrelay.simulator.request_log import SimulatorLog
from comfyrelay.simulator.running.cache import Cache, CachedNode, signatures_of
from comfyrelay.simulator.running.errors import INJECTED_TRACEBACK, InjectedError, Interrupted, out_of_memory, type_name
from comfyrelay.simulator.running.messages import PromptMessages
from comfyrelay.simulator.running.ordering import RunOrder
from comfyrelay.simulator.running.queue import Item
from comfyrelay.simulator.sockets import Sockets

# Minimum pause between two previews.
PREVIEW_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionContext:
    """The objects that all prompts of a server share."""

    options: Options
    folders: Folders
    cache: Cache
    gpu: SimulatedGpu | None
    sockets: Sockets
    misbehaviours: ActiveMisbehaviours
    log: SimulatorLog
    # Called with the node class when a node starts.
    on_node: Callable[[str], Awaitable[None]]


class PromptRun:
    def __init__(self, item: Item, context: ExecutionContext) -> None:
        _, self.prompt_id, self._graph, extra_data, self._outputs, _ = item
        self._context = context
        self._extra_data = extra_data
        self.messages = PromptMessages(context.sockets, prompt_id=self.prompt_id, client_id=extra_data.get("client_id"))
        self.current: str | None = None
        self._is_interrupted = False
        self._executed: list[str] = []
        self._values: dict[str, tuple[Any, ...]] = {}
        self._ui: dict[str, dict[str, Any]] = {}
        self._current_inputs: dict[str, Any] = {}

    def interrupt(self) -> None:
        """Stop when the next node or step starts."""
        self._is_interrupted = True

    async def run(self) -> dict[str, Any]:
        """Run the prompt and return its history entry."""
        self.messages.record("execution_start")
        signatures = await asyncio.to_thread(signatures_of, self._graph, self._context.folders)
        self._context.cache.begin(signatures)
        cached = [node_id for node_id in self._graph if self._context.cache.get(node_id)]
        self.messages.record("execution_cached", nodes=cached)
        is_success = await self._run_nodes(cached)
        self.current = None
        if is_success:
            self.messages.record("execution_success")
            if late := self._context.misbehaviours.take(LateHistory, classes_of(self._graph)):
                await asyncio.sleep(late.what.seconds)
        return self._history_entry(is_success)

    async def _run_nodes(self, cached: list[str]) -> bool:
        output_nodes = {node_id for node_id, node in self._graph.items() if DEFINITIONS[node["class_type"]].is_output}
        for node_id in RunOrder(self._graph, outputs=self._outputs, output_nodes=output_nodes, cached=cached):
            if (node := self._context.cache.get(node_id)) is not None:
                self._use_cached(node_id, node)
                continue
            failed_at = {
                "node_id": node_id,
                "node_type": self._graph[node_id]["class_type"],
                "executed": self._executed,
            }
            try:
                await self._run_node(node_id)
            except Interrupted:
                self.messages.record("execution_interrupted", to_all=True, **failed_at)
                return False
            except Exception as error:
                self.messages.record("execution_error", **failed_at, **self._error_fields(error))
                return False
        return True

    def _use_cached(self, node_id: str, node: CachedNode) -> None:
        has_client = self.messages.client_id is not None
        if has_client:
            self.messages.executed(node_id, node.ui["output"] if node.ui else None)
        # Older versions drop the output of a cached node when no client is connected.
        if node.ui and (has_client or self._context.options.is_current):
            self._ui[node_id] = node.ui
        self.messages.finished(node_id)

    async def _run_node(self, node_id: str) -> None:
        class_type = self._graph[node_id]["class_type"]
        self.current = node_id
        self._current_inputs = self._inputs(node_id)
        self.messages.executing(node_id)
        self._stop_if_interrupted()
        await self._misbehave(node_id, class_type)
        await self._sample(node_id, class_type)
        variation = {"drawn": token_hex()} if self._context.misbehaviours.take(Vary, [class_type]) else {}
        context = NodeContext(
            folders=self._context.folders,
            prompt=self._graph,
            extra_pnginfo={**(self._extra_data.get("extra_pnginfo") or {}), **variation},
        )
        result = await asyncio.to_thread(FUNCTIONS[class_type], context, **self._current_inputs)
        self._values[node_id] = result.outputs
        for step, image in enumerate(result.websocket_images):
            self.messages.progress(node_id, step, len(result.websocket_images), image, image_type="image/png")
        ui = None
        if result.ui is not None:
            meta = {"node_id": node_id, "display_node": node_id, "parent_node": None, "real_node_id": node_id}
            ui = self._ui[node_id] = {"output": dict(result.ui), "meta": meta}
            self.messages.executed(node_id, ui["output"])
        if not result.websocket_images:
            # A node that sends images is never cached, because the cache cannot send them again.
            self._context.cache.put(node_id, CachedNode(outputs=result.outputs, ui=ui))
        self._executed.append(node_id)
        self.messages.finished(node_id)

    @property
    def _has_previews(self) -> bool:
        """Whether samplers send previews, according to the prompt, or else to the server's option."""
        method = self._extra_data.get("preview_method")
        if method not in ("none", "auto", "latent2rgb", "taesd"):
            method = self._context.options.preview_method
        return method != "none"

    async def _sample(self, node_id: str, class_type: str) -> None:
        """Report each sampler step, check for interrupts, and send previews."""
        steps = steps_of(class_type, self._current_inputs)
        gpu = self._context.gpu if steps else None
        if gpu is not None:
            await self._load(gpu)
        with gpu.sampling() if gpu is not None else nullcontext():
            await self._take_steps(node_id, steps, gpu)

    async def _load(self, gpu: SimulatedGpu) -> None:
        """Load the sampler's model into GPU memory and allocate its work memory."""
        model, latent = str(self._current_inputs["model"]), self._current_inputs["latent_image"]
        if not gpu.has(model):
            self._context.log.models_loaded += 1
            await asyncio.sleep(gpu.options.load_seconds)
        pixels = latent.width * latent.height * latent.count
        if not await asyncio.to_thread(gpu.load, model, pixels=pixels):
            raise out_of_memory()

    async def _take_steps(self, node_id: str, steps: int, gpu: SimulatedGpu | None) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        for step in range(1, steps + 1):
            shared = gpu.options.gpu_seconds * gpu.busy if gpu is not None else 0.0
            await asyncio.sleep(self._context.options.step_seconds + shared)
            self._stop_if_interrupted()
            image = None
            if self._has_previews and loop.time() >= next_at:
                image = await asyncio.to_thread(sampler_preview, self._current_inputs, step / steps)
                next_at = loop.time() + PREVIEW_SECONDS
            self.messages.progress(node_id, step, steps, image)

    async def _misbehave(self, node_id: str, class_type: str) -> None:
        await self._context.on_node(class_type)
        misbehaviours = self._context.misbehaviours
        if stuck := misbehaviours.take(Stuck, [class_type]):
            await stuck.wait_until_ended()
        if slow := misbehaviours.take(Slow, [class_type]):
            await self._delay(node_id, slow.what)
        if misbehaviours.take(OutOfMemory, [class_type]):
            raise out_of_memory()
        if fail := misbehaviours.take(Fail, [class_type]):
            raise InjectedError(exception_type=fail.what.exception_type, message=fail.what.message)

    async def _delay(self, node_id: str, slow: Slow) -> None:
        if not slow.steps:
            await asyncio.sleep(slow.seconds)
        for step in range(1, slow.steps + 1):
            await asyncio.sleep(slow.seconds / slow.steps)
            self._stop_if_interrupted()
            self.messages.progress(node_id, step, slow.steps, _preview(step / slow.steps) if slow.previews else None)

    def _stop_if_interrupted(self) -> None:
        if self._is_interrupted:
            raise Interrupted

    def _inputs(self, node_id: str) -> dict[str, Any]:
        """Return the values of a node's inputs. Ignores inputs that exist only in other versions of the class."""
        node = self._graph[node_id]
        values = {name: self._value(value) for name, value in node["inputs"].items()}
        definition = DEFINITIONS[node["class_type"]]
        return {name: values[name] for name in values if name in definition.required or name in definition.optional}

    def _value(self, value: Any) -> Any:
        if not is_link(value) or value[0] not in self._graph:
            return value
        outputs = self._values.get(value[0])
        if outputs is None:
            cached = self._context.cache.get(value[0])
            outputs = cached.outputs if cached else ()
        return outputs[int(value[1])]

    def _error_fields(self, error: Exception) -> dict[str, Any]:
        is_injected = isinstance(error, InjectedError)
        return {
            "exception_message": f"{error}\n",
            "exception_type": error.exception_type if isinstance(error, InjectedError) else type_name(type(error)),
            "traceback": list(INJECTED_TRACEBACK) if is_injected else traceback.format_tb(error.__traceback__),
            "current_inputs": {name: [_readable(value)] for name, value in self._current_inputs.items()},
            "current_outputs": list(self._graph),
        }

    def _history_entry(self, is_success: bool) -> dict[str, Any]:
        is_emptied = is_success and self._context.misbehaviours.take(EmptyOutputs, classes_of(self._graph)) is not None
        ui = {} if is_emptied else self._ui
        entry = {
            "outputs": {node_id: message["output"] for node_id, message in ui.items()},
            "status": {
                "status_str": "success" if is_success else "error",
                "completed": is_success,
                "messages": self.messages.recorded,
            },
            "meta": {node_id: message["meta"] for node_id, message in ui.items()},
        }
        is_new = is_success and self._context.misbehaviours.take(NewKinds, classes_of(self._graph)) is not None
        return self._as_new_kinds(entry) if is_new else entry

    def _as_new_kinds(self, entry: dict[str, Any]) -> dict[str, Any]:
        self.messages.record("hologram_ready", novelty=[1, {"deep": None}])
        return {
            "outputs": {node_id: {"hologram": [{"depth": 3}, None]} for node_id in entry["outputs"]},
            "status": {**entry["status"], "status_str": "archived", "novelty": {}},
            "meta": entry["meta"],
            "assets": {"novelty": None},
        }


def classes_of(graph: Graph) -> list[str]:
    return [node["class_type"] for node in graph.values()]


def _readable(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value) if not isinstance(value, Mapping) else {str(key): _readable(item) for key, item in value.items()}


def _preview(part: float) -> bytes:
    """Return a small image that becomes brighter with progress."""
    file = BytesIO()
    Image.new("RGB", (64, 64), (round(255 * part),) * 3).save(file, "JPEG")
    return file.getvalue()
