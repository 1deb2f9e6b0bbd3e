"""What can be run: the effects on offer, and graphs of the user's own."""

from fastapi import APIRouter, status

from comfyrelay.domain.records.catalogue import Workflow
from comfyrelay.server.base.answers import Answer, Page
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.fields import Limit, NumberCursor, SlugInPath
from comfyrelay.server.base.problems import may_answer
from comfyrelay.server.user.models import Deleted, EffectBody, InputBody, NewWorkflowBody, WorkflowBody
from comfyrelay.services.catalogue.library import Input, OfferedEffect, inputs_of
from comfyrelay.services.catalogue.own_workflows import NewWorkflow

__all__ = ["router", "workflow_body"]

router = APIRouter(prefix="/api", tags=["effects"])


@router.get("/effects", responses=may_answer(401, 422, 503))
async def effects(
    context: ContextOf, _user: CurrentUser, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[EffectBody]]:
    """The effects that can be used."""
    page = await context.engine.catalogue.library.effects(after_id=cursor or 0, limit=limit)
    return Answer(data=Page(items=[_effect(each) for each in page.items], next_cursor=page.next_cursor))


@router.get("/effects/{slug}", responses=may_answer(401, 404, 422, 503))
async def effect(slug: SlugInPath, context: ContextOf, _user: CurrentUser) -> Answer[EffectBody]:
    """One effect, with the inputs it takes."""
    return Answer(data=_effect(await context.engine.catalogue.library.effect(slug=slug)))


@router.get("/workflows", responses=may_answer(401, 422, 503))
async def workflows(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[WorkflowBody]]:
    """Your own workflows, newest first."""
    page = await context.engine.catalogue.own_workflows.page(user.tenant_id, before_id=cursor, limit=limit)
    return Answer(data=Page(items=[workflow_body(each) for each in page.items], next_cursor=page.next_cursor))


@router.post("/workflows", status_code=status.HTTP_201_CREATED, responses=may_answer(401, 403, 422, 503))
async def create_workflow(body: NewWorkflowBody, context: ContextOf, user: CurrentUser) -> Answer[WorkflowBody]:
    """Bring a graph of your own, in ComfyUI's API format. Submit jobs with its slug."""
    new = NewWorkflow(
        graph=body.graph,
        name=body.name,
        properties=[each.model_dump(mode="json") for each in body.properties],
        output_node_id=body.output_node_id,
        output_extension=body.output_extension,
        output_mime_type=body.output_mime_type,
    )
    return Answer(
        data=workflow_body(await context.engine.catalogue.own_workflows.create(user.tenant_id, new)), message="Made."
    )


@router.delete("/workflows/{slug}", responses=may_answer(401, 403, 404, 409, 422, 503))
async def delete_workflow(slug: SlugInPath, context: ContextOf, user: CurrentUser) -> Answer[Deleted]:
    """Delete a workflow of yours that no job was made with."""
    await context.engine.catalogue.own_workflows.remove(user.tenant_id, slug)
    return Answer(data=Deleted(id=slug), message="Deleted.")


def _input(each: Input) -> InputBody:
    return InputBody(
        key=each.key,
        type=each.type,
        required=each.required,
        default_value=each.default_value,
        is_primary_input=each.is_primary_input,
        choices=list(each.choices),
        minimum=each.minimum,
        maximum=each.maximum,
    )


def _effect(offered: OfferedEffect) -> EffectBody:
    effect = offered.effect
    return EffectBody(
        id=effect.id,
        slug=effect.slug,
        name=effect.name,
        credits_cost=effect.credits_cost,
        properties=[_input(each) for each in offered.inputs],
        output_mime_type=offered.output_mime_type,
        output_extension=offered.output_extension,
        last_processing_time_seconds=effect.last_processing_time_seconds,
    )


def workflow_body(workflow: Workflow) -> WorkflowBody:
    return WorkflowBody(
        slug=workflow.slug,
        name=workflow.name,
        properties=[_input(each) for each in inputs_of(workflow, {})],
        output_node_id=workflow.output_node_id,
        output_extension=workflow.output_extension,
        output_mime_type=workflow.output_mime_type,
        is_active=workflow.is_active,
    )
