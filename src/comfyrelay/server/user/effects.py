"""What can be run: the effects on offer, and graphs of the user's own."""

from fastapi import APIRouter, status

from comfyrelay.domain.records.catalogue import Workflow
from comfyrelay.protocol import missing as wire_missing
from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.base.auth import CurrentUser, known_user
from comfyrelay.server.base.bodies import BodyRoute, large_body
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.pages import page_of
from comfyrelay.server.base.parameters import Limit, NumberCursor, SlugInPath
from comfyrelay.server.base.problems import may_answer
from comfyrelay.services.catalogue.fitting import Missing
from comfyrelay.services.catalogue.library import OfferedEffect, inputs_of
from comfyrelay.services.catalogue.own_workflows import NewWorkflow

router = APIRouter(prefix="/api", tags=["effects"], route_class=BodyRoute)


@router.get("/effects", responses=may_answer(401, 422, 503))
async def effects(
    context: ContextOf, _user: CurrentUser, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.Effect]]:
    """The effects that can be used."""
    page = await context.engine.catalogue.library.effects(after_id=cursor or 0, limit=limit)
    return page_of(page, _effect)


@router.get("/effects/{slug}", responses=may_answer(401, 404, 422, 503))
async def effect(slug: SlugInPath, context: ContextOf, _user: CurrentUser) -> Answer[wire.Effect]:
    """One effect, with the inputs it takes."""
    return Answer(data=_effect(await context.engine.catalogue.library.effect(slug=slug)))


@router.get("/workflows", responses=may_answer(401, 422, 503))
async def workflows(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.Workflow]]:
    """Your own workflows, newest first."""
    page = await context.engine.catalogue.own_workflows.page(user.tenant_id, before_id=cursor, limit=limit)
    return page_of(page, workflow_body)


@router.post("/workflows", status_code=status.HTTP_201_CREATED, responses=may_answer(401, 403, 422, 503))
@large_body(known_user)
async def create_workflow(body: wire.NewWorkflow, context: ContextOf, user: CurrentUser) -> Answer[wire.Workflow]:
    """Bring a graph of your own, in ComfyUI's API format. Submit jobs with its slug."""
    new = NewWorkflow(**body.model_dump(mode="json", exclude={"graph"}), graph=body.graph)
    made = await context.engine.catalogue.own_workflows.create(user.tenant_id, new)
    missing = await context.engine.catalogue.fitting.of_workflow(made, shows_names=user.is_admin)
    return Answer(data=workflow_body(made, missing), message="Created.")


@router.delete("/workflows/{slug}", responses=may_answer(401, 403, 404, 409, 422, 503))
async def delete_workflow(slug: SlugInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Deleted]:
    """Delete a workflow of yours that no job was made with."""
    await context.engine.catalogue.own_workflows.remove(user.tenant_id, slug)
    return Answer(data=wire.Deleted(id=slug), message="Deleted.")


def _effect(offered: OfferedEffect) -> wire.Effect:
    return wire.Effect.of(offered, offered.effect, properties=offered.inputs)


def workflow_body(workflow: Workflow, missing: Missing | None = None) -> wire.Workflow:
    lacks = None if missing is None else wire_missing.Missing.of(missing, items=missing.to_json())
    return wire.Workflow.of(workflow, properties=inputs_of(workflow, {}), missing=lacks)
