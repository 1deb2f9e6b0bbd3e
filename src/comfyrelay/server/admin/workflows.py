"""Workflows: registering graphs, changing and deleting them, and holding them against the workers."""

from typing import Any

from fastapi import status

from comfyrelay.domain.records.catalogue import Workflow
from comfyrelay.domain.states import Provider, Stage
from comfyrelay.server.admin.models import (
    Deleted,
    NewWorkflow,
    Validated,
    WorkerCheck,
    WorkflowBody,
    WorkflowPatch,
    WorkflowSummary,
)
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.admin.types import AnyId, TextCursor
from comfyrelay.server.base.answers import Answer, Page
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.fields import Limit, SlugInPath
from comfyrelay.server.base.problems import may_answer
from comfyrelay.services.catalogue.workflows import WorkerFitness, WorkflowView

__all__ = ["router"]

router = admin_router("/workflows")


@router.get("", responses=may_answer(422))
async def list_workflows(
    context: ContextOf,
    tenant_id: AnyId = None,
    is_active: bool | None = None,
    limit: Limit = 50,
    cursor: TextCursor = None,
) -> Answer[Page[WorkflowSummary]]:
    """The catalogue's workflows by slug; with `tenant_id`, those private to a tenant."""
    page = await context.engine.catalogue.workflows.page(
        tenant_id=tenant_id, is_active=is_active, cursor=cursor, limit=limit
    )
    items = [WorkflowSummary(**_fields(each)) for each in page.items]
    return Answer(data=Page(items=items, next_cursor=page.next_cursor))


@router.post("", status_code=status.HTTP_201_CREATED, responses=may_answer(409, 422))
async def create_workflow(body: NewWorkflow, context: ContextOf) -> Answer[WorkflowBody]:
    """Register a graph, in ComfyUI's API format. The slug is there for good."""
    fields = body.model_dump(exclude={"properties"})
    fields["properties"] = [each.model_dump(mode="json", exclude_unset=True) for each in body.properties]
    workflow = await context.engine.catalogue.workflows.create(**fields)
    return _answer(await context.engine.catalogue.workflows.get(workflow.slug), "Registered")


@router.get("/{slug}", responses=may_answer(404, 422))
async def get_workflow(slug: SlugInPath, context: ContextOf) -> Answer[WorkflowBody]:
    """A workflow with its graph, and warnings where something in it looks like a mistake."""
    return Answer(data=_body(await context.engine.catalogue.workflows.get(slug)))


@router.patch("/{slug}", responses=may_answer(404, 409, 422))
async def change_workflow(slug: SlugInPath, body: WorkflowPatch, context: ContextOf) -> Answer[WorkflowBody]:
    """Change what is sent. Jobs that were submitted before keep the graph that they were submitted with."""
    changes = body.changes()
    if body.properties is not None:
        changes["properties"] = [each.model_dump(mode="json", exclude_unset=True) for each in body.properties]
    return _answer(await context.engine.catalogue.workflows.change(slug, changes), "Changed")


@router.delete("/{slug}", responses=may_answer(404, 409, 422))
async def delete_workflow(slug: SlugInPath, context: ContextOf) -> Answer[Deleted]:
    """Delete a workflow that no effect uses and of which no job is under way."""
    await context.engine.catalogue.workflows.delete(slug)
    return Answer(data=Deleted(slug=slug), message="Deleted.")


@router.post("/{slug}/validate", responses=may_answer(404, 422))
async def validate_workflow(
    slug: SlugInPath, context: ContextOf, limit: Limit = 50, cursor: TextCursor = None
) -> Answer[Validated]:
    """Which nodes and models of the graph the workers that have it assigned lack, as far as they report them."""
    found = await context.engine.catalogue.workflows.inspect(slug, cursor=cursor, limit=limit)
    checks = [_check(each) for each in found.workers.items]
    data = Validated(
        text=found.text,
        node_types=sorted(found.needs.node_types),
        models=sorted(found.needs.models),
        assigned_workers=found.assigned_workers,
        workers=Page(items=checks, next_cursor=found.workers.next_cursor),
    )
    return Answer(data=data, message=found.text)


def _fields(workflow: Workflow) -> dict[str, Any]:
    return {
        "id": workflow.id,
        "slug": workflow.slug,
        "name": workflow.name,
        "tenant_id": workflow.tenant_id,
        "provider": Provider(workflow.provider),
        "properties": [dict(each) for each in workflow.properties],
        "output_node_id": workflow.output_node_id,
        "output_extension": workflow.output_extension,
        "output_mime_type": workflow.output_mime_type,
        "is_active": workflow.is_active,
        "created_at": workflow.created_at,
        "updated_at": workflow.updated_at,
    }


def _body(view: WorkflowView) -> WorkflowBody:
    return WorkflowBody(**_fields(view.workflow), graph=view.graph, warnings=list(view.warnings))


def _answer(view: WorkflowView, done: str) -> Answer[WorkflowBody]:
    return Answer(data=_body(view), message=f"{done}, with warnings." if view.warnings else f"{done}.")


def _check(each: WorkerFitness) -> WorkerCheck:
    return WorkerCheck(
        worker_id=each.worker.worker_id,
        fleet_slug=each.worker.fleet_slug,
        stage=Stage(each.worker.stage),
        fit=each.fitness.fit,
        text=each.fitness.text,
        missing_node_types=list(each.fitness.missing_node_types),
        missing_models=list(each.fitness.missing_models),
    )
