"""Validate the `machines.options` of fleets by provider, so that a misspelled option cannot be saved."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from comfyrelay.autoscaling.providers.local import LocalOptions
from comfyrelay.autoscaling.provisioning.options import AwsOptions
from comfyrelay.domain.autoscaling.spec import MachineProviderName
from comfyrelay.errors import InvalidInput

FIELD = "machines.options"


class CommandOptions(BaseModel):
    """Options of the provider `command`. All other options belong to the script."""

    model_config = ConfigDict(extra="allow")

    command: Annotated[str, Field(min_length=1)]
    boot_seconds: Annotated[float, Field(gt=0)] | None = None


class ClusterOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    gpus: Annotated[int, Field(ge=0, strict=True)] = 1
    node_selector: dict[str, str] = Field(default_factory=dict)
    boot_seconds: Annotated[float, Field(gt=0)] | None = None


_MODELS: Mapping[str, type[BaseModel]] = {
    MachineProviderName.LOCAL: LocalOptions,
    MachineProviderName.COMMAND: CommandOptions,
    MachineProviderName.AWS: AwsOptions,
    MachineProviderName.KUBERNETES: ClusterOptions,
}


def check(provider: str, options: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for invalid options. Options of third-party providers are not checked."""
    model = _MODELS.get(provider)
    if model is None:
        return
    try:
        model.model_validate(dict(options))
    except ValidationError as error:
        raise InvalidInput(
            errors={
                ".".join(map(str, (FIELD, *details["loc"]))): _sentence(model, details) for details in error.errors()
            }
        ) from None


def _sentence(model: type[BaseModel], error: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        return f"Unknown field. Valid fields: {', '.join(sorted(model.model_fields))}."
    if model is CommandOptions and error["loc"] == ("command",):
        return "Set the file name of the script that launches the machines. It must be in the server's programs folder."
    return str(error["msg"]).removeprefix("Value error, ")
