"""Desk settings in addition to those of the server: `COMFYRELAY_DESK_…`, or `[desk]` in the file."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from comfyrelay.comfyui.processes.options import ManagedSettings
from comfyrelay.configuration import load
from comfyrelay.settings import CommaSeparated, Count, CountOrZero, SecondsOrZero, split_commas

ENV_PREFIX = "COMFYRELAY_DESK_"
_HOST = re.compile(r"([\w.-]+|\[[0-9a-f:]+\])(:\d{1,5})?")


def _host(name: str) -> str:
    if not _HOST.fullmatch(name.lower()):
        raise ValueError("write names as they stand in the browser, such as desk.home or desk.home:8443")
    return name.lower()


Hosts = Annotated[list[Annotated[str, AfterValidator(_host)]], NoDecode, BeforeValidator(split_commas)]


class DeskSettings(ManagedSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX)

    comfyui_url: CommaSeparated = Field(
        ["http://127.0.0.1:8188"], description="comma-separated: addresses of ComfyUI, one for each GPU"
    )
    comfyui_folders: Annotated[list[Path], NoDecode, BeforeValidator(split_commas)] = Field(
        [], description="folders with ComfyUI's `input` and `output`, from which the files of a job are removed"
    )
    tidy_comfyui: bool = Field(
        True,
        description="whether jobs of the desk are removed from ComfyUI's history, and their files from "
        "`comfyui_folders`, once the desk has what they made",
    )
    simulator: bool = Field(
        False, description="try things out: what is added runs on the built-in simulator, and not on ComfyUI"
    )
    simulator_step_seconds: SecondsOrZero = Field(
        0, description="how long each step of a sampler takes there: enough to see live previews"
    )
    input_folder: Path | None = Field(
        None, description="folder whose sub-folders batches take their inputs from; `inputs` in the data folder"
    )
    output_folder: Path | None = Field(
        None, description="folder that outputs are put in, one folder for each batch; `outputs` in the data folder"
    )
    interrupted_jobs: Literal["retry", "fail", "requeue"] = Field(
        "retry",
        description="what becomes of a job that ran when the desk was killed: `retry` (it runs again, up to its "
        "attempts), `fail` (one click runs it again) or `requeue` (again, however often)",
    )
    at_once: Count | None = Field(None, description="jobs at once; one for each ComfyUI when not set")
    prefetch: CountOrZero = Field(
        1, description="jobs whose inputs are fetched while others run; for each ComfyUI, while jobs take 10 s at most"
    )
    finish_seconds: SecondsOrZero = Field(
        10, description="how long Ctrl-C waits for the present job before it is put back"
    )
    allowed_hosts: Hosts = Field(
        [], description="comma-separated: further names by which the page may be opened, such as that of a proxy"
    )
    notify_urls: CommaSeparated = Field(
        [], repr=False, description="comma-separated: where notifications go, as apprise writes it; they hold secrets"
    )
    notify_on: Annotated[list[Literal["completed", "failed", "empty"]], NoDecode, BeforeValidator(split_commas)] = (
        Field(
            ["failed", "empty"],
            description="comma-separated: what they are notified of: `completed`, `failed`, `empty` (queue)",
        )
    )


def load_desk_settings() -> DeskSettings:
    return load(DeskSettings, table="desk")
