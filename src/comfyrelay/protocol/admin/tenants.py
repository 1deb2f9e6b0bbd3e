"""The admin API: tenants with their users and wallets."""

from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import Field

from comfyrelay.protocol.admin.fields import Patch
from comfyrelay.protocol.base import AnswerBody, Request, example
from comfyrelay.protocol.fields import MAX_ID, STORABLE, Email, Line, MaxWait, StrictInt

Text = Annotated[str, Field(max_length=1000, pattern=STORABLE)]
Tokens = Annotated[StrictInt, Field(ge=1, le=1_000_000_000_000)]


class Tenant(AnswerBody):
    """A tenant with its user. `balance` is null while the database of the tenant is unreachable."""

    id: str
    shard: str
    user_id: str
    email: str
    name: str
    is_admin: bool
    balance: int | None
    max_wait_seconds: int | None = None
    max_active_jobs: int | None = None
    max_stored_bytes: int | None = None
    max_stored_files: int | None = None
    may_add_workflows: bool = False
    is_disabled: bool = False
    created_at: datetime


class TenantUser(AnswerBody):
    """A user. `is_verified`: the user has opened a link that was mailed to the address. `last_sign_in_at` is the last
    sign-in with a browser, `api_tokens` the number of valid API tokens."""

    id: str
    email: str
    name: str
    is_admin: bool
    is_disabled: bool
    is_verified: bool
    has_password: bool
    last_sign_in_at: datetime | None
    api_tokens: int
    created_at: datetime


class TenantLimits(AnswerBody):
    """The limits of a tenant. Null means the default: jobs never move to Comfy Cloud because they wait too long, at
    most `usual_active_jobs` jobs may be active, and uploads are limited to `usual_stored_files` files and
    `usual_stored_bytes` bytes (null: no limit).

    `may_add_workflows` permits the tenant to add its own workflows, at the price that the server sets for them. If
    `everyone_may_add_workflows`, no permission is needed.
    """

    max_wait_seconds: int | None
    max_active_jobs: int | None
    max_stored_bytes: int | None
    max_stored_files: int | None
    may_add_workflows: bool
    usual_active_jobs: int
    usual_stored_bytes: int | None
    usual_stored_files: int | None
    everyone_may_add_workflows: bool


class TenantDetails(AnswerBody):
    """A tenant with its users and limits. While the database of the tenant is unreachable, `balance`, `active_jobs`,
    `stored_bytes` and `stored_files` are null."""

    id: str
    shard: str
    name: str
    balance: int | None
    active_jobs: int | None
    stored_bytes: int | None
    stored_files: int | None
    users: list[TenantUser]
    limits: TenantLimits
    created_at: datetime


class TenantPatch(Patch):
    """New limits of a tenant, and whether it may add workflows of its own. Null restores the default of a limit."""

    model_config = example(max_wait_seconds=300, max_active_jobs=20)

    may_be_null: ClassVar[frozenset[str]] = frozenset(
        {"max_wait_seconds", "max_active_jobs", "max_stored_bytes", "max_stored_files"}
    )

    max_wait_seconds: MaxWait | None = None
    max_active_jobs: Annotated[StrictInt, Field(ge=0, le=1_000_000)] | None = None
    max_stored_bytes: Annotated[StrictInt, Field(ge=0, le=MAX_ID)] | None = None
    max_stored_files: Annotated[StrictInt, Field(ge=0, le=1_000_000_000)] | None = None
    may_add_workflows: bool | None = None


class ChangedTenant(AnswerBody):
    id: str
    max_wait_seconds: int | None
    max_active_jobs: int | None = None
    max_stored_bytes: int | None = None
    max_stored_files: int | None = None
    may_add_workflows: bool = False


class TenantTransaction(AnswerBody):
    id: int
    type: str
    amount: int
    job_id: str | None
    reference: str | None
    description: str | None
    created_at: datetime


class NewCredits(Request):
    """Tokens to credit. Each `reference` is credited once, even if it is sent again."""

    model_config = example(amount=500, reference="invoice-2026-001", description="Thank you")

    amount: Tokens
    # No colon: references of payments start with a prefix and a colon, and a manual credit must not use up such a
    # reference.
    reference: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00:][^\x00:]*$")]
    description: Text | None = None


class NewDebit(NewCredits):
    """Tokens to take back. Each `reference` counts once, even if it is sent again."""

    model_config = example(amount=100, reference="correction-2026-001", description="Credited twice")


class ReceivedPayment(AnswerBody):
    """A payment that the payment provider has reported. `amount` and `refunded` are tokens. With `is_refused`, nothing
    was credited, because the account had been deleted."""

    event_id: str
    tenant_id: str
    email: str | None
    amount: int
    refunded: int
    currency: str | None
    is_refused: bool
    created_at: datetime


class Credited(AnswerBody):
    tenant_id: str
    reference: str
    amount: int
    balance: int


class NewUser(Request):
    """A new account without a password. The user sets a password with the link in the response."""

    model_config = example(email="ada@example.com", name="Ada")

    email: Email
    name: Line | None = None
    is_admin: bool = False


class UserPatch(Patch):
    """Changes to a user. Disabling a user ends all sessions and suspends the API tokens. The last administrator cannot
    be disabled or demoted."""

    model_config = example(is_disabled=True)

    name: Line | None = None
    is_admin: bool | None = None
    is_disabled: bool | None = None


class ResetLink(AnswerBody):
    """A link to set a new password. It works once, and is sent only once. `is_mailed`: the user also received a link by
    mail."""

    user_id: str
    email: str
    url: str
    expires_at: datetime
    is_mailed: bool


class DeletedUser(AnswerBody):
    id: str
    tenant_id: str
