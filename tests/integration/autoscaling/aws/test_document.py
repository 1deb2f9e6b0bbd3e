"""What a fleet at AWS promises, line by line: what it is made of, and its life from the first job to zero.

The lines that other tests hold are in tests/guarantees.toml, with their tests.
"""

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


class TestEachFleetHasAGroupOfSpotInstances:
    async def test_each_fleet_and_stage_has_its_own_group_and_launch_template_by_name(self, account: Account) -> None:
        for slug, stage in (("video", "production"), ("video", "staging"), ("stills", "production")):
            await provisioned(account.fleet(slug, stage=stage))

        groups = account.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
        templates = account.client("ec2").describe_launch_templates()["LaunchTemplates"]

        ends = {"production-stills", "production-video", "staging-video"}
        assert {each["AutoScalingGroupName"] for each in groups} == {f"asg-{each}" for each in ends}
        assert {each["LaunchTemplateName"] for each in templates} == {f"lt-{each}" for each in ends}
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
        assert [each["InstanceType"] for each in overrides] == ["g4dn.xlarge", "g5.xlarge"]

    def test_instances_at_risk_are_replaced_ahead(self, group: Any) -> None:
        assert group["CapacityRebalance"] is True

    def test_it_has_three_subnets_in_three_zones(self, account: Account, group: Any) -> None:
        subnets = group["VPCZoneIdentifier"].split(",")
        found = account.client("ec2").describe_subnets(SubnetIds=subnets)["Subnets"]
        assert len({each["AvailabilityZone"] for each in found}) == len(subnets) == 3

    def test_it_begins_with_none_and_has_ten_at_most(self, group: Any) -> None:
        assert (group["MinSize"], group["DesiredCapacity"], group["MaxSize"]) == (0, 0, 10)

    def test_a_new_instance_has_five_minutes_to_warm_up(self, group: Any) -> None:
        assert group["DefaultInstanceWarmup"] == 300

    def test_its_tags_go_to_its_instances(self, group: Any) -> None:
        tags = {each["Key"]: (each["Value"], each["PropagateAtLaunch"]) for each in group["Tags"]}
        assert tags["FleetSlug"] == ("video", True)
        assert tags["Stage"] == ("production", True)


class TestDualScalingPolicy:
    """In CloudWatch as a fallback; the reference policy of the loop does the same (tests/unit/autoscaling/test_decide.py)."""

    def test_step_scaling_goes_from_0_to_1_on_a_queue_depth_above_0(
        self, account: Account, fleet: ProviderFleet
    ) -> None:
        policies = account.client("autoscaling").describe_policies(AutoScalingGroupName=GROUP)["ScalingPolicies"]
        [step] = [each for each in policies if each["PolicyType"] == "StepScaling"]
        assert step["StepAdjustments"] == [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}]
        [alarm] = account.client("cloudwatch").describe_alarms()["MetricAlarms"]
        depth, workers, shown = alarm["Metrics"]
        assert depth["MetricStat"]["Metric"]["MetricName"] == "QueueDepth"
        assert workers["MetricStat"]["Metric"]["MetricName"] == "ActiveWorkers"
        # from 0 only: with a worker it shows 0
        assert (shown["Expression"], shown["ReturnData"]) == ("IF(FILL(workers, 0) < 1, depth, 0)", True)
        assert (alarm["ComparisonOperator"], alarm["Threshold"]) == ("GreaterThanThreshold", 0.0)
        assert {each["Name"]: each["Value"] for each in depth["MetricStat"]["Metric"]["Dimensions"]} == {
            "FleetSlug": "video",
            "Stage": "production",
        }

    def test_target_tracking_holds_a_backlog_of_2_for_each_instance_and_never_scales_in(
        self, account: Account, fleet: ProviderFleet
    ) -> None:
        policies = account.client("autoscaling").describe_policies(AutoScalingGroupName=GROUP)["ScalingPolicies"]
        [tracking] = [each for each in policies if each["PolicyType"] == "TargetTrackingScaling"]
        tracks = tracking["TargetTrackingConfiguration"]
        assert tracks["CustomizedMetricSpecification"]["MetricName"] == "BacklogPerInstance"
        assert (tracks["TargetValue"], tracks["DisableScaleIn"]) == (2.0, True)


class TestCostControls:
    def test_no_fleet_has_more_than_its_maximum(self, group: Any) -> None:
        assert group["MaxSize"] == 10

    def test_a_budget_alarm_tells_somebody_at_a_threshold(self, account: Account, fleet: ProviderFleet) -> None:
        name = {"AccountId": ACCOUNT, "BudgetName": "comfyrelay-production-video"}
        found = account.client("budgets").describe_notifications_for_budget(**name)["Notifications"]
        assert {each["ComparisonOperator"] for each in found} == {"GREATER_THAN"}


class Life:
    """A fleet at AWS with the loop over it; machines become workers when a test says so."""

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
            # published at the next minute, and acted upon at the one after
            for _ in range(2):
                await self.round()
                await self.pass_time(60)

    async def round(self) -> None:
        await self.loop.observe_once()
        await self.loop.idle()
        await self.loop.decide_once()
        await self.loop.idle()

    async def pass_time(self, seconds: float) -> None:
        """Workers are heard of all the while."""
        await self.world.advance(seconds)
        await self.world.engine.fleet.workers.record_seen(self.instances())

    def desired(self) -> int:
        found: int = self.account.group(self.group)["DesiredCapacity"]
        return found

    def instances(self) -> list[str]:
        return [each["InstanceId"] for each in self.account.group(self.group)["Instances"]]

    async def boot(self) -> list[str]:
        """Every instance that is there becomes a worker by its id."""
        self.account.proxy.let_boot(self.group)
        for each in self.instances():
            if each not in self._workers:
                await self.world.worker(self.slug, name=each)
                self._workers.add(each)
        return self.instances()


