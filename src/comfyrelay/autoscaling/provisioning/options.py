"""What the operator says of a fleet at AWS: `options` of its machines, and flags of the commands."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from comfyrelay.errors import InvalidInput

# A line of a script or of an environment file is one line.
OneLine = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
Absolute = Annotated[str, Field(max_length=500, pattern=r"^/[A-Za-z0-9_./@+-]+$")]
# What Parameter Store and groups in three zones are for: more places to find a Spot instance in.
SUBNETS = 3
# What those look like that have to look like something.
_LIKE = {
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
    # name or ARN
    instance_profile: OneLine | None = None
    key_name: OneLine | None = None
    volume_gib: Annotated[int, Field(ge=8, le=16384)] | None = None
    # as the image names it: /dev/xvda in those of Amazon Linux
    root_device: Absolute = "/dev/sda1"
    # how instances reach the control plane, if not by the server's public_url
    api_base_url: Annotated[str, Field(pattern=r"^https?://[^\s\x00-\x1f\x7f]+$")] | None = None
    comfyui_folder: Absolute = "/opt/ComfyUI"
    comfyui_service: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]+$")] | None = "comfyui.service"
    command: Absolute = "/opt/comfyrelay/bin/comfyrelay"
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]*$")] = "comfy"
    budget_usd_per_month: Annotated[float, Field(gt=0)] | None = None
    budget_email: Annotated[str, Field(pattern=r"^[^\s@]+@[^\s@]+$", max_length=50)] | None = None
    # what the first machine is expected to take; the scaling loop asks for it
    boot_seconds: Annotated[float, Field(gt=0)] | None = None
    # policies of CloudWatch that launch, but never end, when nobody decides
    cloudwatch_fallback: bool = False


def read_options(said: Mapping[str, Any], flags: Mapping[str, Any]) -> AwsOptions:
    """A flag goes before what is kept with the fleet. `InvalidInput` says which options are wrong."""
    try:
        return AwsOptions.model_validate({**said, **{name: each for name, each in flags.items() if each is not None}})
    except ValidationError as error:
        raise InvalidInput(
            errors={"options." + ".".join(map(str, each["loc"])): _sentence(each) for each in error.errors()}
        ) from None


def _sentence(error: ErrorDetails) -> str:
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"There is no such option. Options: {', '.join(sorted(AwsOptions.model_fields))}."
    if error["type"] == "string_pattern_mismatch":
        return f"Write it like {_LIKE[name]}." if name in _LIKE else "Write it in one line, without control characters."
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "It must be") + "."
