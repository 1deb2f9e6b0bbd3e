"""`comfyrelay fleet provision`, `deprovision` and `user-data`: a fleet as an Auto Scaling group."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from comfyrelay.cli.fleet.databases import HERE, with_databases
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

aws_app = typer.Typer()
out = Console()
err = Console(stderr=True)

# How AWS says that it does not know who asks; services differ.
UNKNOWN_CALLER = ("AuthFailure", "ExpiredToken", "InvalidClientTokenId", "UnrecognizedClient")

FleetSlug = Annotated[str, typer.Argument(help="The slug of the fleet.")]
FleetStage = Annotated[
    Stage, typer.Option("--stage", metavar="STAGE", help="The stage of the fleet: staging or production.")
]
Region = Annotated[
    str | None, typer.Option(help="The region of AWS; if not given, that of the fleet's options, or of AWS_REGION.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
Image = Annotated[str | None, typer.Option(help="The image (AMI); if not given, that of the fleet.")]
Subnet = Annotated[
    list[str] | None, typer.Option(help="A subnet; if not given, those of the fleet's options. Repeat for three zones.")
]
SecurityGroup = Annotated[
    list[str] | None, typer.Option(help="A security group; if not given, those of the fleet's options. Repeatable.")
]
InstanceProfile = Annotated[
    str | None, typer.Option(help="The instance profile, by name or ARN; if not given, that of the fleet's options.")
]
KeyName = Annotated[str | None, typer.Option(help="A key pair, to sign in to instances with.")]
ApiBaseUrl = Annotated[
    str | None, typer.Option(help="How instances reach the server; if not given, by COMFYRELAY_PUBLIC_URL.")
]
BudgetUsd = Annotated[
    float | None, typer.Option(metavar="USD", help="Dollars per month at which an alert is sent.", min=0.01)
]
BudgetEmail = Annotated[str | None, typer.Option(help="Who gets that alert.")]
Fallback = Annotated[
    bool,
    typer.Option(
        "--cloudwatch-fallback", help="Let CloudWatch launch machines, and never end them, when no scaling loop runs."
    ),
]


@aws_app.command(epilog=HERE)
def provision(
    fleet: FleetSlug,
    stage: FleetStage = Stage.PRODUCTION,
    dry_run: DryRun = False,
    permissions: Annotated[
        bool, typer.Option("--permissions", help="Print the IAM policies that it takes, as JSON, and do nothing.")
    ] = False,
    region: Region = None,
    image: Image = None,
    subnet: Subnet = None,
    security_group: SecurityGroup = None,
    instance_profile: InstanceProfile = None,
    key_name: KeyName = None,
    api_base_url: ApiBaseUrl = None,
    budget_usd: BudgetUsd = None,
    budget_email: BudgetEmail = None,
    cloudwatch_fallback: Fallback = False,
) -> None:
    """Make what a fleet needs at AWS, or change what differs: a group of Spot instances that begins with none.

    Launch template, Auto Scaling group, lifecycle hook, the fleet's secret
    in Parameter Store, a budget; and a check of the account's Spot quota.
    Run it again after a change: what is as it should be is left alone.
    """
    if permissions:
        from comfyrelay.autoscaling.providers.aws.names import Names
        from comfyrelay.autoscaling.provisioning.permissions import permissions as policies
        from comfyrelay.settings import load_settings

        namespace = load_settings().cloudwatch_namespace
        out.print_json(json.dumps(policies(Names(fleet, str(stage)), namespace=namespace)))
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


@aws_app.command(epilog=HERE)
def deprovision(
    fleet: FleetSlug,
    stage: FleetStage = Stage.PRODUCTION,
    dry_run: DryRun = False,
    force: Annotated[bool, typer.Option("--force", help="Also while it has machines: they end.")] = False,
    region: Region = None,
) -> None:
    """Remove what `provision` has made at AWS. The fleet itself, its workflows and its jobs stay."""
    require("server")
    require("aws")
    asyncio.run(_deprovision(_fleet(fleet, stage), _flags(region=region), force=force, is_dry=dry_run))


@aws_app.command("user-data", epilog=HERE)
def user_data(
    fleet: FleetSlug, stage: FleetStage = Stage.PRODUCTION, region: Region = None, api_base_url: ApiBaseUrl = None
) -> None:
    """Print the script that an instance of the fleet runs when it comes up."""
    require("server")
    from comfyrelay.autoscaling.providers.aws.names import Names
    from comfyrelay.autoscaling.provisioning.options import read_options
    from comfyrelay.autoscaling.provisioning.user_data import user_data as script

    found = _fleet(fleet, stage)
    options = read_options(found.spec.options, _flags(region=region, api_base_url=api_base_url))
    names = Names(fleet, str(stage))
    text = script(names, options, region=_region(options.region), api_base_url=_server(options.api_base_url))
    out.print(text, end="", highlight=False, markup=False, soft_wrap=True)


async def _provision(fleet: ProviderFleet, stage: Stage, flags: Mapping[str, Any], *, is_dry: bool) -> None:
    from comfyrelay.autoscaling.provisioning.options import SUBNETS
    from comfyrelay.autoscaling.provisioning.permissions import actions, permissions
    from comfyrelay.autoscaling.provisioning.provision import Action
    from comfyrelay.autoscaling.provisioning.quotas import check_quotas
    from comfyrelay.server.http.secrets import load_secrets
    from comfyrelay.settings import load_settings

    blueprint = _drawn(fleet, flags)
    settings = load_settings()
    secrets = load_secrets(settings).fleet.get(str(stage), ())
    if not secrets:
        raise ConfigurationError(f"There is no fleet secret for {stage}: add one to COMFYRELAY_FLEET_SECRETS.")
    async with _provisioner(blueprint.region) as (provisioner, aws):
        changes = await provisioner.plan(blueprint, secret=secrets[0])
        _print_plan(changes)
        subnets = blueprint.group["VPCZoneIdentifier"].split(",")
        if len(subnets) < SUBNETS:
            _warn(f"Spot is found more often in {SUBNETS} zones: name {SUBNETS} subnets, not {len(subnets)}.")
        if blueprint.budget is None:
            _warn("No budget is set: nobody is alerted to what it costs. Set --budget-usd and --budget-email.")
        for quota in await check_quotas(aws, fleet):
            (_print_note if quota.is_enough else _warn)(quota.text)
        needed = permissions(blueprint.names, namespace=settings.cloudwatch_namespace)
        _print_note(f"The control plane must be allowed to: {', '.join(actions(needed['control_plane']))}.")
        _print_note(f"The role of {_profile(blueprint)} must be allowed to: {', '.join(actions(needed['instance']))}.")
        _print_note("As IAM policies, with those of who runs this: --permissions.")
        await _carry_out(changes, is_dry=is_dry)
        if not is_dry and any(each.action is Action.MAKE for each in changes):
            _print_note(
                "The fleet is at zero. The scaling loop launches machines when jobs wait: comfyrelay fleet run."
            )


async def _deprovision(found: ProviderFleet, flags: Mapping[str, Any], *, force: bool, is_dry: bool) -> None:
    from comfyrelay.autoscaling.providers.aws.names import Names
    from comfyrelay.autoscaling.provisioning.options import read_options

    region = _region(read_options(found.spec.options, flags).region)
    async with _provisioner(region) as (provisioner, _aws):
        changes = await provisioner.removal(Names(found.slug, found.stage), force=force)
        _print_plan(changes)
        await _carry_out(changes, is_dry=is_dry)


async def _carry_out(changes: Sequence[Change], *, is_dry: bool) -> None:
    from comfyrelay.autoscaling.provisioning.provision import apply

    todo = sum(each.do is not None for each in changes)
    if not todo:
        _print_note("Nothing to do: everything is as it should be.")
        return
    if is_dry:
        _print_note("Nothing was done: this was a dry run.")
        return
    await apply(changes, on_done=lambda each: _print_note(f"done: {each.action} {each.what}"))


def _profile(blueprint: Blueprint) -> str:
    """The instance profile, as it was named."""
    return next(iter(blueprint.launch_template["IamInstanceProfile"].values()), "")


@asynccontextmanager
async def _provisioner(region: str) -> AsyncIterator[tuple[Provisioner, Any]]:
    from comfyrelay.autoscaling.providers.aws.access import Aws, AwsError
    from comfyrelay.autoscaling.provisioning.provision import BUDGETS_REGION, Provisioner

    aws, budgets = Aws(region), Aws(BUDGETS_REGION)
    try:
        yield Provisioner(aws, budgets=budgets), aws
    except AwsError as error:
        if "credential" not in str(error).lower() and not error.aws_code.startswith(UNKNOWN_CALLER):
            raise
        raise ConfigurationError(f"{error} Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.") from None
    finally:
        await aws.close()
        await budgets.close()


def _fleet(slug: str, stage: Stage, *, image: str | None = None) -> ProviderFleet:
    from dataclasses import replace

    from comfyrelay.autoscaling.providers.base import ProviderFleet

    async def work(engine: Engine) -> Sequence[FleetRecord]:
        return await engine.scaling.snapshots.fleets()

    for each in with_databases(work):
        if (each.slug, each.stage) == (slug, str(stage)):
            spec = each.machine_spec
            if spec.provider != MachineProviderName.AWS:
                raise InvalidInput(f"The fleet {slug} uses the provider {spec.provider}; this command is for aws.")
            return ProviderFleet(
                slug=slug,
                stage=str(stage),
                spec=replace(spec, image=image) if image else spec,
                max_machines=each.scaling_spec.limits.max_machines,
            )
    raise NotFound(f"There is no {stage} fleet {slug!r}.")


def _drawn(fleet: ProviderFleet, flags: Mapping[str, Any]) -> Blueprint:
    from comfyrelay.autoscaling.provisioning.blueprint import draw
    from comfyrelay.autoscaling.provisioning.options import read_options
    from comfyrelay.settings import load_settings

    options = read_options(fleet.spec.options, flags)
    return draw(
        fleet,
        options,
        region=_region(options.region),
        api_base_url=_server(options.api_base_url),
        namespace=load_settings().cloudwatch_namespace,
    )


def _region(said: str | None) -> str:
    found = said or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not found:
        raise ConfigurationError("In which region? Write `region` into the fleet's options, or set AWS_REGION.")
    return found


def _server(said: str | None) -> str:
    from urllib.parse import urlsplit

    from comfyrelay.http_client import is_loopback
    from comfyrelay.settings import load_settings

    found = said or load_settings().base_url
    if is_loopback(urlsplit(found).hostname or ""):
        text = f"No instance can reach {found}: set COMFYRELAY_PUBLIC_URL, or api_base_url of the fleet's options."
        raise InvalidInput(text)
    return found


def _flags(**given: Any) -> dict[str, Any]:
    """Those that were given: an empty list is how the command line says that there was none."""
    return {name: value for name, value in given.items() if value is not None and value != []}


def _print_plan(changes: Sequence[Change]) -> None:
    for each in changes:
        why = f": {each.why}" if each.why else ""
        out.print(f"{each.action:<7} {each.what}{why}", highlight=False, markup=False, soft_wrap=True)


def _print_note(text: str) -> None:
    err.print(text, highlight=False, markup=False, soft_wrap=True)


def _warn(text: str) -> None:
    err.print("[yellow]Warning[/yellow]:", text, highlight=False, soft_wrap=True)
