"""Tenants, users, their sign-in tokens, and payments."""

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Integer, Table, Text, false

from comfyrelay.domain.queue.states import LinkKind
from comfyrelay.store.schema import central_metadata as metadata
from comfyrelay.store.schema import one_of, partial_index
from comfyrelay.store.types import UtcTime

tenants = Table(
    "tenants",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("shard", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("max_wait_seconds", Integer),
    # Maximum number of queued and running jobs; null: the server's limit.
    Column("max_active_jobs", Integer),
    # Maximum size and number of uploads; null: the server's limits.
    Column("max_stored_bytes", BigInteger),
    Column("max_stored_files", Integer),
    # Since when the tenant's queue is paused, and its queued jobs are held; null: it is not.
    Column("queue_paused_at", UtcTime),
    partial_index("ix_tenants_queue_paused", "id", where="queue_paused_at IS NOT NULL"),
)

users = Table(
    "users",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id"), nullable=False, unique=True),
    Column("email", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("password_hash", Text),
    Column("is_admin", Boolean, nullable=False, server_default=false()),
    Column("created_at", UtcTime, nullable=False),
    # From then on, neither the password nor a token is accepted.
    Column("disabled_at", UtcTime),
    partial_index("ix_users_admins", "id", where="is_admin"),
)

api_tokens = Table(
    "api_tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("token_hash", Text, nullable=False, unique=True),
    Column("created_at", UtcTime, nullable=False),
    # A browser session is a token that expires.
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
)

account_links = Table(
    "account_links",
    metadata,
    Column("token_hash", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    # The user whose password it sets; null for the code that creates the first administrator.
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), index=True),
    # The administrator, whose links end with the role.
    Column("created_by", Text),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("used_at", UtcTime),
    one_of("kind", LinkKind),
)

payment_events = Table(
    "payment_events",
    metadata,
    Column("provider_event_id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id"), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("currency", Text),
    Column("created_at", UtcTime, nullable=False),
)
