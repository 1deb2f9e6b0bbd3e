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
# More than there are cores, because some wait for their processes.
AT_ONCE = 3
# The timeout of waits in a mutant's tests. Tests of the unchanged source have the normal timeout.
PATIENCE_SECONDS = 20
# Only a hanging mutant takes this long. It counts as caught; a busy machine is slow, not wrong.
LONGEST_SECONDS = 600
# All other plugins take longer to import than the tests run.
PLUGINS = ("no:cacheprovider", "pytest_asyncio.plugin", "pytest_timeout")
# pytest's exit code for failed tests. Any other nonzero code means that they did not run.
PASSED, FAILED, WRONG = 0, 1, 100
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
PRINTED = "printed.txt"
FORKING = multiprocessing.get_context("fork")


@dataclass(frozen=True, kw_only=True)
class Decision:
    mutant: Mutant
    word: str
    seconds: float
    text: str = ""


def main(words: Sequence[str]) -> int:
    """Try all mutants, or those whose names contain one of the words."""
    console = Console()
    mutants = [each for each in MUTANTS if not words or any(word in each.name for word in words)]
    outdated = [each for each in mutants if source(each).count(each.old) != 1]
    if outdated:
        for each in outdated:
            found = source(each).count(each.old)
            console.print(
                f"{each.file}: the text of the mutant {each.name!r} is there {found} times, not once. Update it."
            )
        return 2
    for name in LIBRARIES:
        import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(AT_ONCE) as threads:
        sound = copy(Path(folder) / "sound")
        wanted = selections(mutants)
        shares = [share for number in range(AT_ONCE) if (share := wanted[number::AT_ONCE])]
        failures = [each for each in threads.map(lambda share: run(sound, share), shares) if each[0] != PASSED]
        if failures:
            console.print(
                "The tests do not even pass on the sound source:",
                *(text for _, text in failures),
                sep="\n",
                markup=False,
            )
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


def judge(mutant: Mutant, folder: Path) -> Decision:
    started = time.monotonic()
    home = copy(folder / str(MUTANTS.index(mutant)))
    broken = home / PACKAGE / mutant.file
    broken.write_text(source(mutant).replace(mutant.old, mutant.new), "utf-8")
    code, text = run(home, [(mutant.tests, mutant.only)], TESTS_PATIENCE_SECONDS=str(PATIENCE_SECONDS))
    word = {PASSED: "ESCAPED", FAILED: "caught"}.get(code, f"did not run ({code})")
    return Decision(mutant=mutant, word=word, seconds=time.monotonic() - started, text=text)


def run(home: Path, selected: Sequence[tuple[str, str]], **variables: str) -> tuple[int, str]:
    """Run tests against the package in `home`; returns pytest's exit code and the end of its output."""
    # Parallel runs must not delete each other's databases.
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=home.parent))
    child = FORKING.Process(target=_run, args=(home, selected, scratch, variables))
    child.start()
    child.join(LONGEST_SECONDS)
    if child.exitcode is None:
        assert child.pid is not None
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
        return FAILED, "It hung."
    return child.exitcode, "\n".join((scratch / PRINTED).read_text("utf-8").splitlines()[-15:])


def _run(home: Path, selected: Sequence[tuple[str, str]], scratch: Path, variables: Mapping[str, str]) -> None:
    """Run in a separate process with everything loaded except the package and the tests."""
    # if it hangs, its child processes are stopped with it
    os.setsid()
    out = os.open(scratch / PRINTED, os.O_WRONLY | os.O_CREAT)
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
        code = WRONG
    plugins = [word for name in PLUGINS for word in ("-p", name)]
    for tests, only in selected:
        if code == PASSED:
            code = pytest.main(["-x", "-q", *plugins, f"--basetemp={scratch / 'base'}", tests, "-k", only])
    sys.stdout.flush()
    # exit at once: the imports need no cleanup
    os._exit(int(code))


def table(verdicts: Sequence[Decision]) -> Table:
    shown = Table("broken rule", "file", "verdict", "seconds")
    for verdict in verdicts:
        color = "green" if verdict.word == "caught" else "red"
        shown.add_row(verdict.mutant.name, verdict.mutant.file, f"[{color}]{verdict.word}[/]", f"{verdict.seconds:.0f}")
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
