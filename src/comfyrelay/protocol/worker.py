"""The seven calls of workers: what they send, and what they are answered."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from comfyrelay.domain.states import Provider, Stage
from comfyrelay.errors import Fault
from comfyrelay.protocol.base import AnswerBody, WorkerRequest, example
from comfyrelay.protocol.fields import LARGEST_ID, LARGEST_NUMBER, MEDIA_TYPE, STORABLE, Json, OpenEnum, RowId

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
Token = Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)]
Text = Annotated[str, Field(max_length=1_000_000, pattern=STORABLE)]
LONGEST_WAIT_SECONDS = 30.0


class Register(WorkerRequest):
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
    # may only narrow what the fleet runs
    workflow_slugs: list[Name] | None = None
    # check everything and register nothing
    dry_run: bool = False


class Registered(AnswerBody):
    worker_id: str
    token: str
    workflows_assigned: list[str]
    fleet_slug: str
    stage: OpenEnum[Stage]


class WouldRegister(Registered):
    """What a dry run found: by workflow, the nodes and models that the capabilities do not name."""

    lacking: dict[str, list[str]]


class Poll(WorkerRequest):
    model_config = example(worker_id="gpu-1", current_load=0, wait_seconds=30, request_id="gpu-1-000042", prefetch=1)

    worker_id: Name
    current_load: Annotated[int, Field(ge=0)] = 0
    max_concurrency: Annotated[int, Field(ge=1, le=1000)] | None = None
    providers: list[Provider] = Field(default_factory=lambda: [Provider.SELF_HOSTED])
    capabilities: Json | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    request_id: Token | None = None
    prefetch: Annotated[int, Field(ge=0, le=100)] = 0
    warm_workflow_hashes: list[Token] = Field(default_factory=list, max_length=1000)


class Asset(AnswerBody):
    """A file that a job needs. `content_hash` is there for effect assets only: those may be kept."""

    key: str
    placeholder: str
    download_url: str
    content_hash: str | None
    type: str
    is_primary_input: bool


class Urls(AnswerBody):
    """Pre-signed URLs: of each asset by its key, and of the output with the headers that its upload must carry."""

    input_url: str | None
    output_url: str
    output_headers: dict[str, str]
    assets: dict[str, str]


class InputPayload(AnswerBody):
    workflow: dict[str, Any]
    assets: list[Asset]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    input_path_placeholder: str | None
    input_name: str | None
    input_mime_type: str | None
    extra_data: dict[str, Any]


class LeasedJob(AnswerBody):
    dispatch_id: int
    lease_token: str
    lease_expires_at: datetime
    attempt: int
    provider: str
    tenant_id: str
    job_id: str
    effect_id: int | None
    workflow_hash: str
    input_url: str | None
    output_url: str
    output_headers: dict[str, str]
    input_payload: InputPayload

    @property
    def urls(self) -> Urls:
        """Those that came with the lease; heartbeats bring newer ones."""
        return Urls.of(self, assets={each.key: each.download_url for each in self.input_payload.assets})


class PollAnswer(AnswerBody):
    job: LeasedJob | None


class AboutLease(WorkerRequest):
    dispatch_id: RowId
    lease_token: Token


class Heartbeat(AboutLease):
    model_config = example(dispatch_id=4711, lease_token="9f2c4e", progress={"value": 12, "max": 20}, wait_seconds=20)

    progress: Json | None = None
    logs: list[Text] = Field(default_factory=list, max_length=1000)
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    # storage refused the URLs that there are
    fresh_urls: bool = False


class HeartbeatAnswer(AnswerBody):
    lease_expires_at: datetime
    # a word that a newer server may have is no reason to stop
    stop: Literal["cancel", "pause", "release"] | str | None
    urls: Urls | None = None


class RunReport(WorkerRequest):
    """What may be reported of a run however it ended, for the job's history."""

    seed: Annotated[int, Field(ge=0, le=LARGEST_NUMBER)] | None = None
    # how long after it was handed over the run began: the clock of a worker is its own
    began_after_seconds: Annotated[float, Field(ge=0, le=1e9)] | None = None
    about: Json | None = None


class EndOfLease(AboutLease, RunReport):
    pass


class StoredOutput(WorkerRequest):
    size: Annotated[int, Field(ge=0, le=LARGEST_ID)]
    mime_type: Annotated[str, Field(max_length=200, pattern=MEDIA_TYPE)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    metadata: Json | None = None


class Complete(EndOfLease):
    model_config = example(
        dispatch_id=4711,
        lease_token="9f2c4e",
        provider_job_id="b1946ac9",
        output={"size": 1048576, "mime_type": "video/mp4"},
    )

    provider_job_id: Annotated[str, Field(max_length=200, pattern=STORABLE)] | None = None
    output: StoredOutput | None = None


class Fail(EndOfLease):
    model_config = example(dispatch_id=4711, lease_token="9f2c4e", error_message="CUDA out of memory", fault="worker")

    error_message: Text
    fault: Fault = Fault.JOB
    retry_after_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0


class Requeue(EndOfLease):
    model_config = example(dispatch_id=4711, lease_token="9f2c4e", reason="spot_interruption")

    reason: Annotated[str, Field(min_length=1, max_length=500, pattern=STORABLE)]


class Deregister(WorkerRequest):
    model_config = example(reason="shutdown")

    reason: Annotated[str, Field(max_length=500, pattern=STORABLE)] = "shutdown"


class Settled(AnswerBody):
    status: str


class Released(AnswerBody):
    released: int
