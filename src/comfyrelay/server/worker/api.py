"""The worker API: eleven requests, for workers that only make outgoing connections."""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeVar

import structlog
from fastapi import Header, HTTPException, Path, Request, Response

from comfyrelay import traces
from comfyrelay.domain.queue.slots import why_unavailable
from comfyrelay.domain.records.workers import Worker
from comfyrelay.errors import ComfyRelayError, Conflict, Forbidden, InvalidInput, NotFound, Unauthorized
from comfyrelay.protocol import worker as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.http.auth import CurrentWorker, PollingWorker, authenticate_worker
from comfyrelay.server.http.bodies import large_body, read_body
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.fast_routes import fast
from comfyrelay.server.http.limits import address_of
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router
from comfyrelay.server.worker.leased_job import leased_job, with_lease
from comfyrelay.services.accounts.sign_in import hash_secret
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.queue.settle import Report, SettledOutput, Settlement, Verb
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

T = TypeVar("T")
# The status that proxies log when a client disconnects.
CLIENT_CLOSED_REQUEST = 499
# A parked poll waits for a random share of its time, at least this one.
MIN_WAIT_SHARE = 0.5
# The response of EC2 at `dynamic/instance-identity/rsa2048`, without line breaks.
IDENTITY_HEADER = "X-Instance-Identity"
# The fields of a poll that describe the worker, or how long it waits.
_ABOUT_WORKER = ("worker_id", "warm_workflow_hashes", "capabilities", "devices", "wait_seconds", "comfyui_restarted")
_BYTES = {"type": "string", "format": "binary"}
router = Router(prefix="/api/worker", tags=["worker"], responses=error_responses(401, 403, 422, 503))


async def _authenticate_registration(request: Request, context: Context) -> None:
    """Check the fleet secret or the identity document, before the body with stage and worker is read."""
    _limit_rate(request, context)
    secret, owner = request.headers.get("X-Fleet-Secret", ""), context.owner
    # Compare all of them: the time must not reveal which one matched.
    accepted = [context.secrets.accepts(stage, secret) for stage in context.secrets.fleet]
    is_own = owner is not None and owner.is_worker(secret)
    if True in accepted or is_own:
        return
    if secret or IDENTITY_HEADER not in request.headers:
        raise Unauthorized("The fleet secret is wrong.")
    context.engine.workers.identities.read(request.headers[IDENTITY_HEADER])


def _limit_rate(request: Request, context: Context) -> None:
    """Count each request once, although its secret is compared before and after a large body is read."""
    if not hasattr(request.state, "is_counted"):
        context.registrations.check(address_of(request))
        request.state.is_counted = True


@router.post(
    "/register",
    status_code=201,
    responses={200: {"model": Answer[wire.WouldRegister]}, **error_responses(404, 409, 429)},
)
@large_body(_authenticate_registration)
async def register(
    body: wire.RegisterRequest,
    request: Request,
    response: Response,
    context: ContextOf,
    *,
    x_fleet_secret: Annotated[str, Header()] = "",
    x_instance_identity: Annotated[str, Header()] = "",
) -> Answer[wire.WouldRegister] | Answer[wire.Registered]:
    """Join a fleet with its secret, or as an EC2 instance with its identity document. The token is shown only once. A
    worker that missed it registers again with the same `registration_key`. A dry run registers nothing."""
    _limit_rate(request, context)
    is_own = _is_own_worker(context, body.worker_id, x_fleet_secret)
    identity = None
    if x_instance_identity and not x_fleet_secret:
        identity = context.engine.workers.identities.read(x_instance_identity)
        context.engine.workers.identities.require(identity, worker_id=body.worker_id, stage=body.stage)
    elif not is_own and not context.secrets.accepts(body.stage, x_fleet_secret):
        raise Unauthorized("The fleet secret is wrong for this stage.")
    if body.protocol < wire.MIN_PROTOCOL:
        raise InvalidInput(errors={"protocol": _too_old(body.protocol)})
    await context.engine.workers.instances.check(body.worker_id)
    if body.dry_run:
        response.status_code = 200
        return Answer(data=await _try_to_register(context, body), message="Nothing was registered.")
    if is_own:
        # The desk's worker may have lost its token. Its leases under the old token end.
        with suppress(NotFound):
            await context.engine.workers.workers.deregister(body.worker_id, reason="registered again")
        context.forget_worker(body.worker_id)
    token = secrets.token_hex(32)
    registered = await context.engine.workers.workers.register(
        **body.fields(but=("registration_key", "dry_run", "devices")),
        devices=_reports(body.devices) if body.devices is not None else None,
        key=body.registration_key,
        token_hash=hash_secret(token),
        identity=identity,
    )
    context.forget_worker(body.worker_id)
    data = wire.Registered.of(
        body, registered, token=token, workflows_assigned=list(registered.workflows), protocol=wire.PROTOCOL
    )
    return Answer(data=data, message="Registered.")


