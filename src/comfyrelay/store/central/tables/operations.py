"""Samples of the load, reconcile runs, sent alerts, and the audit log of people."""

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, Table, Text, text

from comfyrelay.store.schema import BigId
from comfyrelay.store.schema import central_metadata as metadata
from comfyrelay.store.types import JsonText, UtcTime

samples = Table(
    "samples",
    metadata,
    # One row per minute, numbered since 1970. Counts are sums over all processes. The load columns come from one
    # process, and are null if none recorded them.
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("waiting", Integer),
    Column("oldest_wait_seconds", Float),
    Column("busy", Integer),
    Column("slots", Integer),
    Column("workers", Integer),
    Column("begun", BigInteger, nullable=False, server_default=text("0")),
    # Total wait of the started jobs.
    Column("waited_seconds", Float, nullable=False, server_default=text("0")),
    Column("done", BigInteger, nullable=False, server_default=text("0")),
    Column("failed", BigInteger, nullable=False, server_default=text("0")),
    Column("tokens", BigInteger, nullable=False, server_default=text("0")),
)

reconcile_runs = Table(
    "reconcile_runs",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("started_at", UtcTime, nullable=False),
    # Null while the run is in progress, or if its process crashed.
    Column("ended_at", UtcTime),
    Column("jobs", BigInteger),
    Column("findings", JsonText),
    # Total number of findings; only the first are stored.
    Column("count", Integer),
    Column("shards_down", JsonText),
    # Why it failed.
    Column("problem", Text),
)

alert_states = Table(
    "alert_states",
    metadata,
    # The kind of problem, or `*`.
    Column("rule", Text, primary_key=True),
    Column("last_sent_at", UtcTime),
    # The problems that the receivers know, and the problems that each server sees.
    Column("told", JsonText, nullable=False),
    Column("seen", JsonText, nullable=False),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("created_at", UtcTime, nullable=False),
    # The user, or null for a command on the server's host.
    Column("actor_id", Text),
    # The email of the user at that time, or the operating system user who ran a command.
    Column("actor", Text, nullable=False),
    # The network address of the request, or the name of the machine on which the command ran.
    Column("address", Text),
    Column("action", Text, nullable=False),
    # Kind and name of what was changed, such as `effects/clip`.
    Column("subject", Text, nullable=False),
    # The changed fields before and after; null if the object did not exist. Secrets are left out.
    Column("before", JsonText),
    Column("after", JsonText),
    # False if the change is in another database and has not been confirmed.
    Column("is_done", Boolean, nullable=False),
    Index(None, "subject", "id"),
    Index(None, "actor_id", "id"),
)
