"""Run the benchmarks and print a table with ratios, or JSON."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from bench import clients, comfy, console, desk, fleet, gpu, http, page, scaling, starts, viewers, worker
from bench.cycle import cycle_rate, many_per_call, one_at_a_time, sqlite_rate
from bench.figure import Figure
from bench.latency import hot_share, lease_latency
from bench.postgres import Server, postgres_server
from bench.rivals import pgqueuer_rate, procrastinate_rate

RESULTS = Path("bench-results.json")
Measure = Callable[[], Awaitable[float]]


def _ratio(name: str, value: float, baseline: str, other: float, at_least: float) -> Figure:
    ratio = value / other
    return Figure(name, value, "/s", baseline, ratio, f"≥ {at_least:g} ×", ratio >= at_least)


async def _rates(server: Server, rounds: int, scale: float) -> dict[str, float]:
    """Return the median rates of interleaved rounds, so that noise affects all of them equally."""
    measures: dict[str, Measure] = {
        "procrastinate, concurrency 32": lambda: procrastinate_rate(server, int(5_000 * scale)),
        "one job at a time": lambda: cycle_rate(
            server, one_at_a_time, jobs=int(8_000 * scale), workers=32, concurrency=1
        ),
        "pgqueuer, batch 10": lambda: pgqueuer_rate(server, int(30_000 * scale), 10),
        "10 per call": lambda: cycle_rate(
            server, many_per_call(10), jobs=int(8_000 * scale), workers=8, concurrency=10
        ),
        "pgqueuer, batch 100": lambda: pgqueuer_rate(server, int(60_000 * scale), 100),
        "100 per call": lambda: cycle_rate(
            server, many_per_call(100), jobs=int(16_000 * scale), workers=8, concurrency=100
        ),
    }
    found: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        for name, measure in measures.items():
            found[name].append(await measure())
            print(f"round {number + 1}/{rounds}  {name:<30} {found[name][-1]:>8.0f}/s", flush=True)
    return {name: statistics.median(rates) for name, rates in found.items()}


async def measure_engine(rounds: int, scale: float) -> list[Figure]:
    async with postgres_server() as server:
        rates = await _rates(server, rounds, scale)
        one, ten, hundred = rates["one job at a time"], rates["10 per call"], rates["100 per call"]
        slow, fast_10, fast_100 = (
            rates["procrastinate, concurrency 32"],
            rates["pgqueuer, batch 10"],
            rates["pgqueuer, batch 100"],
        )
        figures = [Figure(name, rate, "/s") for name, rate in rates.items() if name.startswith(("proc", "pgq"))]
        figures += [
            _ratio("cycles, 32 workers, one job at a time", one, "procrastinate", slow, 4),
            _ratio("cycles, 32 workers, one job at a time", one, "pgqueuer, batch 10", fast_10, 0.3),
            Figure("cycles, 8 workers, 10 per call", ten, "/s", "pgqueuer, batch 10", ten / fast_10),
            _ratio("cycles, 8 workers, 100 per call", hundred, "pgqueuer, batch 100", fast_100, 0.25),
        ]
        few = await lease_latency(server, rows=1_000, queued=100)
        many = await lease_latency(server, rows=int(1_000_000 * min(scale, 1)), queued=int(100_000 * min(scale, 1)))
        ratio = many.p50_ms / few.p50_ms
        share = 100 * await hot_share(server)
        figures += [
            Figure("lease p50, 1,000 rows", few.p50_ms, "ms"),
            Figure("lease p99, 1,000 rows", few.p99_ms, "ms"),
            Figure("lease p50, 1,000,000 rows", many.p50_ms, "ms", "1,000 rows", ratio, "≤ 1.2 ×", ratio <= 1.2),
            Figure("lease p99, 1,000,000 rows", many.p99_ms, "ms", "1,000 rows", many.p99_ms / few.p99_ms),
            Figure("heartbeats that are HOT updates", share, "%", goal="≥ 95 %", is_met=share >= 95),
        ]
    with tempfile.TemporaryDirectory(prefix="bench-sqlite-") as folder:
        rate = await sqlite_rate(Path(folder), jobs=int(2_000 * scale))
    return [*figures, Figure("cycles on SQLite, 32 workers, one at a time", rate, "/s")]


async def measure_http(scale: float) -> list[Figure]:
    async with postgres_server() as server:
        return await http.measure(server, scale, await procrastinate_rate(server, int(5_000 * scale)))


async def measure_viewers(scale: float) -> list[Figure]:
    async with postgres_server() as server:
        return await viewers.measure(server, scale)


async def measure_clients(scale: float) -> list[Figure]:
    async with postgres_server() as server:
        return await clients.measure(server, scale)


def _runs(measure: Callable[[float], Coroutine[Any, Any, list[Figure]]]) -> Callable[[int, float], list[Figure]]:
    return lambda _rounds, scale: uvloop.run(measure(scale))


AREAS: dict[str, Callable[[int, float], list[Figure]]] = {
    "engine": lambda rounds, scale: uvloop.run(measure_engine(rounds, scale)),
    "http": _runs(measure_http),
    "comfy": _runs(comfy.measure),
    "worker": _runs(worker.measure),
    "desk": _runs(desk.measure),
    "starts": _runs(starts.measure),
    "page": _runs(page.measure),
    "viewers": _runs(measure_viewers),
    "clients": _runs(measure_clients),
    "scaling": _runs(scaling.measure),
    "fleet": lambda _rounds, scale: fleet.measure(scale),
    "gpu": _runs(gpu.measure),
    "console": _runs(console.measure),
}


def show(figures: list[Figure]) -> None:
    table = Table("figure", "value", "compared with", "ratio", "goal", "met")
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        is_met = {None: "", True: "yes", False: "no"}[figure.is_met]
        digits = 0 if figure.unit == "/s" else 2
        table.add_row(
            figure.name, f"{figure.value:,.{digits}f} {figure.unit}", figure.baseline, ratio, figure.goal, is_met
        )
    Console(width=130).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds over all rates; the median counts")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the numbers of jobs and rows")
    parser.add_argument(
        "--only",
        choices=list(AREAS),
        help="the queue, the server, the client and the pool, the worker, the desk, the start of commands, "
        "the web app, 200 viewers of a server, the APIs of ComfyUI's clients, the scaling loop, the scaling policies, "
        "several ComfyUI on one GPU, or the console",
    )
    options = parser.parse_args()
    # The garbage collector is set as in a started server. The other queues run in this process and also benefit.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    names = AREAS if options.only is None else (options.only,)
    figures = [figure for name in names for figure in AREAS[name](options.rounds, options.scale)]
    show(figures)
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.machine(),
        # of the last fifteen minutes, because other load makes times longer
        "load": os.getloadavg()[2],
    }
    RESULTS.write_text(json.dumps({"machine": machine, "figures": [asdict(figure) for figure in figures]}, indent=2))
    print(f"saved as {RESULTS}")


if __name__ == "__main__":
    main()