@router.post("/poll")
@fast
@large_body(authenticate_worker)
async def poll(
    body: wire.PollRequest, request: Request, context: ContextOf, worker: PollingWorker
) -> Answer[wire.PollAnswer]:
    """Request a job, and wait for one up to `wait_seconds`. The same `request_id` gets the same lease while it is
    valid."""
    _require_own(body, worker)
    answer = await _poll(context, request, worker, body)
    return Answer(data=answer, message="Here is a job." if answer.job else "There is no job.")


@router.post("/heartbeat", responses=error_responses(404))
@fast
@large_body(authenticate_worker)
async def heartbeat(
    body: wire.HeartbeatRequest, request: Request, context: ContextOf, worker: CurrentWorker
) -> Answer[wire.HeartbeatAnswer]:
    """Extend a lease, and wait for a stop request up to `wait_seconds`."""
    beat = Heartbeat(
        **body.fields(but=("wait_seconds", "fresh_urls", "preview_seconds", "devices")), worker_id=worker.worker_id
    )
    _note_devices(context, worker, body.devices)
    wait_seconds = min(body.wait_seconds, wire.MAX_WAIT_SECONDS)
    # Watch before the first check, so that no signal is missed between it and the wait.
    logs = context.engine.workers.logs
    with context.engine.queue.stop_requests.watching(body.dispatch_id) as wakeup, logs.waking(worker.worker_id, wakeup):
        answer = await with_lease(context, worker, body, lambda: context.engine.queue.heartbeats.beat(beat))
        if answer.stop is None and wait_seconds > 0 and not context.stopping.is_set():
            await _wait(context, request, body, wakeup, wait_seconds)
            answer = await context.engine.queue.heartbeats.beat(replace(beat, progress=None, logs=()))
    urls = await context.engine.queue.lease_payloads.fresh_urls(
        body.dispatch_id, body.lease_token, at_once=body.fresh_urls
    )
    wants_logs = logs.should_request(worker.worker_id)
    data = wire.HeartbeatAnswer.of(answer, urls=urls, wants_logs=wants_logs, **await _preview(context, body))
    return Answer(data=data, message="Stop." if answer.stop else "Continue.")


async def _wait(
    context: Context, request: Request, body: wire.HeartbeatRequest, wakeup: Wakeup, seconds: float
) -> None:
    """Wait for a stop request, or for a new viewer of previews."""
    if body.preview_seconds is None:
        await _cancel_on_disconnect(request, wakeup.wait(seconds))
        return
    previews = context.engine.queue.previews
    job_id = (await context.engine.queue.lease_payloads.of_lease(body.dispatch_id, body.lease_token)).job_id
    # Register the wakeup before the check, so that no viewer is missed.
    with previews.waking(job_id, wakeup):
        patience = previews.patience(job_id, sends_for=body.preview_seconds)
        await _cancel_on_disconnect(request, wakeup.wait(min(seconds, patience)))


async def _preview(context: Context, body: wire.HeartbeatRequest) -> dict[str, Any]:
    if body.preview_seconds is None:
        return {}
    lease = await context.engine.queue.lease_payloads.of_lease(body.dispatch_id, body.lease_token)
    offer = await context.engine.queue.previews.offer(lease.tenant_id, lease.job_id, body.lease_token)
    if offer is None:
        return {}
    return {"preview_url": offer.url, "preview_headers": offer.headers, "preview_seconds": offer.seconds}


