"""Tokens: credited, reserved, consumed, refunded. The wallet is locked while its balance changes."""

from comfyrelay.domain.records.accounts import Transaction
from comfyrelay.domain.states import TransactionType
from comfyrelay.errors import IdempotencyConflict, InsufficientTokens, InvalidInput, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.steps import Step
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import jobs, ledger
from comfyrelay.store.tenant.ledger import Entry


class Ledger:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def credit(self, tenant_id: str, amount: int, *, reference: str, description: str | None = None) -> int:
        """Add bought tokens, once per reference; returns the balance. The same reference is always the same amount."""
        if amount <= 0:
            raise InvalidInput(errors={"amount": "This must be at least 1."})

        async def work(tx: Tx) -> int:
            balance = await ledger.lock_wallet(tx, tenant_id)
            known = await ledger.by_reference(tx, tenant_id, reference)
            if known is not None:
                if known.amount != amount:
                    raise IdempotencyConflict(f"This reference was used before, for {known.amount} tokens.")
                return balance
            entry = Entry(
                tenant_id=tenant_id,
                type=TransactionType.PAYMENT_CREDIT,
                amount=amount,
                reference=reference,
                description=description,
            )
            await ledger.append(tx, [entry])
            return await ledger.balance(tx, tenant_id)

        return await (await self._databases.pool_of(tenant_id)).run(Step.LEDGER, work)

    async def reserve(self, tenant_id: str, job_id: str, amount: int) -> None:
        async def work(tx: Tx) -> None:
            await ledger.lock_wallet(tx, tenant_id)
            if TransactionType.JOB_RESERVE not in await _of_job(tx, tenant_id, job_id):
                await reserve(tx, tenant_id, {job_id: amount})

        await (await self._databases.pool_of(tenant_id)).run(Step.LEDGER, work)

    async def consume(self, tenant_id: str, job_id: str) -> bool:
        """Mark a reservation as spent; false if the job was settled before."""
        return await self._settle(tenant_id, job_id, TransactionType.JOB_CONSUME)

    async def refund(self, tenant_id: str, job_id: str) -> bool:
        """Give a reservation back; false if the job was settled before."""
        return await self._settle(tenant_id, job_id, TransactionType.JOB_REFUND)

    async def balance(self, tenant_id: str) -> int:
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            return await ledger.balance(tx, tenant_id)

    async def transactions(self, tenant_id: str, *, limit: int = 100) -> list[Transaction]:
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            return await ledger.transactions(tx, tenant_id, limit=limit)

    async def statement(
        self, tenant_id: str, *, limit: int, before_id: int | None = None
    ) -> tuple[int, list[Transaction]]:
        """The balance, and a page of what it came from, newest first."""
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            balance = await ledger.balance(tx, tenant_id)
            return balance, await ledger.transactions(tx, tenant_id, limit=limit, before_id=before_id)

    async def _settle(self, tenant_id: str, job_id: str, type_: TransactionType) -> bool:
        async def work(tx: Tx) -> bool:
            await ledger.lock_wallet(tx, tenant_id)
            held = -(await _of_job(tx, tenant_id, job_id)).get(TransactionType.JOB_RESERVE, 0)
            if await jobs.get(tx, tenant_id, job_id) is None and held == 0:
                raise NotFound(f"There is no job {job_id!r}.")
            amount = held if type_ is TransactionType.JOB_REFUND else 0
            entry = Entry(tenant_id=tenant_id, type=type_, amount=amount, job_id=job_id)
            return bool(await ledger.append(tx, [entry]))

        return await (await self._databases.pool_of(tenant_id)).run(Step.LEDGER, work)


async def _of_job(tx: Tx, tenant_id: str, job_id: str) -> dict[str, int]:
    found = (await ledger.of_jobs(tx, [job_id])).get(job_id, [])
    return {each.type: each.amount for each in found if each.tenant_id == tenant_id}


async def reserve(tx: Tx, tenant_id: str, costs: dict[str, int]) -> None:
    """Hold tokens for jobs, all or none, under the wallet's lock."""
    balance = await ledger.lock_wallet(tx, tenant_id)
    required = sum(costs.values())
    if balance < required:
        raise InsufficientTokens(required_tokens=required, balance=balance)
    entries = [
        Entry(tenant_id=tenant_id, type=TransactionType.JOB_RESERVE, amount=-cost, job_id=job_id)
        for job_id, cost in costs.items()
    ]
    await ledger.append(tx, entries)
