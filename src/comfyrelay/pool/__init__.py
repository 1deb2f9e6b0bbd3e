"""Several ComfyUI servers in one process: a queue before them, failover between them, and events from all of them."""

from comfyrelay.domain.queue.failover import Block
from comfyrelay.pool.events import (
    ClientBlockedWorkflow,
    ClientState,
    ClientStateChanged,
    ClientUnblockedWorkflow,
    JobAccepted,
    JobCanceled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobNoted,
    JobOutput,
    JobPreview,
    JobPrinted,
    JobProgress,
    JobQueued,
    JobRetrying,
    JobStarted,
    PoolEvent,
    PoolReady,
)
from comfyrelay.pool.failover import FailoverStrategy, Failure, SmartFailover, Verdict
from comfyrelay.pool.job import Job
from comfyrelay.pool.member import MemberTimings
from comfyrelay.pool.pool import WorkflowPool
from comfyrelay.pool.queue import JobOutcome, JobStatus, Leftover, MemoryQueue, QueueAdapter
from comfyrelay.pool.sqlite_queue import SqliteQueue
from comfyrelay.pool.stats import ClientStats, PoolStats
from comfyrelay.pool.streams import EventStream
from comfyrelay.pool.ticket import JobOptions, Lane, Ticket

__all__ = [
    "Block",
    "ClientBlockedWorkflow",
    "ClientState",
    "ClientStateChanged",
    "ClientStats",
    "ClientUnblockedWorkflow",
    "EventStream",
    "FailoverStrategy",
    "Failure",
    "Job",
    "JobAccepted",
    "JobCanceled",
    "JobCompleted",
    "JobEvent",
    "JobFailed",
    "JobNoted",
    "JobOptions",
    "JobOutcome",
    "JobOutput",
    "JobPreview",
    "JobPrinted",
    "JobProgress",
    "JobQueued",
    "JobRetrying",
    "JobStarted",
    "JobStatus",
    "Lane",
    "Leftover",
    "MemberTimings",
    "MemoryQueue",
    "PoolEvent",
    "PoolReady",
    "PoolStats",
    "QueueAdapter",
    "SmartFailover",
    "SqliteQueue",
    "Ticket",
    "Verdict",
    "WorkflowPool",
]
