"""Submission: resolved inputs, refusals, limits, and delivery to the queue."""

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
from tests.support import media_samples
from tests.support.world import PATIENCE_SECONDS, PROMPT, Crash, Desk, World, submit_batch

CONTENTS = {"video/mp4": media_samples.video(), "image/png": media_samples.image("PNG")}
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

# NUL and an unpaired surrogate
UNSTORABLE = ("a\x00b", "half an emoji \ud83d")
PROMPTS = (
    "she said \"hi\", and 'bye'",
    '"}, "3": {"class_type": "Evil", "inputs": {"x": "',
    "{{STRENGTH}} {PROMPT} }}{{ %s {0} $1 \\1",
    "C:\\new\\table \\u0041 \\",
    "two\nlines\r\nand a\ttab",
    "🦊 fox, 日本語, Ω, \u202e, \u2028",
    "'; DROP TABLE ai_jobs; --",
    " ",
)


async def make_desk(
    world: World,
    *properties: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    cost: int = 10,
    tokens: int = 1000,
) -> Desk:
    """Return a desk whose workflow has these properties."""
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


async def submit_and_lease(desk: Desk, **values: Any) -> LeasedDispatch:
    """Submit and lease a job."""
    return (await desk.submit_and_lease(**values))[1]


async def submit_refused(desk: Desk, **values: Any) -> dict[str, str]:
    """Check that a submission is refused without side effects; return the errors by field."""
    before = await desk.balance()
    with pytest.raises(InvalidInput) as refused:
        await desk.submit(**values)
    assert await read_jobs(desk.world, desk.user) == []
    assert await desk.balance() == before
    return refused.value.errors


async def read_jobs(world: World, user: User) -> Sequence[Any]:
    async with (await world.engine.databases.shard_of(user.tenant_id)).read() as tx:
        return (await tx.execute(tenant.ai_jobs.select().where(tenant.ai_jobs.c.tenant_id == user.tenant_id))).all()


async def add_file(world: World, user: User, mime_type: str, **more: Any) -> str:
    path, content = f"uploads/{world.number()}", CONTENTS[mime_type]
    await world.engine.objects.put(path, content)
    return await world.engine.accounts.tenancy.add_file(user, path=path, mime_type=mime_type, size=len(content), **more)


def request_for(user: User, **values: Any) -> JobRequest:
    return JobRequest(tenant_id=user.tenant_id, user_id=user.id, idempotency_key="key", **values)


# inputs


@pytest.mark.both_databases
async def test_user_input_overrides_the_effect_and_the_effect_the_workflow(world: World) -> None:
    leased = await submit_and_lease(await make_desk(world, PROMPT, STRENGTH))
    assert leased.graph["2"]["inputs"] == {"text": "a cat", "strength": 0.5, "model": ["1", 0]}
    desk = await make_desk(world, PROMPT, STRENGTH, overrides={"strength": 0.9})
    for payload, strength in (({}, 0.9), ({"strength": 0.1}, 0.1)):
        leased = await submit_and_lease(desk, input_payload=payload)
        assert leased.graph["2"]["inputs"]["strength"] == strength


async def test_invalid_inputs_are_refused_by_their_keys(world: World) -> None:
    size = {**STRENGTH, "key": "size", "placeholder": "{{SIZE}}"}
    name = {**PROMPT, "key": "name", "placeholder": "{{NAME}}", "default_value": None, "required": True}
    fixed = {**STRENGTH, "key": "fixed", "placeholder": "{{FIXED}}", "user_configurable": False}
    desk = await make_desk(world, PROMPT, STRENGTH, MODEL, size, name, fixed)
    payload = {"prompt": 7, "strength": "strong", "model": "stolen.safetensors", "size": 10**400, "fixed": 1}
    assert await submit_refused(desk, input_payload=payload) == {
        "prompt": "This must be text.",
        "strength": "This must be a number.",
        "model": "This must be one of: small.safetensors, large.safetensors.",
        "size": "This must be a number.",
        "name": "This input is required.",
        "fixed": "The effect sets this input. Available inputs: model, name, prompt, size, strength.",
    }


