"""The AWS resources of a fleet are created, updated and removed."""

import base64
import json
from typing import Any

import pytest

from comfyrelay.autoscaling.providers.aws import AwsProvider
from comfyrelay.autoscaling.providers.aws.access import Aws
from comfyrelay.autoscaling.providers.aws.names import Names
from comfyrelay.autoscaling.providers.base import MachineOrder
from comfyrelay.autoscaling.provisioning.options import read_options
from comfyrelay.autoscaling.provisioning.permissions import actions, permissions
from comfyrelay.autoscaling.provisioning.provision import Action, Provisioner, apply
from comfyrelay.autoscaling.provisioning.quotas import check_quotas
from comfyrelay.errors import Conflict, InvalidInput
from tests.support.aws_account import ACCOUNT, SECRET, TYPES, Account, blueprint_of, planned, provisioned

ALL_OPTIONS: dict[str, Any] = {
    "budget_usd_per_month": 250,
    "budget_email": "ops@example.com",
    "cloudwatch_fallback": True,
}
CHANGED_OPTIONS: dict[str, Any] = {
    "security_groups": ["sg-0123"],
    "key_name": "ops",
    "volume_gib": 200,
    "budget_usd_per_month": 300,
    "budget_email": "other@example.com",
    "api_base_url": "https://elsewhere.example.com",
}


def real_changes(changes: list[tuple[Action, str]]) -> list[tuple[Action, str]]:
    return [change for change in changes if change[0] is not Action.KEEP]


async def test_second_run_changes_nothing(account: Account) -> None:
    fleet = account.fleet(**ALL_OPTIONS)

    first, second = await provisioned(fleet), await provisioned(fleet)

    assert [resource for action, resource in first if action is Action.MAKE] == [
        "parameter /comfyrelay/production/video/fleet-secret",
        "launch template lt-production-video",
        "Auto Scaling group asg-production-video",
        "lifecycle hook comfyrelay-drain of asg-production-video",
        "scaling policy and alarm asg-production-video-from-zero",
        "scaling policy asg-production-video-backlog",
        "budget comfyrelay-production-video",
    ]
    assert real_changes(second) == []
    assert [resource for _, resource in second] == [resource for _, resource in first]


async def test_plan_changes_nothing(account: Account) -> None:
    account.proxy.calls.clear()

    changes = await planned(account.fleet(**ALL_OPTIONS))

    assert {call for call in account.proxy.calls if not call.startswith(("Describe", "Get"))} == set()
    assert account.group("asg-production-video") is None
    # The plan is printed, so it must not contain the secret.
    assert all(SECRET not in f"{change.resource} {change.detail}" for change in changes)
    assert SECRET not in blueprint_of(account.fleet()).script


async def test_changed_option_updates_only_its_resource(account: Account) -> None:
    options = ALL_OPTIONS
    await provisioned(account.fleet(**options))
    for name, value in CHANGED_OPTIONS.items():
        options = {**options, name: value}

        changed = real_changes(await provisioned(account.fleet(**options)))

        part = "budget" if name.startswith("budget") else "launch template"
        assert [(action, resource.startswith(part)) for action, resource in changed] == [(Action.CHANGE, True)], name
        assert real_changes(await provisioned(account.fleet(**options))) == [], name


async def test_manual_changes_are_reverted_and_machines_stay(account: Account) -> None:
    fleet = account.fleet()
    await provisioned(fleet)
    scaling = account.client("autoscaling")
    scaling.set_desired_capacity(AutoScalingGroupName="asg-production-video", DesiredCapacity=2)
    scaling.update_auto_scaling_group(AutoScalingGroupName="asg-production-video", MaxSize=3, DefaultInstanceWarmup=5)
    scaling.delete_lifecycle_hook(AutoScalingGroupName="asg-production-video", LifecycleHookName="comfyrelay-drain")
    scaling.resume_processes(AutoScalingGroupName="asg-production-video", ScalingProcesses=["AZRebalance"])

    changed = real_changes(await provisioned(fleet))

    assert changed == [
        (Action.CHANGE, "Auto Scaling group asg-production-video"),
        (Action.CHANGE, "process AZRebalance of asg-production-video"),
        (Action.MAKE, "lifecycle hook comfyrelay-drain of asg-production-video"),
    ]
    group = account.group("asg-production-video")
    assert [process["ProcessName"] for process in group["SuspendedProcesses"]] == ["AZRebalance"]
    assert (group["MaxSize"], group["DefaultInstanceWarmup"], group["DesiredCapacity"]) == (10, 300, 2)


