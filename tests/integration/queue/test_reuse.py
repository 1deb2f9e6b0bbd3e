"""With `reuse`, a job completes at once and free of charge with a copy of an equal job's output."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import FileRecord, JobRecord
from comfyrelay.errors import TooManyActiveJobs
from comfyrelay.services.jobs.submission.requests import ItemRequest
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Boundary
from comfyrelay.store.tenant import retention
from comfyrelay.store.tenant import tables as tenant
from tests.support.media_samples import video
from tests.support.world import PROMPT, Crash, Desk, World, execute, submit_batch

pytestmark = pytest.mark.both_databases

CONTENT = b"abc"
SEED = {
    "key": "seed",
    "type": "number",
    "placeholder": "{{SEED}}",
    "default_value": 7,
    "user_configurable": True,
}
VIDEO_IN = {
    "key": "input",
    "type": "video",
    "placeholder": "{{INPUT}}",
    "is_primary_input": True,
    "required": True,
    "user_configurable": True,
}


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk(concurrency=10)


async def output_of(world: World, job: JobRecord) -> FileRecord | None:
    found = await world.job(job)
    async with (await world.engine.databases.shard_of(job.tenant_id)).read() as tx:
        files = await retention.files_by_id(tx, [found.output_file_id or ""])
    return files[0] if files else None


async def complete(world: World, desk: Desk, job: JobRecord) -> JobRecord:
    """Run a submitted job, and store a real output."""
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.complete(leased)
    file = await output_of(world, job)
    assert file is not None
    await world.engine.objects.put(file.path, CONTENT)
    return await world.job(job)


async def run_job(world: World, desk: Desk, **values: Any) -> JobRecord:
    return await complete(world, desk, await desk.submit(**values))


async def upload(world: World, user: User, content: bytes) -> str:
    path = f"tenants/{user.tenant_id}/uploads/{world.number()}.mp4"
    await world.engine.objects.put(path, content)
    return await world.engine.accounts.tenancy.add_file(user, path=path, mime_type="video/mp4", size=len(content))


async def test_repeated_request_copies_nothing(world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await run_job(world, desk)
    reused = await desk.submit(key="again", reuse=True)
    copied: list[str] = []
    copy = world.engine.objects.copy

    async def note_copy(source: str, target: str, **options: Any) -> Any:
        copied.append(target)
        return await copy(source, target, **options)

    monkeypatch.setattr(world.engine.objects, "copy", note_copy)
    assert (await desk.submit(key="again", reuse=True)).id == reused.id
    assert copied == []
    # A request with another key does copy.
    await desk.submit(key="other", reuse=True)
    assert copied


async def test_equal_job_is_completed_at_once_with_a_copy_and_costs_nothing(world: World, desk: Desk) -> None:
    first = await run_job(world, desk)
    assert await desk.balance() == 990
    job = await desk.submit(reuse=True)
    assert (job.status, job.reused_from, job.reserved_tokens, job.saved_tokens) == ("completed", first.id, 0, 10)
    assert job.completed_at is not None
    assert await world.job(job) == job
    # both ledger rows exist, with amount 0
    assert await world.transactions(job) == {"JOB_RESERVE": 0, "JOB_CONSUME": 0}
    assert await desk.balance() == 990
    assert await world.events(job) == ["job:queued", "job:completed"]
    # the reused job is never queued
    assert await world.count() == 1
    assert await world.lease(desk.worker) is None
    copy, original = await output_of(world, job), await output_of(world, first)
    assert copy is not None
    assert original is not None
    assert copy.path != original.path
    assert await world.engine.objects.get(copy.path) == CONTENT
    assert (copy.mime_type, copy.content_hash) == (original.mime_type, original.content_hash)
    assert (await desk.submit()).status == "queued", "a job without `reuse` runs"


@pytest.mark.parametrize("other", ["prompt", "graph", "tenant"])
async def test_job_with_another_prompt_graph_or_tenant_runs(world: World, desk: Desk, other: str) -> None:
    await run_job(world, desk)
    user, effect = desk.user, desk.effect
    values: dict[str, Any] = {}
    if other == "prompt":
        values = {"input_payload": {"prompt": "a dog"}}
    elif other == "graph":
        effect = await world.effect(await world.workflow(graph={"1": {"class_type": "Other", "inputs": {}}}))
    else:
        # another tenant in the same database
        user = await world.user(shard=await world.engine.databases.shard_name_of(desk.user.tenant_id))
    job = await world.submit(user, effect, reuse=True, **values)
    assert (job.status, job.reused_from) == ("queued", None)


async def test_result_of_another_stage_is_not_reused(world: World, desk: Desk) -> None:
    fleet = await world.fleet(desk.workflow, stage=Stage.STAGING)
    staging = replace(desk, worker=await world.worker(fleet, stage=Stage.STAGING))
    staged = await run_job(world, staging, stage=Stage.STAGING)
    job = await desk.submit(reuse=True)
    assert (job.status, job.reused_from) == ("queued", None)
    assert (await desk.submit(reuse=True, stage=Stage.STAGING)).reused_from == staged.id


async def test_jobs_are_equal_only_if_their_seeds_are_given(world: World) -> None:
    graph = {"1": {"class_type": "Sampler", "inputs": {"seed": "{{SEED}}", "text": "{{PROMPT}}"}}}
    desk = await world.desk(workflow=await world.workflow(graph=graph, properties=[PROMPT, SEED]), concurrency=9)
    await run_job(world, desk)
    assert (await desk.submit(reuse=True)).status == "queued"
    await world.lease(desk.worker)
    await run_job(world, desk, input_payload={"seed": 7})
    assert (await desk.submit(reuse=True, input_payload={"seed": 7})).status == "completed"
    assert (await desk.submit(reuse=True, input_payload={"seed": 8})).status == "queued"


async def test_inputs_are_compared_by_their_content(world: World) -> None:
    desk = await world.desk(workflow=await world.workflow(properties=[PROMPT, VIDEO_IN]), concurrency=9)
    one, two = video(frames=1), video(frames=2)
    first, same, other = [await upload(world, desk.user, content) for content in (one, one, two)]
    await run_job(world, desk, input_file_id=first, reuse=True)
    assert (await desk.submit(input_file_id=same, reuse=True)).status == "completed"
    assert (await desk.submit(input_file_id=other, reuse=True)).status == "queued"


@pytest.mark.parametrize("cause", ["deleted", "lost"])
async def test_job_with_a_missing_output_is_not_reused(world: World, desk: Desk, cause: str) -> None:
    first = await run_job(world, desk)
    file = await output_of(world, first)
    assert file is not None
    if cause == "deleted":
        await world.engine.jobs.removal.remove_job(desk.user.tenant_id, first.id)
    else:
        await world.engine.objects.remove(file.path)
    assert (await desk.submit(reuse=True)).status == "queued"


async def test_copy_outlives_the_original(world: World, desk: Desk) -> None:
    first = await run_job(world, desk)
    second = await desk.submit(reuse=True)
    await world.engine.jobs.removal.remove_job(desk.user.tenant_id, first.id)
    file = await output_of(world, second)
    assert file is not None
    assert await world.engine.objects.get(file.path) == CONTENT
    assert (await desk.submit(reuse=True)).reused_from == second.id


async def test_concurrent_equal_jobs_get_separate_copies(world: World, desk: Desk) -> None:
    first = await run_job(world, desk)
    jobs = await asyncio.gather(*(desk.submit(reuse=True) for _ in range(5)))
    assert {job.reused_from for job in jobs} <= {first.id, *(job.id for job in jobs)}
    assert len({job.output_file_id for job in jobs}) == 5
    assert await desk.balance() == 990


async def test_concurrent_submissions_with_one_key_create_one_job(world: World, desk: Desk) -> None:
    await run_job(world, desk)
    one, two = await asyncio.gather(*(desk.submit(reuse=True, key="once") for _ in range(2)))
    assert one.id == two.id == (await desk.submit(key="once")).id
    assert await _count(world, desk, tenant.files) == 2


async def test_equal_waiting_jobs_both_run(world: World, desk: Desk) -> None:
    one, two = [await desk.submit(reuse=True) for _ in range(2)]
    await complete(world, desk, one)
    await complete(world, desk, two)
    assert [await world.transactions(job) for job in (one, two)] == [{"JOB_RESERVE": -10, "JOB_CONSUME": 0}] * 2


async def test_reused_job_needs_no_tokens(world: World) -> None:
    desk = await world.desk(tokens=10)
    await run_job(world, desk)
    assert await desk.balance() == 0
    assert (await desk.submit(reuse=True)).status == "completed"


async def test_reused_job_does_not_count_as_active(world: World) -> None:
    desk = await world.desk(concurrency=10)
    known, new = {"prompt": "known"}, {"prompt": "new"}
    await run_job(world, desk, input_payload=known)
    for _ in range(5):
        await desk.submit(input_payload={"prompt": "active"})
    assert (await desk.submit(reuse=True, input_payload=known)).status == "completed"
    items = [ItemRequest(input_payload=known)] * 2
    assert (await submit_batch(world, desk.user, desk.effect, items, reuse=True)).counts == {"completed": 2}
    with pytest.raises(TooManyActiveJobs):
        await submit_batch(world, desk.user, desk.effect, [*items, ItemRequest(input_payload=new)], reuse=True)
    with pytest.raises(TooManyActiveJobs):
        await desk.submit(reuse=True, input_payload=new)


async def test_rerun_of_a_reused_job_costs_its_full_price(world: World, desk: Desk) -> None:
    await run_job(world, desk)
    job = await desk.submit(reuse=True)
    rerun = await world.engine.jobs.submit.run_again(job.tenant_id, job.id)
    assert (rerun.status, rerun.reserved_tokens, rerun.reused_from) == ("queued", 10, None)
    assert await desk.balance() == 980


async def test_batch_reuses_finished_items_and_runs_the_rest(world: World, desk: Desk) -> None:
    await run_job(world, desk, input_payload={"prompt": "item 1"})
    batch = await submit_batch(world, desk.user, desk.effect, 3, reuse=True)
    assert batch.counts == {"completed": 1, "queued": 2}
    assert await desk.balance() == 970
    assert len(await world.leases(desk.worker, 5)) == 2


async def test_batch_with_only_reused_items_completes_at_once(world: World, desk: Desk) -> None:
    await run_job(world, desk, input_payload={"prompt": "same"})
    items = [ItemRequest(input_payload={"prompt": "same"})] * 3
    batch = await submit_batch(world, desk.user, desk.effect, items, reuse=True)
    assert (batch.counts, batch.expected_seconds) == ({"completed": 3}, None)
    assert await _count(world, desk, tenant.outbox) == 0


async def test_reused_job_updates_its_video_and_calls_its_webhook(world: World, desk: Desk) -> None:
    await run_job(world, desk)
    video = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=await desk.file())
    job = await desk.submit(reuse=True, video_id=video, webhook_url="https://example.com/hook")
    found = await world.video(desk.user, video)
    assert (found.status, found.processed_file_id) == ("completed", job.output_file_id)
    assert await _count(world, desk, tenant.webhook_deliveries) == 1
    assert await _count(world, desk, tenant.outputs) == 2


async def test_orphaned_copy_is_removed(world: World, desk: Desk) -> None:
    await run_job(world, desk)
    crashed = world.crash_on(TransactionStep.SUBMIT_JOB, Boundary.BEFORE_COMMIT)
    with pytest.raises(Crash):
        await desk.submit(reuse=True)
    assert crashed
    await world.restart()
    assert len(await _objects(world, desk)) == 2
    await world.advance(7 * 3600)
    await world.engine.operations.retention.run_once()
    assert len(await _objects(world, desk)) == 1


async def _objects(world: World, desk: Desk) -> list[str]:
    folder = f"tenants/{desk.user.tenant_id}/ai-jobs"
    return [file.path async for file in world.engine.objects.list(folder)]


async def _count(world: World, desk: Desk, table: Any) -> int:
    [(count,)] = await execute(
        await world.engine.databases.shard_of(desk.user.tenant_id), f"SELECT count(*) FROM {table.name}"
    )
    return int(count)
