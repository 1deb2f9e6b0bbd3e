"""The same fleet as Terraform: a parser reads it, and it says what `provision` makes."""

import base64
from pathlib import Path
from typing import Any

import hcl2
import pytest

from comfyrelay.autoscaling.provisioning.terraform import terraform
from tests.integration.autoscaling.aws.test_provision import EVERYTHING
from tests.support.aws_account import ACCOUNT, Account, drawn, provisioned


def plain(value: Any) -> Any:
    """What a parser makes of it, without its quotes and marks."""
    if isinstance(value, dict):
        return {plain(name): plain(each) for name, each in value.items() if not str(name).startswith("__")}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value


@pytest.fixture
def written(account: Account) -> dict[str, Any]:
    """Resources by type and name."""
    file = plain(hcl2.loads(terraform(drawn(account.fleet(**EVERYTHING, security_groups=["sg-1"], volume_gib=100)))))
    return {
        f"{kind}.{name}": body
        for resource in file["resource"]
        for kind, named in resource.items()
        for name, body in named.items()
    }


async def test_the_group_is_the_one_that_provision_makes(account: Account, written: dict[str, Any]) -> None:
    await provisioned(account.fleet(**EVERYTHING))
    made, says = account.group("asg-production-video"), written["aws_autoscaling_group.fleet"]

    assert says["name"] == made["AutoScalingGroupName"]
    assert (says["min_size"], says["max_size"]) == (made["MinSize"], made["MaxSize"])
    assert says["vpc_zone_identifier"] == made["VPCZoneIdentifier"].split(",")
    assert (says["capacity_rebalance"], says["default_instance_warmup"]) == (True, made["DefaultInstanceWarmup"])
    assert {each["key"]: each["value"] for each in says["tag"]} == {each["Key"]: each["Value"] for each in made["Tags"]}
    assert all(each["propagate_at_launch"] for each in says["tag"])
    [policy] = says["mixed_instances_policy"]
    distribution = made["MixedInstancesPolicy"]["InstancesDistribution"]
    [said] = policy["instances_distribution"]
    assert said["on_demand_base_capacity"] == distribution["OnDemandBaseCapacity"]
    assert said["on_demand_percentage_above_base_capacity"] == distribution["OnDemandPercentageAboveBaseCapacity"]
    assert said["spot_allocation_strategy"] == distribution["SpotAllocationStrategy"]
    [template] = policy["launch_template"]
    assert [each["instance_type"] for each in template["override"]] == [
        each["InstanceType"] for each in made["MixedInstancesPolicy"]["LaunchTemplate"]["Overrides"]
    ]
    # who applies it again does not end what the control plane has launched
    assert says["lifecycle"] == [{"ignore_changes": ["desired_capacity"]}]


async def test_the_hook_and_the_policies_are_those_that_provision_makes(
    account: Account, written: dict[str, Any]
) -> None:
    await provisioned(account.fleet(**EVERYTHING))
    scaling = account.client("autoscaling")
    [hook] = scaling.describe_lifecycle_hooks(AutoScalingGroupName="asg-production-video")["LifecycleHooks"]
    says = written["aws_autoscaling_lifecycle_hook.drain"]
    assert (says["name"], says["heartbeat_timeout"], says["default_result"], says["lifecycle_transition"]) == (
        hook["LifecycleHookName"],
        hook["HeartbeatTimeout"],
        hook["DefaultResult"],
        hook["LifecycleTransition"],
    )
    policies = {each["PolicyName"]: each for each in scaling.describe_policies()["ScalingPolicies"]}
    assert {written[f"aws_autoscaling_policy.{each}"]["name"] for each in ("from_zero", "backlog")} == set(policies)
    [tracking] = written["aws_autoscaling_policy.backlog"]["target_tracking_configuration"]
    made = policies["asg-production-video-backlog"]["TargetTrackingConfiguration"]
    assert (tracking["target_value"], tracking["disable_scale_in"]) == (made["TargetValue"], made["DisableScaleIn"])
    [metric] = tracking["customized_metric_specification"]
    assert metric["metric_name"] == made["CustomizedMetricSpecification"]["MetricName"]
    [alarm] = account.client("cloudwatch").describe_alarms()["MetricAlarms"]
    said = written["aws_cloudwatch_metric_alarm.from_zero"]
    assert (said["alarm_name"], said["threshold"]) == (alarm["AlarmName"], alarm["Threshold"])
    assert [each["id"] for each in said["metric_query"]] == [each["Id"] for each in alarm["Metrics"]]


async def test_the_launch_template_runs_the_very_same_script(account: Account, written: dict[str, Any]) -> None:
    fleet = account.fleet(**EVERYTHING, security_groups=["sg-1"], volume_gib=100)
    await provisioned(fleet)
    [version] = account.client("ec2").describe_launch_template_versions(
        LaunchTemplateName="lt-production-video", Versions=["$Latest"]
    )["LaunchTemplateVersions"]
    made, says = version["LaunchTemplateData"], written["aws_launch_template.fleet"]

    _, _, script = says["user_data"].partition("<<COMFYRELAY_USER_DATA\n")
    script = script.rpartition("COMFYRELAY_USER_DATA")[0].replace("$${", "${").replace("%%{", "%{")
    assert script == base64.b64decode(made["UserData"]).decode()
    assert says["name"] == "lt-production-video"
    assert says["image_id"] == made["ImageId"]
    assert says["vpc_security_group_ids"] == made["SecurityGroupIds"]
    assert says["iam_instance_profile"] == [{"name": made["IamInstanceProfile"]["Name"]}]
    assert says["metadata_options"][0]["http_tokens"] == made["MetadataOptions"]["HttpTokens"]
    assert says["block_device_mappings"][0]["ebs"][0]["volume_size"] == 100


async def test_the_budget_is_the_one_that_provision_makes(account: Account, written: dict[str, Any]) -> None:
    await provisioned(account.fleet(**EVERYTHING))
    made = account.client("budgets").describe_budget(AccountId=ACCOUNT, BudgetName="comfyrelay-production-video")
    says, made = written["aws_budgets_budget.fleet"], made["Budget"]

    assert (says["name"], says["limit_amount"]) == (made["BudgetName"], made["BudgetLimit"]["Amount"])
    assert {each["name"]: each["values"] for each in says["cost_filter"]} == made["CostFilters"]
    assert [each["subscriber_email_addresses"] for each in says["notification"]] == [["ops@example.com"]] * 2


def test_the_secret_is_a_variable_that_is_kept_out_of_the_file(account: Account) -> None:
    file = plain(hcl2.loads(terraform(drawn(account.fleet()))))
    [variable] = file["variable"]
    assert variable["fleet_secret"]["sensitive"] is True
    [parameter] = [each["aws_ssm_parameter"] for each in file["resource"] if "aws_ssm_parameter" in each]
    assert parameter["fleet_secret"]["value"] == "${var.fleet_secret}"
    assert parameter["fleet_secret"]["type"] == "SecureString"


def test_what_was_not_asked_for_is_not_in_it(account: Account) -> None:
    text = terraform(drawn(account.fleet()))
    assert "budget" not in text
    assert "aws_autoscaling_policy" not in text


def test_words_of_the_operator_do_not_become_expressions(account: Account, tmp_path: Path) -> None:
    text = terraform(drawn(account.fleet(key_name='odd "${var.x}" %{ if }')))
    assert r'key_name = "odd \"$${var.x}\" %%{ if }"' in text
    hcl2.loads(text)
