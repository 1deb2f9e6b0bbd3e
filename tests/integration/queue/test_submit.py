"""Submission: the contents of a job, refusals, and every accepted job reaches the queue."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import (
    Conflict,
    DatabaseUnavailable,
    IdempotencyConflict,
    InsufficientTokens,
    InvalidInput,
    NotFound,
    TooLarge,
    TooManyActiveJobs,
)
from comfyrelay.services.jobs.submission.requests import ItemRequest, JobRequest
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import catalogue
from comfyrelay.store.central import tables as central
from comfyrelay.store.database import Boundary
from comfyrelay.store.tenant import tables as tenant
from tests.support.world import PATIENCE_SECONDS, PROMPT, Crash, Desk, World, submit_batch

VIDEO = {
    "key": "clip",
    "type": "video",
    "placeholder": "{{INPUT}}",
    "is_primary_input": True,
    "required": True,
}
LOGO = {"key": "logo", "type": "image", "placeholder": "{{LOGO}}", "user_configurable": True}
STRENGTH = {
    "key": "strength",
    "type": "number",
    "placeholder": "{{STRENGTH}}",
    "default_value": 0.5,
    "minimum": 0,
    "maximum": 1,
    "user_configurable": True,
}
MODEL = {
    "key": "model",
    "type": "choice",
    "placeholder": "{{MODEL}}",
    "choices": ["small.safetensors", "large.safetensors"],
    "default_value": "small.safetensors",
    "user_configurable": True,
}
GRAPH = {
    "1": {"class_type": "CheckpointLoader", "inputs": {"ckpt_name": "{{MODEL}}"}},
    "2": {"class_type": "Prompt", "inputs": {"text": "{{PROMPT}}", "strength": "{{STRENGTH}}", "model": ["1", 0]}},
    "3": {"class_type": "Overlay", "inputs": {"image": "{{LOGO}}", "video": "{{INPUT}}"}},
}


async def make_desk(
    world: World,
    *properties: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    cost: int = 10,
    tokens: int = 1000,
) -> Desk:
    """One user, one effect with these properties, and one worker that may run it."""
    workflow = await world.workflow(graph=GRAPH, properties=properties)
    fleet = await world.fleet(workflow)
    return Desk(
        world=world,
        user=await world.user(tokens=tokens),
        workflow=workflow,
        effect=await world.effect(workflow, cost=cost, property_overrides=overrides),
        fleet=fleet,
        worker=await world.worker(fleet, concurrency=10),
    )


async def run(desk: Desk, **values: Any) -> LeasedDispatch:
    """Submit and lease; return what the worker receives."""
    return (await desk.leased(**values))[1]


async def refusal(desk: Desk, **values: Any) -> dict[str, str]:
    """Return the errors of a submission that must be refused, by field; it leaves nothing behind."""
    before = await desk.balance()
    with pytest.raises(InvalidInput) as refused:
        await desk.submit(**values)
    assert await jobs_in(desk.world, desk.user) == []
    assert await desk.balance() == before
    return refused.value.errors


async def jobs_in(world: World, user: User) -> Sequence[Any]:
    async with (await world.engine.databases.shard_of(user.tenant_id)).read() as tx:
        return (await tx.execute(tenant.ai_jobs.select().where(tenant.ai_jobs.c.tenant_id == user.tenant_id))).all()


async def file_of(world: World, user: User, mime_type: str, *, content_hash: str | None = None) -> str:
    return await world.engine.accounts.tenancy.add_file(
        user, path=f"uploads/{world.number()}", mime_type=mime_type, size=1, content_hash=content_hash
    )


def request_for(user: User, **values: Any) -> JobRequest:
    return JobRequest(tenant_id=user.tenant_id, user_id=user.id, idempotency_key="key", **values)


# the values of properties


async def test_unset_property_has_the_workflow_default(world: World) -> None:
    leased = await run(await make_desk(world, PROMPT, STRENGTH))
    assert leased.graph["2"]["inputs"] == {"text": "a cat", "strength": 0.5, "model": ["1", 0]}


async def test_effects_override_beats_the_workflows_default(world: World) -> None:
    leased = await run(await make_desk(world, PROMPT, STRENGTH, overrides={"strength": 0.9}))
    assert leased.graph["2"]["inputs"]["strength"] == 0.9


async def test_user_input_wins_over_the_effect_override(world: World) -> None:
    desk = await make_desk(world, PROMPT, STRENGTH, overrides={"strength": 0.9})
    leased = await run(desk, input_payload={"strength": 0.1})
    assert leased.graph["2"]["inputs"]["strength"] == 0.1


async def test_value_of_the_wrong_type_is_refused_by_its_key(world: World) -> None:
    desk = await make_desk(world, PROMPT, STRENGTH, MODEL)
    sent = {"prompt": 7, "strength": "strong", "model": "stolen.safetensors"}
    assert await refusal(desk, input_payload=sent) == {
        "prompt": "This must be text.",
        "strength": "This must be a number.",
        "model": "This must be one of: small.safetensors, large.safetensors.",
    }


async def test_unknown_input_is_refused_with_the_list_of_known_inputs(world: World) -> None:
    desk = await make_desk(world, PROMPT, STRENGTH)
    errors = await refusal(desk, input_payload={"promt": "a dog"})
    assert errors == {"promt": "Unknown input. Available inputs: prompt, strength."}


async def test_input_the_effect_fixes_cannot_be_set(world: World) -> None:
    desk = await make_desk(world, PROMPT, {**STRENGTH, "user_configurable": False})
    errors = await refusal(desk, input_payload={"strength": 1})
    assert errors == {"strength": "The effect sets this input. Available inputs: prompt."}


async def test_required_input_cannot_be_left_out(world: World) -> None:
    desk = await make_desk(world, {**PROMPT, "default_value": None, "required": True})
    assert await refusal(desk) == {"prompt": "This input is required."}


@pytest.mark.parametrize("text", ["a\x00b", "half an emoji \ud83d"], ids=["nul", "surrogate"])
async def test_text_that_no_database_can_hold_is_refused(world: World, text: str) -> None:
    desk = await make_desk(world, PROMPT)
    assert list(await refusal(desk, input_payload={"prompt": text})) == ["prompt"]


async def test_number_too_large_to_be_one_is_refused(world: World) -> None:
    desk = await make_desk(world, {**STRENGTH, "minimum": None, "maximum": None})
    assert await refusal(desk, input_payload={"strength": 10**400}) == {"strength": "This must be a number."}


async def test_seed_of_64_bits_arrives_exactly(world: World) -> None:
    desk = await make_desk(world, {**STRENGTH, "minimum": None, "maximum": None})
    leased = await run(desk, input_payload={"strength": 2**64 - 1})
    assert leased.graph["2"]["inputs"]["strength"] == 2**64 - 1


SEED = {
    "key": "seed",
    "type": "number",
    "placeholder": "{{STRENGTH}}",
    "default_value": 7,
    "user_configurable": True,
}


def seed_in(leased: LeasedDispatch) -> int:
    seed = leased.graph["2"]["inputs"]["strength"]
    assert isinstance(seed, int)
    return seed


async def test_job_that_names_no_seed_gets_a_new_one(world: World) -> None:
    desk = await make_desk(world, SEED)
    seeds = {seed_in(await run(desk)) for _ in range(3)}
    assert len(seeds | {7}) == 4
    assert seed_in(await run(desk, input_payload={"seed": 7})) == 7


async def test_seed_that_the_effect_fixes_stays(world: World) -> None:
    assert seed_in(await run(await make_desk(world, SEED, overrides={"seed": 3}))) == 3


async def test_job_keeps_its_seed_across_repeats_and_attempts(world: World) -> None:
    desk = await make_desk(world, SEED)
    views = world.engine.jobs.views
    job, same = await asyncio.gather(*(desk.submit(key="once") for _ in range(2)))
    assert job.id == same.id
    seed = (await views.job(job.tenant_id, job.id)).seed
    leased = await world.lease(desk.worker)
    assert leased is not None
    assert seed_in(leased) == seed
    await world.requeue(leased)
    leased = await world.lease(desk.worker)
    assert leased is not None
    assert seed_in(leased) == seed
    await world.fail(leased)
    again = await world.engine.jobs.submit.retry(job.tenant_id, job.id)
    assert (await views.job(job.tenant_id, again.id)).seed == seed
    listed = await views.jobs(job.tenant_id, limit=10)
    assert [item.seed for item in listed.items] == [seed, seed]


async def test_retry_may_ask_for_another_seed(world: World) -> None:
    desk = await make_desk(world, SEED)
    job, leased = await desk.leased(input_payload={"seed": 7})
    await world.fail(leased)
    again = await world.engine.jobs.submit.retry(job.tenant_id, job.id, new_seeds=True)
    assert (await world.engine.jobs.views.job(job.tenant_id, again.id)).seed not in (None, 7)


async def test_default_label_has_the_effect_the_input_and_the_prompt(world: World) -> None:
    desk = await make_desk(world, PROMPT, VIDEO)
    cat = await world.engine.accounts.tenancy.add_file(
        desk.user, path="uploads/cat", mime_type="video/mp4", size=1, original_filename="My cat.mp4"
    )
    words = {"prompt": "it runs\nthrough the snow " + "and on " * 20}
    job = await desk.submit(input_file_id=cat, input_payload=words)
    assert job.label == f"{desk.effect.name} · My cat · it runs through the snow and on and on and on and on and on…"
    assert (await desk.submit(input_file_id=cat, label="mine")).label == "mine"


@pytest.mark.parametrize(
    "prompt",
    [
        "she said \"hi\", and 'bye'",
        '"}, "3": {"class_type": "Evil", "inputs": {"x": "',
        "{{STRENGTH}} {PROMPT} }}{{ %s {0} $1 \\1",
        "C:\\new\\table \\u0041 \\",
        "two\nlines\r\nand a\ttab",
        "🦊 fox, 日本語, Ω, \u202e, \u2028",
        "'; DROP TABLE ai_jobs; --",
        " ",
    ],
    ids=["quotes", "json", "braces", "backslashes", "newlines", "unicode", "sql", "blank"],
)
async def test_prompt_arrives_in_the_graph_exactly_as_it_was_written(world: World, prompt: str) -> None:
    desk = await make_desk(world, PROMPT, STRENGTH)
    leased = await run(desk, input_payload={"prompt": prompt})
    assert leased.graph["2"]["inputs"] == {"text": prompt, "strength": 0.5, "model": ["1", 0]}
    assert set(leased.graph) == {"1", "2", "3"}


async def test_text_cannot_smuggle_in_the_placeholder_of_a_file(world: World) -> None:
    desk = await make_desk(world, PROMPT, LOGO)
    errors = await refusal(desk, input_payload={"prompt": "a cat {{LOGO}}"})
    assert errors == {"prompt": "This text contains a placeholder of the workflow."}


# files


async def test_primary_input_comes_by_its_file_id(world: World) -> None:
    desk = await make_desk(world, PROMPT, VIDEO)
    file_id = await file_of(world, desk.user, "video/mp4", content_hash="c0ffee")
    leased = await run(desk, input_file_id=file_id)
    asset = leased.payload.primary_input
    assert asset is not None
    assert (asset.key, asset.placeholder, asset.type) == ("clip", "{{INPUT}}", "video")
    # workers share files with a hash, and this one is private
    assert (asset.disk, asset.content_hash, asset.is_primary_input) == ("objects", None, True)
    assert asset.path.startswith("uploads/")
    assert leased.graph["3"]["inputs"]["video"] == "{{INPUT}}"


async def test_primary_input_comes_by_its_video_id(world: World) -> None:
    desk = await make_desk(world, PROMPT, VIDEO)
    file_id = await file_of(world, desk.user, "video/mp4", content_hash="c0ffee")
    video_id = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=file_id)
    job, leased = await desk.leased(video_id=video_id)
    assert (job.video_id, job.input_file_id) == (video_id, file_id)
    assert leased.payload.primary_input is not None
    assert leased.payload.primary_input.content_hash is None


async def test_required_primary_input_cannot_be_left_out(world: World) -> None:
    desk = await make_desk(world, PROMPT, VIDEO)
    assert await refusal(desk) == {"clip": "This input is required: send input_file_id or video_id."}


async def test_primary_input_is_not_sent_among_the_others(world: World) -> None:
    desk = await make_desk(world, PROMPT, {**VIDEO, "user_configurable": True})
    file_id = await file_of(world, desk.user, "video/mp4")
    errors = await refusal(desk, input_payload={"clip": file_id})
    assert errors == {"clip": "Send the primary input as input_file_id or video_id."}


async def test_primary_input_must_be_of_its_media_type(world: World) -> None:
    desk = await make_desk(world, PROMPT, VIDEO)
    file_id = await file_of(world, desk.user, "image/png")
    errors = await refusal(desk, input_file_id=file_id)
    assert errors == {"clip": "This must be a video, but the file is image/png."}


@pytest.mark.parametrize("same_shard", [True, False])
async def test_file_or_video_of_another_tenant_is_not_found(world: World, same_shard: bool) -> None:
    desk = await make_desk(world, PROMPT, LOGO, {**VIDEO, "required": False})
    shard = (await world.engine.databases.shard_of(desk.user.tenant_id)).name
    other = await world.user(shard=shard if same_shard else {"a": "b", "b": "a"}[shard])
    image, video = await file_of(world, other, "image/png"), await file_of(world, other, "video/mp4")
    video_id = await world.engine.accounts.tenancy.add_video(other, original_file_id=video)
    assert await refusal(desk, input_payload={"logo": image}) == {"logo": "You have no such file."}
    assert await refusal(desk, input_file_id=video) == {"input_file_id": "You have no such file."}
    assert await refusal(desk, video_id=video_id) == {"video_id": "You have no such video."}


async def test_file_property_takes_a_file_of_the_users_own(world: World) -> None:
    desk = await make_desk(world, PROMPT, LOGO)
    file_id = await file_of(world, desk.user, "image/png", content_hash="beef")
    (asset,) = (await run(desk, input_payload={"logo": file_id})).payload.assets
    assert (asset.key, asset.content_hash, asset.mime_type) == ("logo", None, "image/png")
    assert not asset.is_primary_input


async def test_file_property_refuses_a_file_of_another_media_type(world: World) -> None:
    desk = await make_desk(world, PROMPT, LOGO)
    file_id = await file_of(world, desk.user, "audio/wav")
    errors = await refusal(desk, input_payload={"logo": file_id})
    assert errors == {"logo": "This must be an image, but the file is audio/wav."}


@pytest.mark.parametrize("path", ["uploads/1", "assets/logo.png", "../../etc/passwd", "/etc/passwd"])
async def test_file_property_never_takes_a_path(world: World, path: str) -> None:
    desk = await make_desk(world, PROMPT, {**LOGO, "default_value": "assets/logo.png"})
    await file_of(world, desk.user, "image/png")
    assert await refusal(desk, input_payload={"logo": path}) == {"logo": "You have no such file."}


@pytest.mark.parametrize("text", ["a\x00b", "\ud83d"], ids=["nul", "surrogate"])
async def test_id_that_no_database_can_hold_names_nothing(world: World, text: str) -> None:
    desk = await make_desk(world, PROMPT, LOGO)
    assert await refusal(desk, input_payload={"logo": text}) == {"logo": "This must be the id of a file."}
    assert await refusal(desk, input_file_id=text) == {"input_file_id": "You have no such file."}
    assert await refusal(desk, video_id=text) == {"video_id": "You have no such video."}


async def test_file_of_the_catalogue_comes_with_the_hash_of_its_default(world: World) -> None:
    logo = {**LOGO, "default_value": "assets/logo.png", "default_value_hash": "feed"}
    (asset,) = (await run(await make_desk(world, PROMPT, logo))).payload.assets
    assert (asset.path, asset.content_hash, asset.disk) == ("assets/logo.png", "feed", "objects")


async def test_file_that_an_effect_puts_in_comes_with_its_own_hash(world: World) -> None:
    await world.engine.objects.put("assets/other.png", b"other")
    logo = {**LOGO, "default_value": "assets/logo.png", "default_value_hash": "feed"}
    desk = await make_desk(world, PROMPT, logo, overrides={"logo": "assets/other.png"})
    (asset,) = (await run(desk)).payload.assets
    assert (asset.path, asset.content_hash) == ("assets/other.png", hashlib.sha256(b"other").hexdigest())


async def test_file_of_an_effect_that_is_not_there_yet_has_no_hash(world: World) -> None:
    logo = {**LOGO, "default_value": "assets/logo.png", "default_value_hash": "feed"}
    desk = await make_desk(world, PROMPT, logo, overrides={"logo": "assets/other.png"})
    (asset,) = (await run(desk)).payload.assets
    assert (asset.path, asset.content_hash) == ("assets/other.png", None)


# repeated submissions


async def test_same_key_and_body_give_the_same_job_and_one_reservation(world: World) -> None:
    desk = await world.desk()
    first = await desk.submit(key="once", input_payload={"prompt": "a dog"})
    again = await desk.submit(key="once", input_payload={"prompt": "a dog"})
    assert again.id == first.id
    assert await desk.balance() == 990
    assert await world.count() == 1


async def test_same_key_gives_the_same_job_even_after_it_has_ended(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.leased(key="once")
    await world.complete(leased)
    again = await desk.submit(key="once")
    assert (again.id, again.status) == (job.id, "completed")
    assert await world.count() == 1


@pytest.mark.parametrize("other", [{"input_payload": {"prompt": "a dog"}}, {"priority": 1}, {"delay_seconds": 5}])
async def test_same_key_with_another_body_is_a_conflict(world: World, other: dict[str, Any]) -> None:
    desk = await world.desk()
    await desk.submit(key="once")
    with pytest.raises(IdempotencyConflict):
        await desk.submit(key="once", **other)
    assert await desk.balance() == 990


async def test_two_tenants_may_use_the_same_key(world: World) -> None:
    desk = await world.desk()
    other = await world.user(shard=(await world.engine.databases.shard_of(desk.user.tenant_id)).name)
    mine, theirs = await desk.submit(key="once"), await world.submit(other, desk.effect, key="once")
    assert mine.id != theirs.id


async def test_submission_without_a_key_is_refused(world: World) -> None:
    desk = await world.desk()
    request = JobRequest(
        tenant_id=desk.user.tenant_id, user_id=desk.user.id, idempotency_key="", effect_id=desk.effect.id
    )
    with pytest.raises(InvalidInput) as refused:
        await world.engine.jobs.submit.submit(request)
    assert "idempotency_key" in refused.value.errors


async def test_concurrent_submissions_with_one_key_make_one_job(world: World) -> None:
    desk = await world.desk()
    made = await asyncio.gather(*(desk.submit(key="once") for _ in range(8)))
    assert len({each.id for each in made}) == 1
    assert await world.count() == 1
    assert await desk.balance() == 990


# limits


async def test_sixth_active_job_is_refused(world: World) -> None:
    desk = await world.desk()
    for _ in range(5):
        await desk.submit()
    with pytest.raises(TooManyActiveJobs, match="the limit is 5"):
        await desk.submit()
    assert await desk.balance() == 950


async def test_refused_submission_may_come_again_with_the_same_key(world: World) -> None:
    desk = await world.desk()
    jobs = [await desk.submit() for _ in range(5)]
    with pytest.raises(TooManyActiveJobs):
        await desk.submit(key="again")
    await world.engine.queue.control.cancel(desk.user.tenant_id, jobs[0].id)
    assert (await desk.submit(key="again")).status == "queued"


async def test_batch_counts_as_one_active_job(world: World) -> None:
    desk = await world.desk()
    await submit_batch(world, desk.user, desk.effect, 20)
    for _ in range(4):
        await desk.submit()
    with pytest.raises(TooManyActiveJobs):
        await desk.submit()


async def test_batch_is_refused_like_any_sixth_job(world: World) -> None:
    desk = await world.desk()
    for _ in range(5):
        await desk.submit()
    with pytest.raises(TooManyActiveJobs):
        await submit_batch(world, desk.user, desk.effect)


async def test_jobs_that_have_ended_do_not_count_as_active(world: World) -> None:
    desk = await world.desk()
    for end in (world.complete, world.fail):
        await end((await desk.leased())[1])
    canceled = await desk.submit()
    await world.engine.queue.control.cancel(desk.user.tenant_id, canceled.id)
    for _ in range(5):
        await desk.submit()


async def test_active_job_limit_counts_each_user_separately(world: World) -> None:
    desk = await world.desk()
    for _ in range(5):
        await desk.submit()
    other = await world.user(shard=(await world.engine.databases.shard_of(desk.user.tenant_id)).name)
    assert (await world.submit(other, desk.effect)).status == "queued"


async def test_submissions_at_the_same_time_never_exceed_the_limit(world: World) -> None:
    desk = await world.desk()
    answers = await asyncio.gather(*(desk.submit() for _ in range(12)), return_exceptions=True)
    assert sum(isinstance(answer, JobRecord) for answer in answers) == 5
    assert sum(isinstance(answer, TooManyActiveJobs) for answer in answers) == 7
    assert await desk.balance() == 950


async def test_job_that_cannot_be_paid_for_leaves_nothing_behind(world: World) -> None:
    desk = await world.desk(tokens=9)
    file_id = await desk.file()
    video_id = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=file_id)
    with pytest.raises(InsufficientTokens, match=r"^Insufficient token balance\.$") as refused:
        await desk.submit(video_id=video_id)
    assert (refused.value.required_tokens, refused.value.balance) == (10, 9)
    assert await jobs_in(world, desk.user) == []
    assert await world.count() == 0
    assert await desk.balance() == 9
    assert (await world.video(desk.user, video_id)).status == "uploaded"


async def test_last_tokens_may_be_spent(world: World) -> None:
    desk = await world.desk(tokens=10)
    await desk.submit()
    assert await desk.balance() == 0


@pytest.mark.parametrize(("asked", "given"), [(99, 10), (-99, -10), (3, 3)])
async def test_users_priority_is_clamped(world: World, asked: int, given: int) -> None:
    desk = await world.desk()
    job = await desk.submit(priority=asked)
    assert job.priority == given
    assert (await world.dispatch(job)).priority == given


async def test_delayed_job_is_not_leased_before_its_time(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit(delay_seconds=60)
    await world.advance(59)
    assert await world.lease(desk.worker) is None
    await world.advance(1)
    leased = await world.lease(desk.worker)
    assert leased is not None
    assert leased.dispatch.tenant_job_id == job.id


# runnable workflows


async def test_unknown_effect_is_not_found(world: World) -> None:
    user = await world.user()
    with pytest.raises(NotFound):
        await world.engine.jobs.submit.submit(request_for(user, effect_id=404))


async def test_effect_that_is_switched_off_is_not_found(world: World) -> None:
    desk = await world.desk()
    await world.engine.databases.central.run(
        TransactionStep.CATALOGUE, lambda tx: catalogue.update_effect(tx, desk.effect.id, is_active=False)
    )
    with pytest.raises(NotFound):
        await desk.submit()


async def test_effect_whose_workflow_is_switched_off_is_refused(world: World) -> None:
    desk = await world.desk()
    await world.engine.catalogue.workflows.set_active(desk.workflow.slug, is_active=False)
    with pytest.raises(Conflict, match="disabled"):
        await desk.submit()
    assert await desk.balance() == 1000


@pytest.mark.parametrize("named", [{}, {"effect_id": 1, "workflow_slug": "one"}])
async def test_submission_names_an_effect_or_a_workflow_and_not_both(world: World, named: dict[str, Any]) -> None:
    user = await world.user()
    with pytest.raises(InvalidInput):
        await world.engine.jobs.submit.submit(request_for(user, **named))


async def test_tenants_own_workflow_runs_for_its_owner_without_a_price(world: World) -> None:
    user = await world.user(tokens=0)
    graph = {"2": {"class_type": "Prompt", "inputs": {"text": "{{PROMPT}}"}}}
    workflow = await world.workflow("own", tenant_id=user.tenant_id, graph=graph)
    worker = await world.worker(await world.fleet(workflow))
    item = ItemRequest(input_payload={"prompt": "a dog"})
    job = await world.engine.jobs.submit.submit(request_for(user, workflow_slug="own", item=item))
    leased = await world.lease(worker)
    assert leased is not None
    assert leased.graph["2"]["inputs"]["text"] == "a dog"
    await world.complete(leased)
    assert await world.transactions(job) == {"JOB_RESERVE": 0, "JOB_CONSUME": 0}


async def test_text_that_stands_in_a_graph_often_may_not_fill_the_memory(world: World) -> None:
    user = await world.user()
    graph = {str(at): {"class_type": "Prompt", "inputs": {"text": "{{PROMPT}} {{PROMPT}}"}} for at in range(500)}
    await world.workflow("own", tenant_id=user.tenant_id, graph=graph)
    item = ItemRequest(input_payload={"prompt": "a" * 100_000})
    with pytest.raises(TooLarge, match="shorter texts"):
        await world.engine.jobs.submit.submit(request_for(user, workflow_slug="own", item=item))
    item = ItemRequest(input_payload={"prompt": "a" * 1_000})
    await world.engine.jobs.submit.submit(request_for(user, workflow_slug="own", item=item))


async def test_private_workflow_of_another_tenant_is_not_found(world: World) -> None:
    owner, other = await world.user(), await world.user()
    await world.workflow("own", tenant_id=owner.tenant_id)
    with pytest.raises(NotFound):
        await world.engine.jobs.submit.submit(request_for(other, workflow_slug="own"))


async def test_workflow_of_the_catalogue_cannot_be_run_past_its_effects_price(world: World) -> None:
    user = await world.user()
    await world.workflow("shared")
    with pytest.raises(NotFound):
        await world.engine.jobs.submit.submit(request_for(user, workflow_slug="shared"))


# a job payload never changes


async def test_later_override_does_not_change_a_job_that_waits(world: World) -> None:
    desk = await make_desk(world, PROMPT, STRENGTH, overrides={"strength": 0.9})
    await desk.submit()
    overrides = {"strength": 0.1, "prompt": "something else"}
    await world.engine.databases.central.run(
        TransactionStep.CATALOGUE,
        lambda tx: catalogue.update_effect(tx, desk.effect.id, property_overrides=overrides, credits_cost=99),
    )
    leased = await world.lease(desk.worker)
    assert leased is not None
    assert leased.graph["2"]["inputs"] == {"text": "a cat", "strength": 0.9, "model": ["1", 0]}
    await world.fail(leased)
    assert await desk.balance() == 1000


async def test_switching_a_workflow_off_holds_its_jobs_and_changes_nothing_in_them(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit(input_payload={"prompt": "a dog"})
    await world.engine.catalogue.workflows.set_active(desk.workflow.slug, is_active=False)
    assert await world.lease(desk.worker) is None
    assert (await world.job(job)).status == "queued"
    await world.engine.catalogue.workflows.set_active(desk.workflow.slug, is_active=True)
    leased = await world.lease(desk.worker)
    assert leased is not None
    assert leased.graph["2"]["inputs"]["text"] == "a dog"


async def test_job_keeps_the_price_of_its_submission(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.leased()
    await world.engine.databases.central.run(
        TransactionStep.CATALOGUE, lambda tx: catalogue.update_effect(tx, desk.effect.id, credits_cost=500)
    )
    await world.fail(leased)
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}


# the workflow hash


async def test_jobs_with_other_prompts_and_numbers_have_the_same_workflow_hash(world: World) -> None:
    desk = await make_desk(world, PROMPT, STRENGTH, MODEL)
    one = await desk.submit(input_payload={"prompt": "a cat", "strength": 0.1})
    other = await desk.submit(input_payload={"prompt": "a dog", "strength": 0.9})
    assert one.workflow_hash == other.workflow_hash
    assert (await world.dispatch(one)).workflow_hash == one.workflow_hash


async def test_job_with_another_model_file_has_another_workflow_hash(world: World) -> None:
    desk = await make_desk(world, PROMPT, MODEL)
    small = await desk.submit()
    large = await desk.submit(input_payload={"model": "large.safetensors"})
    assert small.workflow_hash != large.workflow_hash


# from the tenant's database to the queue


async def test_job_that_a_crash_kept_from_the_queue_is_brought_there_by_the_relay(world: World) -> None:
    desk = await world.desk()
    crashed = world.crash_on(TransactionStep.SUBMIT_JOB, Boundary.AFTER_COMMIT)
    with pytest.raises(Crash):
        await desk.submit()
    assert crashed
    assert (await world.count(), await desk.balance()) == (0, 990)
    await world.relay()
    assert await world.lease(desk.worker) is not None
    assert await world.lease(desk.worker) is None


async def test_crash_before_the_commit_means_that_nothing_was_accepted(world: World) -> None:
    desk = await world.desk()
    world.crash_on(TransactionStep.SUBMIT_JOB, Boundary.BEFORE_COMMIT)
    with pytest.raises(Crash):
        await desk.submit(key="once")
    await world.relay()
    assert (await world.count(), await desk.balance()) == (0, 1000)
    await desk.submit(key="once")
    assert (await world.count(), await desk.balance()) == (1, 990)


async def test_repeated_submission_makes_the_dispatch_that_a_crash_prevented(world: World) -> None:
    desk = await world.desk()
    world.crash_on(TransactionStep.SUBMIT_JOB, Boundary.AFTER_COMMIT)
    with pytest.raises(Crash):
        await desk.submit(key="once")
    job = await desk.submit(key="once")
    assert (await world.dispatch(job)).status == "queued"
    await world.relay()
    assert (await world.count(), await desk.balance()) == (1, 990)


async def test_job_is_accepted_although_the_queue_cannot_be_written(world: World) -> None:
    desk = await world.desk()

    async def refuse(step: str, _: Boundary) -> None:
        if step == TransactionStep.SUBMIT_ENQUEUE:
            raise DatabaseUnavailable(name="central")

    world.on_boundary(refuse)
    job = await desk.submit()
    assert job.status == "queued"
    assert await world.count() == 0
    world.on_boundary(None)
    await world.relay()
    leased = await world.lease(desk.worker)
    assert leased is not None
    assert leased.dispatch.tenant_job_id == job.id


async def test_crash_after_the_dispatch_was_made_does_not_make_a_second(world: World) -> None:
    desk = await world.desk()
    world.crash_on(TransactionStep.SUBMIT_ENQUEUE, Boundary.AFTER_COMMIT)
    with pytest.raises(Crash):
        await desk.submit()
    await world.relay()
    assert await world.count() == 1


async def test_queued_submissions_leave_the_outbox_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # until a worker waits for it
    monkeypatch.setattr("comfyrelay.services.outbox.delivery.REMOVAL_SECONDS", PATIENCE_SECONDS)
    desk = await world.desk()
    steps: list[str] = []

    async def note(step: str, boundary: Boundary) -> None:
        if boundary is Boundary.AFTER_COMMIT:
            steps.append(step)

    world.on_boundary(note)
    await asyncio.gather(*(desk.submit() for _ in range(4)))
    assert TransactionStep.SUBMIT_FORGET not in steps
    await world.settled()
    assert steps.count(TransactionStep.SUBMIT_FORGET) == 1
    assert await world.count() == 4
    assert await _submissions(desk) == 0


async def test_submission_stuck_in_the_outbox_makes_no_second_dispatch(
    world: World,
) -> None:
    desk = await world.desk()

    async def refuse(step: str, _: Boundary) -> None:
        if step == TransactionStep.SUBMIT_FORGET:
            raise DatabaseUnavailable(name="main")

    world.on_boundary(refuse)
    await desk.submit()
    await world.settled()
    assert await _submissions(desk) == 1
    world.on_boundary(None)
    await world.relay()
    assert (await _submissions(desk), await world.count()) == (0, 1)


async def test_late_removal_from_the_outbox_affects_no_other_submission(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery may be faster; the next submission must not get the id that was free then."""
    monkeypatch.setattr("comfyrelay.services.outbox.delivery.REMOVAL_SECONDS", PATIENCE_SECONDS)
    desk = await world.desk()
    await desk.submit()
    shard = await world.engine.databases.shard_name_of(desk.user.tenant_id)
    await world.engine.outbox.recovery.enqueue_pending(shard)
    assert await _submissions(desk) == 0
    world.crash_on(TransactionStep.SUBMIT_ENQUEUE, Boundary.BEFORE_COMMIT)
    with pytest.raises(Crash):
        await desk.submit()
    world.on_boundary(None)
    await world.settled()
    assert await _submissions(desk) == 1
    await world.relay()
    assert await world.count() == 2


