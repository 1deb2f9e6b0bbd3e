"""Compare the Spot quotas of the account with the maximum size of the fleet."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from comfyrelay.autoscaling.providers.aws.access import Aws, AwsError
from comfyrelay.autoscaling.providers.base import ProviderFleet

# A Spot quota counts the virtual CPUs of a family of instance types.
_QUOTAS = (
    (re.compile(r"(g|gr|vt)\d"), "L-3819A6DF", "G and VT"),
    (re.compile(r"p[2-4]"), "L-7212CCBC", "P2, P3 and P4"),
    (re.compile(r"p5"), "L-C4BD4855", "P5"),
    (re.compile(r"(a|c|d|h|i|im|is|m|r|t|z)\d"), "L-34B43A08", "Standard"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    text: str
    is_enough: bool


async def check_quotas(aws: Aws, fleet: ProviderFleet) -> Sequence[Quota]:
    """Return one result per family of instance types, and one result for types without a known quota."""
    by_code: dict[tuple[str, str], list[str]] = {}
    unknown = []
    for instance_type in fleet.spec.instance_types:
        for types, code, family in _QUOTAS:
            if types.match(instance_type.name):
                by_code.setdefault((code, family), []).append(instance_type.name)
                break
        else:
            unknown.append(instance_type.name)
    quotas = [await _check(aws, fleet, code, family, names) for (code, family), names in by_code.items()]
    if unknown:
        text = f"The Spot quota of {', '.join(unknown)} is unknown: check it in Service Quotas."
        quotas.append(Quota(text=text, is_enough=True))
    return quotas


async def _check(aws: Aws, fleet: ProviderFleet, code: str, family: str, types: Sequence[str]) -> Quota:
    quota = f"Spot quota for {family} instances ({code})"
    try:
        allowed = await _allowed(aws, code)
        answer = await aws.call("ec2", "describe_instance_types", InstanceTypes=list(types))
    except AwsError as error:
        return Quota(text=f"Cannot read the {quota}. {error.detail}", is_enough=True)
    cpus_by_type = {type_["InstanceType"]: type_["VCpuInfo"]["DefaultVCpus"] for type_ in answer["InstanceTypes"]}
    name, cpus = max(cpus_by_type.items(), key=lambda item: item[1], default=(types[0], 0))
    wanted = cpus * fleet.max_machines
    need = f"{fleet.max_machines} machines of {name} need {wanted}"
    if allowed >= wanted:
        return Quota(text=f"The {quota} is {allowed:g} vCPUs; {need}.", is_enough=True)
    text = (
        f"The {quota} is {allowed:g} vCPUs, enough for {int(allowed // cpus)} of {name}; {need}. "
        "Request an increase in Service Quotas; AWS refuses launches beyond it."
    )
    return Quota(text=text, is_enough=False)


async def _allowed(aws: Aws, code: str) -> float:
    try:
        answer = await aws.call("service-quotas", "get_service_quota", ServiceCode="ec2", QuotaCode=code)
    except AwsError as error:
        # A quota that was never changed has the default value.
        if error.aws_code != "NoSuchResourceException":
            raise
        answer = await aws.call("service-quotas", "get_aws_default_service_quota", ServiceCode="ec2", QuotaCode=code)
    return float(answer["Quota"]["Value"])
