"""Prometheus metrics, without authentication."""

from fastapi import APIRouter, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from comfyrelay.server.http.context import ContextOf

router = APIRouter(tags=["operation"])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(context: ContextOf) -> Response:
    """Queue, leases, outcomes and latencies in the Prometheus text format."""
    return Response(await context.metrics.render(), media_type=CONTENT_TYPE_LATEST)
