"""Settings of managed ComfyUI processes, shared by the worker and the desk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from comfyrelay.comfyui.processes.installs import Install, resolve_install
from comfyrelay.comfyui.processes.launch import check_arguments
from comfyrelay.comfyui.processes.python import find_python
from comfyrelay.configuration import ArgumentsOnly
from comfyrelay.errors import ConfigurationError
from comfyrelay.settings import CommaSeparated
from comfyrelay.system.command_lines import split


def _split_arguments(value: object) -> object:
    """Accept a command line from the environment, or a list from the settings file, also with `--option value`
    items."""
    try:
        if isinstance(value, str):
            return split(value)
        if isinstance(value, list):
            return [part for text in value for part in _parts(text)]
    except ValueError as error:
        raise ValueError(f"invalid command line ({error})") from None
    return value


def _parts(text: object) -> list[object]:
    if isinstance(text, str) and text.startswith("-") and " " in text:
        return [*split(text)]
    return [text]


def _count_or_auto(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _check_arguments(arguments: list[str]) -> list[str]:
    try:
        check_arguments(arguments)
    except ConfigurationError as error:
        raise ValueError(error.detail) from None
    return arguments


PerGpu = Annotated[Annotated[int, Field(ge=1, le=16)] | Literal["auto"], BeforeValidator(_count_or_auto)]


@dataclass(frozen=True, kw_only=True)
class ManagedOptions:
    """Options of managed ComfyUI processes. `setting` is the prefix of the names of the settings."""

    folder: Path
    python: Path | None = None
    arguments: tuple[str, ...] = ()
    # Processes per GPU; "auto" starts with one.
    per_gpu: int | Literal["auto"] = "auto"
    mps: Literal["auto", "off"] = "auto"
    # Names of additional environment variables for the processes.
    variables: tuple[str, ...] = ()
    setting: str = "COMFYRELAY_WORKER_"

    @property
    def first_count(self) -> int:
        return self.per_gpu if isinstance(self.per_gpu, int) else 1

    def resolve(self) -> tuple[Install, Path]:
        """Return the ComfyUI and its Python. Raises `ConfigurationError` with advice."""
        install = resolve_install(self.folder)
        return install, find_python(install, given=self.python, setting=f"{self.setting}COMFYUI_PYTHON")


class ManagedSettings(ArgumentsOnly):
    comfyui_dir: Path | None = Field(
        None,
        description="folder of a ComfyUI that ComfyRelay starts, supervises and stops; replaces the address of a "
        "running one",
    )
    comfyui_python: Path | None = Field(
        None, description="Python that starts it, or the folder of its environment; by default its own venv, .venv, …"
    )
    comfyui_args: Annotated[
        list[str], NoDecode, BeforeValidator(_split_arguments), AfterValidator(_check_arguments)
    ] = Field([], description="additional command-line arguments, such as `--lowvram`")
    comfyui_environment: CommaSeparated = Field(
        [],
        description="comma-separated: names of environment variables that ComfyUI gets in addition to the usual ones, "
        "such as `HF_TOKEN`; custom nodes can read them",
    )
    per_gpu: PerGpu = Field(
        "auto", description="processes on each GPU: a number, or `auto` to start with one and add more while that helps"
    )
    comfyui_mps: Literal["auto", "off"] = Field(
        "auto",
        description="`auto`: processes share an NVIDIA GPU through CUDA MPS where possible; `off`: never",
    )

    @property
    def managed(self) -> ManagedOptions | None:
        """Options of the ComfyUI to start, or `None` if none is configured."""
        if self.comfyui_dir is None:
            return None
        return ManagedOptions(
            folder=self.comfyui_dir,
            python=self.comfyui_python,
            arguments=tuple(self.comfyui_args),
            per_gpu=self.per_gpu,
            mps=self.comfyui_mps,
            variables=tuple(self.comfyui_environment),
            setting=str(self.model_config["env_prefix"]),
        )
