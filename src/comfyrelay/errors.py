"""All errors that ComfyRelay raises on purpose.

    ComfyRelayError
    ├── InvalidInput             the input is invalid; names the fields
    │   └── MissingAsset, FederationLoop    a graph names a file that the user lacks; a job has come back
    ├── NotFound                 the object does not exist or belongs to another user
    │   └── LeaseLost            the lease token is wrong, or its lease has ended
    ├── Conflict                 the object exists already, or is in another state
    │   ├── ChangedMeanwhile     someone else has changed the object since the caller read it
    │   ├── IdempotencyConflict, PriceChanged    the request is not the first one; the price is not the expected one
    │   ├── QueueFull, UploadLimitReached, WorkflowLimitReached    a pool's queue is full; a tenant has no space left
    │   ├── WorkflowNameTaken    a workflow of the user has this name but another graph; names it
    │   └── MissingOnWorkers     no worker has all required nodes and models; names them
    ├── Unauthorized, Forbidden  not signed in with a valid token or secret; signed in, but not allowed
    ├── TooManyRequests          the rate limit is reached; says when to retry
    ├── InsufficientTokens, TooManyActiveJobs    the user's wallet or job limit does not allow the job
    ├── RequestTimeout, TooLarge                 the body took too long to arrive, or has too many bytes
    ├── DatabaseUnavailable      a database is unreachable or refuses connections
    │   └── NotWritable          a database is read-only, or its disk is full
    ├── StorageUnavailable, ControlPlaneUnreachable, ProviderError    another system is unreachable or refuses
    ├── LeadershipLost, NotReady another process has become the leader; the server cannot serve requests
    ├── Canceled                 the job was canceled
    ├── GraphError               ComfyUI cannot run this graph
    │   ├── InvalidNodes         no output of the graph can run; has the errors of its nodes
    │   └── GraphNotAllowed      a tenant's graph uses nodes or files that it must not use
    ├── TransferFailed           a file of a job could not be downloaded or uploaded; see `fault`
    ├── ComfyError               a run failed on a ComfyUI server; see `fault`
    │   ├── GraphRefused         job: the graph is invalid
    │   ├── NotInstalled, InputMissing    worker: nodes, models or an input file are missing on this server
    │   ├── NodeFailed           job or worker: a node raised an error
    │   │   └── ModelUnreadable  worker: a model file is damaged or has the wrong type
    │   ├── OutOfMemory, DeviceFault    worker: memory ran out; the GPU fails until ComfyUI is restarted
    │   ├── NoOutput, OutputGone job: the run has no output; worker: the output file was deleted
    │   ├── ScriptFailed         job: the user's script exited with a code other than 0
    │   ├── RunInterrupted       interrupted: the run was stopped on the server
    │   │   └── RunRemoved       interrupted: the run was removed from the server's queue
    │   ├── RunLost, RunTimedOut worker: the server does not know the run, or the run stalled
    │   ├── ServerUnreachable    worker: the server does not answer
    │   │   └── NotStarted       worker: a managed ComfyUI does not start
    │   ├── ServerRefused        job or worker: the server answered with an error
    │   └── PaymentRequired, RateLimited    job, worker: a cloud service requires payment, or limits this account
    └── ConfigurationError       a setting is missing or invalid
        └── SchemaMismatch, SchemaOutOfDate    the schema has another version, or needs `comfyrelay db upgrade`

The docstring of a class is its default message.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar


class ComfyRelayError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"

    def __init__(self, detail: str | None = None) -> None:
        # `python -OO` strips docstrings.
        self.detail = detail or self.__doc__ or self.code
        super().__init__(self.detail)


class InvalidInput(ComfyRelayError):
    """The input is invalid."""

    code = "invalid_input"

    def __init__(self, detail: str | None = None, *, errors: Mapping[str, str] | None = None) -> None:
        self.errors: dict[str, str] = dict(errors or {})
        super().__init__(detail)


class MissingAsset(InvalidInput):
    """The graph names a file that you do not have."""

    code = "missing_asset"


class FederationLoop(InvalidInput):
    """This job comes from this server. Workers must not send jobs back to it."""

    code = "federation_loop"


class NotFound(ComfyRelayError):
    """Not found."""

    code = "not_found"


class LeaseLost(NotFound):
    """This lease has ended or does not exist."""

    code = "lease_lost"


class Conflict(ComfyRelayError):
    """This conflicts with the current state."""

    code = "conflict"


class IdempotencyConflict(Conflict):
    """This idempotency key was used for a different request."""

    code = "idempotency_conflict"


class ChangedMeanwhile(Conflict):
    """Someone else has changed this since you opened it. Nothing was saved. Reload it, and make your change again."""

    code = "changed_meanwhile"


class QueueFull(Conflict):
    """The queue of the pool is full."""

    code = "queue_full"


class MissingOnWorkers(Conflict):
    """No worker has all required nodes and models."""

    code = "missing_on_workers"

    def __init__(
        self, detail: str | None = None, *, missing: Sequence[Mapping[str, Any]] = (), is_of_effect: bool = False
    ) -> None:
        self.missing = list(missing)
        # Users of an effect do not know its nodes and models.
        self.is_of_effect = is_of_effect
        super().__init__(detail)


class WorkflowNameTaken(Conflict):
    """You have another workflow of this name."""

    code = "workflow_name_taken"

    def __init__(self, detail: str | None = None, *, workflow_slug: str = "") -> None:
        self.workflow_slug = workflow_slug
        super().__init__(detail)


class UploadLimitReached(Conflict):
    """Your uploads take all the space that you have."""

    code = "upload_limit_reached"


class WorkflowLimitReached(Conflict):
    """Your workflows and your jobs without a price take all the space that you have."""

    code = "workflow_limit_reached"


class PriceChanged(Conflict):
    """The price has changed."""

    code = "price_changed"

    def __init__(self, *, expected_tokens: int, required_tokens: int) -> None:
        self.expected_tokens = expected_tokens
        self.required_tokens = required_tokens
        now = _tokens(required_tokens)
        super().__init__(f"The price is now {now}, not {expected_tokens:,}. No job was started. Confirm the new price.")


class Unauthorized(ComfyRelayError):
    """Sign in, or check the token."""

    code = "unauthorized"


class TooManyRequests(ComfyRelayError):
    """Too many requests from this address. Wait and try again."""

    code = "too_many_requests"

    def __init__(self, detail: str | None = None, *, retry_after_seconds: float) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(detail)


class RequestTimeout(ComfyRelayError):
    """The request took too long to arrive."""

    code = "request_timeout"


class TooLarge(ComfyRelayError):
    """This is larger than allowed."""

    code = "too_large"


class Forbidden(ComfyRelayError):
    """This is not allowed."""

    code = "forbidden"


class InsufficientTokens(ComfyRelayError):
    """Insufficient token balance."""

    code = "insufficient_tokens"

    def __init__(self, *, required_tokens: int, balance: int) -> None:
        self.required_tokens = required_tokens
        self.balance = balance
        super().__init__(f"You need {_tokens(required_tokens)} and have {balance:,}.")


class TooManyActiveJobs(ComfyRelayError):
    """Too many active jobs."""

    code = "too_many_active_jobs"

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        super().__init__(f"Too many active jobs: the limit is {limit}.")


class DatabaseUnavailable(ComfyRelayError):
    """A database is unreachable."""

    code = "database_unavailable"

    def __init__(self, *, name: str, why: str = "is unreachable") -> None:
        self.name = name
        which = "central database" if name == "central" else f"shard {name!r}"
        super().__init__(f"The {which} {why}.")


class NotWritable(DatabaseUnavailable):
    """A database is not writable."""

    code = "not_writable"


class StorageUnavailable(ComfyRelayError):
    """Object storage is unreachable."""

    code = "storage_unavailable"


class ControlPlaneUnreachable(ComfyRelayError):
    """The control plane is unreachable."""

    code = "control_plane_unreachable"


class ProviderError(ComfyRelayError):
    """The machine provider of a fleet is unreachable or refused the request."""

    code = "provider_error"


class LeadershipLost(ComfyRelayError):
    """Another process has become the leader."""

    code = "leadership_lost"


class NotReady(ComfyRelayError):
    """The server is not ready."""

    code = "not_ready"

    def __init__(self, *, errors: Mapping[str, str]) -> None:
        self.errors: dict[str, str] = dict(errors)
        super().__init__(f"The server is not ready: {', '.join(errors)}.")


class Canceled(ComfyRelayError):
    """The job was canceled."""

    code = "canceled"


class GraphError(ComfyRelayError):
    """This is not a ComfyUI graph in API format."""

    code = "invalid_graph"


class InvalidNodes(GraphError):
    """No output of this graph can run."""

    code = "invalid_nodes"

    def __init__(self, detail: str | None = None, *, node_errors: Mapping[str, Any]) -> None:
        """`node_errors` are the errors by node id, in ComfyUI's format."""
        self.node_errors = dict(node_errors)
        super().__init__(detail)


