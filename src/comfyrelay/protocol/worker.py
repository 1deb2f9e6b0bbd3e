"""The worker API: eleven requests and their responses.

Workers and servers may have different versions: receivers ignore unknown fields, and use the default for absent or null
fields. Increase `PROTOCOL` for an incompatible change, and `MIN_PROTOCOL` to drop support for old workers.
"""

import operator
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from comfyrelay.domain.outputs import MAX_OUTPUT_FILES
from comfyrelay.domain.queue.states import Provider, Stage
from comfyrelay.domain.worker_ids import worker_id_problem
from comfyrelay.error_text import FALLBACK
from comfyrelay.errors import Fault
from comfyrelay.protocol.base import WorkerAnswer, WorkerRequest, example
from comfyrelay.protocol.fields import (
    MAX_ID,
    MAX_INTEGER,
    MEDIA_TYPE,
    STORABLE,
    Json,
    OpenEnum,
    RowId,
    storable_json,
)
from comfyrelay.protocol.progress import Phase, Progress

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
Token = Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)]
Text = Annotated[str, Field(max_length=1_000_000, pattern=STORABLE)]
Bytes = Annotated[int, Field(ge=0, le=MAX_ID)]
# The extension of a file without a dot, in lower case.
Extension = Annotated[str, Field(pattern=r"^[a-z0-9]{1,10}$")]
MAX_WAIT_SECONDS = 30.0
# Version 2 added the registration key and the version itself, and version 3 `next` of a completion. A worker that sends
# no version uses 1.
PROTOCOL = 3
MIN_PROTOCOL = 1
MIN_NEXT_PROTOCOL = 3
# A header of every response to workers, such as `0.1.0; protocol=3`.
VERSION_HEADER = "X-ComfyRelay-Version"
MAX_LOG_LINES = 200
MAX_LOG_BYTES = 64 * 1024
SHA256 = r"^[0-9a-f]{64}$"
# Nodes, models and other values that a worker reports. A ComfyUI with 3,000 nodes and 5,000 models reports about 8,000
# values of 400 KB in total, and a worker with several ComfyUI processes also the missing values of each.
MAX_CAPABILITIES = 50_000
MAX_CAPABILITY_BYTES = 4 * 1024 * 1024
TOO_MANY_CAPABILITIES = (
    f"The worker reports too much: at most {MAX_CAPABILITIES:,} nodes, models and other values of "
    f"{MAX_CAPABILITY_BYTES // 2**20} MiB. Shorten COMFYRELAY_WORKER_CAPABILITIES, remove unused custom nodes and "
    "models from its ComfyUI, or run a separate worker for each ComfyUI."
)


def _require_reason(given: str) -> str:
    if not given.strip():
        raise ValueError("Say why the job is requeued, such as spot_interruption or shutdown.")
    return given


def _known_providers(given: Any) -> Any:
    """Drop the providers of newer workers. An empty list means the default."""
    if not isinstance(given, list):
        return given
    known = [provider for provider in given if not isinstance(provider, str) or provider in set(Provider)]
    return known if given else [Provider.SELF_HOSTED]


def _known_fault(given: Any) -> Any:
    """Blame the worker for an unknown fault of a newer worker, so that the job is retried elsewhere."""
    return Fault.WORKER if isinstance(given, str) and given not in set(Fault) else given


def _check_worker_id(worker_id: str) -> str:
    if (problem := worker_id_problem(worker_id)) is not None:
        raise ValueError(problem)
    return worker_id


def _check_capabilities(given: Any) -> Any:
    """Refuse a report that is too large to compare quickly. The count stops at the limits, before other checks."""
    values, size, pending = 0, 0, [given]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            pending += [*current, *current.values()]
        elif isinstance(current, list):
            pending += current
        values += 1
        size += len(current.encode(errors="replace")) if isinstance(current, str) else 0
        if values + len(pending) > MAX_CAPABILITIES or size > MAX_CAPABILITY_BYTES:
            raise ValueError(TOO_MANY_CAPABILITIES)
    return given


