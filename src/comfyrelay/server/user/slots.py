"""Slots: GPUs with their memory, load and job."""

from comfyrelay.protocol.base import Answer, Page
from comfyrelay.protocol.user import WorkerSlot
from comfyrelay.server.http.auth import Admin
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Limit, TextCursor, page_of, user_router
from comfyrelay.services.workers.slots import SlotView

router = user_router("/api/slots", "slots")


@router.get("", responses=error_responses(403, 422))
async def slots(
    context: ContextOf, _admin: Admin, limit: Limit = 100, cursor: TextCursor = None
) -> Answer[Page[WorkerSlot]]:
    """List the slots of up to `limit` workers by id. A worker has one slot for each job that it runs at once. Only for
    the owner of a desk and for administrators, because slots show jobs of all tenants."""
    return page_of(await context.engine.workers.slots.page(cursor=cursor, limit=limit), _body)


def _body(view: SlotView) -> WorkerSlot:
    return WorkerSlot.of(view.slot, job=view.job)
