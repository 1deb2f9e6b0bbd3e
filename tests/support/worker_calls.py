"""Calls of a worker: register, poll and upload an output, with a job to run."""

from dataclasses import dataclass
from typing import Any

from comfyrelay.domain.records.accounts import User
from comfyrelay.services.jobs.submission.requests import JobRequest
from tests.support.api import FLEET_SECRET, Api, Caller
from tests.support.api_calls import png

SECRET_HEADERS = {"X-Fleet-Secret": FLEET_SECRET}
PICTURE = png()


@dataclass(frozen=True)
class SubmittedJob:
    """A user, an effect, and the user's job of this effect."""

    user: User
    effect_id: int
    job_id: str


async def submit_first_job(api: Api) -> SubmittedJob:
    effect_id = await api.effect()
    user = (await api.user(tokens=100)).user
    assert user is not None
    return SubmittedJob(user, effect_id, await submit_job(api, user, effect_id, "one"))


async def submit_job(api: Api, user: User, effect_id: int, key: str) -> str:
    request = JobRequest(tenant_id=user.tenant_id, user_id=user.id, idempotency_key=key, effect_id=effect_id)
    return (await api.engine.jobs.submit.submit(request)).id


async def poll(worker: Caller, worker_id: str = "gpu-1", **more: Any) -> dict[str, Any] | None:
    answer = await worker.post("/api/worker/poll", {"worker_id": worker_id, **more})
    job: dict[str, Any] | None = answer["job"]
    return job


async def upload_output(api: Api, job: dict[str, Any], content: bytes = PICTURE) -> None:
    answer = await api.anonymous.http.put(job["output_url"], content=content, headers=job["output_headers"])
    assert answer.is_success, answer.text
