"""Worker settings: `COMFYRELAY_WORKER_…`, well-known variables, or `[worker]` in the file."""

import socket
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import httpx
from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.comfyui.processes.options import CareSettings
from comfyrelay.settings import (
    CommaSeparated,
    Count,
    CountOrZero,
    GraphPolicyMode,
    Seconds,
    SecondsOrZero,
    Stage,
    load,
    split_commas,
)
from comfyrelay.system.command_lines import split
from comfyrelay.system.user_folders import data_folder

ENV_PREFIX = "COMFYRELAY_WORKER_"
# setting → well-known environment variable
PLAIN_NAMES = {
    "api_base_url": "API_BASE_URL",
    "fleet_secret": "FLEET_SECRET",
    "fleet_identity": "FLEET_IDENTITY",
    "fleet_slug": "FLEET_SLUG",
    "fleet_stage": "FLEET_STAGE",
    "worker_id": "WORKER_ID",
    "comfy_providers": "COMFY_PROVIDERS",
    "comfyui_base_url": "COMFYUI_BASE_URL",
    "comfy_cloud_api_key": "COMFY_CLOUD_API_KEY",
    "max_concurrency": "MAX_CONCURRENCY",
    "heartbeat_interval_seconds": "HEARTBEAT_INTERVAL_SECONDS",
    "capabilities": "CAPABILITIES",
    "asg_name": "ASG_NAME",
}

NO_METADATA = ("", "off")
# Capabilities that a worker detects.
OWN_CAPABILITIES = frozenset({"comfyui", "models", "node_types", "providers"})

Provider = Literal["self_hosted", "cloud"]
PreviewMethod = Literal["auto", "latent2rgb", "taesd", "none", "default"]


