"""States and events of the state machine drawn in `docs/reference/state-machine.md`.

The schema repeats these sets as constraints.
"""

from collections.abc import Mapping
from enum import StrEnum


class DispatchStatus(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    PAUSED = "paused"


class JobStatus(StrEnum):
    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    PAUSED = "paused"


class UnitStatus(StrEnum):
    """Status of a unit of the queue: a batch, or a job without a batch."""

    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


def shown_status(status: str, *, is_prefetched: bool) -> JobStatus:
    """Return the status that users see. A prefetched job is stored as processing, but it still waits."""
    return JobStatus.QUEUED if is_prefetched and status == JobStatus.PROCESSING else JobStatus(status)


def finished_status(counts: Mapping[str, int]) -> UnitStatus:
    """Return the status of a unit whose items have all ended: the worst status of the items."""
    for worst in (UnitStatus.FAILED, UnitStatus.CANCELED):
        if counts.get(worst):
            return worst
    return UnitStatus.COMPLETED


class VideoStatus(StrEnum):
    UPLOADED = "uploaded"
    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"


class Provider(StrEnum):
    SELF_HOSTED = "self_hosted"
    CLOUD = "cloud"


class WorkflowProvider(StrEnum):
    """Where jobs of a workflow may run. With `any`, a dispatch starts self-hosted and may move to the cloud."""

    SELF_HOSTED = "self_hosted"
    CLOUD = "cloud"
    ANY = "any"


class Stage(StrEnum):
    STAGING = "staging"
    PRODUCTION = "production"


class WorkflowKind(StrEnum):
    GRAPH = "graph"
    SCRIPT = "script"


class RegistrationSource(StrEnum):
    """How a worker registered. Only the desk's own worker runs scripts."""

    FLEET = "fleet"
    DESK = "desk"


class PauseMode(StrEnum):
    AFTER = "after"
    NOW = "now"


class CanceledBy(StrEnum):
    USER = "user"
    ADMINISTRATOR = "administrator"


class Outcome(StrEnum):
    """How a lease and its attempt ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    REQUEUED = "requeued"
    EXPIRED = "expired"
    CANCELED = "canceled"
    DEFERRED = "deferred"


class JobEventType(StrEnum):
    """Type of a job update that the queue sends to a shard, and of the event recorded for it."""

    QUEUED = "job:queued"
    STARTED = "job:started"
    REQUEUED = "job:requeued"
    RETRYING = "job:retrying"
    COMPLETED = "job:completed"
    FAILED = "job:failed"
    CANCELED = "job:canceled"
    PAUSED = "job:paused"
    RESUMED = "job:resumed"
    CANCEL_REQUESTED = "job:cancel_requested"
    PAUSE_REQUESTED = "job:pause_requested"
    PRIORITY = "job:priority"
    PROVIDER = "job:provider"


class TransactionType(StrEnum):
    PAYMENT_CREDIT = "PAYMENT_CREDIT"
    JOB_RESERVE = "JOB_RESERVE"
    JOB_CONSUME = "JOB_CONSUME"
    JOB_REFUND = "JOB_REFUND"
    # An administrator refunds a completed job.
    JOB_CREDIT = "JOB_CREDIT"
    ADJUSTMENT = "ADJUSTMENT"


class WorkerState(StrEnum):
    """The first state that applies, from worst to best."""

    REVOKED = "revoked"
    OFFLINE = "offline"
    DRAINING = "draining"
    # The worker reports that none of its ComfyUI servers can be used.
    NO_COMFYUI = "no_comfyui"
    BUSY = "busy"
    IDLE = "idle"


TERMINAL_DISPATCH = frozenset({DispatchStatus.COMPLETED, DispatchStatus.FAILED, DispatchStatus.CANCELED})
TERMINAL_JOB = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELED})
TERMINAL_EVENTS = frozenset({JobEventType.COMPLETED, JobEventType.FAILED, JobEventType.CANCELED})
ACTIVE_JOB = frozenset({JobStatus.QUEUED, JobStatus.PROCESSING})

JOB_STATUS_OF = {
    DispatchStatus.QUEUED: JobStatus.QUEUED,
    DispatchStatus.LEASED: JobStatus.PROCESSING,
    DispatchStatus.COMPLETED: JobStatus.COMPLETED,
    DispatchStatus.FAILED: JobStatus.FAILED,
    DispatchStatus.CANCELED: JobStatus.CANCELED,
    DispatchStatus.PAUSED: JobStatus.PAUSED,
}


class LinkKind(StrEnum):
    """Kind of a single-use sign-in link."""

    # Change or verify the email address.
    EMAIL = "email"
    # Set a new password.
    RESET = "reset"
    # Create the first administrator.
    SETUP = "setup"
    # Create an account.
    SIGN_UP = "sign_up"
