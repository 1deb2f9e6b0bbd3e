"""The Terraform module creates the same resources as `comfyrelay fleet provision`."""

import re
from pathlib import Path
from typing import Any

import hcl2
import pytest

from comfyrelay.autoscaling.providers.aws.names import HOOK, Names
from comfyrelay.autoscaling.providers.base import ProviderFleet
from comfyrelay.autoscaling.provisioning.blueprint import Blueprint, build_blueprint
from comfyrelay.autoscaling.provisioning.options import AwsOptions
from comfyrelay.autoscaling.provisioning.permissions import permissions
from comfyrelay.domain.autoscaling.spec import InstanceType, MachineProviderName, MachineSpec
from tests.support.paths import ROOT

MODULE = ROOT / "deploy" / "terraform"
NAMES = Names("video", "production")
OPTIONS = AwsOptions(
    subnets=["subnet-1", "subnet-2"],
    security_groups=["sg-1"],
    instance_profile="worker",
    key_name="ops",
    volume_gib=100,
    budget_usd_per_month=250,
    budget_email="ops@example.com",
    cloudwatch_fallback=True,
)
INPUTS: dict[str, Any] = {
    "fleet": "video",
    "stage": "production",
    "region": "eu-west-1",
    "api_base_url": "https://relay.example.com",
    "image": "ami-0123456789abcdef0",
    "instance_types": ["g4dn.xlarge", "g5.xlarge"],
    "max_machines": 4,
    "cloudwatch_namespace": "Studio",
}


def unquote(value: Any) -> Any:
    """Return the parsed file without quotes and metadata."""
    if isinstance(value, dict):
        return {unquote(name): unquote(item) for name, item in value.items() if not str(name).startswith("__")}
    if isinstance(value, list):
        return [unquote(item) for item in value]
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value


def parse(path: Path) -> dict[str, Any]:
    return unquote(hcl2.loads(path.read_text("utf-8")))  # type: ignore[no-any-return]


def read_blocks(kind: str) -> dict[str, Any]:
    """Return blocks of all files, by their labels."""
    found: dict[str, Any] = {}
    for path in sorted(MODULE.glob("*.tf")):
        for block in parse(path).get(kind, []):
            for label, body in block.items():
                if kind in ("variable", "output", "locals"):
                    found[label] = body
                else:
                    found.update({f"{label}.{name}": content for name, content in body.items()})
    return found


VARIABLES, LOCALS = read_blocks("variable"), read_blocks("locals")
VALUES = {
    **{name: variable.get("default") for name, variable in VARIABLES.items()},
    **{name: value for name, value in OPTIONS.model_dump().items() if name in VARIABLES},
    **INPUTS,
}


def resolve(value: Any) -> Any:
    """Replace references to variables and locals."""
    if isinstance(value, dict):
        return {name: resolve(item) for name, item in value.items()}
    if isinstance(value, list):
        return [resolve(item) for item in value]
    if not isinstance(value, str):
        return value
    if whole := re.fullmatch(r"\$\{(var|local)\.(\w+)\}", value):
        return VALUES[whole[2]] if whole[1] == "var" else resolve(LOCALS[whole[2]])
    return re.sub(r"\$\{(?:var|local)\.\w+\}", lambda found: str(resolve(found[0])), value)


RESOURCES, DATA = resolve(read_blocks("resource")), resolve(read_blocks("data"))


@pytest.fixture(scope="module")
def blueprint() -> Blueprint:
    spec = MachineSpec(
        provider=MachineProviderName.AWS,
        image=INPUTS["image"],
        instance_types=[InstanceType(name=name, price_per_hour=0.2) for name in INPUTS["instance_types"]],
        options={},
    )
    fleet = ProviderFleet(slug="video", stage="production", spec=spec, max_machines=INPUTS["max_machines"])
    return build_blueprint(
        fleet, OPTIONS, region=INPUTS["region"], api_base_url=INPUTS["api_base_url"], namespace="Studio"
    )


