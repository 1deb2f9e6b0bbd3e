"""What somebody may choose of the ComfyUI that ComfyRelay starts; the worker's settings and the desk's share it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from comfyrelay.comfyui.processes.installs import Install, install_at
from comfyrelay.comfyui.processes.launch import check_arguments
from comfyrelay.comfyui.processes.python import python_of
from comfyrelay.errors import ConfigurationError
from comfyrelay.settings import ArgumentsOnly
from comfyrelay.system.command_lines import split


def _words(value: object) -> object:
    """A command line in the environment, a list in the file."""
    if not isinstance(value, str):
        return value
    try:
        return split(value)
    except ValueError as error:
        raise ValueError(f"they are no arguments that can be read ({error})") from None


def _count_or_auto(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _checked(arguments: list[str]) -> list[str]:
    try:
        check_arguments(arguments)
    except ConfigurationError as error:
        raise ValueError(error.detail) from None
    return arguments


PerGpu = Annotated[Annotated[int, Field(ge=1, le=16)] | Literal["auto"], BeforeValidator(_count_or_auto)]


@dataclass(frozen=True, kw_only=True)
class Care:
    """`setting` is the beginning of the names of the settings that these come from."""

    folder: Path
    python: Path | None = None
    arguments: tuple[str, ...] = ()
    # on each GPU; "auto" begins with one
    per_gpu: int | Literal["auto"] = "auto"
    mps: Literal["auto", "off"] = "auto"
    setting: str = "COMFYRELAY_WORKER_"

    @property
    def first_count(self) -> int:
        return self.per_gpu if isinstance(self.per_gpu, int) else 1

    def resolved(self) -> tuple[Install, Path]:
        """Which ComfyUI, and which Python; `ConfigurationError` says what to change."""
        install = install_at(self.folder)
        return install, python_of(install, given=self.python, setting=f"{self.setting}COMFYUI_PYTHON")


class CareSettings(ArgumentsOnly):
    comfyui_dir: Path | None = Field(
        None,
        description="folder of a ComfyUI that ComfyRelay starts itself, watches over and stops; then no address is "
        "needed",
    )
    comfyui_python: Path | None = Field(
        None, description="Python that starts it, or its environment's folder; its own venv, .venv, … when not set"
    )
    comfyui_args: Annotated[list[str], NoDecode, BeforeValidator(_words), AfterValidator(_checked)] = Field(
        [], description="more arguments that it is started with, such as `--lowvram`"
    )
    per_gpu: PerGpu = Field(
        "auto", description="how many of it run on each GPU: a number, or `auto`: begins with one and adds what helps"
    )
    comfyui_mps: Literal["auto", "off"] = Field(
        "auto",
        description="`auto`: several of it on one NVIDIA GPU share it through CUDA MPS where that works; `off`: never",
    )

    @property
    def care(self) -> Care | None:
        """What is to be started here, if anything is."""
        if self.comfyui_dir is None:
            return None
        return Care(
            folder=self.comfyui_dir,
            python=self.comfyui_python,
            arguments=tuple(self.comfyui_args),
            per_gpu=self.per_gpu,
            mps=self.comfyui_mps,
            setting=str(self.model_config["env_prefix"]),
        )
