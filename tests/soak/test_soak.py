"""Two seeds of the rig, in one world: enough to know that it runs, and that what is common holds."""

from tests.soak.plan import plan_of
from tests.soak.seeds import run_seed
from tests.soak.world import open_world

# a worker is killed, and a request to storage is lost; a server is killed, and others are late, skewed and full
SEEDS = (1, 2)


async def test_after_the_faults_of_a_seed_every_promise_is_kept() -> None:
    async with open_world() as world:
        for seed in SEEDS:
            result = await run_seed(world, plan_of(seed))
            assert result.broken is None, result.broken
