"""The ten requests of workers, and their responses.

Workers and servers may have different versions: receivers ignore unknown fields, and use the default for absent or null
ones. An incompatible change raises `PROTOCOL`; dropping support for old workers raises `OLDEST_PROTOCOL`."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from comfyrelay.domain.queue.states import Provider, Stage
from comfyrelay.errors import Fault
from comfyrelay.protocol.base import WorkerAnswer, WorkerRequest, example
from comfyrelay.protocol.fields import (
    LARGEST_ID,
    LARGEST_NUMBER,
    MEDIA_TYPE,
    STORABLE,
    Json,
    OpenEnum,
    RowId,
    plain_json,
)
from comfyrelay.protocol.progress import Phase, Progress

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
Token = Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)]
Text = Annotated[str, Field(max_length=1_000_000, pattern=STORABLE)]
Bytes = Annotated[int, Field(ge=0, le=LARGEST_ID)]
LONGEST_WAIT_SECONDS = 30.0
# 2 added the registration key and this number. A worker that sends no number uses 1.
PROTOCOL = 2
OLDEST_PROTOCOL = 1
MAX_LOG_LINES = 200
MAX_LOG_BYTES = 64 * 1024
SHA256 = r"^[0-9a-f]{64}$"
NO_ERROR_GIVEN = "The worker reported a failure, and did not say why."
NO_REASON_GIVEN = "no reason given"


def _or_else(default: str) -> AfterValidator:
    """Blank text means the default."""
    return AfterValidator(lambda given: given if given.strip() else default)


def _known_providers(given: Any) -> Any:
    """Drop the values of other versions; an empty list means the default."""
    if not isinstance(given, list):
        return given
    kept = [each for each in given if not isinstance(each, str) or each in set(Provider)]
    return kept if given else [Provider.SELF_HOSTED]


def _known_fault(given: Any) -> Any:
    """An unknown value of another version does not make a failure final: the job is retried elsewhere."""
    return Fault.WORKER if isinstance(given, str) and given not in set(Fault) else given


class RegisterRequest(WorkerRequest):
    model_config = example(
        worker_id="gpu-1", fleet_slug="home", max_concurrency=1, capabilities={"gpus": [{"name": "RTX 4090"}]}
    )

    worker_id: Name
    fleet_slug: Name
    stage: Stage = Stage.PRODUCTION
    max_concurrency: Annotated[int, Field(ge=1, le=1000)] = 1
    capabilities: Json = Field(default_factory=dict)
    display_name: Annotated[str, Field(max_length=200, pattern=STORABLE)] | None = None
    capacity_type: Annotated[str, Field(max_length=50, pattern=STORABLE)] | None = None
    instance_type: Annotated[str, Field(max_length=50, pattern=STORABLE)] | None = None
    # a subset of the workflows of the fleet
    workflow_slugs: list[Name] | None = None
    # chosen and stored by the worker: with the same key it may register again at once
    registration_key: Annotated[str, Field(min_length=16, max_length=200, pattern=STORABLE)] | None = None
    protocol: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1
    # the version of the worker's software, only shown
    version: Annotated[str, Field(max_length=100, pattern=STORABLE)] | None = None
    # check everything and register nothing
    dry_run: bool = False


class Registered(WorkerAnswer):
    worker_id: str
    token: str
    workflows_assigned: list[str] = Field(default_factory=list)
    fleet_slug: str = ""
    stage: OpenEnum[Stage] = Stage.PRODUCTION
    # leases from before
    leases: int = 0
    # the version of the server
    protocol: int = 1


class WouldRegister(Registered):
    """The response to a dry run: missing nodes and models by workflow."""

    missing: dict[str, list[str]]


class Device(WorkerRequest):
    """A ComfyUI with its GPU, or Comfy Cloud, named as in `progress.server`."""

    server: Token
    name: Annotated[str, Field(max_length=200, pattern=STORABLE)] | None = None
    memory_total: Bytes | None = None
    memory_used: Bytes | None = None
    # of the GPU, from 0 to 1
    load: Annotated[float, Field(ge=0, le=1)] | None = None
    # how many jobs it runs at once
    slots: Annotated[int, Field(ge=1, le=1000)] = 1
    # how many ComfyUI share the GPU, and why that many
    on_gpu: Annotated[int, Field(ge=1, le=1000)] | None = None
    packing: Annotated[str, Field(max_length=1000, pattern=STORABLE)] | None = None
    # why it cannot be used
    away: Annotated[str, Field(max_length=1000, pattern=STORABLE)] | None = None


Devices = Annotated[list[Device], Field(max_length=100)]


class PollRequest(WorkerRequest):
    model_config = example(worker_id="gpu-1", current_load=0, wait_seconds=30, request_id="gpu-1-000042", prefetch=1)

    worker_id: Name
    current_load: Annotated[int, Field(ge=0)] = 0
    max_concurrency: Annotated[int, Field(ge=1, le=1000)] | None = None
    # empty if all are unknown here: then the worker gets no job
    providers: Annotated[list[Provider], BeforeValidator(_known_providers)] = Field(
        default_factory=lambda: [Provider.SELF_HOSTED]
    )
    capabilities: Json | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    request_id: Token | None = None
    prefetch: Annotated[int, Field(ge=0, le=100)] = 0
    warm_workflow_hashes: list[Token] = Field(default_factory=list, max_length=1000)
    devices: Devices | None = None


class AssetDownload(WorkerAnswer):
    """A file that a job needs. Only effect assets have a `content_hash`: they may be cached."""

    key: str
    placeholder: str
    download_url: str
    content_hash: str | None = None
    type: str = ""
    is_primary_input: bool = False


class Urls(WorkerAnswer):
    """Pre-signed URLs of the assets by key, and of the output, with the required headers of its upload."""

    output_url: str
    input_url: str | None = None
    output_headers: dict[str, str] = Field(default_factory=dict)
    assets: dict[str, str] = Field(default_factory=dict)


class InputPayload(WorkerAnswer):
    workflow: dict[str, Any]
    assets: list[AssetDownload] = Field(default_factory=list)
    output_node_id: str | None = None
    output_extension: str = "png"
    output_mime_type: str = "image/png"
    input_path_placeholder: str | None = None
    input_name: str | None = None
    input_mime_type: str | None = None
    extra_data: dict[str, Any] = Field(default_factory=dict)


class LeasedJob(WorkerAnswer):
    dispatch_id: int
    lease_token: str
    input_payload: InputPayload
    output_url: str
    output_headers: dict[str, str] = Field(default_factory=dict)
    max_output_bytes: int | None = None
    max_output_files: int | None = None
    input_url: str | None = None
    lease_expires_at: datetime | None = None
    attempt: int = 1
    provider: str = Provider.SELF_HOSTED
    tenant_id: str = ""
    job_id: str = ""
    effect_id: int | None = None
    workflow_hash: str = ""
    # keep its models loaded
    keep_loaded: bool = False
    # the memory of the largest GPU that is known to be too small for its workflow
    ran_out_bytes: int | None = None

    @property
    def urls(self) -> Urls:
        """The URLs of the lease. Heartbeats return newer ones."""
        return Urls.of(self, assets={asset.key: asset.download_url for asset in self.input_payload.assets})


class PollAnswer(WorkerAnswer):
    job: LeasedJob | None = None
    # more jobs for this worker, as far as the queue was searched
    more_waiting: int = 0
    # an administrator has opened its log: send the last lines
    wants_logs: bool = False


class LeaseMessage(WorkerRequest):
    dispatch_id: RowId
    lease_token: Token


_PROGRESS = Progress(value=0.6, phase=Phase.RUNNING, node="KSampler", step=12, steps=20).to_report()


class HeartbeatRequest(LeaseMessage):
    model_config = example(dispatch_id=4711, lease_token="9f2c4e", progress=_PROGRESS, wait_seconds=20)

    # `Progress`, and possibly more: see `ToldProgress`
    progress: Json | None = None
    logs: list[Text] = Field(default_factory=list, max_length=1000)
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    # storage refused the current URLs
    fresh_urls: bool = False
    # how long the worker keeps sending previews without another request; null if it cannot send any
    preview_seconds: Annotated[float, Field(ge=0, le=3600)] | None = None
    devices: Devices | None = None


class HeartbeatAnswer(WorkerAnswer):
    lease_expires_at: datetime
    # an unknown value of a newer server is no reason to stop
    stop: Literal["cancel", "pause", "release"] | str | None = None
    urls: Urls | None = None
    # a user is watching: upload previews there, with these headers, for this long
    preview_url: str | None = None
    preview_headers: dict[str, str] = Field(default_factory=dict)
    preview_seconds: float = 0.0
    # an administrator has opened its log: send the last lines
    wants_logs: bool = False


class RunReport(WorkerRequest):
    """Facts about a run for the job's history, for every outcome."""

    seed: Annotated[int, Field(ge=0, le=LARGEST_NUMBER)] | None = None
    # from the lease to the start of the run: the worker's clock may differ
    began_after_seconds: Annotated[float, Field(ge=0, le=1e9)] | None = None
    about: Json | None = None


