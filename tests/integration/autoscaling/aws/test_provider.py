"""Machines of an Auto Scaling group, against moto behind a proxy."""

import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from comfyrelay.autoscaling.providers.aws import AwsProvider
from comfyrelay.autoscaling.providers.base import MachineOrder, MachineProvider, ProviderFleet, RefusalKind
from comfyrelay.domain.autoscaling.spec import DEFAULT_MAX_MACHINES
from comfyrelay.errors import ProviderError
from tests.support.aws_account import Account, provisioned
from tests.support.aws_proxy import NO_CAPACITY, OVER_QUOTA
from tests.support.provider_contract import FLEET, STAGE, Site, ThrottledContract, ThrottledSite


def group_of(fleet: ProviderFleet) -> str:
    return f"asg-{fleet.stage}-{fleet.slug}"


class AwsSite(ThrottledSite):
    def __init__(self, account: Account) -> None:
        self._account = account
        self._provisioned: set[str] = set()

    def provider(self) -> MachineProvider:
        return AwsProvider(first_pause_seconds=0.001)

    async def fleet(
        self, slug: str = FLEET, *, stage: str = STAGE, max_machines: int = DEFAULT_MAX_MACHINES
    ) -> ProviderFleet:
        fleet = self._account.fleet(slug, stage=stage, max_machines=max_machines)
        if group_of(fleet) not in self._provisioned:
            await provisioned(fleet)
            self._provisioned.add(group_of(fleet))
        return fleet

    async def existing(self, fleet: ProviderFleet) -> int:
        return len(self._account.group(group_of(fleet))["Instances"])

    async def boot(self, fleet: ProviderFleet) -> None:
        self._account.proxy.let_boot(group_of(fleet))

    async def refuse(self, fleet: ProviderFleet) -> RefusalKind:
        self._account.proxy.have_capacity(group_of(fleet), 0)
        return RefusalKind.CAPACITY

    async def cut_off(self) -> None:
        self._account.proxy.is_cut_off = True

    async def throttle(self, calls: int) -> None:
        self._account.proxy.throttled = calls


@pytest.fixture
def site(account: Account) -> Site:
    return AwsSite(account)


class TestContract(ThrottledContract):
    pass


@pytest.fixture
async def provider() -> AsyncIterator[AwsProvider]:
    provider = AwsProvider(first_pause_seconds=0.001)
    yield provider
    await provider.close()


@pytest.fixture
async def fleet(account: Account) -> ProviderFleet:
    fleet = account.fleet()
    await provisioned(fleet)
    return fleet


def orders(count: int) -> list[MachineOrder]:
    return [MachineOrder(key=str(number)) for number in range(count)]


async def test_machine_has_the_id_of_its_instance_and_is_described_once(
    account: Account, provider: AwsProvider, fleet: ProviderFleet
) -> None:
    account.proxy.let_boot("asg-production-video")
    account.proxy.calls.clear()
    await provider.launch(fleet, orders(1), total=1)
    assert account.proxy.calls == {
        "DescribeAutoScalingGroups": 1,
        "DescribeScalingActivities": 2,
        "SetDesiredCapacity": 1,
    }

    [found] = await provider.observe(fleet)
    [found_again] = await provider.observe(fleet)

    [instance] = account.group("asg-production-video")["Instances"]
    assert found.id == found.worker_id == instance["InstanceId"]
    assert found.instance_type == "g4dn.xlarge"
    assert found.launched_at is not None
    assert found.launched_at == found_again.launched_at
    assert account.proxy.calls["DescribeInstances"] == 1


