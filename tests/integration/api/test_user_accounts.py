"""Accounts: sign-up also signs in, tokens are shown once, and a session is safe in a browser."""

from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from comfyrelay.services.accounts import sign_in
from comfyrelay.settings import Settings
from tests.support.api import PASSWORD, Api, Caller, data_of, open_api, problem_of
from tests.support.api_calls import submit
from tests.support.world import SqliteBackend, execute

ADA = {"email": "ada@example.com", "password": PASSWORD}


def bearer(api: Api, token: str) -> Caller:
    return Caller(api.anonymous.http, {"Authorization": f"Bearer {token}"})


class TestSigningUp:
    async def test_sign_up_creates_an_account_and_a_session(self, api: Api) -> None:
        response = await api.anonymous.call("POST", "/api/register", {**ADA, "name": "Ada"})
        assert response.status_code == 201
        data = data_of(response)
        assert data["user"]["email"] == "ada@example.com"
        me = await bearer(api, data["token"]).get("/api/me")
        assert me.pop("own_workflows") == {"tokens_per_second": 0, "max_seconds": None, "reserved_tokens": 0}
        assert me.pop("has_editor") is False
        assert me == data["user"]
        assert me.keys() == {"id", "email", "name", "tenant_id", "is_admin"}
        assert me["is_admin"] is False

    async def test_email_is_unique_regardless_of_case(self, api: Api) -> None:
        await api.anonymous.post("/api/register", ADA)
        again = await api.anonymous.call("POST", "/api/register", {**ADA, "email": "ADA@example.com"})
        problem_of(again, 409)

    async def test_sign_up_errors_name_the_field(self, api: Api) -> None:
        cases: list[tuple[dict[str, object], str]] = [
            ({"email": "nobody", "password": PASSWORD}, "email"),
            ({"email": "a\u0000@example.com", "password": PASSWORD}, "email"),
            ({"email": "ada@example.com", "password": "short"}, "password"),
            ({"email": "ada@example.com", "password": PASSWORD, "is_admin": True}, "is_admin"),
        ]
        for body, field in cases:
            response = await api.anonymous.call("POST", "/api/register", body)
            assert field in problem_of(response, 422)["errors"]

    @pytest.mark.parametrize("mode", ["invitation", "closed"])
    async def test_sign_up_can_be_disabled(self, sqlite_backend: SqliteBackend, tmp_path: Path, mode: str) -> None:
        async with open_api(sqlite_backend, tmp_path, sign_up=mode) as api:
            problem_of(await api.anonymous.call("POST", "/api/register", ADA), 403)


class TestSigningIn:
    async def test_sign_in_returns_a_token(self, api: Api) -> None:
        await api.user("ada@example.com")
        data = await api.anonymous.post("/api/login", {**ADA, "email": "Ada@Example.com"})
        assert (await bearer(api, data["token"]).get("/api/me"))["email"] == "ada@example.com"

    async def test_failed_sign_in_does_not_reveal_accounts(self, api: Api) -> None:
        await api.user("ada@example.com")
        for email in ("ada@example.com", "nobody@example.com"):
            response = await api.anonymous.call("POST", "/api/login", {"email": email, "password": "wrong password"})
            assert problem_of(response, 401)["detail"] == "The email or the password is wrong."

    async def test_sign_in_allows_ten_attempts_a_minute_per_address(self, api: Api) -> None:
        for _ in range(10):
            problem_of(await api.anonymous.call("POST", "/api/login", ADA), 401)
        response = await api.anonymous.call("POST", "/api/login", ADA)
        problem_of(response, 429)
        assert int(response.headers["Retry-After"]) > 0
        problem_of(await api.anonymous.call("POST", "/api/register", ADA), 429)

    async def test_signing_out_ends_the_session(self, api: Api) -> None:
        token = (await api.anonymous.post("/api/register", ADA))["token"]
        api.anonymous.http.cookies.clear()
        caller = bearer(api, token)
        response = await caller.call("POST", "/api/logout")
        assert data_of(response) is None
        assert "Max-Age=0" in response.headers["Set-Cookie"]
        problem_of(await caller.call("GET", "/api/me"), 401)

    async def test_missing_token_is_401(self, api: Api) -> None:
        response = await api.anonymous.call("GET", "/api/me")
        problem_of(response, 401)
        assert response.headers["WWW-Authenticate"] == "Bearer"


