"""Accounts: passwords, and the tokens that stand for a user. Neither is kept, only their hashes."""

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from comfyrelay.domain.ids import new_id
from comfyrelay.domain.records.accounts import SESSION, TokenRecord, User
from comfyrelay.errors import Forbidden, InvalidInput, NotFound, Unauthorized
from comfyrelay.services.accounts import passwords
from comfyrelay.services.accounts.tenancy import Tenancy
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import api_tokens, tenants
from comfyrelay.store.database import Tx

__all__ = ["SESSION", "SignIn", "TokenWithSecret", "hash_of"]

SHORTEST_PASSWORD = 8
LONGEST_PASSWORD = 1024
TOKEN_PREFIX = "crt_"
WRONG = "The email or the password is wrong."
DISABLED = "This account is disabled. Ask your administrator."


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenWithSecret:
    """A token in the clear: shown once."""

    token: TokenRecord
    secret: str


class SignIn:
    def __init__(self, databases: Databases, tenancy: Tenancy) -> None:
        self._databases = databases
        self._tenancy = tenancy

    async def register(self, *, email: str, password: str, name: str | None = None, is_admin: bool = False) -> User:
        hashed = await self.hashed(password)
        return await self._tenancy.create_user(email=email, name=name, password_hash=hashed, is_admin=is_admin)

    async def hashed(self, password: str) -> str:
        """A new password as it is kept."""
        if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
            raise InvalidInput(errors={"password": f"This must have at least {SHORTEST_PASSWORD} characters."})
        # hashing is made to be slow: not in the event loop
        return await asyncio.to_thread(passwords.HASHER.hash, password)

    async def sign_in(self, *, email: str, password: str) -> tuple[User, str]:
        """Whose password it is, and its hash."""
        async with self._databases.central.read() as tx:
            found = await tenants.password_hash(tx, email.lower())
        user, hashed = found or (None, None)
        is_right = await asyncio.to_thread(self._verify, password[:LONGEST_PASSWORD], hashed)
        if user is None or hashed is None or not is_right:
            raise Unauthorized(WRONG)
        async with self._databases.central.read() as tx:
            # only who knows the password is told
            if await tenants.is_disabled(tx, user.id):
                raise Forbidden(DISABLED)
        return user, hashed

    async def needs_setup(self) -> bool:
        """Whether nobody is an administrator yet."""
        async with self._databases.central.read() as tx:
            return not await tenants.has_admin(tx)

    async def issue(
        self, user: User, *, name: str, lifetime_seconds: float | None = None, password_hash: str | None = None
    ) -> TokenWithSecret:
        """Make a token for a user; for one who has shown a password, given by its hash, only while that is still it:
        what ends all sessions ends also the one that was just about to begin."""
        secret = TOKEN_PREFIX + secrets.token_urlsafe(32)

        async def work(tx: Tx) -> TokenRecord:
            if password_hash is not None and not await tenants.lock_password(tx, user.id, password_hash):
                raise Unauthorized(WRONG)
            return await api_tokens.create(
                tx,
                id_=new_id(),
                user_id=user.id,
                name=name,
                token_hash=hash_of(secret),
                lifetime_seconds=lifetime_seconds,
            )

        token = await self._databases.central.run(TransactionStep.TENANT, work)
        return TokenWithSecret(token=token, secret=secret)

    async def owner(self, secret: str) -> User | None:
        async with self._databases.central.read() as tx:
            return await api_tokens.owner(tx, hash_of(secret))

    async def name_of(self, secret: str) -> str | None:
        """What a token or a session is called."""
        async with self._databases.central.read() as tx:
            return await api_tokens.name_of(tx, hash_of(secret))

    async def id_of(self, secret: str) -> str | None:
        """Which of the tokens and sessions this is."""
        async with self._databases.central.read() as tx:
            return await api_tokens.id_of(tx, hash_of(secret))

    async def tokens_of(self, user: User, *, before_id: str | None = None, limit: int = 200) -> Sequence[TokenRecord]:
        """Those that still work, newest first, page by page through `before_id`."""
        async with self._databases.central.read() as tx:
            return await api_tokens.of_user(tx, user.id, before_id=before_id, limit=limit)

    async def revoke(self, user: User, token_id: str) -> None:
        work = self._databases.central.run(
            TransactionStep.TENANT, lambda tx: api_tokens.revoke(tx, user.id, id_=token_id)
        )
        if not await work:
            raise NotFound("You have no such token.")

    async def sign_out(self, user: User, secret: str) -> None:
        await self._databases.central.run(
            TransactionStep.TENANT, lambda tx: api_tokens.revoke(tx, user.id, token_hash=hash_of(secret))
        )

    def _verify(self, password: str, hashed: str | None) -> bool:
        if hashed is not None:
            return passwords.HASHER.verify(password, hashed)
        # as slow as for a user who is there, so that the time taken does not tell
        passwords.HASHER.hash(password)
        return False


def hash_of(secret: str) -> str:
    """How a token is kept. It is random throughout, so a fast hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()
