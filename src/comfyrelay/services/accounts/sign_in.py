"""Sign in with a password, and manage the tokens of users. Only hashes are stored."""

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from comfyrelay.domain.credentials import MAX_PASSWORD_LENGTH, normalize_email, password_problem
from comfyrelay.domain.ids import new_id
from comfyrelay.domain.records.accounts import SESSION, TokenRecord, TokenScope, User
from comfyrelay.errors import Conflict, Forbidden, InvalidInput, NotFound, Unauthorized
from comfyrelay.services.accounts import passwords
from comfyrelay.services.accounts.tenancy import Tenancy
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import api_tokens, tenants
from comfyrelay.store.database import Tx

__all__ = ["SESSION", "Credentials", "SignIn", "TokenWithSecret", "check_token_limit", "hash_secret"]

TOKEN_PREFIX = "crt_"
MAX_TOKENS = 500
WRONG = "The email or the password is wrong."
DISABLED = "This account is disabled. Ask your administrator."


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenWithSecret:
    """A token with its secret, which is shown only once."""

    token: TokenRecord
    secret: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """A user with the password hash, and the database time at which both were read."""

    user: User
    password_hash: str | None
    read_at: datetime


class SignIn:
    def __init__(self, databases: Databases, tenancy: Tenancy) -> None:
        self._databases = databases
        self._tenancy = tenancy

    async def register(self, *, email: str, password: str, name: str | None = None, is_admin: bool = False) -> User:
        hashed = await self.hash_password(password, email=email)
        return await self._tenancy.create_user(email=email, name=name, password_hash=hashed, is_admin=is_admin)

    async def hash_password(self, password: str, *, email: str, field: str = "password") -> str:
        """Check the strength of a new password, and hash it."""
        if (problem := password_problem(password, email=email)) is not None:
            raise InvalidInput(problem, errors={field: problem})
        # In a thread, because hashing is slow by design.
        return await asyncio.to_thread(passwords.HASHER.hash, password)

    async def sign_in(self, *, email: str, password: str) -> tuple[User, str]:
        """Return the user and the hash of the password."""
        found = await self.find_credentials(email)
        user, hashed = (found.user, found.password_hash) if found is not None else (None, None)
        is_right = await asyncio.to_thread(self._verify, password[:MAX_PASSWORD_LENGTH], hashed)
        if user is None or hashed is None or not is_right:
            raise Unauthorized(WRONG)
        async with self._databases.central.read() as tx:
            # Checked last, so that only users who know the password learn that the account is disabled.
            if await tenants.is_disabled(tx, user.id):
                raise Forbidden(DISABLED)
        return user, hashed

    async def find_credentials(self, email: str) -> Credentials | None:
        async with self._databases.central.read() as tx:
            found = await tenants.password_hash(tx, normalize_email(email))
            return Credentials(user=found[0], password_hash=found[1], read_at=await tx.now()) if found else None

    async def needs_setup(self) -> bool:
        """Whether there is no administrator yet."""
        async with self._databases.central.read() as tx:
            return not await tenants.has_admin(tx)

    async def issue(
        self,
        user: User,
        *,
        name: str,
        lifetime_seconds: float | None = None,
        password_hash: str | None = None,
        scope: TokenScope | None = None,
    ) -> TokenWithSecret:
        """Create a token for a user. If `password_hash` is given, it must still be current, so that no session starts
        with the old password after a password change."""
        secret = TOKEN_PREFIX + secrets.token_urlsafe(32)

        async def work(tx: Tx) -> TokenRecord:
            if password_hash is not None and not await tenants.lock_password(tx, user.id, password_hash):
                raise Unauthorized(WRONG)
            return await api_tokens.create(
                tx,
                id_=new_id(),
                user_id=user.id,
                name=name,
                token_hash=hash_secret(secret),
                lifetime_seconds=lifetime_seconds,
                scope=scope,
            )

        token = await self._databases.central.run(TransactionStep.TENANT, work)
        return TokenWithSecret(token=token, secret=secret)

    async def create_token(
        self, user: User, *, name: str, lifetime_seconds: float | None = None, scope: TokenScope | None = None
    ) -> TokenWithSecret:
        """Create a token for a program. Raises `Conflict` if the user has too many."""
        async with self._databases.central.read() as tx:
            await check_token_limit(tx, user)
        return await self.issue(user, name=name, lifetime_seconds=lifetime_seconds, scope=scope)

    async def find_owner(self, secret: str, *, scope: TokenScope | None = None) -> User | None:
        """Return the user of a token that is valid for every API or for the API of `scope`."""
        async with self._databases.central.read() as tx:
            return await api_tokens.owner(tx, hash_secret(secret), scope=scope)

    async def token_name(self, secret: str) -> str | None:
        async with self._databases.central.read() as tx:
            return await api_tokens.name_of(tx, hash_secret(secret))

    async def token_id(self, secret: str) -> str | None:
        async with self._databases.central.read() as tx:
            return await api_tokens.id_of(tx, hash_secret(secret))

    async def list_tokens(self, user: User, *, before_id: str | None = None, limit: int = 200) -> Sequence[TokenRecord]:
        """Return the valid tokens of a user, newest first."""
        async with self._databases.central.read() as tx:
            return await api_tokens.of_user(tx, user.id, before_id=before_id, limit=limit)

    async def revoke(self, user: User, token_id: str) -> None:
        is_revoked = await self._databases.central.run(
            TransactionStep.TENANT, lambda tx: api_tokens.revoke(tx, user.id, id_=token_id)
        )
        if not is_revoked:
            raise NotFound("You have no such token.")

    async def revoke_all(self, user: User) -> None:
        await self._databases.central.run(TransactionStep.TENANT, lambda tx: api_tokens.revoke_all(tx, user.id))

    async def sign_out(self, user: User, secret: str) -> None:
        await self._databases.central.run(
            TransactionStep.TENANT, lambda tx: api_tokens.revoke(tx, user.id, token_hash=hash_secret(secret))
        )

    def _verify(self, password: str, hashed: str | None) -> bool:
        if hashed is not None:
            return passwords.HASHER.verify(password, hashed)
        # Hash anyway, so that the timing does not reveal whether the user exists.
        passwords.HASHER.hash(password)
        return False


async def check_token_limit(tx: Tx, user: User) -> None:
    """Raise `Conflict` if the user may not create another token."""
    if await api_tokens.count_except(tx, user.id, name=SESSION) >= MAX_TOKENS:
        raise Conflict(f"You have {MAX_TOKENS} tokens, which is the limit. Revoke one that you no longer use.")


def hash_secret(secret: str) -> str:
    """Hash a token or code with a fast hash, which is enough for random secrets."""
    return hashlib.sha256(secret.encode()).hexdigest()