@router.post("/output-url", responses=error_responses(404))
async def output_url(body: wire.OutputUrlRequest, context: ContextOf, worker: CurrentWorker) -> Answer[wire.OutputUrl]:
    """Get an upload URL for another output of a job. The first output uses the URL of the lease."""
    more, sign = body.fields(wire.OutputUrlRequest), context.engine.queue.lease_payloads.sign_more
    signed = await with_lease(context, worker, body, lambda: sign(**more, worker_id=worker.worker_id))
    return Answer(data=wire.OutputUrl(url=signed.url, headers=dict(signed.headers)))


@router.post("/complete", responses=error_responses(404))
@fast
@large_body(authenticate_worker)
async def complete(
    body: wire.CompleteRequest, request: Request, context: ContextOf, worker: CurrentWorker
) -> Answer[wire.CompletedAnswer]:
    """Complete a job after its outputs were uploaded. If one is missing, or the first one is unreadable, the response
    is 422 and the lease stays valid. With `next`, the response also answers this poll, which begins after the job was
    completed."""
    if body.next is not None:
        _require_own(body.next, worker)
    # The worker does not choose the file extension.
    output = SettledOutput(**dict(body.output), extension="", sent=body.output.sent) if body.output else None
    report = _report(
        context,
        worker,
        body,
        Verb.COMPLETE,
        output=output,
        more_outputs=[SettledOutput(**dict(more)) for more in body.more_outputs],
        provider_job_id=body.provider_job_id,
    )
    async with _traced(context, body, Verb.COMPLETE):
        settlement = await with_lease(context, worker, body, lambda: context.engine.queue.outputs.complete(report))
    following = await _poll_next(context, request, worker, body.next) if body.next is not None else None
    data = wire.CompletedAnswer(status=settlement.status, is_blocked=settlement.is_blocked, next=following)
    return Answer(data=data, message=_message(settlement))


@router.post("/fail", responses=error_responses(404))
@large_body(authenticate_worker)
async def fail(body: wire.FailRequest, context: ContextOf, worker: CurrentWorker) -> Answer[wire.SettledAnswer]:
    """Fail a job. With the fault `worker`, it is retried on another worker if it has attempts left. Without a `fault`,
    the failure is final."""
    return await _settle(
        context,
        worker,
        body,
        Verb.FAIL,
        error=body.error_message,
        fault=body.fault,
        retry_after_seconds=body.retry_after_seconds,
        code=body.code,
        gpu_bytes=body.gpu_memory_bytes,
    )


@router.post("/requeue", responses=error_responses(404))
@large_body(authenticate_worker)
async def requeue(body: wire.RequeueRequest, context: ContextOf, worker: CurrentWorker) -> Answer[wire.SettledAnswer]:
    """Return a job without penalty, because the machine is shutting down or the server requested it."""
    return await _settle(context, worker, body, Verb.REQUEUE, reason=body.reason)


@router.post("/definitions")
async def has_definitions(
    body: wire.DefinitionsQuery, context: ContextOf, worker: CurrentWorker
) -> Answer[wire.KnownDefinitions]:
    """Report the hash of the node definitions. The response says whether to send them."""
    is_known = await context.engine.catalogue.node_definitions.register(worker.worker_id, body.sha256)
    message = "They are known." if is_known else "They are unknown: send them."
    return Answer(data=wire.KnownDefinitions(is_known=is_known), message=message)


@router.put(
    "/definitions/{sha256}",
    responses=error_responses(408, 413),
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": _BYTES}}, "required": True}},
)
@large_body(authenticate_worker)
async def send_definitions(
    sha256: Annotated[str, Path(pattern=wire.SHA256)], request: Request, context: ContextOf, worker: CurrentWorker
) -> Answer[wire.KnownDefinitions]:
    """Send the response of ComfyUI at `/object_info`, compressed with gzip."""
    await context.engine.catalogue.node_definitions.store(
        worker.worker_id, sha256, await read_body(request, send_definitions)
    )
    return Answer(data=wire.KnownDefinitions(is_known=True), message="Stored.")


@router.post("/logs")
async def send_logs(body: wire.LogsRequest, context: ContextOf, worker: CurrentWorker) -> Answer[wire.StoredLogs]:
    """Send the last lines of the worker's log after a response requested them."""
    await context.engine.workers.logs.store(worker.worker_id, body.lines)
    return Answer(data=wire.StoredLogs(lines=len(body.lines)), message="Thank you.")