class WorkerSettings(CareSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX)

    api_base_url: str = Field("http://127.0.0.1:8420", description="address of the control plane")
    fleet_secret: str | None = Field(None, repr=False, description="secret that the worker registers with")
    fleet_identity: Literal["aws"] | None = Field(
        None, description="`aws`: without a secret, register with the identity document of this EC2 instance"
    )
    fleet_slug: str | None = Field(None, description="fleet that the worker joins")
    fleet_stage: Stage = Field("production", description="stage of that fleet")
    worker_id: str | None = Field(
        None, description="name of the worker, unique in all fleets; from the EC2 instance or the host name"
    )
    display_name: str | None = Field(None, description="how pages call the worker")
    workflow_slugs: CommaSeparated = Field(
        [], description="comma-separated: only these of the fleet's workflows; all if empty"
    )

    comfy_providers: Annotated[list[Provider], NoDecode, BeforeValidator(split_commas)] = Field(
        [], description="comma-separated: `self_hosted`, `cloud`; from what else is set if empty"
    )
    comfyui_base_url: CommaSeparated = Field(
        ["http://127.0.0.1:8188"], description="comma-separated: addresses of ComfyUI, one for each GPU"
    )
    comfyui_gpus: CommaSeparated = Field(
        [],
        description="comma-separated, where several of those addresses run on one GPU: a name for the GPU of each, or "
        "one for all; jobs share it only where its memory holds them",
    )
    comfyui_folders: Annotated[list[Path], NoDecode, BeforeValidator(split_commas)] = Field(
        [],
        description="comma-separated: the folders with ComfyUI's `input` and `output`, one for each address or one for "
        "all; a job's files are removed from them",
    )
    tidy_comfyui: bool = Field(
        True,
        description="whether jobs are removed from ComfyUI's history, and their files from `comfyui_folders`, once the "
        "worker has what they made",
    )
    comfyui_restart_command: str | None = Field(
        None, description="command that restarts a ComfyUI; its address is in `COMFYUI_URL`"
    )
    comfy_cloud_api_key: str | None = Field(None, repr=False, description="key of Comfy Cloud")
    comfy_cloud_base_url: str = Field("https://cloud.comfy.org", description="address of Comfy Cloud")
    comfy_cloud_concurrency: Count = Field(1, description="runs that the plan at Comfy Cloud allows at once")

    preview_method: PreviewMethod = Field(
        "auto",
        description="how ComfyUI makes previews while a job runs: `auto` (none for one that takes less than 3 s, "
        "unless somebody watches), `latent2rgb`, `taesd`, `none`, or `default`: as it was started",
    )

    max_concurrency: Count | None = Field(None, description="jobs at once; as many as the servers take when not set")
    prefetch: CountOrZero = Field(
        1, description="jobs whose inputs are fetched while others run; for each ComfyUI, while jobs take 10 s at most"
    )
    upload_behind: CountOrZero = Field(
        1,
        description="jobs whose outputs are uploaded while others run; for each ComfyUI, while jobs take 10 s at most",
    )
    poll_wait_seconds: Annotated[float, Field(ge=0, le=30)] = Field(30, description="how long a poll waits for a job")
    heartbeat_interval_seconds: Seconds = Field(30, description="how often a lease is extended")
    run_timeout_seconds: Seconds = Field(3600, description="longest that a run may take")
    node_timeout_seconds: Seconds = Field(300, description="longest that a run may show no progress")
    verdict_timeout_seconds: Seconds = Field(
        3600,
        description="how long the end of a job is told again to a control plane that takes its heartbeats, but answers "
        "that with an error; then the lease is left to expire",
    )
    capabilities: dict[str, Any] = Field({}, description="JSON object: more to tell about this worker")

    graph_policy: GraphPolicyMode = Field(
        "deny",
        description="which nodes graphs of tenants may have here: `deny`: none known as dangerous; `allow`: only those "
        "of `graph_allowed_nodes`; `off`: all",
    )
    graph_denied_nodes: CommaSeparated = Field(
        [], description="comma-separated: node classes that they may not have either"
    )
    graph_allowed_nodes: CommaSeparated = Field([], description="comma-separated: node classes that they may have")
    is_only_worker: bool = Field(
        False, description="whether there is no other: a job that lacks a node or model here fails, and is not retried"
    )
    killed_jobs: Literal["retry", "fail", "requeue"] = Field(
        "retry",
        description="what is reported of a job that ran when the worker was killed: `retry` (an attempt is used up), "
        "`fail`, or `requeue`",
    )
    data_dir: Path = Field(
        default_factory=lambda: data_folder() / "worker",
        description="folder for the token, files under way and kept assets",
    )
    asset_cache_bytes: CountOrZero = Field(
        10 * 1024**3, description="most bytes of effect assets that are kept, here and in each of `comfyui_folders`"
    )

    shutdown_seconds: SecondsOrZero = Field(30, description="time to finish a job after SIGTERM or Ctrl-C")
    termination_seconds: SecondsOrZero = Field(
        110, description="time to finish a job when the Auto Scaling group ends the instance"
    )
    metadata_url: str = Field(
        "http://169.254.169.254", description="EC2 instance metadata, where Spot notices are; `off`: do not look"
    )
    metadata_interval_seconds: Seconds = Field(5, description="how often notices are looked for")
    asg_name: str | None = Field(None, description="Auto Scaling group in which a working instance is protected")
    asg_lifecycle_hook: str | None = Field(
        None, description="termination lifecycle hook of that group, which is completed once the worker has left"
    )
    capacity_type: str | None = Field(None, description="`spot` or `on_demand`; from the EC2 instance")
    instance_type: str | None = Field(None, description="kind of machine; from the EC2 instance")

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, folder: Path) -> Path:
        return folder.expanduser().absolute()

    @field_validator("api_base_url")
    @classmethod
    def _address(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("write the address with http:// or https:// in front")
        _check_address(url)
        return url.rstrip("/")

    @field_validator("metadata_url")
    @classmethod
    def _address_or_off(cls, url: str) -> str:
        if url not in NO_METADATA:
            _check_address(url)
        return url

    @field_validator("comfyui_restart_command")
    @classmethod
    def _words(cls, command: str | None) -> str | None:
        try:
            split(command or "")
        except ValueError as error:
            raise ValueError(f"it is no command that can be read ({error})") from None
        return command

    @field_validator("capabilities")
    @classmethod
    def _not_our_own(cls, given: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OWN_CAPABILITIES & given.keys()):
            raise ValueError(f"a worker finds out by itself about {', '.join(taken)}; use other names")
        return given

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.comfyui_dir is not None:
            self._check_care()
        elif "self_hosted" in self.providers and not self.comfyui_base_url:
            raise ValueError("COMFYUI_BASE_URL is empty: name a ComfyUI, or set COMFY_PROVIDERS=cloud")
        if "cloud" in self.providers and not self.comfy_cloud_api_key:
            raise ValueError("COMFY_CLOUD_API_KEY is not set, and COMFY_PROVIDERS names cloud")
        if self.asg_lifecycle_hook and not self.asg_name:
            raise ValueError(f"{ENV_PREFIX}ASG_LIFECYCLE_HOOK is set: name its group in ASG_NAME")
        if len(self.comfyui_gpus) not in (0, 1, len(self.comfyui_base_url)):
            raise ValueError(f"{ENV_PREFIX}COMFYUI_GPUS must name one GPU, or one for each address in COMFYUI_BASE_URL")
        if len(self.comfyui_folders) not in (0, 1, len(self.comfyui_base_url)):
            raise ValueError(
                f"{ENV_PREFIX}COMFYUI_FOLDERS must name one folder, or one for each address in COMFYUI_BASE_URL"
            )
        return self

    def _check_care(self) -> None:
        """Reject settings that conflict with a managed ComfyUI, whose addresses and folders we choose."""
        others = {
            "COMFYUI_BASE_URL": "comfyui_base_url" in self.model_fields_set,
            f"{ENV_PREFIX}COMFYUI_GPUS": bool(self.comfyui_gpus),
            f"{ENV_PREFIX}COMFYUI_FOLDERS": bool(self.comfyui_folders),
            f"{ENV_PREFIX}COMFYUI_RESTART_COMMAND": self.comfyui_restart_command is not None,
        }
        if set_too := [name for name, is_set in others.items() if is_set]:
            raise ValueError(
                f"{ENV_PREFIX}COMFYUI_DIR is set, so ComfyRelay starts ComfyUI itself: leave out {', '.join(set_too)}"
            )
        if "self_hosted" not in self.providers:
            raise ValueError(f"{ENV_PREFIX}COMFYUI_DIR is set: add self_hosted to COMFY_PROVIDERS, or leave it out")

    @property
    def providers(self) -> list[Provider]:
        """Where jobs run. A Comfy Cloud key alone means no local ComfyUI."""
        if self.comfy_providers:
            return self.comfy_providers
        named = self.comfyui_dir is not None or "comfyui_base_url" in self.model_fields_set
        own_comfy = named or not self.comfy_cloud_api_key
        return [*(["self_hosted"] if own_comfy else []), *(["cloud"] if self.comfy_cloud_api_key else [])]  # type: ignore[list-item]

    def policy(self, *, is_shared: bool) -> GraphPolicy:
        """The graph policy. `is_shared`: whether graphs of several users run here."""
        return GraphPolicy(
            mode=self.graph_policy,
            denied=self.graph_denied_nodes,
            allowed=self.graph_allowed_nodes,
            is_shared=is_shared,
        )

    @property
    def has_metadata(self) -> bool:
        return self.metadata_url not in NO_METADATA

    @property
    def host_name(self) -> str:
        return socket.gethostname() or "worker"

    def gpu_of(self, number: int) -> str | None:
        """The GPU of the address at this index, if it is shared."""
        return self.comfyui_gpus[number % len(self.comfyui_gpus)] if self.comfyui_gpus else None

    def folder_of(self, url: str) -> Path | None:
        """ComfyUI's folders for this address, if configured."""
        if not self.comfyui_folders:
            return None
        place = self.comfyui_base_url.index(url) if len(self.comfyui_folders) > 1 else 0
        return self.comfyui_folders[place].expanduser().absolute()


def _check_address(url: str) -> None:
    """Check with both parsers, because each rejects what the other accepts.

    The message omits the address: it may contain a password.
    """
    try:
        parts = urlsplit(url)
        is_one = bool(parts.hostname and httpx.URL(url).host) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        is_one = False
    if not is_one:
        raise ValueError("it is not an address: write it like http://192.168.1.10:8420")


def load_worker_settings() -> WorkerSettings:
    return load(WorkerSettings, table="worker", plain_names=PLAIN_NAMES)
