"""Create, update and remove the AWS resources of a fleet. Planning only reads, so a dry run prints the plan."""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from comfyrelay.autoscaling.providers.aws.access import Aws, AwsError
from comfyrelay.autoscaling.providers.aws.names import HOOK, Names
from comfyrelay.autoscaling.provisioning.blueprint import Blueprint, Budget
from comfyrelay.errors import Conflict

# The Budgets API has only one region.
BUDGETS_REGION = "us-east-1"
# The group's process that moves instances between zones.
REBALANCING = "AZRebalance"
# Listing the hooks of a missing group fails with a validation error.
_MISSING = (
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidLaunchTemplateId.NotFound",
    "NotFoundException",
    "ParameterNotFound",
    "ValidationError",
)

# A resource as AWS describes it, or `None` if it is missing.
Current: TypeAlias = Mapping[str, Any] | None
Run: TypeAlias = Callable[[], Awaitable[object]]


class Action(StrEnum):
    MAKE = "make"
    CHANGE = "change"
    REMOVE = "remove"
    KEEP = "keep"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A planned action on one resource. `run` is `None` if there is nothing to do."""

    action: Action
    resource: str
    detail: str = ""
    run: Run | None = None


async def apply(changes: Sequence[Change], *, on_done: Callable[[Change], None] = lambda _: None) -> None:
    for change in changes:
        if change.run is not None:
            await change.run()
            on_done(change)


class Provisioner:
    def __init__(self, aws: Aws, *, budgets: Aws) -> None:
        self._aws = aws
        self._budgets = budgets

    async def plan(self, blueprint: Blueprint, *, secret: str) -> Sequence[Change]:
        """Return the changes in the order to apply them. The plan itself changes nothing."""
        group = await self._group(blueprint.names)
        return [
            await self._plan_secret(blueprint.names, secret),
            await self._plan_launch_template(blueprint),
            self._plan_group(blueprint, group),
            self._plan_processes(blueprint.names, group),
            await self._plan_hook(blueprint),
            *await self._plan_fallback(blueprint),
            *await self._plan_budget(blueprint),
        ]

    async def plan_removal(self, names: Names, *, force: bool = False) -> Sequence[Change]:
        """Return the removals in order. Unless forced, raise `Conflict` while the fleet has machines."""
        group = await self._group(names)
        if group is not None and group["Instances"] and not force:
            count = len(group["Instances"])
            raise Conflict(
                f"{names.group} still has {count} machine{'s' * (count > 1)}. Run `comfyrelay fleet set {names.fleet} "
                f"--stage {names.stage} --min-machines 0 --max-machines 0` and wait until they have finished their "
                "jobs and ended; if the fleet is paused, resume it. Or terminate them with --force: they return their "
                "jobs."
            )
        changes = [
            await self._remove_budget(names),
            _remove(
                f"alarm {names.from_zero}",
                await self._alarm(names),
                lambda: self._aws.call("cloudwatch", "delete_alarms", AlarmNames=[names.from_zero]),
            ),
            # AWS deletes the hook and the policies with the group.
            _remove(
                f"Auto Scaling group {names.group}",
                group,
                lambda: self._aws.call(
                    "autoscaling", "delete_auto_scaling_group", AutoScalingGroupName=names.group, ForceDelete=force
                ),
            ),
            _remove(
                f"launch template {names.launch_template}",
                await self._latest_template(names),
                lambda: self._aws.call("ec2", "delete_launch_template", LaunchTemplateName=names.launch_template),
            ),
            _remove(
                f"parameter {names.secret}",
                await self._parameter(names),
                lambda: self._aws.call("ssm", "delete_parameter", Name=names.secret),
            ),
        ]
        return [change for change in changes if change is not None]

    async def _plan_secret(self, names: Names, secret: str) -> Change:
        current = await self._parameter(names)
        resource, wanted = f"parameter {names.secret}", {"Value": secret, "Type": "SecureString"}
        if current is not None and wanted.items() <= current.items():
            return Change(action=Action.KEEP, resource=resource)
        return Change(
            action=Action.MAKE if current is None else Action.CHANGE,
            resource=resource,
            detail="the fleet's secret, encrypted" if current is None else "another secret",
            run=lambda: self._aws.call(
                "ssm", "put_parameter", Name=names.secret, **wanted, Overwrite=current is not None
            ),
        )

    async def _plan_launch_template(self, blueprint: Blueprint) -> Change:
        names, data = blueprint.names, dict(blueprint.launch_template)
        resource = f"launch template {names.launch_template}"
        # AWS completes and reorders the data, so compare a digest that is stored with the version.
        mark = f"comfyrelay {_digest(data)}"
        version = {"LaunchTemplateName": names.launch_template, "VersionDescription": mark, "LaunchTemplateData": data}
        latest = await self._latest_template(names)
        if latest is None:
            tags = {"ResourceType": "launch-template", "Tags": _tags(names)}
            return Change(
                action=Action.MAKE,
                resource=resource,
                detail=f"image {data['ImageId']}",
                run=lambda: self._aws.call("ec2", "create_launch_template", **version, TagSpecifications=[tags]),
            )
        if latest.get("VersionDescription") == mark:
            return Change(action=Action.KEEP, resource=resource)
        return Change(
            action=Action.CHANGE,
            resource=resource,
            detail="a new version, for machines launched from now on",
            run=lambda: self._aws.call("ec2", "create_launch_template_version", **version),
        )

    def _plan_group(self, blueprint: Blueprint, current: Current) -> Change:
        names, wanted = blueprint.names, dict(blueprint.group)
        resource = f"Auto Scaling group {names.group}"
        target = {"ResourceId": names.group, "ResourceType": "auto-scaling-group", "PropagateAtLaunch": True}
        tags = [{**target, **tag} for tag in _tags(names)]
        if current is None:
            subnets = len(wanted["VPCZoneIdentifier"].split(","))
            return Change(
                action=Action.MAKE,
                resource=resource,
                detail=f"0 to {wanted['MaxSize']} machines, Spot only, {subnets} subnets",
                run=lambda: self._aws.call(
                    "autoscaling", "create_auto_scaling_group", **wanted, DesiredCapacity=0, Tags=tags
                ),
            )
        changed = [name for name, value in wanted.items() if not _matches(current.get(name), value)]
        missing_tags = [tag for tag in tags if not any(_matches(present, tag) for present in current.get("Tags", ()))]
        if not changed and not missing_tags:
            return Change(action=Action.KEEP, resource=resource)

        async def run() -> None:
            if changed:
                await self._aws.call("autoscaling", "update_auto_scaling_group", **wanted)
            if missing_tags:
                await self._aws.call("autoscaling", "create_or_update_tags", Tags=missing_tags)

        detail = ", ".join([*changed, *["Tags"] * bool(missing_tags)])
        return Change(action=Action.CHANGE, resource=resource, detail=detail, run=run)

    def _plan_processes(self, names: Names, current: Current) -> Change:
        """Suspend rebalancing between zones, which would terminate machines that run jobs."""
        resource = f"process {REBALANCING} of {names.group}"
        suspended = {process["ProcessName"] for process in (current or {}).get("SuspendedProcesses", ())}
        if REBALANCING in suspended:
            return Change(action=Action.KEEP, resource=resource)
        return Change(
            action=Action.CHANGE,
            resource=resource,
            detail="suspended: no machine is terminated to balance the zones",
            run=lambda: self._aws.call(
                "autoscaling",
                "suspend_processes",
                AutoScalingGroupName=names.group,
                ScalingProcesses=[REBALANCING],
            ),
        )

    async def _plan_hook(self, blueprint: Blueprint) -> Change:
        group, wanted = blueprint.names.group, blueprint.hook
        answer = await _call_unless_missing(
            self._aws, "autoscaling", "describe_lifecycle_hooks", AutoScalingGroupName=group
        )
        current = _find((answer or {}).get("LifecycleHooks", ()), "LifecycleHookName", HOOK)
        return _put(
            f"lifecycle hook {HOOK} of {group}",
            f"a terminating machine has up to {wanted['HeartbeatTimeout']} s to finish or return its jobs",
            [(current, wanted)],
            lambda: self._aws.call("autoscaling", "put_lifecycle_hook", **wanted),
        )

    async def _plan_fallback(self, blueprint: Blueprint) -> Sequence[Change]:
        names, wanted = blueprint.names, blueprint.fallback
        answer = await _call_unless_missing(
            self._aws, "autoscaling", "describe_policies", AutoScalingGroupName=names.group
        )
        policies = (answer or {}).get("ScalingPolicies", ())
        from_zero, backlog = (_find(policies, "PolicyName", name) for name in (names.from_zero, names.backlog))
        alarm = await self._alarm(names)
        if wanted is None:
            return self._remove_fallback(names, alarm=alarm, policies=[from_zero, backlog])

        async def put_from_zero() -> None:
            policy = await self._aws.call("autoscaling", "put_scaling_policy", **wanted.from_zero)
            await self._aws.call("cloudwatch", "put_metric_alarm", **wanted.alarm, AlarmActions=[policy["PolicyARN"]])

        return [
            _put(
                f"scaling policy and alarm {names.from_zero}",
                "from 0 to 1 when jobs wait and no loop runs",
                [(from_zero, wanted.from_zero), (alarm, wanted.alarm)],
                put_from_zero,
            ),
            _put(
                f"scaling policy {names.backlog}",
                "BacklogPerInstance at 2, never scaling in",
                [(backlog, wanted.backlog)],
                lambda: self._aws.call("autoscaling", "put_scaling_policy", **wanted.backlog),
            ),
        ]

    def _remove_fallback(self, names: Names, *, alarm: Current, policies: Sequence[Current]) -> Sequence[Change]:
        existing = [policy["PolicyName"] for policy in policies if policy is not None]
        if alarm is None and not existing:
            return []

        async def run() -> None:
            if alarm is not None:
                await self._aws.call("cloudwatch", "delete_alarms", AlarmNames=[names.from_zero])
            for name in existing:
                await self._aws.call("autoscaling", "delete_policy", AutoScalingGroupName=names.group, PolicyName=name)

        resource = f"scaling policies of {names.group}"
        return [Change(action=Action.REMOVE, resource=resource, detail="no fallback is set", run=run)]

    async def _plan_budget(self, blueprint: Blueprint) -> Sequence[Change]:
        names, wanted = blueprint.names, blueprint.budget
        if wanted is None:
            removal = await self._remove_budget(names)
            return [] if removal is None else [removal]
        account, current = await self._budget(names)
        resource, limit = f"budget {names.budget}", wanted.limit["BudgetLimit"]["Amount"]
        if current is not None and await self._is_current_budget(account, current, wanted):
            return [Change(action=Action.KEEP, resource=resource)]

        async def run() -> None:
            if current is not None:
                # AWS deletes its notifications, too.
                await self._budgets.call("budgets", "delete_budget", AccountId=account, BudgetName=names.budget)
            subscribers = [{"SubscriptionType": "EMAIL", "Address": wanted.email}]
            await self._budgets.call(
                "budgets",
                "create_budget",
                AccountId=account,
                Budget=wanted.limit,
                NotificationsWithSubscribers=[
                    {"Notification": notification, "Subscribers": subscribers} for notification in wanted.notifications
                ],
            )

        action = Action.MAKE if current is None else Action.CHANGE
        detail = f"alerts {wanted.email} at {limit} USD a month"
        return [Change(action=action, resource=resource, detail=detail, run=run)]

    async def _is_current_budget(self, account: str, current: Mapping[str, Any], wanted: Budget) -> bool:
        name = {"AccountId": account, "BudgetName": wanted.limit["BudgetName"]}
        # AWS chooses the number of digits.
        limit = {**current["BudgetLimit"], "Amount": f"{float(current['BudgetLimit']['Amount']):.2f}"}
        if not _matches({**current, "BudgetLimit": limit}, wanted.limit):
            return False
        answer = await self._budgets.call("budgets", "describe_notifications_for_budget", **name)
        if not _matches(answer.get("Notifications", []), wanted.notifications):
            return False
        for notification in wanted.notifications:
            answer = await self._budgets.call(
                "budgets", "describe_subscribers_for_notification", **name, Notification=notification
            )
            if [subscriber["Address"] for subscriber in answer["Subscribers"]] != [wanted.email]:
                return False
        return True

    async def _remove_budget(self, names: Names) -> Change | None:
        account, current = await self._budget(names)
        return _remove(
            f"budget {names.budget}",
            current,
            lambda: self._budgets.call("budgets", "delete_budget", AccountId=account, BudgetName=names.budget),
        )

    async def _budget(self, names: Names) -> tuple[str, Current]:
        account = await self._aws.account()
        answer = await _call_unless_missing(
            self._budgets, "budgets", "describe_budget", AccountId=account, BudgetName=names.budget
        )
        return account, None if answer is None else answer["Budget"]

    async def _group(self, names: Names) -> Current:
        answer = await self._aws.call(
            "autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=[names.group]
        )
        return _find(answer["AutoScalingGroups"], "AutoScalingGroupName", names.group)

    async def _latest_template(self, names: Names) -> Current:
        template = {"LaunchTemplateName": names.launch_template, "Versions": ["$Latest"]}
        answer = await _call_unless_missing(self._aws, "ec2", "describe_launch_template_versions", **template)
        return None if answer is None else answer["LaunchTemplateVersions"][0]

    async def _parameter(self, names: Names) -> Current:
        answer = await _call_unless_missing(self._aws, "ssm", "get_parameter", Name=names.secret, WithDecryption=True)
        return None if answer is None else answer["Parameter"]

    async def _alarm(self, names: Names) -> Current:
        answer = await self._aws.call("cloudwatch", "describe_alarms", AlarmNames=[names.from_zero])
        return _find(answer.get("MetricAlarms", ()), "AlarmName", names.from_zero)


async def _call_unless_missing(aws: Aws, service: str, operation: str, **arguments: Any) -> Current:
    try:
        return await aws.call(service, operation, **arguments)
    except AwsError as error:
        if error.aws_code not in _MISSING:
            raise
        return None


def _put(resource: str, detail: str, pairs: Sequence[tuple[Current, Mapping[str, Any]]], run: Run) -> Change:
    """Plan a resource that one call creates and updates. `pairs` are the current and the wanted descriptions."""
    if all(current is not None and _matches(current, wanted) for current, wanted in pairs):
        return Change(action=Action.KEEP, resource=resource)
    action = Action.MAKE if all(current is None for current, _ in pairs) else Action.CHANGE
    return Change(action=action, resource=resource, detail=detail, run=run)


def _remove(resource: str, current: Current, run: Run) -> Change | None:
    return None if current is None else Change(action=Action.REMOVE, resource=resource, run=run)


def _matches(current: Any, wanted: Any, name: str = "") -> bool:
    """Whether a resource is as wanted.

    AWS adds defaults to objects, omits empty values, and reorders all lists except the overrides.
    """
    if isinstance(wanted, Mapping):
        return isinstance(current, Mapping) and all(_matches(current.get(key), wanted[key], key) for key in wanted)
    if isinstance(wanted, str):
        return set((current or "").split(",")) == set(wanted.split(","))
    if not isinstance(wanted, Sequence):
        return bool(current == wanted)
    pairs = zip(current or (), wanted, strict=False)
    return len(current or ()) == len(wanted) and (
        all(_matches(have, want) for have, want in pairs)
        if name == "Overrides"
        else all(any(_matches(have, want) for have in current) for want in wanted)
    )


def _find(resources: Sequence[Mapping[str, Any]], key: str, name: str) -> Current:
    """Return the resource of this name. Skip resources with a status: they are being deleted."""
    return next((resource for resource in resources if resource[key] == name and not resource.get("Status")), None)


def _tags(names: Names) -> list[dict[str, str]]:
    return [{"Key": name, "Value": value} for name, value in names.tags.items()]


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]
