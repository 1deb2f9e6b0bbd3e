"""Every change by a person is recorded with who, when, from where, before and after, and without secrets."""

import csv
import io
import json
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import Request, Response
from fastapi.responses import JSONResponse

from comfyrelay.autoscaling.providers import registry
from comfyrelay.server.admin import router as admin_router
from comfyrelay.server.admin.router import PREFIX, AdminRoute
from comfyrelay.server.http.auth import SAFE_METHODS
from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.audit_log import without_secrets
from comfyrelay.store.database import Boundary
from tests.integration.api.test_access import _walk
from tests.support.api import PASSWORD, Api, Caller, data_of, problem_of

ROOT = "root@example.com"
# Routes with other methods than GET that change nothing visible to others.
CHANGES_NOTHING = {"validate_workflow", "test_run"}


class Crash(Exception):
    pass


@pytest.fixture
async def admin(api: Api) -> Caller:
    return await api.user(ROOT, is_admin=True)


async def entries(admin: Caller, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await admin.get("/api/admin/audit", params=query))["items"]
    return found


class TestEveryRoute:
    async def test_every_admin_route_that_changes_something_writes_an_entry(
        self, api: Api, admin: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def succeed(_request: Request) -> Response:
            return JSONResponse({"data": {}})

        def stub(_route: BodyRoute) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            return succeed

        transport = api.anonymous.http._transport
        assert isinstance(transport, httpx.ASGITransport)
        app: Any = transport.app
        routes = [route for route in _walk(app.routes) if route.path.startswith(f"{PREFIX}/")]
        changing = [route for route in routes if not (route.methods or set()) <= SAFE_METHODS]
        assert len(changing) > 30
        monkeypatch.setattr(BodyRoute, "get_route_handler", stub)
        silent = []
        for route in changing:
            assert isinstance(route, AdminRoute), f"{route.path} is not an AdminRoute"
            before = await entries(admin, limit=1)
            names = dict.fromkeys(route.param_convertors, "1")
            [method] = route.methods or set()
            headers = [(name.lower().encode(), value.encode()) for name, value in admin.headers.items()]
            scope = {"type": "http", "method": method, "path": route.path, "headers": headers, "query_string": b""}
            request = Request({**scope, "path_params": names, "app": app, "client": ("10.0.0.7", 1), "state": {}})
            await route.get_route_handler()(request)
            after = await entries(admin, limit=1)
            if after == before or after[0]["action"] != route.name:
                silent.append(route.name)
        assert set(silent) == {endpoint.__name__ for endpoint in admin_router._CHANGES_NOTHING}
        assert set(silent) >= CHANGES_NOTHING


class TestEntries:
    @pytest.mark.both_databases
    async def test_price_change_has_before_and_after(self, api: Api, admin: Caller) -> None:
        await api.effect()
        data_of(await admin.call("PATCH", "/api/admin/effects/clip", {"credits_cost": 9}))
        [entry] = await entries(admin, search="effects/clip")
        assert (entry["actor"], entry["action"], entry["subject"]) == (ROOT, "change_effect", "effects/clip")
        assert (entry["address"], entry["is_done"]) == ("127.0.0.1", True)
        assert (entry["before"], entry["after"]) == ({"credits_cost": 7}, {"credits_cost": 9})

    @pytest.mark.both_databases
    async def test_role_and_deletion_of_a_user_are_recorded(self, api: Api, admin: Caller) -> None:
        user = await api.user("ada@example.com")
        assert user.user is not None
        path = f"/api/admin/users/{user.user.id}"
        data_of(await admin.call("PATCH", path, {"is_admin": True}))
        data_of(await admin.call("DELETE", path))
        deleted, changed = await entries(admin, search=user.user.id)
        assert (changed["before"], changed["after"]) == ({"user.is_admin": False}, {"user.is_admin": True})
        assert (deleted["action"], deleted["after"], deleted["before"]["user.email"]) == (
            "delete_user",
            None,
            "ada@example.com",
        )

    @pytest.mark.both_databases
    async def test_created_object_is_recorded_with_its_name(self, admin: Caller) -> None:
        fleet = {"stage": "production", "slug": "gpus", "name": "GPUs"}
        data_of(await admin.call("POST", "/api/admin/fleets", fleet))
        [entry] = await entries(admin, action="create_fleet")
        assert (entry["subject"], entry["before"], entry["after"]["name"]) == ("fleets/production/gpus", None, "GPUs")

    @pytest.mark.both_databases
    async def test_change_in_a_shard_is_recorded(self, api: Api, admin: Caller) -> None:
        user = await api.user("ada@example.com")
        assert user.user is not None
        body = {"amount": 50, "reference": "invoice 7"}
        path = f"/api/admin/tenants/{user.user.tenant_id}/credits"
        data_of(await admin.call("POST", path, body))
        [entry] = await entries(admin, action="credit_tenant")
        assert (entry["subject"], entry["is_done"]) == (f"tenants/{user.user.tenant_id}", True)
        assert (entry["after"]["amount"], entry["after"]["reference"]) == (50, "invoice 7")

    async def test_change_in_a_shard_always_has_an_entry(self, api: Api, admin: Caller) -> None:
        user = await api.user("ada@example.com")
        assert user.user is not None

        async def crash(step: str, boundary: Boundary) -> None:
            if (step, boundary) == (TransactionStep.LEDGER, Boundary.AFTER_COMMIT):
                api.engine.databases.central.crash = crash_central

        async def crash_central(_step: str, _boundary: Boundary) -> None:
            raise Crash

        api.engine.databases.shards["main"].crash = crash
        path = f"/api/admin/tenants/{user.user.tenant_id}/credits"
        response = await admin.call("POST", path, {"amount": 50, "reference": "invoice 7"})
        assert response.status_code == 500
        api.engine.databases.central.crash = api.engine.databases.shards["main"].crash = None
        [entry] = await entries(admin, action="credit_tenant")
        assert entry["is_done"] is False

    async def test_refused_change_leaves_no_entry(self, api: Api, admin: Caller) -> None:
        await api.effect()
        problem_of(await admin.call("PATCH", "/api/admin/effects/clip", {"name": ""}), 422)
        problem_of(await admin.call("PATCH", "/api/admin/effects/none", {"name": "x"}), 404)
        path = "/api/admin/tenants/none/credits"
        problem_of(await admin.call("POST", path, {"amount": 50, "reference": "x"}), 404)
        assert await entries(admin) == []

    async def test_failed_transaction_leaves_no_entry(self, api: Api, admin: Caller) -> None:
        await api.effect()

        async def crash(step: str, boundary: Boundary) -> None:
            if (step, boundary) == (TransactionStep.CATALOGUE, Boundary.BEFORE_COMMIT):
                raise Crash

        api.engine.databases.central.crash = crash
        response = await admin.call("PATCH", "/api/admin/effects/clip", {"name": "Better"})
        assert response.status_code == 500
        api.engine.databases.central.crash = None
        assert await entries(admin) == []

    async def test_secrets_are_not_recorded(self, api: Api, admin: Caller) -> None:
        link = await admin.post("/api/admin/users", {"email": "ada@example.com"})
        user = await api.user("eve@example.com")
        token = await user.post("/api/tokens", {"name": "laptop"})
        new = "purple monkey dishwasher"
        await user.post("/api/account/password", {"current_password": PASSWORD, "new_password": new})
        text = json.dumps(await entries(admin))
        for secret in (link["url"].partition("#")[2], token["token"], PASSWORD, new, "argon2"):
            assert secret not in text
        actions = [entry["action"] for entry in await entries(admin)]
        assert actions == ["change_password", "create_token", "create_user"]

    async def test_first_administrator_and_new_password_by_link_are_recorded(self, api: Api) -> None:
        links = api.engine.accounts.links
        body = {"code": await links.create_setup_code(), "email": "Boss@example.com", "password": PASSWORD}
        data_of(await api.anonymous.call("POST", "/api/setup", body))
        user = await api.engine.accounts.tenancy.find_user("boss@example.com")
        assert user is not None
        _, link = await links.create_reset_link(user.id, by=None)
        answer = await api.anonymous.post("/api/reset", {"token": link.secret, "password": f"{PASSWORD} 2"})
        boss = Caller(api.anonymous.http, {"Authorization": f"Bearer {answer['token']}"})
        reset, set_up = await entries(boss)
        assert [(entry["actor"], entry["address"]) for entry in (set_up, reset)] == [
            ("boss@example.com", "127.0.0.1"),
            ("boss@example.com", "127.0.0.1"),
        ]
        assert (set_up["action"], set_up["subject"]) == ("set_up", f"users/{user.id}")
        assert (set_up["before"], set_up["after"]["user.is_admin"]) == (None, True)
        assert (reset["action"], reset["subject"]) == ("reset", f"users/{user.id}")
        text = json.dumps(await entries(boss))
        assert not any(secret in text for secret in (PASSWORD, link.secret, body["code"], "argon2"))

    async def test_deleted_account_leaves_no_address(self, api: Api, admin: Caller) -> None:
        await api.stop_loops()
        user = await api.user("ada@example.com")
        await user.post("/api/tokens", {"name": "laptop"})
        await user.post("/api/account/delete", {"password": PASSWORD})
        await api.engine.operations.erasure.run_once()
        found = await entries(admin)
        assert [entry["actor"] for entry in found] == ["deleted account", "deleted account"]
        assert "ada@example.com" not in json.dumps(found)

    def test_secrets_are_masked_and_keys_of_form_fields_are_not(self) -> None:
        shown = without_secrets({"properties": [{"key": "width"}], "api_key": "s", "access_keys": ["s"], "token": "s"})
        assert shown == {"properties": [{"key": "width"}], "api_key": "…", "access_keys": "…", "token": "…"}

    async def test_keys_in_options_of_any_machine_provider_are_masked(
        self, api: Api, admin: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registry, "names", lambda: ["rental"])
        options = {
            "region": "eu",
            "key": "hush",
            "login": {"Key": "hush", "api_key": "hush"},
            "more": [{"key": "hush"}],
        }
        machines = {"provider": "rental", "options": options}
        data_of(await admin.call("POST", "/api/admin/fleets", {"slug": "rented", "machines": machines}))
        changed = {"machines": {"options": {**options, "region": "us"}}}
        data_of(await admin.call("PATCH", "/api/admin/fleets/production/rented", changed))
        found = json.dumps(await entries(admin))
        assert "hush" not in found
        assert '"region": "us"' in found


class TestReading:
    async def test_search_finds_person_object_and_action(self, api: Api, admin: Caller) -> None:
        await api.effect()
        data_of(await admin.call("PATCH", "/api/admin/effects/clip", {"name": "Better clip"}))
        for text in ("ROOT@", "effects/cl", "change_eff", "127.0.0"):
            assert len(await entries(admin, search=text)) == 1, text
        assert await entries(admin, search="nobody") == []

    async def test_entries_are_found_by_day(self, api: Api, admin: Caller) -> None:
        first = api.clock.now
        for day in range(3):
            await api.clock.set(first + timedelta(days=day))
            data_of(await admin.call("POST", "/api/admin/fleets", {"slug": f"fleet-{day}"}))
        days = [(first + timedelta(days=day)).date().isoformat() for day in range(3)]

        async def subjects(**query: Any) -> list[str]:
            return [entry["subject"] for entry in await entries(admin, action="create_fleet", **query)]

        assert await subjects(**{"from": days[1]}) == ["fleets/production/fleet-2", "fleets/production/fleet-1"]
        assert await subjects(**{"from": days[1], "to": days[1]}) == ["fleets/production/fleet-1"]
        exported = await admin.call("GET", "/api/admin/audit/export", params={"to": days[0]})
        assert "fleet-0" in exported.text
        assert "fleet-1" not in exported.text
        problem_of(await admin.call("GET", f"/api/admin/audit?from={days[1]}&to={days[0]}"), 422)

    async def test_export_has_all_entries_and_escapes_formulas(self, api: Api, admin: Caller) -> None:
        await api.effect()
        for name in ("One", "Two"):
            data_of(await admin.call("PATCH", "/api/admin/effects/clip", {"name": name}))
        data_of(await admin.call("POST", "/api/admin/users", {"email": "=cmd@example.com"}))
        exported = (await admin.call("GET", "/api/admin/audit/export")).text
        rows = list(csv.DictReader(io.StringIO(exported)))
        assert [row["action"] for row in rows] == ["create_user", "change_effect", "change_effect"]
        assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())
        lines = (await admin.call("GET", "/api/admin/audit/export", params={"format": "jsonl"})).text.splitlines()
        assert [json.loads(line)["after"] for line in lines[1:]] == [{"name": "Two"}, {"name": "One"}]

    async def test_users_cannot_read_the_audit_log(self, api: Api) -> None:
        user = await api.user("ada@example.com")
        for path in ("/api/admin/audit", "/api/admin/audit/export"):
            problem_of(await user.call("GET", path), 403)


