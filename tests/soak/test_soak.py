"""Two seeds of the rig, in one world: enough to know that it runs, and that what is common holds."""

import sys

import pytest

from tests.soak.plan import Kind, plan_of
from tests.soak.seeds import run_seed
from tests.soak.world import open_world

# A database is killed, and a server over a submission; a server is killed, and one over a report. Both are quick.
SEEDS = (53, 82)


@pytest.mark.skipif(sys.platform != "linux", reason="the rig looks into /proc, and limits other processes")
async def test_after_the_faults_of_a_seed_every_promise_is_kept() -> None:
    assert all(fault.kind in (Kind.KILL, Kind.KILL_RECEIVER) for seed in SEEDS for fault in plan_of(seed).faults)
    async with open_world() as world:
        for seed in SEEDS:
            result = await run_seed(world, plan_of(seed))
            assert result.broken is None, result.broken
            assert sum(result.ends.values()) >= 8
