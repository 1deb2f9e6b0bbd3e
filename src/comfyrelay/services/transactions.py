"""Names of the transactions. Tests simulate a crash before and after each commit."""

from enum import StrEnum


class TransactionStep(StrEnum):
    # Submit and retry: first the shard, then the central database.
    SUBMIT_JOB = "submit.job"
    SUBMIT_ENQUEUE = "submit.enqueue"
    SUBMIT_FORGET = "submit.forget"
    # Runs before an output is copied for a job that reuses it.
    REUSE = "reuse"
    # Leases and reports of workers: first the central database, then the shard.
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
    # Requests of users and operators.
    CONTROL = "control"
    MOVE = "move"
    # Delivery of a decision to the shard.
    DELIVER_APPLY = "deliver.apply"
    DELIVER_FORGET = "deliver.forget"
    # Webhooks for finished jobs.
    WEBHOOK_CLAIM = "webhook.claim"
    WEBHOOK_NOTE = "webhook.note"
    # Mails to users.
    MAIL_CLAIM = "mail.claim"
    MAIL_NOTE = "mail.note"
    # Erasure of a deleted account.
    ERASE = "erase"
    # Entries of the audit log that belong to changes of another database.
    AUDIT = "audit"
    # Alerts that the rules have sent.
    ALERT = "alert"
    # Posters of inputs, and postponed posters of outputs.
    DRAW_CLAIM = "draw.claim"
    DRAW_NOTE = "draw.note"
    # Autoscaling.
    LEAD = "lead"
    LEARN = "learn"
    SCALE_SEEN = "scale.seen"
    SCALE_INTENT = "scale.intent"
    SCALE_OUTCOME = "scale.outcome"
    # Retention.
    RETENTION_MARK = "retention.mark"
    RETENTION_REMOVE = "retention.remove"
    # Machine costs, and metrics and samples per minute.
    USAGE = "usage"
    MINUTE = "minute"
    # Other writes.
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