class EndOfLease(LeaseMessage, RunReport):
    pass


class StoredOutput(WorkerRequest):
    size: Annotated[int, Field(ge=0, le=LARGEST_ID)]
    mime_type: Annotated[str, Field(max_length=200, pattern=MEDIA_TYPE)]
    sha256: Annotated[str, Field(pattern=SHA256)] | None = None
    metadata: Json | None = None
    _sent: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def sent(self) -> dict[str, Any]:
        """The whole report of the worker, with unknown fields."""
        return self._sent

    @model_validator(mode="wrap")
    @classmethod
    def _keep_sent(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(data)
        if isinstance(data, dict):
            made._sent = plain_json(data)
        return made


class CompleteRequest(EndOfLease):
    model_config = example(
        dispatch_id=4711,
        lease_token="9f2c4e",
        provider_job_id="b1946ac9",
        output={"size": 1048576, "mime_type": "video/mp4"},
    )

    provider_job_id: Annotated[str, Field(max_length=200, pattern=STORABLE)] | None = None
    output: StoredOutput | None = None


class FailRequest(EndOfLease):
    model_config = example(dispatch_id=4711, lease_token="9f2c4e", error_message="CUDA out of memory", fault="worker")

    error_message: Annotated[Text, _or_else(NO_ERROR_GIVEN)] = NO_ERROR_GIVEN
    fault: Annotated[Fault, BeforeValidator(_known_fault)] = Fault.JOB
    retry_after_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    # the kind of error; some would also fail the rest of a batch
    code: Annotated[str, Field(max_length=100, pattern=STORABLE)] | None = None
    # after an out-of-memory error on a GPU that no other job used: the memory of the GPU
    gpu_memory_bytes: Bytes | None = None


class RequeueRequest(EndOfLease):
    model_config = example(dispatch_id=4711, lease_token="9f2c4e", reason="spot_interruption")

    reason: Annotated[str, Field(max_length=500, pattern=STORABLE), _or_else(NO_REASON_GIVEN)] = NO_REASON_GIVEN


class DeregisterRequest(WorkerRequest):
    model_config = example(reason="shutdown")

    reason: Annotated[str, Field(max_length=500, pattern=STORABLE)] = "shutdown"


class HasDefinitions(WorkerRequest):
    """The hash of the node definitions: of the JSON text before compression."""

    model_config = example(sha256="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")

    sha256: Annotated[str, Field(pattern=SHA256)]


class KnownDefinitions(WorkerAnswer):
    # known definitions need not be sent
    is_known: bool = True


def _in_all(lines: list[str]) -> list[str]:
    if sum(len(line.encode()) for line in lines) > MAX_LOG_BYTES:
        raise ValueError(f"These are more than {MAX_LOG_BYTES} bytes.")
    return lines


class LogsRequest(WorkerRequest):
    """The last lines of the worker's log, without secrets, oldest first."""

    model_config = example(lines=['{"event": "worker.registered", "level": "info"}'])

    lines: Annotated[list[Text], AfterValidator(_in_all)] = Field(default_factory=list, max_length=MAX_LOG_LINES)


class KeptLogs(WorkerAnswer):
    lines: int = 0


class SettledAnswer(WorkerAnswer):
    status: str


class Released(WorkerAnswer):
    released: int
