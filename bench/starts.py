"""Times of commands from process start to exit, and of `comfyrelay up` until it answers.

The commands alternate with a bare interpreter. Its CPU time is the unit, because a busy machine slows down both.
"""

import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.desk import DeskProcess
from bench.figure import Figure

ROUNDS = 9
BARE = "bare interpreter"
UP = "start of `up`, simulator, existing folder"
COMMANDS = {
    BARE: ["-c", "pass"],
    # The lower bounds: a command cannot start faster than it imports these.
    "libraries of `--help`": ["-c", "import typer.rich_utils"],
    "libraries of `jobs`": ["-c", "import httpx, pydantic_settings, rich.table, typer"],
    "libraries of `up`": [
        "-c",
        "import fastapi, httpx, pydantic_settings, sqlalchemy.dialects.postgresql, sqlalchemy.ext.asyncio, structlog, "
        "typer, uvicorn",
    ],
    "import of the desk": ["-c", "import comfyrelay.desk.desk"],
    "comfyrelay --help": ["-m", "comfyrelay", "--help"],
    "comfyrelay worker --help": ["-m", "comfyrelay", "worker", "--help"],
    "comfyrelay jobs": ["-m", "comfyrelay", "jobs"],
}
GOALS = {"comfyrelay --help": 0.15, "comfyrelay jobs": 0.3, UP: 1.0}


async def measure(scale: float) -> list[Figure]:
    rounds = max(1, round(ROUNDS * scale))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in (*COMMANDS, UP)}
    with tempfile.TemporaryDirectory(prefix="bench-starts-") as folder:
        desk = DeskProcess(Path(folder), None)
        # The first round writes the bytecode and creates the databases.
        for number in range(rounds + 1):
            started = await desk.start()
            try:
                runs = {name: await _run(arguments, desk.environment) for name, arguments in COMMANDS.items()}
            finally:
                await desk.stop()
            if number:
                for name, run in {**runs, UP: started}.items():
                    found[name].append(run)
    bare_seconds = min(cpu for _, cpu in found[BARE])
    return [_figure(name, runs, bare_seconds) for name, runs in found.items()]


def _figure(name: str, runs: Sequence[tuple[float, float]], bare_seconds: float) -> Figure:
    seconds, cpu_seconds = statistics.median(run[0] for run in runs), min(run[1] for run in runs)
    goal = GOALS.get(name)
    return Figure(
        name,
        seconds,
        "s",
        f"CPU {cpu_seconds:.2f} s, of a {BARE} {bare_seconds:.3f} s",
        ratio=cpu_seconds / bare_seconds,
        goal="" if goal is None else f"≤ {goal:g} s",
        is_met=None if goal is None else seconds <= goal,
    )


async def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the seconds from process start to exit, and the CPU seconds."""
    used, began = _children_seconds(), time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments), env={**os.environ, **environment}, stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0, arguments
    return time.perf_counter() - began, _children_seconds() - used


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
