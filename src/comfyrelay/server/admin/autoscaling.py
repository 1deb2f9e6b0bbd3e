"""Autoscaling of fleets: status, decisions, pause and resume."""

from comfyrelay.domain.autoscaling.machines import EndedMachine
from comfyrelay.domain.queue.states import Stage
from comfyrelay.protocol.admin import autoscaling as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Limit, NumberCursor, SlugInPath, TextCursor, page_of
from comfyrelay.services.autoscaling.views import ScalingView

router = admin_router("/fleets/{stage}/{slug}")
# Further machines are counted in `by_state`, but not listed.
MAX_MACHINES = 200


@router.get("/autoscaling", responses=error_responses(404, 422))
async def autoscaling_status(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[wire.FleetAutoscalingStatus]:
    """Get the machines of a fleet, its queue, and the last decision."""
    return Answer(data=await _status(context, stage, slug))


@router.get("/desired", responses=error_responses(404, 422))
async def desired_machines(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[wire.DesiredMachines]:
    """Get the desired number of machines, for an external autoscaler. Nothing is changed or recorded."""
    return Answer(data=wire.DesiredMachines.of(await context.engine.autoscaling.views.desired(stage, slug)))


@router.get("/decisions", responses=error_responses(404, 422))
async def fleet_decisions(
    stage: Stage, slug: SlugInPath, context: ContextOf, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.Decision]]:
    """List the autoscaling decisions for a fleet and their reasons, newest first."""
    page = await context.engine.autoscaling.views.decisions(stage, slug, cursor=cursor, limit=limit)
    return page_of(page, wire.Decision.of)


@router.get("/machines", responses=error_responses(404, 422))
async def ended_machines(
    stage: Stage, slug: SlugInPath, context: ContextOf, limit: Limit = 50, cursor: TextCursor = None
) -> Answer[Page[wire.MachineInHistory]]:
    """List the machines of a fleet that have ended, newest first, with times, reason, completed jobs and cost."""
    page = await context.engine.autoscaling.views.ended_machines(stage, slug, cursor=cursor, limit=limit)
    return page_of(page, ended_body)


@router.post("/pause", responses=error_responses(404, 422))
async def pause_fleet(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[wire.FleetAutoscalingStatus]:
    """Pause autoscaling: no machine is launched or terminated until the fleet is resumed. Jobs and workers continue."""
    await context.engine.autoscaling.views.set_paused(stage, slug, is_paused=True)
    return Answer(data=await _status(context, stage, slug), message="Paused.")


@router.post("/resume", responses=error_responses(404, 422))
async def resume_fleet(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[wire.FleetAutoscalingStatus]:
    """Resume autoscaling of a paused fleet."""
    await context.engine.autoscaling.views.set_paused(stage, slug, is_paused=False)
    return Answer(data=await _status(context, stage, slug), message="Resumed.")


@router.post("/reset-launches", responses=error_responses(404, 422))
async def reset_launches(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[wire.FleetAutoscalingStatus]:
    """Forget failed and refused launches once their cause is fixed, so that the fleet can launch machines at once."""
    await context.engine.autoscaling.views.reset_launches(stage, slug)
    return Answer(data=await _status(context, stage, slug), message="Reset.")


def status_body(view: ScalingView) -> wire.FleetAutoscalingStatus:
    scaling = view.seen.scaling
    return wire.FleetAutoscalingStatus.of(
        view,
        view.fleet,
        scaling,
        scaling.limits,
        view.seen,
        # Overrides the limit of the same name.
        failed_boots=view.seen.failed_boots,
        provider=view.fleet.machine_spec.provider,
        leader=None if view.leader is None else view.leader.holder,
        decision=None if view.decision is None else wire.Decision.of(view.decision),
        machines=[wire.Machine.of(machine) for machine in view.machines[:MAX_MACHINES]],
    )


def ended_body(ended: EndedMachine) -> wire.MachineInHistory:
    machine = ended.machine
    return wire.MachineInHistory.of(ended, machine, id=machine.provider_id or machine.key)


async def _status(context: Context, stage: Stage, slug: str) -> wire.FleetAutoscalingStatus:
    return status_body(await context.engine.autoscaling.views.get(stage, slug))