async def test_unknown_input_is_refused_with_the_list_of_known_inputs(world: World) -> None:
    desk = await make_desk(world, PROMPT, STRENGTH)
    errors = await submit_refused(desk, input_payload={"promt": "a dog"})
    assert errors == {"promt": "Unknown input. Available inputs: prompt, strength."}


@pytest.mark.both_databases
async def test_unstorable_text_is_refused(world: World) -> None:
    desk = await make_desk(world, PROMPT, LOGO)
    for text in UNSTORABLE:
        assert list(await submit_refused(desk, input_payload={"prompt": text})) == ["prompt"]
        errors = await submit_refused(desk, input_payload={"logo": text})
        assert errors == {"logo": "This must be the id of a file."}
        assert await submit_refused(desk, input_file_id=text) == {"input_file_id": "You have no such file."}
        assert await submit_refused(desk, video_id=text) == {"video_id": "You have no such video."}


async def test_seed_of_64_bits_arrives_exactly(world: World) -> None:
    desk = await make_desk(world, SEED)
    leased = await submit_and_lease(desk, input_payload={"seed": 2**64 - 1})
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


async def test_job_without_a_seed_gets_a_random_one(world: World) -> None:
    desk = await make_desk(world, SEED)
    seeds = {seed_in(await submit_and_lease(desk)) for _ in range(3)}
    assert len(seeds | {7}) == 4
    assert seed_in(await submit_and_lease(desk, input_payload={"seed": 7})) == 7
    fixed = await make_desk(world, SEED, overrides={"seed": 3})
    assert seed_in(await submit_and_lease(fixed)) == 3


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
    retry = await world.engine.jobs.submit.retry(job.tenant_id, job.id)
    assert (await views.job(job.tenant_id, retry.id)).seed == seed
    listed = await views.jobs(job.tenant_id, limit=10)
    assert [item.seed for item in listed.items] == [seed, seed]


async def test_retry_may_request_a_new_seed(world: World) -> None:
    desk = await make_desk(world, SEED)
    job, leased = await desk.submit_and_lease(input_payload={"seed": 7})
    await world.fail(leased)
    retry = await world.engine.jobs.submit.retry(job.tenant_id, job.id, new_seeds=True)
    assert (await world.engine.jobs.views.job(job.tenant_id, retry.id)).seed not in (None, 7)


async def test_default_label_names_effect_input_and_prompt(world: World) -> None:
    desk = await make_desk(world, PROMPT, VIDEO)
    cat = await add_file(world, desk.user, "video/mp4", original_filename="My cat.mp4")
    payload = {"prompt": "it runs\nthrough the snow " + "and on " * 20}
    job = await desk.submit(input_file_id=cat, input_payload=payload)
    assert job.label == f"{desk.effect.name} · My cat · it runs through the snow and on and on and on and on and on…"
    assert (await desk.submit(input_file_id=cat, label="mine")).label == "mine"


@pytest.mark.both_databases
async def test_prompt_is_unchanged_in_the_graph(world: World) -> None:
    desk = await make_desk(world, PROMPT, STRENGTH)
    for prompt in PROMPTS:
        leased = await submit_and_lease(desk, input_payload={"prompt": prompt})
        assert leased.graph["2"]["inputs"] == {"text": prompt, "strength": 0.5, "model": ["1", 0]}
        assert set(leased.graph) == {"1", "2", "3"}
        await world.complete(leased)


async def test_text_with_the_placeholder_of_a_file_is_refused(world: World) -> None:
    desk = await make_desk(world, PROMPT, LOGO)
    errors = await submit_refused(desk, input_payload={"prompt": "a cat {{LOGO}}"})
    assert errors == {"prompt": "This text contains a placeholder of the workflow."}


# files


async def test_primary_input_is_named_by_file_id(world: World) -> None:
    desk = await make_desk(world, PROMPT, VIDEO)
    file_id = await add_file(world, desk.user, "video/mp4", content_hash="c0ffee")
    leased = await submit_and_lease(desk, input_file_id=file_id)
    asset = leased.payload.primary_input
    assert asset is not None
    assert (asset.key, asset.placeholder, asset.type) == ("clip", "{{INPUT}}", "video")
    # the hash is omitted, so workers do not share this private file
    assert (asset.disk, asset.content_hash, asset.is_primary_input) == ("objects", None, True)
    assert asset.path.startswith("uploads/")
    assert leased.graph["3"]["inputs"]["video"] == "{{INPUT}}"