async def test_order_of_instance_types_is_part_of_the_group(account: Account) -> None:
    await provisioned(account.fleet())

    changed = await provisioned(account.fleet(instance_types=TYPES[::-1]))

    assert (Action.CHANGE, "Auto Scaling group asg-production-video") in changed
    overrides = account.group("asg-production-video")["MixedInstancesPolicy"]["LaunchTemplate"]["Overrides"]
    assert [override["InstanceType"] for override in overrides] == ["g5.xlarge", "g4dn.xlarge"]


async def test_secret_is_stored_encrypted_and_updated(account: Account) -> None:
    await provisioned(account.fleet())
    changed = await provisioned(account.fleet(), secret="another-one-of-the-server")

    name = "/comfyrelay/production/video/fleet-secret"
    assert real_changes(changed) == [(Action.CHANGE, f"parameter {name}")]
    found = account.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]
    assert (found["Type"], found["Value"]) == ("SecureString", "another-one-of-the-server")


async def test_fallback_and_budget_are_removed_when_unset(account: Account) -> None:
    await provisioned(account.fleet(**ALL_OPTIONS))

    changed = real_changes(await provisioned(account.fleet()))

    assert changed == [
        (Action.REMOVE, "scaling policies of asg-production-video"),
        (Action.REMOVE, "budget comfyrelay-production-video"),
    ]
    assert account.client("autoscaling").describe_policies()["ScalingPolicies"] == []
    assert account.client("cloudwatch").describe_alarms()["MetricAlarms"] == []
    assert real_changes(await provisioned(account.fleet())) == []


async def test_removal_leaves_other_fleets_alone(account: Account) -> None:
    await provisioned(account.fleet(**ALL_OPTIONS))
    await provisioned(account.fleet("other", **ALL_OPTIONS))
    aws = Aws()
    provisioner = Provisioner(aws, budgets=aws)

    removal = await provisioner.plan_removal(Names("video", "production"))
    await apply(removal)

    assert [change.resource for change in removal] == [
        "budget comfyrelay-production-video",
        "alarm asg-production-video-from-zero",
        "Auto Scaling group asg-production-video",
        "launch template lt-production-video",
        "parameter /comfyrelay/production/video/fleet-secret",
    ]
    assert await provisioner.plan_removal(Names("video", "production")) == []
    assert real_changes(await provisioned(account.fleet("other", **ALL_OPTIONS))) == []


async def test_fleet_with_machines_is_removed_only_with_force(account: Account) -> None:
    fleet = account.fleet()
    await provisioned(fleet)
    provider = AwsProvider()
    await provider.launch(fleet, [MachineOrder(key="a")], total=1)
    aws = Aws()
    provisioner = Provisioner(aws, budgets=aws)

    advice = "`comfyrelay fleet set video --stage production --min-machines 0 --max-machines 0`"
    with pytest.raises(Conflict, match=f"still has 1 machine. Run {advice}"):
        await provisioner.plan_removal(Names("video", "production"))
    await apply(await provisioner.plan_removal(Names("video", "production"), force=True))

    assert account.group("asg-production-video") is None


async def test_all_missing_options_are_reported_at_once(account: Account) -> None:
    fleet = account.fleet(instance_types=(), subnets=[], instance_profile=None, budget_usd_per_month=5)

    with pytest.raises(InvalidInput) as caught:
        blueprint_of(fleet)

    assert set(caught.value.errors) == {
        "instance_types",
        "options.subnets",
        "options.instance_profile",
        "options.budget_email",
    }


