"""The text of scaling decisions in `comfyrelay fleet decisions`."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from comfyrelay.cli.fleet.run import _done


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ({}, "nothing"),
        # An AWS group accepts a number of machines and launches them later.
        ({"launched": 0, "refused": 0, "ordered": 3}, "3 ordered"),
        ({"launched": 2, "refused": 1, "ordered": 1, "ended": 4}, "1 ordered, 2 launched, 1 refused, 4 ended"),
        ({"requested": 2}, "requested 2"),
        ({"launch_failed": "away"}, "failed"),
    ],
)
def test_outcome_counts_machines_by_result(outcome: dict[str, Any], text: str) -> None:
    assert _done(cast("Any", SimpleNamespace(outcome=outcome))) == text
