"""The frequent statements are compiled before the first job."""

from comfyrelay.store.transaction import compile_once
from comfyrelay.store.warm_up import compile_statements
from tests.support.world import World


async def test_first_job_compiles_no_frequent_statement(world: World) -> None:
    """On SQLite, SQLAlchemy compiles the statements for each connection."""
    desk = await world.desk()
    compile_once.cache_clear()
    assert compile_statements(world.backend) > 100
    compiled = compile_once.cache_info().misses
    assert (compiled > 100) == (world.backend == "postgresql")
    _, leased = await desk.submit_and_lease()
    await world.complete(leased)
    await world.engine.outbox.delivery.idle()
    assert compile_once.cache_info().misses == compiled
