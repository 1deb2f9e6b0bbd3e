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

EVERYTHING: dict[str, Any] = {
    "budget_usd_per_month": 250,
    "budget_email": "ops@example.com",
    "cloudwatch_fallback": True,
}
CHANGES: dict[str, Any] = {
    "security_groups": ["sg-0123"],
    "key_name": "ops",
    "volume_gib": 200,
    "budget_usd_per_month": 300,
    "budget_email": "other@example.com",
    "api_base_url": "https://elsewhere.example.com",
}


def done(changes: list[tuple[Action, str]]) -> list[tuple[Action, str]]:
    return [change for change in changes if change[0] is not Action.KEEP]


async def test_second_run_changes_nothing(account: Account) -> None:
    fleet = account.fleet(**EVERYTHING)

    first, second = await provisioned(fleet), await provisioned(fleet)

    assert [what for action, what in first if action is Action.MAKE] == [
        "parameter /comfyrelay/production/video/fleet-secret",
        "launch template lt-production-video",
        "Auto Scaling group asg-production-video",
        "lifecycle hook comfyrelay-drain of asg-production-video",
        "scaling policy and alarm asg-production-video-from-zero",
        "scaling policy asg-production-video-backlog",
        "budget comfyrelay-production-video",
    ]
    assert done(second) == []
    assert [what for _, what in second] == [what for _, what in first]


async def test_plan_changes_nothing(account: Account) -> None:
    account.proxy.calls.clear()

    await planned(account.fleet(**EVERYTHING))

    assert {call for call in account.proxy.calls if not call.startswith(("Describe", "Get"))} == set()
    assert account.group("asg-production-video") is None


@pytest.mark.parametrize("option", CHANGES)
async def test_changed_option_updates_only_its_resource(account: Account, option: str) -> None:
    await provisioned(account.fleet(**EVERYTHING))

    changed = await provisioned(account.fleet(**{**EVERYTHING, option: CHANGES[option]}))

    part = "budget" if option.startswith("budget") else "launch template"
    assert [(action, what.startswith(part)) for action, what in done(changed)] == [(Action.CHANGE, True)]
    assert done(await provisioned(account.fleet(**{**EVERYTHING, option: CHANGES[option]}))) == []


async def test_manual_changes_are_reverted_and_machines_stay(account: Account) -> None:
    fleet = account.fleet()
    await provisioned(fleet)
    scaling = account.client("autoscaling")
    scaling.set_desired_capacity(AutoScalingGroupName="asg-production-video", DesiredCapacity=2)
    scaling.update_auto_scaling_group(AutoScalingGroupName="asg-production-video", MaxSize=3, DefaultInstanceWarmup=5)
    scaling.delete_lifecycle_hook(AutoScalingGroupName="asg-production-video", LifecycleHookName="comfyrelay-drain")

    changed = done(await provisioned(fleet))

    assert changed == [
        (Action.CHANGE, "Auto Scaling group asg-production-video"),
        (Action.MAKE, "lifecycle hook comfyrelay-drain of asg-production-video"),
    ]
    group = account.group("asg-production-video")
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
    assert done(changed) == [(Action.CHANGE, f"parameter {name}")]
    found = account.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]
    assert (found["Type"], found["Value"]) == ("SecureString", "another-one-of-the-server")


async def test_plan_does_not_print_the_secret(account: Account) -> None:
    assert all(SECRET not in f"{each.resource} {each.detail}" for each in await planned(account.fleet(**EVERYTHING)))
    assert SECRET not in blueprint_of(account.fleet()).script


async def test_fallback_and_budget_are_removed_when_unset(account: Account) -> None:
    await provisioned(account.fleet(**EVERYTHING))

    changed = done(await provisioned(account.fleet()))

    assert changed == [
        (Action.REMOVE, "scaling policies of asg-production-video"),
        (Action.REMOVE, "budget comfyrelay-production-video"),
    ]
    assert account.client("autoscaling").describe_policies()["ScalingPolicies"] == []
    assert account.client("cloudwatch").describe_alarms()["MetricAlarms"] == []
    assert done(await provisioned(account.fleet())) == []


async def test_removal_leaves_other_fleets_alone(account: Account) -> None:
    await provisioned(account.fleet(**EVERYTHING))
    await provisioned(account.fleet("other", **EVERYTHING))
    aws = Aws()
    provisioner = Provisioner(aws, budgets=aws)

    removal = await provisioner.plan_removal(Names("video", "production"))
    await apply(removal)

    assert [each.resource for each in removal] == [
        "budget comfyrelay-production-video",
        "alarm asg-production-video-from-zero",
        "Auto Scaling group asg-production-video",
        "launch template lt-production-video",
        "parameter /comfyrelay/production/video/fleet-secret",
    ]
    assert await provisioner.plan_removal(Names("video", "production")) == []
    assert done(await provisioned(account.fleet("other", **EVERYTHING))) == []