Capabilities = Annotated[Json, BeforeValidator(_check_capabilities)]


class Device(WorkerRequest):
    """A ComfyUI with its GPU, or Comfy Cloud, named as in `progress.server`."""

    server: Token
    name: Annotated[str, Field(max_length=200, pattern=STORABLE)] | None = None
    memory_total: Bytes | None = None
    memory_used: Bytes | None = None
    # The load of the GPU, from 0 to 1.
    load: Annotated[float, Field(ge=0, le=1)] | None = None
    # The number of jobs that this ComfyUI runs at once.
    slots: Annotated[int, Field(ge=1, le=1000)] = 1
    # The number of ComfyUI processes that share the GPU, and the reason for it.
    on_gpu: Annotated[int, Field(ge=1, le=1000)] | None = None
    packing: Annotated[str, Field(max_length=1000, pattern=STORABLE)] | None = None
    # The reason why this ComfyUI cannot be used.
    unavailable_reason: Annotated[str, Field(max_length=1000, pattern=STORABLE)] | None = None


Devices = Annotated[list[Device], Field(max_length=100)]


class RegisterRequest(WorkerRequest):
    model_config = example(
        worker_id="gpu-1", fleet_slug="home", max_concurrency=1, capabilities={"gpus": [{"name": "RTX 4090"}]}
    )

    worker_id: Annotated[Name, AfterValidator(_check_worker_id)]
    fleet_slug: Name
    stage: Stage = Stage.PRODUCTION
    max_concurrency: Annotated[int, Field(ge=1, le=1000)] = 1
    capabilities: Capabilities = Field(default_factory=dict)
    display_name: Annotated[str, Field(max_length=200, pattern=STORABLE)] | None = None
    capacity_type: Annotated[str, Field(max_length=50, pattern=STORABLE)] | None = None
    instance_type: Annotated[str, Field(max_length=50, pattern=STORABLE)] | None = None
    # A subset of the fleet's workflows.
    workflow_slugs: list[Name] | None = None
    # The worker chooses and stores this key. With the same key, it may register again at once.
    registration_key: Annotated[str, Field(min_length=16, max_length=200, pattern=STORABLE)] | None = None
    protocol: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1
    # The version of the worker's software, for display.
    version: Annotated[str, Field(max_length=100, pattern=STORABLE)] | None = None
    # The reason why none of its ComfyUI processes can be used yet.
    devices: Devices | None = None
    # Check the request without registering the worker.
    dry_run: bool = False


class Registered(WorkerAnswer):
    worker_id: str
    token: str
    workflows_assigned: list[str] = Field(default_factory=list)
    fleet_slug: str = ""
    stage: OpenEnum[Stage] = Stage.PRODUCTION
    # The number of leases that the worker still holds.
    leases: int = 0
    # The protocol version of the server.
    protocol: int = 1


class WouldRegister(Registered):
    """The response to a dry run. `missing` are the missing nodes and models by workflow."""

    missing: dict[str, list[str]]


class PollRequest(WorkerRequest):
    model_config = example(worker_id="gpu-1", current_load=0, wait_seconds=30, request_id="gpu-1-000042", prefetch=1)

    worker_id: Name
    current_load: Annotated[int, Field(ge=0)] = 0
    max_concurrency: Annotated[int, Field(ge=1, le=1000)] | None = None
    # If the server knows none of the workflows, the list is empty and the worker gets no job.
    providers: Annotated[list[Provider], BeforeValidator(_known_providers)] = Field(
        default_factory=lambda: [Provider.SELF_HOSTED]
    )
    capabilities: Capabilities | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    request_id: Token | None = None
    prefetch: Annotated[int, Field(ge=0, le=100)] = 0
    warm_workflow_hashes: list[Token] = Field(default_factory=list, max_length=1000)
    devices: Devices | None = None
    # A ComfyUI of this worker has restarted since the last answered poll, so blocks for running out of memory end.
    comfyui_restarted: bool = False