async def test_large_group_is_described_in_batches(
    account: Account, provider: AwsProvider, fleet: ProviderFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comfyrelay.autoscaling.providers.aws.provider._MAX_FILTER_VALUES", 2)
    account.proxy.let_boot(group_of(fleet))
    await provider.launch(fleet, orders(5), total=5)
    account.proxy.calls.clear()
    found = await provider.observe(fleet)
    assert len(found) == sum(machine.launched_at is not None for machine in found) == 5
    assert account.proxy.calls["DescribeInstances"] == 3


async def test_pending_capacity_is_not_requested_again(
    account: Account, provider: AwsProvider, fleet: ProviderFleet
) -> None:
    account.proxy.have_capacity("asg-production-video", 1, why=None)
    assert not (await provider.launch(fleet, orders(3), total=3)).refused
    assert len(await provider.observe(fleet)) == 1

    result = await provider.launch(fleet, orders(3), total=3)

    assert not result.refused
    assert account.proxy.calls["SetDesiredCapacity"] == 1
    account.proxy.find_capacity("asg-production-video")
    assert len(await provider.observe(fleet)) == 3


async def test_smaller_total_does_not_shrink_the_group(
    account: Account, provider: AwsProvider, fleet: ProviderFleet
) -> None:
    await provider.launch(fleet, orders(3), total=3)

    await provider.launch(fleet, orders(1), total=1)

    assert account.group("asg-production-video")["DesiredCapacity"] == 3


async def test_failed_launches_are_refused_and_withdrawn(
    account: Account, provider: AwsProvider, fleet: ProviderFleet
) -> None:
    for message, kind in (
        (NO_CAPACITY, RefusalKind.CAPACITY),
        (OVER_QUOTA, RefusalKind.QUOTA),
        ("The image id '[ami-0]' does not exist. Launching EC2 instance failed.", RefusalKind.SETUP),
    ):
        account.proxy.have_capacity("asg-production-video", 1, why=message)
        result = await provider.launch(fleet, orders(3), total=3)
        assert [refusal.kind for refusal in result.refused] == [kind, kind]
        assert message.rstrip(".") in result.refused[0].text
        assert len(await provider.observe(fleet)) == account.group("asg-production-video")["DesiredCapacity"] == 1

    # An old failure does not refuse a new order.
    account.proxy.have_capacity("asg-production-video", 1, why=None)
    assert not (await provider.launch(fleet, orders(2), total=2)).refused
    assert account.group("asg-production-video")["DesiredCapacity"] == 2


async def test_failure_is_reported_after_a_crash(account: Account, fleet: ProviderFleet) -> None:
    # The process that requested the instance has crashed.
    account.proxy.have_capacity("asg-production-video", 0)
    account.client("autoscaling").set_desired_capacity(AutoScalingGroupName="asg-production-video", DesiredCapacity=1)
    other = AwsProvider()

    result = await other.launch(fleet, orders(1), total=1)
    await other.close()

    assert [refusal.kind for refusal in result.refused] == [RefusalKind.CAPACITY]
    assert account.group("asg-production-video")["DesiredCapacity"] == 0


async def test_maximum_of_the_group_is_reported(account: Account, provider: AwsProvider, fleet: ProviderFleet) -> None:
    account.client("autoscaling").update_auto_scaling_group(AutoScalingGroupName="asg-production-video", MaxSize=2)

    result = await provider.launch(fleet, orders(3), total=3)

    assert [refusal.kind for refusal in result.refused] == [RefusalKind.QUOTA]
    assert "may have 2 machines" in result.refused[0].text
    assert account.group("asg-production-video")["DesiredCapacity"] == 2


async def test_missing_group_names_the_command_that_creates_it(account: Account, provider: AwsProvider) -> None:
    fleet = account.fleet("nowhere")

    [refused] = (await provider.launch(fleet, orders(1), total=1)).refused

    assert refused.kind is RefusalKind.SETUP
    assert "run `comfyrelay fleet provision nowhere --stage production`" in refused.text
    with pytest.raises(ProviderError, match="fleet provision nowhere"):
        await provider.observe(fleet)
    # A slug that is not an AWS name cannot have a group.
    [refused] = (await provider.launch(account.fleet("my fleet; rm"), orders(1), total=1)).refused
    assert refused.kind is RefusalKind.SETUP
    assert "letters, digits" in refused.text


async def test_missing_credentials_are_a_setup_error(
    fleet: ProviderFleet, provider: AwsProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    [refused] = (await provider.launch(fleet, orders(1), total=1)).refused

    assert refused.kind is RefusalKind.SETUP
    assert "credentials" in refused.text


async def test_spot_price_of_the_most_expensive_zone_is_used(
    account: Account, provider: AwsProvider, fleet: ProviderFleet
) -> None:
    zones = set(account.group("asg-production-video")["AvailabilityZones"])
    history = account.client("ec2").describe_spot_price_history(InstanceTypes=["g4dn.xlarge"])["SpotPriceHistory"]
    highest = max(float(entry["SpotPrice"]) for entry in history if entry["AvailabilityZone"] in zones)

    found = {price.name: price for price in await provider.prices(fleet)}

    assert found["g4dn.xlarge"].price_per_hour == highest
    assert found["g5.xlarge"].speed == 2.0


def test_boto3_is_imported_on_first_use() -> None:
    code = (
        "import sys, comfyrelay.cli.main, comfyrelay.autoscaling.provisioning.provision;"
        "import comfyrelay.autoscaling.providers.aws as aws;"
        "aws.AwsProvider(); print('boto3' in sys.modules or 'botocore' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False"
