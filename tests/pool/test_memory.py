"""A job that ran out of memory gets its card to itself, then a larger card, and only then it has failed."""

import asyncio
from pathlib import Path

import pytest

from comfyrelay.comfyui.pool import JobRetrying, JobStarted, SmartFailover
from comfyrelay.comfyui.pool.runner import CROWDED_SECONDS
from comfyrelay.errors import OutOfMemory
from comfyrelay.simulator import CardOptions, Sim, Stuck
from comfyrelay.simulator import OutOfMemory as RunsOut
from comfyrelay.simulator.gpu import GIB, Card
from tests.pool.harness import invert, plain, ready_pool, until
from tests.pool.test_cards import LARGE, SMALL, cards, picture, shared_card


async def test_what_others_on_the_card_hold_is_unloaded_and_the_job_runs_again_at_no_cost(tmp_path: Path) -> None:
    async with shared_card(tmp_path, 3) as (pool, sims, _):
        await pool.run(picture(0), preferred_clients=["a"])
        await pool.run(picture(1), preferred_clients=["b"])
        # it is known to need 9 GiB, and asks for more than the 6 that the others leave
        sims[2].misbehave(RunsOut(class_type="KSampler", times=1))
        job = await pool.enqueue(picture(2), preferred_clients=["c"], max_attempts=1)
        retrying = await until(job.events(), JobRetrying)
        await job
        assert (retrying.delay_seconds, job.attempts) == (0.0, 1)
        # the two others, which did nothing: the first one before it, for what it is known to need
        assert [sim.log.count("POST", "/free") for sim in sims[:2]] == [2, 1]
        assert pool.stats().clients["c"].blocked_hashes == frozenset()


async def test_nobody_else_starts_on_the_card_while_it_runs_there_alone(tmp_path: Path) -> None:
    async with shared_card(tmp_path, 2, model_bytes=GIB) as (pool, sims, _):
        await pool.run(picture(0))
        await pool.run(picture(0, model=LARGE))
        for sim in sims:
            sim.misbehave(RunsOut(class_type="KSampler", times=1))
        job = await pool.enqueue(picture(1), priority=1, preferred_clients=["a"], exclude_clients=["b"])
        events = job.events()
        await until(events, JobRetrying)
        stuck = [sim.misbehave(Stuck(class_type="KSampler")) for sim in sims]
        await until(events, JobStarted)
        other = await pool.enqueue(picture(2, model=LARGE))
        await pool.enqueue(picture(3, model=LARGE))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (pool.stats().running, pool.stats().queued) == (1, 2)
        for each in stuck:
            each.end()
        sims[1].behave()
        await asyncio.gather(job, other)


async def test_a_card_that_is_too_small_is_left_for_a_larger_one(tmp_path: Path) -> None:
    async with cards(tmp_path, 8, 24) as (pool, sims):
        job = await pool.enqueue(picture(0), preferred_clients=["a"], max_attempts=1)
        await job
        assert (job.client_id, job.attempts) == ("b", 1)
        assert sims[0].log.prompts_queued == 2
        # and is not tried again while the larger one is there
        again = [await pool.enqueue(picture(seed), preferred_clients=["a"]) for seed in (1, 2)]
        await asyncio.gather(*again)
        assert {each.client_id for each in again} == {"b"}
        assert sims[0].log.prompts_queued == 2


async def test_once_the_larger_card_is_gone_the_small_one_is_tried_all_the_same(tmp_path: Path) -> None:
    async with cards(tmp_path, 8, 24) as (pool, sims):
        await pool.run(picture(0), preferred_clients=["a"])
        await pool.remove_server("b")
        with pytest.raises(OutOfMemory):
            await pool.run(picture(1))
        assert sims[0].log.prompts_queued == 4


async def test_it_fails_after_one_larger_card_and_the_error_tells_the_cards_size(tmp_path: Path) -> None:
    async with cards(tmp_path, 4, 6, 8) as (pool, sims):
        job = await pool.enqueue(picture(0), preferred_clients=["a"], exclude_clients=["b"])
        with pytest.raises(OutOfMemory) as failed:
            await job
        assert failed.value.card_bytes == 8 * GIB
        assert [sim.log.prompts_queued for sim in sims] == [2, 0, 1]
        # once alone and once on a larger card: no attempt was used up but the last
        assert job.attempts == 1