async def test_primary_input_is_named_by_video_id(world: World) -> None:
    desk = await make_desk(world, PROMPT, VIDEO)
    file_id = await add_file(world, desk.user, "video/mp4", content_hash="c0ffee")
    video_id = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=file_id)
    job, leased = await desk.submit_and_lease(video_id=video_id)
    assert (job.video_id, job.input_file_id) == (video_id, file_id)
    assert leased.payload.primary_input is not None
    assert leased.payload.primary_input.content_hash is None


async def test_invalid_file_inputs_are_refused(world: World) -> None:
    desk = await make_desk(world, PROMPT, {**VIDEO, "user_configurable": True}, LOGO)
    assert await submit_refused(desk) == {"clip": "This input is required: send input_file_id or video_id."}
    video, image = await add_file(world, desk.user, "video/mp4"), await add_file(world, desk.user, "image/png")
    errors = await submit_refused(desk, input_payload={"clip": video})
    assert errors == {"clip": "Send the primary input as input_file_id or video_id."}
    errors = await submit_refused(desk, input_file_id=image)
    assert errors == {"clip": "This must be a video, but the file is image/png."}
    errors = await submit_refused(desk, input_file_id=video, input_payload={"logo": video})
    assert errors == {"logo": "This must be an image, but the file is video/mp4."}


@pytest.mark.parametrize("same_shard", [True, False])
async def test_file_or_video_of_another_tenant_is_not_found(world: World, same_shard: bool) -> None:
    desk = await make_desk(world, PROMPT, LOGO, {**VIDEO, "required": False})
    shard = (await world.engine.databases.shard_of(desk.user.tenant_id)).name
    other = await world.user(shard=shard if same_shard else {"a": "b", "b": "a"}[shard])
    image, video = await add_file(world, other, "image/png"), await add_file(world, other, "video/mp4")
    video_id = await world.engine.accounts.tenancy.add_video(other, original_file_id=video)
    assert await submit_refused(desk, input_payload={"logo": image}) == {"logo": "You have no such file."}
    assert await submit_refused(desk, input_file_id=video) == {"input_file_id": "You have no such file."}
    assert await submit_refused(desk, video_id=video_id) == {"video_id": "You have no such video."}


async def test_file_property_accepts_a_file_of_the_user(world: World) -> None:
    desk = await make_desk(world, PROMPT, LOGO)
    file_id = await add_file(world, desk.user, "image/png", content_hash="beef")
    (asset,) = (await submit_and_lease(desk, input_payload={"logo": file_id})).payload.assets
    assert (asset.key, asset.content_hash, asset.mime_type) == ("logo", None, "image/png")
    assert not asset.is_primary_input


async def test_file_property_refuses_a_path(world: World) -> None:
    desk = await make_desk(world, PROMPT, {**LOGO, "default_value": "assets/logo.png"})
    await add_file(world, desk.user, "image/png")
    for path in ("uploads/1", "assets/logo.png", "../../etc/passwd", "/etc/passwd"):
        assert await submit_refused(desk, input_payload={"logo": path}) == {"logo": "You have no such file."}


async def test_default_file_has_the_hash_of_the_workflow(world: World) -> None:
    logo = {**LOGO, "default_value": "assets/logo.png", "default_value_hash": "feed"}
    (asset,) = (await submit_and_lease(await make_desk(world, PROMPT, logo))).payload.assets
    assert (asset.path, asset.content_hash, asset.disk) == ("assets/logo.png", "feed", "objects")


@pytest.mark.parametrize("exists", [True, False])
async def test_file_of_an_effect_has_its_own_hash_once_it_exists(world: World, exists: bool) -> None:
    if exists:
        await world.engine.objects.put("assets/other.png", b"other")
    logo = {**LOGO, "default_value": "assets/logo.png", "default_value_hash": "feed"}
    desk = await make_desk(world, PROMPT, logo, overrides={"logo": "assets/other.png"})
    (asset,) = (await submit_and_lease(desk)).payload.assets
    expected = hashlib.sha256(b"other").hexdigest() if exists else None
    assert (asset.path, asset.content_hash) == ("assets/other.png", expected)


