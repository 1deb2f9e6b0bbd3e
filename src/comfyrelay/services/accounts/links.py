"""What opens an account once: links that set a password, and the code that makes the first administrator."""

import base64
import secrets
from dataclasses import dataclass
from datetime import datetime

import structlog

from comfyrelay.domain.queue.states import LinkKind
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import Conflict, Forbidden, NotFound
from comfyrelay.services.accounts.sign_in import DISABLED, SESSION, SignIn, hash_of
from comfyrelay.services.accounts.tenancy import Tenancy
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import account_links, api_tokens, tenants
from comfyrelay.store.database import Tx

log = structlog.get_logger(__name__)

RESET_SECONDS = 24 * 3600.0
SETUP_SECONDS = 24 * 3600.0
# 100 bits, in letters that are told apart when they are typed
CODE_BYTES = 15
CODE_LENGTH = 20
GROUP = 5
GONE = "This link was used before, or has expired. Ask your administrator for another."
WRONG_CODE = (
    "This is not the code that the server printed when it was started, or it has expired. "
    "`comfyrelay admin setup-code` prints another."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class NewLink:
    """A link in the clear: shown once."""

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
        """An account without a password, and the link that sets one."""
        user = await self._tenancy.create_user(email=email, name=name, is_admin=is_admin)
        log.info("account.made", user_id=user.id, is_admin=is_admin, by=by.id)
        return await self.make_reset(user.id, by=by)

    async def make_reset(self, user_id: str, *, by: User) -> tuple[User, NewLink]:
        """A link that sets a new password, once. Those that were made before work no longer."""
        secret = secrets.token_urlsafe(32)

        async def work(tx: Tx) -> tuple[User, datetime]:
            user = await tenants.user(tx, user_id)
            if user is None:
                raise NotFound("There is no such user.")
            await account_links.use_up_of(tx, user_id)
            expires_at = await account_links.create(
                tx,
                token_hash=hash_of(secret),
                kind=LinkKind.RESET,
                lifetime_seconds=RESET_SECONDS,
                user_id=user_id,
            )
            return user, expires_at

        user, expires_at = await self._databases.central.run(TransactionStep.TENANT, work)
        log.info("account.reset_link", user_id=user_id, by=by.id)
        return user, NewLink(secret=secret, expires_at=expires_at)

    async def whose(self, secret: str) -> User:
        """Whose password a link would set."""
        async with self._databases.central.read() as tx:
            user = await account_links.user_of(tx, hash_of(secret))
            if user is None:
                raise NotFound(GONE)
            if await tenants.is_disabled(tx, user.id):
                raise Forbidden(DISABLED)
        return user

    async def reset(self, secret: str, password: str) -> User:
        """Set a new password, once. The sessions of all browsers end."""
        # a link that does not work costs no hashing
        await self.whose(secret)
        hashed = await self._sign_in.hashed(password)

        async def work(tx: Tx) -> User:
            user_id = await account_links.use(tx, hash_of(secret))
            user = await tenants.user(tx, user_id) if user_id is not None else None
            if user is None:
                raise NotFound(GONE)
            await tenants.set_password(tx, user.id, hashed)
            await api_tokens.revoke_all_named(tx, user.id, SESSION)
            return user

        user = await self._databases.central.run(TransactionStep.TENANT, work)
        log.info("account.password_set", user_id=user.id)
        return user

    async def make_setup_code(self) -> str:
        """A code that makes the first administrator, in groups that can be typed."""
        code = base64.b32encode(secrets.token_bytes(CODE_BYTES)).decode()[:CODE_LENGTH]
        await self._databases.central.run(
            TransactionStep.TENANT,
            lambda tx: account_links.create(
                tx, token_hash=hash_of(code), kind=LinkKind.SETUP, lifetime_seconds=SETUP_SECONDS
            ),
        )
        return "-".join(code[start : start + GROUP] for start in range(0, CODE_LENGTH, GROUP))

    async def set_up(self, code: str, *, email: str, password: str, name: str | None = None) -> User:
        """Make the first administrator: nobody becomes one without the code, and nobody once there is one."""
        given = hash_of("".join(each for each in code.upper() if each.isalnum()))
        await self._check_setup(given)
        hashed = await self._sign_in.hashed(password)

        async def first(tx: Tx) -> None:
            works = await account_links.use_up_setup(tx)
            # who is second with the right code has not mistyped it
            if await tenants.has_admin(tx):
                raise Conflict("This server is set up already: sign in.")
            if given not in works:
                raise Forbidden(WRONG_CODE)

        user = await self._tenancy.create_user(email=email, name=name, password_hash=hashed, is_admin=True, first=first)
        log.info("account.set_up", user_id=user.id)
        return user

    async def _check_setup(self, given: str) -> None:
        """Before a password is hashed for somebody who only tries."""
        async with self._databases.central.read() as tx:
            if await tenants.has_admin(tx):
                raise Conflict("This server is set up already: sign in.")
            if not await account_links.is_setup(tx, given):
                raise Forbidden(WRONG_CODE)
