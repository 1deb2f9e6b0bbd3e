"""The ledger settles each job once, and the schemas refuse inconsistent rows."""

import asyncio
from typing import Any

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError

from comfyrelay.domain.ids import new_id
from comfyrelay.domain.queue.states import TransactionType
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import InsufficientTokens, InvalidInput, NotFound
from comfyrelay.services.accounts import ledger as accounts
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.tenant import ledger
from tests.support.world import World, execute

UNIQUE_VIOLATIONS = (IntegrityError, asyncpg.UniqueViolationError)


async def shard_of(world: World, user: User) -> Database:
    return await world.engine.databases.shard_of(user.tenant_id)


async def has_balance(world: World, user: User, balance: int) -> bool:
    """Return whether the wallet and the sum of its transactions equal `balance`."""
    transactions = await world.engine.accounts.ledger.transactions(user.tenant_id)
    return await world.balance(user) == balance == sum(transaction.amount for transaction in transactions)


async def reserve(world: World, user: User, job_id: str, amount: int) -> None:
    """Reserve tokens as a submission does."""
    database = await shard_of(world, user)

    async def work(tx: Tx) -> None:
        balance = await ledger.lock_wallet(tx, user.tenant_id)
        await accounts.reserve(tx, user.tenant_id, balance, {job_id: amount})

    await database.run("reserve", work)


async def settle(world: World, user: User, job_id: str, kind: TransactionType, amount: int) -> bool:
    """Settle as the end of a job does; return whether the call had an effect."""
    entry = ledger.NewTransaction(tenant_id=user.tenant_id, type=kind, amount=amount, job_id=job_id)

    async def work(tx: Tx) -> int:
        await ledger.lock_wallets(tx, [user.tenant_id])
        return await ledger.append(tx, [entry])

    return bool(await (await shard_of(world, user)).run("settle", work))


async def consume(world: World, user: User, job_id: str) -> bool:
    return await settle(world, user, job_id, TransactionType.JOB_CONSUME, 0)


async def refund(world: World, user: User, job_id: str, amount: int = 10) -> bool:
    return await settle(world, user, job_id, TransactionType.JOB_REFUND, amount)


# credit


async def test_credit_counts_once_per_tenant_and_reference(world: World) -> None:
    user, other = await world.user(tokens=0, shard="a"), await world.user(tokens=0, shard="a")
    credit = world.engine.accounts.ledger.credit
    assert [await credit(user.tenant_id, 30, reference="one") for _ in range(3)] == [30, 30, 30]
    assert await credit(user.tenant_id, 12, reference="two") == 42
    assert await credit(other.tenant_id, 30, reference="one") == 30
    assert await has_balance(world, user, 42)
    assert await has_balance(world, other, 30)


async def test_concurrent_credits_of_one_reference_count_once(world: World) -> None:
    user = await world.user(tokens=0)
    await asyncio.gather(*(world.engine.accounts.ledger.credit(user.tenant_id, 30, reference="one") for _ in range(8)))
    assert await has_balance(world, user, 30)


async def test_invalid_credit_is_refused(world: World) -> None:
    user = await world.user(tokens=5)
    for amount in (0, -1):
        with pytest.raises(InvalidInput) as refused:
            await world.engine.accounts.ledger.credit(user.tenant_id, amount, reference="one")
        assert "amount" in refused.value.errors
    assert await has_balance(world, user, 5)
    with pytest.raises(NotFound):
        await world.engine.accounts.ledger.credit("unknown", 1, reference="one")


# reserve, consume, refund


async def test_tokens_of_a_job_are_reserved_once(world: World) -> None:
    user = await world.user(tokens=100)
    await reserve(world, user, "job", 10)
    for _ in range(2):
        with pytest.raises(UNIQUE_VIOLATIONS):
            await reserve(world, user, "job", 10)
    assert await has_balance(world, user, 90)


async def test_reservation_above_the_balance_is_refused(world: World) -> None:
    user = await world.user(tokens=9)
    with pytest.raises(InsufficientTokens) as refused:
        await reserve(world, user, "job", 10)
    assert (refused.value.required_tokens, refused.value.balance) == (10, 9)
    assert await has_balance(world, user, 9)


async def test_consume_is_final(world: World) -> None:
    user = await world.user(tokens=100)
    await reserve(world, user, "job", 10)
    assert await consume(world, user, "job")
    assert not await consume(world, user, "job")
    assert not await refund(world, user, "job")
    assert await has_balance(world, user, 90)


async def test_refund_is_final(world: World) -> None:
    user = await world.user(tokens=100)
    await reserve(world, user, "job", 10)
    assert await refund(world, user, "job")
    assert not await refund(world, user, "job")
    assert await has_balance(world, user, 100)
    assert not await consume(world, user, "job")
    with pytest.raises(UNIQUE_VIOLATIONS):
        await reserve(world, user, "job", 10)
    assert await has_balance(world, user, 100)


