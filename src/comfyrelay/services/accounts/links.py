"""One-time links that set a password or create an account, and the setup code for the first administrator."""

import base64
import secrets
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

import structlog

from comfyrelay.domain.queue.states import LinkKind
from comfyrelay.domain.records.accounts import LinkRecord, User
from comfyrelay.errors import Conflict, Forbidden, NotFound
from comfyrelay.services.accounts.mail_texts import invitation_mail, reset_mail
from comfyrelay.services.accounts.mailer import Mailer
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
# Links that set a password.
PASSWORD_LINKS = (LinkKind.RESET, LinkKind.SIGN_UP)
EXPIRED = "This link was already used or has expired. Ask your administrator for a new one."
EXPIRED_MAIL = "This link was already used or has expired. Ask for a new one on the page where you asked for this one."
WRONG_CODE = (
    "This is not the code that the server printed at its start, or it has expired. "
    "`comfyrelay admin setup-code` prints a new one."
)
ALREADY_SET_UP = "This server is already set up. Sign in instead."


@dataclass(frozen=True, kw_only=True, slots=True)
class NewLink:
    """A link with its secret, which is shown only once. `is_mailed` means that another link was mailed to the user."""

    secret: str
    expires_at: datetime
    is_mailed: bool


def query_to(page: str | None) -> str:
    """Return the query that makes the web app open this page after signing in."""
    return "" if page is None else f"?{urlencode({'to': page})}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkedAccount:
    """The account that a link is for. A link that creates an account has no user yet."""

    email: str
    user: User | None


class AccountLinks:
    def __init__(
        self, databases: Databases, tenancy: Tenancy, sign_in: SignIn, mailer: Mailer, *, base_url: str
    ) -> None:
        self._databases = databases
        self._tenancy = tenancy
        self._sign_in = sign_in
        self._mailer = mailer
        self._base_url = base_url

    def password_url(self, secret: str, *, to: str | None = None) -> str:
        # Browsers do not send the part after `#`, so no log contains the secret.
        return f"{self._base_url}/reset{query_to(to)}#{secret}"

    async def invite(
        self, *, email: str, name: str | None = None, is_admin: bool = False, by: User | None = None
    ) -> tuple[User, NewLink]:
        """Create an account without a password, and a link to set one. `by` is `None` for a command."""
        user = await self._tenancy.create_user(email=email, name=name, is_admin=is_admin)
        log.info("account.created", user_id=user.id, is_admin=is_admin, by=by and by.id)
        return await self.create_reset_link(user.id, by=by, is_invitation=True)

    async def create_reset_link(
        self, user_id: str, *, by: User | None, is_invitation: bool = False
    ) -> tuple[User, NewLink]:
        """Create a one-time link to set a new password, and mail another one to the user, which also verifies the
        address. Earlier links stop working."""
        secret, mailed = secrets.token_urlsafe(32), secrets.token_urlsafe(32)

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
                created_by=None if by is None else by.id,
            )
            if self._mailer.is_enabled:
                await account_links.create(
                    tx,
                    token_hash=hash_secret(mailed),
                    kind=LinkKind.RESET,
                    lifetime_seconds=RESET_SECONDS,
                    user_id=user_id,
                    created_by=None if by is None else by.id,
                    email=user.email,
                )
                url, studio = self.password_url(mailed), self._mailer.studio
                invited_by = "An administrator" if by is None else by.name
                invitation = invitation_mail(url, studio=studio, invited_by=invited_by)
                await self._mailer.add(tx, user.email, invitation if is_invitation else reset_mail(url, studio=studio))
            return user, expires_at

        user, expires_at = await self._databases.central.run(TransactionStep.TENANT, work)
        self._mailer.wakeup.notify()
        log.info("account.reset_link_created", user_id=user_id, by=by and by.id)
        return user, NewLink(secret=secret, expires_at=expires_at, is_mailed=self._mailer.is_enabled)

    async def find_account(self, secret: str) -> LinkedAccount:
        """Return the account of a valid link."""
        async with self._databases.central.read() as tx:
            link = await account_links.find(tx, hash_secret(secret), PASSWORD_LINKS)
            if link is not None and link.kind == LinkKind.SIGN_UP and link.email is not None:
                return LinkedAccount(email=link.email, user=None)
            user = await _require_user(tx, link)
            if await tenants.is_disabled(tx, user.id):
                raise Forbidden(DISABLED)
        return LinkedAccount(email=user.email, user=user)

    async def set_password(self, secret: str, password: str) -> User:
        """Create the account of a link, or set a new password. A new password ends all sessions, API tokens and other
        links: the old password may have been stolen and used to create tokens."""
        # Check the link before hashing, which is expensive.
        account = await self.find_account(secret)
        hashed = await self._sign_in.hash_password(password, email=account.email)
        if account.user is None:
            return await self._create_account(secret, account.email, hashed)

        async def work(tx: Tx) -> User:
            link = await account_links.use(tx, hash_secret(secret), [LinkKind.RESET])
            user = await _require_user(tx, link)
            await tenants.set_password(tx, user.id, hashed)
            if link is not None and link.email == user.email:
                await tenants.set_email(tx, user.id, user.email, is_verified=True)
            await api_tokens.revoke_all(tx, user.id)
            await account_links.invalidate_links(tx, user.id)
            return user

        user = await self._databases.central.run(TransactionStep.TENANT, work)
        log.info("account.password_set", user_id=user.id)
        return user

    async def _create_account(self, secret: str, email: str, password_hash: str) -> User:
        async with self._databases.central.read() as tx:
            link = await account_links.find(tx, hash_secret(secret), [LinkKind.SIGN_UP])

        async def first(tx: Tx) -> None:
            if await account_links.use(tx, hash_secret(secret), [LinkKind.SIGN_UP]) is None:
                raise NotFound(EXPIRED_MAIL)

        try:
            user = await self._tenancy.create_user(
                email=email,
                name=None if link is None else link.name,
                password_hash=password_hash,
                is_verified=True,
                first=first,
            )
        except Conflict:
            # An administrator has created the account in the meantime, or the address was confirmed twice at the same
            # time.
            raise NotFound(EXPIRED_MAIL) from None
        log.info("account.created", user_id=user.id, is_admin=False)
        return user

    async def create_setup_code(self) -> str:
        """Create a code for setting up the first administrator, in groups of characters that are easy to type."""
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
            # Checked before the code: a second user with the right code should not be told that the code is wrong.
            if await tenants.has_admin(tx):
                raise Conflict(ALREADY_SET_UP)
            if given not in valid:
                raise Forbidden(WRONG_CODE)

        user = await self._tenancy.create_user(email=email, name=name, password_hash=hashed, is_admin=True, first=first)
        log.info("account.first_admin_created", user_id=user.id)
        return user

    async def _check_setup(self, given: str) -> None:
        """Check the code before hashing the password, which is expensive."""
        async with self._databases.central.read() as tx:
            if await tenants.has_admin(tx):
                raise Conflict(ALREADY_SET_UP)
            if not await account_links.is_setup_code(tx, given):
                raise Forbidden(WRONG_CODE)


async def _require_user(tx: Tx, link: LinkRecord | None) -> User:
    user = await tenants.user(tx, link.user_id) if link is not None and link.user_id is not None else None
    if user is None:
        raise NotFound(EXPIRED)
    return user
