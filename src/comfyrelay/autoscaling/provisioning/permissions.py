"""IAM policies of the operator who provisions a fleet, the control plane, and the instances."""

from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.autoscaling.providers.aws.names import FLEET_TAG, NAME_TAG, Names

# AWS cannot restrict these to a resource at all, or only by an id that is not known in advance.
_OPERATOR_ANYWHERE = (
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeLifecycleHooks",
    "autoscaling:DescribePolicies",
    "cloudwatch:DescribeAlarms",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeLaunchTemplateVersions",
    "ec2:DescribeLaunchTemplates",
    # Required to create a group with a launch template.
    "ec2:RunInstances",
    "servicequotas:GetAWSDefaultServiceQuota",
    "servicequotas:GetServiceQuota",
    "sts:GetCallerIdentity",
)
_OPERATOR_GROUP = (
    "autoscaling:CreateAutoScalingGroup",
    "autoscaling:CreateOrUpdateTags",
    "autoscaling:DeleteAutoScalingGroup",
    "autoscaling:DeleteLifecycleHook",
    "autoscaling:DeletePolicy",
    "autoscaling:PutLifecycleHook",
    "autoscaling:PutScalingPolicy",
    "autoscaling:SuspendProcesses",
    "autoscaling:UpdateAutoScalingGroup",
)
_OPERATOR_BUDGET = ("budgets:ModifyBudget", "budgets:ViewBudget")
_OPERATOR_ALARM = ("cloudwatch:DeleteAlarms", "cloudwatch:PutMetricAlarm")
_OPERATOR_TEMPLATE = ("ec2:CreateLaunchTemplateVersion", "ec2:DeleteLaunchTemplate")
_OPERATOR_SECRET = ("ssm:DeleteParameter", "ssm:GetParameter", "ssm:PutParameter")
# AWS cannot restrict these to a resource.
_CONTROL_PLANE_ANYWHERE = (
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeScalingActivities",
    "ec2:DescribeInstances",
    "ec2:DescribeSpotPriceHistory",
)
_CONTROL_PLANE_GROUP = ("autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup")
_INSTANCE = ("autoscaling:CompleteLifecycleAction", "autoscaling:SetInstanceProtection")


def permissions(names: Names, *, namespace: str) -> dict[str, Any]:
    """Return the IAM policies by role. `namespace` is the CloudWatch namespace of the metrics."""
    fleet_tag = {"StringEquals": {f"autoscaling:ResourceTag/{FLEET_TAG}": names.fleet}}
    group = f"arn:aws:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/{names.group}"
    secret = f"arn:aws:ssm:*:*:parameter{names.secret}"
    metrics = {"StringEquals": {"cloudwatch:namespace": namespace}}
    return {
        "operator": _policy(_operator(names, group=group, secret=secret)),
        "control_plane": _policy(
            [
                _allow(_CONTROL_PLANE_ANYWHERE),
                _allow(_CONTROL_PLANE_GROUP, group, fleet_tag),
                _allow(("cloudwatch:PutMetricData",), condition=metrics),
            ]
        ),
        "instance": _policy([_allow(("ssm:GetParameter",), secret), _allow(_INSTANCE, group)]),
    }


def _operator(names: Names, *, group: str, secret: str) -> Sequence[dict[str, Any]]:
    # AWS chooses the id in the ARN of a template, so restrict access by tag.
    template = "arn:aws:ec2:*:*:launch-template/*"
    request_tag = {"StringEquals": {f"aws:RequestTag/{NAME_TAG}": names.group}}
    resource_tag = {"StringEquals": {f"aws:ResourceTag/{NAME_TAG}": names.group}}
    # The role of the instance profile is not known here, so allow passing any role, but only to EC2.
    to_ec2 = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    to_services = {"StringEquals": {"iam:AWSServiceName": ["autoscaling.amazonaws.com", "spot.amazonaws.com"]}}
    return [
        _allow(_OPERATOR_ANYWHERE),
        _allow(_OPERATOR_GROUP, group),
        _allow(_OPERATOR_SECRET, secret),
        _allow(_OPERATOR_BUDGET, f"arn:aws:budgets::*:budget/{names.budget}"),
        _allow(_OPERATOR_ALARM, f"arn:aws:cloudwatch:*:*:alarm:{names.from_zero}"),
        # Instances and volumes that the group launches are tagged, too.
        _allow(("ec2:CreateTags",), "arn:aws:ec2:*:*:*/*", request_tag),
        _allow(("ec2:CreateLaunchTemplate",), template, request_tag),
        _allow(_OPERATOR_TEMPLATE, template, resource_tag),
        _allow(("iam:PassRole",), "arn:aws:iam::*:role/*", to_ec2),
        _allow(("iam:CreateServiceLinkedRole",), "arn:aws:iam::*:role/aws-service-role/*", to_services),
    ]


def _allow(allowed: Sequence[str], resource: str = "*", condition: Mapping[str, Any] | None = None) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": list(allowed), "Resource": resource}
    return statement if condition is None else {**statement, "Condition": condition}


def actions(policy: dict[str, Any]) -> Sequence[str]:
    return [action for statement in policy["Statement"] for action in statement["Action"]]


def _policy(statements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}