# idempotency


@pytest.mark.both_databases
async def test_repeated_key_returns_the_same_job_or_conflicts(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease(key="once")
    assert (await desk.submit(key="once")).id == job.id
    await world.complete(leased)
    repeated = await desk.submit(key="once")
    assert (repeated.id, repeated.status) == (job.id, "completed")
    different: list[dict[str, Any]] = [{"input_payload": {"prompt": "a dog"}}, {"priority": 1}, {"delay_seconds": 5}]
    for values in different:
        with pytest.raises(IdempotencyConflict):
            await desk.submit(key="once", **values)
    assert (await world.count(), await desk.balance()) == (1, 990)
    other = await world.user(shard=(await world.engine.databases.shard_of(desk.user.tenant_id)).name)
    assert (await world.submit(other, desk.effect, key="once")).id != job.id


async def test_submission_without_a_key_is_refused(world: World) -> None:
    desk = await world.desk()
    request = JobRequest(
        tenant_id=desk.user.tenant_id, user_id=desk.user.id, idempotency_key="", effect_id=desk.effect.id
    )
    with pytest.raises(InvalidInput) as refused:
        await world.engine.jobs.submit.submit(request)
    assert "idempotency_key" in refused.value.errors


@pytest.mark.both_databases
async def test_concurrent_submissions_with_one_key_create_one_job(world: World) -> None:
    desk = await world.desk()
    jobs = await asyncio.gather(*(desk.submit(key="once") for _ in range(8)))
    assert len({job.id for job in jobs}) == 1
    assert await world.count() == 1
    assert await desk.balance() == 990


# limits


@pytest.mark.both_databases
async def test_sixth_active_job_of_a_user_is_refused(world: World) -> None:
    desk = await world.desk()
    jobs = [await desk.submit() for _ in range(5)]
    with pytest.raises(TooManyActiveJobs, match="the limit is 5"):
        await desk.submit(key="sixth")
    with pytest.raises(TooManyActiveJobs):
        await submit_batch(world, desk.user, desk.effect)
    assert await desk.balance() == 950
    other = await world.user(shard=(await world.engine.databases.shard_of(desk.user.tenant_id)).name)
    assert (await world.submit(other, desk.effect)).status == "queued"
    await world.engine.queue.control.cancel(desk.user.tenant_id, jobs[0].id)
    assert (await desk.submit(key="sixth")).status == "queued"


async def test_batch_counts_as_one_active_job(world: World) -> None:
    desk = await world.desk()
    await submit_batch(world, desk.user, desk.effect, 20)
    for _ in range(4):
        await desk.submit()
    with pytest.raises(TooManyActiveJobs):
        await desk.submit()


async def test_ended_jobs_do_not_count_as_active(world: World) -> None:
    desk = await world.desk()
    for end in (world.complete, world.fail):
        await end((await desk.submit_and_lease())[1])
    canceled = await desk.submit()
    await world.engine.queue.control.cancel(desk.user.tenant_id, canceled.id)
    for _ in range(5):
        await desk.submit()


@pytest.mark.both_databases
async def test_concurrent_submissions_never_exceed_the_limit(world: World) -> None:
    desk = await world.desk()
    answers = await asyncio.gather(*(desk.submit() for _ in range(12)), return_exceptions=True)
    assert sum(isinstance(answer, JobRecord) for answer in answers) == 5
    assert sum(isinstance(answer, TooManyActiveJobs) for answer in answers) == 7
    assert await desk.balance() == 950


@pytest.mark.both_databases
async def test_job_beyond_the_balance_is_refused_without_effect(world: World) -> None:
    desk = await world.desk(tokens=9)
    file_id = await desk.file()
    video_id = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=file_id)
    with pytest.raises(InsufficientTokens, match=r"^You need 10 tokens and have 9\.$") as refused:
        await desk.submit(video_id=video_id)
    assert (refused.value.required_tokens, refused.value.balance) == (10, 9)
    assert await read_jobs(world, desk.user) == []
    assert await world.count() == 0
    assert await desk.balance() == 9
    assert (await world.video(desk.user, video_id)).status == "uploaded"
    await world.engine.accounts.ledger.credit(desk.user.tenant_id, 1, reference="last")
    await desk.submit(video_id=video_id)
    assert await desk.balance() == 0


