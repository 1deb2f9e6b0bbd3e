"""`python -m tests.twins`: break each rule on purpose, and fail if no test notices.

The package is copied, the tests are run against the sound copy first, then against each twin in turn. A twin whose text
is not in the source any more is an error: the source has moved on, and the twin must follow.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.twins.table import TWINS, Twin

ROOT = Path(__file__).parents[2]
PACKAGE = "comfyrelay"
AT_ONCE = 2
# Only one that hangs takes so long: it counts as caught, and a busy machine is slow, not wrong.
LONGEST_SECONDS = 600
# All others take longer to import than the tests take.
PLUGINS = ("no:cacheprovider", "pytest_asyncio.plugin", "pytest_timeout")
# pytest's exit codes: tests failed; all else that is not 0 means that they did not even run.
PASSED, FAILED = 0, 1


@dataclass(frozen=True, kw_only=True)
class Decision:
    twin: Twin
    word: str
    seconds: float
    text: str = ""


def main(words: Sequence[str]) -> int:
    """Try all twins, or those whose names contain one of the words."""
    console = Console()
    twins = [each for each in TWINS if not words or any(word in each.name for word in words)]
    outdated = [each for each in twins if source(each).count(each.old) != 1]
    if outdated:
        for each in outdated:
            found = source(each).count(each.old)
            console.print(
                f"{each.file}: the text of the twin {each.name!r} is there {found} times, not once. Update it."
            )
        return 2
    with tempfile.TemporaryDirectory(prefix="twins-") as folder, ThreadPoolExecutor(AT_ONCE) as threads:
        sound = copy(Path(folder) / "sound")
        failures = [each for each in threads.map(lambda job: run(sound, *job), selections(twins)) if each[0] != PASSED]
        if failures:
            console.print(
                "The tests do not even pass on the sound source:",
                *(text for _, text in failures),
                sep="\n",
                markup=False,
            )
            return 2
        verdicts = list(threads.map(lambda twin: judge(twin, Path(folder)), twins))
    console.print(table(verdicts))
    escaped = [verdict for verdict in verdicts if verdict.word != "caught"]
    for verdict in escaped:
        console.print(f"\n{verdict.twin.name}: {verdict.word}\n{verdict.text}", markup=False)
    return 1 if escaped else 0


def selections(twins: Sequence[Twin]) -> list[tuple[str, str]]:
    """One call of pytest for each file: all that its twins select."""
    by_file: dict[str, dict[str, None]] = {}
    for each in twins:
        by_file.setdefault(each.tests, {})[f"({each.only})"] = None
    return [(tests, " or ".join(only)) for tests, only in by_file.items()]


def source(twin: Twin) -> str:
    return (ROOT / "src" / PACKAGE / twin.file).read_text("utf-8")


def copy(folder: Path) -> Path:
    # compiled modules too: they know their sources by time and size, so only what a twin changes is compiled anew
    # but for those that somebody is compiling this moment
    shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("*.pyc.*"))
    return folder


def judge(twin: Twin, folder: Path) -> Decision:
    started = time.monotonic()
    home = copy(folder / str(TWINS.index(twin)))
    broken = home / PACKAGE / twin.file
    broken.write_text(source(twin).replace(twin.old, twin.new), "utf-8")
    code, text = run(home, twin.tests, twin.only)
    word = {PASSED: "ESCAPED", FAILED: "caught"}.get(code, f"did not run ({code})")
    return Decision(twin=twin, word=word, seconds=time.monotonic() - started, text=text)


def run(home: Path, tests: str, only: str) -> tuple[int, str]:
    """Run tests against the package in `home`; returns pytest's exit code and the end of what it printed."""
    python = [sys.executable, "-B"]
    environment = {**os.environ, "PYTHONPATH": str(home), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    imported = subprocess.run(
        [*python, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(imported).is_relative_to(home):
        return -1, f"The tests would import {imported}, which is not the twin in {home}."
    # Two runs at the same time must not clear away each other's databases.
    scratch = tempfile.mkdtemp(prefix="scratch-", dir=home.parent)
    plugins = [word for name in PLUGINS for word in ("-p", name)]
    options = ["-x", "-q", *plugins, f"--basetemp={scratch}", tests, "-k", only]
    try:
        done = subprocess.run(
            [*python, "-m", "pytest", *options],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return FAILED, "It hung."
    return done.returncode, "\n".join(done.stdout.splitlines()[-15:])


def table(verdicts: Sequence[Decision]) -> Table:
    shown = Table("broken rule", "file", "verdict", "seconds")
    for each in verdicts:
        color = "green" if each.word == "caught" else "red"
        shown.add_row(each.twin.name, each.twin.file, f"[{color}]{each.word}[/]", f"{each.seconds:.0f}")
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
