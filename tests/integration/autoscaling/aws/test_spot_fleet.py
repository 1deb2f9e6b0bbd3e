"""A fleet on AWS: its resources, and its lifecycle from the first job back to zero machines."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.autoscaling.loop import ScalingLoop
from comfyrelay.autoscaling.providers.aws import AwsProvider
from comfyrelay.domain.autoscaling.spec import LAST_IDLE_SECONDS, Policy
from comfyrelay.domain.autoscaling.spec_json import machines_to_json
from comfyrelay.domain.queue.states import Stage
from tests.integration.autoscaling.aws.test_provision import ALL_OPTIONS
from tests.support.aws_account import Account, provisioned
from tests.support.full import full_only
from tests.support.memory_provider import lead
from tests.support.world import SqliteBackend, World, open_world

GROUP = "asg-production-video"


async def test_each_fleet_and_stage_has_its_own_group_and_launch_template(account: Account) -> None:
    for slug, stage in (("video", "production"), ("video", "staging"), ("stills", "production")):
        await provisioned(account.fleet(slug, stage=stage))

    groups = account.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    templates = account.client("ec2").describe_launch_templates()["LaunchTemplates"]

    names = {"production-stills", "production-video", "staging-video"}
    assert {group["AutoScalingGroupName"] for group in groups} == {f"asg-{name}" for name in names}
    assert {template["LaunchTemplateName"] for template in templates} == {f"lt-{name}" for name in names}
    for group in groups:
        template = group["MixedInstancesPolicy"]["LaunchTemplate"]["LaunchTemplateSpecification"]
        assert template["LaunchTemplateName"] == f"lt-{group['AutoScalingGroupName'].removeprefix('asg-')}"
        assert template["Version"] == "$Latest"


async def test_group_has_spot_instances_in_three_zones(account: Account) -> None:
    await provisioned(account.fleet())
    group = account.group(GROUP)

    policy = group["MixedInstancesPolicy"]
    assert policy["InstancesDistribution"]["OnDemandBaseCapacity"] == 0
    assert policy["InstancesDistribution"]["OnDemandPercentageAboveBaseCapacity"] == 0
    assert policy["InstancesDistribution"]["SpotAllocationStrategy"] == "capacity-optimized-prioritized"
    overrides = policy["LaunchTemplate"]["Overrides"]
    assert [override["InstanceType"] for override in overrides] == ["g4dn.xlarge", "g5.xlarge"]
    # Instances at risk are replaced before AWS reclaims them.
    assert group["CapacityRebalance"] is True
    assert (group["MinSize"], group["DesiredCapacity"], group["MaxSize"]) == (0, 0, 10)
    assert group["DefaultInstanceWarmup"] == 300
    tags = {tag["Key"]: (tag["Value"], tag["PropagateAtLaunch"]) for tag in group["Tags"]}
    assert (tags["FleetSlug"], tags["Stage"]) == (("video", True), ("production", True))
    subnets = group["VPCZoneIdentifier"].split(",")
    found = account.client("ec2").describe_subnets(SubnetIds=subnets)["Subnets"]
    assert len({subnet["AvailabilityZone"] for subnet in found}) == len(subnets) == 3


async def test_cloudwatch_fallback_starts_one_instance_and_then_tracks_a_backlog_of_2(account: Account) -> None:
    """The reference policy of the loop makes the same decisions (tests/unit/autoscaling/test_decide.py)."""
    await provisioned(account.fleet(**ALL_OPTIONS))
    policies = {
        policy["PolicyType"]: policy
        for policy in account.client("autoscaling").describe_policies(AutoScalingGroupName=GROUP)["ScalingPolicies"]
    }

    step = policies["StepScaling"]
    assert step["StepAdjustments"] == [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}]
    [alarm] = account.client("cloudwatch").describe_alarms()["MetricAlarms"]
    depth, workers, shown = alarm["Metrics"]
    assert depth["MetricStat"]["Metric"]["MetricName"] == "QueueDepth"
    assert workers["MetricStat"]["Metric"]["MetricName"] == "ActiveWorkers"
    # The alarm only fires without workers.
    assert (shown["Expression"], shown["ReturnData"]) == ("IF(FILL(workers, 0) < 1, depth, 0)", True)
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == ("GreaterThanThreshold", 0.0)
    assert {dimension["Name"]: dimension["Value"] for dimension in depth["MetricStat"]["Metric"]["Dimensions"]} == {
        "FleetSlug": "video",
        "Stage": "production",
    }
    tracking = policies["TargetTrackingScaling"]["TargetTrackingConfiguration"]
    assert tracking["CustomizedMetricSpecification"]["MetricName"] == "BacklogPerInstance"
    # Only the loop scales in.
    assert (tracking["TargetValue"], tracking["DisableScaleIn"]) == (2.0, True)


class ScaledFleet:
    """A fleet on AWS with the autoscaling loop. `boot` turns instances into workers."""

    def __init__(
        self, world: World, account: Account, loop: ScalingLoop, effect: Any, slug: str, *, has_alarms: bool
    ) -> None:
        self.world = world
        self._has_alarms = has_alarms
        self.account = account
        self.loop = loop
        self.effect = effect
        self.slug = slug
        self.group = f"asg-production-{slug}"
        self._workers: set[str] = set()

    async def submit(self, jobs: int = 1) -> None:
        for _ in range(jobs):
            await self.world.submit(await self.world.user(), self.effect)
        if self._has_alarms:
            # CloudWatch gets the metric in the next minute and reacts a minute later.
            for _ in range(2):
                await self.round()
                await self.pass_time(60)

    async def round(self) -> None:
        await self.loop.observe_once()
        await self.loop.idle()
        await self.loop.decide_once()
        await self.loop.idle()

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock while workers keep sending heartbeats."""
        await self.world.advance(seconds)
        await self.world.engine.workers.workers.record_seen(self.instances())

    def desired(self) -> int:
        desired: int = self.account.group(self.group)["DesiredCapacity"]
        return desired

    def instances(self) -> list[str]:
        return [instance["InstanceId"] for instance in self.account.group(self.group)["Instances"]]

    async def boot(self) -> list[str]:
        """Register a worker for each instance, under the id of the instance."""
        self.account.proxy.let_boot(self.group)
        for instance in self.instances():
            if instance not in self._workers:
                await self.world.worker(self.slug, name=instance)
                self._workers.add(instance)
        return self.instances()


