"""One-time links that set a password, and the setup code for the first administrator."""

import base64
import secrets
from dataclasses import dataclass
from datetime import datetime

import structlog

from comfyrelay.domain.queue.states import LinkKind
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import Conflict, Forbidden, NotFound
from comfyrelay.services.accounts.sign_in import DISABLED, SignIn, hash_secret
from comfyrelay.services.accounts.tenancy import Tenancy
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import account_links, api_tokens, tenants
from comfyrelay.store.database import Tx

log = structlog.get_logger(__name__)

RESET_SECONDS = 24 * 3600.0
SETUP_SECONDS = 24 * 3600.0
# A code has 100 bits in base32, whose letters are hard to confuse.
CODE_BYTES = 15
CODE_LENGTH = 20
GROUP_LENGTH = 5
EXPIRED = "This link was already used or has expired. Ask your administrator for a new one."
WRONG_CODE = (
    "This is not the code that the server printed at its start, or it has expired. "
    "`comfyrelay admin setup-code` prints a new one."
)
ALREADY_SET_UP = "This server is already set up. Sign in instead."


@dataclass(frozen=True, kw_only=True, slots=True)
class NewLink:
    """A link with its secret, which is shown only once."""

    secret: str
    expires_at: datetime


class AccountLinks:
    def __init__(self, databases: Databases, tenancy: Tenancy, sign_in: SignIn) -> None:
        self._databases = databases
        self._tenancy = tenancy
        self._sign_in = sign_in

    async def invite(
        self, *, email: str, name: str | None = None, is_admin: bool = False, by: User
    ) -> tuple[User, NewLink]:
        """Create an account without a password, and a link to set one."""
        user = await self._tenancy.create_user(email=email, name=name, is_admin=is_admin)
        log.info("account.created", user_id=user.id, is_admin=is_admin, by=by.id)
        return await self.create_reset_link(user.id, by=by)

    async def create_reset_link(self, user_id: str, *, by: User) -> tuple[User, NewLink]:
        """Create a one-time link to set a new password. Earlier links stop working."""
        secret = secrets.token_urlsafe(32)

        async def work(tx: Tx) -> tuple[User, datetime]:
            user = await tenants.user(tx, user_id)
            if user is None:
                raise NotFound("There is no such user.")
            await account_links.invalidate_links(tx, user_id)
            expires_at = await account_links.create(
                tx,
                token_hash=hash_secret(secret),
                kind=LinkKind.RESET,
                lifetime_seconds=RESET_SECONDS,
                user_id=user_id,
                created_by=by.id,
            )
            return user, expires_at

        user, expires_at = await self._databases.central.run(TransactionStep.TENANT, work)
        log.info("account.reset_link_created", user_id=user_id, by=by.id)
        return user, NewLink(secret=secret, expires_at=expires_at)

    async def find_user(self, secret: str) -> User:
        """Return the user of a valid link."""
        async with self._databases.central.read() as tx:
            user = await account_links.user_of(tx, hash_secret(secret))
            if user is None:
                raise NotFound(EXPIRED)
            if await tenants.is_disabled(tx, user.id):
                raise Forbidden(DISABLED)
        return user

    async def reset_password(self, secret: str, password: str) -> User:
        """Set a new password, and end all sessions, API tokens and other links: the old password may have been stolen,
        and tokens created with it."""
        # Check the link first, because hashing is expensive.
        email = (await self.find_user(secret)).email
        hashed = await self._sign_in.hash_password(password, email=email)

        async def work(tx: Tx) -> User:
            user_id = await account_links.use(tx, hash_secret(secret))
            user = await tenants.user(tx, user_id) if user_id is not None else None
            if user is None:
                raise NotFound(EXPIRED)
            await tenants.set_password(tx, user.id, hashed)
            await api_tokens.revoke_all(tx, user.id)
            await account_links.invalidate_links(tx, user.id)
            return user

        user = await self._databases.central.run(TransactionStep.TENANT, work)
        log.info("account.password_set", user_id=user.id)
        return user

    async def create_setup_code(self) -> str:
        """Create a code for the setup of the first administrator, in groups that are easy to type."""
        code = base64.b32encode(secrets.token_bytes(CODE_BYTES)).decode()[:CODE_LENGTH]
        await self._databases.central.run(
            TransactionStep.TENANT,
            lambda tx: account_links.create(
                tx, token_hash=hash_secret(code), kind=LinkKind.SETUP, lifetime_seconds=SETUP_SECONDS
            ),
        )
        return "-".join(code[start : start + GROUP_LENGTH] for start in range(0, CODE_LENGTH, GROUP_LENGTH))

    async def create_first_admin(self, code: str, *, email: str, password: str, name: str | None = None) -> User:
        """Create the first administrator, with the setup code. Raises `Conflict` if an administrator exists."""
        given = hash_secret("".join(filter(str.isalnum, code.upper())))
        await self._check_setup(given)
        hashed = await self._sign_in.hash_password(password, email=email)

        async def first(tx: Tx) -> None:
            valid = await account_links.use_setup_codes(tx)
            # Checked before the code: the second of two users with the right code did not mistype it.
            if await tenants.has_admin(tx):
                raise Conflict(ALREADY_SET_UP)
            if given not in valid:
                raise Forbidden(WRONG_CODE)

        user = await self._tenancy.create_user(email=email, name=name, password_hash=hashed, is_admin=True, first=first)
        log.info("account.first_admin_created", user_id=user.id)
        return user

    async def _check_setup(self, given: str) -> None:
        """Check the code before the password is hashed, which is expensive."""
        async with self._databases.central.read() as tx:
            if await tenants.has_admin(tx):
                raise Conflict(ALREADY_SET_UP)
            if not await account_links.is_setup_code(tx, given):
                raise Forbidden(WRONG_CODE)
