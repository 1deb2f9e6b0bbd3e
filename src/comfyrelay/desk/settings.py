"""Settings of a desk in addition to the server settings: `COMFYRELAY_DESK_…`, or `[desk]` in the file."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from comfyrelay.comfyui.processes.options import ManagedSettings
from comfyrelay.configuration import load
from comfyrelay.settings import CommaSeparated, Count, CountOrZero, SecondsOrZero, split_commas
from comfyrelay.system.safe_names import plain_name

ENV_PREFIX = "COMFYRELAY_DESK_"
# The default names of outputs, such as `0007_a-red-fox_seed42.mp4`.
DEFAULT_NAMES = "{number}_{label}_{seed}"
NAME_FIELDS = ("number", "label", "seed", "date")
NAME_FIELD = re.compile(r"\{(\w*)\}")
_HOST = re.compile(r"([\w.-]+|\[[0-9a-f:]+\])(:\d{1,5})?")


def _host(name: str) -> str:
    if not _HOST.fullmatch(name.lower()):
        raise ValueError("use host names as in the browser's address bar, such as desk.home or desk.home:8443")
    return name.lower()


def _output_names(template: str) -> str:
    fields = NAME_FIELD.findall(template)
    if unknown := [name for name in fields if name not in NAME_FIELDS]:
        raise ValueError(f"{{{unknown[0]}}} is unknown; use {{{'}, {'.join(NAME_FIELDS)}}}")
    if not fields:
        raise ValueError("use at least one of " + ", ".join(f"{{{name}}}" for name in NAME_FIELDS))
    if plain_name(NAME_FIELD.sub("x", template)) != NAME_FIELD.sub("x", template):
        raise ValueError('a name may not contain / \\ : * ? " < > | or begin or end with a dot or a space')
    return template


def _web_address(url: str) -> str:
    # The page shows it as a link.
    if not url.startswith(("http://", "https://")):
        raise ValueError("must be an http:// or https:// address")
    return url


WebAddresses = Annotated[list[Annotated[str, AfterValidator(_web_address)]], NoDecode, BeforeValidator(split_commas)]
OutputNames = Annotated[str, Field(max_length=200), AfterValidator(_output_names)]
Hosts = Annotated[list[Annotated[str, AfterValidator(_host)]], NoDecode, BeforeValidator(split_commas)]


class DeskSettings(ManagedSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX)

    comfyui_url: CommaSeparated = Field(
        ["http://127.0.0.1:8188"], description="comma-separated: addresses of ComfyUI, one per GPU"
    )
    comfyui_public_url: WebAddresses = Field(
        [],
        description="comma-separated: addresses at which browsers on other machines reach ComfyUI, in the order of "
        "`comfyui_url`, for *Open in ComfyUI*",
    )
    comfyui_folders: Annotated[list[Path], NoDecode, BeforeValidator(split_commas)] = Field(
        [], description="folders with ComfyUI's `input` and `output`; the desk deletes job files from them"
    )
    tidy_comfyui: bool = Field(
        True,
        description="whether jobs are deleted from ComfyUI's history, and their files from `comfyui_folders`, once the "
        "desk has their outputs",
    )
    simulator: bool = Field(False, description="whether new jobs run on the built-in simulator instead of ComfyUI")
    simulator_step_seconds: SecondsOrZero = Field(
        0, description="duration of a sampler step in the simulator; above 0, live previews are visible"
    )
    input_folder: Path | None = Field(
        None,
        description="folder whose subfolders contain the inputs of batches; if not set, `inputs` in the data folder",
    )
    output_folder: Path | None = Field(
        None, description="folder for outputs, with one folder per batch; if not set, `outputs` in the data folder"
    )
    output_names: OutputNames = Field(
        DEFAULT_NAMES,
        description="names of the files in the output folder, from `{number}`, `{label}`, `{seed}` and `{date}`",
    )
    keep_outputs_days: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="days after which an ended job is deleted with its outputs and their copies, except outputs that "
        "are starred or in a collection; if not set, all are kept",
    )
    interrupted_jobs: Literal["retry", "fail", "requeue"] = Field(
        "retry",
        description="what happens to a job that was running when the desk was killed: `retry` (runs again, up to its "
        "limit of attempts), `fail` (one click runs it again) or `requeue` (runs again, without limit)",
    )
    max_concurrency: Count | None = Field(None, description="number of simultaneous jobs; if not set, one per ComfyUI")
    prefetch: CountOrZero = Field(
        1, description="jobs whose inputs are downloaded while others run; per ComfyUI if jobs take at most 10 s"
    )
    shutdown_seconds: SecondsOrZero = Field(
        10, description="seconds that Ctrl-C waits for the current job before it is requeued"
    )
    allowed_hosts: Hosts = Field(
        [], description="comma-separated: additional host names of the page, such as a proxy's"
    )
    notify_urls: CommaSeparated = Field(
        [], repr=False, description="comma-separated: apprise URLs for notifications; they contain secrets"
    )
    notify_on: Annotated[list[Literal["completed", "failed", "empty"]], NoDecode, BeforeValidator(split_commas)] = (
        Field(
            ["failed", "empty"],
            description="comma-separated: events to notify about: `completed`, `failed`, `empty` (queue)",
        )
    )


def load_desk_settings(data_dir: Path | None = None) -> DeskSettings:
    return load(DeskSettings, table="desk", data_dir=data_dir)