@router.post("/deregister", responses=error_responses(404))
async def deregister(body: wire.DeregisterRequest, context: ContextOf, worker: CurrentWorker) -> Answer[wire.Released]:
    """Leave the fleet. Leases that are still held are requeued."""
    released = await context.engine.workers.workers.deregister(worker.worker_id, reason=body.reason)
    context.forget_worker(worker.worker_id)
    return Answer(data=wire.Released(released=released), message="Deregistered.")


def _note_devices(context: Context, worker: Worker, devices: list[wire.Device] | None) -> None:
    if devices is not None:
        context.engine.workers.slots.note(worker.worker_id, _reports(devices))


def _reports(devices: list[wire.Device]) -> list[dict[str, Any]]:
    return [device.model_dump(exclude_none=True) for device in devices]


def _is_own_worker(context: Context, worker_id: str, secret: str) -> bool:
    """Whether this is a worker of the desk itself. Raises `Conflict` for another worker with its name."""
    owner = context.owner
    if owner is None or worker_id not in owner.worker_ids:
        return False
    if not owner.is_worker(secret):
        raise Conflict(f"The name {worker_id!r} is reserved for the desk's own worker.")
    return True


async def _try_to_register(context: Context, body: wire.RegisterRequest) -> wire.WouldRegister:
    assigned = await context.engine.workers.workers.try_to_register(
        worker_id=body.worker_id, fleet_slug=body.fleet_slug, stage=body.stage, workflow_slugs=body.workflow_slugs
    )
    return wire.WouldRegister.of(
        body,
        token="",
        workflows_assigned=assigned,
        protocol=wire.PROTOCOL,
        missing=await context.engine.catalogue.workflows.find_missing(assigned, body.capabilities),
    )


def _require_own(body: wire.PollRequest, worker: Worker) -> None:
    if body.worker_id != worker.worker_id:
        raise Forbidden("This token belongs to another worker.")


async def _poll(context: Context, request: Request, worker: Worker, body: wire.PollRequest) -> wire.PollAnswer:
    """Record the details that a poll reports about the worker, then lease a job."""
    if worker.protocol < wire.MIN_PROTOCOL:
        # The server was updated after the registration. The worker may still finish its leases.
        raise Unauthorized(_too_old(worker.protocol))
    lease_request = LeaseRequest(
        **body.fields(but=_ABOUT_WORKER),
        worker_id=worker.worker_id,
        warm_workflow_hashes=frozenset(body.warm_workflow_hashes),
        token_hash=worker.token_hash,
        fleet_id=worker.fleet_id,
    )
    _note_devices(context, worker, body.devices)
    context.engine.workers.slots.note_warm(worker.worker_id, body.warm_workflow_hashes)
    if body.max_concurrency not in (None, worker.max_concurrency):
        await context.engine.workers.workers.note_slots(worker.worker_id, body.max_concurrency)
        context.forget_worker(worker.worker_id)
    if body.capabilities is not None:
        await context.engine.workers.workers.note_capabilities(worker, body.capabilities)
    if body.comfyui_restarted:
        await context.engine.workers.workers.unblock(worker.worker_id, only_out_of_memory=True)
    if body.devices and why_unavailable(_reports(body.devices)) is not None:
        # A worker without ComfyUI gets no job, and polls only to report that.
        return wire.PollAnswer(job=None, wants_logs=context.engine.workers.logs.should_request(worker.worker_id))
    wait_seconds = 0.0 if context.stopping.is_set() else _randomize(min(body.wait_seconds, wire.MAX_WAIT_SECONDS))
    return await _cancel_on_disconnect(request, _lease(context, lease_request, wait_seconds))


async def _poll_next(
    context: Context, request: Request, worker: Worker, body: wire.PollRequest
) -> wire.PollAnswer | None:
    """Poll after a completion. Because the job is completed, errors are not returned: the worker's next poll gets
    them."""
    try:
        return await _poll(context, request, worker, body)
    except ComfyRelayError as error:
        log.info("worker.next_not_leased", why=error.detail)
        return None


