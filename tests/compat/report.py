"""A pytest plugin that writes the outcome of each test with its row of the table."""

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

# The reason of a test that is skipped because the version has no such feature.
ABSENT = "this version has no such feature"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    is_end = report.when == "call" or not report.passed
    if is_end and (path := os.environ.get("COMPAT_REPORT")) is not None:
        row = (getattr(item, "function").__doc__ or item.name).splitlines()[0]  # noqa: B009
        outcome: str = "failed" if report.failed else report.outcome
        if outcome == "skipped" and ABSENT in str(report.longrepr):
            outcome = "absent"
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"row": row, "outcome": outcome}) + "\n")
    return report
