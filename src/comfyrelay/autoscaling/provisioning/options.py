"""AWS options of a fleet: `machines.options`, and flags of the commands."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from comfyrelay.errors import InvalidInput

# Values end up in scripts and environment files, so line breaks are not allowed.
OneLine = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
Absolute = Annotated[str, Field(max_length=500, pattern=r"^/[A-Za-z0-9_./@+-]+$")]
# Spot capacity is easier to find in three availability zones.
RECOMMENDED_SUBNETS = 3
_EXAMPLES = {
    "region": "eu-west-1",
    "subnets": "subnet-0123abcd",
    "security_groups": "sg-0123abcd",
    "root_device": "/dev/sda1",
    "api_base_url": "https://relay.example.com",
    "comfyui_folder": "/opt/ComfyUI",
    "comfyui_service": "comfyui.service",
    "command": "/opt/comfyrelay/bin/comfyrelay",
    "user": "comfy",
    "budget_email": "ops@example.com",
}


class AwsOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")] | None = None
    subnets: Annotated[list[Annotated[str, Field(pattern=r"^subnet-[0-9a-z]+$")]], Field(max_length=20)] = []
    security_groups: list[Annotated[str, Field(pattern=r"^sg-[0-9a-z]+$")]] = []
    # The name or the ARN.
    instance_profile: OneLine | None = None
    key_name: OneLine | None = None
    volume_gib: Annotated[int, Field(ge=8, le=16384)] | None = None
    # The name of the device in the image. Amazon Linux uses /dev/xvda.
    root_device: Absolute = "/dev/sda1"
    # The URL at which instances reach the server, if not `public_url`.
    api_base_url: Annotated[str, Field(pattern=r"^https?://[^\s\x00-\x1f\x7f]+$")] | None = None
    comfyui_folder: Absolute = "/opt/ComfyUI"
    comfyui_service: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]+$")] | None = "comfyui.service"
    command: Absolute = "/opt/comfyrelay/bin/comfyrelay"
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]*$")] = "comfy"
    budget_usd_per_month: Annotated[float, Field(gt=0)] | None = None
    budget_email: Annotated[str, Field(pattern=r"^[^\s@]+@[^\s@]+$", max_length=50)] | None = None
    # Expected boot time of the first machine.
    boot_seconds: Annotated[float, Field(gt=0)] | None = None
    # Whether CloudWatch policies launch machines while no autoscaling loop runs. They never terminate machines.
    cloudwatch_fallback: bool = False


def read_options(saved: Mapping[str, Any], flags: Mapping[str, Any]) -> AwsOptions:
    """Combine the fleet's saved options with flags that override them. Raises `InvalidInput` if a value is invalid."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return AwsOptions.model_validate({**saved, **given})
    except ValidationError as error:
        raise InvalidInput(
            errors={"options." + ".".join(map(str, details["loc"])): _sentence(details) for details in error.errors()}
        ) from None


def _sentence(error: ErrorDetails) -> str:
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"Unknown option. Options: {', '.join(sorted(AwsOptions.model_fields))}."
    if error["type"] == "string_pattern_mismatch":
        return (
            f"Write it like {_EXAMPLES[name]}."
            if name in _EXAMPLES
            else "Write it in one line, without control characters."
        )
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "It must be") + "."
