"""What each of the three must be allowed to: who makes a fleet, the control plane, and an instance."""

from collections.abc import Sequence
from typing import Any

from comfyrelay.fleet.providers.aws.names import FLEET_TAG, Names

_MAKING = (
    "autoscaling:CreateAutoScalingGroup",
    "autoscaling:CreateOrUpdateTags",
    "autoscaling:DeleteAutoScalingGroup",
    "autoscaling:DeleteLifecycleHook",
    "autoscaling:DeletePolicy",
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeLifecycleHooks",
    "autoscaling:DescribePolicies",
    "autoscaling:PutLifecycleHook",
    "autoscaling:PutScalingPolicy",
    "autoscaling:UpdateAutoScalingGroup",
    "budgets:ModifyBudget",
    "budgets:ViewBudget",
    "cloudwatch:DeleteAlarms",
    "cloudwatch:DescribeAlarms",
    "cloudwatch:PutMetricAlarm",
    "ec2:CreateLaunchTemplate",
    "ec2:CreateLaunchTemplateVersion",
    "ec2:CreateTags",
    "ec2:DeleteLaunchTemplate",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeLaunchTemplateVersions",
    "ec2:DescribeLaunchTemplates",
    # a group with a launch template is made only by who could launch from it
    "ec2:RunInstances",
    "iam:CreateServiceLinkedRole",
    "iam:PassRole",
    "servicequotas:GetAWSDefaultServiceQuota",
    "servicequotas:GetServiceQuota",
    "ssm:DeleteParameter",
    "ssm:GetParameter",
    "ssm:PutParameter",
    "sts:GetCallerIdentity",
)
# Those that AWS cannot narrow to a resource.
_LOOKING = (
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeScalingActivities",
    "ec2:DescribeInstances",
    "ec2:DescribeSpotPriceHistory",
)
_STEERING = ("autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup")
_INSTANCE = ("autoscaling:CompleteLifecycleAction", "autoscaling:SetInstanceProtection")


def permissions(names: Names) -> dict[str, Any]:
    """IAM policies, by who needs them."""
    of_fleet = {"StringEquals": {f"autoscaling:ResourceTag/{FLEET_TAG}": names.fleet}}
    group = f"arn:aws:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/{names.group}"
    return {
        "operator": _policy([{"Effect": "Allow", "Action": _MAKING, "Resource": "*"}]),
        "control_plane": _policy(
            [
                {"Effect": "Allow", "Action": _LOOKING, "Resource": "*"},
                {"Effect": "Allow", "Action": _STEERING, "Resource": group, "Condition": of_fleet},
            ]
        ),
        "instance": _policy(
            [
                {
                    "Effect": "Allow",
                    "Action": ("ssm:GetParameter",),
                    "Resource": f"arn:aws:ssm:*:*:parameter{names.secret}",
                },
                {"Effect": "Allow", "Action": _INSTANCE, "Resource": group},
            ]
        ),
    }


def actions(policy: dict[str, Any]) -> Sequence[str]:
    return [action for statement in policy["Statement"] for action in statement["Action"]]


def _policy(statements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [{**each, "Action": list(each["Action"])} for each in statements]}
