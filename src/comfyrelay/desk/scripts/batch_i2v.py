"""The shipped script: run a template for each file of a folder.

Its output is what `output_parser` understands: `[2/6] cat · try 1 · seed: 42`, `[2/6] 45% KSampler`, `[2/6] saved:
/path/to/file.mp4`, and `Error: …`.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comfyrelay.comfyui import (
    ComfyClient,
    Graph,
    NodeStarted,
    OutputFile,
    RunEvent,
    RunTimeouts,
    Step,
    load_graph,
    set_input,
)
from comfyrelay.desk.batches.expand import LARGEST_SEED, PlannedItem, SeedMode, SeedPlan, expand
from comfyrelay.desk.batches.folders import inputs_in, readable_name
from comfyrelay.domain.properties import kind_of
from comfyrelay.errors import (
    ComfyError,
    GraphRefused,
    InvalidInput,
    NoOutput,
    NotInstalled,
    RunInterrupted,
    ServerRefused,
    ServerUnreachable,
)
from comfyrelay.services.forms.describe import DescribedWorkflow, describe_graph

# Share of the template's steps per profile: few for a draft, all for the final result.
PROFILES = {"look-dev": 0.4, "medium": 0.7, "production": 1.0}
_STEPS = ("steps", "start_at_step", "end_at_step")
# After these errors the next item would fail, too.
_HOPELESS = (GraphRefused, NotInstalled, RunInterrupted, ServerRefused, ServerUnreachable)
# Progress is logged after this much progress or time.
_MUCH = 0.1
_LONG_SECONDS = 10.0

Write = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Command-line options."""

    template: Path
    input_root: Path
    input_subdir: str
    positive: str
    negative: str | None = None
    profile: str = "production"
    tries: int = 1
    seed: int | None = None
    randomize_seed: bool = False
    wait: bool = True
    out: Path = Path("output")
    changes: Mapping[tuple[str, str], Any] = field(default_factory=dict)


async def run_batch(comfy: ComfyClient, order: Order, *, write: Write, write_briefly: Write | None) -> int:
    """Run everything. Returns the number of failures.

    `write_briefly` writes lines that the next one may replace; without it progress is logged now and then.
    """
    graph = _with_profile(load_graph(order.template), order.profile)
    for (node, name), value in order.changes.items():
        set_input(graph, node, name, value)
    template = _Template(graph, describe_graph(graph, await comfy.object_info()))
    items = _items(template, order, write)
    order.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for number, item in enumerate(items, 1):
        run = _Run(comfy, template, order, f"[{number}/{len(items)}]", write=write, write_briefly=write_briefly)
        try:
            await run.go(item, number)
        except ComfyError as error:
            failed += 1
            write(f"{run.place} Error: {error.detail}")
            if isinstance(error, _HOPELESS):
                return failed + len(items) - number
    return failed


class _Template:
    """A graph, and where the variable values go."""

    def __init__(self, graph: Graph, described: DescribedWorkflow) -> None:
        self._graph = graph
        self.roles = described.roles
        self.output_node_id = described.output_node_id
        self.properties = {property_["key"]: property_ for property_ in described.properties}
        # the input for the folder's files; other inputs keep the template's values
        self.input = next((property_ for property_ in described.properties if property_["is_primary_input"]), None)
        self._places = {
            key: [
                (node_id, name)
                for node_id, node in described.graph.items()
                for name, value in node["inputs"].items()
                if value == prop["placeholder"]
            ]
            for key, prop in self.properties.items()
        }

    def filled(self, values: Mapping[str, Any]) -> Graph:
        graph = deepcopy(self._graph)
        for key, value in values.items():
            for node_id, name in self._places[key]:
                graph[node_id]["inputs"][name] = value
        return graph


