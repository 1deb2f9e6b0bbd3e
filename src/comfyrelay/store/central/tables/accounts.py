"""Tenants, users, their sign-in tokens, and payments."""

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, ForeignKey, Integer, Table, Text, false, text

from comfyrelay.domain.queue.states import LinkKind
from comfyrelay.domain.records.accounts import TokenScope
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
    # Whether the tenant may add and run its own workflows, if not everyone may.
    Column("may_add_workflows", Boolean, nullable=False, server_default=false()),
    # When the tenant's queue was paused. Its queued jobs are held since then; null: not paused.
    Column("queue_paused_at", UtcTime),
    # When the account was deleted. Its data is then erased in the background, until `erased_at`.
    Column("deleted_at", UtcTime),
    Column("erased_at", UtcTime),
    partial_index("ix_tenants_to_erase", "id", where="deleted_at IS NOT NULL AND erased_at IS NULL"),
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
    # When the user opened a link that was mailed to this address.
    Column("email_verified_at", UtcTime),
    partial_index("ix_users_admins", "id", where="is_admin"),
)

api_tokens = Table(
    "api_tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("token_hash", Text, nullable=False, unique=True),
    # The only API that accepts the token; null: all APIs accept it.
    Column("scope", Text),
    # The token with which this session of the editor was opened. The session ends with it.
    Column("parent_id", Text),
    Column("created_at", UtcTime, nullable=False),
    # A browser session is a token that expires.
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
    # PostgreSQL stores an IN list of one value as an equation.
    CheckConstraint(f"scope IS NULL OR scope = '{TokenScope.COMFYUI}'", name="scope"),
)

account_links = Table(
    "account_links",
    metadata,
    Column("token_hash", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    # The user whose account the link changes; null if it creates an account.
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), index=True),
    # The address to which the link was mailed, and which its use verifies; null if an administrator passes it on.
    Column("email", Text),
    # The name of the account that a sign-up creates.
    Column("name", Text),
    # The administrator who created it. The link becomes invalid when that user loses the role.
    Column("created_by", Text),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("used_at", UtcTime),
    one_of("kind", LinkKind),
    partial_index("ix_account_links_email", "email", where="email IS NOT NULL"),
)

mails = Table(
    "mails",
    metadata,
    Column("id", Text, primary_key=True),
    Column("recipient", Text, nullable=False),
    Column("subject", Text, nullable=False),
    # May contain a link, so a mail is deleted once it is sent, and its text once it is abandoned.
    Column("body", Text),
    Column("created_at", UtcTime, nullable=False),
    # Time of the next attempt. A process that sends the mail moves it into the future. Null: abandoned.
    Column("due_at", UtcTime),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("last_error", Text),
    partial_index("ix_mails_due", "due_at", where="due_at IS NOT NULL"),
)

payment_events = Table(
    "payment_events",
    metadata,
    Column("provider_event_id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id"), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("currency", Text),
    # The payment that this event refunds, wholly or in part.
    Column("refund_of", Text),
    # The account was already deleted: nothing was credited.
    Column("is_refused", Boolean, nullable=False, server_default=false()),
    Column("created_at", UtcTime, nullable=False),
    partial_index("ix_payment_events_refund_of", "refund_of", where="refund_of IS NOT NULL"),
)
