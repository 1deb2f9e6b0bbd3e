"""Effects, and the user's own workflows."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query, Response, status

from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.errors import InvalidInput
from comfyrelay.protocol import requirements as wire_missing
from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.protocol.fields import LARGEST_ID
from comfyrelay.server.http.auth import CurrentUser, authenticate_user
from comfyrelay.server.http.bodies import BodyRoute, large_body
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.pages import page_of
from comfyrelay.server.http.parameters import Limit, NumberCursor, SlugInPath
from comfyrelay.server.http.problems import may_answer
from comfyrelay.server.http.routers import Router
from comfyrelay.services.catalogue.availability import MissingRequirements
from comfyrelay.services.catalogue.graph_import import WorkflowImport
from comfyrelay.services.catalogue.library import OfferedEffect, inputs_of
from comfyrelay.services.catalogue.own_workflows import AddedWorkflow

NO_FLEET = "No fleet runs it yet: an administrator maps it to one, or sets COMFYRELAY_DEFAULT_FLEET."
router = Router(prefix="/api", tags=["effects"], route_class=BodyRoute)


@router.get("/effects", responses=may_answer(401, 422, 503))
async def effects(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.Effect]]:
    """The active effects."""
    page = await context.engine.catalogue.library.effects(after_id=cursor or 0, limit=limit)
    covers = (await context.engine.jobs.recent.covers(user.tenant_id)).effects
    return page_of(page, lambda each: _effect(each, covers.get(each.effect.id)))


@router.get("/effects/{slug}", responses=may_answer(401, 404, 422, 503))
async def effect(slug: SlugInPath, context: ContextOf, _user: CurrentUser) -> Answer[wire.Effect]:
    """One effect with its inputs."""
    return Answer(data=_effect(await context.engine.catalogue.library.effect(slug=slug)))


@router.get("/workflows", responses=may_answer(401, 422, 503))
async def workflows(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.Workflow]]:
    """Your own workflows, newest first."""
    page = await context.engine.catalogue.own_workflows.page(user.tenant_id, before_id=cursor, limit=limit)
    covers = (await context.engine.jobs.recent.covers(user.tenant_id)).workflows
    return page_of(page, lambda each: workflow_body(each, covers.get(each.id)))


@router.post(
    "/workflows",
    status_code=status.HTTP_201_CREATED,
    responses={200: {"model": Answer[wire.AddedWorkflow]}, **may_answer(401, 403, 409, 422, 503)},
)
@large_body(authenticate_user)
async def create_workflow(
    body: wire.NewWorkflow, response: Response, context: ContextOf, user: CurrentUser
) -> Answer[wire.AddedWorkflow]:
    """Add your own graph, in ComfyUI's API format or as its editor saves it. Submit jobs with its slug.

    Without `properties`, every changeable value becomes one, with the types, ranges and choices of the workers' nodes.
    Adding the same graph again returns the existing workflow with 200.

    An editor file can only be read with the definitions of its nodes. If no worker has some of them, it is refused;
    with `wait_for_missing` it is stored as `waiting`, and read as soon as a worker has them.
    """
    added = await context.engine.catalogue.own_workflows.add(user.tenant_id, _new(body, body.graph))
    if not added.is_new:
        response.status_code = status.HTTP_200_OK
    workflow, read = added.workflow, added.imported
    if read is None:
        return _waiting(added)
    missing = await context.engine.catalogue.availability.check_workflow(workflow, shows_names=user.is_admin)
    remarks = [*filter(None, [read.remark]), *([] if added.has_fleet else [NO_FLEET])]
    data = wire.AddedWorkflow.of(
        workflow,
        properties=inputs_of(workflow, {}),
        graph=read.source_graph,
        roles=read.roles,
        positions=read.positions,
        remarks=remarks,
        waiting=None,
        missing=_missing(missing),
    )
    return Answer(data=data, message=" ".join([_done(added), *remarks]))


@router.get("/missing", responses=may_answer(401, 404, 409, 422, 503))
async def missing(
    context: ContextOf,
    user: CurrentUser,
    effect_id: Annotated[int | None, Query(ge=0, le=LARGEST_ID)] = None,
    workflow_slug: Annotated[str | None, Query(max_length=200)] = None,
) -> Answer[wire.Needed]:
    """The missing requirements of an effect or your workflow, before any value is filled in."""
    target = await context.engine.jobs.resolve.find_target(
        user.tenant_id, effect_id=effect_id, workflow_slug=workflow_slug
    )
    found = await context.engine.catalogue.availability.check_workflow(target.workflow, shows_names=user.is_admin)
    return Answer(data=wire.Needed(missing=_missing(found)))


@router.patch("/workflows/{slug}", responses=may_answer(401, 403, 404, 409, 422, 503))
@large_body(authenticate_user)
async def change_workflow(
    slug: SlugInPath, body: wire.OwnWorkflowPatch, context: ContextOf, user: CurrentUser
) -> Answer[wire.Workflow]:
    """Rename your workflow, or replace its graph, which is read like a new one. Submitted jobs keep their graph."""
    own = context.engine.catalogue.own_workflows
    if body.graph is not None:
        done = await own.replace(user.tenant_id, slug, _new(body, body.graph))
        sentences = ("Replaced.", *done.differences, done.imported.remark)
        return Answer(data=workflow_body(done.workflow), message=" ".join(filter(None, sentences)))
    if lone := body.model_fields_set - {"name", "graph"}:
        raise InvalidInput(errors=dict.fromkeys(sorted(lone), "This describes a graph: send that, too."))
    if body.name is None:
        raise InvalidInput(errors={"name": "Send a name, or a graph."})
    return Answer(data=workflow_body(await own.rename(user.tenant_id, slug, body.name)), message="Renamed.")


@router.delete("/workflows/{slug}", responses=may_answer(401, 403, 404, 409, 422, 503))
async def delete_workflow(slug: SlugInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Deleted]:
    """Delete your workflow. It can no longer be run; existing jobs stay. 409 while one of them has not ended."""
    await context.engine.catalogue.own_workflows.remove(user.tenant_id, slug)
    return Answer(data=wire.Deleted(id=slug), message="Deleted.")


def _effect(offered: OfferedEffect, cover_url: str | None = None) -> wire.Effect:
    return wire.Effect.of(offered, offered.effect, properties=offered.inputs, cover_url=cover_url)


def _new(body: wire.NewWorkflow | wire.OwnWorkflowPatch, graph: Mapping[str, Any]) -> WorkflowImport:
    return WorkflowImport(**body.model_dump(mode="json", exclude={"graph"}), graph=graph)


def workflow_body(workflow: WorkflowRecord, cover_url: str | None = None) -> wire.Workflow:
    properties = inputs_of(workflow, {})
    return wire.Workflow.of(workflow, properties=properties, cover_url=cover_url, **_why_it_waits(workflow))


def _waiting(added: AddedWorkflow) -> Answer[wire.AddedWorkflow]:
    workflow, why = added.workflow, _why_it_waits(added.workflow)
    remarks = [why["waiting"], *([] if added.has_fleet else [NO_FLEET])]
    nothing: dict[str, Any] = {"properties": [], "graph": {}, "roles": {}, "positions": {}}
    data = wire.AddedWorkflow.of(workflow, **nothing, **why, remarks=remarks)
    return Answer(data=data, message=" ".join([_done(added), *remarks]))


def _why_it_waits(workflow: WorkflowRecord) -> dict[str, Any]:
    waiting = workflow.waits_for
    if waiting is None:
        return {"waiting": None}
    return {"waiting": waiting.text, "missing": wire_missing.Missing(text=waiting.text, items=waiting.missing)}


def _done(added: AddedWorkflow) -> str:
    return "Added." if added.is_new else f"You have this workflow already, as {added.workflow.name!r}."


def _missing(missing: MissingRequirements | None) -> wire_missing.Missing | None:
    return None if missing is None else wire_missing.Missing.of(missing, items=missing.to_json())