async def test_fleet_with_machines_is_removed_only_with_force(account: Account) -> None:
    fleet = account.fleet()
    await provisioned(fleet)
    provider = AwsProvider()
    await provider.launch(fleet, [MachineOrder(key="a")], total=1)
    aws = Aws()
    provisioner = Provisioner(aws, budgets=aws)

    with pytest.raises(Conflict, match="still has 1 machine: pause the fleet"):
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
    # no regular expression in the message
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


async def test_unchanged_quota_has_the_default_value(account: Account) -> None:
    account.proxy.default_quota = 64

    [found] = await check_quotas(Aws(), account.fleet())

    assert found.is_enough
    assert "is 64 vCPUs; 10 machines of g4dn.xlarge need 40." in found.text


async def test_unreadable_quota_is_no_error(account: Account) -> None:
    fleet = account.fleet()
    account.proxy.is_cut_off = True

    [found] = await check_quotas(Aws(), fleet)

    assert found.is_enough
    assert "Cannot read the Spot quota" in found.text


async def test_launch_template_has_the_boot_script_and_requires_metadata_tokens(account: Account) -> None:
    fleet = account.fleet()
    await provisioned(fleet)

    [version] = account.client("ec2").describe_launch_template_versions(
        LaunchTemplateName="lt-production-video", Versions=["$Latest"]
    )["LaunchTemplateVersions"]

    data = version["LaunchTemplateData"]
    assert base64.b64decode(data["UserData"]).decode() == blueprint_of(fleet).script
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["ImageId"] == fleet.spec.image


async def test_budget_alerts_at_80_percent_and_on_the_forecast(account: Account) -> None:
    await provisioned(account.fleet(**EVERYTHING))

    budgets = account.client("budgets")
    name = {"AccountId": ACCOUNT, "BudgetName": "comfyrelay-production-video"}
    budget = budgets.describe_budget(**name)["Budget"]
    assert budget["BudgetLimit"] == {"Amount": "250.00", "Unit": "USD"}
    assert budget["CostFilters"] == {"TagKeyValue": ["user:Name$asg-production-video"]}
    found = budgets.describe_notifications_for_budget(**name)["Notifications"]
    assert [(each["NotificationType"], each["Threshold"]) for each in found] == [("ACTUAL", 80), ("FORECASTED", 100)]


async def test_permissions_cover_every_call(account: Account) -> None:
    fleet = account.fleet(**EVERYTHING)
    account.proxy.calls.clear()
    await provisioned(fleet)
    await check_quotas(Aws(), fleet)
    aws = Aws()
    await apply(await Provisioner(aws, budgets=aws).plan_removal(Names("video", "production")))
    policies = permissions(Names("video", "production"), namespace="Relay")
    operator = {action.partition(":")[2] for action in actions(policies["operator"])}
    # two permissions cover all calls of the Budgets API
    made = {call for call in account.proxy.calls if "Budget" not in call and "Notification" not in call}
    assert made <= operator

    await provisioned(fleet)
    account.proxy.calls.clear()
    provider = AwsProvider()
    await provider.launch(fleet, [MachineOrder(key="a")], total=1)
    await provider.prices(fleet)
    await provider.end(fleet, [each.id for each in await provider.observe(fleet)])
    # the server sends metrics, not the provider
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
    assert {each for each in unrestricted if ":Describe" not in each and ":Get" not in each} == {"ec2:RunInstances"}
    assert by_action["autoscaling:DeleteAutoScalingGroup"][0].endswith(":autoScalingGroupName/asg-staging-video")
    assert by_action["ssm:PutParameter"][0].endswith(":parameter/comfyrelay/staging/video/fleet-secret")
    assert by_action["ec2:DeleteLaunchTemplate"][1] == {"aws:ResourceTag/Name": "asg-staging-video"}
    assert by_action["iam:PassRole"][1] == {"iam:PassedToService": "ec2.amazonaws.com"}
    [metrics] = [
        policy for policy in policies["control_plane"]["Statement"] if "cloudwatch:PutMetricData" in policy["Action"]
    ]
    assert metrics["Condition"] == {"StringEquals": {"cloudwatch:namespace": "Relay"}}