class AssetDownload(WorkerAnswer):
    """An input file of a job. Only files of effects have a `content_hash`: workers may cache them."""

    key: str
    placeholder: str
    download_url: str
    content_hash: str | None = None
    type: str = ""
    is_primary_input: bool = False


class Urls(WorkerAnswer):
    """Pre-signed URLs: of the assets by key, of the input, and of the output with the required upload headers."""

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
    # Stop a longer run, and fail the job.
    max_run_seconds: float | None = None
    # Keep the models of the workflow loaded.
    keep_loaded: bool = False
    # The memory of the largest GPU that was too small for the workflow.
    ran_out_bytes: int | None = None
    # The servers that the job has passed through; this server is the last one. A server refuses a job that comes back
    # to it.
    via: list[str] = Field(default_factory=list)

    @property
    def urls(self) -> Urls:
        """Return the URLs of the lease. Heartbeats return newer URLs."""
        return Urls.of(self, assets={asset.key: asset.download_url for asset in self.input_payload.assets})


class PollAnswer(WorkerAnswer):
    job: LeasedJob | None = None
    # The number of further jobs for this worker that the search of the queue found.
    more_waiting: int = 0
    # An administrator has opened the worker's log: send the last lines.
    wants_logs: bool = False


class LeaseMessage(WorkerRequest):
    dispatch_id: RowId
    lease_token: Token


_PROGRESS = Progress(value=0.6, phase=Phase.RUNNING, node="KSampler", step=12, steps=20).to_report()


class HeartbeatRequest(LeaseMessage):
    model_config = example(dispatch_id=4711, lease_token="9f2c4e", progress=_PROGRESS, wait_seconds=20)

    # The fields of `Progress`, and possibly fields of a newer worker.
    progress: Json | None = None
    logs: list[Text] = Field(default_factory=list, max_length=1000)
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    # Storage refused the current URLs.
    fresh_urls: bool = False
    # How long the worker sends previews without a new request; null if it cannot send previews.
    preview_seconds: Annotated[float, Field(ge=0, le=3600)] | None = None
    devices: Devices | None = None


class HeartbeatAnswer(WorkerAnswer):
    lease_expires_at: datetime
    # An unknown value from a newer server does not stop the job.
    stop: Literal["cancel", "pause", "release"] | str | None = None
    urls: Urls | None = None
    # A user is watching: upload previews to this URL, with these headers, for this many seconds.
    preview_url: str | None = None
    preview_headers: dict[str, str] = Field(default_factory=dict)
    preview_seconds: float = 0.0
    # An administrator has opened the worker's log: send the last lines.
    wants_logs: bool = False


class RunReport(WorkerRequest):
    """Details of a run for the history of the job, sent with every outcome."""

    seed: Annotated[int, Field(ge=0, le=MAX_INTEGER)] | None = None
    # The time from the lease to the start of the run: a duration, because the worker's clock may differ.
    began_after_seconds: Annotated[float, Field(ge=0, le=1e9)] | None = None
    about: Json | None = None


class EndOfLease(LeaseMessage, RunReport):
    pass


