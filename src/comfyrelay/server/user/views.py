"""Saved views of the web app."""

from typing import Literal

from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.records import SavedView
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.parameters import IdInPath
from comfyrelay.server.http.problems import may_answer
from comfyrelay.server.http.routers import Router

router = Router(prefix="/api/views", tags=["views"], route_class=BodyRoute)


@router.get("", responses=may_answer(401, 422, 503))
async def views(context: ContextOf, user: CurrentUser, area: Literal["queue"] = "queue") -> Answer[wire.SavedViews]:
    """Your views of an area, oldest first."""
    return Answer(data=wire.SavedViews(items=await context.engine.jobs.saved_views.list_views(user.tenant_id, area)))


@router.put("", responses=may_answer(401, 403, 409, 422, 503))
async def keep_view(body: wire.NewView, context: ContextOf, user: CurrentUser) -> Answer[SavedView]:
    """Save a view under a name, and replace the view of that name, if any."""
    kept = await context.engine.jobs.saved_views.save(
        user.tenant_id, area=body.area, name=body.name, search=body.search
    )
    return Answer(data=kept, message="Saved.")


@router.delete("/{view_id}", responses=may_answer(401, 403, 404, 422, 503))
async def forget_view(view_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Deleted]:
    """Delete a view."""
    await context.engine.jobs.saved_views.remove(user.tenant_id, view_id)
    return Answer(data=wire.Deleted(id=view_id), message="Forgotten.")
