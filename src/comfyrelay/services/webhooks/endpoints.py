"""A tenant's webhook and its deliveries."""

from collections.abc import Sequence
from dataclasses import dataclass

from comfyrelay.domain.deliveries import DeliveryStatus
from comfyrelay.domain.records.webhooks import DeliveryRecord, TenantWebhook
from comfyrelay.domain.webhooks import new_secret, url_problem
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import ResultPage, make_page
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import deliveries, jobs
from comfyrelay.text import is_storable


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedWebhook:
    """A webhook after a change. `secret` is set only the first time and after a rotation."""

    webhook: TenantWebhook
    secret: str | None


class Endpoints:
    def __init__(self, databases: Databases, *, allow_private: bool) -> None:
        self._databases = databases
        self._allow_private = allow_private

    async def get(self, tenant_id: str) -> TenantWebhook | None:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await deliveries.webhook(tx, tenant_id)

    async def set_webhook(self, tenant_id: str, *, url: str | None, rotate_secret: bool = False) -> ChangedWebhook:
        """Set the default URL of jobs, and create or rotate the secret."""
        if url is not None and not is_storable(url):
            raise InvalidInput(errors={"url": "This contains a character that cannot be stored."})
        if url is not None and (problem := url_problem(url, allow_private=self._allow_private)) is not None:
            raise InvalidInput(errors={"url": problem})
        created = new_secret()

        async def work(tx: Tx) -> ChangedWebhook:
            before = await deliveries.ensure_secret(tx, tenant_id, created)
            secret = created if rotate_secret else before.secret
            shown = secret if secret != before.secret or not before.is_secret_shown else None
            after = await deliveries.set_webhook(tx, tenant_id, url=url, secret=secret, is_secret_shown=True)
            assert after is not None
            return ChangedWebhook(webhook=after, secret=shown)

        return await (await self._databases.shard_of(tenant_id)).run(TransactionStep.TENANT, work)

    async def remove_webhook(self, tenant_id: str) -> None:
        """Remove the default URL. The secret is kept for jobs with their own URL."""
        shard = await self._databases.shard_of(tenant_id)
        await shard.run(TransactionStep.TENANT, lambda tx: deliveries.set_webhook(tx, tenant_id, url=None))

    async def list_deliveries(self, tenant_id: str, job_id: str) -> Sequence[DeliveryRecord]:
        """Return the deliveries of a job, at most one."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            if await jobs.get(tx, tenant_id, job_id) is None:
                raise NotFound("You have no such job.")
            return await deliveries.of_job(tx, tenant_id, job_id)

    async def page(
        self, tenant_id: str, *, status: DeliveryStatus | None = None, before_id: str | None = None, limit: int
    ) -> ResultPage[DeliveryRecord]:
        """Return the deliveries of all jobs, newest first."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await deliveries.page(tx, tenant_id, status=status, before_id=before_id, limit=limit + 1)
        return make_page(found, limit=limit)
