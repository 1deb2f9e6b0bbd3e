"""`comfyrelay fleet create` and `comfyrelay fleet set`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comfyrelay.cli.fleet.operations import FleetOperations, ServerUrl, operate
from comfyrelay.cli.options import FleetStage, Json, parse_assignment
from comfyrelay.cli.output import print_json, print_line
from comfyrelay.domain.autoscaling.spec import Policy
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import InvalidInput

if TYPE_CHECKING:
    from comfyrelay.protocol.admin.fleets import Fleet

Slug = Annotated[str, typer.Argument(metavar="FLEET", help="Slug of the fleet.")]
Name = Annotated[str | None, typer.Option(help="Name in the web app.")]
MaxWorkers = Annotated[int | None, typer.Option(min=0, help="Maximum number of workers.")]
Provider = Annotated[
    str | None, typer.Option(help="Provider that launches its machines: static, local, command, aws or kubernetes.")
]
PolicyName = Annotated[
    Policy | None, typer.Option(metavar="POLICY", help="Policy: cheap, balanced, fast or reference.")
]
MinMachines = Annotated[int | None, typer.Option(min=0, help="Minimum number of machines.")]
MaxMachines = Annotated[int | None, typer.Option(min=0, help="Maximum number of machines.")]
CostPerHour = Annotated[float | None, typer.Option(min=0, help="Maximum cost of its machines per hour.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Any other field of the admin API, such as machines.slots=2 or machines.options.comfyui=simulator. "
        "null restores the default. Repeatable.",
    ),
]


def create(
    fleet: Slug,
    stage: FleetStage = Stage.PRODUCTION,
    name: Name = None,
    max_workers: MaxWorkers = None,
    workflow: Annotated[
        list[str] | None, typer.Option(help="Slug of a workflow that the fleet runs. Repeatable.")
    ] = None,
    provider: Provider = None,
    policy: PolicyName = None,
    min_machines: MinMachines = None,
    max_machines: MaxMachines = None,
    cost_per_hour: CostPerHour = None,
    settings: Settings = None,
    url: ServerUrl = None,
    as_json: Json = False,
) -> None:
    """Create a fleet."""
    fields = _fields(
        settings,
        name=name,
        max_workers=max_workers,
        machines={"provider": provider},
        autoscaling=_autoscaling(policy, min_machines, max_machines, cost_per_hour),
    )
    fields |= {"slug": fleet, "stage": str(stage), **({"workflow_slugs": workflow} if workflow else {})}
    _print(operate(url, lambda fleets: fleets.create(fields)), "created", as_json=as_json)


def change(
    fleet: Slug,
    stage: FleetStage = Stage.PRODUCTION,
    name: Name = None,
    max_workers: MaxWorkers = None,
    workflow: Annotated[
        list[str] | None,
        typer.Option(help="Slug of a workflow that the fleet runs, instead of the current ones. Repeatable."),
    ] = None,
    provider: Provider = None,
    policy: PolicyName = None,
    min_machines: MinMachines = None,
    max_machines: MaxMachines = None,
    cost_per_hour: CostPerHour = None,
    settings: Settings = None,
    url: ServerUrl = None,
    as_json: Json = False,
) -> None:
    """Change the given settings of a fleet."""
    fields = _fields(
        settings,
        name=name,
        max_workers=max_workers,
        machines={"provider": provider},
        autoscaling=_autoscaling(policy, min_machines, max_machines, cost_per_hour),
    )
    if not fields and not workflow:
        raise InvalidInput("Nothing to change. Give at least one setting, such as --max-machines 4.")

    async def work(fleets: FleetOperations) -> Fleet:
        found = await fleets.get(stage, fleet)
        if fields:
            found = await fleets.change(stage, fleet, _with_present_options(fields, found))
        return await fleets.map_workflows(stage, fleet, workflow) if workflow else found

    _print(operate(url, work), "changed", as_json=as_json)


def _autoscaling(
    policy: Policy | None, min_machines: int | None, max_machines: int | None, cost_per_hour: float | None
) -> dict[str, Any]:
    return {
        "policy": None if policy is None else str(policy),
        "min_machines": min_machines,
        "max_machines": max_machines,
        "cost_per_hour": cost_per_hour,
    }


def _fields(settings: Sequence[str] | None, **given: Any) -> dict[str, Any]:
    """Return the fields of a request: the given options, and the assignments of `--set`."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        found = _without_none(value) or None if isinstance(value, Mapping) else value
        if found is not None:
            fields[name] = found
    for text in settings or ():
        path, value = parse_assignment(text, form="FIELD=VALUE")
        _assign(fields, path.split("."), value, text)
    return fields


def _assign(fields: dict[str, Any], names: Sequence[str], value: Any, text: str) -> None:
    *parents, last = names
    for name in parents:
        fields = fields.setdefault(name, {})
        if not isinstance(fields, dict):
            raise InvalidInput(f"{text!r} sets a part of {name}, which has another value here.")
    fields[last] = value


def _with_present_options(fields: Mapping[str, Any], present: Fleet) -> Mapping[str, Any]:
    """Add the provider's other options, which the request would otherwise remove."""
    options = (fields.get("machines") or {}).get("options")
    if not options or present.machines is None or "provider" in fields["machines"]:
        return fields
    merged = {**present.machines.options, **options}
    return {**fields, "machines": {**fields["machines"], "options": _without_none(merged)}}


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _print(fleet: Fleet, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json(fleet.model_dump(mode="json"))
    else:
        print_line(f"{fleet.slug} ({fleet.stage}): {done}")
