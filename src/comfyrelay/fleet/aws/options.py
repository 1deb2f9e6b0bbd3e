"""What the operator says of a fleet at AWS: `options` of its machines, and flags of the commands."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from comfyrelay.errors import InvalidInput

# A line of a script or of an environment file is one line.
OneLine = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
Absolute = Annotated[str, Field(max_length=500, pattern=r"^/[A-Za-z0-9_./@+-]+$")]
# What Parameter Store and groups in three zones are for: more places to find a Spot instance in.
SUBNETS = 3


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
            errors={"options." + ".".join(map(str, each["loc"])): each["msg"] for each in error.errors()}
        ) from None
