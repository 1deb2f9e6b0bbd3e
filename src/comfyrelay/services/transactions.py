"""Names of all transactions of the services.

Tests simulate a crash before and after the commit of each.
"""

from enum import StrEnum


class TransactionStep(StrEnum):
    # submit and retry: shard first, then central
    SUBMIT_JOB = "submit.job"
    SUBMIT_ENQUEUE = "submit.enqueue"
    SUBMIT_FORGET = "submit.forget"
    # before an output is copied for a job that reuses it
    REUSE = "reuse"
    # leases and worker reports: central first, then shard
    LEASE = "lease"
    HEARTBEAT = "heartbeat"
    HEARTBEAT_LOGS = "heartbeat.logs"
    SETTLE = "settle"
    HOLD = "hold"
    DEFER = "defer"
    RELEASE = "release"
    RECALL = "recall"
    REAP = "reap"
    BURST = "burst"
    # requests of users and operators
    CONTROL = "control"
    MOVE = "move"
    # the shard's side of a decision
    DELIVER_APPLY = "deliver.apply"
    DELIVER_FORGET = "deliver.forget"
    # webhooks for finished jobs
    WEBHOOK_CLAIM = "webhook.claim"
    WEBHOOK_NOTE = "webhook.note"
    # posters of inputs, and postponed posters of outputs
    DRAW_CLAIM = "draw.claim"
    DRAW_NOTE = "draw.note"
    # machines for workers
    LEAD = "lead"
    LEARN = "learn"
    SCALE_SEEN = "scale.seen"
    SCALE_INTENT = "scale.intent"
    SCALE_OUTCOME = "scale.outcome"
    # retention
    RETENTION_MARK = "retention.mark"
    RETENTION_REMOVE = "retention.remove"
    # machine costs, and per-minute metrics and samples
    USAGE = "usage"
    MINUTE = "minute"
    # the rest
    PAYMENT = "payment"
    LEDGER = "ledger"
    TENANT = "tenant"
    CATALOGUE = "catalogue"
    GALLERY = "gallery"
    AVAILABILITY = "availability"
    WORKER = "worker"
    REMOVE = "remove"
    REMOVE_FORGET = "remove.forget"
    REPAIR = "repair"