async def test_without_a_larger_card_it_fails_after_it_ran_alone(tmp_path: Path) -> None:
    async with cards(tmp_path, 8, 8) as (pool, sims):
        with pytest.raises(OutOfMemory):
            await pool.run(picture(0), max_attempts=5)
        assert sum(sim.log.prompts_queued for sim in sims) == 2


async def test_a_server_whose_card_nobody_named_lets_go_of_its_own_and_tries_again(sim: Sim) -> None:
    sim.misbehave(RunsOut(class_type="ImageInvert", times=1))
    async with ready_pool(sim) as pool:
        job = await pool.enqueue(invert(), max_attempts=1)
        await job
        assert job.attempts == 1
        assert sim.log.count("POST", "/free") == 1
        await pool.run(plain())


async def test_what_other_programs_hold_is_no_lesson_about_the_card(tmp_path: Path) -> None:
    """8 of its 24 GiB would be enough for the model, and another program has 16 of them."""
    async with cards(tmp_path, 24, 25) as (pool, sims):
        other = Card(CardOptions(folder=tmp_path / "card-0", context_bytes=16 * GIB))
        other.open()
        job = await pool.enqueue(picture(0), preferred_clients=["a"], one_try_per_server=True)
        await job
        # beside it, alone among ours, and then where there is room: as after any other fault of a server
        assert [sim.log.prompts_queued for sim in sims] == [2, 1]
        with pytest.raises(OutOfMemory) as failed:
            await pool.run(picture(1), exclude_clients=["b"], one_try_per_server=True)
        other.close()
        assert failed.value.card_bytes is None
        assert failed.value.others_bytes == 15 * GIB
        assert failed.value.retry_after_seconds == CROWDED_SECONDS
        # once that is gone, so is the reason: nothing was learnt of the card
        assert not pool.memory.is_outgrown(job.workflow_hash)
        await pool.run(picture(2), preferred_clients=["a"], exclude_clients=["b"])


async def test_a_job_whose_card_others_hold_waits_a_while_for_them(tmp_path: Path) -> None:
    async with cards(tmp_path, 24) as (pool, _):
        other = Card(CardOptions(folder=tmp_path / "card-0", context_bytes=16 * GIB))
        other.open()
        job = await pool.enqueue(picture(0), max_attempts=2)
        events = job.events()
        delays = [(await until(events, JobRetrying)).delay_seconds for _ in range(2)]
        # at once with the card to itself, as far as that goes; and then an attempt is used up
        assert delays == [0.0, CROWDED_SECONDS]
        assert job.attempts == 1
        await job.cancel()
        other.close()


async def test_a_server_on_the_same_gpu_that_nobody_named_counts_as_another_program(tmp_path: Path) -> None:
    card = CardOptions(
        folder=tmp_path / "card", memory_bytes=24 * GIB, context_bytes=0, model_bytes=14 * GIB, pixel_bytes=0
    )
    models = {"checkpoints": [SMALL, LARGE]}
    async with (
        Sim(card=card, models=models) as one,
        Sim(card=card, models=models) as other,
        ready_pool(one, other, failover=SmartFailover(cooldown_seconds=0)) as pool,
    ):
        await pool.run(picture(0), exclude_clients=["b"])
        with pytest.raises(OutOfMemory) as failed:
            await pool.run(picture(1), exclude_clients=["a"], one_try_per_server=True)
        assert failed.value.card_bytes is None
        assert failed.value.others_bytes == 13 * GIB


async def test_where_nobody_can_tell_the_memory_it_fails_after_that(tmp_path: Path) -> None:
    async with Sim(arguments=["--cpu"]) as sim, ready_pool(sim) as pool:
        sim.misbehave(RunsOut(class_type="ImageInvert"))
        with pytest.raises(OutOfMemory) as failed:
            await pool.run(invert())
        assert failed.value.card_bytes is None
        assert sim.log.prompts_queued == 2
