"""`comfyrelay fleet provision`, `deprovision` and `user-data`: a fleet as an Auto Scaling group."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from comfyrelay.cli.fleet.databases import with_databases
from comfyrelay.cli.options import FleetStage
from comfyrelay.cli.output import err, out, print_json, print_line, print_note
from comfyrelay.domain.autoscaling.spec import MachineProviderName
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import ConfigurationError, InvalidInput, NotFound
from comfyrelay.extras import require

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from comfyrelay.autoscaling.providers.base import ProviderFleet
    from comfyrelay.autoscaling.provisioning.blueprint import Blueprint
    from comfyrelay.autoscaling.provisioning.provision import Change, Provisioner
    from comfyrelay.domain.records.workers import FleetRecord
    from comfyrelay.services.engine import Engine


# Prefixes of the error codes for missing or invalid credentials.
INVALID_CREDENTIALS = ("AuthFailure", "ExpiredToken", "InvalidClientTokenId", "UnrecognizedClient")

FleetSlug = Annotated[str, typer.Argument(help="Slug of the fleet.")]
Region = Annotated[str | None, typer.Option(help="AWS region. Default: from the fleet's options, then AWS_REGION.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]
ApiBaseUrl = Annotated[
    str | None, typer.Option(help="URL at which instances reach the server. Default: COMFYRELAY_PUBLIC_URL.")
]


def provision(
    fleet: FleetSlug,
    stage: FleetStage = Stage.PRODUCTION,
    dry_run: DryRun = False,
    permissions: Annotated[
        bool, typer.Option("--permissions", help="Print the required IAM policies as JSON and exit.")
    ] = False,
    region: Region = None,
    image: Annotated[str | None, typer.Option(help="Image (AMI). Default: from the fleet.")] = None,
    subnet: Annotated[
        list[str] | None, typer.Option(help="Subnet. Default: from the fleet's options. Repeatable; use three zones.")
    ] = None,
    security_group: Annotated[
        list[str] | None, typer.Option(help="Security group. Default: from the fleet's options. Repeatable.")
    ] = None,
    instance_profile: Annotated[
        str | None, typer.Option(help="Name or ARN of the instance profile. Default: from the fleet's options.")
    ] = None,
    key_name: Annotated[str | None, typer.Option(help="Key pair for SSH.")] = None,
    api_base_url: ApiBaseUrl = None,
    budget_usd: Annotated[
        float | None, typer.Option(metavar="USD", help="Monthly budget in dollars.", min=0.01)
    ] = None,
    budget_email: Annotated[str | None, typer.Option(help="Address for budget alerts.")] = None,
    cloudwatch_fallback: Annotated[
        bool,
        typer.Option(
            "--cloudwatch-fallback",
            help="Let CloudWatch launch machines, but never terminate them, while no autoscaling loop runs.",
        ),
    ] = False,
) -> None:
    """Create or update the AWS resources of a fleet: a group of Spot instances that starts empty.

    The command creates the launch template, Auto Scaling group, lifecycle hook, secret in Parameter Store and budget,
    and checks the account's Spot quota. Run it again after each change: it only changes resources that differ.
    """
    if permissions:
        from comfyrelay.autoscaling.providers.aws.names import Names
        from comfyrelay.autoscaling.provisioning.permissions import permissions as policies
        from comfyrelay.settings import load_settings

        namespace = load_settings().cloudwatch_namespace
        print_json(policies(Names(fleet, str(stage)), namespace=namespace))
        return
    require("server")
    require("aws")
    flags = _flags(
        region=region,
        subnets=subnet,
        security_groups=security_group,
        instance_profile=instance_profile,
        key_name=key_name,
        api_base_url=api_base_url,
        budget_usd_per_month=budget_usd,
        budget_email=budget_email,
        cloudwatch_fallback=cloudwatch_fallback or None,
    )
    found = _fleet(fleet, stage, image=image)
    asyncio.run(_provision(found, stage, flags, is_dry=dry_run))


def deprovision(
    fleet: FleetSlug,
    stage: FleetStage = Stage.PRODUCTION,
    dry_run: DryRun = False,
    force: Annotated[bool, typer.Option("--force", help="Also terminate the machines.")] = False,
    region: Region = None,
) -> None:
    """Remove the AWS resources of a fleet. The fleet, its workflows and its jobs are kept."""
    require("server")
    require("aws")
    asyncio.run(_deprovision(_fleet(fleet, stage), _flags(region=region), force=force, is_dry=dry_run))


def user_data(
    fleet: FleetSlug, stage: FleetStage = Stage.PRODUCTION, region: Region = None, api_base_url: ApiBaseUrl = None
) -> None:
    """Print the boot script of the fleet's instances."""
    require("server")
    from comfyrelay.autoscaling.providers.aws.names import Names
    from comfyrelay.autoscaling.provisioning.options import read_options
    from comfyrelay.autoscaling.provisioning.user_data import user_data as script

    found = _fleet(fleet, stage)
    options = read_options(found.spec.options, _flags(region=region, api_base_url=api_base_url))
    names = Names(fleet, str(stage))
    text = script(names, options, region=_region(options.region), api_base_url=_server_url(options.api_base_url))
    out.print(text, end="", markup=False, soft_wrap=True)


