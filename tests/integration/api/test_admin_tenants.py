"""Administrators find tenants, credit them and set how long they wait."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.api import Api, problem_of
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.world import World, shard_down


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    return await open_operator_scenario(api)


class TestSearch:
    async def test_tenants_are_listed_with_email_and_balance(self, desk: OperatorScenario) -> None:
        found = (await desk.get("/tenants"))["items"]
        assert [(tenant["email"], tenant["balance"]) for tenant in found] == [
            ("ada@example.com", 100),
            ("root@example.com", 0),
        ]
        assert found[0]["id"] == desk.user.tenant_id
        assert not any("password" in name for name in found[0])

    async def test_tenants_are_found_by_part_of_the_email(self, desk: OperatorScenario) -> None:
        for email in ("grace@example.org", "a_b@example.org", "acb@example.org"):
            await desk.api.engine.accounts.tenancy.create_user(email=email)
        emails = [tenant["email"] for tenant in (await desk.get("/tenants", search="EXAMPLE.org"))["items"]]
        assert emails == ["acb@example.org", "a_b@example.org", "grace@example.org"]
        assert len((await desk.get("/tenants", search="a_b"))["items"]) == 1
        assert (await desk.get("/tenants", search="%"))["items"] == []

    async def test_tenants_are_paginated(self, desk: OperatorScenario) -> None:
        first = await desk.get("/tenants", limit=1)
        second = await desk.get("/tenants", limit=1, cursor=first["next_cursor"])
        assert [page["items"][0]["email"] for page in (first, second)] == ["ada@example.com", "root@example.com"]
        assert second["next_cursor"] is None

    async def test_unreachable_shard_hides_balances_only(self, desk: OperatorScenario) -> None:
        world: Any = World(engine=desk.api.engine, clock=desk.api.clock, backend="")
        async with shard_down(world, "main"):
            found = (await desk.get("/tenants"))["items"]
            assert [tenant["balance"] for tenant in found] == [None, None]
            credit = {"amount": 5, "reference": "gift"}
            problem_of(await desk.call("POST", f"/tenants/{desk.user.tenant_id}/credits", credit), 503)


class TestCrediting:
    async def test_reference_is_credited_once(self, desk: OperatorScenario) -> None:
        path = f"/tenants/{desk.user.tenant_id}/credits"
        body = {"amount": 40, "reference": "invoice 7", "description": "Thanks"}
        with capture_logs() as lines:
            first = await desk.send("POST", path, body)
        [line] = [line for line in lines if line["event"] == "tenant.credited"]
        assert (line["tenant_id"], line["amount"], line["by"]) == (desk.user.tenant_id, 40, "root@example.com")
        assert first == {
            "tenant_id": desk.user.tenant_id,
            "reference": "invoice 7",
            "amount": 40,
            "balance": 140,
        }
        assert await desk.send("POST", path, body) == first
        newest = (await desk.api.engine.accounts.ledger.transactions(desk.user.tenant_id))[0]
        assert (newest.type, newest.amount, newest.description) == ("PAYMENT_CREDIT", 40, "Thanks")

    async def test_same_reference_with_another_amount_is_refused(self, desk: OperatorScenario) -> None:
        path = f"/tenants/{desk.user.tenant_id}/credits"
        await desk.send("POST", path, {"amount": 40, "reference": "one"})
        problem_of(await desk.call("POST", path, {"amount": 41, "reference": "one"}), 409)
        assert await desk.api.engine.accounts.ledger.balance(desk.user.tenant_id) == 140

    async def test_references_are_unique_per_tenant(self, desk: OperatorScenario) -> None:
        assert desk.admin.user is not None
        for tenant in (desk.user.tenant_id, desk.admin.user.tenant_id):
            await desk.send("POST", f"/tenants/{tenant}/credits", {"amount": 1, "reference": "one"})
        assert await desk.api.engine.accounts.ledger.balance(desk.admin.user.tenant_id) == 1

    async def test_validation_error_names_the_field(self, desk: OperatorScenario) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"amount": 0}, "amount"),
            ({"amount": -5}, "amount"),
            ({"amount": 2**63}, "amount"),
            ({"reference": ""}, "reference"),
            ({"reference": "a\x00"}, "reference"),
        ]
        for wrong, field in cases:
            body = {"amount": 1, "reference": "one", **wrong}
            problem = problem_of(await desk.call("POST", f"/tenants/{desk.user.tenant_id}/credits", body), 422)
            assert list(problem["errors"]) == [field]


class TestWaiting:
    async def test_maximum_wait_is_set_per_tenant(self, desk: OperatorScenario) -> None:
        path = f"/tenants/{desk.user.tenant_id}"
        assert (await desk.send("PATCH", path, {"max_wait_seconds": 300}))["max_wait_seconds"] == 300
        assert [tenant["max_wait_seconds"] for tenant in (await desk.get("/tenants"))["items"]] == [300, None]
        await desk.send("PATCH", path, {"max_wait_seconds": None})
        assert [tenant["max_wait_seconds"] for tenant in (await desk.get("/tenants"))["items"]] == [None, None]

    async def test_unknown_tenant_is_404(self, desk: OperatorScenario) -> None:
        problem_of(await desk.call("PATCH", "/tenants/nobody", {"max_wait_seconds": 1}), 404)
        problem_of(await desk.call("POST", "/tenants/nobody/credits", {"amount": 1, "reference": "one"}), 404)
