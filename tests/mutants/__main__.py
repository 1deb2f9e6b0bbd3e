"""`python -m tests.mutants`: break each rule in turn, and fail if no test notices.

The package is copied. The tests run against the unchanged copy first, then against each mutant. A mutant whose text is
no longer in the source is an error and must be updated.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from tests.mutants.table import MUTANTS, Mutant
from tests.support.paths import ROOT

PACKAGE = "comfyrelay"
# More than the cores, because some tests wait for processes.
MAX_PARALLEL = 3
# Timeout of the waits in a mutant's tests. Tests of the unchanged source have the normal timeout.
PATIENCE_SECONDS = 20
# Only a hanging mutant takes this long, and it counts as caught.
TIMEOUT_SECONDS = 600
# Importing all other plugins takes longer than the tests.
PLUGINS = ("no:cacheprovider", "pytest_asyncio.plugin", "pytest_timeout")
# pytest's exit code for failed tests. Any other nonzero code means that they did not run.
PASSED, FAILED, WRONG_PACKAGE = 0, 1, 100
# Slow third-party imports: one process loads them and forks for each mutant.
LIBRARIES = (
    "alembic.command",
    "asyncpg",
    "boto3",
    "fastapi",
    "httpx",
    "hypothesis",
    "playwright.async_api",
    "pydantic_settings",
    "pytest_asyncio.plugin",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "uvicorn",
)
OUTPUT_FILE = "output.txt"
FORKING = multiprocessing.get_context("fork")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    mutant: Mutant
    word: str
    seconds: float
    text: str = ""


def main(words: Sequence[str]) -> int:
    """Try all mutants, or those whose names contain one of the words."""
    console = Console()
    mutants = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    counts = {mutant: source(mutant).count(mutant.old) for mutant in mutants}
    outdated = {mutant: count for mutant, count in counts.items() if count != 1}
    for mutant, count in outdated.items():
        console.print(
            f"{mutant.file} contains the text of the mutant {mutant.name!r} {count} times instead of once. "
            "Update tests/mutants/table.py."
        )
    if outdated:
        return 2
    for name in LIBRARIES:
        import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(MAX_PARALLEL) as threads:
        unchanged = copy(Path(folder) / "unchanged")
        selected = selections(mutants)
        shares = [share for number in range(MAX_PARALLEL) if (share := selected[number::MAX_PARALLEL])]
        runs = threads.map(lambda share: run(unchanged, share), shares)
        failures = [text for code, text in runs if code != PASSED]
        if failures:
            console.print("The tests fail on the unchanged source:", *failures, sep="\n", markup=False)
            return 2
        verdicts = list(threads.map(lambda mutant: judge(mutant, Path(folder)), mutants))
    console.print(table(verdicts))
    escaped = [verdict for verdict in verdicts if verdict.word != "caught"]
    for verdict in escaped:
        console.print(f"\n{verdict.mutant.name}: {verdict.word}\n{verdict.text}", markup=False)
    return 1 if escaped else 0


def selections(mutants: Sequence[Mutant]) -> list[tuple[str, str]]:
    """One pytest call per file, with all tests that its mutants select."""
    by_file: dict[str, dict[str, None]] = {}
    for mutant in mutants:
        by_file.setdefault(mutant.tests, {})[f"({mutant.only})"] = None
    return [(tests, " or ".join(only)) for tests, only in by_file.items()]


def source(mutant: Mutant) -> str:
    return (ROOT / "src" / PACKAGE / mutant.file).read_text("utf-8")


def copy(folder: Path) -> Path:
    # Copy compiled modules as well: Python compares time and size, so it recompiles only the changed module. Skip files
    # that another process is writing.
    shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("*.pyc.*"))
    return folder


def judge(mutant: Mutant, folder: Path) -> Verdict:
    started = time.monotonic()
    home = copy(folder / str(MUTANTS.index(mutant)))
    broken = home / PACKAGE / mutant.file
    broken.write_text(source(mutant).replace(mutant.old, mutant.new), "utf-8")
    code, text = run(home, [(mutant.tests, mutant.only)], TESTS_PATIENCE_SECONDS=str(PATIENCE_SECONDS))
    word = {PASSED: "ESCAPED", FAILED: "caught"}.get(code, f"did not run ({code})")
    return Verdict(mutant=mutant, word=word, seconds=time.monotonic() - started, text=text)


def run(home: Path, selected: Sequence[tuple[str, str]], **variables: str) -> tuple[int, str]:
    """Run tests against the package in `home`; returns pytest's exit code and the end of its output."""
    # Parallel runs must not delete each other's databases.
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=home.parent))
    child = FORKING.Process(target=_run, args=(home, selected, scratch, variables))
    child.start()
    child.join(TIMEOUT_SECONDS)
    if child.exitcode is None:
        assert child.pid is not None
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
        return FAILED, "The tests timed out."
    return child.exitcode, "\n".join((scratch / OUTPUT_FILE).read_text("utf-8").splitlines()[-15:])


def _run(home: Path, selected: Sequence[tuple[str, str]], scratch: Path, variables: Mapping[str, str]) -> None:
    """Run in a separate process with everything loaded except the package and the tests."""
    # if it hangs, its child processes are stopped with it
    os.setsid()
    out = os.open(scratch / OUTPUT_FILE, os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(out, number)
    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": str(home), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(home))
    imported = Path(str(import_module(PACKAGE).__file__))
    code: int = PASSED
    if not imported.is_relative_to(home):
        print(f"The tests would import {imported}, which is not the mutant in {home}.")
        code = WRONG_PACKAGE
    plugins = [word for name in PLUGINS for word in ("-p", name)]
    for tests, only in selected:
        if code == PASSED:
            code = pytest.main(["-x", "-q", *plugins, f"--basetemp={scratch / 'base'}", tests, "-k", only])
    sys.stdout.flush()
    # exit at once: the imports need no cleanup
    os._exit(int(code))


def table(verdicts: Sequence[Verdict]) -> Table:
    shown = Table("broken rule", "file", "verdict", "seconds")
    for verdict in verdicts:
        color = "green" if verdict.word == "caught" else "red"
        shown.add_row(verdict.mutant.name, verdict.mutant.file, f"[{color}]{verdict.word}[/]", f"{verdict.seconds:.0f}")
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