async def test_concurrent_consume_and_refund_settle_once(world: World) -> None:
    user = await world.user(tokens=200)
    for number in range(10):
        job = f"job-{number}"
        await reserve(world, user, job, 10)
        before = await world.balance(user)
        consumed, refunded = await asyncio.gather(consume(world, user, job), refund(world, user, job))
        assert consumed != refunded
        assert await has_balance(world, user, before + 10 * refunded)


async def test_two_reservations_never_both_spend_the_last_tokens(world: World) -> None:
    user = await world.user(tokens=0)
    for number in range(10):
        await world.engine.accounts.ledger.credit(user.tenant_id, 10, reference=f"round {number}")
        answers = await asyncio.gather(
            *(reserve(world, user, f"job-{number}-{n}", 10) for n in range(2)), return_exceptions=True
        )
        assert [type(answer) for answer in answers if answer is not None] == [InsufficientTokens]
        assert await has_balance(world, user, 0)


async def test_two_submissions_never_both_spend_the_last_tokens(world: World) -> None:
    desk = await world.desk(tokens=0)
    for number in range(4):
        await world.engine.accounts.ledger.credit(desk.user.tenant_id, 10, reference=f"round {number}")
        answers = await asyncio.gather(desk.submit(), desk.submit(), return_exceptions=True)
        assert [type(answer) for answer in answers if isinstance(answer, Exception)] == [InsufficientTokens]
        assert await has_balance(world, desk.user, 0)


async def test_balance_is_the_sum_of_the_transactions_at_every_step_of_a_job(world: World) -> None:
    desk = await world.desk(tokens=100)
    await desk.submit()
    assert await has_balance(world, desk.user, 90)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.requeue(leased)
    assert await has_balance(world, desk.user, 90)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.complete(leased)
    assert await has_balance(world, desk.user, 90)
    _, failing = await desk.submit_and_lease()
    assert await has_balance(world, desk.user, 80)
    await world.fail(failing)
    assert await has_balance(world, desk.user, 90)


# constraints of the tenant schema


async def add_transaction(world: World, user: User, type_: str, amount: int, job_id: str | None = "job") -> None:
    await execute(
        await shard_of(world, user),
        "INSERT INTO token_transactions (tenant_id, type, amount, job_id, created_at)"
        " VALUES (:tenant, :type, :amount, :job, relay_now(0))",
        tenant=user.tenant_id,
        type=type_,
        amount=amount,
        job=job_id,
    )


async def check_refused(database: Database, *statements: str, match: str | None = None) -> None:
    for statement in statements:
        with pytest.raises(DBAPIError, match=match) as refused:
            await execute(database, statement)
        assert match or isinstance(refused.value, IntegrityError), statement


async def test_schema_refuses_a_negative_balance(world: World) -> None:
    user = await world.user(tokens=5)
    await check_refused(await shard_of(world, user), "UPDATE token_wallets SET balance = -1")
    assert await has_balance(world, user, 5)


async def test_schema_refuses_a_second_reservation_or_settlement_of_a_job(world: World) -> None:
    user = await world.user()
    kinds = [("JOB_RESERVE", -1), ("JOB_CONSUME", 0), ("JOB_REFUND", 1)]
    for type_, amount in kinds:
        await add_transaction(world, user, type_, amount, type_)
        with pytest.raises(IntegrityError):
            await add_transaction(world, user, type_, amount, type_)
    with pytest.raises(IntegrityError):
        await add_transaction(world, user, "JOB_REFUND", 1, "JOB_CONSUME")


async def test_schema_refuses_an_invalid_transaction(world: World) -> None:
    user = await world.user()
    invalid: list[tuple[str, int, str | None]] = [
        ("GIFT", 5, None),
        ("PAYMENT_CREDIT", 0, None),
        ("PAYMENT_CREDIT", -5, None),
        ("JOB_RESERVE", 5, "job"),
        ("JOB_CONSUME", -5, "job"),
        ("JOB_REFUND", -5, "job"),
        ("JOB_RESERVE", -5, None),
    ]
    for type_, amount, job_id in invalid:
        with pytest.raises(IntegrityError):
            await add_transaction(world, user, type_, amount, job_id)


async def test_transactions_and_events_are_append_only(world: World) -> None:
    desk = await world.desk(tokens=15)
    job = await desk.submit()
    await check_refused(
        await shard_of(world, desk.user),
        "UPDATE token_transactions SET amount = 1000000",
        "DELETE FROM token_transactions",
        "UPDATE job_events SET type = 'job:completed'",
        match="append-only",
    )
    assert await has_balance(world, desk.user, 5)
    assert await world.events(job) == ["job:queued"]


