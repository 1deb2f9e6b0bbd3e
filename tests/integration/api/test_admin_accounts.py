"""Administrators view a tenant, set its limits and decide who may sign in."""

import asyncio
from typing import Any

import pytest

from comfyrelay.errors import TooManyActiveJobs
from comfyrelay.services.accounts import tenancy
from tests.support.api import PASSWORD, Api, Caller, problem_of
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.world import World, shard_down


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    return await open_operator_scenario(api)


async def user_of(desk: OperatorScenario) -> dict[str, Any]:
    [found] = (await desk.get(f"/tenants/{desk.user.tenant_id}"))["users"]
    user: dict[str, Any] = found
    return user


async def sign_in(api: Api, email: str = "ada@example.com") -> Caller:
    answer = await api.anonymous.post("/api/login", {"email": email, "password": PASSWORD})
    return Caller(api.anonymous.http, {"Authorization": f"Bearer {answer['token']}"})


async def change(desk: OperatorScenario, user_id: str, **changes: Any) -> Any:
    return await desk.send("PATCH", f"/users/{user_id}", changes)


class TestViews:
    @pytest.mark.both_databases
    async def test_tenant_is_shown_with_its_user_balance_and_limits(self, desk: OperatorScenario) -> None:
        await desk.submit()
        found = await desk.get(f"/tenants/{desk.user.tenant_id}")
        assert (found["id"], found["balance"], found["active_jobs"]) == (desk.user.tenant_id, 93, 1)
        assert found["limits"] == {
            **dict.fromkeys(("max_wait_seconds", "max_active_jobs", "max_stored_bytes", "max_stored_files")),
            **{"may_add_workflows": False, "everyone_may_add_workflows": True},
            **{"usual_active_jobs": 5, "usual_stored_bytes": 20 * 1024**3, "usual_stored_files": 10_000},
        }
        [user] = found["users"]
        assert (user["email"], user["is_admin"], user["is_disabled"]) == ("ada@example.com", False, False)
        assert (user["has_password"], user["api_tokens"], user["last_sign_in_at"]) == (True, 1, None)
        assert not any("hash" in name for name in user)

    @pytest.mark.both_databases
    async def test_last_sign_in_is_shown(self, desk: OperatorScenario) -> None:
        await sign_in(desk.api)
        await desk.advance(3600)
        await sign_in(desk.api)
        assert (await user_of(desk))["last_sign_in_at"] == "2026-01-01T13:00:00Z"
        await desk.api.engine.comfyui_api.sessions.create_code(desk.user, parent_id="session")
        # sessions do not count as API tokens
        assert (await user_of(desk))["api_tokens"] == 1

    async def test_unreachable_shard_hides_balance_and_jobs(self, desk: OperatorScenario) -> None:
        world: Any = World(engine=desk.api.engine, clock=desk.api.clock, backend="")
        async with shard_down(world, "main"):
            found = await desk.get(f"/tenants/{desk.user.tenant_id}")
            assert (found["balance"], found["active_jobs"], len(found["users"])) == (None, None, 1)

    @pytest.mark.both_databases
    async def test_wallet_transactions_are_paginated(self, desk: OperatorScenario) -> None:
        await desk.submit()
        path = f"/tenants/{desk.user.tenant_id}/transactions"
        first = await desk.get(path, limit=1)
        assert [(item["type"], item["amount"]) for item in first["items"]] == [("JOB_RESERVE", -7)]
        second = await desk.get(path, limit=1, cursor=first["next_cursor"])
        [credit] = second["items"]
        assert (credit["type"], credit["amount"], credit["reference"]) == ("PAYMENT_CREDIT", 100, "test")
        assert second["next_cursor"] is None

    async def test_unknown_account_is_404(self, desk: OperatorScenario) -> None:
        problem_of(await desk.call("GET", "/tenants/none"), 404)
        problem_of(await desk.call("GET", "/tenants/none/transactions"), 404)
        problem_of(await desk.call("PATCH", "/users/none", {"is_admin": True}), 404)


