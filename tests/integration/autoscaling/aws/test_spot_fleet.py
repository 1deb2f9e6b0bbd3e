"""A fleet on AWS: its resources, and its lifecycle from the first job back to zero machines."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.autoscaling.loop import ScalingLoop
from comfyrelay.autoscaling.providers.aws import AwsProvider
from comfyrelay.autoscaling.providers.base import ProviderFleet
from comfyrelay.domain.autoscaling.spec import Policy
from comfyrelay.domain.autoscaling.spec_json import machines_to_json
from comfyrelay.domain.queue.states import Stage
from tests.integration.autoscaling.aws.test_provision import EVERYTHING
from tests.support.aws_account import ACCOUNT, Account, provisioned
from tests.support.memory_provider import lead
from tests.support.world import SqliteBackend, World, open_world

GROUP = "asg-production-video"


@pytest.fixture
async def fleet(account: Account) -> ProviderFleet:
    found = account.fleet(**EVERYTHING)
    await provisioned(found)
    return found


@pytest.fixture
def group(account: Account, fleet: ProviderFleet) -> Any:
    return account.group(GROUP)


class TestSpotGroup:
    async def test_each_fleet_and_stage_has_its_own_group_and_launch_template(self, account: Account) -> None:
        for slug, stage in (("video", "production"), ("video", "staging"), ("stills", "production")):
            await provisioned(account.fleet(slug, stage=stage))

        groups = account.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
        templates = account.client("ec2").describe_launch_templates()["LaunchTemplates"]

        names = {"production-stills", "production-video", "staging-video"}
        assert {each["AutoScalingGroupName"] for each in groups} == {f"asg-{name}" for name in names}
        assert {template["LaunchTemplateName"] for template in templates} == {f"lt-{name}" for name in names}
        for each in groups:
            used = each["MixedInstancesPolicy"]["LaunchTemplate"]["LaunchTemplateSpecification"]
            assert used["LaunchTemplateName"] == f"lt-{each['AutoScalingGroupName'].removeprefix('asg-')}"
            assert used["Version"] == "$Latest"

    def test_all_instances_are_spot(self, group: Any) -> None:
        distribution = group["MixedInstancesPolicy"]["InstancesDistribution"]
        assert distribution["OnDemandBaseCapacity"] == 0
        assert distribution["OnDemandPercentageAboveBaseCapacity"] == 0

    def test_instances_come_from_the_deepest_capacity_pool_in_order_of_preference(self, group: Any) -> None:
        policy = group["MixedInstancesPolicy"]
        assert policy["InstancesDistribution"]["SpotAllocationStrategy"] == "capacity-optimized-prioritized"
        overrides = policy["LaunchTemplate"]["Overrides"]
        assert [override["InstanceType"] for override in overrides] == ["g4dn.xlarge", "g5.xlarge"]

    def test_instances_at_risk_are_replaced_early(self, group: Any) -> None:
        assert group["CapacityRebalance"] is True

    def test_group_has_subnets_in_three_zones(self, account: Account, group: Any) -> None:
        subnets = group["VPCZoneIdentifier"].split(",")
        found = account.client("ec2").describe_subnets(SubnetIds=subnets)["Subnets"]
        assert len({each["AvailabilityZone"] for each in found}) == len(subnets) == 3

    def test_group_starts_empty_and_has_at_most_ten_instances(self, group: Any) -> None:
        assert (group["MinSize"], group["DesiredCapacity"], group["MaxSize"]) == (0, 0, 10)

    def test_instances_warm_up_for_five_minutes(self, group: Any) -> None:
        assert group["DefaultInstanceWarmup"] == 300

    def test_tags_are_propagated_to_instances(self, group: Any) -> None:
        tags = {each["Key"]: (each["Value"], each["PropagateAtLaunch"]) for each in group["Tags"]}
        assert tags["FleetSlug"] == ("video", True)
        assert tags["Stage"] == ("production", True)


class TestCloudWatchFallback:
    """The reference policy of the loop decides the same (tests/unit/autoscaling/test_decide.py)."""

    def test_step_scaling_starts_the_first_instance(self, account: Account, fleet: ProviderFleet) -> None:
        policies = account.client("autoscaling").describe_policies(AutoScalingGroupName=GROUP)["ScalingPolicies"]
        [step] = [policy for policy in policies if policy["PolicyType"] == "StepScaling"]
        assert step["StepAdjustments"] == [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}]
        [alarm] = account.client("cloudwatch").describe_alarms()["MetricAlarms"]
        depth, workers, shown = alarm["Metrics"]
        assert depth["MetricStat"]["Metric"]["MetricName"] == "QueueDepth"
        assert workers["MetricStat"]["Metric"]["MetricName"] == "ActiveWorkers"
        # 0 if there is a worker
        assert (shown["Expression"], shown["ReturnData"]) == ("IF(FILL(workers, 0) < 1, depth, 0)", True)
        assert (alarm["ComparisonOperator"], alarm["Threshold"]) == ("GreaterThanThreshold", 0.0)
        assert {each["Name"]: each["Value"] for each in depth["MetricStat"]["Metric"]["Dimensions"]} == {
            "FleetSlug": "video",
            "Stage": "production",
        }

    def test_target_tracking_keeps_a_backlog_of_2_and_never_scales_in(
        self, account: Account, fleet: ProviderFleet
    ) -> None:
        policies = account.client("autoscaling").describe_policies(AutoScalingGroupName=GROUP)["ScalingPolicies"]
        [tracking] = [policy for policy in policies if policy["PolicyType"] == "TargetTrackingScaling"]
        tracks = tracking["TargetTrackingConfiguration"]
        assert tracks["CustomizedMetricSpecification"]["MetricName"] == "BacklogPerInstance"
        assert (tracks["TargetValue"], tracks["DisableScaleIn"]) == (2.0, True)


class TestCostControls:
    def test_group_has_the_maximum_of_the_fleet(self, group: Any) -> None:
        assert group["MaxSize"] == 10

    def test_budget_alerts_above_its_thresholds(self, account: Account, fleet: ProviderFleet) -> None:
        name = {"AccountId": ACCOUNT, "BudgetName": "comfyrelay-production-video"}
        found = account.client("budgets").describe_notifications_for_budget(**name)["Notifications"]
        assert {each["ComparisonOperator"] for each in found} == {"GREATER_THAN"}


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
            # CloudWatch gets the metric in the next minute and reacts in the one after
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
        return [each["InstanceId"] for each in self.account.group(self.group)["Instances"]]

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


@pytest.fixture(params=[Policy.REFERENCE, Policy.CHEAP])
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
            changes={"machines": machines_to_json(fleet.spec), "autoscaling": {"policy": str(request.param)}},
        )
        await lead(world)
        provider = AwsProvider()
        loop = ScalingLoop(world.engine, SingleProvider(provider))
        effect = await world.effect(workflow, cost=0)
        yield ScaledFleet(world, account, loop, effect, slug, has_alarms=request.param is Policy.REFERENCE)
        await provider.close()


class TestLifecycle:
    async def test_first_job_launches_exactly_one_machine(self, scaled: ScaledFleet) -> None:
        await scaled.submit()
        for _ in range(3):
            await scaled.round()
        assert scaled.desired() == len(scaled.instances()) == 1

    async def test_worker_has_the_id_of_its_instance(self, scaled: ScaledFleet) -> None:
        await scaled.submit()
        await scaled.round()
        [instance] = await scaled.boot()
        await scaled.round()
        [machine] = await scaled.world.engine.autoscaling.machines.present(
            next(each for each in await scaled.world.engine.autoscaling.snapshots.fleets() if each.slug == scaled.slug)
        )
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
        # EC2 reclaims the instance, and the group starts another one
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
        """After a rebalance recommendation the instance stays until its worker has finished its job."""
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
