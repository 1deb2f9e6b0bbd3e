"""Run graphs on several ComfyUI servers: one queue, failover between servers, and events from all of them."""

from comfyrelay.comfyui.pool.bus import EventStream
from comfyrelay.comfyui.pool.events import (
    ClientBlockedWorkflow,
    ClientState,
    ClientStateChanged,
    ClientUnblockedWorkflow,
    JobAccepted,
    JobCanceled,
    JobCompleted,
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
    PoolJobEvent,
    PoolReady,
)
from comfyrelay.comfyui.pool.failover import FailoverStrategy, Failure, FailureVerdict, SmartFailover
from comfyrelay.comfyui.pool.jobs import PoolJob
from comfyrelay.comfyui.pool.members import MemberTimings
from comfyrelay.comfyui.pool.pool import WorkflowPool
from comfyrelay.comfyui.pool.queues.queue import JobOutcome, MemoryQueue, PoolJobStatus, QueueAdapter, StoredJobs
from comfyrelay.comfyui.pool.queues.sqlite import SqliteQueue
from comfyrelay.comfyui.pool.stats import ClientStats, PoolStats
from comfyrelay.comfyui.pool.ticket import Affinity, Bucket, JobOptions, Ticket
from comfyrelay.domain.queue.blocks import Block

__all__ = [
    "Affinity",
    "Block",
    "Bucket",
    "ClientBlockedWorkflow",
    "ClientState",
    "ClientStateChanged",
    "ClientStats",
    "ClientUnblockedWorkflow",
    "EventStream",
    "FailoverStrategy",
    "Failure",
    "FailureVerdict",
    "JobAccepted",
    "JobCanceled",
    "JobCompleted",
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
    "MemberTimings",
    "MemoryQueue",
    "PoolEvent",
    "PoolJob",
    "PoolJobEvent",
    "PoolJobStatus",
    "PoolReady",
    "PoolStats",
    "QueueAdapter",
    "SmartFailover",
    "SqliteQueue",
    "StoredJobs",
    "Ticket",
    "WorkflowPool",
]
