"""Client for the worker API of the control plane."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import structlog
from pydantic import ValidationError

from comfyrelay import __version__
from comfyrelay.errors import (
    ComfyRelayError,
    ControlPlaneUnreachable,
    Fault,
    TooManyRequests,
    Unauthorized,
)
from comfyrelay.http_client import http_client, is_loopback, object_in
from comfyrelay.protocol.base import AnswerBody, WorkerRequest, checked
from comfyrelay.protocol.problems import error_from_response
from comfyrelay.protocol.progress import Progress
from comfyrelay.protocol.worker import (
    PROTOCOL,
    CompletedAnswer,
    CompleteRequest,
    DefinitionsQuery,
    DeregisterRequest,
    Device,
    FailRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    KnownDefinitions,
    LogsRequest,
    MoreOutput,
    OutputUrl,
    OutputUrlRequest,
    PollAnswer,
    PollRequest,
    Registered,
    RegisterRequest,
    Released,
    RequeueRequest,
    RunReport,
    SettledAnswer,
    StoredLogs,
    StoredOutput,
    WouldRegister,
)
from comfyrelay.retry import Backoff, Retries
from comfyrelay.text import storable
from comfyrelay.worker.lease import Lease, LeaseStop, PreviewTarget
from comfyrelay.worker.versions import ServerVersion

log = structlog.get_logger(__name__)

T = TypeVar("T")
A = TypeVar("A", bound=AnswerBody)
# How long a response may take, in addition to the time for which a call is parked.
ANSWER_SECONDS = 20.0
LONGEST_PAUSE_SECONDS = 15.0
# Time to check one output of a job, or fifty further outputs.
COMPLETE_SECONDS = 60.0
# More slots than any worker has.
FULL_LOAD = 1000


class ControlPlane:
    """Raises the errors that the control plane returns, or `ControlPlaneUnreachable` without a valid response."""

    def __init__(
        self,
        url: str,
        *,
        worker_id: str,
        devices: Callable[[], list[Device]] = list,
        renew: Callable[[str], Awaitable[bool]] | None = None,
        last_lines: Callable[[], list[str]] | None = None,
    ) -> None:
        """`devices` returns the known GPUs of this worker.

        `renew` replaces a refused token and returns whether it succeeded. `last_lines` returns the end of the worker's
        log, for administrators.
        """
        self._devices = devices
        self._renew = renew
        self._last_lines = last_lines
        self._sending: asyncio.Task[None] | None = None
        self.url = url
        self.worker_id = worker_id
        self.token = ""
        # The server's protocol version, and a sentence if its version differs from ours, as of the last response.
        self.server_protocol = 0
        self.version_difference: str | None = None
        # Whether the last call got a response.
        self.is_up = True
        self._http = http_client(
            base_url=url,
            # Unlimited, because each lease parks one call.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            trust_env=not is_loopback(urlsplit(url).hostname or ""),
        )

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait({self._sending})
        await self._http.aclose()

    async def register(self, proof: Mapping[str, str], details: Mapping[str, Any]) -> Registered:
        """Register this worker. `proof` are the headers that authenticate it to the fleet."""
        return await self._join(proof, details, Registered)

    async def check_registration(self, proof: Mapping[str, str], details: Mapping[str, Any]) -> WouldRegister:
        """Check whether this worker could register."""
        return await self._join(proof, {**details, "dry_run": True}, WouldRegister)

    async def poll(self, request: Mapping[str, Any]) -> Lease | None:
        """Poll for a job. Repeating a `request_id` returns the same lease, so a lost response does not lose a job."""
        body = self._poll_request(request)
        return self._lease_in(await self._call("poll", body, PollAnswer, waits=body.wait_seconds))

    async def report_unavailable(self) -> None:
        """Report that no ComfyUI can be used, in a poll that does not request a job. The devices contain the
        reasons."""
        # Also report a full worker, because an older server does not read the devices.
        body = self._poll_request({"current_load": FULL_LOAD})
        self._send_lines_soon((await self._call_held("poll", body, PollAnswer)).wants_logs)

    async def heartbeat(
        self,
        lease: Lease,
        *,
        progress: Progress | None = None,
        logs: list[str] | None = None,
        wait_seconds: float = 0.0,
        fresh_urls: bool = False,
    ) -> LeaseStop | None:
        """Extend a lease and update its URLs. Returns a stop request, if any. Raises `LeaseLost` if the lease has
        ended."""
        body = checked(
            HeartbeatRequest,
            **_named(lease),
            progress=progress.to_report() if progress is not None else None,
            logs=logs or [],
            wait_seconds=wait_seconds,
            fresh_urls=fresh_urls,
            preview_seconds=lease.preview_seconds,
            **self._about_devices(),
        )
        answer = await self._call_held("heartbeat", body, HeartbeatAnswer, waits=wait_seconds)
        self._send_lines_soon(answer.wants_logs)
        if answer.urls is not None:
            lease.urls = answer.urls
        if answer.preview_url is not None:
            until = time.monotonic() + answer.preview_seconds
            lease.preview = PreviewTarget(url=answer.preview_url, headers=answer.preview_headers, until=until)
            lease.watched.notify()
        return LeaseStop(answer.stop) if answer.stop in tuple(LeaseStop) else None

    async def output_url(self, lease: Lease, *, number: int, extension: str) -> OutputUrl:
        """Return the URL for another output of a lease. The URL for the first output is in the lease's `urls`."""
        body = checked(OutputUrlRequest, **_named(lease), number=number, extension=extension)
        return await self._call_held("output-url", body, OutputUrl)

    async def complete(
        self,
        lease: Lease,
        run: RunReport,
        *,
        output: StoredOutput,
        more_outputs: Sequence[MoreOutput] = (),
        provider_job_id: str,
        next_poll: Mapping[str, Any] | None = None,
    ) -> Lease | None:
        """Complete a lease, and return the lease that `next_poll` got, if any. Raises `InvalidInput` if the output is
        missing or unreadable; the lease then remains valid."""
        following = {} if next_poll is None else {"next": self._poll_request(next_poll)}
        body = checked(
            CompleteRequest,
            **_named(lease),
            **dict(run),
            output=output,
            **({"more_outputs": list(more_outputs)} if more_outputs else {}),
            provider_job_id=provider_job_id,
            **following,
        )
        # Each output is copied and checked before the response.
        waits = COMPLETE_SECONDS * (1 + len(more_outputs) / 50)
        answer = await self._call_held("complete", body, CompletedAnswer, waits=waits)
        return self._lease_in(answer.next) if answer.next is not None else None

    async def fail(
        self,
        lease: Lease,
        run: RunReport,
        *,
        error: str,
        fault: Fault,
        retry_after_seconds: float = 0.0,
        code: str | None = None,
        gpu_memory_bytes: int | None = None,
    ) -> bool:
        """Fail a lease. Returns whether this worker is now blocked for the workflow, because it ran out of memory."""
        body = checked(
            FailRequest,
            **_named(lease),
            **dict(run),
            error_message=storable(error),
            fault=fault,
            retry_after_seconds=retry_after_seconds,
            code=code,
            gpu_memory_bytes=gpu_memory_bytes,
        )
        return (await self._call_held("fail", body, SettledAnswer)).is_blocked

    async def requeue(self, lease: Lease, run: RunReport, *, reason: str) -> None:
        body = checked(RequeueRequest, **_named(lease), **dict(run), reason=storable(reason))
        await self._call_held("requeue", body, SettledAnswer)

    async def has_definitions(self, sha256: str) -> bool:
        """Announce this worker's node definitions. Returns false if the server does not yet have them."""
        return (await self._call("definitions", checked(DefinitionsQuery, sha256=sha256), KnownDefinitions)).is_known

    async def send_definitions(self, sha256: str, data: bytes) -> None:
        if not self.token:
            raise Unauthorized("This worker is not registered.")
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/octet-stream"}
        path = f"definitions/{sha256}"
        await self._request("PUT", path, KnownDefinitions, headers=headers, seconds=60.0, content=data)

    async def deregister(self, *, reason: str) -> None:
        await self._call("deregister", checked(DeregisterRequest, reason=reason), Released)

    async def check(self) -> None:
        """Check that a control plane responds at this URL."""
        try:
            response = await self._http.get("/healthz", timeout=ANSWER_SECONDS)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not response.is_success:
            raise ControlPlaneUnreachable(f"{self.url} answered with {response.status_code}.")

    def _poll_request(self, request: Mapping[str, Any]) -> PollRequest:
        return checked(PollRequest, worker_id=self.worker_id, **request, **self._about_devices())

    def _lease_in(self, answer: PollAnswer) -> Lease | None:
        self._send_lines_soon(answer.wants_logs)
        job = answer.job
        return Lease(job=job, urls=job.urls, more_waiting=answer.more_waiting) if job is not None else None

    def _send_lines_soon(self, are_wanted: bool) -> None:
        """Send the log to an administrator who requested it, in a background task."""
        if are_wanted and self._last_lines is not None and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send_lines(self._last_lines()))

    async def _send_lines(self, lines: list[str]) -> None:
        try:
            await self._call("logs", checked(LogsRequest, lines=lines), StoredLogs)
        except ComfyRelayError as error:
            # An administrator who still needs the lines can request them again.
            log.debug("worker.logs_not_sent", why=error.detail)

    def _about_devices(self) -> dict[str, Any]:
        devices = self._devices()
        return {"devices": devices} if devices else {}

    async def _join(self, proof: Mapping[str, str], details: Mapping[str, Any], answer: type[A]) -> A:
        body = checked(RegisterRequest, worker_id=self.worker_id, protocol=PROTOCOL, version=__version__, **details)
        return await self._send("register", body, answer, headers=proof, seconds=60.0)

    async def _call_held(self, call: str, body: WorkerRequest, answer: type[A], *, waits: float = 0.0) -> A:
        """Make a call about a lease.

        The lease token remains valid, so a worker whose own token was refused renews that token and retries.
        """
        token = self.token
        try:
            return await self._call(call, body, answer, waits=waits)
        except Unauthorized:
            if self._renew is None or not await self._renew(token):
                raise
        return await self._call(call, body, answer, waits=waits)

    async def _call(self, call: str, body: WorkerRequest, answer: type[A], *, waits: float = 0.0) -> A:
        if not self.token:
            raise Unauthorized("This worker is not registered.")
        headers = {"Authorization": f"Bearer {self.token}"}
        return await self._send(call, body, answer, headers=headers, seconds=waits + ANSWER_SECONDS)

    async def _send(
        self, call: str, body: WorkerRequest, answer: type[A], *, headers: Mapping[str, str], seconds: float
    ) -> A:
        content = body.model_dump(mode="json", exclude_unset=True)
        return await self._request("POST", call, answer, headers=headers, seconds=seconds, json=content)

    async def _request(
        self, method: str, call: str, answer: type[A], *, headers: Mapping[str, str], seconds: float, **body: Any
    ) -> A:
        timeout = httpx.Timeout(ANSWER_SECONDS, read=seconds, connect=10.0)
        try:
            response = await self._http.request(method, f"/api/worker/{call}", headers=headers, timeout=timeout, **body)
        except httpx.HTTPError as error:
            self.is_up = False
            raise self._unreachable(error) from error
        server = ServerVersion.of(response.headers)
        self.server_protocol, self.version_difference = server.protocol, server.difference(self.url)
        if response.is_success:
            try:
                data = answer.model_validate(object_in(response).get("data"))
            except ValidationError:
                self.is_up = False
                detail = self.version_difference or f"{self.url} does not answer like a control plane."
                raise ControlPlaneUnreachable(detail) from None
            self.is_up = True
            return data
        refusal = self._refusal(response)
        self.is_up = not isinstance(refusal, ControlPlaneUnreachable)
        raise refusal

    def _refusal(self, response: httpx.Response) -> ComfyRelayError:
        found = error_from_response(response)
        if found is None or type(found) is ComfyRelayError:
            # A response from a proxy or a broken server is not a decision about a lease.
            detail = found.detail if found is not None else ""
            return ControlPlaneUnreachable(f"{self.url} answered with {response.status_code}. {detail}".rstrip())
        return found

    def _unreachable(self, error: httpx.HTTPError) -> ControlPlaneUnreachable:
        return ControlPlaneUnreachable(f"The control plane at {self.url} does not answer ({type(error).__name__}).")


async def retry_until_reachable(
    call: Callable[[], Awaitable[T]],
    *,
    first_pause_seconds: float = 0.5,
    on_pause: Callable[[ComfyRelayError, float], None] | None = None,
) -> T:
    """Repeat a call with growing pauses until the control plane responds."""
    retries = Retries(Backoff(first_seconds=first_pause_seconds, max_seconds=LONGEST_PAUSE_SECONDS))
    while True:
        try:
            return await call()
        except (ControlPlaneUnreachable, TooManyRequests) as error:
            retry_after = error.retry_after_seconds if isinstance(error, TooManyRequests) else 0.0
            seconds = retries.next_delay(at_least=retry_after)
            if on_pause is not None:
                on_pause(error, seconds)
        await asyncio.sleep(seconds)


def _named(lease: Lease) -> dict[str, Any]:
    return {"dispatch_id": lease.dispatch_id, "lease_token": lease.job.lease_token}