async def _lease(context: Context, lease_request: LeaseRequest, wait_seconds: float) -> wire.PollAnswer:
    logs = context.engine.workers.logs
    wants_logs = logs.should_request(lease_request.worker_id)
    try:
        leased = await context.engine.queue.polls.poll(lease_request, wait_seconds=0.0 if wants_logs else wait_seconds)
    except (Unauthorized, Forbidden):
        context.forget_worker(lease_request.worker_id)
        raise
    wants_logs = wants_logs or logs.should_request(lease_request.worker_id)
    if not leased:
        return wire.PollAnswer(wants_logs=wants_logs)
    try:
        urls = await context.engine.queue.lease_payloads.urls(leased[0])
    except asyncio.CancelledError:
        # The worker has disconnected.
        context.engine.queue.polls.give_back(leased)
        raise
    job = leased_job(leased[0], urls, server_id=context.secrets.server_ids[0])
    dispatch = leased[0].dispatch
    structlog.contextvars.bind_contextvars(job_id=dispatch.tenant_job_id, dispatch_id=dispatch.id)
    _trace_lease(leased[0])
    return wire.PollAnswer(job=job, more_waiting=leased[0].more_waiting, wants_logs=wants_logs)


def _trace_lease(leased: LeasedDispatch) -> None:
    dispatch = leased.dispatch
    if traces.is_on() and dispatch.leased_at is not None and dispatch.worker_id is not None:
        job_id, leased_at = dispatch.tenant_job_id, dispatch.leased_at
        traces.record("job.wait", job_id, begin=dispatch.created_at, end=leased_at, parent=job_id)
        about = {"worker_id": dispatch.worker_id, "attempt": str(dispatch.attempts)}
        traces.record("job.lease", job_id, begin=leased_at, key=leased.lease_token, parent=job_id, about=about)


def _randomize(wait_seconds: float) -> float:
    """Shorten the wait at random, so that workers that started together do not keep polling together."""
    return wait_seconds * random.uniform(MIN_WAIT_SHARE, 1)


async def _settle(
    context: Context, worker: Worker, body: wire.EndOfLease, verb: Verb, **more: Any
) -> Answer[wire.SettledAnswer]:
    report = _report(context, worker, body, verb, **more)
    # The decision is final once the queue has it. The shard is updated after the response.
    settle = partial(context.engine.queue.settle.report, report, wait_for_tenant=False)
    async with _traced(context, body, verb):
        settlement = await with_lease(context, worker, body, settle)
    data = wire.SettledAnswer(status=settlement.status, is_blocked=settlement.is_blocked)
    return Answer(data=data, message=_message(settlement))


@asynccontextmanager
async def _traced(context: Context, body: wire.EndOfLease, verb: Verb) -> AsyncIterator[None]:
    """Trace the end of a lease as part of the worker's run."""
    job_id = None
    if traces.is_on():
        # A repeated report no longer has a lease.
        with suppress(ComfyRelayError):
            lease = await context.engine.queue.lease_payloads.of_lease(body.dispatch_id, body.lease_token)
            job_id = lease.job_id
    if job_id is None:
        yield
        return
    with traces.span(f"job.{verb}", job_id, parent=traces.run_key(body.lease_token)):
        yield


def _report(context: Context, worker: Worker, body: wire.EndOfLease, verb: Verb, **more: Any) -> Report:
    return Report(
        verb=verb,
        worker_id=worker.worker_id,
        **body.fields(wire.EndOfLease, but=("about",)),
        about=context.owner.about_run(body.lease_token, body.about) if context.owner is not None else body.about,
        **more,
    )


def _message(settlement: Settlement) -> str:
    return f"The job is {settlement.status}."


async def _cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run a long operation, and cancel it if the caller disconnects."""
    caller = asyncio.current_task()
    assert caller is not None
    is_running, is_disconnected = True, False

    def cancel(watcher: asyncio.Task[None]) -> None:
        nonlocal is_disconnected
        # A disconnect at the end of the operation must not cancel what follows it.
        if is_running and not watcher.cancelled():
            is_disconnected = True
            caller.cancel()

    watcher = asyncio.create_task(_wait_for_disconnect(request))
    watcher.add_done_callback(cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if is_disconnected and not caller.uncancel():
            raise HTTPException(CLIENT_CLOSED_REQUEST, "The caller has disconnected.") from None
        raise
    finally:
        is_running = False
        watcher.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _too_old(protocol: int) -> str:
    return (
        f"This worker is too old: it uses protocol version {protocol}, and this server requires at least version "
        f"{wire.MIN_PROTOCOL}. Update the worker."
    )
