"""The constants that system and soak tests override in processes exist."""

from types import ModuleType

import pytest

from tests.soak import world as soak
from tests.support import whole_system
from tests.system.autoscaling import test_whole_fleet

OVERRIDDEN = [
    *whole_system.SERVER_CONSTANTS,
    *soak.SERVER_CONSTANTS,
    *soak.WORKER_CONSTANTS,
    *test_whole_fleet.LEADER_CONSTANTS,
]


@pytest.mark.parametrize(("module", "name"), OVERRIDDEN, ids=lambda each: getattr(each, "__name__", each))
def test_overridden_constant_exists(module: ModuleType, name: str) -> None:
    assert hasattr(module, name)