class SingleProvider:
    def __init__(self, provider: AwsProvider) -> None:
        self._provider = provider

    def get(self, _name: str, /) -> AwsProvider:
        return self._provider


@pytest.fixture(params=[Policy.REFERENCE, *full_only(Policy.CHEAP)])
async def scaled(
    request: pytest.FixtureRequest, sqlite_backend: SqliteBackend, tmp_path: Path, account: Account
) -> AsyncIterator[ScaledFleet]:
    async with open_world(sqlite_backend, tmp_path) as world:
        workflow = await world.workflow()
        slug = await world.fleet(workflow)
        fleet = account.fleet(slug)
        await provisioned(fleet)
        await world.engine.workers.fleets.change(
            stage=Stage.PRODUCTION,
            slug=slug,
            changes={
                "machines": machines_to_json(fleet.spec),
                "autoscaling": {"policy": str(request.param), "last_idle_seconds": LAST_IDLE_SECONDS},
            },
        )
        await lead(world)
        provider = AwsProvider()
        loop = ScalingLoop(world.engine, SingleProvider(provider))
        effect = await world.effect(workflow, cost=0)
        yield ScaledFleet(world, account, loop, effect, slug, has_alarms=request.param is Policy.REFERENCE)
        await provider.close()


class TestLifecycle:
    async def test_first_job_launches_one_machine_whose_worker_has_the_id_of_the_instance(
        self, scaled: ScaledFleet
    ) -> None:
        await scaled.submit()
        for _ in range(3):
            await scaled.round()
        assert scaled.desired() == len(scaled.instances()) == 1
        [instance] = await scaled.boot()
        await scaled.round()
        scaling = scaled.world.engine.autoscaling
        [fleet] = [fleet for fleet in await scaling.snapshots.fleets() if fleet.slug == scaled.slug]
        [machine] = await scaling.machines.present(fleet)
        assert machine.provider_id == machine.worker_id == instance
        assert machine.registered_at is not None

    async def test_group_is_empty_after_fifteen_idle_minutes(self, scaled: ScaledFleet) -> None:
        await scaled.submit()
        await scaled.round()
        [instance] = await scaled.boot()
        await scaled.round()
        leased = await scaled.world.lease(instance)
        assert leased is not None
        await scaled.world.complete(leased)
        await scaled.round()
        await scaled.pass_time(890)
        await scaled.round()
        assert scaled.desired() == 1
        await scaled.pass_time(20)
        await scaled.round()
        assert (scaled.desired(), scaled.instances()) == (0, [])

    async def test_busy_machine_is_never_terminated(self, scaled: ScaledFleet) -> None:
        await scaled.submit()
        await scaled.round()
        [instance] = await scaled.boot()
        await scaled.round()
        assert await scaled.world.lease(instance) is not None
        for _ in range(4):
            await scaled.pass_time(600)
            await scaled.round()
        assert scaled.instances() == [instance]

    async def test_reclaimed_instance_is_replaced_without_costing_an_attempt(self, scaled: ScaledFleet) -> None:
        """tests/system/worker/test_draining.py covers the worker, from the notice to its exit."""
        await scaled.submit()
        await scaled.round()
        [old] = await scaled.boot()
        await scaled.round()
        leased = await scaled.world.lease(old)
        assert leased is not None
        assert await scaled.world.requeue(leased) == "queued"
        await scaled.world.engine.workers.workers.deregister(old)
        # EC2 reclaims the instance, and the group starts another one.
        scaled.account.client("ec2").terminate_instances(InstanceIds=[old])
        await scaled.round()
        [new] = await scaled.boot()
        await scaled.round()
        again = await scaled.world.lease(new)
        assert new != old
        assert again is not None
        assert again.dispatch_id == leased.dispatch_id
        assert again.dispatch.attempts == leased.dispatch.attempts
        assert scaled.desired() == 1

    async def test_draining_machine_does_not_count_as_capacity(self, scaled: ScaledFleet) -> None:
        """After a rebalance recommendation, the instance is kept until its worker has finished its job."""
        await scaled.submit()
        await scaled.round()
        [old] = await scaled.boot()
        await scaled.round()
        assert await scaled.world.lease(old) is not None
        await scaled.world.engine.workers.workers.set_draining(old, is_draining=True)
        await scaled.submit()
        await scaled.round()
        assert (scaled.desired(), old in scaled.instances()) == (2, True)

    async def test_missing_capacity_is_recorded_and_retried(self, scaled: ScaledFleet) -> None:
        scaled.account.proxy.have_capacity(scaled.group, 0)
        await scaled.submit()
        await scaled.round()
        assert scaled.desired() == 0
        found = await scaled.world.engine.autoscaling.views.decisions(Stage.PRODUCTION, scaled.slug, limit=10)
        assert any("InsufficientInstanceCapacity" in str(item.outcome) for item in found.items)
        scaled.account.proxy.find_capacity(scaled.group)
        await scaled.pass_time(120)
        await scaled.round()
        assert scaled.desired() == 1

    async def test_backlog_grows_the_group_up_to_its_maximum(self, scaled: ScaledFleet) -> None:
        await scaled.submit(40)
        await scaled.round()
        await scaled.boot()
        for _ in range(12):
            await scaled.pass_time(60)
            await scaled.round()
            await scaled.boot()
        assert scaled.desired() == 10
