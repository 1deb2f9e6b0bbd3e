"""The current load, its history, and a stream of changes."""

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from comfyrelay.protocol.admin import operations as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.auth import AccessCheck, authenticate_admin, remembered_admin
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.streams import KEEP_ALIVE_SECONDS, EventStreamResponse, stream_messages, stream_responses
from comfyrelay.services.operations.live import ChangedKinds
from comfyrelay.services.operations.samples import MINUTES, CurrentLoad, Range, Series
from comfyrelay.services.subscriptions import Reset, StreamMessage

router = admin_router()
outage_router = admin_router(caller=remembered_admin)


@router.get("/overview", responses=error_responses(422))
async def overview(context: ContextOf, range: Range = Range.HOUR) -> Answer[wire.Overview]:
    """Get the current load, and its history over an hour, a day or a week."""
    samples = context.engine.operations.samples
    data = wire.Overview(
        range=range,
        bucket_seconds=MINUTES[range][1] * 60,
        now=_now(await samples.now()),
        series=_series(await samples.series(range)),
    )
    return Answer(data=data)


@outage_router.get("/outages")
async def outages(context: ContextOf) -> Answer[wire.OutageList]:
    """List the problems that the last background check found. This also works while the central database is down, for
    administrators who were signed in to this server process in the last 15 minutes."""
    found = context.engine.operations.outages
    items = [wire.OutageView.of(outage) for outage in found.current]
    return Answer(data=wire.OutageList(items=items, checked_at=found.checked_at))


@router.get("/events", response_class=StreamingResponse, responses=stream_responses(429))
async def events(request: Request, context: ContextOf) -> Response:
    """Stream changes. `changed` names the changed objects by kind, at most twice a second, so that a page can fetch
    them again. `workers`, `fleets` (with their stages), `workflows`, `effects` and `tenants` are lists of names, where
    `*` means any; `dispatches`, `samples`, `webhooks` and `reconcile` are booleans. `reset` is sent first and after
    missed changes, and means: fetch everything again."""
    live = context.engine.operations.live
    messages = live.subscribe(quiet_seconds=KEEP_ALIVE_SECONDS)
    return EventStreamResponse(stream_messages(messages, _encode, AccessCheck(request, context, authenticate_admin)))


def _encode(message: StreamMessage[ChangedKinds]) -> str:
    match message.content:
        case None:
            return ": still here\n\n"
        case Reset():
            return "event: reset\ndata: {}\n\n"
        case changed:
            return f"event: changed\ndata: {to_json(changed).decode()}\n\n"


def _now(now: CurrentLoad) -> wire.OverviewNow:
    return wire.OverviewNow.of(
        now.standing,
        waiting_offline=now.waiting_offline,
        unrunnable=now.unrunnable,
        running=now.standing.busy,
        workers_online=now.standing.workers,
        wait_hour_seconds=_rounded(now.hour.waited_seconds / now.hour.begun) if now.hour.begun else None,
        done_hour=now.hour.done,
        failed_hour=now.hour.failed,
        tokens_hour=now.hour.tokens,
    )


def _series(series: Series) -> wire.OverviewSeries:
    names = ("waiting", "wait_seconds", "done", "failed", "busy", "slots", "tokens")
    columns = {name: [_rounded(getattr(moment, name, None)) for moment in series.times] for name in names}
    return wire.OverviewSeries.model_validate({"at": series.at, **columns})


def _rounded(value: float | None) -> float | None:
    return round(value, 3) if isinstance(value, float) else value
