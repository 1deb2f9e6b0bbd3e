"""The AWS resources of a fleet, as arguments for API calls. deploy/terraform describes the same resources."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.autoscaling.providers.aws.names import FLEET_TAG, HOOK, NAME_TAG, STAGE_TAG, Names
from comfyrelay.autoscaling.providers.base import ProviderFleet
from comfyrelay.autoscaling.provisioning.options import AwsOptions
from comfyrelay.autoscaling.provisioning.user_data import HOOK_SECONDS, user_data
from comfyrelay.domain.autoscaling.baseline import BACKLOG_TARGET
from comfyrelay.errors import InvalidInput

WARM_UP_SECONDS = 300
# Percent of the budget at which AWS sends an email: of actual costs, and of the forecast for the month.
SPENT_PERCENT = 80.0
FORECAST_PERCENT = 100.0


@dataclass(frozen=True, kw_only=True)
class Budget:
    limit: Mapping[str, Any]
    notifications: Sequence[Mapping[str, Any]]
    email: str


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """Scaling policies that launch machines even if no autoscaling loop runs. They never terminate machines."""

    from_zero: Mapping[str, Any]
    # The alarm without its action, which is the ARN of the policy.
    alarm: Mapping[str, Any]
    backlog: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    names: Names
    region: str
    script: str
    launch_template: Mapping[str, Any]
    # The group without tags, and without the desired capacity, which is only set at creation.
    group: Mapping[str, Any]
    hook: Mapping[str, Any]
    budget: Budget | None
    fallback: Fallback | None


def build_blueprint(
    fleet: ProviderFleet, options: AwsOptions, *, region: str, api_base_url: str, namespace: str
) -> Blueprint:
    """Describe the resources. `namespace` is the CloudWatch namespace of the metrics.

    Raises `InvalidInput` if a required option is missing.
    """
    _require_options(fleet, options)
    names = Names(fleet.slug, fleet.stage)
    script = user_data(names, options, region=region, api_base_url=api_base_url)
    return Blueprint(
        names=names,
        region=region,
        script=script,
        launch_template=_launch_template(fleet, names, options, script),
        group=_group(fleet, names, options),
        hook={
            "AutoScalingGroupName": names.group,
            "LifecycleHookName": HOOK,
            "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
            "HeartbeatTimeout": HOOK_SECONDS,
            # Terminate the instance even if its worker never completes the hook.
            "DefaultResult": "CONTINUE",
        },
        budget=_budget(names, options),
        fallback=_fallback(names, namespace) if options.cloudwatch_fallback else None,
    )


def _require_options(fleet: ProviderFleet, options: AwsOptions) -> None:
    errors = {
        name: text
        for name, is_missing, text in (
            ("image", not fleet.spec.image, "Set the image (AMI) of the instances."),
            ("instance_types", not fleet.spec.instance_types, "Set at least one instance type, such as g4dn.xlarge."),
            ("options.subnets", not options.subnets, "Set subnets, in three availability zones if possible."),
            (
                "options.instance_profile",
                not options.instance_profile,
                "Set the instance profile: instances need its role to read the fleet's secret.",
            ),
            (
                "options.budget_email",
                bool(options.budget_usd_per_month) and not options.budget_email,
                "Set the address for budget alerts.",
            ),
        )
        if is_missing
    }
    if errors:
        raise InvalidInput(errors=errors)


def _launch_template(fleet: ProviderFleet, names: Names, options: AwsOptions, script: str) -> dict[str, Any]:
    profile = options.instance_profile or ""
    tags = [{"Key": name, "Value": value} for name, value in names.tags.items()]
    template: dict[str, Any] = {
        "ImageId": fleet.spec.image,
        # This type is for manual launches. The group has its own list.
        "InstanceType": fleet.spec.instance_types[0].name,
        "IamInstanceProfile": {"Arn" if profile.startswith("arn:") else "Name": profile},
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            # A worker in a container is one network hop further away.
            "HttpPutResponseHopLimit": 2,
        },
        # The group tags instances, but not their volumes.
        "TagSpecifications": [{"ResourceType": "volume", "Tags": tags}],
        "UserData": base64.b64encode(script.encode()).decode(),
    }
    if options.security_groups:
        template["SecurityGroupIds"] = list(options.security_groups)
    if options.key_name:
        template["KeyName"] = options.key_name
    if options.volume_gib:
        template["BlockDeviceMappings"] = [
            {
                "DeviceName": options.root_device,
                "Ebs": {"VolumeSize": options.volume_gib, "VolumeType": "gp3", "DeleteOnTermination": True},
            }
        ]
    return template


def _group(fleet: ProviderFleet, names: Names, options: AwsOptions) -> dict[str, Any]:
    return {
        "AutoScalingGroupName": names.group,
        "MixedInstancesPolicy": {
            "LaunchTemplate": {
                "LaunchTemplateSpecification": {"LaunchTemplateName": names.launch_template, "Version": "$Latest"},
                # The strategy follows this order of preference.
                "Overrides": [{"InstanceType": instance_type.name} for instance_type in fleet.spec.instance_types],
            },
            "InstancesDistribution": {
                "OnDemandBaseCapacity": 0,
                "OnDemandPercentageAboveBaseCapacity": 0,
                "SpotAllocationStrategy": "capacity-optimized-prioritized",
                # An empty price means up to the On-Demand price.
                "SpotMaxPrice": "",
            },
        },
        "MinSize": 0,
        "MaxSize": fleet.max_machines,
        "VPCZoneIdentifier": ",".join(options.subnets),
        "CapacityRebalance": True,
        "DefaultInstanceWarmup": WARM_UP_SECONDS,
    }


def _budget(names: Names, options: AwsOptions) -> Budget | None:
    if options.budget_usd_per_month is None or options.budget_email is None:
        return None
    return Budget(
        limit={
            "BudgetName": names.budget,
            "BudgetLimit": {"Amount": f"{options.budget_usd_per_month:.2f}", "Unit": "USD"},
            "TimeUnit": "MONTHLY",
            "BudgetType": "COST",
            "CostFilters": {"TagKeyValue": [f"user:{NAME_TAG}${names.group}"]},
        },
        notifications=[
            {
                "NotificationType": kind,
                "ComparisonOperator": "GREATER_THAN",
                "Threshold": percent,
                "ThresholdType": "PERCENTAGE",
            }
            for kind, percent in (("ACTUAL", SPENT_PERCENT), ("FORECASTED", FORECAST_PERCENT))
        ],
        email=options.budget_email,
    )


def _fallback(names: Names, namespace: str) -> Fallback:
    dimensions = [{"Name": FLEET_TAG, "Value": names.fleet}, {"Name": STAGE_TAG, "Value": names.stage}]

    def metric(identifier: str, name: str) -> dict[str, Any]:
        source = {"Namespace": namespace, "MetricName": name, "Dimensions": dimensions}
        stat = {"Metric": source, "Period": 60, "Stat": "Maximum"}
        return {"Id": identifier, "MetricStat": stat, "ReturnData": False}

    return Fallback(
        from_zero={
            "AutoScalingGroupName": names.group,
            "PolicyName": names.from_zero,
            "PolicyType": "StepScaling",
            "AdjustmentType": "ChangeInCapacity",
            "MetricAggregationType": "Maximum",
            "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
        },
        alarm={
            "AlarmName": names.from_zero,
            "AlarmDescription": f"Jobs are waiting for {names.group}, but it has no workers.",
            # Only at zero workers: a step at 5 machines would add another one each minute. A booting machine is not a
            # worker yet, but the policy counts it until it is warm.
            "Metrics": [
                metric("depth", "QueueDepth"),
                metric("workers", "ActiveWorkers"),
                {
                    "Id": "waiting",
                    "Expression": "IF(FILL(workers, 0) < 1, depth, 0)",
                    "Label": "QueueDepth without a worker",
                    "ReturnData": True,
                },
            ],
            "ComparisonOperator": "GreaterThanThreshold",
            "Threshold": 0.0,
            "EvaluationPeriods": 1,
            "TreatMissingData": "notBreaching",
        },
        backlog={
            "AutoScalingGroupName": names.group,
            "PolicyName": names.backlog,
            "PolicyType": "TargetTrackingScaling",
            "TargetTrackingConfiguration": {
                "CustomizedMetricSpecification": {
                    "MetricName": "BacklogPerInstance",
                    "Namespace": namespace,
                    "Dimensions": dimensions,
                    "Statistic": "Average",
                },
                "TargetValue": BACKLOG_TARGET,
                # Only the control plane knows which machines can stop.
                "DisableScaleIn": True,
            },
        },
    )
