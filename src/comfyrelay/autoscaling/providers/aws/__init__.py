"""Machines in EC2 Auto Scaling groups."""

from comfyrelay.autoscaling.providers.aws.provider import AwsProvider

__all__ = ["AwsProvider"]
