"""Machines by an Auto Scaling group: the provider, how AWS is asked, and what everything is called there."""

from comfyrelay.autoscaling.providers.aws.provider import AwsProvider

__all__ = ["AwsProvider"]