@pytest.mark.parametrize(
    "options",
    [
        {"subnet": ["subnet-1"]},
        {"subnets": ["my subnet"]},
        {"user": "root; rm"},
        {"comfyui_folder": "/opt/$(rm)"},
        {"api_base_url": "relay.example.com"},
        {"api_base_url": "https://relay.example.com\nEVIL=1"},
        {"budget_usd_per_month": -1},
    ],
)
def test_invalid_options_are_refused_by_name(options: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_options(options, {})
    assert [error.split(".")[:2] for error in caught.value.errors] == [["options", next(iter(options))]]
    # The message must not show a regular expression.
    assert not any(
        "pattern" in error or "Value error" in error or "^" in error for error in caught.value.errors.values()
    )


def test_flags_override_saved_options() -> None:
    options = read_options({"region": "eu-west-1", "key_name": "ops"}, {"region": "us-east-1", "key_name": None})
    assert (options.region, options.key_name) == ("us-east-1", "ops")


async def test_small_quota_is_reported_with_its_code(account: Account) -> None:
    account.proxy.quotas["L-3819A6DF"] = 10

    [found] = await check_quotas(Aws(), account.fleet())

    assert not found.is_enough
    assert found.text == (
        "The Spot quota for G and VT instances (L-3819A6DF) is 10 vCPUs, enough for 2 of g4dn.xlarge; 10 machines of "
        "g4dn.xlarge need 40. Request an increase in Service Quotas; AWS refuses launches beyond it."
    )


async def test_default_or_unreadable_quota_is_enough(account: Account) -> None:
    fleet = account.fleet()
    account.proxy.default_quota = 64
    [default] = await check_quotas(Aws(), fleet)
    account.proxy.is_cut_off = True
    [unreadable] = await check_quotas(Aws(), fleet)

    assert default.is_enough
    assert "is 64 vCPUs; 10 machines of g4dn.xlarge need 40." in default.text
    assert unreadable.is_enough
    assert "Cannot read the Spot quota" in unreadable.text


async def test_launch_template_and_budget_follow_the_blueprint(account: Account) -> None:
    fleet = account.fleet(**ALL_OPTIONS)
    await provisioned(fleet)

    [version] = account.client("ec2").describe_launch_template_versions(
        LaunchTemplateName="lt-production-video", Versions=["$Latest"]
    )["LaunchTemplateVersions"]
    data = version["LaunchTemplateData"]
    assert base64.b64decode(data["UserData"]).decode() == blueprint_of(fleet).script
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["ImageId"] == fleet.spec.image

    budgets = account.client("budgets")
    name = {"AccountId": ACCOUNT, "BudgetName": "comfyrelay-production-video"}
    budget = budgets.describe_budget(**name)["Budget"]
    assert budget["BudgetLimit"] == {"Amount": "250.00", "Unit": "USD"}
    assert budget["CostFilters"] == {"TagKeyValue": ["user:Name$asg-production-video"]}
    alerts = budgets.describe_notifications_for_budget(**name)["Notifications"]
    assert [(alert["NotificationType"], alert["ComparisonOperator"], alert["Threshold"]) for alert in alerts] == [
        ("ACTUAL", "GREATER_THAN", 80),
        ("FORECASTED", "GREATER_THAN", 100),
    ]


async def test_permissions_cover_every_call(account: Account) -> None:
    fleet = account.fleet(**ALL_OPTIONS)
    account.proxy.calls.clear()
    await provisioned(fleet)
    await check_quotas(Aws(), fleet)
    aws = Aws()
    await apply(await Provisioner(aws, budgets=aws).plan_removal(Names("video", "production")))
    policies = permissions(Names("video", "production"), namespace="Relay")
    operator = {action.partition(":")[2] for action in actions(policies["operator"])}
    # Two permissions cover all calls of the Budgets API.
    calls = {call for call in account.proxy.calls if "Budget" not in call and "Notification" not in call}
    assert calls <= operator

    await provisioned(fleet)
    account.proxy.calls.clear()
    provider = AwsProvider()
    await provider.launch(fleet, [MachineOrder(key="a")], total=1)
    await provider.prices(fleet)
    await provider.end(fleet, [machine.id for machine in await provider.observe(fleet)])
    # The server sends metrics, not the provider.
    sent = {"PutMetricData"}
    assert set(account.proxy.calls) | sent == {
        action.partition(":")[2] for action in actions(policies["control_plane"])
    }
    assert len(json.dumps(policies["operator"])) < 6144


def test_permissions_are_restricted_to_the_fleet() -> None:
    policies = permissions(Names("video", "staging"), namespace="Relay")
    by_action = {
        action: (policy["Resource"], policy.get("Condition", {}).get("StringEquals"))
        for policy in policies["operator"]["Statement"]
        for action in policy["Action"]
    }
    unrestricted = {action for action, found in by_action.items() if found == ("*", None)}
    assert {action for action in unrestricted if ":Describe" not in action and ":Get" not in action} == {
        "ec2:RunInstances"
    }
    assert by_action["autoscaling:DeleteAutoScalingGroup"][0].endswith(":autoScalingGroupName/asg-staging-video")
    assert by_action["ssm:PutParameter"][0].endswith(":parameter/comfyrelay/staging/video/fleet-secret")
    assert by_action["ec2:DeleteLaunchTemplate"][1] == {"aws:ResourceTag/Name": "asg-staging-video"}
    assert by_action["iam:PassRole"][1] == {"iam:PassedToService": "ec2.amazonaws.com"}
    [metrics] = [
        policy for policy in policies["control_plane"]["Statement"] if "cloudwatch:PutMetricData" in policy["Action"]
    ]
    assert metrics["Condition"] == {"StringEquals": {"cloudwatch:namespace": "Relay"}}
