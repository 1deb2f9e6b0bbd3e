"""Saved views of the web app."""

from typing import Literal

from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer, Items
from comfyrelay.protocol.records import SavedView
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import IdInPath, user_router

router = user_router("/api/views", "views")


@router.get("", responses=error_responses(422))
async def views(context: ContextOf, user: CurrentUser, area: Literal["queue"] = "queue") -> Answer[Items[SavedView]]:
    """List your views of an area, oldest first."""
    return Answer(data=Items(items=await context.engine.jobs.saved_views.list_views(user.tenant_id, area)))


@router.put("", responses=error_responses(403, 409, 422))
async def save_view(body: wire.NewView, context: ContextOf, user: CurrentUser) -> Answer[SavedView]:
    """Save a view. It replaces an existing view with this name."""
    saved = await context.engine.jobs.saved_views.save(
        user.tenant_id, area=body.area, name=body.name, search=body.search
    )
    return Answer(data=saved, message="Saved.")


@router.delete("/{view_id}", responses=error_responses(403, 404, 422))
async def delete_view(view_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Deleted]:
    """Delete a view."""
    await context.engine.jobs.saved_views.remove(user.tenant_id, view_id)
    return Answer(data=wire.Deleted(id=view_id), message="Deleted.")