class TestLimits:
    async def test_tenant_limit_replaces_the_default(self, desk: OperatorScenario) -> None:
        path = f"/tenants/{desk.user.tenant_id}"
        changed = await desk.send("PATCH", path, {"max_active_jobs": 1})
        assert (changed["max_active_jobs"], changed["max_wait_seconds"]) == (1, None)
        await desk.submit()
        with pytest.raises(TooManyActiveJobs):
            await desk.submit()
        await desk.send("PATCH", path, {"max_active_jobs": 7})
        for _ in range(6):
            await desk.submit()
        # the default of all tenants applies again
        await desk.send("PATCH", path, {"max_active_jobs": None})
        with pytest.raises(TooManyActiveJobs):
            await desk.submit()

    async def test_limit_change_reaches_other_processes_within_seconds(
        self, desk: OperatorScenario, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = tenancy.Tenancy(desk.api.engine.databases)
        assert (await other.own_limits(desk.user.tenant_id)).max_active_jobs is None
        await desk.send("PATCH", f"/tenants/{desk.user.tenant_id}", {"max_active_jobs": 3})
        assert (await other.own_limits(desk.user.tenant_id)).max_active_jobs is None
        clock = asyncio.get_running_loop().time
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock() + tenancy.CACHE_SECONDS)
        assert (await other.own_limits(desk.user.tenant_id)).max_active_jobs == 3

    @pytest.mark.both_databases
    async def test_changing_one_limit_keeps_the_other(self, desk: OperatorScenario) -> None:
        path = f"/tenants/{desk.user.tenant_id}"
        await desk.send("PATCH", path, {"max_wait_seconds": 60})
        await desk.send("PATCH", path, {"max_active_jobs": 2})
        limits = (await desk.get(path))["limits"]
        assert (limits["max_wait_seconds"], limits["max_active_jobs"]) == (60, 2)

    async def test_invalid_limit_is_refused(self, desk: OperatorScenario) -> None:
        bodies: list[dict[str, Any]] = [
            {},
            {"max_active_jobs": -1},
            {"max_active_jobs": 1.5},
            {"max_wait_seconds": -1},
            {"max_wait_seconds": "soon"},
            {"balance": 5},
        ]
        for body in bodies:
            problem_of(await desk.call("PATCH", f"/tenants/{desk.user.tenant_id}", body), 422)


class TestActions:
    async def test_disabling_an_account_ends_all_its_sessions(self, desk: OperatorScenario) -> None:
        token = Caller(desk.api.anonymous.http, (await desk.api.user("eve@example.com")).headers)
        session = await sign_in(desk.api, "eve@example.com")
        eve = await token.get("/api/me")
        await session.get("/api/me")
        assert (await change(desk, eve["id"], is_disabled=True))["is_disabled"] is True
        problem_of(await token.call("GET", "/api/me"), 401)
        problem_of(await session.call("GET", "/api/me"), 401)
        login = {"email": "eve@example.com", "password": PASSWORD}
        assert "disabled" in problem_of(await desk.api.anonymous.call("POST", "/api/login", login), 403)["detail"]
        # a caller without the password learns nothing
        wrong = problem_of(await desk.api.anonymous.call("POST", "/api/login", {**login, "password": "x" * 12}), 401)
        assert "disabled" not in wrong["detail"]
        [listed] = [tenant for tenant in (await desk.get("/tenants"))["items"] if tenant["email"] == "eve@example.com"]
        assert listed["is_disabled"] is True

    async def test_enabling_an_account_restores_tokens_but_not_sessions(self, desk: OperatorScenario) -> None:
        token = await desk.api.user("eve@example.com")
        session = await sign_in(desk.api, "eve@example.com")
        assert token.user is not None
        await change(desk, token.user.id, is_disabled=True)
        # this refusal must not be cached
        problem_of(await token.call("GET", "/api/me"), 401)
        assert (await change(desk, token.user.id, is_disabled=False))["is_disabled"] is False
        await token.get("/api/me")
        problem_of(await session.call("GET", "/api/me"), 401)
        await sign_in(desk.api, "eve@example.com")

    async def test_administrator_role_is_granted_and_revoked(self, desk: OperatorScenario) -> None:
        eve = await desk.api.user("eve@example.com")
        assert eve.user is not None
        problem_of(await eve.call("GET", "/api/admin/settings"), 403)
        assert (await change(desk, eve.user.id, is_admin=True))["is_admin"] is True
        await eve.get("/api/admin/settings")
        await change(desk, eve.user.id, is_admin=False)
        problem_of(await eve.call("GET", "/api/admin/settings"), 403)

    async def test_last_administrator_cannot_be_removed(self, desk: OperatorScenario) -> None:
        admin = desk.admin.user
        assert admin is not None
        second = await desk.api.user("second@example.com", is_admin=True)
        assert second.user is not None
        # a disabled administrator does not count
        await change(desk, second.user.id, is_disabled=True)
        for changes in ({"is_admin": False}, {"is_disabled": True}):
            problem = problem_of(await desk.call("PATCH", f"/users/{admin.id}", changes), 409)
            assert "only administrator" in problem["detail"]
        await change(desk, second.user.id, is_disabled=False)
        await change(desk, admin.id, is_admin=False)

    @pytest.mark.both_databases
    async def test_two_administrators_cannot_resign_concurrently(self, desk: OperatorScenario) -> None:
        second = await desk.api.user("second@example.com", is_admin=True)
        assert desk.admin.user is not None
        assert second.user is not None
        people = desk.api.engine.accounts.tenancy
        results = await asyncio.gather(
            *(people.change_user(user.id, is_admin=False, by=user) for user in (desk.admin.user, second.user)),
            return_exceptions=True,
        )
        assert sum(isinstance(result, Exception) for result in results) == 1

    async def test_invalid_role_change_is_refused(self, desk: OperatorScenario) -> None:
        bodies: list[dict[str, Any]] = [{}, {"is_admin": None}, {"email": "x@y.org"}, {"is_disabled": "yes please"}]
        for body in bodies:
            problem_of(await desk.call("PATCH", f"/users/{desk.user.id}", body), 422)
