"""The rules that the rig is tried on are where its twins say they are, and only their own promises count."""

import pytest

from tests.soak.seeds import Result
from tests.soak.twins import SOAK_TWINS, SoakTwin, noticed


@pytest.mark.parametrize("twin", SOAK_TWINS, ids=lambda twin: twin.name)
def test_the_text_of_a_twin_is_in_the_source_once(twin: SoakTwin) -> None:
    assert [change.found for change in twin.changes] == [1] * len(twin.changes)


def test_a_twin_is_noticed_by_its_own_promise_alone() -> None:
    [twin] = [each for each in SOAK_TWINS if each.name == "refund twice"]
    other = Result(seed=1, broken="the job 1 of ann is still queued: {}")
    line = "the balance of 1 is 14, its transactions come to 7"
    rig = Result(seed=2, broken=f"The rig itself broke:\n{line}", is_rig_broken=True)
    assert noticed(twin, [Result(seed=3), other, rig]) is None
    own = Result(seed=4, broken=f"{other.broken}\n{line}")
    assert noticed(twin, [other, rig, own]) == (4, line)