async def _submissions(desk: Desk) -> int:
    async with (await desk.world.engine.databases.shard_of(desk.user.tenant_id)).read() as tx:
        return len((await tx.execute(tenant.outbox.select())).all())


async def test_relay_leaves_a_delayed_job_its_delay(world: World) -> None:
    desk = await world.desk()
    world.crash_on(TransactionStep.SUBMIT_JOB, Boundary.AFTER_COMMIT)
    with pytest.raises(Crash):
        await desk.submit(delay_seconds=60)
    await world.advance(30)
    await world.relay()
    assert await world.lease(desk.worker) is None
    await world.advance(30)
    assert await world.lease(desk.worker) is not None


async def test_job_of_a_workflow_deleted_before_queueing_fails_and_is_refunded(world: World) -> None:
    desk = await world.desk()
    world.crash_on(TransactionStep.SUBMIT_JOB, Boundary.AFTER_COMMIT)
    with pytest.raises(Crash):
        await desk.submit(key="once")
    await _forget_workflow(desk)
    await world.relay()
    job = await desk.submit(key="once")
    assert (job.status, job.error_message) == ("failed", "The workflow of this job no longer exists.")
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}
    assert (await desk.balance(), await world.count()) == (1000, 0)
    with pytest.raises(Conflict, match="already failed"):
        await world.engine.queue.control.cancel(job.tenant_id, job.id)


