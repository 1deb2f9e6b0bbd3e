"""One Auto Scaling group per fleet and stage: set its desired capacity, and terminate instances by id."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from comfyrelay.autoscaling.providers.aws.access import FIRST_PAUSE_SECONDS, Aws, AwsError, refusal_kind
from comfyrelay.autoscaling.providers.aws.names import Names
from comfyrelay.autoscaling.providers.base import (
    LaunchRefused,
    LaunchResult,
    MachineOrder,
    ProviderFleet,
    ProviderMachine,
    ProviderMachineState,
    RefusalKind,
)
from comfyrelay.clock import utc_now
from comfyrelay.domain.autoscaling.spec import InstanceType

# Prefixes of lifecycle states.
_STATES = (
    (ProviderMachineState.PENDING, ("Pending",)),
    (ProviderMachineState.RUNNING, ("InService", "EnteringStandby", "Standby")),
    (ProviderMachineState.ENDING, ("Terminating", "Detaching")),
)
# Number of latest activities to read, which is far more than a group starts between two ticks.
_MAX_ACTIVITIES = 50
# EC2's limit for the values of a filter.
_MAX_FILTER_VALUES = 200
_SPOT_PRODUCT = "Linux/UNIX"


class AwsProvider:
    can_launch = True

    def __init__(self, *, first_pause_seconds: float = FIRST_PAUSE_SECONDS) -> None:
        self._first_pause_seconds = first_pause_seconds
        self._by_region: dict[str | None, Aws] = {}
        # Launch times by group and instance.
        self._launch_times: dict[str, dict[str, datetime]] = {}
        # Activities before the last increase, by group. Their failures do not count.
        self._old_activities: dict[str, frozenset[str]] = {}

    async def observe(self, fleet: ProviderFleet) -> Sequence[ProviderMachine]:
        # Pending launches have no instance id yet, and would count twice once they have one. They are tracked by their
        # orders, and `launch` counts them.
        machines = _machines(await self._group(fleet))
        launched_at = await self._read_launch_times(fleet, [machine.id for machine in machines])
        return [replace(machine, launched_at=launched_at.get(machine.id)) for machine in machines]

    async def launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:
        try:
            refused = await self._grow(fleet, total=total)
        except AwsError as error:
            refused = [LaunchRefused(kind=error.kind, text=error.detail)] * len(orders)
        # Failures of earlier launches are not refusals of this one.
        return LaunchResult(refused=refused[: len(orders)])

    async def end(self, fleet: ProviderFleet, ids: Sequence[str]) -> None:
        if not ids:
            return
        # AWS would terminate an instance of any group.
        present = {machine.id for machine in _machines(await self._group(fleet)) if not machine.is_ending}
        aws = self._aws(fleet)
        for id_ in ids:
            if id_ not in present:
                continue
            try:
                await aws.call(
                    "autoscaling",
                    "terminate_instance_in_auto_scaling_group",
                    InstanceId=id_,
                    ShouldDecrementDesiredCapacity=True,
                )
            except AwsError as error:
                # The instance has terminated in the meantime.
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
            ProductDescriptions=[_SPOT_PRODUCT],
            # This returns only the current price per zone.
            StartTime=utc_now(),
        )
        # The most expensive zone counts: the group chooses by capacity, and the cost limit must hold anywhere.
        prices: dict[str, float] = {}
        for entry in history:
            if entry["AvailabilityZone"] in zones:
                name = entry["InstanceType"]
                prices[name] = max(prices.get(name, 0.0), float(entry["SpotPrice"]))
        return [replace(type_, price_per_hour=prices.get(type_.name, type_.price_per_hour)) for type_ in types]

    async def close(self) -> None:
        for aws in self._by_region.values():
            await aws.close()
        self._by_region.clear()

    async def _grow(self, fleet: ProviderFleet, *, total: int) -> list[LaunchRefused]:
        """Increase the desired capacity, and return the launches that the group refused."""
        group, before = await asyncio.gather(self._group(fleet), self._activities(fleet))
        name = group["AutoScalingGroupName"]
        limit = min(group["MaxSize"], fleet.max_machines)
        # Never reduce it, because instances are terminated by id.
        wanted = max(min(total, limit), group["DesiredCapacity"])
        if wanted > group["DesiredCapacity"]:
            self._old_activities[name] = frozenset(activity["ActivityId"] for activity in before)
            await self._set_desired(fleet, wanted)
        refused = []
        if total > limit:
            text = f"The group {name} may have {limit} machines: raise max_machines, then run {_provision(fleet)}."
            refused = [LaunchRefused(kind=RefusalKind.QUOTA, text=text)] * (total - wanted)
        if (failure := await self._failure(fleet)) is not None:
            missing = await self._give_up(fleet)
            refused += [failure] * missing
        return refused

    async def _failure(self, fleet: ProviderFleet) -> LaunchRefused | None:
        """Return the failure of the group's latest launch, or `None` if it did not fail."""
        old = self._old_activities.get(Names(fleet.slug, fleet.stage).group, frozenset())
        # The newest activity comes first. Terminations say nothing about launches.
        for activity in await self._activities(fleet):
            if activity["ActivityId"] in old or activity["Description"].startswith("Terminating"):
                continue
            if activity["StatusCode"] == "Successful":
                return None
            if activity["StatusCode"] == "Failed":
                message = " ".join(activity.get("StatusMessage", "").split()).rstrip(".")
                return LaunchRefused(kind=refusal_kind(message), text=f"The group could not launch: {message}.")
        return None

    async def _give_up(self, fleet: ProviderFleet) -> int:
        """Reduce the desired capacity to the existing machines, and return the number of missing ones.

        Otherwise, a refused machine could appear later, in addition to its replacement. The group may terminate an
        instance that appears at this moment, but not one that is working, because workers protect their instances.
        """
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
        # A group that is being deleted has a status and accepts no orders.
        group: Mapping[str, Any] | None = next(
            (group for group in answer["AutoScalingGroups"] if not group.get("Status")), None
        )
        if group is None:
            text = f"There is no Auto Scaling group {name} in this region and account: run {_provision(fleet)}."
            raise AwsError(text, kind=RefusalKind.SETUP)
        return group

    async def _activities(self, fleet: ProviderFleet) -> Sequence[Mapping[str, Any]]:
        name = Names(fleet.slug, fleet.stage).group
        answer = await self._aws(fleet).call(
            "autoscaling", "describe_scaling_activities", AutoScalingGroupName=name, MaxRecords=_MAX_ACTIVITIES
        )
        activities: Sequence[Mapping[str, Any]] = answer["Activities"]
        return activities

    async def _read_launch_times(self, fleet: ProviderFleet, ids: Sequence[str]) -> Mapping[str, datetime]:
        name = Names(fleet.slug, fleet.stage).group
        known = {id_: at for id_, at in self._launch_times.get(name, {}).items() if id_ in ids}
        self._launch_times[name] = known
        new = [id_ for id_ in ids if id_ not in known]
        for start in range(0, len(new), _MAX_FILTER_VALUES):
            # With a filter, EC2 does not return an error for an instance that it does not know yet.
            by_id = {"Name": "instance-id", "Values": new[start : start + _MAX_FILTER_VALUES]}
            reservations = await self._aws(fleet).pages("ec2", "describe_instances", "Reservations", Filters=[by_id])
            for reservation in reservations:
                known.update({instance["InstanceId"]: instance["LaunchTime"] for instance in reservation["Instances"]})
        return known

    def _aws(self, fleet: ProviderFleet) -> Aws:
        region = fleet.spec.options.get("region")
        if region not in self._by_region:
            self._by_region[region] = Aws(region, first_pause_seconds=self._first_pause_seconds)
        return self._by_region[region]


def _machines(group: Mapping[str, Any]) -> list[ProviderMachine]:
    """Return the instances of a group, without terminated ones."""
    return [
        ProviderMachine(
            id=instance["InstanceId"],
            state=state,
            worker_id=instance["InstanceId"],
            instance_type=instance.get("InstanceType"),
        )
        for instance in group["Instances"]
        for state, prefixes in _STATES
        if instance["LifecycleState"].startswith(prefixes)
    ]


def _counted(group: Mapping[str, Any]) -> int:
    """Return the number of instances that count towards the desired capacity."""
    return sum(instance["LifecycleState"].startswith(("Pending", "InService")) for instance in group["Instances"])


def _provision(fleet: ProviderFleet) -> str:
    return f"`comfyrelay fleet provision {fleet.slug} --stage {fleet.stage}`"