async def _provision(fleet: ProviderFleet, stage: Stage, flags: Mapping[str, Any], *, is_dry: bool) -> None:
    from comfyrelay.autoscaling.provisioning.options import RECOMMENDED_SUBNETS
    from comfyrelay.autoscaling.provisioning.permissions import actions, permissions
    from comfyrelay.autoscaling.provisioning.provision import Action
    from comfyrelay.autoscaling.provisioning.quotas import check_quotas
    from comfyrelay.server.http.secrets import load_secrets
    from comfyrelay.settings import load_settings

    blueprint = _blueprint(fleet, flags)
    settings = load_settings()
    secrets = load_secrets(settings).fleet.get(str(stage), ())
    if not secrets:
        raise ConfigurationError(f"No fleet secret for {stage}: add one to COMFYRELAY_FLEET_SECRETS.")
    async with _provisioner(blueprint.region) as (provisioner, aws):
        changes = await provisioner.plan(blueprint, secret=secrets[0])
        _print_plan(changes)
        subnets = blueprint.group["VPCZoneIdentifier"].split(",")
        if len(subnets) < RECOMMENDED_SUBNETS:
            _warn(
                f"Spot capacity is easier to find in {RECOMMENDED_SUBNETS} zones: "
                f"set {RECOMMENDED_SUBNETS} subnets, not {len(subnets)}."
            )
        if blueprint.budget is None:
            _warn("No budget is set, so AWS sends no cost alerts. Set --budget-usd and --budget-email.")
        for quota in await check_quotas(aws, fleet):
            (print_note if quota.is_enough else _warn)(quota.text)
        needed = permissions(blueprint.names, namespace=settings.cloudwatch_namespace)
        print_note(f"Permissions of the control plane: {', '.join(actions(needed['control_plane']))}.")
        print_note(f"Permissions of the role of {_profile(blueprint)}: {', '.join(actions(needed['instance']))}.")
        print_note("Print them as IAM policies, with the permissions of this command: --permissions.")
        await _apply(changes, is_dry=is_dry)
        if not is_dry and any(change.action is Action.MAKE for change in changes):
            print_note("The fleet has no machines. `comfyrelay fleet run` launches them when jobs wait.")


async def _deprovision(found: ProviderFleet, flags: Mapping[str, Any], *, force: bool, is_dry: bool) -> None:
    from comfyrelay.autoscaling.providers.aws.names import Names
    from comfyrelay.autoscaling.provisioning.options import read_options

    region = _region(read_options(found.spec.options, flags).region)
    async with _provisioner(region) as (provisioner, _aws):
        changes = await provisioner.plan_removal(Names(found.slug, found.stage), force=force)
        _print_plan(changes)
        await _apply(changes, is_dry=is_dry)