class _Run:
    """A running item."""

    def __init__(
        self,
        comfy: ComfyClient,
        template: _Template,
        order: Order,
        place: str,
        *,
        write: Write,
        write_briefly: Write | None,
    ) -> None:
        self._comfy = comfy
        self._template = template
        self._order = order
        self.place = place
        self._write = write
        self._write_briefly = write_briefly
        self._last_text = ""
        self._written, self._written_at = 0.0, time.monotonic()

    async def go(self, item: PlannedItem, number: int) -> None:
        seed = "" if item.seed is None else f" · seed: {item.seed}"
        self._write(f"{self.place} {item.label}{seed}")
        graph = await self._graph(item)
        if not self._order.wait:
            self._write(f"{self.place} queued: {await self._comfy.submit(graph)}")
            return
        result = await self._comfy.run(
            graph,
            wanted=[self._template.output_node_id],
            # no timeout: videos may take long
            timeouts=RunTimeouts(run_seconds=None),
            on_event=self._on_event,
        )
        kept = [file for file in result.files if file.type == "output"] or list(result.files[:1])
        if not kept:
            raise NoOutput("The graph ran to its end and made no file.")
        for file in kept:
            path = await asyncio.to_thread(_free_path, self._order.out, item, number, file)
            await self._comfy.download(file, path)
            self._write(f"{self.place} saved: {path.absolute()}")
        self._write(f"{self.place} 100%")

    async def _graph(self, item: PlannedItem) -> Graph:
        values = dict(item.payload)
        if isinstance(item.input, Path) and self._template.input is not None:
            values[self._template.input["key"]] = (await self._comfy.upload(item.input)).reference
        return self._template.filled(values)

    def _on_event(self, event: RunEvent) -> None:
        if isinstance(event, NodeStarted):
            text = f"{event.progress:.0%} {event.title}"
        elif isinstance(event, Step):
            text = f"{event.progress:.0%}"
        else:
            return
        if text != self._last_text and (self._write_briefly is not None or self._is_time(event.progress)):
            self._last_text = text
            (self._write_briefly or self._write)(f"{self.place} {text}")

    def _is_time(self, progress: float) -> bool:
        now = time.monotonic()
        if progress < self._written + _MUCH and now < self._written_at + _LONG_SECONDS:
            return False
        self._written, self._written_at = progress, now
        return True


def _with_profile(graph: Graph, profile: str) -> Graph:
    if profile not in PROFILES:
        raise InvalidInput(f"There is no profile {profile!r}: choose one of {', '.join(PROFILES)}.")
    for node in graph.values():
        for name in _STEPS:
            value = node["inputs"].get(name)
            if type(value) is int and value > 0:
                node["inputs"][name] = max(1, round(value * PROFILES[profile]))
    return graph


def _items(template: _Template, order: Order, write: Write) -> list[PlannedItem]:
    if template.input is None:
        raise InvalidInput("The template loads no image or video.")
    kind = template.input["type"]
    inputs = [each for each in inputs_in(order.input_root, order.input_subdir) if kind_of(each.name) == kind]
    if not inputs:
        raise InvalidInput(f"There is no {kind} in {order.input_subdir!r}.")
    roles = template.roles
    for role, text in (("prompt", order.positive), ("negative_prompt", order.negative)):
        if text and role not in roles:
            write(f"Note: the template has no {role.replace('_', ' ')}; what was given is not used.")
    return expand(
        inputs=inputs,
        prompts=[order.positive] if "prompt" in roles else [],
        negatives=[order.negative] if order.negative is not None and "negative_prompt" in roles else [],
        tries=order.tries,
        seeds=_seeds(template, order),
        roles=roles,
        rng=random.SystemRandom(),
    )


def _seeds(template: _Template, order: Order) -> SeedPlan | None:
    if (key := template.roles.get("seed")) is None:
        # `expand` reports the missing role
        return SeedPlan() if order.randomize_seed or order.seed is not None else None
    seed = template.properties[key]
    return SeedPlan(
        mode=SeedMode.RANDOM if order.randomize_seed else SeedMode.INCREMENT,
        start=order.seed if order.seed is not None else int(seed["default_value"]),
        largest=min(LARGEST_SEED, int(seed.get("maximum", LARGEST_SEED))),
    )


def _free_path(folder: Path, item: PlannedItem, number: int, file: OutputFile) -> Path:
    """Existing files are not overwritten."""
    suffix = Path(file.filename).suffix
    while (path := folder / readable_name(item.label, item.seed, number, suffix)).exists():
        number += 1
    return path
