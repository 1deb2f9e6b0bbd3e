"""Fleets: the workflows of a group of workers, and its metrics."""

from collections.abc import Mapping
from typing import Any

from fastapi import status

from comfyrelay.autoscaling import options
from comfyrelay.autoscaling.providers import registry
from comfyrelay.domain.autoscaling.spec_json import machines_to_json, scaling_to_json
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import InvalidInput
from comfyrelay.protocol.admin import fleets as wire
from comfyrelay.protocol.admin.autoscaling import FleetMachines
from comfyrelay.protocol.admin.fields import DeletedSlug
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.pages import page_of
from comfyrelay.server.http.parameters import Limit, NumberCursor, SlugInPath
from comfyrelay.server.http.problems import error_responses
from comfyrelay.services.workers.views import FleetView

router = admin_router("/fleets")


@router.get("", responses=error_responses(422))
async def list_fleets(
    context: ContextOf, stage: Stage | None = None, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.Fleet]]:
    page = await context.engine.workers.views.page(stage=stage, cursor=cursor, limit=limit)
    return page_of(page, _body)


@router.post("", status_code=status.HTTP_201_CREATED, responses=error_responses(409, 422))
async def create_fleet(body: wire.NewFleet, context: ContextOf) -> Answer[wire.Fleet]:
    """Create a fleet. Workers join it with its stage, its slug and the secret of the stage."""
    _check_provider(body.machines, before=None)
    await context.engine.workers.fleets.create(**body.model_dump(exclude_unset=True))
    return Answer(data=_body(await context.engine.workers.views.get(body.stage, body.slug)), message="Created.")


@router.get("/{stage}/{slug}", responses=error_responses(404, 422))
async def get_fleet(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[wire.Fleet]:
    return Answer(data=_body(await context.engine.workers.views.get(stage, slug)))


@router.patch("/{stage}/{slug}", responses=error_responses(404, 422))
async def change_fleet(stage: Stage, slug: SlugInPath, body: wire.FleetPatch, context: ContextOf) -> Answer[wire.Fleet]:
    """Change the given fields, also inside `machines` and `autoscaling`; null restores the default. No worker is
    deregistered."""
    if body.machines is not None:
        before = (await context.engine.workers.views.get(stage, slug)).fleet.machines
        _check_provider(body.machines, before=before)
    await context.engine.workers.fleets.change(stage=stage, slug=slug, changes=body.changes())
    return Answer(data=_body(await context.engine.workers.views.get(stage, slug)), message="Changed.")


@router.delete("/{stage}/{slug}", responses=error_responses(404, 409, 422))
async def delete_fleet(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[DeletedSlug]:
    """Delete a fleet that has no workers and no machines."""
    await context.engine.workers.fleets.delete(stage=stage, slug=slug)
    return Answer(data=DeletedSlug(slug=slug), message="Deleted.")


@router.put("/{stage}/{slug}/workflows", responses=error_responses(404, 409, 422))
async def map_workflows(
    stage: Stage, slug: SlugInPath, body: wire.FleetMapping, context: ContextOf
) -> Answer[wire.Fleet]:
    """Replace the workflows of the fleet; the assignments of its workers follow at once. A new workflow with missing
    requirements is refused with the list, unless `force` is true."""
    await context.engine.workers.fleets.map_workflows(
        stage=stage, slug=slug, workflow_slugs=body.workflow_slugs, force=body.force
    )
    return Answer(data=_body(await context.engine.workers.views.get(stage, slug)), message="Mapped.")


@router.get("/{stage}/{slug}/metrics", responses=error_responses(404, 422))
async def fleet_metrics(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[wire.FleetMetrics]:
    """Workers by state, leases, queues, and the results of the last hour for the fleet's workflows."""
    return Answer(data=await context.engine.workers.views.metrics(stage, slug))


def _check_provider(machines: FleetMachines | None, *, before: Mapping[str, Any] | None) -> None:
    """Known providers depend on the installed extras, and valid options on the provider."""
    if machines is None:
        return
    if machines.provider is not None and machines.provider not in (known := registry.names()):
        raise InvalidInput(errors={"machines.provider": f"There is no such provider. There are: {', '.join(known)}."})
    said = machines.model_dump(include={"provider", "options"}, exclude_unset=True)
    if said:
        spec = {**(before or {}), **said}
        options.check(str(spec.get("provider")), spec.get("options") or {})


def _body(view: FleetView) -> wire.Fleet:
    fleet = view.fleet
    return wire.Fleet.of(
        view,
        fleet,
        machines=None if fleet.machines is None else machines_to_json(fleet.machine_spec),
        autoscaling=None if fleet.autoscaling is None else scaling_to_json(fleet.scaling_spec),
    )
