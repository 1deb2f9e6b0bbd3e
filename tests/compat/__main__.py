"""`python -m tests.compat`: run the compatibility suite with each version of ComfyUI, and print the table.

Each version is a folder below `--folder`, for example `.compat/0.28.0`, with a Python environment `.venv` in it. What
is missing is fetched: the code by git, the packages by pip. The outcomes stay in `--folder`, so that versions, and with
`-k` rows, can be tried one after the other.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from comfyrelay.comfyui.processes.python import python_in
from comfyrelay.comfyui.versions import TRIED
from tests.support.paths import QUEUE_PACK, ROOT

HERE = Path(__file__).parent
FOLDER = Path(".compat")
# Fetched for the run and never committed.
REPOSITORY = "https://github.com/Comfy-Org/ComfyUI"
EVERYWHERE = "https://github.com/chrisgoringe/cg-use-everywhere"
EVERYWHERE_COMMIT = "a3952a4480a07fc3df03ec8be315dfcd11bd5135"
PAGE = ROOT / "docs/reference/comfyui-versions.md"
# The versions of a fleet that has two.
MIXED = ("0.7.0", "0.28.0")
# A real ComfyUI imports torch and all nodes before it answers.
PATIENCE_SECONDS = "900"
MARKS = {"passed": "yes", "failed": "**no**", "skipped": "not tried", "absent": "not there", "others": "–"}


def main(words: Sequence[str]) -> int:
    options = _options(words)
    for version in options.versions:
        folder = options.folder / version
        try:
            _prepare(folder, version)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.stderr.write(
                f"ComfyUI {version} could not be fetched: {error}\nPut its code into {folder} and a Python environment "
                f"with its requirements.txt into {folder / '.venv'}, then run this again.\n"
            )
            return 2
        sys.stdout.write(f"ComfyUI {version}\n")
        _run_tests("suite.py", options.folder / f"{version}.json", options.arguments, COMPAT_COMFYUI=folder.absolute())
    mixed = options.folder / "mixed.json"
    if set(MIXED) <= set(options.versions):
        _run_tests("mixed_fleet.py", mixed, options.arguments, COMPAT_FOLDER=options.folder.absolute())
    table = {version: _stored(options.folder / f"{version}.json") for version in TRIED}
    for version in TRIED:
        table[version] |= _stored(mixed) if version in MIXED else dict.fromkeys(_stored(mixed), "others")
    rendered = _render(table)
    sys.stdout.write(rendered)
    if options.write:
        _write_page(rendered)
    return int(any(outcome == "failed" for outcomes in table.values() for outcome in outcomes.values()))


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make compat ARGS=…", description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="*", default=TRIED, help=f"versions to try; default: {' '.join(TRIED)}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the versions; default: %(default)s")
    parser.add_argument("--write", action="store_true", help="write the table into the documentation")
    parser.add_argument("-k", dest="arguments", help="run only the tests that match, as in pytest")
    return parser.parse_args(words)


def _prepare(folder: Path, version: str) -> None:
    """Fetch what is missing of a version: its code, its packages, and the node packs that are tried."""
    if not (folder / "main.py").exists():
        sys.stdout.write(f"Fetching ComfyUI {version}\n")
        _call("git", "clone", "--quiet", "--depth", "1", "--branch", f"v{version}", REPOSITORY, str(folder))
    if python_in(folder / ".venv") is None:
        sys.stdout.write(f"Installing the packages of ComfyUI {version}; this takes minutes\n")
        _call(sys.executable, "-m", "venv", str(folder / ".venv"))
        python = str(python_in(folder / ".venv"))
        # torch must be of the release of torchaudio, which appears later and accepts every torch when it is installed.
        _call(python, "-m", "pip", "install", "--quiet", "--no-deps", "torchaudio")
        version = "import importlib.metadata as found; print(found.version('torchaudio').partition('+')[0])"
        release = subprocess.run([python, "-c", version], check=True, capture_output=True, text=True).stdout.strip()
        _call(python, "-m", "pip", "install", "--quiet", f"torch=={release}", "torchvision", f"torchaudio=={release}")
        # Older versions import requests without naming it.
        _call(python, "-m", "pip", "install", "--quiet", "requests", "--requirement", str(folder / "requirements.txt"))
    for source, name in ((HERE / "node_pack", "comfyrelay_compat"), (QUEUE_PACK, QUEUE_PACK.name)):
        pack = folder / "custom_nodes" / name
        if pack.is_symlink():
            pack.unlink()
        shutil.rmtree(pack, ignore_errors=True)
        shutil.copytree(source, pack, ignore=shutil.ignore_patterns("__pycache__"))
    if not (everywhere := folder / "custom_nodes" / "cg-use-everywhere").exists():
        try:
            _call("git", "clone", "--quiet", EVERYWHERE, str(everywhere))
            _call("git", "-C", str(everywhere), "checkout", "--quiet", EVERYWHERE_COMMIT)
        except subprocess.CalledProcessError:
            shutil.rmtree(everywhere, ignore_errors=True)
            sys.stderr.write("Use Everywhere could not be fetched, and is not tried.\n")


def _call(*command: str) -> None:
    subprocess.run(command, check=True)


def _run_tests(name: str, stored: Path, matching: str | None, **variables: Path) -> None:
    """Run a file of tests in its own process, and store the outcome of each row."""
    report = stored.with_suffix(".jsonl")
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=3600", "-p", "tests.compat.report", str(HERE / name)]
    if matching is not None:
        command += ["-k", matching]
    own = {name: str(value) for name, value in {**variables, "COMPAT_REPORT": report.absolute()}.items()}
    environment = {"TESTS_PATIENCE_SECONDS": PATIENCE_SECONDS, **os.environ, **own}
    subprocess.run(command, check=False, cwd=ROOT, env=environment)
    # With `-k`, a file may have no test that matches, and the other rows keep their outcomes.
    known = {} if matching is None else _stored(stored)
    if report.exists():
        known |= _worst(json.loads(line) for line in report.read_text("utf-8").splitlines())
    elif matching is None:
        known = {f"{name} ran": "failed"}
    stored.write_text(json.dumps(known), "utf-8")


def _stored(path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def _worst(outcomes: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the worst outcome of each row; a row may have several tests."""
    found: dict[str, str] = {}
    for outcome in outcomes:
        row = outcome["row"]
        if outcome["outcome"] != "passed" or row not in found:
            found[row] = outcome["outcome"]
    return found


def _render(table: Mapping[str, Mapping[str, str]]) -> str:
    rows = list(dict.fromkeys(row for outcomes in table.values() for row in outcomes))
    lines = [f"| Tried | {' | '.join(table)} |", f"|---|{'---|' * len(table)}"]
    lines += [
        f"| {row} | {' | '.join(MARKS[outcomes.get(row, 'skipped')] for outcomes in table.values())} |" for row in rows
    ]
    return "\n".join(lines) + "\n"


def _write_page(table: str) -> None:
    """Replace the table of the page and its date."""
    today = datetime.now(UTC).date().isoformat()
    replace_part("table", f"Tried on {today}:\n\n{table}")


def replace_part(name: str, content: str) -> None:
    """Replace the part of the page between two comments."""
    before, start, rest = PAGE.read_text("utf-8").partition(f"<!-- {name} -->\n")
    after = rest.partition(f"<!-- end of {name} -->")[2]
    PAGE.write_text(f"{before}{start}{content}\n<!-- end of {name} -->{after}", "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
