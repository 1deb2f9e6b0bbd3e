"""Everything ComfyRelay raises on purpose.

    ComfyRelayError
    ├── InvalidInput             what was sent cannot be accepted; says which fields
    ├── NotFound                 it is not there, or not yours
    │   └── LeaseLost            the lease token is wrong, or its lease has ended
    ├── Conflict                 it is there already, or in another state
    │   ├── IdempotencyConflict  the same key came with another request
    │   ├── MissingOnWorkers     no worker has all the nodes and models that it needs; names them
    │   └── PriceChanged         it costs other than whoever asked for it was told
    ├── Unauthorized             nobody is signed in, or the token or secret is wrong
    ├── Forbidden                known, but not allowed
    ├── TooManyRequests          too many calls from one address; says when to come back
    ├── RequestTimeout           a request took too long to arrive
    ├── TooLarge                 more bytes than are allowed
    ├── InsufficientTokens       the wallet does not cover the cost
    ├── TooManyActiveJobs        the user's limit is reached
    ├── DatabaseUnavailable          a database cannot be reached, or refuses connections
    │   └── NotWritable          a database takes no changes: it is read-only, or its disk is full
    ├── StorageUnavailable       object storage cannot be reached
    ├── ControlPlaneUnreachable  a control plane does not answer, or not like one
    ├── NotReady                 the server cannot serve; says which parts are missing
    ├── Canceled                 it was canceled before it was done
    ├── GraphError               not a graph that ComfyUI can run
    │   └── GraphNotAllowed      a graph of a tenant's own has nodes or files that it may not have
    ├── TransferFailed           a job's file could not be fetched or stored; `fault` says whose fault that is
    ├── ComfyError               a ComfyUI server could not do it; `fault` says whose fault that is
    │   ├── GraphRefused         job: the server found mistakes in the graph
    │   ├── NotInstalled         worker: nodes or models that this server does not have
    │   ├── InputMissing         worker: an input file is not on this server
    │   ├── NodeFailed           job or worker: a node raised an error
    │   │   └── ModelUnreadable  worker: the file of a model cannot be read, or holds another kind of model
    │   ├── OutOfMemory          worker: the GPU, or the machine, has not enough memory
    │   ├── DeviceFault          worker: the GPU is in a bad state until ComfyUI is restarted
    │   ├── NoOutput             job: it ran to its end and made nothing
    │   ├── OutputGone           worker: the file that it made is no longer there
    │   ├── ScriptFailed         job: a script of the user ended with another exit code than 0
    │   ├── RunInterrupted       interrupted: somebody stopped it
    │   │   └── RunRemoved       interrupted: somebody took it out of the queue
    │   ├── RunLost              worker: the server no longer knows it, most likely because it restarted
    │   ├── RunTimedOut          worker: it did not start, or stood still, or took too long
    │   ├── ServerUnreachable    worker: the server does not answer
    │   │   └── NotStarted       worker: a ComfyUI that ComfyRelay starts itself does not come up
    │   ├── ServerRefused        job or worker: the server answered with an error
    │   ├── PaymentRequired      job: Comfy Cloud wants to be paid first
    │   └── RateLimited          worker: Comfy Cloud is too busy for this account
    └── ConfigurationError       a setting is missing or wrong
        └── SchemaOutOfDate      the database needs `comfyrelay db upgrade`

The docstring of a class is its message when none is given.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar

__all__ = [
    "Canceled",
    "ComfyError",
    "ComfyRelayError",
    "ConfigurationError",
    "Conflict",
    "ControlPlaneUnreachable",
    "DatabaseUnavailable",
    "DeviceFault",
    "Forbidden",
    "GraphError",
    "GraphNotAllowed",
    "GraphRefused",
    "IdempotencyConflict",
    "InputMissing",
    "InsufficientTokens",
    "InvalidInput",
    "LeadershipLost",
    "LeaseLost",
    "MissingOnWorkers",
    "ModelUnreadable",
    "NoOutput",
    "NodeFailed",
    "NotFound",
    "NotInstalled",
    "NotReady",
    "NotStarted",
    "NotWritable",
    "OutOfMemory",
    "OutputGone",
    "PaymentRequired",
    "PriceChanged",
    "ProviderError",
    "RateLimited",
    "RequestTimeout",
    "RunInterrupted",
    "RunLost",
    "RunRemoved",
    "RunTimedOut",
    "SchemaOutOfDate",
    "ScriptFailed",
    "ServerRefused",
    "ServerUnreachable",
    "StorageUnavailable",
    "TooLarge",
    "TooManyActiveJobs",
    "TooManyRequests",
    "TransferFailed",
    "Unauthorized",
]


class ComfyRelayError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"

    def __init__(self, detail: str | None = None) -> None:
        # `python -OO` strips docstrings, and a message must still be there
        self.detail = detail or self.__doc__ or self.code
        super().__init__(self.detail)


class InvalidInput(ComfyRelayError):
    """The input is not valid."""

    code = "invalid_input"

    def __init__(self, detail: str | None = None, *, errors: Mapping[str, str] | None = None) -> None:
        self.errors: dict[str, str] = dict(errors or {})
        super().__init__(detail)


class NotFound(ComfyRelayError):
    """Not found."""

    code = "not_found"


class LeaseLost(NotFound):
    """This lease has ended or never was."""

    code = "lease_lost"


class Conflict(ComfyRelayError):
    """This conflicts with what is already there."""

    code = "conflict"


class IdempotencyConflict(Conflict):
    """This idempotency key was used for another request."""

    code = "idempotency_conflict"


class MissingOnWorkers(Conflict):
    """No worker has everything that this needs."""

    code = "missing_on_workers"

    def __init__(self, detail: str | None = None, *, missing: Sequence[Mapping[str, Any]] = ()) -> None:
        self.missing = list(missing)
        super().__init__(detail)


class PriceChanged(Conflict):
    """The price is another one by now."""

    code = "price_changed"

    def __init__(self, *, expected_tokens: int, required_tokens: int) -> None:
        self.expected_tokens = expected_tokens
        self.required_tokens = required_tokens
        now = f"{required_tokens} token{'' if required_tokens == 1 else 's'}"
        super().__init__(f"This costs {now} now, not {expected_tokens}. Nothing was started: look at the new price.")


class Unauthorized(ComfyRelayError):
    """Sign in first, or check the token."""

    code = "unauthorized"


class TooManyRequests(ComfyRelayError):
    """Too many requests from this address: wait a little."""

    code = "too_many_requests"

    def __init__(self, *, retry_after_seconds: float) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__()


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
        super().__init__("Insufficient token balance.")


class TooManyActiveJobs(ComfyRelayError):
    """Too many active jobs."""

    code = "too_many_active_jobs"

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        super().__init__(f"Too many active jobs: the limit is {limit}.")


class DatabaseUnavailable(ComfyRelayError):
    """A database cannot be reached."""

    code = "database_unavailable"

    def __init__(self, *, name: str, why: str = "cannot be reached") -> None:
        self.name = name
        which = "central database" if name == "central" else f"shard {name!r}"
        super().__init__(f"The {which} {why}.")


class NotWritable(DatabaseUnavailable):
    """A database takes no changes."""

    code = "not_writable"


class StorageUnavailable(ComfyRelayError):
    """Object storage cannot be reached."""

    code = "storage_unavailable"


class ControlPlaneUnreachable(ComfyRelayError):
    """The control plane cannot be reached."""

    code = "control_plane_unreachable"


class ProviderError(ComfyRelayError):
    """Whoever makes machines for a fleet could not be asked, or said no to everything."""

    code = "provider_error"


class LeadershipLost(ComfyRelayError):
    """Another process leads by now."""

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


class GraphNotAllowed(GraphError):
    """This graph has nodes, or names files, that it may not."""

    code = "graph_not_allowed"


class Fault(StrEnum):
    """Whose fault a failure is; it decides between giving up, trying elsewhere and trying again."""

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
    """ComfyUI could not do this.

    `detail` may be shown to anybody. `raw` is for the operator: it may hold tracebacks with paths of the server.
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
    """The server found mistakes in the graph."""

    code = "graph_refused"
    usual_fault = Fault.JOB


