"""Worker settings: `COMFYRELAY_WORKER_…`, well-known variables, or `[worker]` in the file."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import httpx
from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.comfyui.processes.options import ManagedSettings
from comfyrelay.configuration import load
from comfyrelay.settings import (
    CommaSeparated,
    Count,
    CountOrZero,
    GraphPolicyMode,
    Seconds,
    SecondsOrZero,
    Stage,
    split_commas,
)
from comfyrelay.system.command_lines import split
from comfyrelay.system.user_folders import data_folder

ENV_PREFIX = "COMFYRELAY_WORKER_"
# Well-known environment variables of settings.
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


class WorkerSettings(ManagedSettings):
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
    display_name: str | None = Field(None, description="name of the worker in the web app")
    workflow_slugs: CommaSeparated = Field(
        [], description="comma-separated: only these workflows of the fleet; all if empty"
    )

    comfy_providers: Annotated[list[Provider], NoDecode, BeforeValidator(split_commas)] = Field(
        [], description="comma-separated: `self_hosted`, `cloud`; if empty, derived from the other settings"
    )
    comfyui_base_url: CommaSeparated = Field(
        ["http://127.0.0.1:8188"], description="comma-separated: addresses of ComfyUI, one for each GPU"
    )
    comfyui_gpus: CommaSeparated = Field(
        [],
        description="comma-separated, if several addresses run on one GPU: the GPU name of each address, or one name "
        "for all; jobs share a GPU only if its memory is large enough",
    )
    comfyui_folders: Annotated[list[Path], NoDecode, BeforeValidator(split_commas)] = Field(
        [],
        description="comma-separated: folders with ComfyUI's `input` and `output`, one for each address or one for "
        "all; the worker deletes job files from them; if empty, the folders of a ComfyUI on this machine are found by "
        "its address",
    )
    tidy_comfyui: bool = Field(
        True,
        description="delete jobs from ComfyUI's history, and their files from `comfyui_folders`, once the worker has "
        "their outputs",
    )
    comfyui_restart_command: str | None = Field(
        None, description="command that restarts a ComfyUI; its address is in `COMFYUI_URL`"
    )
    comfy_cloud_api_key: str | None = Field(None, repr=False, description="API key for the cloud service")
    comfy_cloud_base_url: str = Field(
        "https://cloud.comfy.org",
        description="address of a cloud service: Comfy Cloud, or another with the Comfy API v2",
    )
    comfy_cloud_concurrency: Count = Field(1, description="simultaneous runs that the plan allows")

    preview_method: PreviewMethod = Field(
        "auto",
        description="how ComfyUI makes previews while a job runs: `auto` (none if the job takes less than 3 s and no "
        "user watches it), `latent2rgb`, `taesd`, `none`, or `default` (as ComfyUI was started)",
    )

    max_concurrency: Count | None = Field(
        None, description="simultaneous jobs; if not set, the number that the servers can run"
    )
    prefetch: CountOrZero = Field(
        1, description="jobs whose inputs are downloaded while others run; per ComfyUI if jobs take at most 10 s"
    )
    upload_behind: CountOrZero = Field(
        1,
        description="jobs whose outputs are uploaded while others run; per ComfyUI if jobs take at most 10 s",
    )
    poll_wait_seconds: Annotated[float, Field(ge=0, le=30)] = Field(30, description="how long a poll waits for a job")
    heartbeat_interval_seconds: Seconds = Field(30, description="how often a lease is extended")
    run_timeout_seconds: Seconds = Field(3600, description="maximum duration of a run")
    node_timeout_seconds: Seconds = Field(300, description="maximum time without progress in a run")
    report_timeout_seconds: Seconds = Field(
        3600,
        description="how long to retry reporting a job's result to a control plane that accepts heartbeats but "
        "rejects the report with an error; after that the lease expires",
    )
    capabilities: dict[str, Any] = Field({}, description="JSON object: additional capabilities of this worker")

    graph_policy: GraphPolicyMode = Field(
        "deny",
        description="nodes that tenants' graphs may contain: `deny`: all except known dangerous ones; `allow`: only "
        "`graph_allowed_nodes`; `off`: all",
    )
    graph_denied_nodes: CommaSeparated = Field(
        [], description="comma-separated: additional node classes that graphs may not contain"
    )
    graph_allowed_nodes: CommaSeparated = Field([], description="comma-separated: node classes that graphs may contain")
    is_only_worker: bool = Field(
        False, description="whether this is the only worker: a job with a missing node or model fails without retries"
    )
    interrupted_jobs: Literal["retry", "fail", "requeue"] = Field(
        "retry",
        description="what the worker reports for a job that was running when the worker was killed: `retry` (uses up "
        "an attempt), `fail`, or `requeue`",
    )
    data_dir: Path = Field(
        default_factory=lambda: data_folder() / "worker",
        description="folder for the token, files in transfer and cached assets",
    )
    traces_url: str | None = Field(
        None,
        repr=False,
        description="OTLP receiver for [traces](../howto/operate.md#traces) of jobs, such as "
        "`http://127.0.0.1:4318/v1/traces`; if not set, there are none",
    )
    asset_cache_bytes: CountOrZero = Field(
        10 * 1024**3, description="maximum size of cached effect assets, here and in each of `comfyui_folders`"
    )

    shutdown_seconds: SecondsOrZero = Field(30, description="time to finish a job after SIGTERM or Ctrl-C")
    termination_seconds: SecondsOrZero = Field(
        110, description="time to finish a job when the Auto Scaling group terminates the instance"
    )
    metadata_url: str = Field(
        "http://169.254.169.254",
        description="address of the EC2 instance metadata, which has Spot notices; `off`: do not check",
    )
    metadata_interval_seconds: Seconds = Field(5, description="how often to check for notices")
    asg_name: str | None = Field(None, description="Auto Scaling group that protects the instance while it runs jobs")
    asg_lifecycle_hook: str | None = Field(
        None, description="termination lifecycle hook of that group, completed after the worker deregisters"
    )
    capacity_type: str | None = Field(None, description="`spot` or `on_demand`; from the EC2 instance")
    instance_type: str | None = Field(None, description="machine type; from the EC2 instance")

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, folder: Path) -> Path:
        return folder.expanduser().absolute()

    @field_validator("api_base_url")
    @classmethod
    def _check_base_url(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("the address must start with http:// or https://")
        _check_address(url)
        return url.rstrip("/")

    @field_validator("metadata_url")
    @classmethod
    def _check_metadata_url(cls, url: str) -> str:
        if url not in NO_METADATA:
            _check_address(url)
        return url

    @field_validator("comfyui_restart_command")
    @classmethod
    def _check_command(cls, command: str | None) -> str | None:
        try:
            split(command or "")
        except ValueError as error:
            raise ValueError(f"invalid command line ({error})") from None
        return command

    @field_validator("capabilities")
    @classmethod
    def _check_names(cls, given: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OWN_CAPABILITIES & given.keys()):
            raise ValueError(f"a worker detects {', '.join(taken)} automatically; use other names")
        return given

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.comfyui_dir is not None:
            self._check_managed()
        elif "self_hosted" in self.providers and not self.comfyui_base_url:
            raise ValueError("COMFYUI_BASE_URL is empty: set an address, or COMFY_PROVIDERS=cloud")
        if "cloud" in self.providers and not self.comfy_cloud_api_key:
            raise ValueError("COMFY_PROVIDERS contains cloud, but COMFY_CLOUD_API_KEY is not set")
        if self.asg_lifecycle_hook and not self.asg_name:
            raise ValueError(f"{ENV_PREFIX}ASG_LIFECYCLE_HOOK needs its group in ASG_NAME")
        if len(self.comfyui_gpus) not in (0, 1, len(self.comfyui_base_url)):
            raise ValueError(f"{ENV_PREFIX}COMFYUI_GPUS must name one GPU, or one for each address in COMFYUI_BASE_URL")
        if len(self.comfyui_folders) not in (0, 1, len(self.comfyui_base_url)):
            raise ValueError(
                f"{ENV_PREFIX}COMFYUI_FOLDERS must name one folder, or one for each address in COMFYUI_BASE_URL"
            )
        return self

    def _check_managed(self) -> None:
        """Reject settings that conflict with a managed ComfyUI, whose addresses and folders the worker chooses."""
        conflicts = {
            "COMFYUI_BASE_URL": "comfyui_base_url" in self.model_fields_set,
            f"{ENV_PREFIX}COMFYUI_GPUS": bool(self.comfyui_gpus),
            f"{ENV_PREFIX}COMFYUI_FOLDERS": bool(self.comfyui_folders),
            f"{ENV_PREFIX}COMFYUI_RESTART_COMMAND": self.comfyui_restart_command is not None,
        }
        if conflicting := [name for name, is_set in conflicts.items() if is_set]:
            raise ValueError(
                f"{ENV_PREFIX}COMFYUI_DIR is set, so ComfyRelay starts ComfyUI itself: remove {', '.join(conflicting)}"
            )
        if "self_hosted" not in self.providers:
            raise ValueError(
                f"{ENV_PREFIX}COMFYUI_DIR is set: add self_hosted to COMFY_PROVIDERS, or remove COMFY_PROVIDERS"
            )

    @property
    def providers(self) -> list[Provider]:
        """The providers that run jobs. If only a Comfy Cloud key is set, there is no local ComfyUI."""
        if self.comfy_providers:
            return self.comfy_providers
        has_comfyui = self.comfyui_dir is not None or "comfyui_base_url" in self.model_fields_set
        if not self.comfy_cloud_api_key:
            return ["self_hosted"]
        return ["self_hosted", "cloud"] if has_comfyui else ["cloud"]

    def policy(self, *, is_shared: bool) -> GraphPolicy:
        """Return the graph policy. `is_shared`: whether graphs of several users run on this worker."""
        return GraphPolicy(
            mode=self.graph_policy,
            denied=self.graph_denied_nodes,
            allowed=self.graph_allowed_nodes,
            is_shared=is_shared,
        )

    @property
    def has_metadata(self) -> bool:
        return self.metadata_url not in NO_METADATA

    def gpu_of(self, number: int) -> str | None:
        """Return the GPU of the address at this index, if several addresses share GPUs."""
        return self.comfyui_gpus[number % len(self.comfyui_gpus)] if self.comfyui_gpus else None

    def folder_of(self, url: str) -> Path | None:
        """Return the folder of the ComfyUI at this address, if configured."""
        if not self.comfyui_folders:
            return None
        index = self.comfyui_base_url.index(url) if len(self.comfyui_folders) > 1 else 0
        return self.comfyui_folders[index].expanduser().absolute()


def _check_address(url: str) -> None:
    """Check with both parsers, because each rejects addresses that the other accepts. The message omits the address,
    which may contain a password."""
    try:
        parts = urlsplit(url)
        is_valid = bool(parts.hostname and httpx.URL(url).host) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        is_valid = False
    if not is_valid:
        raise ValueError("not a valid address: use the form http://192.168.1.10:8420")


def load_worker_settings() -> WorkerSettings:
    return load(WorkerSettings, table="worker", plain_names=PLAIN_NAMES)
