"""Payments are signed, recent, credited once, and credited to the named tenant."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import payments
from comfyrelay.store.database import Boundary
from tests.support.api import Api, data_of, open_api, problem_of
from tests.support.world import Crash, PostgresBackend, SqliteBackend

SECRET = "secret-of-the-payment-provider"
PATH = "/api/webhooks/payments"


@pytest.fixture
async def shop(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[Api]:
    """A server that accepts payments, with two users."""
    async with open_api(backend, tmp_path, payment_webhook_secret=SECRET) as api:
        await api.engine.accounts.tenancy.create_user(email="ada@example.com")
        await api.engine.accounts.tenancy.create_user(email="other@example.com")
        yield api


def event(**fields: Any) -> dict[str, Any]:
    return {"event_id": "evt_1", "type": "payment.succeeded", "email": "ada@example.com", "amount": 100, **fields}


def signature(body: bytes, at: float, *, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), f"{int(at)}.".encode() + body, hashlib.sha256).hexdigest()


async def report(
    api: Api, what: dict[str, Any] | bytes, *, late_seconds: float = 0, header: str | None = None
) -> httpx.Response:
    body = what if isinstance(what, bytes) else json.dumps(what).encode()
    at = api.clock.now.timestamp() - late_seconds
    signed = header if header is not None else f"t={int(at)},v1={signature(body, at)}"
    return await api.anonymous.http.post(PATH, content=body, headers={b"X-Signature": signed.encode("latin-1")})


async def tenant_of(api: Api, email: str = "ada@example.com") -> str:
    async with api.engine.databases.central.read() as tx:
        found = await payments.tenant_of(tx, tenant_id=None, email=email)
    assert found is not None
    return found


async def balance(api: Api, email: str = "ada@example.com") -> int:
    return await api.engine.accounts.ledger.balance(await tenant_of(api, email))


async def test_payment_is_credited_to_the_user_it_names(shop: Api) -> None:
    answer = await report(shop, event(description="100 tokens", currency="EUR"))
    assert data_of(answer) == {"event_id": "evt_1", "status": "credited"}
    [credit] = await shop.engine.accounts.ledger.transactions(await tenant_of(shop))
    assert await balance(shop) == 100
    assert (credit.type, credit.amount, credit.reference) == ("PAYMENT_CREDIT", 100, "payment:evt_1")
    assert credit.description == "100 tokens"


async def test_tenant_can_be_named_by_its_id(shop: Api) -> None:
    data_of(await report(shop, event(email=None, tenant_id=await tenant_of(shop))))
    assert await balance(shop) == 100
    assert await balance(shop, "other@example.com") == 0


async def test_payments_are_listed_by_day(shop: Api) -> None:
    admin = await shop.user("root@example.com", is_admin=True)
    first = shop.clock.now
    for day in range(3):
        await shop.clock.set(first + timedelta(days=day))
        await report(shop, event(event_id=f"evt_{day}"))
    days = [(first + timedelta(days=day)).date().isoformat() for day in range(3)]

    async def listed(**query: str) -> list[str]:
        return [item["event_id"] for item in (await admin.get("/api/admin/payments", params=query))["items"]]

    assert await listed() == ["evt_2", "evt_1", "evt_0"]
    assert await listed(**{"from": days[1], "to": days[1]}) == ["evt_1"]
    assert await listed(to=days[1]) == ["evt_1", "evt_0"]


async def test_repeated_event_is_credited_once(shop: Api) -> None:
    for _ in range(3):
        assert (await report(shop, event())).status_code == 200
    at_once = await asyncio.gather(*(report(shop, event(event_id="evt_2")) for _ in range(5)))
    assert [answer.status_code for answer in at_once] == [200] * 5
    assert await balance(shop) == 200


async def test_same_event_with_another_amount_or_tenant_is_a_conflict(shop: Api) -> None:
    await report(shop, event())
    problem_of(await report(shop, event(amount=200)), 409)
    problem_of(await report(shop, event(email="other@example.com")), 409)
    assert await balance(shop) == 100
    assert await balance(shop, "other@example.com") == 0


NO_SIGNATURES = (
    "",
    "v1=00",
    "t=1767268800",
    "t=now,v1=00",
    "t=1767268800,t=1767268801,v1=00",
    "t=1767268800,v1=" + "0" * 64,
    "t=1767268800,v1=é",
    "t=²,v1=00",
    "nonsense",
)


async def test_invalid_signature_is_refused(shop: Api) -> None:
    for header in NO_SIGNATURES:
        problem_of(await report(shop, event(), header=header), 401)
    assert await balance(shop) == 0


async def test_signature_covers_the_body_and_the_time(shop: Api) -> None:
    at = shop.clock.now.timestamp()
    good = signature(json.dumps(event()).encode(), at)
    problem_of(await report(shop, event(amount=101), header=f"t={int(at)},v1={good}"), 401)
    problem_of(await report(shop, event(), header=f"t={int(at) + 1},v1={good}"), 401)
    wrong = signature(json.dumps(event()).encode(), at, secret="another secret")
    problem_of(await report(shop, event(), header=f"t={int(at)},v1={wrong}"), 401)


async def test_any_valid_signature_is_enough(shop: Api) -> None:
    body, at = json.dumps(event()).encode(), shop.clock.now.timestamp()
    old = signature(body, at, secret="the secret before")
    answer = await report(shop, event(), header=f"t={int(at)},v0=x,v1={old},v1={signature(body, at)}")
    assert answer.status_code == 200


async def test_age_of_a_message_is_checked_by_the_databases_clock(shop: Api) -> None:
    answers = [await report(shop, event(), late_seconds=late) for late in (299, 301, -299, -301)]
    assert [answer.status_code for answer in answers] == [200, 401, 200, 401]


INVALID_FIELDS: tuple[dict[str, Any], ...] = (
    {"amount": 0},
    {"amount": -5},
    {"amount": 1.5},
    {"amount": "100"},
    {"amount": True},
    {"amount": 10**30},
    {"email": None},
    {"tenant_id": "both"},
    {"event_id": ""},
    {"event_id": "evt\x00"},
)


async def test_invalid_payment_is_refused(shop: Api) -> None:
    for fields in INVALID_FIELDS:
        assert problem_of(await report(shop, event(**fields)), 422)["errors"]
    for body in (b"", b"[]", b"{", b"null", b'{"type": "payment.succeeded"}'):
        problem_of(await report(shop, body), 422)
    assert await balance(shop) == 0


async def test_payment_to_an_unknown_tenant_is_404(shop: Api) -> None:
    problem_of(await report(shop, event(email="nobody@example.com")), 404)
    problem_of(await report(shop, event(email=None, tenant_id="nobody")), 404)
    # the event is still unused
    await shop.engine.accounts.tenancy.create_user(email="nobody@example.com")
    assert (await report(shop, event(email="nobody@example.com"))).status_code == 200


async def test_payment_for_a_deleted_account_is_listed_and_not_credited(shop: Api) -> None:
    admin = await shop.user("root@example.com", is_admin=True)
    user = await shop.user("leaving@example.com")
    tenant_id = await tenant_of(shop, "leaving@example.com")
    data_of(await report(shop, event(event_id="evt_0", email=None, tenant_id=tenant_id)))
    await shop.engine.accounts.own_account.delete_by_admin((await user.get("/api/me"))["id"])
    late = event(email=None, tenant_id=tenant_id)
    for _ in range(2):
        problem = problem_of(await report(shop, late), 409)
        assert problem["detail"].startswith("The account of this tenant was deleted, so nothing was credited.")
    assert await shop.engine.accounts.ledger.balance(tenant_id) == 100
    # The first payment was credited before, and stays so.
    data_of(await report(shop, event(event_id="evt_0", email=None, tenant_id=tenant_id)))

    async def listed() -> dict[str, tuple[bool, int]]:
        page = await admin.get("/api/admin/payments")
        return {item["event_id"]: (item["is_refused"], item["refunded"]) for item in page["items"]}

    assert await listed() == {"evt_1": (True, 0), "evt_0": (False, 0)}
    # The provider returns the money: no tokens are taken back or owed.
    data_of(await report(shop, {"event_id": "ref_1", "type": "payment.refunded", "payment_id": "evt_1"}))
    assert await listed() == {"evt_1": (True, 100), "evt_0": (False, 0)}
    ledger = shop.engine.accounts.ledger
    assert (await ledger.balance(tenant_id), await ledger.owed(tenant_id)) == (100, 0)


async def test_other_events_are_acknowledged_and_ignored(shop: Api) -> None:
    answer = await report(shop, {"event_id": "evt_9", "type": "customer.created", "customer": {"id": 1}})
    assert data_of(answer) == {"event_id": "evt_9", "status": "ignored"}
    assert await balance(shop) == 0


async def test_oversized_message_is_refused(shop: Api) -> None:
    problem_of(await report(shop, b"x" * 70_000), 413)


async def test_endpoint_is_disabled_without_a_secret(api: Api) -> None:
    problem_of(await report(api, event()), 404)


@pytest.mark.parametrize("boundary", Boundary)
@pytest.mark.parametrize("step", [TransactionStep.PAYMENT, TransactionStep.LEDGER])
async def test_repeated_event_completes_a_payment_after_a_crash(
    shop: Api, step: TransactionStep, boundary: Boundary
) -> None:
    async def die(at: str, where: Boundary) -> None:
        if (at, where) == (step, boundary):
            raise Crash

    databases = (shop.engine.databases.central, *shop.engine.databases.shards.values())
    for database in databases:
        database.crash = die
    with pytest.raises(Crash):
        await report(shop, event())
    for database in databases:
        database.crash = None
    assert (await report(shop, event())).status_code == 200
    assert await balance(shop) == 100