def test_variables_and_outputs_are_typed_and_documented() -> None:
    readme = (MODULE / "README.md").read_text("utf-8")
    inputs, outputs = (dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", part, re.M)) for part in readme.split("## Outputs"))
    assert inputs.keys() == VARIABLES.keys()
    for name, variable in VARIABLES.items():
        assert {"type", "description"} <= variable.keys(), name
        assert inputs[name].startswith("required") is ("default" not in variable), name
        if variable.get("default"):
            assert inputs[name] == f"`{variable['default']}`", name
    blocks = read_blocks("output")
    assert outputs.keys() == blocks.keys()
    assert all("description" in block for block in blocks.values())


@pytest.mark.parametrize(
    "page", [MODULE / "README.md", ROOT / "docs" / "howto" / "spot-fleet.md"], ids=lambda path: path.name
)
def test_examples_set_the_required_variables(page: Path) -> None:
    [example] = re.findall(r"^```hcl\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    [module] = unquote(hcl2.loads(example))["module"]
    assigned = module["video"].keys() - {"source"}
    required = {name for name, variable in VARIABLES.items() if "default" not in variable}
    assert required <= assigned <= VARIABLES.keys()


def test_option_names_and_defaults_match_provision() -> None:
    options = {name: field.default for name, field in AwsOptions.model_fields.items()}
    # `boot_seconds` is an estimate for the autoscaling loop.
    assert options.keys() - VARIABLES.keys() == {"boot_seconds"}
    for name in options.keys() & VARIABLES.keys() - {"region", "subnets", "api_base_url"}:
        assert VARIABLES[name]["default"] == options[name], name


def test_secret_is_a_sensitive_variable() -> None:
    assert VARIABLES["fleet_secret"]["sensitive"] is True
    parameter = read_blocks("resource")["aws_ssm_parameter.fleet_secret"]
    assert (parameter["value"], parameter["type"]) == ("${var.fleet_secret}", "SecureString")
    assert RESOURCES["aws_ssm_parameter.fleet_secret"]["name"] == NAMES.secret


def test_group_equals_the_blueprint(blueprint: Blueprint) -> None:
    group, expected = RESOURCES["aws_autoscaling_group.fleet"], blueprint.group
    assert group["name"] == expected["AutoScalingGroupName"]
    assert (group["min_size"], group["max_size"]) == (expected["MinSize"], expected["MaxSize"])
    assert group["vpc_zone_identifier"] == expected["VPCZoneIdentifier"].split(",")
    assert (group["capacity_rebalance"], group["default_instance_warmup"]) == (
        expected["CapacityRebalance"],
        expected["DefaultInstanceWarmup"],
    )
    assert resolve(LOCALS["tags"]) == NAMES.tags
    [tags] = group["dynamic"]
    assert tags["tag"]["for_each"] == NAMES.tags
    assert tags["tag"]["content"][0]["propagate_at_launch"] is True
    # A further apply keeps the number of instances.
    assert group["lifecycle"] == [{"ignore_changes": ["desired_capacity"]}]


def test_group_launches_spot_instances_of_all_types(blueprint: Blueprint) -> None:
    [policy] = RESOURCES["aws_autoscaling_group.fleet"]["mixed_instances_policy"]
    [distribution] = policy["instances_distribution"]
    expected = blueprint.group["MixedInstancesPolicy"]
    assert {_camel(name): value for name, value in distribution.items()} == expected["InstancesDistribution"]
    [template] = policy["launch_template"]
    [override] = template["dynamic"]
    overrides = [{"InstanceType": name} for name in override["override"]["for_each"]]
    assert overrides == expected["LaunchTemplate"]["Overrides"]
    [specification] = template["launch_template_specification"]
    assert specification["version"] == expected["LaunchTemplate"]["LaunchTemplateSpecification"]["Version"]


def test_launch_template_equals_the_blueprint(blueprint: Blueprint) -> None:
    template, expected = RESOURCES["aws_launch_template.fleet"], blueprint.launch_template
    assert (template["name"], template["image_id"]) == (NAMES.launch_template, expected["ImageId"])
    assert template["key_name"] == expected["KeyName"]
    [metadata] = template["metadata_options"]
    assert {_camel(name): value for name, value in metadata.items()} == expected["MetadataOptions"]
    assert template["tag_specifications"] == [{"resource_type": "volume", "tags": NAMES.tags}]
    [mapping] = template["dynamic"][0]["block_device_mappings"]["content"]
    [expected_mapping] = expected["BlockDeviceMappings"]
    assert mapping["device_name"] == expected_mapping["DeviceName"]
    assert mapping["ebs"][0]["volume_type"] == expected_mapping["Ebs"]["VolumeType"]


def test_module_renders_the_same_script(blueprint: Blueprint) -> None:
    text = RESOURCES["aws_launch_template.fleet"]["user_data"]
    [(path, values)] = re.findall(r'templatefile\("\$\{path\.module\}/(.+?)", \{(.+)\}\)', text)
    template = (MODULE / path).read_text("utf-8")
    known = {
        **dict(re.findall(r"(\w+) = ((?:var|local)\.\w+)[,}]", f"{values}}}")),
        "after": " ${var.comfyui_service}",
    }
    assert known.keys() == set(re.findall(r"(?<!\$)\$\{(\w+)\}", template))
    rendered = template
    for name, value in known.items():
        reference = value if name == "after" else f"${{{value}}}"
        rendered = re.sub(rf"(?<!\$)\$\{{{name}\}}", resolve(reference), rendered)
    assert rendered.replace("$${", "${") == blueprint.script
    assert "%{" not in template


def test_lifecycle_hook_equals_the_blueprint(blueprint: Blueprint) -> None:
    hook = RESOURCES["aws_autoscaling_lifecycle_hook.drain"]
    assert hook["name"] == HOOK
    for name in ("lifecycle_transition", "heartbeat_timeout", "default_result"):
        assert hook[name] == blueprint.hook[_camel(name)]


def test_budget_equals_the_blueprint(blueprint: Blueprint) -> None:
    budget = RESOURCES["aws_budgets_budget.fleet"]
    assert blueprint.budget is not None
    expected = blueprint.budget.limit
    assert (budget["name"], budget["budget_type"], budget["time_unit"], budget["limit_unit"]) == (
        expected["BudgetName"],
        expected["BudgetType"],
        expected["TimeUnit"],
        expected["BudgetLimit"]["Unit"],
    )
    assert budget["cost_filter"] == [{"name": "TagKeyValue", "values": ['${format("user:Name$%s", local.group)}']}]
    assert expected["CostFilters"] == {"TagKeyValue": [f"user:Name${NAMES.group}"]}
    notifications = [
        {_camel(name): value for name, value in notification.items() if name != "subscriber_email_addresses"}
        for notification in budget["notification"]
    ]
    assert notifications == blueprint.budget.notifications
    assert [notification["subscriber_email_addresses"] for notification in budget["notification"]] == [
        ["ops@example.com"]
    ] * 2


def test_fallback_equals_the_blueprint(blueprint: Blueprint) -> None:
    assert blueprint.fallback is not None
    from_zero, alarm = RESOURCES["aws_autoscaling_policy.from_zero"], RESOURCES["aws_cloudwatch_metric_alarm.from_zero"]
    for name in ("adjustment_type", "metric_aggregation_type", "policy_type"):
        assert from_zero[name] == blueprint.fallback.from_zero[_camel(name)]
    assert from_zero["name"] == blueprint.fallback.from_zero["PolicyName"]
    for name in (
        "alarm_name",
        "alarm_description",
        "comparison_operator",
        "threshold",
        "evaluation_periods",
        "treat_missing_data",
    ):
        assert alarm[name] == blueprint.fallback.alarm[_camel(name)]
    for query, expected in zip(alarm["metric_query"], blueprint.fallback.alarm["Metrics"], strict=True):
        assert (query["id"], query["return_data"]) == (expected["Id"], expected["ReturnData"])
        assert query.get("expression") == expected.get("Expression")
        if "metric" in query:
            metric, stat = query["metric"][0], expected["MetricStat"]
            assert (metric["period"], metric["stat"]) == (stat["Period"], stat["Stat"])
            assert _metric(metric) == (stat["Metric"]["Namespace"], stat["Metric"]["MetricName"])
            assert metric["dimensions"] == _dimensions(stat["Metric"])
    backlog = RESOURCES["aws_autoscaling_policy.backlog"]
    [tracking] = backlog["target_tracking_configuration"]
    expected = blueprint.fallback.backlog["TargetTrackingConfiguration"]
    assert (backlog["name"], tracking["target_value"], tracking["disable_scale_in"]) == (
        NAMES.backlog,
        expected["TargetValue"],
        expected["DisableScaleIn"],
    )
    [metric] = tracking["customized_metric_specification"]
    specification = expected["CustomizedMetricSpecification"]
    assert _metric(metric) == (specification["Namespace"], specification["MetricName"])
    assert metric["dynamic"][0]["metric_dimension"]["for_each"] == _dimensions(specification)


@pytest.mark.parametrize("policy", ["instance", "control_plane"])
def test_policies_match_provision(policy: str) -> None:
    document = DATA[f"aws_iam_policy_document.{policy}"]
    expected = permissions(NAMES, namespace="Studio")[policy]["Statement"]
    statements = []
    for block in document["statement"]:
        [resource] = block["resources"]
        statement = {"Effect": "Allow", "Action": block["actions"], "Resource": resource}
        for condition in block.get("condition", []):
            [value] = condition["values"]
            statement["Condition"] = {condition["test"]: {condition["variable"]: value}}
        statements.append(statement)
    assert statements == expected


def test_optional_resources_follow_their_variables() -> None:
    counts = {name: resource.get("count") for name, resource in read_blocks("resource").items() if "count" in resource}
    assert counts == {
        "aws_budgets_budget.fleet": "${var.budget_usd_per_month == null ? 0 : 1}",
        **dict.fromkeys(
            (
                "aws_autoscaling_policy.from_zero",
                "aws_cloudwatch_metric_alarm.from_zero",
                "aws_autoscaling_policy.backlog",
            ),
            "${var.cloudwatch_fallback ? 1 : 0}",
        ),
        **dict.fromkeys(
            ("aws_iam_role.instance", "aws_iam_role_policy.instance", "aws_iam_instance_profile.instance"),
            "${var.instance_profile == null ? 1 : 0}",
        ),
        "aws_security_group.instance": "${length(var.security_groups) == 0 ? 1 : 0}",
    }


def _camel(name: str) -> str:
    return "".join(word.title() for word in name.split("_"))


def _metric(metric: dict[str, Any]) -> tuple[str, str]:
    return metric["namespace"], metric["metric_name"]


def _dimensions(metric: Any) -> dict[str, str]:
    return {dimension["Name"]: dimension["Value"] for dimension in metric["Dimensions"]}