class TestCookie:
    async def test_cookie_is_http_only_and_same_site(self, api: Api) -> None:
        response = await api.anonymous.call("POST", "/api/register", ADA)
        session, browser = [header.split("; ") for header in response.headers.get_list("Set-Cookie")]
        assert session[0] == f"comfyrelay_session={data_of(response)['token']}"
        assert set(session[1:]) == {"HttpOnly", "SameSite=lax", "Path=/", f"Max-Age={30 * 86400}"}
        assert set(browser[1:]) == {"HttpOnly", "SameSite=strict", "Path=/api/login", f"Max-Age={365 * 86400}"}

    async def test_cookie_is_secure_on_https_only(self, sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
        async with open_api(sqlite_backend, tmp_path, public_url="https://relay.test") as api:
            response = await api.anonymous.call("POST", "/api/register", ADA)
            assert all("Secure" in header.split("; ") for header in response.headers.get_list("Set-Cookie"))

    async def test_cookie_authenticates(self, api: Api) -> None:
        await api.anonymous.post("/api/register", ADA)
        assert (await api.anonymous.get("/api/me"))["email"] == "ada@example.com"

    async def test_cross_site_request_with_the_cookie_is_refused(self, api: Api) -> None:
        await api.anonymous.post("/api/register", ADA)
        foreign = ({"Origin": origin} for origin in ("https://evil.test", "http://[bad"))
        for headers in ({}, {"Sec-Fetch-Site": "cross-site"}, *foreign):
            response = await api.anonymous.call("POST", "/api/tokens", {"name": "t"}, headers=headers)
            problem_of(response, 403)
        for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://relay.test"}):
            assert await api.anonymous.post("/api/tokens", {"name": "t"}, headers=headers)


class TestTokens:
    async def test_token_is_shown_once(self, api: Api) -> None:
        user = await api.user()
        response = await user.call("POST", "/api/tokens", {"name": "laptop"})
        assert response.status_code == 201
        issued = data_of(response)
        assert (await bearer(api, issued["token"]).get("/api/me"))["email"] == "ada@example.com"
        listed = await user.get("/api/tokens")
        assert [item["name"] for item in listed["items"]] == ["laptop", "test"]
        assert issued["token"] not in str(listed)

    async def test_tokens_of_a_user_are_limited(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sign_in, "MAX_TOKENS", 2)
        user = await api.user()
        await api.anonymous.post("/api/login", ADA)
        laptop = await user.post("/api/tokens", {"name": "laptop"})
        refused = problem_of(await user.call("POST", "/api/tokens", {"name": "phone"}), 409)
        assert "Revoke one" in refused["detail"]
        data_of(await user.call("DELETE", f"/api/tokens/{laptop['id']}"))
        assert await user.post("/api/tokens", {"name": "phone"})

    async def test_ended_sessions_are_deleted_after_a_month(self, api: Api) -> None:
        await api.user()
        for days in (0, 0, 61):
            await api.clock.set(api.clock.now + timedelta(days=days))
            await api.anonymous.post("/api/login", ADA)
        rows = await execute(api.engine.databases.central, "SELECT name FROM api_tokens ORDER BY name")
        assert [row.name for row in rows] == ["session", "test"]

    async def test_token_list_marks_sessions_and_the_current_token(self, api: Api) -> None:
        token = (await api.anonymous.post("/api/register", ADA))["token"]
        user = bearer(api, token)
        await user.post("/api/tokens", {"name": "laptop"})
        listed = (await user.get("/api/tokens"))["items"]
        assert [(token["name"], token["is_session"], token["is_current"]) for token in listed] == [
            ("laptop", False, False),
            ("session", True, True),
        ]

    async def test_token_cannot_be_named_like_a_session(self, api: Api) -> None:
        # such a token would be listed as a session, and a new password would end it
        user = await api.user()
        problem = problem_of(await user.call("POST", "/api/tokens", {"name": "session"}), 422)
        assert "browser sessions" in problem["errors"]["name"]
        assert (await user.call("POST", "/api/tokens", {"name": "session of my laptop"})).status_code == 201

    async def test_revoked_token_is_refused(self, api: Api) -> None:
        user = await api.user()
        issued = await user.post("/api/tokens", {"name": "laptop"})
        laptop = bearer(api, issued["token"])
        await laptop.get("/api/me")
        data_of(await user.call("DELETE", f"/api/tokens/{issued['id']}"))
        problem_of(await laptop.call("GET", "/api/me"), 401)
        problem_of(await user.call("DELETE", f"/api/tokens/{issued['id']}"), 404)

    async def test_token_expires(self, api: Api) -> None:
        user = await api.user()
        issued = await user.post("/api/tokens", {"name": "day", "expires_in_days": 1})
        await api.clock.set(api.clock.now.replace(year=2027))
        problem_of(await bearer(api, issued["token"]).call("GET", "/api/me"), 401)

    async def test_other_users_token_cannot_be_revoked(self, api: Api) -> None:
        user, other = await api.user(), await api.user("eve@example.com")
        issued = await user.post("/api/tokens", {"name": "laptop"})
        problem_of(await other.call("DELETE", f"/api/tokens/{issued['id']}"), 404)
        assert await bearer(api, issued["token"]).get("/api/me")

    async def test_tokens_are_paginated(self, api: Api) -> None:
        user = await api.user()
        for name in "abc":
            await user.post("/api/tokens", {"name": name})
        first = await user.get("/api/tokens?limit=3")
        assert [item["name"] for item in first["items"]] == ["c", "b", "a"]
        second = await user.get(f"/api/tokens?limit=3&cursor={first['next_cursor']}")
        assert [item["name"] for item in second["items"]] == ["test"]
        assert second["next_cursor"] is None


class TestWallet:
    async def test_wallet_shows_balance_and_transactions(self, api: Api) -> None:
        user = await api.user(tokens=20)
        job = await submit(user, await api.effect())
        wallet = await user.get("/api/wallet")
        assert wallet["balance"] == 13
        transactions = [
            (transaction["type"], transaction["amount"], transaction["job_id"])
            for transaction in wallet["transactions"]
        ]
        assert transactions == [("JOB_RESERVE", -7, job["id"]), ("PAYMENT_CREDIT", 20, None)]
        assert [transaction["job_label"] for transaction in wallet["transactions"]] == [job["label"], None]
        assert wallet["top_up_url"] is None

    async def test_wallet_shows_where_to_buy_tokens(self, sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
        async with open_api(sqlite_backend, tmp_path, top_up_url="https://shop.test/tokens") as api:
            user = await api.user()
            assert (await user.get("/api/wallet"))["top_up_url"] == "https://shop.test/tokens"

    def test_script_top_up_url_is_refused(self) -> None:
        with pytest.raises(ValidationError, match="mailto"):
            Settings(top_up_url="javascript:alert(1)")

    async def test_wallet_transactions_are_paginated(self, api: Api) -> None:
        user = await api.user(tokens=20)
        await submit(user, await api.effect())
        first = await user.get("/api/wallet?limit=1")
        second = await user.get(f"/api/wallet?limit=1&cursor={first['next_cursor']}")
        assert [transaction["type"] for transaction in second["transactions"]] == ["PAYMENT_CREDIT"]
        assert second["next_cursor"] is None
