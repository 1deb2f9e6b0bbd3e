"""Credit and reserve tokens. The wallet is locked while its balance changes."""

from typing import NamedTuple

from comfyrelay.domain.queue.states import TERMINAL_JOB, TransactionType
from comfyrelay.domain.records.accounts import TransactionRecord
from comfyrelay.errors import Conflict, IdempotencyConflict, InsufficientTokens, InvalidInput, NotFound
from comfyrelay.pacing import paced
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import changes, jobs, ledger
from comfyrelay.store.tenant.ledger import NewTransaction

OWED = "Taken for a refunded payment whose tokens were already spent."


class JobRefund(NamedTuple):
    amount: int
    # False if the job was refunded before.
    is_new: bool


class Ledger:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def credit(self, tenant_id: str, amount: int, *, reference: str, description: str | None = None) -> int:
        """Credit tokens once per reference, and return the balance. Raises `IdempotencyConflict` if the reference was
        used for a different amount."""
        if amount <= 0:
            raise InvalidInput(errors={"amount": "This must be at least 1."})

        async def work(tx: Tx) -> int:
            wallet = await ledger.lock(tx, tenant_id)
            known = await ledger.by_reference(tx, tenant_id, reference)
            if known is not None:
                if known.amount != amount:
                    raise IdempotencyConflict(f"This reference was already used for {known.amount} tokens.")
                return wallet.balance
            entry = NewTransaction(
                tenant_id=tenant_id,
                type=TransactionType.PAYMENT_CREDIT,
                amount=amount,
                reference=reference,
                description=description,
            )
            await ledger.append(tx, [entry])
            if (due := min(wallet.owed, wallet.balance + amount)) > 0:
                await ledger.append(tx, [_taken(tenant_id, due, description=OWED)])
                await ledger.set_owed(tx, tenant_id, wallet.owed - due)
            await changes.write_credit(tx, tenant_id)
            return await ledger.balance(tx, tenant_id)

        return await (await self._databases.shard_of(tenant_id)).run(TransactionStep.LEDGER, work)

    async def take_back(
        self, tenant_id: str, amount: int, *, reference: str, description: str | None = None, may_owe: bool = False
    ) -> int:
        """Take tokens from a wallet once per reference, and return the balance. If the balance is too low, the tenant
        owes the rest with `may_owe`; otherwise raises `InvalidInput`."""
        if amount <= 0:
            raise InvalidInput(errors={"amount": "This must be at least 1."})

        async def work(tx: Tx) -> int:
            wallet = await ledger.lock(tx, tenant_id)
            known = await ledger.by_reference(tx, tenant_id, reference)
            if known is not None:
                if not may_owe and known.amount != -amount:
                    raise IdempotencyConflict(f"This reference was already used for {known.amount} tokens.")
                return wallet.balance
            taken = min(amount, wallet.balance)
            if taken < amount and not may_owe:
                text = f"The wallet has only {wallet.balance} tokens. Tokens of running jobs are reserved."
                raise InvalidInput(text, errors={"amount": text})
            await ledger.append(tx, [_taken(tenant_id, taken, reference=reference, description=description)])
            if taken < amount:
                await ledger.set_owed(tx, tenant_id, wallet.owed + amount - taken)
            await changes.write_credit(tx, tenant_id)
            return await ledger.balance(tx, tenant_id)

        return await (await self._databases.shard_of(tenant_id)).run(TransactionStep.LEDGER, work)

    async def refund_job(self, tenant_id: str, job_id: str) -> JobRefund:
        """Refund the cost of an ended job, once."""

        async def work(tx: Tx) -> JobRefund:
            await ledger.lock(tx, tenant_id)
            job = await jobs.get(tx, tenant_id, job_id)
            if job is None:
                raise NotFound(f"There is no job {job_id!r}.")
            if job.status not in TERMINAL_JOB:
                raise Conflict(f"Only a job that has ended can be refunded; this one is {job.status}.")
            if not job.charged_tokens:
                raise Conflict("This job did not cost anything.")
            known = (await ledger.of_jobs(tx, [job_id])).get(job_id, [])
            is_new = not any(entry.type == TransactionType.JOB_CREDIT for entry in known)
            if is_new:
                entry = NewTransaction(
                    tenant_id=tenant_id,
                    type=TransactionType.JOB_CREDIT,
                    amount=job.charged_tokens,
                    job_id=job_id,
                    effect_id=job.effect_id,
                )
                await ledger.append(tx, [entry])
                await changes.write_credit(tx, tenant_id)
            return JobRefund(job.charged_tokens, is_new)

        return await (await self._databases.shard_of(tenant_id)).run(TransactionStep.LEDGER, work)

    async def owed(self, tenant_id: str) -> int:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await ledger.owed(tx, tenant_id)

    async def balance(self, tenant_id: str) -> int:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await ledger.balance(tx, tenant_id)

    async def transactions(self, tenant_id: str, *, limit: int = 100) -> list[TransactionRecord]:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await ledger.transactions(tx, tenant_id, limit=limit)

    async def statement(
        self, tenant_id: str, *, limit: int, before_id: int | None = None
    ) -> tuple[int, list[TransactionRecord]]:
        """Return the balance and a page of transactions, newest first."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            balance = await ledger.balance(tx, tenant_id)
            return balance, await ledger.transactions(tx, tenant_id, limit=limit, before_id=before_id)


def _taken(
    tenant_id: str, amount: int, *, reference: str | None = None, description: str | None = None
) -> NewTransaction:
    return NewTransaction(
        tenant_id=tenant_id,
        type=TransactionType.ADJUSTMENT,
        amount=-amount,
        reference=reference,
        description=description,
    )


async def reserve(tx: Tx, tenant_id: str, balance: int, costs: dict[str, int]) -> None:
    """Reserve tokens for all new jobs or none. The caller holds the lock of the wallet; `balance` is its balance."""
    required = sum(costs.values())
    if balance < required:
        raise InsufficientTokens(required_tokens=required, balance=balance)
    entries = [
        NewTransaction(tenant_id=tenant_id, type=TransactionType.JOB_RESERVE, amount=-cost, job_id=job_id)
        async for job_id, cost in paced(costs.items())
    ]
    await ledger.append_new(tx, tenant_id, entries)
