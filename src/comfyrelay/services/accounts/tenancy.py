"""Tenants and users: one tenant per user, each placed in a pool once and for good."""

from comfyrelay.domain.ids import new_id
from comfyrelay.domain.records.accounts import Tenant, User
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.steps import Step
from comfyrelay.store.central import tenants
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import ledger, media


class Tenancy:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def create_user(
        self,
        *,
        email: str,
        name: str | None = None,
        pool: str | None = None,
        password_hash: str | None = None,
        is_admin: bool = False,
    ) -> User:
        """Make a user and its tenant, in the named pool or the emptiest one."""
        if "@" not in email:
            raise InvalidInput(errors={"email": "This must be an email address."})
        if pool is not None and pool not in self._databases.pools:
            known = ", ".join(self._databases.pools)
            raise InvalidInput(errors={"pool": f"There is no tenant pool {pool!r}. Pools: {known}."})

        async def work(tx: Tx) -> User:
            chosen = pool or self._emptiest(await tenants.count_by_pool(tx))
            tenant = Tenant(id=new_id(), name=name or email, db_pool=chosen)
            return await tenants.create(
                tx,
                tenant,
                id=new_id(),
                email=email.lower(),
                name=name or email,
                password_hash=password_hash,
                is_admin=is_admin,
            )

        user = await self._databases.central.run(Step.TENANT, work)
        database = await self._databases.pool_of(user.tenant_id)
        # The wallet is opened again by whoever first needs it, should this step not happen.
        await database.run(Step.TENANT, lambda tx: ledger.open_wallets(tx, [user.tenant_id]))
        return user

    async def set_max_wait(self, tenant_id: str, seconds: int | None) -> None:
        """How long the tenant's jobs may wait before they may cost more; `None`: as long as it takes."""
        found = await self._databases.central.run(Step.TENANT, lambda tx: tenants.set_max_wait(tx, tenant_id, seconds))
        if not found:
            raise NotFound(f"There is no tenant {tenant_id!r}.")

    async def user_of(self, email: str) -> User | None:
        async with self._databases.central.read() as tx:
            found = await tenants.password_hash(tx, email.lower())
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
        """Record a file of the user's that is in object storage; returns its id."""
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
        database = await self._databases.pool_of(user.tenant_id)
        await database.run(Step.TENANT, lambda tx: media.create_files(tx, [values]))
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
                raise InvalidInput(errors={"original_file_id": "There is no such file of yours."})
            await media.create_video(tx, **values)

        await (await self._databases.pool_of(user.tenant_id)).run(Step.TENANT, work)
        return video_id

    def _emptiest(self, counts: dict[str, int]) -> str:
        return min(self._databases.pools, key=lambda pool: counts.get(pool, 0))
