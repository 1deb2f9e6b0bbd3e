"""`comfyrelay fleet provision`, `deprovision` and `user-data` manage the AWS resources of a fleet."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from comfyrelay.domain.queue.states import Stage
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from tests.support.aws_account import SECRET, Account
from tests.support.commands import CommandResult, run

PROFILE = "worker"


@pytest.fixture
async def environment(account: Account, tmp_path: Path) -> Mapping[str, str]:
    """Return the environment of a command on a server with fleets and an AWS account."""
    machines = {
        "provider": "aws",
        "image": "ami-0123456789abcdef0",
        "instance_types": [{"name": "g4dn.xlarge", "price_per_hour": 0.2}],
        "options": {"region": "eu-west-1", "subnets": account.subnets(), "instance_profile": PROFILE},
    }
    async with Engine(Settings(data_dir=tmp_path)) as engine:
        await engine.databases.upgrade()
        await engine.workers.fleets.create(
            slug="video", stage=Stage.STAGING, machines=machines, autoscaling={"max_machines": 4}
        )
        await engine.workers.fleets.create(slug="bare", stage=Stage.STAGING, machines={"provider": "aws"})
        await engine.workers.fleets.create(slug="attic", stage=Stage.STAGING, machines={"provider": "local"})
    account.proxy.calls.clear()
    return {
        **{name: value for name, value in os.environ.items() if name.startswith(("AWS_", "PATH"))},
        "COMFYRELAY_DATA_DIR": str(tmp_path),
        "COMFYRELAY_PUBLIC_URL": "https://relay.example.com",
        "COMFYRELAY_FLEET_SECRETS": f'{{"staging": ["{SECRET}"]}}',
        "COMFYRELAY_SIGNING_SECRETS": '["a-secret-to-sign-with"]',
        "COLUMNS": "300",
    }


async def fleet(environment: Mapping[str, str], *words: str) -> CommandResult:
    return await run("fleet", *words, env=environment)


@pytest.mark.journey
async def test_fleet_is_planned_provisioned_and_removed(account: Account, environment: Mapping[str, str]) -> None:
    account.proxy.quotas["L-3819A6DF"] = 8

    dry = await fleet(environment, "provision", "video", "--stage", "staging", "--dry-run")
    assert dry.code == 0, dry.err
    assert account.group("asg-staging-video") is None
    assert "make    Auto Scaling group asg-staging-video: 0 to 4 machines, Spot only, 3 subnets" in dry.out
    assert "Dry run: nothing was changed." in dry.err
    assert "(L-3819A6DF) is 8 vCPUs, enough for 2 of g4dn.xlarge; 4 machines of g4dn.xlarge need 16." in dry.err
    assert "autoscaling:SetDesiredCapacity" in dry.err
    assert "Permissions of the role of worker: ssm:GetParameter" in dry.err

    provisioned = await fleet(environment, "provision", "video", "--stage", "staging")
    assert provisioned.code == 0, provisioned.err
    assert provisioned.out == dry.out
    assert "done: make Auto Scaling group asg-staging-video" in provisioned.err
    assert account.group("asg-staging-video")["MaxSize"] == 4
    assert SECRET not in provisioned.out + provisioned.err

    again = await fleet(environment, "provision", "video", "--stage", "staging")
    assert again.code == 0
    assert {line.split()[0] for line in again.out.splitlines()} == {"keep"}
    assert "Nothing to do: all resources are up to date." in again.err

    account.client("autoscaling").set_desired_capacity(AutoScalingGroupName="asg-staging-video", DesiredCapacity=1)
    refused = await fleet(environment, "deprovision", "video", "--stage", "staging")
    assert refused.code == 2
    assert "asg-staging-video still has 1 machine. Run `comfyrelay fleet set video --stage staging" in refused.err
    assert account.group("asg-staging-video") is not None
    removed = await fleet(environment, "deprovision", "video", "--stage", "staging", "--force")
    assert "remove  Auto Scaling group asg-staging-video" in removed.out
    assert account.group("asg-staging-video") is None
    assert "Nothing to do" in (await fleet(environment, "deprovision", "video", "--stage", "staging")).err


async def test_flags_complete_the_options_of_the_fleet(account: Account, environment: Mapping[str, str]) -> None:
    refused = await fleet(environment, "provision", "bare", "--stage", "staging", "--region", "eu-west-1")
    assert refused.code == 2
    assert "Set the image (AMI)" in refused.err
    assert "options.subnets" in refused.err

    changed = await fleet(
        environment,
        *("provision", "video", "--stage", "staging", "--budget-usd", "100", "--budget-email", "ops@example.com"),
        *("--subnet", account.subnets()[0], "--cloudwatch-fallback"),
    )
    assert changed.code == 0, changed.err
    assert "make    budget comfyrelay-staging-video: alerts ops@example.com at 100.00 USD a month" in changed.out
    assert "set 3 subnets, not 1" in changed.err
    assert len(account.client("autoscaling").describe_policies()["ScalingPolicies"]) == 2


async def test_user_data_prints_the_boot_script(environment: Mapping[str, str]) -> None:
    printed = await fleet(environment, "user-data", "video", "--stage", "staging")

    assert printed.code == 0, printed.err
    assert printed.out.startswith("#!/bin/bash\n")
    assert 'API_BASE_URL="https://relay.example.com"\n' in printed.out
    assert printed.out.endswith("systemctl enable --now comfyrelay-worker.service\n")


async def test_loopback_server_url_is_refused(environment: Mapping[str, str]) -> None:
    refused = await fleet(
        {**environment, "COMFYRELAY_PUBLIC_URL": "http://127.0.0.1:8420"}, "user-data", "video", "--stage", "staging"
    )

    assert refused.code == 2
    assert "Instances cannot reach http://127.0.0.1:8420: set COMFYRELAY_PUBLIC_URL" in refused.err


async def test_missing_fleet_is_one_error_line(environment: Mapping[str, str]) -> None:
    refused = await fleet(environment, "provision", "video", "--stage", "production")
    assert (refused.code, refused.err) == (2, "Error: There is no production fleet 'video'.\n")


async def test_policies_are_printed_without_calling_aws(account: Account, environment: Mapping[str, str]) -> None:
    printed = await fleet(environment, "provision", "video", "--stage", "staging", "--permissions")

    assert printed.code == 0
    assert '"autoscaling:TerminateInstanceInAutoScalingGroup"' in printed.out
    assert "autoScalingGroupName/asg-staging-video" in printed.out
    assert account.proxy.calls == {}


@pytest.mark.parametrize("command", ["provision", "deprovision", "user-data"])
async def test_fleet_of_another_provider_is_refused_without_calling_aws(
    account: Account, environment: Mapping[str, str], command: str
) -> None:
    refused = await fleet(environment, command, "attic", "--stage", "staging")

    text = "Error: The fleet attic uses the provider local, but this command is for aws.\n"
    assert (refused.code, refused.err) == (2, text)
    assert account.proxy.calls == {}


async def test_alarms_use_the_namespace_of_the_metrics(account: Account, environment: Mapping[str, str]) -> None:
    done = await fleet(
        {**environment, "COMFYRELAY_CLOUDWATCH_NAMESPACE": "Studio"},
        *("provision", "video", "--stage", "staging", "--cloudwatch-fallback"),
    )

    assert done.code == 0, done.err
    [alarm] = account.client("cloudwatch").describe_alarms()["MetricAlarms"]
    metrics = [metric["MetricStat"]["Metric"] for metric in alarm["Metrics"] if "MetricStat" in metric]
    assert {metric["Namespace"] for metric in metrics} == {"Studio"}


async def test_missing_credentials_name_the_variables(environment: Mapping[str, str], tmp_path: Path) -> None:
    without = {name: value for name, value in environment.items() if not name.startswith("AWS_")}
    nowhere = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    refused = await fleet({**without, **nowhere}, "provision", "video", "--stage", "staging", "--dry-run")

    assert refused.code == 2
    assert "Set AWS_PROFILE, or" in refused.err


async def test_help_cuts_no_option_in_a_narrow_terminal(environment: Mapping[str, str]) -> None:
    shown = await fleet({**environment, "COLUMNS": "80"}, "provision", "--help")
    assert "--instance-profile" in shown.out
    assert "--cloudwatch-fallback" in shown.out
    assert "…" not in shown.out
