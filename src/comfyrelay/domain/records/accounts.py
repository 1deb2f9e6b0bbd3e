"""Records of tenants, users, API tokens and wallet transactions."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

# Reserved token name of browser sessions.
SESSION = "session"


class TokenScope(StrEnum):
    """The only API that accepts a token."""

    COMFYUI = "comfyui"


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantRecord:
    id: str
    name: str
    shard: str


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    id: str
    tenant_id: str
    email: str
    name: str
    is_admin: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkRecord:
    """A single-use link. `email` is the address that it was mailed to."""

    kind: str
    user_id: str | None
    email: str | None
    name: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnLimits:
    """The limits and the permission that an administrator has set for a tenant. `None` means the server's limit."""

    max_active_jobs: int | None = None
    max_stored_bytes: int | None = None
    max_stored_files: int | None = None
    # Whether it may add and run workflows of its own.
    may_add_workflows: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedTenant:
    """A tenant and its user."""

    id: str
    shard: str
    max_wait_seconds: int | None
    max_active_jobs: int | None
    max_stored_bytes: int | None
    max_stored_files: int | None
    may_add_workflows: bool
    created_at: datetime
    user_id: str
    email: str
    name: str
    is_admin: bool
    disabled_at: datetime | None

    @property
    def is_disabled(self) -> bool:
        return self.disabled_at is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedUser:
    """A user in the administrators' list. `last_sign_in_at` counts browser sessions only."""

    id: str
    tenant_id: str
    email: str
    name: str
    is_admin: bool
    created_at: datetime
    disabled_at: datetime | None
    email_verified_at: datetime | None
    has_password: bool
    last_sign_in_at: datetime | None
    api_tokens: int

    @property
    def is_verified(self) -> bool:
        return self.email_verified_at is not None

    @property
    def is_disabled(self) -> bool:
        return self.disabled_at is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRecord:
    id: str
    user_id: str
    name: str
    created_at: datetime
    expires_at: datetime | None
    scope: TokenScope | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionRecord:
    id: int
    tenant_id: str
    type: str
    amount: int
    job_id: str | None
    reference: str | None
    description: str | None
    created_at: datetime
    # Set only in lists, and only while the job exists.
    job_label: str | None = None
    # Of a consumed job.
    effect_id: int | None = None
