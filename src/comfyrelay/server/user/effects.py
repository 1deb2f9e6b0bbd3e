"""Effects, and the user's own workflows."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Path, Query, Response

from comfyrelay.domain.queue.customer_texts import NOT_AVAILABLE
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.errors import InvalidInput
from comfyrelay.protocol import requirements as wire_missing
from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer, Items, Page
from comfyrelay.protocol.fields import MAX_ID
from comfyrelay.server.http.auth import CurrentUser, authenticate_user
from comfyrelay.server.http.bodies import large_body
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import IdInPath, Limit, NumberCursor, SlugInPath, page_of, user_router
from comfyrelay.services.catalogue.availability import MissingRequirements
from comfyrelay.services.catalogue.graph_import import WorkflowImport
from comfyrelay.services.catalogue.library import OfferedEffect, draws_seed, inputs_of
from comfyrelay.services.catalogue.own_workflows import AddedWorkflow

NO_FLEET = "No fleet runs it yet. Map it to one, or set COMFYRELAY_DEFAULT_FLEET."
NO_FLEET_FOR_USERS = "No machine runs it yet. Ask an administrator to assign one."
router = user_router("/api", "effects")


@router.get("/effects", responses=error_responses(422))
async def effects(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.Effect]]:
    """List the active effects."""
    page = await context.engine.catalogue.library.effects(after_id=cursor or 0, limit=limit)
    covers = (await context.engine.jobs.recent.covers(user.tenant_id)).effects
    return page_of(page, lambda offered: _effect(offered, covers.get(offered.effect.id)))


@router.get("/effects/{slug}", responses=error_responses(404, 422))
async def effect(slug: SlugInPath, context: ContextOf, _user: CurrentUser) -> Answer[wire.Effect]:
    """Get an effect with its inputs."""
    return Answer(data=_effect(await context.engine.catalogue.library.effect(slug=slug)))


@router.get("/workflows", responses=error_responses(422))
async def workflows(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.Workflow]]:
    """List your own workflows, newest first."""
    page = await context.engine.catalogue.own_workflows.page(user.tenant_id, before_id=cursor, limit=limit)
    covers = (await context.engine.jobs.recent.covers(user.tenant_id)).workflows
    return page_of(page, lambda workflow: workflow_body(workflow, covers.get(workflow.id)))


@router.post(
    "/workflows",
    status_code=201,
    responses={200: {"model": Answer[wire.AddedWorkflow]}, **error_responses(403, 409, 422)},
)
@large_body(authenticate_user, limit="max_graph_bytes")
async def create_workflow(
    body: wire.NewWorkflow, response: Response, context: ContextOf, user: CurrentUser
) -> Answer[wire.AddedWorkflow]:
    """Add your own graph, in ComfyUI's API format or as saved by its editor. Submit jobs with its slug.

    Without `properties`, every changeable value becomes a property, with the types, ranges and choices of the workers'
    nodes. Adding the same graph again returns the existing workflow with 200.

    An editor file can only be read with the definitions of its nodes. If no worker has some of these nodes, the file is
    refused. With `wait_for_missing`, it is stored as `waiting` and read as soon as a worker has them.
    """
    added = await context.engine.catalogue.own_workflows.add(user.tenant_id, _new(body, body.graph))
    return await _added(context, user, response, added)


@router.post(
    "/ai-jobs/{job_id}/workflow",
    status_code=201,
    responses={200: {"model": Answer[wire.AddedWorkflow]}, **error_responses(403, 404, 409, 422)},
)
async def add_workflow_of_job(
    job_id: IdInPath, response: Response, context: ContextOf, user: CurrentUser
) -> Answer[wire.AddedWorkflow]:
    """Add the deleted workflow of a job again. If you still have it, it is returned with 200."""
    added = await context.engine.jobs.job_workflows.add_again(user.tenant_id, job_id)
    return await _added(context, user, response, added)


@router.get("/missing", responses=error_responses(404, 409, 422))
async def missing(
    context: ContextOf,
    user: CurrentUser,
    effect_id: Annotated[int | None, Query(ge=0, le=MAX_ID)] = None,
    workflow_slug: Annotated[str | None, Query(max_length=200)] = None,
) -> Answer[wire.RequirementCheck]:
    """Get the missing requirements of an effect or your workflow, before you fill in any values."""
    target = await context.engine.jobs.resolve.find_target(
        user.tenant_id, effect_id=effect_id, workflow_slug=workflow_slug
    )
    found = await context.engine.catalogue.availability.check_workflow(target.workflow, shows_names=user.is_admin)
    if found is not None and target.effect is not None and not user.is_admin:
        return Answer(data=wire.RequirementCheck(missing=wire_missing.Missing(text=NOT_AVAILABLE, items=[])))
    return Answer(data=wire.RequirementCheck(missing=_missing(found)))


@router.patch("/workflows/{slug}", responses=error_responses(403, 404, 409, 422))
@large_body(authenticate_user, limit="max_graph_bytes")
async def change_workflow(
    slug: SlugInPath, body: wire.OwnWorkflowPatch, context: ContextOf, user: CurrentUser
) -> Answer[wire.Workflow]:
    """Rename your workflow, or replace its graph, which is read like the graph of a new workflow. Submitted jobs keep
    their graph."""
    own = context.engine.catalogue.own_workflows
    if body.graph is not None:
        done = await own.replace(user.tenant_id, slug, _new(body, body.graph))
        sentences = ("Replaced.", *done.differences, done.imported.remark)
        return Answer(data=workflow_body(done.workflow), message=" ".join(filter(None, sentences)))
    if lone := body.model_fields_set - {"name", "graph"}:
        raise InvalidInput(errors=dict.fromkeys(sorted(lone), "This field describes a graph: send the graph, too."))
    if body.name is None:
        raise InvalidInput(errors={"name": "Send a name, or a graph."})
    return Answer(data=workflow_body(await own.rename(user.tenant_id, slug, body.name)), message="Renamed.")


@router.get("/workflows/{slug}/versions", responses=error_responses(404, 422))
async def workflow_versions(
    slug: SlugInPath, context: ContextOf, user: CurrentUser
) -> Answer[Items[wire.OwnWorkflowVersion]]:
    """List the stored versions of your workflow and their changes, newest first."""
    found = await context.engine.catalogue.own_versions.list(user.tenant_id, slug)
    return Answer(data=Items(items=[wire.OwnWorkflowVersion.of(version) for version in found]))


@router.post("/workflows/{slug}/versions/{number}/bring-back", responses=error_responses(403, 404, 409, 422))
async def bring_back_version(
    slug: SlugInPath, number: Annotated[int, Path(ge=1, le=MAX_ID)], context: ContextOf, user: CurrentUser
) -> Answer[wire.Workflow]:
    """Use an earlier version of your workflow for new jobs. It becomes the newest version. Jobs keep their graph."""
    done = await context.engine.catalogue.own_versions.bring_back(user.tenant_id, slug, number)
    sentences = (f"Version {number} is back.", *done.differences)
    return Answer(data=workflow_body(done.workflow), message=" ".join(sentences))


@router.delete("/workflows/{slug}", responses=error_responses(403, 404, 409, 422))
async def delete_workflow(
    slug: SlugInPath, context: ContextOf, user: CurrentUser, unless_needed: bool = False
) -> Answer[wire.Deleted]:
    """Delete your workflow. Existing jobs are kept. 409 while one of its jobs has not ended.

    With `unless_needed`, also 409 if the workflow was added again or changed, or if it has several jobs or a job that
    did not complete.
    """
    await context.engine.catalogue.own_workflows.remove(user.tenant_id, slug, unless_needed=unless_needed)
    return Answer(data=wire.Deleted(id=slug), message="Deleted.")


async def _added(context: Context, user: User, response: Response, added: AddedWorkflow) -> Answer[wire.AddedWorkflow]:
    if not added.is_new:
        response.status_code = 200
    workflow, imported = added.workflow, added.imported
    if imported is None:
        fields: dict[str, Any] = {"properties": [], "graph": {}, "roles": {}, "positions": {}, **_waiting(workflow)}
        remark = fields["waiting"]
    else:
        missing = await context.engine.catalogue.availability.check_workflow(workflow, shows_names=user.is_admin)
        fields = {
            "properties": inputs_of(workflow, {}),
            "draws_seed": draws_seed(workflow),
            "graph": imported.source_graph,
            "roles": imported.roles,
            "positions": imported.positions,
            "waiting": None,
            "missing": _missing(missing),
        }
        remark = imported.remark
    remarks = [
        *filter(None, [remark]),
        *([] if added.has_fleet else [NO_FLEET if user.is_admin else NO_FLEET_FOR_USERS]),
    ]
    message = "Added." if added.is_new else f"You have this workflow already, as {workflow.name!r}."
    data = wire.AddedWorkflow.of(workflow, **fields, remarks=remarks)
    return Answer(data=data, message=" ".join([message, *remarks]))


def _effect(offered: OfferedEffect, cover_url: str | None = None) -> wire.Effect:
    return wire.Effect.of(offered, offered.effect, properties=offered.inputs, cover_url=cover_url)


def _new(body: wire.NewWorkflow | wire.OwnWorkflowPatch, graph: Mapping[str, Any]) -> WorkflowImport:
    return WorkflowImport(**body.model_dump(mode="json", exclude={"graph"}), graph=graph)


def workflow_body(workflow: WorkflowRecord, cover_url: str | None = None) -> wire.Workflow:
    fields = {"properties": inputs_of(workflow, {}), "draws_seed": draws_seed(workflow)}
    return wire.Workflow.of(workflow, **fields, cover_url=cover_url, **_waiting(workflow))


def _waiting(workflow: WorkflowRecord) -> dict[str, Any]:
    """Return the fields with the missing nodes of an editor file that cannot be read yet."""
    waiting = workflow.waits_for
    if waiting is None:
        return {"waiting": None}
    return {"waiting": waiting.text, "missing": wire_missing.Missing(text=waiting.text, items=waiting.missing)}


def _missing(missing: MissingRequirements | None) -> wire_missing.Missing | None:
    return None if missing is None else wire_missing.Missing.of(missing, items=missing.to_json())
