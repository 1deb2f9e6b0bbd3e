"""Two seeds in one world are a smoke test of the soak test and of the common guarantees."""

import sys

import pytest

from tests.soak.plan import Kind, plan_of
from tests.soak.seeds import run_seed
from tests.soak.world import open_world

# Quick seeds. One kills a database and, during a submission, a server; the other kills two servers, one during a
# report.
SEEDS = (53, 82)


@pytest.mark.skipif(sys.platform != "linux", reason="the soak test reads /proc and limits other processes")
async def test_guarantees_hold_after_the_faults_of_a_seed() -> None:
    assert all(fault.kind in (Kind.KILL, Kind.KILL_RECEIVER) for seed in SEEDS for fault in plan_of(seed).faults)
    async with open_world() as world:
        for seed in SEEDS:
            result = await run_seed(world, plan_of(seed))
            assert result.broken is None, result.broken
            assert sum(result.ends.values()) >= 8