class NotInstalled(ComfyError):
    """The graph needs nodes or models that this server does not have; `node_types` has nodes that are known to be."""

    code = "not_installed"

    def __init__(self, detail: str | None = None, *, node_types: Sequence[str] = (), **more: Any) -> None:
        self.node_types = tuple(node_types)
        super().__init__(detail, **more)


class InputMissing(ComfyError):
    """An input file is not on this server."""

    code = "input_missing"


class NodeFailed(ComfyError):
    """A node failed."""

    code = "node_failed"
    usual_fault = Fault.JOB


class ModelUnreadable(NodeFailed):
    """The file of a model cannot be read."""

    code = "model_unreadable"
    usual_fault = Fault.WORKER


class OutOfMemory(ComfyError):
    """There was not enough memory. `gpu_bytes` is what the GPU has, once the job had that to itself; `others_bytes`
    what other programs held of it, where that is why."""

    code = "out_of_memory"
    gpu_bytes: int | None = None
    others_bytes: int | None = None


class DeviceFault(ComfyError):
    """The GPU is in a bad state; ComfyUI must be restarted."""

    code = "device_fault"


class NoOutput(ComfyError):
    """The graph ran to its end and made no output."""

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
    """The run was taken out of the server's queue."""

    code = "run_removed"


class RunLost(ComfyError):
    """The server no longer knows this run: it was most likely restarted."""

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
    """Comfy Cloud does not run this until it is paid for."""

    code = "payment_required"
    usual_fault = Fault.JOB


class RateLimited(ComfyError):
    """Comfy Cloud takes no more requests from this account for now."""

    code = "rate_limited"


class ConfigurationError(ComfyRelayError):
    """The configuration is not valid."""

    code = "invalid_configuration"


class SchemaOutOfDate(ConfigurationError):
    """The database schema is out of date: run `comfyrelay db upgrade`."""

    code = "schema_out_of_date"