class StoredOutput(WorkerRequest):
    size: Annotated[int, Field(ge=0, le=MAX_ID)]
    mime_type: Annotated[str, Field(max_length=200, pattern=MEDIA_TYPE)]
    sha256: Annotated[str, Field(pattern=SHA256)] | None = None
    metadata: Json | None = None
    _sent: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def sent(self) -> dict[str, Any]:
        """Return the whole report of the worker, including unknown fields."""
        return self._sent

    @model_validator(mode="wrap")
    @classmethod
    def _keep_sent(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        output = handler(data)
        if isinstance(data, dict):
            output._sent = storable_json(data)
        return output


class MoreOutput(StoredOutput):
    """Another output of a job, which was uploaded with this extension."""

    extension: Extension


class OutputUrlRequest(LeaseMessage):
    model_config = example(dispatch_id=4711, lease_token="9f2c4e", number=2, extension="png")

    number: Annotated[int, Field(ge=2, le=MAX_OUTPUT_FILES)]
    extension: Extension


class OutputUrl(WorkerAnswer):
    """A pre-signed URL for one upload, with the required headers."""

    url: str
    headers: dict[str, str] = Field(default_factory=dict)


class CompleteRequest(EndOfLease):
    model_config = example(
        dispatch_id=4711,
        lease_token="9f2c4e",
        provider_job_id="b1946ac9",
        output={"size": 1048576, "mime_type": "video/mp4"},
    )

    provider_job_id: Annotated[str, Field(max_length=200, pattern=STORABLE)] | None = None
    output: StoredOutput | None = None
    # Number 2 and so on, in the order of their numbers.
    more_outputs: Annotated[list[MoreOutput], Field(max_length=MAX_OUTPUT_FILES - 1)] = Field(default_factory=list)
    # A poll for the worker's next job. It begins once the job is completed.
    next: PollRequest | None = None


class FailRequest(EndOfLease):
    model_config = example(dispatch_id=4711, lease_token="9f2c4e", error_message="CUDA out of memory", fault="worker")

    # Blank text also means the default.
    error_message: Annotated[Text, AfterValidator(lambda given: given if given.strip() else FALLBACK)] = FALLBACK
    fault: Annotated[Fault, BeforeValidator(_known_fault)] = Fault.JOB
    retry_after_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    # The kind of error. Some kinds hold the rest of the batch, which would fail as well.
    code: Annotated[str, Field(max_length=100, pattern=STORABLE)] | None = None
    # The memory of the GPU, after an out-of-memory error while no other job used the GPU.
    gpu_memory_bytes: Bytes | None = None


class RequeueRequest(EndOfLease):
    model_config = example(dispatch_id=4711, lease_token="9f2c4e", reason="spot_interruption")

    # The original API also requires the reason, which distinguishes a lost machine from a worker that refuses its jobs.
    reason: Annotated[str, Field(max_length=500, pattern=STORABLE), AfterValidator(_require_reason)]


class DeregisterRequest(WorkerRequest):
    model_config = example(reason="shutdown")

    reason: Annotated[str, Field(max_length=500, pattern=STORABLE)] = "shutdown"


class DefinitionsQuery(WorkerRequest):
    """Ask whether the server has these node definitions. The JSON text is hashed before compression."""

    model_config = example(sha256="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")

    sha256: Annotated[str, Field(pattern=SHA256)]


class KnownDefinitions(WorkerAnswer):
    # The worker need not send definitions that the server knows.
    is_known: bool = True


def _limit_size(lines: list[str]) -> list[str]:
    if sum(len(line.encode()) for line in lines) > MAX_LOG_BYTES:
        raise ValueError(f"The lines are longer than {MAX_LOG_BYTES} bytes in total.")
    return lines


class LogsRequest(WorkerRequest):
    """The last lines of the worker's log, oldest first, without secrets."""

    model_config = example(lines=['{"event": "worker.registered", "level": "info"}'])

    lines: Annotated[list[Text], AfterValidator(_limit_size)] = Field(default_factory=list, max_length=MAX_LOG_LINES)


class StoredLogs(WorkerAnswer):
    lines: int = 0


class SettledAnswer(WorkerAnswer):
    status: str
    # This worker gets no jobs of the workflow for a while, because it ran out of memory. Restarting ComfyUI may help.
    is_blocked: Annotated[bool, Field(exclude_if=operator.not_)] = False


class CompletedAnswer(SettledAnswer):
    # The response to `next` of the request. Without it, the worker has to poll.
    next: Annotated[PollAnswer | None, Field(exclude_if=operator.not_)] = None


class Released(WorkerAnswer):
    released: int