class TestVersions:
    @pytest.mark.both_databases
    @pytest.mark.parametrize(
        ("path", "change"),
        [
            ("effects/clip", {"name": "Second"}),
            ("workflows/clip-workflow", {"name": "Second"}),
            ("fleets/production/default", {"max_workers": 7}),
        ],
    )
    async def test_change_of_an_outdated_version_is_refused(
        self, api: Api, admin: Caller, path: str, change: dict[str, Any]
    ) -> None:
        await api.effect()
        path = await _existing(api, admin, path)
        seen = (await admin.call("GET", path)).headers["ETag"]
        first = await admin.call("PATCH", path, {"name": "First"}, headers={"If-Match": seen})
        assert first.status_code == 200
        refused = problem_of(await admin.call("PATCH", path, change, headers={"If-Match": seen}), 412)
        assert refused["type"] == "urn:comfyrelay:changed_meanwhile"
        assert (await admin.get(path))["name"] == "First"
        again = first.headers["ETag"]
        assert again == (await admin.call("GET", path)).headers["ETag"] != seen
        data_of(await admin.call("PATCH", path, change, headers={"If-Match": again}))

    @pytest.mark.both_databases
    async def test_tenant_and_user_share_one_version(self, api: Api, admin: Caller) -> None:
        user = await api.user("ada@example.com")
        assert user.user is not None
        path, of_user = f"/api/admin/tenants/{user.user.tenant_id}", f"/api/admin/users/{user.user.id}"
        seen = (await admin.call("GET", path)).headers["ETag"]
        data_of(await admin.call("PATCH", of_user, {"name": "Ada"}, headers={"If-Match": seen}))
        problem_of(await admin.call("PATCH", path, {"max_active_jobs": 3}, headers={"If-Match": seen}), 412)
        problem_of(await admin.call("DELETE", of_user, headers={"If-Match": seen}), 412)

    async def test_change_without_a_version_overwrites(self, api: Api, admin: Caller) -> None:
        await api.effect()
        for headers in ({}, {"If-Match": "*"}):
            data_of(await admin.call("PATCH", "/api/admin/effects/clip", {"name": "Mine"}, headers=headers))

    async def test_version_is_checked_in_the_transaction_of_the_change(
        self, api: Api, admin: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another change may commit between reading the request and the transaction."""
        await api.effect()
        path = "/api/admin/effects/clip"
        seen = (await admin.call("GET", path)).headers["ETag"]
        save = api.engine.catalogue.effects._save_assets

        async def change_concurrently(*args: Any) -> dict[str, Any]:
            monkeypatch.setattr(api.engine.catalogue.effects, "_save_assets", save)
            data_of(await admin.call("PATCH", path, {"name": "Other"}))
            return await save(*args)

        monkeypatch.setattr(api.engine.catalogue.effects, "_save_assets", change_concurrently)
        problem_of(await admin.call("PATCH", path, {"name": "Mine"}, headers={"If-Match": seen}), 412)
        assert (await admin.get(path))["name"] == "Other"


async def _existing(api: Api, admin: Caller, path: str) -> str:
    """Return the path of an existing object of the kind that `path` names."""
    kind = path.partition("/")[0]
    if kind == "workflows":
        return f"/api/admin/workflows/{(await admin.get('/api/admin/workflows'))['items'][0]['slug']}"
    if kind == "fleets":
        fleet = {"stage": "production", "slug": "default", "name": "Default"}
        await admin.call("POST", "/api/admin/fleets", fleet)
    return f"/api/admin/{path}"
