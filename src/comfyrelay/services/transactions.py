"""Every transaction of the services by name.

A crash can fall before or after the commit of any of them; the tests try them all.
"""

from enum import StrEnum


class TransactionStep(StrEnum):
    # submit and retry: tenant first, then central
    SUBMIT_JOB = "submit.job"
    SUBMIT_ENQUEUE = "submit.enqueue"
    SUBMIT_FORGET = "submit.forget"
    # before an output is copied for a job that is answered with it
    REUSE = "reuse"
    # everything that a worker reports or gets: central first, then tenant
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
    # what a user or an operator asks for
    CONTROL = "control"
    MOVE = "move"
    # the tenant's side of a decision
    DELIVER_APPLY = "deliver.apply"
    DELIVER_FORGET = "deliver.forget"
    # webhooks for the ends of jobs
    WEBHOOK_CLAIM = "webhook.claim"
    WEBHOOK_NOTE = "webhook.note"
    # posters of inputs, and of outputs that got none in time
    DRAW_CLAIM = "draw.claim"
    DRAW_NOTE = "draw.note"
    # machines for workers
    LEAD = "lead"
    LEARN = "learn"
    SCALE_SEEN = "scale.seen"
    SCALE_INTENT = "scale.intent"
    SCALE_OUTCOME = "scale.outcome"
    # what is kept no longer
    RETENTION_MARK = "retention.mark"
    RETENTION_REMOVE = "retention.remove"
    # what machines cost, whose turn it is to tell others, and how the service was doing
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
