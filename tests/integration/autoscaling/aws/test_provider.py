"""Machines by an Auto Scaling group, against moto's server behind the proxy."""

import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from comfyrelay.autoscaling.providers.aws import AwsProvider
from comfyrelay.autoscaling.providers.base import MachineOrder, MachineProvider, ProviderFleet, RefusalKind
from comfyrelay.domain.autoscaling.spec import MAX_MACHINES
from comfyrelay.errors import ProviderError
from tests.support.aws_account import Account, provisioned
from tests.support.aws_proxy import NO_CAPACITY, OVER_QUOTA
from tests.support.provider_contract import FLEET, STAGE, Site, ThrottledContract, ThrottledSite


def group_of(fleet: ProviderFleet) -> str:
    return f"asg-{fleet.stage}-{fleet.slug}"


class AwsSite(ThrottledSite):
    def __init__(self, account: Account) -> None:
        self._account = account
        self._made: set[str] = set()

    def provider(self) -> MachineProvider:
        return AwsProvider(first_pause_seconds=0.001)

    async def fleet(self, slug: str = FLEET, *, stage: str = STAGE, max_machines: int = MAX_MACHINES) -> ProviderFleet:
        fleet = self._account.fleet(slug, stage=stage, max_machines=max_machines)
        if group_of(fleet) not in self._made:
            await provisioned(fleet)
            self._made.add(group_of(fleet))
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
    found = AwsProvider(first_pause_seconds=0.001)
    yield found
    await found.close()


@pytest.fixture
async def fleet(account: Account) -> ProviderFleet:
    found = account.fleet()
    await provisioned(found)
    return found


def orders(count: int) -> list[MachineOrder]:
    return [MachineOrder(key=str(number)) for number in range(count)]


async def test_a_machine_has_the_id_of_its_instance_and_so_has_its_worker(
    account: Account, provider: AwsProvider, fleet: ProviderFleet
) -> None:
    account.proxy.let_boot("asg-production-video")
    await provider.launch(fleet, orders(1), total=1)

    [found] = await provider.observe(fleet)

    [instance] = account.group("asg-production-video")["Instances"]
    assert found.id == found.worker_id == instance["InstanceId"]
    assert found.instance_type == "g4dn.xlarge"
    assert found.launched_at is not None
    # it is asked about once
    before = account.proxy.calls["DescribeInstances"]
    assert [each.launched_at for each in await provider.observe(fleet)] == [found.launched_at]
    assert account.proxy.calls["DescribeInstances"] == before


async def test_a_large_group_is_asked_about_in_portions(account: Account, provider: AwsProvider) -> None:
    fleet = account.fleet(max_machines=201)
    await provisioned(fleet)
    account.proxy.let_boot(group_of(fleet))
    await provider.launch(fleet, orders(201), total=201)
    before = account.proxy.calls["DescribeInstances"]
    found = await provider.observe(fleet)
    assert len(found) == sum(each.launched_at is not None for each in found) == 201
    assert account.proxy.calls["DescribeInstances"] == before + 2


async def test_what_the_group_still_looks_for_is_not_ordered_again(
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


async def test_a_smaller_total_lowers_nothing(account: Account, provider: AwsProvider, fleet: ProviderFleet) -> None:
    await provider.launch(fleet, orders(3), total=3)

    await provider.launch(fleet, orders(1), total=1)

    assert account.group("asg-production-video")["DesiredCapacity"] == 3


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        (NO_CAPACITY, RefusalKind.CAPACITY),
        (OVER_QUOTA, RefusalKind.QUOTA),
        ("The image id '[ami-0]' does not exist. Launching EC2 instance failed.", RefusalKind.SETUP),
    ],
)
async def test_what_the_group_could_not_get_is_refused_and_no_longer_wanted(
    account: Account, provider: AwsProvider, fleet: ProviderFleet, why: str, kind: RefusalKind
) -> None:
    account.proxy.have_capacity("asg-production-video", 1, why=why)

    result = await provider.launch(fleet, orders(3), total=3)

    assert [each.kind for each in result.refused] == [kind, kind]
    assert why.rstrip(".") in result.refused[0].text
    assert len(await provider.observe(fleet)) == account.group("asg-production-video")["DesiredCapacity"] == 1


