"""The control plane, as a worker speaks to it: seven calls over HTTP."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from comfyrelay.errors import ComfyRelayError, ControlPlaneUnreachable, Fault, TooManyRequests, Unauthorized
from comfyrelay.net import http_client, is_loopback, object_in
from comfyrelay.refusals import refusal_in
from comfyrelay.text import storable
from comfyrelay.worker.lease import Lease, Stop, Urls

__all__ = ["Control", "Registered", "RunTold", "patiently"]

T = TypeVar("T")
# Beyond what a parked call may take.
ANSWER_SECONDS = 20.0
LONGEST_PAUSE_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTold:
    """What is reported of a run with every result, for the job's history."""

    seed: int | None = None
    # after the job was handed over, in seconds: our clock is not the control plane's
    began_after_seconds: float | None = None
    about: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    token: str
    workflows_assigned: list[str]
    # workflow → what this worker lacks for it; only told when it was just asked
    lacking: Mapping[str, list[str]]


class Control:
    """What it refuses is one of our errors; no answer, or one that is not its own, is `ControlPlaneUnreachable`."""

    def __init__(self, url: str, *, worker_id: str) -> None:
        self.url = url
        self.worker_id = worker_id
        self.token = ""
        # whether the last call was answered
        self.is_up = True
        self._http = http_client(
            base_url=url,
            # each lease has a call parked
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            trust_env=not is_loopback(urlsplit(url).hostname or ""),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def register(self, secret: str, body: Mapping[str, Any]) -> Registered:
        data = await self._call(
            "register", {"worker_id": self.worker_id, **body}, headers={"X-Fleet-Secret": secret}, seconds=60.0
        )
        return Registered(
            token=data["token"], workflows_assigned=data["workflows_assigned"], lacking=data.get("lacking") or {}
        )

    async def poll(self, wish: Mapping[str, Any]) -> Lease | None:
        """Ask for a job. The same `request_id` gets the same lease, so an answer that was lost loses no job."""
        data = await self._told("poll", {"worker_id": self.worker_id, **wish}, waits=wish.get("wait_seconds", 0.0))
        return Lease.from_json(data["job"]) if data["job"] is not None else None

    async def heartbeat(
        self,
        lease: Lease,
        *,
        progress: Mapping[str, Any] | None = None,
        logs: list[str] | None = None,
        wait_seconds: float = 0.0,
        fresh_urls: bool = False,
    ) -> Stop | None:
        """Extend a lease and hear whether to stop; newer URLs are taken over. `LeaseLost` when it is no longer ours."""
        body = {
            "progress": progress,
            "logs": logs or [],
            "wait_seconds": wait_seconds,
            "fresh_urls": fresh_urls,
        }
        data = await self._about(lease, "heartbeat", body, waits=wait_seconds)
        if (urls := data.get("urls")) is not None:
            lease.urls = Urls(
                output_url=urls["output_url"], output_headers=urls["output_headers"], assets=urls["assets"]
            )
        # a word that a newer control plane may have is no reason to stop
        return Stop(data["stop"]) if data["stop"] in tuple(Stop) else None

    async def complete(self, lease: Lease, run: RunTold, *, output: Mapping[str, Any], provider_job_id: str) -> None:
        """`InvalidInput` when the output is not there or not readable: the lease is kept."""
        body = {"output": output, "provider_job_id": provider_job_id, **asdict(run)}
        await self._about(lease, "complete", body, waits=60.0)

    async def fail(
        self, lease: Lease, run: RunTold, *, error: str, fault: Fault, retry_after_seconds: float = 0.0
    ) -> None:
        body = {"error_message": storable(error), "fault": fault.value, "retry_after_seconds": retry_after_seconds}
        await self._about(lease, "fail", {**body, **asdict(run)})

    async def requeue(self, lease: Lease, run: RunTold, *, reason: str) -> None:
        await self._about(lease, "requeue", {"reason": storable(reason), **asdict(run)})

    async def deregister(self, *, reason: str) -> None:
        await self._told("deregister", {"reason": reason})

    async def check(self) -> None:
        """Whether somebody answers like a control plane."""
        try:
            response = await self._http.get("/healthz", timeout=ANSWER_SECONDS)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not response.is_success:
            raise ControlPlaneUnreachable(f"{self.url} answered with {response.status_code}.")

    async def _about(self, lease: Lease, call: str, body: Mapping[str, Any], *, waits: float = 0.0) -> dict[str, Any]:
        named = {"dispatch_id": lease.dispatch_id, "lease_token": lease.lease_token, **body}
        return await self._told(call, named, waits=waits)

    async def _told(self, call: str, body: Mapping[str, Any], *, waits: float = 0.0) -> dict[str, Any]:
        if not self.token:
            raise Unauthorized("This worker is not registered.")
        headers = {"Authorization": f"Bearer {self.token}"}
        return await self._call(call, body, headers=headers, seconds=waits + ANSWER_SECONDS)

    async def _call(
        self, call: str, body: Mapping[str, Any], *, headers: Mapping[str, str], seconds: float
    ) -> dict[str, Any]:
        timeout = httpx.Timeout(ANSWER_SECONDS, read=seconds, connect=10.0)
        try:
            response = await self._http.post(f"/api/worker/{call}", json=body, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            self.is_up = False
            raise self._unreachable(error) from error
        if response.is_success and isinstance(data := object_in(response).get("data"), dict):
            self.is_up = True
            return data
        refusal = self._refusal(response)
        self.is_up = not isinstance(refusal, ControlPlaneUnreachable)
        raise refusal

    def _refusal(self, response: httpx.Response) -> ComfyRelayError:
        found = refusal_in(response)
        if found is None or type(found) is ComfyRelayError:
            # a proxy in between, or a server in trouble: whatever it says is not a decision about a lease
            detail = found.detail if found is not None else ""
            return ControlPlaneUnreachable(f"{self.url} answered with {response.status_code}. {detail}".rstrip())
        return found

    def _unreachable(self, error: httpx.HTTPError) -> ControlPlaneUnreachable:
        return ControlPlaneUnreachable(f"The control plane at {self.url} does not answer ({type(error).__name__}).")


async def patiently(
    call: Callable[[], Awaitable[T]],
    *,
    first_pause_seconds: float = 0.5,
    on_pause: Callable[[ComfyRelayError, float], None] | None = None,
) -> T:
    """Repeat a call until the control plane answers it; the pauses grow and are not the same for all."""
    pause = first_pause_seconds
    while True:
        try:
            return await call()
        except (ControlPlaneUnreachable, TooManyRequests) as error:
            seconds = error.retry_after_seconds if isinstance(error, TooManyRequests) else pause
            if on_pause is not None:
                on_pause(error, seconds)
        await asyncio.sleep(seconds * random.uniform(0.8, 1.2))
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
