"""The built-in script: run a template for each file of a folder.

It prints lines that `output_parser` understands: `[2/6] cat · try 1 · seed: 42`, `[2/6] 45% KSampler`, `[2/6] saved:
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
from comfyrelay.desk.batches.expand import MAX_SEED, PlannedItem, SeedPlan, expand
from comfyrelay.desk.batches.folders import inputs_in, readable_name
from comfyrelay.domain.bulk import SeedMode
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

# The share of the template's steps by profile: few steps for a draft, all for the final result.
PROFILES = {"look-dev": 0.4, "medium": 0.7, "production": 1.0}
_STEPS = ("steps", "start_at_step", "end_at_step")
# After these errors, the next item would fail as well.
_FATAL = (GraphRefused, NotInstalled, RunInterrupted, ServerRefused, ServerUnreachable)
# Minimum progress or time between logged progress lines.
_LOG_PROGRESS = 0.1
_LOG_SECONDS = 10.0

Write = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchOptions:
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


async def run_batch(comfy: ComfyClient, options: BatchOptions, *, write: Write, write_temporary: Write | None) -> int:
    """Run all items. Returns the number of failures.

    `write_temporary` writes lines that the next line may replace. Without it, progress is logged occasionally.
    """
    graph = _with_profile(load_graph(options.template), options.profile)
    for (node, name), value in options.changes.items():
        set_input(graph, node, name, value)
    template = _Template(graph, describe_graph(graph, await comfy.object_info()))
    items = _items(template, options, write)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for number, item in enumerate(items, 1):
        position = f"[{number}/{len(items)}]"
        run = _ItemRun(comfy, template, options, position, write=write, write_temporary=write_temporary)
        try:
            await run.run(item, number)
        except ComfyError as error:
            failed += 1
            write(f"{position} Error: {error.detail}")
            if isinstance(error, _FATAL):
                return failed + len(items) - number
    return failed


class _Template:
    """A graph, and the node inputs that each property sets."""

    def __init__(self, graph: Graph, described: DescribedWorkflow) -> None:
        self._graph = graph
        self.roles = described.roles
        self.output_node_id = described.output_node_id
        self.properties = {property_["key"]: property_ for property_ in described.properties}
        # The input for the folder's files. Other inputs keep the template's values.
        self.input = next((property_ for property_ in described.properties if property_["is_primary_input"]), None)
        self._positions = {
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
            for node_id, name in self._positions[key]:
                graph[node_id]["inputs"][name] = value
        return graph


class _ItemRun:
    """Runs one item and prints its progress."""

    def __init__(
        self,
        comfy: ComfyClient,
        template: _Template,
        options: BatchOptions,
        position: str,
        *,
        write: Write,
        write_temporary: Write | None,
    ) -> None:
        self._comfy = comfy
        self._template = template
        self._options = options
        self._position = position
        self._write = write
        self._write_temporary = write_temporary
        self._last_text = ""
        self._logged_progress, self._logged_at = 0.0, time.monotonic()

    async def run(self, item: PlannedItem, number: int) -> None:
        seed = "" if item.seed is None else f" · seed: {item.seed}"
        self._write(f"{self._position} {item.label}{seed}")
        graph = await self._graph(item)
        if not self._options.wait:
            self._write(f"{self._position} queued: {await self._comfy.submit(graph)}")
            return
        result = await self._comfy.run(
            graph,
            wanted=[self._template.output_node_id],
            # Videos may take long, so there is no timeout.
            timeouts=RunTimeouts(run_seconds=None),
            on_event=self._on_event,
        )
        outputs = [file for file in result.files if file.type == "output"] or list(result.files[:1])
        if not outputs:
            raise NoOutput("The graph finished without an output file.")
        for file in outputs:
            path = await asyncio.to_thread(_free_path, self._options.out, item, number, file)
            await self._comfy.download(file, path)
            self._write(f"{self._position} saved: {path.absolute()}")
        self._write(f"{self._position} 100%")

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
        if text != self._last_text and (self._write_temporary is not None or self._should_log(event.progress)):
            self._last_text = text
            (self._write_temporary or self._write)(f"{self._position} {text}")

    def _should_log(self, progress: float) -> bool:
        now = time.monotonic()
        if progress < self._logged_progress + _LOG_PROGRESS and now < self._logged_at + _LOG_SECONDS:
            return False
        self._logged_progress, self._logged_at = progress, now
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


def _items(template: _Template, options: BatchOptions, write: Write) -> list[PlannedItem]:
    if template.input is None:
        raise InvalidInput("The template loads no image or video.")
    kind = template.input["type"]
    inputs = [path for path in inputs_in(options.input_root, options.input_subdir) if kind_of(path.name) == kind]
    if not inputs:
        raise InvalidInput(f"There is no {kind} in {options.input_subdir!r}.")
    roles = template.roles
    for role, text in (("prompt", options.positive), ("negative_prompt", options.negative)):
        if text and role not in roles:
            name = role.replace("_", " ")
            write(f"Note: the template has no {name}, so the given {name} is not used.")
    return expand(
        inputs=inputs,
        prompts=[options.positive] if "prompt" in roles else [],
        negatives=[options.negative] if options.negative is not None and "negative_prompt" in roles else [],
        tries=options.tries,
        seeds=_seeds(template, options),
        roles=roles,
        rng=random.SystemRandom(),
    ).items


def _seeds(template: _Template, options: BatchOptions) -> SeedPlan | None:
    if (key := template.roles.get("seed")) is None:
        # `expand` reports the missing role.
        return SeedPlan() if options.randomize_seed or options.seed is not None else None
    seed = template.properties[key]
    return SeedPlan(
        mode=SeedMode.RANDOM if options.randomize_seed else SeedMode.INCREMENT,
        start=options.seed if options.seed is not None else int(seed["default_value"]),
        maximum=min(MAX_SEED, int(seed.get("maximum", MAX_SEED))),
    )


def _free_path(folder: Path, item: PlannedItem, number: int, file: OutputFile) -> Path:
    """Return a path that does not exist yet."""
    suffix = Path(file.filename).suffix
    while (path := folder / readable_name(item.label, item.seed, number, suffix)).exists():
        number += 1
    return path