async def _apply(changes: Sequence[Change], *, is_dry: bool) -> None:
    from comfyrelay.autoscaling.provisioning.provision import apply

    if all(change.run is None for change in changes):
        print_note("Nothing to do: all resources are up to date.")
        return
    if is_dry:
        print_note("Dry run: nothing was changed.")
        return
    await apply(changes, on_done=lambda change: print_note(f"done: {change.action} {change.resource}"))


def _profile(blueprint: Blueprint) -> str:
    """Return the name or ARN of the instance profile."""
    return next(iter(blueprint.launch_template["IamInstanceProfile"].values()), "")


@asynccontextmanager
async def _provisioner(region: str) -> AsyncIterator[tuple[Provisioner, Any]]:
    from comfyrelay.autoscaling.providers.aws.access import Aws, AwsError
    from comfyrelay.autoscaling.provisioning.provision import BUDGETS_REGION, Provisioner

    aws, budgets = Aws(region), Aws(BUDGETS_REGION)
    try:
        yield Provisioner(aws, budgets=budgets), aws
    except AwsError as error:
        if "credential" not in str(error).lower() and not error.aws_code.startswith(INVALID_CREDENTIALS):
            raise
        raise ConfigurationError(f"{error} Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.") from None
    finally:
        await aws.close()
        await budgets.close()


def _fleet(slug: str, stage: Stage, *, image: str | None = None) -> ProviderFleet:
    from dataclasses import replace

    from comfyrelay.autoscaling.providers.base import ProviderFleet

    async def work(engine: Engine) -> Sequence[FleetRecord]:
        return await engine.autoscaling.snapshots.fleets()

    for record in with_databases(work):
        if (record.slug, record.stage) == (slug, str(stage)):
            spec = record.machine_spec
            if spec.provider != MachineProviderName.AWS:
                raise InvalidInput(f"The fleet {slug} uses the provider {spec.provider}, but this command is for aws.")
            return ProviderFleet(
                slug=slug,
                stage=str(stage),
                spec=replace(spec, image=image) if image else spec,
                max_machines=record.scaling_spec.limits.max_machines,
            )
    raise NotFound(f"There is no {stage} fleet {slug!r}.")


def _blueprint(fleet: ProviderFleet, flags: Mapping[str, Any]) -> Blueprint:
    from comfyrelay.autoscaling.provisioning.blueprint import build_blueprint
    from comfyrelay.autoscaling.provisioning.options import read_options
    from comfyrelay.settings import load_settings

    options = read_options(fleet.spec.options, flags)
    return build_blueprint(
        fleet,
        options,
        region=_region(options.region),
        api_base_url=_server_url(options.api_base_url),
        namespace=load_settings().cloudwatch_namespace,
    )


def _region(option: str | None) -> str:
    region = option or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise ConfigurationError("No AWS region: set `region` in the fleet's options, or AWS_REGION.")
    return region


def _server_url(option: str | None) -> str:
    from urllib.parse import urlsplit

    from comfyrelay.http_client import is_loopback
    from comfyrelay.settings import load_settings

    url = option or load_settings().base_url
    if is_loopback(urlsplit(url).hostname or ""):
        raise InvalidInput(
            f"Instances cannot reach {url}: set COMFYRELAY_PUBLIC_URL, or api_base_url in the fleet's options."
        )
    return url


def _flags(**given: Any) -> dict[str, Any]:
    """Return the given flags. Typer passes an empty list for a repeatable flag that is not given."""
    return {name: value for name, value in given.items() if value is not None and value != []}


def _print_plan(changes: Sequence[Change]) -> None:
    for change in changes:
        detail = f": {change.detail}" if change.detail else ""
        print_line(f"{change.action:<7} {change.resource}{detail}")


def _warn(text: str) -> None:
    err.print(f"[yellow]Warning[/yellow]: {escape(text)}", soft_wrap=True)