async def _forget_workflow(desk: Desk) -> None:
    async def work(tx: Any) -> None:
        for table, column in (
            (central.workers.worker_workflows, "workflow_id"),
            (central.workers.workflow_fleets, "workflow_id"),
            (central.catalogue.effects, "workflow_id"),
            (central.catalogue.workflows, "id"),
        ):
            await tx.execute(table.delete().where(table.c[column] == desk.workflow.id))

    await desk.world.engine.databases.central.run(TransactionStep.CATALOGUE, work)


# videos


async def test_video_follows_its_job(world: World) -> None:
    desk = await world.desk()
    video_id = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=await desk.file())
    seen = [(await world.video(desk.user, video_id)).status]
    job = await desk.submit(video_id=video_id)
    seen.append((await world.video(desk.user, video_id)).status)
    leased = await world.lease(desk.worker)
    assert leased is not None
    seen.append((await world.video(desk.user, video_id)).status)
    await world.complete(leased)
    video = await world.video(desk.user, video_id)
    assert [*seen, video.status] == ["uploaded", "queued", "processing", "completed"]
    assert video.job_id == job.id
    assert video.processed_file_id == (await world.job(job)).output_file_id


async def test_failed_jobs_video_says_why(world: World) -> None:
    desk = await world.desk()
    video_id = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=await desk.file())
    _, leased = await desk.leased(video_id=video_id)
    await world.fail(leased, "The prompt is empty.")
    video = await world.video(desk.user, video_id)
    assert (video.status, video.processing_details) == ("failed", {"error": "The prompt is empty."})
