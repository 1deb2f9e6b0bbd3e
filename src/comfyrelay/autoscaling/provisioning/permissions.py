"""What each of the three must be allowed to: who makes a fleet, the control plane, and an instance."""

from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.autoscaling.providers.aws.names import FLEET_TAG, NAME_TAG, Names

# Those of who makes a fleet that AWS cannot narrow to a resource, or only by an id that is not known before.
_MAKING_ANYWHERE = (
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeLifecycleHooks",
    "autoscaling:DescribePolicies",
    "cloudwatch:DescribeAlarms",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeLaunchTemplateVersions",
    "ec2:DescribeLaunchTemplates",
    # a group with a launch template is made only by who could launch from it
    "ec2:RunInstances",
    "servicequotas:GetAWSDefaultServiceQuota",
    "servicequotas:GetServiceQuota",
    "sts:GetCallerIdentity",
)
_MAKING_GROUP = (
    "autoscaling:CreateAutoScalingGroup",
    "autoscaling:CreateOrUpdateTags",
    "autoscaling:DeleteAutoScalingGroup",
    "autoscaling:DeleteLifecycleHook",
    "autoscaling:DeletePolicy",
    "autoscaling:PutLifecycleHook",
    "autoscaling:PutScalingPolicy",
    "autoscaling:UpdateAutoScalingGroup",
)
_MAKING_BUDGET = ("budgets:ModifyBudget", "budgets:ViewBudget")
_MAKING_ALARM = ("cloudwatch:DeleteAlarms", "cloudwatch:PutMetricAlarm")
_CHANGING_TEMPLATE = ("ec2:CreateLaunchTemplateVersion", "ec2:DeleteLaunchTemplate")
_MAKING_SECRET = ("ssm:DeleteParameter", "ssm:GetParameter", "ssm:PutParameter")
# Those that AWS cannot narrow to a resource.
_LOOKING = (
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeScalingActivities",
    "ec2:DescribeInstances",
    "ec2:DescribeSpotPriceHistory",
)
_STEERING = ("autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup")
_INSTANCE = ("autoscaling:CompleteLifecycleAction", "autoscaling:SetInstanceProtection")


def permissions(names: Names, *, namespace: str) -> dict[str, Any]:
    """IAM policies, by who needs them. `namespace` is that of the figures in CloudWatch."""
    of_fleet = {"StringEquals": {f"autoscaling:ResourceTag/{FLEET_TAG}": names.fleet}}
    group = f"arn:aws:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/{names.group}"
    secret = f"arn:aws:ssm:*:*:parameter{names.secret}"
    figures = {"StringEquals": {"cloudwatch:namespace": namespace}}
    return {
        "operator": _policy(_operator(names, group=group, secret=secret)),
        "control_plane": _policy(
            [
                _allow(_LOOKING),
                _allow(_STEERING, group, of_fleet),
                _allow(("cloudwatch:PutMetricData",), condition=figures),
            ]
        ),
        "instance": _policy([_allow(("ssm:GetParameter",), secret), _allow(_INSTANCE, group)]),
    }


def _operator(names: Names, *, group: str, secret: str) -> Sequence[dict[str, Any]]:
    # the ARN of a template has an id that AWS makes up, so it is known by its tags
    template = "arn:aws:ec2:*:*:launch-template/*"
    asked_for = {"StringEquals": {f"aws:RequestTag/{NAME_TAG}": names.group}}
    tagged = {"StringEquals": {f"aws:ResourceTag/{NAME_TAG}": names.group}}
    # which role is in the instance profile is not known here; it can be handed to machines alone
    to_machines = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    of_services = {"StringEquals": {"iam:AWSServiceName": ["autoscaling.amazonaws.com", "spot.amazonaws.com"]}}
    return [
        _allow(_MAKING_ANYWHERE),
        _allow(_MAKING_GROUP, group),
        _allow(_MAKING_SECRET, secret),
        _allow(_MAKING_BUDGET, f"arn:aws:budgets::*:budget/{names.budget}"),
        _allow(_MAKING_ALARM, f"arn:aws:cloudwatch:*:*:alarm:{names.from_zero}"),
        # what is launched for the group is tagged, too: machines and their volumes
        _allow(("ec2:CreateTags",), "arn:aws:ec2:*:*:*/*", asked_for),
        _allow(("ec2:CreateLaunchTemplate",), template, asked_for),
        _allow(_CHANGING_TEMPLATE, template, tagged),
        _allow(("iam:PassRole",), "arn:aws:iam::*:role/*", to_machines),
        _allow(("iam:CreateServiceLinkedRole",), "arn:aws:iam::*:role/aws-service-role/*", of_services),
    ]


def _allow(allowed: Sequence[str], resource: str = "*", condition: Mapping[str, Any] | None = None) -> dict[str, Any]:
    found = {"Effect": "Allow", "Action": list(allowed), "Resource": resource}
    return found if condition is None else {**found, "Condition": condition}


def actions(policy: dict[str, Any]) -> Sequence[str]:
    return [action for statement in policy["Statement"] for action in statement["Action"]]


def _policy(statements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}