class GraphNotAllowed(GraphError):
    """This graph uses nodes or files that are not allowed."""

    code = "graph_not_allowed"


class Fault(StrEnum):
    """The cause of a failure. It decides whether the job fails, another worker runs it, or it is retried."""

    JOB = "job"
    WORKER = "worker"
    INTERRUPTED = "interrupted"


class TransferFailed(ComfyRelayError):
    """A file of the job could not be transferred."""

    code = "transfer_failed"

    def __init__(self, detail: str | None = None, *, fault: Fault = Fault.WORKER) -> None:
        self.fault = fault
        super().__init__(detail)


class ComfyError(ComfyRelayError):
    """The run failed on ComfyUI.

    `detail` may be shown to any user. `raw` is for operators only, because it may contain tracebacks with server paths.
    """

    code = "comfy_error"
    usual_fault: ClassVar[Fault] = Fault.WORKER

    def __init__(
        self,
        detail: str | None = None,
        *,
        fault: Fault | None = None,
        node_id: str | None = None,
        problems: Sequence[str] = (),
        raw: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        self.fault = fault or self.usual_fault
        self.node_id = node_id
        self.problems = tuple(problems)
        self.raw = raw
        self.retry_after_seconds = retry_after_seconds
        super().__init__(detail)


class GraphRefused(ComfyError):
    """ComfyUI refused the graph as invalid."""

    code = "graph_refused"
    usual_fault = Fault.JOB


class NotInstalled(ComfyError):
    """The graph needs nodes or models that are missing on this server."""

    code = "not_installed"

    def __init__(
        self,
        detail: str | None = None,
        *,
        node_types: Sequence[str] = (),
        packages: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """`packages` are the packages of missing nodes by class, as far as they are known."""
        self.node_types = tuple(node_types)
        self.packages = dict(packages or {})
        super().__init__(detail, **more)


class InputMissing(ComfyError):
    """An input file is missing on this server."""

    code = "input_missing"


class NodeFailed(ComfyError):
    """A node failed."""

    code = "node_failed"
    usual_fault = Fault.JOB


class ModelUnreadable(NodeFailed):
    """A model file cannot be read."""

    code = "model_unreadable"
    usual_fault = Fault.WORKER


class OutOfMemory(ComfyError):
    """There was not enough memory."""

    code = "out_of_memory"
    # Whether the job had the GPU to itself, as far as the server can tell.
    ran_alone: bool = False
    # The memory of the GPU, if no other job used it; 0 without a GPU.
    gpu_bytes: int | None = None
    # GPU memory used by other programs, if they caused the error.
    others_bytes: int | None = None


class DeviceFault(ComfyError):
    """The GPU has failed. Restart ComfyUI."""

    code = "device_fault"


class NoOutput(ComfyError):
    """The graph finished without an output."""

    code = "no_output"
    usual_fault = Fault.JOB


class OutputGone(ComfyError):
    """The output file is no longer on the server."""

    code = "output_gone"


class ScriptFailed(ComfyError):
    """The script failed."""

    code = "script_failed"
    usual_fault = Fault.JOB


class RunInterrupted(ComfyError):
    """The run was interrupted on the server."""

    code = "run_interrupted"
    usual_fault = Fault.INTERRUPTED


class RunRemoved(RunInterrupted):
    """The run was removed from the server's queue."""

    code = "run_removed"


class RunLost(ComfyError):
    """The server does not know this run. It was probably restarted."""

    code = "run_lost"


class RunTimedOut(ComfyError):
    """The run took too long."""

    code = "run_timed_out"


class ServerUnreachable(ComfyError):
    """The ComfyUI server does not answer."""

    code = "server_unreachable"


class NotStarted(ServerUnreachable):
    """ComfyUI could not be started."""

    code = "not_started"


class ServerRefused(ComfyError):
    """The ComfyUI server answered with an error."""

    code = "server_refused"


class PaymentRequired(ComfyError):
    """The cloud service requires payment."""

    code = "payment_required"
    usual_fault = Fault.JOB


class RateLimited(ComfyError):
    """The cloud service limits the requests of this account."""

    code = "rate_limited"


class ConfigurationError(ComfyRelayError):
    """The configuration is invalid."""

    code = "invalid_configuration"


class SchemaMismatch(ConfigurationError):
    """The database has the schema of another version."""

    code = "schema_mismatch"


class SchemaOutOfDate(ConfigurationError):
    """The database schema is out of date. Run `comfyrelay db upgrade`."""

    code = "schema_out_of_date"


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"
