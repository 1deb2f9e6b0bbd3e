"""Workers on EC2 instances are checked against Auto Scaling (moto's server)."""

from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer

from comfyrelay.errors import Forbidden
from comfyrelay.services.workers.instances import InstanceCheck

REGION = "us-east-1"


@pytest.fixture
def aws_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
    }.items():
        monkeypatch.setenv(name, value)
    yield url
    server.stop()


@pytest.fixture
def instance_id(aws_url: str) -> str:
    """Return the id of an instance started by an Auto Scaling group."""
    image = boto3.client("ec2").describe_images()["Images"][0]["ImageId"]
    scaling = boto3.client("autoscaling")
    scaling.create_launch_configuration(LaunchConfigurationName="gpu", ImageId=image, InstanceType="g5.xlarge")
    scaling.create_auto_scaling_group(
        AutoScalingGroupName="gpu",
        LaunchConfigurationName="gpu",
        MinSize=1,
        MaxSize=1,
        AvailabilityZones=[f"{REGION}a"],
    )
    [group] = scaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    found: str = group["Instances"][0]["InstanceId"]
    return found


async def test_only_instances_of_a_group_are_accepted(instance_id: str) -> None:
    check = InstanceCheck(is_on=True)
    await check.check(instance_id)
    with pytest.raises(Forbidden, match="belongs to no Auto Scaling group"):
        await check.check("i-0123456789abcdef0")


async def test_only_instance_ids_are_checked(aws_url: str) -> None:
    await InstanceCheck(is_on=True).check("under-the-desk")
    await InstanceCheck(is_on=False).check("i-0123456789abcdef0")


async def test_worker_is_accepted_while_aws_is_unreachable(aws_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    await InstanceCheck(is_on=True).check("i-0123456789abcdef0")
