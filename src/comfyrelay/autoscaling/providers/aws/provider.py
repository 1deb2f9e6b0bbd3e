"""One Auto Scaling group per fleet and stage: set its desired capacity, and terminate instances by id."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from comfyrelay.autoscaling.providers.aws.access import FIRST_PAUSE_SECONDS, Aws, AwsError, kind_of
from comfyrelay.autoscaling.providers.aws.names import Names
from comfyrelay.autoscaling.providers.base import (
    LaunchRefused,
    LaunchResult,
    MachineOrder,
    Observed,
    ObservedState,
    ProviderFleet,
    RefusalKind,
)
from comfyrelay.clock import utc_now
from comfyrelay.domain.autoscaling.spec import InstanceType

_PENDING = ("Pending",)
_RUNNING = ("InService", "EnteringStandby", "Standby")
_ENDING = ("Terminating", "Detaching")
# Number of latest activities to read: far more than a group starts between two ticks.
_ACTIVITIES = 50
# EC2's limit of values in a filter.
_IDS_AT_ONCE = 200
_SPOT_PRICES_OF = "Linux/UNIX"


class AwsProvider:
    can_launch = True

    def __init__(self, *, first_pause_seconds: float = FIRST_PAUSE_SECONDS) -> None:
        self._first_pause_seconds = first_pause_seconds
        self._by_region: dict[str | None, Aws] = {}
        # by group and instance: its immutable details
        self._known: dict[str, dict[str, Mapping[str, Any]]] = {}
        # by group: activities that ended before the last increase, so their failures do not count
        self._old: dict[str, frozenset[str]] = {}

    async def observe(self, fleet: ProviderFleet) -> Sequence[Observed]:
        group = await self._group(fleet)
        found = [each for each in map(_observed, group["Instances"]) if each is not None]
        about = await self._about(fleet, [each.id for each in found])
        # A pending launch has no instance id yet and would count twice once it has one: it is tracked by its order, and
        # `launch` counts it.
        return [replace(each, **about.get(each.id, {})) for each in found]

    async def launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:
        try:
            refused = await self._grow(fleet, total=total)
        except AwsError as error:
            refused = [LaunchRefused(kind=error.kind, text=error.detail)] * len(orders)
        # earlier failures are not refusals of this launch
        return LaunchResult(refused=refused[: len(orders)])

    async def end(self, fleet: ProviderFleet, ids: Sequence[str]) -> None:
        if not ids:
            return
        group = await self._group(fleet)
        aws = self._aws(fleet)
        # AWS would terminate an instance of any group
        there = {
            each.id for each in map(_observed, group["Instances"]) if each and each.state is not ObservedState.ENDING
        }
        for id_ in ids:
            if id_ not in there:
                continue
            try:
                await aws.call(
                    "autoscaling",
                    "terminate_instance_in_auto_scaling_group",
                    InstanceId=id_,
                    ShouldDecrementDesiredCapacity=True,
                )
            except AwsError as error:
                # it has terminated in the meantime
                if "not found" not in error.detail:
                    raise

    async def prices(self, fleet: ProviderFleet) -> Sequence[InstanceType]:
        types = fleet.spec.instance_types
        if not types:
            return types
        zones = set((await self._group(fleet))["AvailabilityZones"])
        history = await self._aws(fleet).pages(
            "ec2",
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=[type_.name for type_ in types],
            ProductDescriptions=[_SPOT_PRICES_OF],
            # only the current price per zone
            StartTime=utc_now(),
        )
        # the most expensive zone: the group chooses by capacity, and the cost limit must hold anywhere
        now: dict[str, float] = {}
        for each in history:
            if each["AvailabilityZone"] in zones:
                now[each["InstanceType"]] = max(now.get(each["InstanceType"], 0.0), float(each["SpotPrice"]))
        return [replace(type_, price_per_hour=now.get(type_.name, type_.price_per_hour)) for type_ in types]

    async def close(self) -> None:
        for aws in self._by_region.values():
            await aws.close()
        self._by_region.clear()

    async def _grow(self, fleet: ProviderFleet, *, total: int) -> list[LaunchRefused]:
        """Set the desired capacity, and report what the group could not launch."""
        group, before = await asyncio.gather(self._group(fleet), self._activities(fleet))
        name = group["AutoScalingGroupName"]
        most = min(group["MaxSize"], fleet.max_machines)
        # never below the present number: instances are terminated by id
        wanted = max(min(total, most), group["DesiredCapacity"])
        if wanted > group["DesiredCapacity"]:
            self._old[name] = frozenset(each["ActivityId"] for each in before)
            await self._set_desired(fleet, wanted)
        refused = []
        if total > most:
            text = f"The group {name} may have {most} machines: raise max_machines, then run {_provision(fleet)}."
            refused = [LaunchRefused(kind=RefusalKind.QUOTA, text=text)] * (total - wanted)
        if (failure := await self._failure(fleet)) is not None:
            missing = await self._give_up(fleet)
            refused += [failure] * missing
        return refused

    async def _failure(self, fleet: ProviderFleet) -> LaunchRefused | None:
        """Why the group's latest launch failed, if it did."""
        old = self._old.get(Names(fleet.slug, fleet.stage).group, frozenset())
        for activity in await self._activities(fleet):
            # newest first; terminations say nothing about launches
            if activity["ActivityId"] in old or activity["Description"].startswith("Terminating"):
                continue
            if activity["StatusCode"] == "Successful":
                return None
            if activity["StatusCode"] == "Failed":
                said = " ".join(activity.get("StatusMessage", "").split()).rstrip(".")
                return LaunchRefused(kind=kind_of(said), text=f"The group could not launch: {said}.")
        return None

    async def _give_up(self, fleet: ProviderFleet) -> int:
        """Reduce the desired capacity to what exists, so that a refused launch does not arrive later in addition to
        its replacement. Returns the number missing.  The group may terminate an instance that appears at this
        moment, but none that works: workers protect themselves."""
        group = await self._group(fleet)
        desired: int = group["DesiredCapacity"]
        missing = max(desired - _counted(group), 0)
        if missing:
            await self._set_desired(fleet, _counted(group))
        return missing

    async def _set_desired(self, fleet: ProviderFleet, desired: int) -> None:
        await self._aws(fleet).call(
            "autoscaling",
            "set_desired_capacity",
            AutoScalingGroupName=Names(fleet.slug, fleet.stage).group,
            DesiredCapacity=desired,
            HonorCooldown=False,
        )

    async def _group(self, fleet: ProviderFleet) -> Mapping[str, Any]:
        name = Names(fleet.slug, fleet.stage).group
        answer = await self._aws(fleet).call(
            "autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=[name]
        )
        # a group that is being deleted accepts no orders
        for group in answer["AutoScalingGroups"]:
            if not group.get("Status"):
                found: Mapping[str, Any] = group
                return found
        text = f"There is no Auto Scaling group {name} in this region and account: run {_provision(fleet)}."
        raise AwsError(text, kind=RefusalKind.SETUP)

    async def _activities(self, fleet: ProviderFleet) -> Sequence[Mapping[str, Any]]:
        name = Names(fleet.slug, fleet.stage).group
        answer = await self._aws(fleet).call(
            "autoscaling", "describe_scaling_activities", AutoScalingGroupName=name, MaxRecords=_ACTIVITIES
        )
        found: Sequence[Mapping[str, Any]] = answer["Activities"]
        return found

    async def _about(self, fleet: ProviderFleet, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        name = Names(fleet.slug, fleet.stage).group
        known = self._known[name] = {each: found for each, found in self._known.get(name, {}).items() if each in ids}
        new = [id_ for id_ in ids if id_ not in known]
        for begin in range(0, len(new), _IDS_AT_ONCE):
            # as a filter, an instance that EC2 does not know yet is no error
            asked = {"Name": "instance-id", "Values": new[begin : begin + _IDS_AT_ONCE]}
            reservations = await self._aws(fleet).pages("ec2", "describe_instances", "Reservations", Filters=[asked])
            known.update(
                (instance["InstanceId"], {"launched_at": instance["LaunchTime"]})
                for reservation in reservations
                for instance in reservation["Instances"]
            )
        return known

    def _aws(self, fleet: ProviderFleet) -> Aws:
        region = fleet.spec.options.get("region")
        if region not in self._by_region:
            self._by_region[region] = Aws(region, first_pause_seconds=self._first_pause_seconds)
        return self._by_region[region]


def _observed(instance: Mapping[str, Any]) -> Observed | None:
    """`None` for a terminated one."""
    for state, beginnings in (
        (ObservedState.PENDING, _PENDING),
        (ObservedState.RUNNING, _RUNNING),
        (ObservedState.ENDING, _ENDING),
    ):
        if instance["LifecycleState"].startswith(beginnings):
            return Observed(
                id=instance["InstanceId"],
                state=state,
                worker_id=instance["InstanceId"],
                instance_type=instance.get("InstanceType"),
            )
    return None


def _counted(group: Mapping[str, Any]) -> int:
    """Number of instances that count towards the desired capacity."""
    return sum(each["LifecycleState"].startswith(("Pending", "InService")) for each in group["Instances"])


def _provision(fleet: ProviderFleet) -> str:
    return f"`comfyrelay fleet provision {fleet.slug} --stage {fleet.stage}`"
