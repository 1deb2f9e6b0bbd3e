"""The texts of the mutants occur in the source, and a mutant is caught only by its own guarantees."""

import pytest

from tests.soak.mutants import SOAK_MUTANTS, SoakMutant, find_catch
from tests.soak.seeds import Result


@pytest.mark.parametrize("mutant", SOAK_MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_text_occurs_once_in_the_source(mutant: SoakMutant) -> None:
    assert [change.found for change in mutant.changes] == [1] * len(mutant.changes)


def test_mutant_is_caught_only_by_its_own_guarantee() -> None:
    [mutant] = [mutant for mutant in SOAK_MUTANTS if mutant.name == "refund twice"]
    other = Result(seed=1, broken="the job 1 of ann is still queued: {}")
    line = "the balance of 1 is 14, its transactions come to 7"
    own_failure = Result(seed=2, broken=f"The soak test itself failed:\n{line}", is_own_failure=True)
    assert find_catch(mutant, [Result(seed=3), other, own_failure]) is None
    own = Result(seed=4, broken=f"{other.broken}\n{line}")
    assert find_catch(mutant, [other, own_failure, own]) == (4, line)
