"""Tenants and users. Each user has one tenant, whose shard never changes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from comfyrelay.domain.credentials import email_problem, normalize_email
from comfyrelay.domain.ids import new_id
from comfyrelay.domain.records.accounts import SESSION, OwnLimits, TenantRecord, User
from comfyrelay.errors import Conflict, InvalidInput, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import account_links, api_tokens, tenants
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import ledger
from comfyrelay.store.tenant.library import media

log = structlog.get_logger(__name__)

CACHE_SECONDS = 5.0
MAX_CACHED = 20_000


class Tenancy:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        # Limits and expiry by tenant.
        self._limits: dict[str, tuple[OwnLimits, float]] = {}

    async def create_user(
        self,
        *,
        email: str,
        name: str | None = None,
        shard: str | None = None,
        password_hash: str | None = None,
        is_admin: bool = False,
        is_verified: bool = False,
        first: Callable[[Tx], Awaitable[None]] | None = None,
    ) -> User:
        """Create a user with a tenant, in the given shard or in the shard with the fewest tenants. `first` runs in the
        same transaction. `is_verified` means that the user has opened a link that was mailed to the address."""
        if (problem := email_problem(email)) is not None:
            raise InvalidInput(errors={"email": problem})
        if shard is not None and shard not in self._databases.shards:
            known = ", ".join(self._databases.shards)
            raise InvalidInput(errors={"shard": f"There is no shard {shard!r}. Shards: {known}."})

        async def work(tx: Tx) -> User:
            if first is not None:
                await first(tx)
            counts = await tenants.count_by_shard(tx)
            chosen = shard or min(self._databases.shards, key=lambda name: counts.get(name, 0))
            tenant = TenantRecord(id=new_id(), name=name or email, shard=chosen)
            return await tenants.create(
                tx,
                tenant,
                id=new_id(),
                email=normalize_email(email),
                name=name or email,
                password_hash=password_hash,
                is_admin=is_admin,
                email_verified_at=await tx.now() if is_verified else None,
            )

        user = await self._databases.central.run(TransactionStep.TENANT, work)
        database = await self._databases.shard_of(user.tenant_id)
        # If the process crashes before this step, the first use of the wallet creates it.
        await database.run(TransactionStep.TENANT, lambda tx: ledger.open_wallets(tx, [user.tenant_id]))
        return user

    async def set_limits(self, tenant_id: str, limits: Mapping[str, int | None]) -> None:
        """Set `max_wait_seconds`, after which the tenant's jobs may move to Comfy Cloud (`None`: never), or fields of
        `OwnLimits`."""
        found = await self._databases.central.run(
            TransactionStep.TENANT, lambda tx: tenants.change(tx, tenant_id, **limits)
        )
        if not found:
            raise NotFound(f"There is no tenant {tenant_id!r}.")
        self._limits.pop(tenant_id, None)

    async def own_limits(self, tenant_id: str) -> OwnLimits:
        """Return the tenant's own limits, which are cached for a few seconds."""
        now = asyncio.get_running_loop().time()
        limits, until = self._limits.get(tenant_id, (OwnLimits(), 0.0))
        if until <= now:
            async with self._databases.central.read() as tx:
                limits = await tenants.own_limits(tx, tenant_id)
            if len(self._limits) >= MAX_CACHED:
                self._limits.clear()
            self._limits[tenant_id] = (limits, now + CACHE_SECONDS)
        return limits

    async def change_user(
        self,
        user_id: str,
        *,
        is_admin: bool | None = None,
        is_disabled: bool | None = None,
        name: str | None = None,
        by: User,
    ) -> User:
        """Change a user. Disabling ends all sessions and password links, and suspends API tokens, which enabling makes
        valid again. Raises `Conflict` for the last administrator."""

        async def work(tx: Tx) -> User:
            if is_admin is False or is_disabled:
                admins = await tenants.lock_admins(tx)
                if admins == {user_id}:
                    raise Conflict("This is the only administrator. Create another one first.")
            user = await tenants.change_user(tx, user_id, is_admin=is_admin, is_disabled=is_disabled, name=name)
            if user is None:
                raise NotFound("There is no such user.")
            if is_disabled:
                await api_tokens.revoke_all(tx, user_id, name=SESSION)
                await account_links.invalidate_links(tx, user_id)
            if is_disabled or is_admin is False:
                # Otherwise a former administrator could take over the account of another administrator.
                await account_links.invalidate_links_by(tx, user_id)
            return user

        user = await self._databases.central.run(TransactionStep.TENANT, work)
        log.info("account.changed", user_id=user_id, is_admin=is_admin, is_disabled=is_disabled, by=by.id)
        return user

    async def find_user(self, email: str) -> User | None:
        async with self._databases.central.read() as tx:
            found = await tenants.password_hash(tx, normalize_email(email))
        return found[0] if found else None

    async def add_file(
        self,
        user: User,
        *,
        path: str,
        mime_type: str,
        size: int | None = None,
        disk: str = "objects",
        content_hash: str | None = None,
        original_filename: str | None = None,
    ) -> str:
        """Record a file that is already in object storage, and return its id."""
        file_id = new_id()
        values = {
            "id": file_id,
            "tenant_id": user.tenant_id,
            "user_id": user.id,
            "disk": disk,
            "path": path,
            "mime_type": mime_type,
            "size": size,
            "content_hash": content_hash,
            "original_filename": original_filename,
        }
        database = await self._databases.shard_of(user.tenant_id)
        await database.run(TransactionStep.TENANT, lambda tx: media.create_files(tx, [values]))
        return file_id

    async def add_video(self, user: User, *, original_file_id: str, title: str | None = None) -> str:
        video_id = new_id()
        values = {
            "id": video_id,
            "tenant_id": user.tenant_id,
            "user_id": user.id,
            "title": title,
            "original_file_id": original_file_id,
        }

        async def work(tx: Tx) -> None:
            if not await media.stored_files(tx, user.tenant_id, [original_file_id]):
                raise InvalidInput(errors={"original_file_id": "You have no such file."})
            await media.create_video(tx, **values)

        await (await self._databases.shard_of(user.tenant_id)).run(TransactionStep.TENANT, work)
        return video_id
