"""Check that the soak test detects broken rules: a few seeds run against changed copies of the source."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.__main__ import PACKAGE, copy
from tests.mutants.table import MUTANTS
from tests.soak.seeds import Result
from tests.support.paths import ROOT

SEEDS = 20


@dataclass(frozen=True, kw_only=True)
class Change:
    """A text `old`, which occurs once in `file` (a path inside the package) and is replaced by `new`."""

    file: str
    old: str
    new: str

    @property
    def found(self) -> int:
        return (ROOT / "src" / PACKAGE / self.file).read_text("utf-8").count(self.old)


@dataclass(frozen=True, kw_only=True)
class SoakMutant:
    name: str
    changes: Sequence[Change]
    # patterns for the report; at least one must match a broken guarantee
    breaks: Sequence[str]


def _known(name: str) -> Change:
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == name]
    return Change(file=mutant.file, old=mutant.old, new=mutant.new)


SOAK_MUTANTS = (
    SoakMutant(
        name="no fence",
        changes=[
            _known("no fence: any token settles a leased dispatch"),
            # also drop the check of the worker; with it, only a worker with a second lease for the job could get
            # through
            Change(
                file="services/queue/settle.py",
                old="report.lease_token) and report.worker_id in {None, dispatch.worker_id}\n",
                new="report.lease_token)\n",
            ),
        ],
        breaks=["was accepted, but its lease .* ended as"],
    ),
    SoakMutant(
        name="no outbox, of decisions",
        changes=[_known("a decision leaves no entry in the outbox")],
        breaks=["job .* is still", "had to repair"],
    ),
    SoakMutant(
        name="no outbox, of submissions",
        changes=[_known("a submission leaves no entry in the outbox")],
        breaks=["job .* is still", "had to repair"],
    ),
    SoakMutant(
        name="outbox entry skipped",
        changes=[_known("an entry leaves the outbox although it could not be applied")],
        breaks=["job .* is still", "had to repair"],
    ),
    SoakMutant(
        name="refund twice",
        changes=[
            # two guards prevent a second refund, so both are removed
            _known("a refund is not idempotent"),
            Change(
                file="domain/queue/settlement.py",
                old="update.version == settled.job.dispatch_version + 1 and settled.job.status not in TERMINAL_JOB",
                new="update.version == settled.job.dispatch_version + (settled.job.status not in TERMINAL_JOB)",
            ),
        ],
        # the database rejects a second transaction, so only the balance shows the second refund
        breaks=["the balance of"],
    ),
    SoakMutant(
        name="output overwritten",
        changes=[
            # the upload itself becomes the output and is not removed
            _known("an output is not copied before completion"),
            Change(
                file="services/queue/outputs.py",
                old="copies if settlement.is_repeat else [output.upload for output in copied]",
                new="[]",
            ),
        ],
        breaks=["the output of .* is not what its worker reported"],
    ),
)


def run_mutants(words: Sequence[str] = ()) -> int:
    """Try all mutants, or only mutants whose names contain one of the words; return 1 if one escapes."""
    mutants = [mutant for mutant in SOAK_MUTANTS if not words or any(word in mutant.name for word in words)]
    escaped = 0
    for mutant in mutants:
        began_at = time.monotonic()
        results = _results(mutant)
        caught = find_catch(mutant, results)
        escaped += caught is None
        failures = [result.broken for result in results if result.broken]
        verdict = f"caught by seed {caught[0]}: {caught[1]}" if caught else f"ESCAPED {len(results)} seeds {failures}"
        sys.stdout.write(f"{mutant.name:28}{verdict} ({time.monotonic() - began_at:.0f} s)\n")
        sys.stdout.flush()
    return 1 if escaped else 0


def find_catch(mutant: SoakMutant, results: Sequence[Result]) -> tuple[int, str] | None:
    """Return the seed that reported a guarantee broken by this mutant, and its report; other failures prove nothing."""
    for result in results:
        if (line := result.line_of(mutant.breaks)) is not None:
            return result.seed, line[:120]
    return None


def _results(mutant: SoakMutant) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="soak-mutant-") as folder:
        home = copy(Path(folder) / "src")
        for change in mutant.changes:
            assert change.found == 1, (
                f"{change.file} contains the text of the mutant {mutant.name!r} {change.found} times instead of once"
            )
            file = home / PACKAGE / change.file
            file.write_text(file.read_text("utf-8").replace(change.old, change.new), "utf-8")
        command = [sys.executable, "-W", "ignore", "-m", "tests.soak", "--until-broken", *mutant.breaks]
        subprocess.run(
            [*command, "--seeds", str(SEEDS), "--folder", folder],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(home)},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        file = Path(folder) / "results.jsonl"
        # the file is missing if no world could be opened
        return [Result(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
