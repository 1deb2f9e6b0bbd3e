"""The rules that the rig is tried on are where its twins say they are."""

import pytest

from tests.soak.twins import SOAK_TWINS, SoakTwin


@pytest.mark.parametrize("twin", SOAK_TWINS, ids=lambda twin: twin.name)
def test_the_text_of_a_twin_is_in_the_source_once(twin: SoakTwin) -> None:
    assert [change.found for change in twin.changes] == [1] * len(twin.changes)
