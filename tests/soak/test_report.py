"""The report of the soak test covers all runs of a seed."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.soak.__main__ import main
from tests.soak.seeds import Result


def test_seed_that_failed_once_remains_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        Result(seed=7, broken="a guarantee", seconds=30, fault_seconds=5),
        Result(seed=7, seconds=10, fault_seconds=3),
        Result(seed=8, seconds=40, fault_seconds=38, skipped=["fill the disk of core: nothing can be mounted here"]),
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(asdict(run)) + "\n" for run in runs))
    assert main(["--report", "--folder", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "2 seeds, 3 runs" in text
    assert "broken: 7 (1 of 2 runs)" in text
    assert "skipped, 1 times: fill the disk of core: nothing can be mounted here" in text
    assert "slowest, without the duration of faults: seed 7 25.0 s, seed 7 7.0 s, seed 8 2.0 s; 1 over 20 s" in text