async def test_priority_is_clamped(world: World) -> None:
    desk = await world.desk()
    for requested, priority in ((99, 10), (-99, -10), (3, 3)):
        job = await desk.submit(priority=requested)
        assert (job.priority, (await world.dispatch(job)).priority) == (priority, priority)


# effects and workflows


async def test_unknown_or_disabled_effect_is_not_found(world: World) -> None:
    desk = await world.desk()
    with pytest.raises(NotFound):
        await world.engine.jobs.submit.submit(request_for(desk.user, effect_id=404))
    await world.engine.databases.central.run(
        TransactionStep.CATALOGUE, lambda tx: catalogue.update_effect(tx, desk.effect.id, is_active=False)
    )
    with pytest.raises(NotFound):
        await desk.submit()


async def test_effect_of_a_disabled_workflow_is_refused(world: World) -> None:
    desk = await world.desk()
    await world.engine.catalogue.workflows.set_active(desk.workflow.slug, is_active=False)
    with pytest.raises(Conflict, match="cannot run right now"):
        await desk.submit()
    assert await desk.balance() == 1000


async def test_submission_must_name_either_an_effect_or_a_workflow(world: World) -> None:
    user = await world.user()
    for request in (request_for(user), request_for(user, effect_id=1, workflow_slug="one")):
        with pytest.raises(InvalidInput):
            await world.engine.jobs.submit.submit(request)


async def test_private_workflow_is_free_for_its_owner(world: World) -> None:
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


async def test_graph_that_grows_too_large_is_refused(world: World) -> None:
    user = await world.user()
    graph = {str(at): {"class_type": "Prompt", "inputs": {"text": "{{PROMPT}} {{PROMPT}}"}} for at in range(500)}
    await world.workflow("own", tenant_id=user.tenant_id, graph=graph)
    item = ItemRequest(input_payload={"prompt": "a" * 100_000})
    with pytest.raises(TooLarge, match="shorter texts"):
        await world.engine.jobs.submit.submit(request_for(user, workflow_slug="own", item=item))
    item = ItemRequest(input_payload={"prompt": "a" * 1_000})
    await world.engine.jobs.submit.submit(request_for(user, workflow_slug="own", item=item))


async def test_only_private_workflows_of_the_tenant_run_without_an_effect(world: World) -> None:
    owner, other = await world.user(), await world.user()
    await world.workflow("own", tenant_id=owner.tenant_id)
    await world.workflow("shared")
    for slug in ("own", "shared"):
        with pytest.raises(NotFound):
            await world.engine.jobs.submit.submit(request_for(other, workflow_slug=slug))


# the payload of a job


async def test_later_override_does_not_change_a_waiting_job(world: World) -> None:
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


# the workflow hash


async def test_workflow_hash_depends_on_models_and_not_on_other_inputs(world: World) -> None:
    desk = await make_desk(world, PROMPT, STRENGTH, MODEL)
    one = await desk.submit(input_payload={"prompt": "a cat", "strength": 0.1})
    other = await desk.submit(input_payload={"prompt": "a dog", "strength": 0.9})
    assert one.workflow_hash == other.workflow_hash
    assert (await world.dispatch(one)).workflow_hash == one.workflow_hash
    large = await desk.submit(input_payload={"model": "large.safetensors"})
    assert large.workflow_hash != one.workflow_hash


# delivery to the queue


async def test_repeated_submission_creates_the_missing_dispatch(world: World) -> None:
    desk = await world.desk()
    world.crash_on(TransactionStep.SUBMIT_JOB, Boundary.AFTER_COMMIT)
    with pytest.raises(Crash):
        await desk.submit(key="once")
    job = await desk.submit(key="once")
    assert (await world.dispatch(job)).status == "queued"
    await world.relay()
    assert (await world.count(), await desk.balance()) == (1, 990)


async def test_job_is_accepted_while_the_queue_is_unavailable(world: World) -> None:
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