async def test_a_failure_of_long_ago_is_no_answer_to_a_new_order(
    account: Account, provider: AwsProvider, fleet: ProviderFleet
) -> None:
    account.proxy.have_capacity("asg-production-video", 0)
    assert (await provider.launch(fleet, orders(1), total=1)).refused
    account.proxy.have_capacity("asg-production-video", 0, why=None)

    result = await provider.launch(fleet, orders(1), total=1)

    assert not result.refused
    assert account.group("asg-production-video")["DesiredCapacity"] == 1


async def test_who_comes_after_a_crash_learns_that_the_group_could_not_get_it(
    account: Account, fleet: ProviderFleet
) -> None:
    # the one that asked is gone before it could hear the answer
    account.proxy.have_capacity("asg-production-video", 0)
    account.client("autoscaling").set_desired_capacity(AutoScalingGroupName="asg-production-video", DesiredCapacity=1)
    other = AwsProvider()

    result = await other.launch(fleet, orders(1), total=1)
    await other.close()

    assert [each.kind for each in result.refused] == [RefusalKind.CAPACITY]
    assert account.group("asg-production-video")["DesiredCapacity"] == 0


async def test_the_maximum_of_the_group_is_told_with_what_to_do(
    account: Account, provider: AwsProvider, fleet: ProviderFleet
) -> None:
    # somebody made it smaller in the console
    account.client("autoscaling").update_auto_scaling_group(AutoScalingGroupName="asg-production-video", MaxSize=2)

    result = await provider.launch(fleet, orders(3), total=3)

    assert [each.kind for each in result.refused] == [RefusalKind.QUOTA]
    assert "may have 2 machines" in result.refused[0].text
    assert account.group("asg-production-video")["DesiredCapacity"] == 2


async def test_a_group_that_is_missing_says_how_it_is_made(account: Account, provider: AwsProvider) -> None:
    fleet = account.fleet("nowhere")

    [refused] = (await provider.launch(fleet, orders(1), total=1)).refused

    assert refused.kind is RefusalKind.SETUP
    assert "run `comfyrelay fleet provision nowhere --stage production`" in refused.text
    with pytest.raises(ProviderError, match="fleet provision nowhere"):
        await provider.observe(fleet)


async def test_a_slug_that_cannot_be_a_name_at_aws_is_refused_with_the_letters_that_can(
    account: Account, provider: AwsProvider
) -> None:
    [refused] = (await provider.launch(account.fleet("my fleet; rm"), orders(1), total=1)).refused

    assert refused.kind is RefusalKind.SETUP
    assert "letters, digits" in refused.text


async def test_no_credentials_are_a_matter_of_setup(
    fleet: ProviderFleet, provider: AwsProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    [refused] = (await provider.launch(fleet, orders(1), total=1)).refused

    assert refused.kind is RefusalKind.SETUP
    assert "credentials" in refused.text


async def test_the_prices_are_those_of_the_dearest_zone_that_the_group_may_use(
    account: Account, provider: AwsProvider, fleet: ProviderFleet
) -> None:
    zones = set(account.group("asg-production-video")["AvailabilityZones"])
    history = account.client("ec2").describe_spot_price_history(InstanceTypes=["g4dn.xlarge"])["SpotPriceHistory"]
    dearest = max(float(each["SpotPrice"]) for each in history if each["AvailabilityZone"] in zones)

    found = {each.name: each for each in await provider.prices(fleet)}

    assert found["g4dn.xlarge"].price_per_hour == dearest
    assert found["g5.xlarge"].speed == 2.0


def test_boto3_is_imported_only_by_who_asks_aws() -> None:
    code = (
        "import sys, comfyrelay.cli.main, comfyrelay.autoscaling.provisioning.terraform;"
        "import comfyrelay.autoscaling.providers.aws as aws;"
        "aws.AwsProvider(); print('boto3' in sys.modules or 'botocore' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False"


async def test_an_enqueue_is_two_calls_before_the_launch_and_one_after(
    account: Account, provider: AwsProvider, fleet: ProviderFleet
) -> None:
    account.proxy.calls.clear()

    await provider.launch(fleet, orders(1), total=1)

    assert account.proxy.calls == {
        "DescribeAutoScalingGroups": 1,
        "DescribeScalingActivities": 2,
        "SetDesiredCapacity": 1,
    }
