"""Fleets: their workflows, metrics, and the command that adds machines."""

import shlex
from collections.abc import Mapping
from typing import Any

from comfyrelay.autoscaling import options
from comfyrelay.autoscaling.providers import registry
from comfyrelay.domain.autoscaling.spec_json import machines_to_json, scaling_to_json
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import Conflict, InvalidInput
from comfyrelay.protocol.admin import fleets as wire
from comfyrelay.protocol.admin.autoscaling import FleetMachines
from comfyrelay.protocol.admin.fields import DeletedSlug
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Limit, NumberCursor, SlugInPath, page_of
from comfyrelay.services.workers.views import FleetView

router = admin_router("/fleets")
COMFYUI_URL = "http://127.0.0.1:8188"
# Installs from a clone, because there is no release yet. Workers need no web app, and therefore no Node.js to build it.
INSTALL = "COMFYRELAY_WITHOUT_UI=1 pip install ."
POWERSHELL_INSTALL = "$env:COMFYRELAY_WITHOUT_UI='1'; pip install ."


@router.get("", responses=error_responses(422))
async def list_fleets(
    context: ContextOf, stage: Stage | None = None, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.Fleet]]:
    page = await context.engine.workers.views.page(stage=stage, cursor=cursor, limit=limit)
    return page_of(page, fleet_body)


@router.post("", status_code=201, responses=error_responses(409, 422))
async def create_fleet(body: wire.NewFleet, context: ContextOf) -> Answer[wire.Fleet]:
    """Create a fleet. Workers join it with its stage, its slug and the secret of the stage."""
    check_machines(body.machines, before=None)
    await context.engine.workers.fleets.create(**body.model_dump(exclude_unset=True))
    return await _fleet(context, body.stage, body.slug, "Created.")


@router.get("/{stage}/{slug}", responses=error_responses(404, 422))
async def get_fleet(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[wire.Fleet]:
    return await _fleet(context, stage, slug, "OK")


@router.patch("/{stage}/{slug}", responses=error_responses(404, 422))
async def change_fleet(stage: Stage, slug: SlugInPath, body: wire.FleetPatch, context: ContextOf) -> Answer[wire.Fleet]:
    """Change the given fields, including those inside `machines` and `autoscaling`; null restores the default. No
    worker is deregistered."""
    if body.machines is not None:
        before = (await context.engine.workers.views.get(stage, slug)).fleet.machines
        check_machines(body.machines, before=before)
    await context.engine.workers.fleets.change(stage=stage, slug=slug, changes=body.changes())
    return await _fleet(context, stage, slug, "Changed.")


@router.delete("/{stage}/{slug}", responses=error_responses(404, 409, 422))
async def delete_fleet(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[DeletedSlug]:
    """Delete a fleet that has no workers and no machines."""
    await context.engine.workers.fleets.delete(stage=stage, slug=slug)
    return Answer(data=DeletedSlug(slug=slug), message="Deleted.")


@router.put("/{stage}/{slug}/workflows", responses=error_responses(404, 409, 422))
async def map_workflows(
    stage: Stage, slug: SlugInPath, body: wire.FleetMapping, context: ContextOf
) -> Answer[wire.Fleet]:
    """Replace the workflows of the fleet and of its workers, except users' own workflows. Unless `force` is true, a new
    workflow with missing requirements is refused, and the response lists them."""
    await context.engine.workers.fleets.map_workflows(
        stage=stage, slug=slug, workflow_slugs=body.workflow_slugs, force=body.force
    )
    return await _fleet(context, stage, slug, "Mapped.")


@router.get("/{stage}/{slug}/metrics", responses=error_responses(404, 422))
async def fleet_metrics(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[wire.FleetMetrics]:
    """Get the workers by state, leases, queues and results of the last hour for the fleet's workflows."""
    return Answer(data=await context.engine.workers.views.metrics(stage, slug))


@router.get("/{stage}/{slug}/join-command", responses=error_responses(404, 409, 422))
async def join_command(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[wire.JoinCommand]:
    """Get the command that starts a worker of this fleet on a machine with ComfyUI. It contains the secret of the
    stage."""
    fleet = (await context.engine.workers.views.get(stage, slug)).fleet
    secrets = context.secrets.fleet.get(stage)
    if not secrets:
        raise Conflict(f"This server has no secret for the stage {stage}. Set COMFYRELAY_FLEET_SECRETS.")
    variables = {
        "API_BASE_URL": context.settings.base_url,
        "FLEET_SECRET": secrets[0],
        "FLEET_STAGE": str(stage),
        "FLEET_SLUG": fleet.slug,
        "COMFYUI_BASE_URL": COMFYUI_URL,
    }
    command = " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), "comfyrelay worker"])
    assignments = [f"$env:{name}={_quote_powershell(value)}" for name, value in variables.items()]
    powershell = "; ".join([*assignments, "comfyrelay worker"])
    found = wire.JoinCommand(
        install=INSTALL,
        powershell_install=POWERSHELL_INSTALL,
        command=command,
        powershell=powershell,
        variables=variables,
    )
    return Answer(data=found)


def _quote_powershell(value: str) -> str:
    """Quote a literal: single quotes prevent expansion, and quotes inside it, including curly ones, are doubled."""
    quotes = str.maketrans({quote: quote * 2 for quote in "'\u2018\u2019\u201a\u201b"})
    return f"'{value.translate(quotes)}'"


def check_machines(machines: FleetMachines | None, *, before: Mapping[str, Any] | None) -> None:
    """Check provider and options here: known providers depend on the installed extras."""
    if machines is None:
        return
    if machines.provider is not None and machines.provider not in (known := registry.names()):
        raise InvalidInput(errors={"machines.provider": f"Unknown provider. Known providers: {', '.join(known)}."})
    changes = machines.model_dump(include={"provider", "options"}, exclude_unset=True)
    if changes:
        spec = {**(before or {}), **changes}
        options.check(str(spec.get("provider")), spec.get("options") or {})


async def _fleet(context: Context, stage: Stage, slug: str, message: str) -> Answer[wire.Fleet]:
    return Answer(data=fleet_body(await context.engine.workers.views.get(stage, slug)), message=message)


def fleet_body(view: FleetView) -> wire.Fleet:
    fleet = view.fleet
    return wire.Fleet.of(
        view,
        fleet,
        machines=None if fleet.machines is None else machines_to_json(fleet.machine_spec),
        autoscaling=None if fleet.autoscaling is None else scaling_to_json(fleet.scaling_spec),
    )
