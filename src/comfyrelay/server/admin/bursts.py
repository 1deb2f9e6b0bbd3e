"""Jobs that were moved to Comfy Cloud because they would have waited too long."""

from comfyrelay.domain.records.workers import BurstRecord
from comfyrelay.protocol.admin import dispatches as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.pages import page_of
from comfyrelay.server.http.parameters import Limit, NumberCursor, TextFilter
from comfyrelay.server.http.problems import error_responses

router = admin_router("/bursts")


@router.get("", responses=error_responses(422))
async def list_bursts(
    context: ContextOf, workflow: TextFilter = None, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.Burst]]:
    """Moved jobs, newest first: the reason, the expected and the actual cost."""
    page = await context.engine.autoscaling.bursting.page(workflow_slug=workflow, cursor=cursor, limit=limit)
    return page_of(page, _body)


def _body(found: tuple[BurstRecord, str]) -> wire.Burst:
    burst, slug = found
    return wire.Burst.of(burst, workflow_slug=slug)