async def test_queued_submissions_leave_the_outbox_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # prevent removals before the deliveries are idle
    monkeypatch.setattr("comfyrelay.services.outbox.delivery.REMOVAL_SECONDS", PATIENCE_SECONDS)
    desk = await world.desk()
    steps: list[str] = []

    async def record(step: str, boundary: Boundary) -> None:
        if boundary is Boundary.AFTER_COMMIT:
            steps.append(step)

    world.on_boundary(record)
    await asyncio.gather(*(desk.submit() for _ in range(4)))
    assert TransactionStep.SUBMIT_FORGET not in steps
    await world.wait_for_deliveries()
    assert steps.count(TransactionStep.SUBMIT_FORGET) == 1
    assert await world.count() == 4
    assert await _count_submissions(desk) == 0


async def test_submission_stuck_in_the_outbox_creates_no_second_dispatch(world: World) -> None:
    desk = await world.desk()

    async def refuse(step: str, _: Boundary) -> None:
        if step == TransactionStep.SUBMIT_FORGET:
            raise DatabaseUnavailable(name="main")

    world.on_boundary(refuse)
    await desk.submit()
    await world.wait_for_deliveries()
    assert await _count_submissions(desk) == 1
    world.on_boundary(None)
    await world.relay()
    assert (await _count_submissions(desk), await world.count()) == (0, 1)


@pytest.mark.both_databases
async def test_late_removal_from_the_outbox_affects_no_other_submission(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery removes the entry first, so the next submission must not reuse the id of that entry."""
    monkeypatch.setattr("comfyrelay.services.outbox.delivery.REMOVAL_SECONDS", PATIENCE_SECONDS)
    desk = await world.desk()
    await desk.submit()
    shard = await world.engine.databases.shard_name_of(desk.user.tenant_id)
    await world.engine.outbox.recovery.enqueue_pending(shard)
    assert await _count_submissions(desk) == 0
    world.crash_on(TransactionStep.SUBMIT_ENQUEUE, Boundary.BEFORE_COMMIT)
    with pytest.raises(Crash):
        await desk.submit()
    world.on_boundary(None)
    await world.wait_for_deliveries()
    assert await _count_submissions(desk) == 1
    await world.relay()
    assert await world.count() == 2


async def _count_submissions(desk: Desk) -> int:
    async with (await desk.world.engine.databases.shard_of(desk.user.tenant_id)).read() as tx:
        return len((await tx.execute(tenant.outbox.select())).all())


async def test_relay_keeps_the_delay_of_a_job(world: World) -> None:
    desk = await world.desk()
    world.crash_on(TransactionStep.SUBMIT_JOB, Boundary.AFTER_COMMIT)
    with pytest.raises(Crash):
        await desk.submit(delay_seconds=60)
    await world.advance(30)
    await world.relay()
    assert await world.lease(desk.worker) is None
    await world.advance(30)
    assert await world.lease(desk.worker) is not None


@pytest.mark.both_databases
async def test_job_of_a_workflow_deleted_before_queueing_fails_and_is_refunded(world: World) -> None:
    desk = await world.desk()
    world.crash_on(TransactionStep.SUBMIT_JOB, Boundary.AFTER_COMMIT)
    with pytest.raises(Crash):
        await desk.submit(key="once")
    await _delete_workflow(desk)
    await world.relay()
    job = await desk.submit(key="once")
    assert (job.status, job.error_detail) == ("failed", "The workflow of this job no longer exists.")
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}
    assert (await desk.balance(), await world.count()) == (1000, 0)
    with pytest.raises(Conflict, match="already failed"):
        await world.engine.queue.control.cancel(job.tenant_id, job.id)


async def _delete_workflow(desk: Desk) -> None:
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


async def test_video_has_the_state_of_its_job(world: World) -> None:
    desk = await world.desk()
    video_id = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=await desk.file())
    statuses = [(await world.video(desk.user, video_id)).status]
    job = await desk.submit(video_id=video_id)
    statuses.append((await world.video(desk.user, video_id)).status)
    leased = await world.lease(desk.worker)
    assert leased is not None
    statuses.append((await world.video(desk.user, video_id)).status)
    await world.advance(3)
    await world.complete(leased)
    video = await world.video(desk.user, video_id)
    assert video.processing_details == {"processing_seconds": 3}
    assert [*statuses, video.status] == ["uploaded", "queued", "processing", "completed"]
    assert video.job_id == job.id
    assert video.processed_file_id == (await world.job(job)).output_file_id
