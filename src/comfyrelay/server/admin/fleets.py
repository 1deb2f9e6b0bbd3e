"""Fleets: which workflows a group of workers runs, and how it is doing."""

from fastapi import status

from comfyrelay.domain.states import Stage, WorkerState
from comfyrelay.server.admin.models import (
    Deleted,
    FleetBody,
    FleetMapping,
    FleetMetricsBody,
    FleetPatch,
    NewFleet,
    WorkflowMetricsBody,
)
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.base.answers import Answer, Page
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.fields import Limit, NumberCursor, SlugInPath
from comfyrelay.server.base.problems import may_answer
from comfyrelay.services.fleet.views import FleetMetrics, FleetView

__all__ = ["router"]

router = admin_router("/fleets")


@router.get("", responses=may_answer(422))
async def list_fleets(
    context: ContextOf, stage: Stage | None = None, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[FleetBody]]:
    page = await context.engine.fleet.views.page(stage=stage, cursor=cursor, limit=limit)
    return Answer(data=Page(items=[_body(each) for each in page.items], next_cursor=page.next_cursor))


@router.post("", status_code=status.HTTP_201_CREATED, responses=may_answer(409, 422))
async def create_fleet(body: NewFleet, context: ContextOf) -> Answer[FleetBody]:
    """Make a fleet; workers join it by its stage, its slug and the stage's secret."""
    await context.engine.fleet.fleets.create(**body.model_dump())
    return Answer(data=_body(await context.engine.fleet.views.get(body.stage, body.slug)), message="Made.")


@router.get("/{stage}/{slug}", responses=may_answer(404, 422))
async def get_fleet(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[FleetBody]:
    return Answer(data=_body(await context.engine.fleet.views.get(stage, slug)))


@router.patch("/{stage}/{slug}", responses=may_answer(404, 422))
async def change_fleet(stage: Stage, slug: SlugInPath, body: FleetPatch, context: ContextOf) -> Answer[FleetBody]:
    """Change what is sent. `max_workers: null` lets the server's own limit hold; nobody is sent away."""
    await context.engine.fleet.fleets.change(stage=stage, slug=slug, changes=body.changes())
    return Answer(data=_body(await context.engine.fleet.views.get(stage, slug)), message="Changed.")


@router.delete("/{stage}/{slug}", responses=may_answer(404, 409, 422))
async def delete_fleet(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[Deleted]:
    """Delete a fleet that has no workers."""
    await context.engine.fleet.fleets.delete(stage=stage, slug=slug)
    return Answer(data=Deleted(slug=slug), message="Deleted.")


@router.put("/{stage}/{slug}/workflows", responses=may_answer(404, 422))
async def map_workflows(stage: Stage, slug: SlugInPath, body: FleetMapping, context: ContextOf) -> Answer[FleetBody]:
    """Make these, and only these, the workflows of the fleet; its workers' assignments follow at once."""
    await context.engine.fleet.fleets.map_workflows(stage=stage, slug=slug, workflow_slugs=body.workflow_slugs)
    return Answer(data=_body(await context.engine.fleet.views.get(stage, slug)), message="Mapped.")


@router.get("/{stage}/{slug}/metrics", responses=may_answer(404, 422))
async def fleet_metrics(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[FleetMetricsBody]:
    """Workers by state, leases, queues, and what got done of the fleet's workflows in the last hour."""
    return Answer(data=_metrics(await context.engine.fleet.views.metrics(stage, slug)))


def _body(view: FleetView) -> FleetBody:
    fleet = view.fleet
    return FleetBody(
        id=fleet.id,
        slug=fleet.slug,
        stage=Stage(fleet.stage),
        name=fleet.name,
        max_workers=fleet.max_workers,
        workflow_slugs=list(view.workflow_slugs),
        workers=view.workers,
        created_at=fleet.created_at,
    )


def _metrics(found: FleetMetrics) -> FleetMetricsBody:
    return FleetMetricsBody(
        workers={WorkerState(state): count for state, count in found.workers.items()},
        leases=found.leases,
        queued=found.queued,
        oldest_age_seconds=found.oldest_age_seconds,
        completed=found.completed,
        failed=found.failed,
        mean_duration_seconds=found.mean_duration_seconds,
        workflows=[
            WorkflowMetricsBody(
                workflow_slug=each.slug,
                queued=each.queued,
                oldest_age_seconds=each.oldest_age_seconds,
                completed=each.completed,
                failed=each.failed,
                mean_duration_seconds=each.mean_duration_seconds,
            )
            for each in found.workflows
        ],
    )