class Only:
    def __init__(self, provider: AwsProvider) -> None:
        self._provider = provider

    def get(self, _name: str, /) -> AwsProvider:
        return self._provider


@pytest.fixture(params=[Policy.REFERENCE, Policy.CHEAP])
async def life(
    request: pytest.FixtureRequest, sqlite_backend: SqliteBackend, tmp_path: Path, account: Account
) -> AsyncIterator[Life]:
    async with open_world(sqlite_backend, tmp_path) as world:
        workflow = await world.workflow()
        slug = await world.fleet(workflow)
        fleet = account.fleet(slug)
        await provisioned(fleet)
        await world.engine.fleet.fleets.change(
            stage=Stage.PRODUCTION,
            slug=slug,
            changes={"machines": machines_to_json(fleet.spec), "scaling": {"policy": str(request.param)}},
        )
        await lead(world)
        provider = AwsProvider()
        loop = ScalingLoop(world.engine, Only(provider))
        effect = await world.effect(workflow, cost=0)
        yield Life(world, account, loop, effect, slug, has_alarms=request.param is Policy.REFERENCE)
        await provider.close()


class TestFromTheFirstJobToZero:
    async def test_a_job_at_zero_workers_launches_one_machine_and_only_one(self, life: Life) -> None:
        await life.submit()
        for _ in range(3):
            await life.round()
        assert life.desired() == len(life.instances()) == 1

    async def test_the_worker_of_an_instance_is_known_by_the_id_of_the_instance(self, life: Life) -> None:
        await life.submit()
        await life.round()
        [instance] = await life.boot()
        await life.round()
        [machine] = await life.world.engine.scaling.machines.present(
            next(each for each in await life.world.engine.scaling.snapshots.fleets() if each.slug == life.slug)
        )
        assert machine.provider_id == machine.worker_id == instance
        assert machine.registered_at is not None

    async def test_after_fifteen_idle_minutes_the_group_is_at_zero(self, life: Life) -> None:
        await life.submit()
        await life.round()
        [instance] = await life.boot()
        await life.round()
        leased = await life.world.lease(instance)
        assert leased is not None
        await life.world.complete(leased)
        await life.round()
        await life.pass_time(890)
        await life.round()
        assert life.desired() == 1
        await life.pass_time(20)
        await life.round()
        assert (life.desired(), life.instances()) == (0, [])

    async def test_a_machine_that_works_is_never_ended(self, life: Life) -> None:
        await life.submit()
        await life.round()
        [instance] = await life.boot()
        await life.round()
        assert await life.world.lease(instance) is not None
        for _ in range(4):
            await life.pass_time(600)
            await life.round()
        assert life.instances() == [instance]

    async def test_a_reclaimed_instance_is_replaced_and_the_new_worker_gets_the_job_without_an_attempt_lost(
        self, life: Life
    ) -> None:
        """The worker's own part, from the notice to its end, is in tests/system/worker/test_draining.py."""
        await life.submit()
        await life.round()
        [old] = await life.boot()
        await life.round()
        leased = await life.world.lease(old)
        assert leased is not None
        assert await life.world.requeue(leased) == "queued"
        await life.world.engine.fleet.workers.deregister(old)
        # EC2 takes it, and the group starts another by itself
        life.account.client("ec2").terminate_instances(InstanceIds=[old])
        await life.round()
        [new] = await life.boot()
        await life.round()
        again = await life.world.lease(new)
        assert new != old
        assert again is not None
        assert again.dispatch_id == leased.dispatch_id
        assert again.dispatch.attempts == leased.dispatch.attempts
        assert life.desired() == 1

    async def test_a_machine_that_drains_does_not_simulator_for_a_new_one(self, life: Life) -> None:
        """As after a rebalance recommendation: the instance is there as long as its worker finishes its job."""
        await life.submit()
        await life.round()
        [old] = await life.boot()
        await life.round()
        assert await life.world.lease(old) is not None
        await life.world.engine.fleet.workers.set_draining(old, is_draining=True)
        await life.submit()
        await life.round()
        assert (life.desired(), old in life.instances()) == (2, True)

    async def test_no_capacity_is_told_and_tried_again_later(self, life: Life) -> None:
        life.account.proxy.have_capacity(life.group, 0)
        await life.submit()
        await life.round()
        assert life.desired() == 0
        found = await life.world.engine.scaling.views.decisions(Stage.PRODUCTION, life.slug, limit=10)
        assert any("InsufficientInstanceCapacity" in str(each.outcome) for each in found.items)
        life.account.proxy.find_capacity(life.group)
        await life.pass_time(120)
        await life.round()
        assert life.desired() == 1

    async def test_more_jobs_bring_more_machines_up_to_the_maximum(self, life: Life) -> None:
        await life.submit(40)
        await life.round()
        await life.boot()
        for _ in range(12):
            await life.pass_time(60)
            await life.round()
            await life.boot()
        assert life.desired() == 10
