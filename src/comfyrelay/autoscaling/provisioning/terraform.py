"""The same fleet as Terraform, for those who keep their account in files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from comfyrelay.autoscaling.provisioning.blueprint import Blueprint
from comfyrelay.autoscaling.provisioning.provision import BUDGETS_REGION

_HEAD = """\
# The {stage} fleet {fleet}, as `comfyrelay fleet provision` makes it. Written by `comfyrelay fleet export terraform`.
# Use one of the two: both have the same names.
"""
_END = "COMFYRELAY_USER_DATA"


@dataclass(frozen=True)
class Raw:
    """An expression, as it stands."""

    text: str


@dataclass(frozen=True)
class TerraformBlock:
    head: str
    body: "Body"


Value: TypeAlias = "str | int | float | bool | Raw | Sequence[Value] | Mapping[str, Value]"
# Blocks of one name may come several times, so they are no value.
Body: TypeAlias = "Sequence[tuple[str, Value] | TerraformBlock]"


@dataclass
class _File:
    blueprint: Blueprint
    blocks: list[TerraformBlock] = field(default_factory=list)

    def add(self, head: str, *body: "tuple[str, Value] | TerraformBlock") -> None:
        self.blocks.append(TerraformBlock(head, body))


def terraform(blueprint: Blueprint) -> str:
    file = _File(blueprint)
    _settings(file)
    _secret(file)
    _launch_template(file)
    _group(file)
    _budget(file)
    _fallback(file)
    names = blueprint.names
    head = _HEAD.format(stage=names.stage, fleet=names.fleet)
    return "\n".join([head, *("\n".join(_lines(each)) + "\n" for each in file.blocks)])


def _settings(file: _File) -> None:
    file.add(
        "terraform",
        TerraformBlock("required_providers", [("aws", {"source": "hashicorp/aws", "version": ">= 5.0"})]),
    )
    file.add('provider "aws"', ("region", file.blueprint.region))
    if file.blueprint.budget is not None:
        file.add('provider "aws"', ("alias", "budgets"), ("region", BUDGETS_REGION))


def _secret(file: _File) -> None:
    file.add(
        'variable "fleet_secret"',
        ("description", "One of COMFYRELAY_FLEET_SECRETS of this stage."),
        ("type", Raw("string")),
        ("sensitive", True),
    )
    file.add(
        'resource "aws_ssm_parameter" "fleet_secret"',
        ("name", file.blueprint.names.secret),
        ("type", "SecureString"),
        ("value", Raw("var.fleet_secret")),
    )


def _launch_template(file: _File) -> None:
    data = file.blueprint.launch_template
    tags: Value = file.blueprint.names.tags
    profile = data["IamInstanceProfile"]
    metadata = data["MetadataOptions"]
    body: list[tuple[str, Value] | TerraformBlock] = [
        ("name", file.blueprint.names.launch_template),
        ("image_id", data["ImageId"]),
        ("instance_type", data["InstanceType"]),
        ("user_data", Raw(_heredoc(file.blueprint.script))),
        ("tags", tags),
    ]
    if "KeyName" in data:
        body.append(("key_name", data["KeyName"]))
    if "SecurityGroupIds" in data:
        body.append(("vpc_security_group_ids", data["SecurityGroupIds"]))
    body += [
        TerraformBlock("iam_instance_profile", [(name.lower(), value) for name, value in profile.items()]),
        TerraformBlock(
            "metadata_options",
            [
                ("http_endpoint", metadata["HttpEndpoint"]),
                ("http_tokens", metadata["HttpTokens"]),
                ("http_put_response_hop_limit", metadata["HttpPutResponseHopLimit"]),
            ],
        ),
        *(
            TerraformBlock(
                "block_device_mappings",
                [
                    ("device_name", each["DeviceName"]),
                    TerraformBlock(
                        "ebs",
                        [
                            ("volume_size", each["Ebs"]["VolumeSize"]),
                            ("volume_type", each["Ebs"]["VolumeType"]),
                            ("delete_on_termination", each["Ebs"]["DeleteOnTermination"]),
                        ],
                    ),
                ],
            )
            for each in data.get("BlockDeviceMappings", ())
        ),
        *(
            TerraformBlock("tag_specifications", [("resource_type", each["ResourceType"]), ("tags", tags)])
            for each in data["TagSpecifications"]
        ),
    ]
    file.add('resource "aws_launch_template" "fleet"', *body)


def _group(file: _File) -> None:
    group, hook = file.blueprint.group, file.blueprint.hook
    policy = group["MixedInstancesPolicy"]
    distribution = policy["InstancesDistribution"]
    file.add(
        'resource "aws_autoscaling_group" "fleet"',
        ("name", group["AutoScalingGroupName"]),
        ("min_size", group["MinSize"]),
        ("max_size", group["MaxSize"]),
        ("desired_capacity", 0),
        ("vpc_zone_identifier", group["VPCZoneIdentifier"].split(",")),
        ("capacity_rebalance", group["CapacityRebalance"]),
        ("default_instance_warmup", group["DefaultInstanceWarmup"]),
        # a fleet at zero is a fleet that is up
        ("wait_for_capacity_timeout", "0"),
        TerraformBlock(
            "mixed_instances_policy",
            [
                TerraformBlock(
                    "instances_distribution",
                    [
                        ("on_demand_base_capacity", distribution["OnDemandBaseCapacity"]),
                        (
                            "on_demand_percentage_above_base_capacity",
                            distribution["OnDemandPercentageAboveBaseCapacity"],
                        ),
                        ("spot_allocation_strategy", distribution["SpotAllocationStrategy"]),
                        ("spot_max_price", distribution["SpotMaxPrice"]),
                    ],
                ),
                TerraformBlock(
                    "launch_template",
                    [
                        TerraformBlock(
                            "launch_template_specification",
                            [
                                ("launch_template_name", Raw("aws_launch_template.fleet.name")),
                                ("version", policy["LaunchTemplate"]["LaunchTemplateSpecification"]["Version"]),
                            ],
                        ),
                        *(
                            TerraformBlock("override", [("instance_type", each["InstanceType"])])
                            for each in policy["LaunchTemplate"]["Overrides"]
                        ),
                    ],
                ),
            ],
        ),
        *(
            TerraformBlock("tag", [("key", name), ("value", value), ("propagate_at_launch", True)])
            for name, value in file.blueprint.names.tags.items()
        ),
        # how many there should be is the control plane's to say
        TerraformBlock("lifecycle", [("ignore_changes", [Raw("desired_capacity")])]),
    )
    file.add(
        'resource "aws_autoscaling_lifecycle_hook" "drain"',
        ("name", hook["LifecycleHookName"]),
        ("autoscaling_group_name", Raw("aws_autoscaling_group.fleet.name")),
        ("lifecycle_transition", hook["LifecycleTransition"]),
        ("heartbeat_timeout", hook["HeartbeatTimeout"]),
        ("default_result", hook["DefaultResult"]),
    )


def _budget(file: _File) -> None:
    budget = file.blueprint.budget
    if budget is None:
        return
    file.add(
        'resource "aws_budgets_budget" "fleet"',
        ("provider", Raw("aws.budgets")),
        ("name", budget.limit["BudgetName"]),
        ("budget_type", budget.limit["BudgetType"]),
        ("limit_amount", budget.limit["BudgetLimit"]["Amount"]),
        ("limit_unit", budget.limit["BudgetLimit"]["Unit"]),
        ("time_unit", budget.limit["TimeUnit"]),
        *(
            TerraformBlock("cost_filter", [("name", name), ("values", values)])
            for name, values in budget.limit["CostFilters"].items()
        ),
        *(
            TerraformBlock(
                "notification",
                [
                    ("notification_type", each["NotificationType"]),
                    ("comparison_operator", each["ComparisonOperator"]),
                    ("threshold", each["Threshold"]),
                    ("threshold_type", each["ThresholdType"]),
                    ("subscriber_email_addresses", [budget.email]),
                ],
            )
            for each in budget.notifications
        ),
    )


def _fallback(file: _File) -> None:
    fallback = file.blueprint.fallback
    if fallback is None:
        return
    group = ("autoscaling_group_name", Raw("aws_autoscaling_group.fleet.name"))
    step, alarm = fallback.from_zero, fallback.alarm
    file.add(
        'resource "aws_autoscaling_policy" "from_zero"',
        ("name", step["PolicyName"]),
        group,
        ("policy_type", step["PolicyType"]),
        ("adjustment_type", step["AdjustmentType"]),
        ("metric_aggregation_type", step["MetricAggregationType"]),
        *(
            TerraformBlock(
                "step_adjustment",
                [
                    ("metric_interval_lower_bound", each["MetricIntervalLowerBound"]),
                    ("scaling_adjustment", each["ScalingAdjustment"]),
                ],
            )
            for each in step["StepAdjustments"]
        ),
    )
    file.add(
        'resource "aws_cloudwatch_metric_alarm" "from_zero"',
        ("alarm_name", alarm["AlarmName"]),
        ("alarm_description", alarm["AlarmDescription"]),
        ("comparison_operator", alarm["ComparisonOperator"]),
        ("threshold", alarm["Threshold"]),
        ("evaluation_periods", alarm["EvaluationPeriods"]),
        ("treat_missing_data", alarm["TreatMissingData"]),
        ("alarm_actions", [Raw("aws_autoscaling_policy.from_zero.arn")]),
        *(TerraformBlock("metric_query", _metric_query(each)) for each in alarm["Metrics"]),
    )
    tracking = fallback.backlog["TargetTrackingConfiguration"]
    metric = tracking["CustomizedMetricSpecification"]
    file.add(
        'resource "aws_autoscaling_policy" "backlog"',
        ("name", fallback.backlog["PolicyName"]),
        group,
        ("policy_type", fallback.backlog["PolicyType"]),
        TerraformBlock(
            "target_tracking_configuration",
            [
                ("target_value", tracking["TargetValue"]),
                ("disable_scale_in", tracking["DisableScaleIn"]),
                TerraformBlock(
                    "customized_metric_specification",
                    [
                        ("metric_name", metric["MetricName"]),
                        ("namespace", metric["Namespace"]),
                        ("statistic", metric["Statistic"]),
                        *(
                            TerraformBlock("metric_dimension", [("name", each["Name"]), ("value", each["Value"])])
                            for each in metric["Dimensions"]
                        ),
                    ],
                ),
            ],
        ),
    )


def _metric_query(query: Mapping[str, Any]) -> Body:
    head: list[tuple[str, Value]] = [("id", query["Id"]), ("return_data", query["ReturnData"])]
    if "Expression" in query:
        return [*head, ("expression", query["Expression"]), ("label", query["Label"])]
    metric, stat = query["MetricStat"]["Metric"], query["MetricStat"]
    return [
        *head,
        TerraformBlock(
            "metric",
            [
                ("namespace", metric["Namespace"]),
                ("metric_name", metric["MetricName"]),
                ("period", stat["Period"]),
                ("stat", stat["Stat"]),
                ("dimensions", {each["Name"]: each["Value"] for each in metric["Dimensions"]}),
            ],
        ),
    ]


def _lines(block: TerraformBlock, indent: str = "") -> Iterator[str]:
    yield f"{indent}{block.head} {{"
    for each in block.body:
        if isinstance(each, TerraformBlock):
            yield from _lines(each, f"{indent}  ")
        else:
            name, value = each
            yield f"{indent}  {name} = {_written(value)}"
    yield f"{indent}}}"


def _written(value: Value) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, str):
        # as in JSON, but for what begins an expression
        return _without_expressions(json.dumps(value, ensure_ascii=False))
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_written(name)} = {_written(each)}" for name, each in value.items()) + " }"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value)


def _heredoc(text: str) -> str:
    return f"base64encode(<<{_END}\n{_without_expressions(text)}{_END}\n  )"


def _without_expressions(text: str) -> str:
    return text.replace("${", "$${").replace("%{", "%%{")
