"""A completion that polls for the worker's next job in the same request."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from comfyrelay.errors import StorageUnavailable
from tests.support.api import Api, Caller, problem_of
from tests.support.api_calls import lease, lease_of
from tests.support.raw_asgi import JSON, app_of, call
from tests.support.worker_calls import PICTURE, SubmittedJob, poll, submit_first_job, submit_job, upload_output
from tests.support.world import PATIENCE_SECONDS

pytestmark = pytest.mark.both_databases
PATH = "/api/worker/complete"


async def until(condition: Callable[[], object]) -> None:
    """Yield to other tasks until the condition holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110  (there is no event)
            await asyncio.sleep(0.001)


async def start(api: Api, *, jobs: int = 2) -> tuple[SubmittedJob, Caller, Any]:
    """Submit jobs, and lease the first of them to a worker, which uploads its output."""
    submission = await submit_first_job(api)
    for number in range(1, jobs):
        await submit_job(api, submission.user, submission.effect_id, f"more-{number}")
    worker = await api.worker()
    job = await lease(worker)
    await upload_output(api, job)
    return submission, worker, job


def completion(job: Any, **next_poll: Any) -> dict[str, Any]:
    output = {"size": len(PICTURE), "mime_type": "image/png"}
    return {**lease_of(job), "output": output, "next": {"worker_id": "gpu-1", **next_poll}}


async def job_status(api: Api, submission: SubmittedJob) -> str:
    await api.engine.outbox.delivery.idle()
    job = await api.engine.jobs.views.job_record(submission.user.tenant_id, submission.job_id)
    return str(job.status)


async def test_completion_with_next_leases_the_next_job(api: Api) -> None:
    submission, worker, job = await start(api)
    answer = await worker.post(PATH, completion(job))
    assert answer["status"] == "completed"
    assert answer["next"]["job"]["job_id"] not in (submission.job_id, None)
    assert await job_status(api, submission) == "completed"


async def test_completion_without_next_leases_nothing(api: Api) -> None:
    _, worker, job = await start(api)
    body = completion(job)
    assert await worker.post(PATH, {**body, "next": None}) == {"status": "completed"}
    assert await poll(worker) is not None


async def test_completion_with_next_answers_an_empty_poll(api: Api) -> None:
    _, worker, job = await start(api, jobs=1)
    answer = await worker.post(PATH, completion(job))
    assert answer == {"status": "completed", "next": {"job": None, "more_waiting": 0, "wants_logs": False}}


async def test_repeated_completion_with_next_gets_the_same_lease(api: Api) -> None:
    _, worker, job = await start(api, jobs=3)
    first, second = [await worker.post(PATH, completion(job, request_id="r1")) for _ in range(2)]
    assert lease_of(first["next"]["job"]) == lease_of(second["next"]["job"])


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"lease_token": "wrong"}, 404),
        ({"output": {"size": 1, "mime_type": "image/png"}}, 422),
        ({"output": None}, 422),
        ({"next": {"worker_id": "gpu-2"}}, 403),
        ({"next": {"worker_id": "gpu-1", "wait_seconds": -1}}, 422),
    ],
)
async def test_refused_completion_leases_nothing(api: Api, change: dict[str, Any], status: int) -> None:
    submission, worker, job = await start(api)
    problem_of(await worker.call("POST", PATH, {**completion(job), **change}), status)
    assert await job_status(api, submission) == "processing"
    # A worker with a free slot gets the second job.
    other = await api.worker("gpu-2")
    assert await poll(other, "gpu-2") is not None


async def test_draining_worker_gets_no_next_job(api: Api) -> None:
    _, worker, job = await start(api)
    await api.engine.workers.workers.set_draining("gpu-1", is_draining=True)
    answer = await worker.post(PATH, completion(job))
    assert (answer["status"], answer["next"]["job"]) == ("completed", None)


async def test_completion_is_durable_before_next_waits(api: Api) -> None:
    submission, worker, job = await start(api, jobs=1)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(worker.post(PATH, completion(job, wait_seconds=30)))
        await until(lambda: api.engine.queue.polls.parked)
        assert await job_status(api, submission) == "completed"
        second = await submit_job(api, submission.user, submission.effect_id, "second")
    assert waiting.result()["next"]["job"]["job_id"] == second


async def test_caller_that_disconnects_while_next_waits_gets_no_lease(api: Api) -> None:
    submission, worker, job = await start(api, jobs=1)
    disconnected = asyncio.Event()
    body = json.dumps(completion(job, wait_seconds=30)).encode()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(
            call(app_of(api), PATH, body, {**JSON, **worker.headers}, disconnected=disconnected)
        )
        await until(lambda: api.engine.queue.polls.parked)
        disconnected.set()
    assert waiting.result().status == 499
    assert not api.engine.queue.polls.parked
    await submit_job(api, submission.user, submission.effect_id, "second")
    other = await api.worker("gpu-2")
    assert await poll(other, "gpu-2") is not None


@pytest.mark.parametrize("path", [PATH, "/api/worker/poll"])
async def test_caller_that_disconnects_after_the_lease_gives_it_back(
    api: Api, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, worker, job = await start(api)
    body: Any = completion(job)
    if path != PATH:
        await worker.post(PATH, {**body, "next": None})
        body = body["next"]
    disconnected, is_leased = asyncio.Event(), asyncio.Event()

    async def sign_forever(*_: Any) -> Any:
        is_leased.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(api.engine.queue.lease_payloads, "urls", sign_forever)
        async with asyncio.TaskGroup() as group:
            encoded = json.dumps(body).encode()
            waiting = group.create_task(
                call(app_of(api), path, encoded, {**JSON, **worker.headers}, disconnected=disconnected)
            )
            await is_leased.wait()
            disconnected.set()
    assert waiting.result().status == 499
    other = await api.worker("gpu-2")
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await poll(other, "gpu-2", wait_seconds=30) is not None


async def test_failed_poll_does_not_refuse_the_completion(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    submission, worker, job = await start(api)

    async def fail(*_: Any, **__: Any) -> Any:
        raise StorageUnavailable("Storage does not answer.")

    monkeypatch.setattr(api.engine.queue.polls, "poll", fail)
    assert await worker.post(PATH, completion(job)) == {"status": "completed"}
    assert await job_status(api, submission) == "completed"
