"""The routes of the Comfy API for jobs."""

from typing import Any

import httpx

from comfyrelay.comfyui.comfy_api.http import ApiHttp, error_code, error_details
from comfyrelay.errors import RunLost, ServerRefused
from comfyrelay.http_client import object_in

JOBS = "/api/v2/jobs"
# No job has this id.
NO_JOB = "00000000-0000-0000-0000-000000000000"
KEY_REUSED = "idempotency_key_reuse"


class JobApi:
    def __init__(self, http: ApiHttp) -> None:
        self.http = http

    async def check(self) -> None:
        """Raise `ComfyError` unless the service responds and accepts the key."""
        response = await self.http.send("GET", f"{JOBS}/{NO_JOB}")
        if response.status_code != 404:
            raise self.http.refusal(response)
        if error_code(response) is None:
            raise ServerRefused(f"{self.http.url} does not speak the Comfy API v2.")

    async def job(self, job_id: str) -> dict[str, Any]:
        response = await self.http.send("GET", f"{JOBS}/{job_id}")
        if response.status_code == 404:
            raise RunLost("The cloud service no longer knows the job.")
        if not response.is_success:
            raise self.http.refusal(response)
        return job_in(response)

    async def cancel(self, job_id: str) -> None:
        """Cancel a job. Does nothing if it has finished."""
        response = await self.http.send("POST", f"{JOBS}/{job_id}/cancel")
        if not response.is_success and response.status_code != 404:
            raise self.http.refusal(response)

    async def find(self, key: str) -> str | None:
        """Return the id of the job with this key, if the service reports it. An empty graph is never accepted."""
        response = await self.http.send("POST", JOBS, json={"workflow": {}}, headers={"Idempotency-Key": key})
        return job_of_key(response)


def job_in(response: httpx.Response) -> dict[str, Any]:
    """Return the job in a successful response."""
    job = object_in(response)
    if not isinstance(job.get("id"), str):
        raise ServerRefused("The cloud service returned no job.", raw=response.text[:2000])
    return job


def job_of_key(response: httpx.Response) -> str | None:
    """Return the id of the job that already used the key of a refused request, if the service reports it."""
    found = error_details(response).get("job_id") if error_code(response) == KEY_REUSED else None
    return found if isinstance(found, str) else None
