"""The rules that the rig is tried on are where its mutants say they are, and only their own promises count."""

import pytest

from tests.soak.mutants import SOAK_MUTANTS, SoakMutant, noticed
from tests.soak.seeds import Result


@pytest.mark.parametrize("mutant", SOAK_MUTANTS, ids=lambda mutant: mutant.name)
def test_text_of_a_mutant_is_in_the_source_once(mutant: SoakMutant) -> None:
    assert [change.found for change in mutant.changes] == [1] * len(mutant.changes)


def test_mutant_is_noticed_by_its_own_promise_alone() -> None:
    [mutant] = [each for each in SOAK_MUTANTS if each.name == "refund twice"]
    other = Result(seed=1, broken="the job 1 of ann is still queued: {}")
    line = "the balance of 1 is 14, its transactions come to 7"
    rig = Result(seed=2, broken=f"The rig itself broke:\n{line}", is_rig_broken=True)
    assert noticed(mutant, [Result(seed=3), other, rig]) is None
    own = Result(seed=4, broken=f"{other.broken}\n{line}")
    assert noticed(mutant, [other, rig, own]) == (4, line)
