"""Liveness and readiness without authentication, and Prometheus metrics with a token if one is configured."""

from hmac import compare_digest
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from comfyrelay.errors import Unauthorized
from comfyrelay.http_client import is_loopback
from comfyrelay.protocol.base import Answer
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses

router = APIRouter(tags=["operation"])


class Alive(BaseModel):
    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    status: Literal["ok", "degraded"]
    problems: Annotated[dict[str, str], Field(description="shards that cannot be used")]


@router.get("/healthz")
async def healthz() -> Answer[Alive]:
    """Report that the process is alive. Nothing else is checked."""
    return Answer(data=Alive())


@router.get("/readyz", responses=error_responses(503))
async def readyz(context: ContextOf) -> Answer[Ready]:
    """Check that the databases answer and are up to date, and that object storage works. Otherwise 503 with the
    reason."""
    checked = await context.engine.operations.readiness.check()
    return Answer(data=Ready(status="degraded" if checked.problems else "ok", problems=checked.problems))


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, **error_responses(401)}
)
async def metrics(request: Request, context: ContextOf) -> Response:
    """Return queue, leases, outcomes and latencies in the Prometheus text format. If the server has a token for
    metrics, send it as a bearer token. A server that other machines can reach needs a token."""
    token = context.settings.metrics_token
    given = request.headers.get("Authorization", "")
    if token is None and not is_loopback(context.settings.host):
        raise Unauthorized("Other machines can reach this server. Set COMFYRELAY_METRICS_TOKEN to allow this.")
    if token is not None and not compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise Unauthorized("Send the token of COMFYRELAY_METRICS_TOKEN as a bearer token.")
    return Response(await context.metrics.render(), media_type=CONTENT_TYPE_LATEST)
