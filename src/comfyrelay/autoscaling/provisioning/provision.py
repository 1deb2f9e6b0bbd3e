"""Make what a fleet has at AWS, change what differs, and take it away again. First everything is looked at, and a plan
is made; only then is anything done, so a dry run is the plan alone."""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from comfyrelay.autoscaling.providers.aws.access import Aws, AwsError
from comfyrelay.autoscaling.providers.aws.names import HOOK, Names
from comfyrelay.autoscaling.provisioning.blueprint import Blueprint, Budget
from comfyrelay.errors import Conflict

# Budgets are kept in one place for all regions.
BUDGETS_REGION = "us-east-1"
# What services answer when something is not there. A group that is missing is a validation error to its hooks.
_MISSING = (
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidLaunchTemplateId.NotFound",
    "NotFoundException",
    "ParameterNotFound",
    "ValidationError",
)


class Action(StrEnum):
    MAKE = "make"
    CHANGE = "change"
    REMOVE = "remove"
    KEEP = "keep"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing at AWS: what it is called, what is to be done with it, and why."""

    action: Action
    what: str
    why: str = ""
    do: Callable[[], Awaitable[object]] | None = None


async def apply(changes: Sequence[Change], *, on_done: Callable[[Change], None] = lambda _: None) -> None:
    for each in changes:
        if each.do is not None:
            await each.do()
            on_done(each)


class Provisioner:
    def __init__(self, aws: Aws, *, budgets: Aws) -> None:
        self._aws = aws
        self._budgets = budgets

    async def plan(self, blueprint: Blueprint, *, secret: str) -> Sequence[Change]:
        """What has to be done, in this order. Nothing is changed yet."""
        group = await self._group(blueprint.names)
        return [
            await self._secret(blueprint.names, secret),
            await self._launch_template(blueprint),
            await self._scaling_group(blueprint, group),
            await self._hook(blueprint),
            *await self._fallback(blueprint),
            *await self._budget(blueprint),
        ]

    async def removal(self, names: Names, *, force: bool = False) -> Sequence[Change]:
        """The same backwards; what is not there is not in it. `Conflict` while machines are there, unless forced."""
        group = await self._group(names)
        if group is not None and group["Instances"] and not force:
            count = len(group["Instances"])
            raise Conflict(
                f"{names.group} still has {count} machine{'s' * (count > 1)}: pause the fleet and let them idle out, "
                "or end them with --force; they give back what they run."
            )
        found = [
            await self._remove_budget(names),
            await self._remove(
                f"alarm {names.from_zero}",
                await self._alarm(names),
                lambda: self._aws.call("cloudwatch", "delete_alarms", AlarmNames=[names.from_zero]),
            ),
            # its hook and its policies go with it
            await self._remove(
                f"Auto Scaling group {names.group}",
                group,
                lambda: self._aws.call(
                    "autoscaling", "delete_auto_scaling_group", AutoScalingGroupName=names.group, ForceDelete=force
                ),
            ),
            await self._remove(
                f"launch template {names.launch_template}",
                await self._latest(names),
                lambda: self._aws.call("ec2", "delete_launch_template", LaunchTemplateName=names.launch_template),
            ),
            await self._remove(
                f"parameter {names.secret}",
                await self._parameter(names),
                lambda: self._aws.call("ssm", "delete_parameter", Name=names.secret),
            ),
        ]
        return [each for each in found if each is not None]

    async def _secret(self, names: Names, secret: str) -> Change:
        there = await self._parameter(names)
        what = f"parameter {names.secret}"
        if there is not None and there["Value"] == secret and there["Type"] == "SecureString":
            return Change(action=Action.KEEP, what=what)

        def do() -> Awaitable[object]:
            given: dict[str, Any] = {"Name": names.secret, "Value": secret, "Type": "SecureString"}
            return self._aws.call("ssm", "put_parameter", **given, Overwrite=there is not None)

        if there is None:
            return Change(action=Action.MAKE, what=what, why="the fleet's secret, encrypted", do=do)
        return Change(action=Action.CHANGE, what=what, why="another secret", do=do)

    async def _launch_template(self, blueprint: Blueprint) -> Change:
        names, data = blueprint.names, dict(blueprint.launch_template)
        what = f"launch template {names.launch_template}"
        # AWS fills in and reorders what it is given: what was asked for is kept with the version
        mark = f"comfyrelay {_digest(data)}"
        version = {"LaunchTemplateName": names.launch_template, "VersionDescription": mark, "LaunchTemplateData": data}
        latest = await self._latest(names)
        if latest is None:
            tags = {"ResourceType": "launch-template", "Tags": _tags(names)}
            return Change(
                action=Action.MAKE,
                what=what,
                why=f"image {data['ImageId']}",
                do=lambda: self._aws.call("ec2", "create_launch_template", **version, TagSpecifications=[tags]),
            )
        if latest.get("VersionDescription") == mark:
            return Change(action=Action.KEEP, what=what)
        return Change(
            action=Action.CHANGE,
            what=what,
            why="a new version, for machines that are launched from now on",
            do=lambda: self._aws.call("ec2", "create_launch_template_version", **version),
        )

    async def _scaling_group(self, blueprint: Blueprint, there: Mapping[str, Any] | None) -> Change:
        names, wanted = blueprint.names, dict(blueprint.group)
        what = f"Auto Scaling group {names.group}"
        tags = [
            {
                "ResourceId": names.group,
                "ResourceType": "auto-scaling-group",
                "Key": name,
                "Value": value,
                "PropagateAtLaunch": True,
            }
            for name, value in names.tags.items()
        ]
        if there is None:
            why = f"0 to {wanted['MaxSize']} machines, Spot only, {len(wanted['VPCZoneIdentifier'].split(','))} subnets"
            return Change(
                action=Action.MAKE,
                what=what,
                why=why,
                do=lambda: self._aws.call(
                    "autoscaling", "create_auto_scaling_group", **wanted, DesiredCapacity=0, Tags=tags
                ),
            )
        differing = [name for name, value in wanted.items() if not _has(there.get(name), value)]
        untagged = [tag for tag in tags if not any(_has(found, tag) for found in there.get("Tags", ()))]
        if not differing and not untagged:
            return Change(action=Action.KEEP, what=what)

        async def do() -> None:
            if differing:
                await self._aws.call("autoscaling", "update_auto_scaling_group", **wanted)
            if untagged:
                await self._aws.call("autoscaling", "create_or_update_tags", Tags=untagged)

        return Change(action=Action.CHANGE, what=what, why=", ".join([*differing, *["Tags"] * bool(untagged)]), do=do)

    async def _hook(self, blueprint: Blueprint) -> Change:
        wanted = blueprint.hook
        what = f"lifecycle hook {HOOK} of {blueprint.names.group}"
        answer = await self._unless_missing(
            "autoscaling", "describe_lifecycle_hooks", AutoScalingGroupName=blueprint.names.group
        )
        there = _named((answer or {}).get("LifecycleHooks", ()), "LifecycleHookName", HOOK)
        why = f"a machine that ends has up to {wanted['HeartbeatTimeout']} s to finish or give back"
        return self._put(
            what, why, [(there, wanted)], lambda: self._aws.call("autoscaling", "put_lifecycle_hook", **wanted)
        )

    async def _fallback(self, blueprint: Blueprint) -> Sequence[Change]:
        names, wanted = blueprint.names, blueprint.fallback
        answer = await self._unless_missing("autoscaling", "describe_policies", AutoScalingGroupName=names.group)
        policies = (answer or {}).get("ScalingPolicies", ())
        from_zero, backlog = (_named(policies, "PolicyName", name) for name in (names.from_zero, names.backlog))
        alarm = await self._alarm(names)
        if wanted is None:
            return await self._without_fallback(names, alarm=alarm, policies=[from_zero, backlog])

        async def put_from_zero() -> None:
            made = await self._aws.call("autoscaling", "put_scaling_policy", **wanted.from_zero)
            await self._aws.call("cloudwatch", "put_metric_alarm", **wanted.alarm, AlarmActions=[made["PolicyARN"]])

        return [
            self._put(
                f"scaling policy and alarm {names.from_zero}",
                "from 0 to 1 when something waits and nobody decides",
                [(from_zero, wanted.from_zero), (alarm, wanted.alarm)],
                put_from_zero,
            ),
            self._put(
                f"scaling policy {names.backlog}",
                "BacklogPerInstance at 2, never scaling in",
                [(backlog, wanted.backlog)],
                lambda: self._aws.call("autoscaling", "put_scaling_policy", **wanted.backlog),
            ),
        ]

    async def _without_fallback(
        self, names: Names, *, alarm: object, policies: Sequence[Mapping[str, Any] | None]
    ) -> Sequence[Change]:
        there = [each["PolicyName"] for each in policies if each is not None]
        if alarm is None and not there:
            return []

        async def do() -> None:
            if alarm is not None:
                await self._aws.call("cloudwatch", "delete_alarms", AlarmNames=[names.from_zero])
            for each in there:
                await self._aws.call("autoscaling", "delete_policy", AutoScalingGroupName=names.group, PolicyName=each)

        return [
            Change(action=Action.REMOVE, what=f"scaling policies of {names.group}", why="no fallback is set", do=do)
        ]

    async def _budget(self, blueprint: Blueprint) -> Sequence[Change]:
        names, wanted = blueprint.names, blueprint.budget
        if wanted is None:
            removal = await self._remove_budget(names)
            return [] if removal is None else [removal]
        account, there = await self._found_budget(names)
        what, limit = f"budget {names.budget}", wanted.limit["BudgetLimit"]["Amount"]
        why = f"{wanted.email} is told at {limit} USD a month"
        if there is not None and await self._is_budget(account, there, wanted):
            return [Change(action=Action.KEEP, what=what)]

        async def do() -> None:
            if there is not None:
                # its notifications go with it
                await self._budgets.call("budgets", "delete_budget", AccountId=account, BudgetName=names.budget)
            subscribers = [{"SubscriptionType": "EMAIL", "Address": wanted.email}]
            await self._budgets.call(
                "budgets",
                "create_budget",
                AccountId=account,
                Budget=wanted.limit,
                NotificationsWithSubscribers=[
                    {"Notification": each, "Subscribers": subscribers} for each in wanted.notifications
                ],
            )

        return [Change(action=Action.MAKE if there is None else Action.CHANGE, what=what, why=why, do=do)]

    async def _is_budget(self, account: str, there: Mapping[str, Any], wanted: Budget) -> bool:
        name = {"AccountId": account, "BudgetName": wanted.limit["BudgetName"]}
        # AWS writes amounts with as many digits as it likes
        amount = {"BudgetLimit": {**there["BudgetLimit"], "Amount": f"{float(there['BudgetLimit']['Amount']):.2f}"}}
        if not _has({**there, **amount}, wanted.limit):
            return False
        answer = await self._budgets.call("budgets", "describe_notifications_for_budget", **name)
        if not _has(answer.get("Notifications", []), wanted.notifications):
            return False
        for notification in wanted.notifications:
            told = await self._budgets.call(
                "budgets", "describe_subscribers_for_notification", **name, Notification=notification
            )
            if [subscriber["Address"] for subscriber in told["Subscribers"]] != [wanted.email]:
                return False
        return True

    async def _remove_budget(self, names: Names) -> Change | None:
        account, there = await self._found_budget(names)
        return await self._remove(
            f"budget {names.budget}",
            there,
            lambda: self._budgets.call("budgets", "delete_budget", AccountId=account, BudgetName=names.budget),
        )

    async def _found_budget(self, names: Names) -> tuple[str, Mapping[str, Any] | None]:
        account = await self._aws.account()
        try:
            answer = await self._budgets.call("budgets", "describe_budget", AccountId=account, BudgetName=names.budget)
        except AwsError as error:
            if error.aws_code not in _MISSING:
                raise
            return account, None
        return account, answer["Budget"]

    async def _group(self, names: Names) -> Mapping[str, Any] | None:
        answer = await self._aws.call(
            "autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=[names.group]
        )
        return _named(answer["AutoScalingGroups"], "AutoScalingGroupName", names.group)

    async def _latest(self, names: Names) -> Mapping[str, Any] | None:
        answer = await self._unless_missing(
            "ec2",
            "describe_launch_template_versions",
            LaunchTemplateName=names.launch_template,
            Versions=["$Latest"],
        )
        return None if answer is None else answer["LaunchTemplateVersions"][0]

    async def _parameter(self, names: Names) -> Mapping[str, Any] | None:
        answer = await self._unless_missing("ssm", "get_parameter", Name=names.secret, WithDecryption=True)
        return None if answer is None else answer["Parameter"]

    async def _alarm(self, names: Names) -> Mapping[str, Any] | None:
        answer = await self._aws.call("cloudwatch", "describe_alarms", AlarmNames=[names.from_zero])
        return _named(answer.get("MetricAlarms", ()), "AlarmName", names.from_zero)

    async def _unless_missing(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any] | None:
        try:
            return await self._aws.call(service, operation, **arguments)
        except AwsError as error:
            if error.aws_code not in _MISSING:
                raise
            return None

    def _put(
        self,
        what: str,
        why: str,
        pairs: Sequence[tuple[Mapping[str, Any] | None, Mapping[str, Any]]],
        do: Callable[[], Awaitable[object]],
    ) -> Change:
        """For what is made and changed by the same call; each pair is what is there and what is wanted."""
        if all(there is not None and _has(there, wanted) for there, wanted in pairs):
            return Change(action=Action.KEEP, what=what)
        action = Action.MAKE if all(there is None for there, _ in pairs) else Action.CHANGE
        return Change(action=action, what=what, why=why, do=do)

    async def _remove(self, what: str, there: object, do: Callable[[], Awaitable[object]]) -> Change | None:
        return None if there is None else Change(action=Action.REMOVE, what=what, do=do)


def _has(there: Any, wanted: Any, name: str = "") -> bool:
    """Whether what is there is as wanted. AWS adds defaults of its own to objects, says nothing of what is empty, and
    has its own order for all lists but the one whose order counts."""
    if isinstance(wanted, Mapping):
        return isinstance(there, Mapping) and all(_has(there.get(each), wanted[each], each) for each in wanted)
    if isinstance(wanted, str):
        return set((there or "").split(",")) == set(wanted.split(","))
    if not isinstance(wanted, Sequence):
        return bool(there == wanted)
    pairs = zip(there or (), wanted, strict=False)
    return len(there or ()) == len(wanted) and (
        all(_has(have, want) for have, want in pairs)
        if name == "Overrides"
        else all(any(_has(have, want) for have in there) for want in wanted)
    )


def _named(found: Sequence[Mapping[str, Any]], key: str, name: str) -> Mapping[str, Any] | None:
    return next((each for each in found if each[key] == name and not each.get("Status")), None)


def _tags(names: Names) -> list[dict[str, str]]:
    return [{"Key": name, "Value": value} for name, value in names.tags.items()]


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]
