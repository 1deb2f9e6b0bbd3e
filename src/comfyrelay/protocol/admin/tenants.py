"""The admin API: tenants, their users and wallets."""

from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import Field

from comfyrelay.protocol.admin.fields import Patch
from comfyrelay.protocol.base import AnswerBody, Request, example
from comfyrelay.protocol.fields import Email, Line, MaxWait, Whole

Text = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
Tokens = Annotated[Whole, Field(ge=1, le=1_000_000_000_000)]


class Tenant(AnswerBody):
    """`balance` is null while the tenant's shard cannot be reached."""

    id: str
    shard: str
    user_id: str
    email: str
    name: str
    is_admin: bool
    balance: int | None
    max_wait_seconds: int | None = None
    max_active_jobs: int | None = None
    is_disabled: bool = False
    created_at: datetime


class TenantUser(AnswerBody):
    """`last_sign_in_at` is the last sign-in with a browser; `api_tokens` is the number of valid tokens."""

    id: str
    email: str
    name: str
    is_admin: bool
    is_disabled: bool
    has_password: bool
    last_sign_in_at: datetime | None
    api_tokens: int
    created_at: datetime


class TenantLimits(AnswerBody):
    """Null means the default: jobs wait as long as it takes, and `usual_active_jobs` may be active."""

    max_wait_seconds: int | None
    max_active_jobs: int | None
    usual_active_jobs: int


class TenantDetails(AnswerBody):
    """`balance` and `active_jobs` are null while the tenant's shard cannot be reached."""

    id: str
    shard: str
    name: str
    balance: int | None
    active_jobs: int | None
    users: list[TenantUser]
    limits: TenantLimits
    created_at: datetime


class TenantPatch(Patch):
    """`max_wait_seconds` is how long the tenant's jobs may wait before they may run where it costs more; null: as long
    as it takes. `max_active_jobs` limits the user's active jobs; null: the default."""

    model_config = example(max_wait_seconds=300, max_active_jobs=20)

    may_be_null: ClassVar[frozenset[str]] = frozenset({"max_wait_seconds", "max_active_jobs"})

    max_wait_seconds: MaxWait | None = None
    max_active_jobs: Annotated[Whole, Field(ge=0, le=1_000_000)] | None = None


class ChangedTenant(AnswerBody):
    id: str
    max_wait_seconds: int | None
    max_active_jobs: int | None = None


class TenantTransaction(AnswerBody):
    id: int
    type: str
    amount: int
    job_id: str | None
    reference: str | None
    description: str | None
    created_at: datetime


class NewCredits(Request):
    """The same `reference` is credited once, however often it is sent."""

    model_config = example(amount=500, reference="invoice-2026-001", description="Thank you")

    amount: Tokens
    # references of payments have a prefix with a colon, so that a manual credit cannot use up one of them
    reference: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00:][^\x00:]*$")]
    description: Text | None = None


class Credited(AnswerBody):
    tenant_id: str
    reference: str
    amount: int
    balance: int


class NewUser(Request):
    """An account without a password. Its user sets one with the link in the response."""

    model_config = example(email="ada@example.com", name="Ada")

    email: Email
    name: Line | None = None
    is_admin: bool = False


class UserPatch(Patch):
    """All sessions and tokens of a disabled user end. The last administrator cannot be removed."""

    model_config = example(is_disabled=True)

    name: Line | None = None
    is_admin: bool | None = None
    is_disabled: bool | None = None


class ResetLink(AnswerBody):
    """Sets a new password, once. It is shown only once."""

    user_id: str
    email: str
    url: str
    expires_at: datetime
