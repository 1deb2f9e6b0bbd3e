"""An AWS account with the resources that a fleet needs."""

from collections.abc import Sequence
from typing import Any

import boto3

from comfyrelay.autoscaling.providers.aws.access import Aws
from comfyrelay.autoscaling.providers.base import ProviderFleet
from comfyrelay.autoscaling.provisioning.blueprint import Blueprint, build_blueprint
from comfyrelay.autoscaling.provisioning.options import read_options
from comfyrelay.autoscaling.provisioning.provision import Action, Change, Provisioner, apply
from comfyrelay.domain.autoscaling.spec import DEFAULT_MAX_MACHINES, InstanceType, MachineProviderName, MachineSpec
from tests.support.aws_proxy import Proxy

REGION = "eu-west-1"
ACCOUNT = "123456789012"
API = "https://relay.example.com"
SECRET = "a-secret-of-the-fleet"
TYPES = (
    InstanceType(name="g4dn.xlarge", price_per_hour=0.2),
    InstanceType(name="g5.xlarge", price_per_hour=0.4, speed=2.0),
)


class Account:
    """Read and prepare the account without the code under test."""

    def __init__(self, proxy: Proxy, clients: dict[str, Any]) -> None:
        self.proxy = proxy
        self._clients = clients

    def client(self, service: str) -> Any:
        # creating a client takes 0.1 s
        if service not in self._clients:
            session = boto3.session.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name=REGION)
            make: Any = session.client
            self._clients[service] = make(service, endpoint_url=self.proxy.url)
        return self._clients[service]

    def clear(self) -> None:
        """Remove the resources of fleets, because a full reset of moto takes a second."""
        scaling, ec2, ssm, budgets = map(self.client, ("autoscaling", "ec2", "ssm", "budgets"))
        for group in scaling.describe_auto_scaling_groups()["AutoScalingGroups"]:
            scaling.delete_auto_scaling_group(AutoScalingGroupName=group["AutoScalingGroupName"], ForceDelete=True)
        for template in ec2.describe_launch_templates()["LaunchTemplates"]:
            ec2.delete_launch_template(LaunchTemplateId=template["LaunchTemplateId"])
        for parameter in ssm.describe_parameters()["Parameters"]:
            ssm.delete_parameter(Name=parameter["Name"])
        for budget in budgets.describe_budgets(AccountId=ACCOUNT)["Budgets"]:
            budgets.delete_budget(AccountId=ACCOUNT, BudgetName=budget["BudgetName"])
        alarms = self.client("cloudwatch").describe_alarms()["MetricAlarms"]
        self.client("cloudwatch").delete_alarms(AlarmNames=[alarm["AlarmName"] for alarm in alarms])

    def subnets(self) -> list[str]:
        found = self.client("ec2").describe_subnets()["Subnets"]
        return [subnet["SubnetId"] for subnet in sorted(found, key=lambda subnet: subnet["AvailabilityZone"])][:3]

    def group(self, name: str) -> Any:
        found = self.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])[
            "AutoScalingGroups"
        ]
        return found[0] if found else None

    def fleet(
        self,
        slug: str = "video",
        *,
        stage: str = "production",
        max_machines: int = DEFAULT_MAX_MACHINES,
        instance_types: Sequence[InstanceType] = TYPES,
        **options: Any,
    ) -> ProviderFleet:
        return ProviderFleet(
            slug=slug,
            stage=stage,
            spec=MachineSpec(
                provider=MachineProviderName.AWS,
                image="ami-0123456789abcdef0",
                instance_types=instance_types,
                options={"subnets": self.subnets(), "instance_profile": "worker", **options},
            ),
            max_machines=max_machines,
        )


def blueprint_of(fleet: ProviderFleet) -> Blueprint:
    options = read_options(fleet.spec.options, {})
    return build_blueprint(fleet, options, region=REGION, api_base_url=API, namespace="ComfyRelay")


async def planned(fleet: ProviderFleet, *, secret: str = SECRET) -> Sequence[Change]:
    aws = Aws()
    return await Provisioner(aws, budgets=aws).plan(blueprint_of(fleet), secret=secret)


async def provisioned(fleet: ProviderFleet, *, secret: str = SECRET) -> list[tuple[Action, str]]:
    """Provision the fleet and return the steps."""
    changes = await planned(fleet, secret=secret)
    await apply(changes)
    return [(change.action, change.resource) for change in changes]