async def test_tenant_schema_refuses_an_inconsistent_job_or_video(world: World) -> None:
    desk = await world.desk()
    jobs = [await desk.submit(), await desk.submit()]
    video_id = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=await desk.file())
    await check_refused(
        await shard_of(world, desk.user),
        "UPDATE ai_jobs SET status = 'running'",
        "UPDATE ai_jobs SET status = 'completed'",
        "UPDATE ai_jobs SET completed_at = relay_now(0)",
        "UPDATE ai_jobs SET reserved_tokens = -1",
        "UPDATE ai_jobs SET workflow_id = NULL",
        "UPDATE ai_jobs SET idempotency_key = 'same'",
        "UPDATE ai_jobs SET input_file_id = 'no file'",
        "UPDATE videos SET status = 'paused'",
    )
    assert [(await world.job(job)).status for job in jobs] == ["queued", "queued"]
    assert (await world.video(desk.user, video_id)).status == "uploaded"


# constraints of the central schema


async def test_central_schema_refuses_an_inconsistent_queued_dispatch(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit()
    before = await world.dispatch(job)
    await check_refused(
        world.engine.databases.central,
        "UPDATE ai_job_dispatches SET status = 'processing'",
        "UPDATE ai_job_dispatches SET workflow_id = NULL",
        "UPDATE ai_job_dispatches SET workflow_id = 404",
        "UPDATE ai_job_dispatches SET provider = 'elsewhere'",
        "UPDATE ai_job_dispatches SET stage = 'test'",
        "UPDATE ai_job_dispatches SET attempts = -1",
        "UPDATE ai_job_dispatches SET status = 'leased'",
        "UPDATE ai_job_dispatches SET lease_token = 'token'",
        "UPDATE ai_job_dispatches SET lease_expires_at = relay_now(60)",
        "UPDATE ai_job_dispatches SET worker_id = 'worker'",
        "UPDATE ai_job_dispatches SET cancel_requested_at = relay_now(0)",
        "UPDATE ai_job_dispatches SET pause_requested_at = relay_now(0)",
        "UPDATE ai_job_dispatches SET pause_mode = 'later'",
        "UPDATE ai_job_dispatches SET status = 'completed'",
        "UPDATE ai_job_dispatches SET finished_at = relay_now(0)",
    )
    assert await world.dispatch(job) == before


async def test_central_schema_refuses_an_incomplete_lease(world: World) -> None:
    desk = await world.desk()
    job, _ = await desk.submit_and_lease()
    before = await world.dispatch(job)
    await check_refused(
        world.engine.databases.central,
        "UPDATE ai_job_dispatches SET status = 'queued'",
        "UPDATE ai_job_dispatches SET status = 'completed', finished_at = relay_now(0)",
        "UPDATE ai_job_dispatches SET lease_token = NULL",
        "UPDATE ai_job_dispatches SET lease_expires_at = NULL",
        "UPDATE ai_job_dispatches SET worker_id = NULL",
        "UPDATE ai_job_dispatches SET leased_at = NULL",
    )
    assert await world.dispatch(job) == before


async def add_dispatch(world: World, **values: Any) -> None:
    names = ", ".join(values)
    await execute(
        world.engine.databases.central,
        f"INSERT INTO ai_job_dispatches ({names}, available_at, created_at)"
        f" VALUES ({', '.join(f':{name}' for name in values)}, relay_now(0), relay_now(0))",
        **values,
    )


async def test_central_schema_refuses_a_second_dispatch_for_one_job(world: World) -> None:
    workflow = await world.workflow()
    values = {
        "workflow_id": workflow.id,
        "rank": 1,
        "max_attempts": 3,
        "stage": "production",
        "provider": "self_hosted",
        "tenant_id": "tenant",
        "tenant_job_id": new_id(),
        "shard": "a",
        "workflow_hash": "hash",
    }
    await add_dispatch(world, **values)
    with pytest.raises(IntegrityError):
        await add_dispatch(world, **values)
    assert await world.count() == 1


async def test_central_schema_keeps_a_workflow_with_jobs(world: World) -> None:
    desk = await world.desk()
    await desk.submit()
    await execute(world.engine.databases.central, "DELETE FROM effects")
    with pytest.raises(IntegrityError):
        await execute(world.engine.databases.central, "DELETE FROM workflows")


async def test_tenant_schema_refuses_a_second_batch_with_the_same_key(world: World) -> None:
    user = await world.user(tokens=0)
    database = await shard_of(world, user)

    async def add_batch() -> None:
        await execute(
            database,
            "INSERT INTO batches (id, tenant_id, user_id, idempotency_key, request_digest, created_at)"
            " VALUES (:id, :tenant, 'user', 'same', 'digest', relay_now(0))",
            id=new_id(),
            tenant=user.tenant_id,
        )

    await add_batch()
    with pytest.raises(IntegrityError):
        await add_batch()
