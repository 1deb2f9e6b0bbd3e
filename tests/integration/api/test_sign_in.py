"""Sign-in without a password: the first administrator by a code, other users by a link from an administrator."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import Request
from pwdlib import PasswordHash

from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.server.admin import fleets
from comfyrelay.server.http.limits import address_of
from comfyrelay.services.accounts import passwords
from comfyrelay.services.accounts.links import RESET_SECONDS, SETUP_SECONDS
from tests.support.api import PASSWORD, Api, Caller, data_of, problem_of
from tests.support.world import execute

NEW = "a new and better one"
ROOT = {"email": "root@example.com", "password": PASSWORD}
ADA = {"email": "ada@example.com", "password": PASSWORD}


async def make_code(api: Api) -> str:
    return await api.engine.accounts.links.create_setup_code()


async def set_up(api: Api, code: str, **more: Any) -> httpx.Response:
    response = await api.anonymous.call("POST", "/api/setup", {"code": code, **ROOT, **more})
    api.anonymous.http.cookies.clear()
    return response


async def reset(api: Api, link: Any, password: str = NEW) -> httpx.Response:
    token = link["url"].partition("#")[2]
    response = await api.anonymous.call("POST", "/api/reset", {"token": token, "password": password})
    api.anonymous.http.cookies.clear()
    return response


def bearer(api: Api, token: str) -> Caller:
    return Caller(api.anonymous.http, {"Authorization": f"Bearer {token}"})


async def sign_in(
    api: Api, password: str, email: str = "ada@example.com", *, cookies: httpx.Cookies | None = None
) -> httpx.Response:
    headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())} if cookies else {}
    body = {"email": email, "password": password}
    response = await api.anonymous.call("POST", "/api/login", body, headers=headers)
    api.anonymous.http.cookies.clear()
    return response


def at_address(api: Api, address: str) -> Api:
    """The same API, called from another address."""
    transport = api.anonymous.http._transport
    assert isinstance(transport, httpx.ASGITransport)
    other = httpx.ASGITransport(app=transport.app, client=(address, 1))
    return replace(api, anonymous=Caller(httpx.AsyncClient(transport=other, base_url=api.anonymous.http.base_url)))


async def attack(api: Api) -> None:
    """Guess the password of an account from three addresses, until its limit is reached."""
    for number in range(30):
        problem_of(await sign_in(at_address(api, f"203.0.113.{number % 3}"), f"guess {number}"), 401)


@pytest.fixture
async def admin(api: Api) -> Caller:
    return await api.user("admin@example.com", is_admin=True)


class TestSettingUp:
    async def test_setup_code_creates_the_first_administrator(self, api: Api) -> None:
        entry = await api.anonymous.get("/api/entry")
        seconds = api.engine.settings.presigned_ttl_seconds
        expected = {"is_desk": False, "stage": "production", "can_sign_up": True, "needs_setup": True}
        expected |= {"sign_up": "open", "sends_mail": False}
        studio = dict.fromkeys(("name", "logo_url", "color", "imprint_url", "terms_url"))
        assert entry == {**expected, "url_seconds": seconds, "studio": studio}
        created = data_of(await set_up(api, await make_code(api)))
        assert created["user"]["is_admin"] is True
        assert (await bearer(api, created["token"]).get("/api/admin/fleets"))["items"] == []
        assert (await api.anonymous.get("/api/entry"))["needs_setup"] is False

    async def test_setup_code_tolerates_case_and_spaces(self, api: Api) -> None:
        code = await make_code(api)
        assert (await set_up(api, f" {code.lower().replace('-', ' ')} ")).status_code == 201

    async def test_first_administrator_needs_the_setup_code(self, api: Api) -> None:
        await make_code(api)
        for code in ("AAAAA-AAAAA-AAAAA-AAAAA", "-", "\u0130"):
            problem_of(await set_up(api, code), 403)
            assert (await api.anonymous.get("/api/entry"))["needs_setup"] is True

    async def test_setup_code_works_once_and_only_without_an_administrator(self, api: Api) -> None:
        codes = [await make_code(api), await make_code(api)]
        answers = await asyncio.gather(
            *(set_up(api, code, email=f"root{number}@example.com") for number, code in enumerate(codes))
        )
        # a conflict, because the code of the second caller was right
        assert sorted(answer.status_code for answer in answers) == [201, 409]
        problem_of(await set_up(api, await make_code(api), email="late@example.com"), 409)

    async def test_setup_code_expires(self, api: Api) -> None:
        code = await make_code(api)
        await api.clock.set(api.clock.now + timedelta(seconds=SETUP_SECONDS))
        problem_of(await set_up(api, code), 403)

    async def test_invalid_setup_request_keeps_the_code(self, api: Api) -> None:
        code = await make_code(api)
        problem_of(await set_up(api, code, password="short"), 422)
        assert (await set_up(api, code)).status_code == 201

    async def test_setup_attempts_are_limited_by_address(self, api: Api) -> None:
        for _ in range(10):
            problem_of(await set_up(api, "A"), 403)
        problem_of(await set_up(api, await make_code(api)), 429)


class TestAccountsByAdministrators:
    async def test_invited_user_signs_in_after_setting_a_password(self, api: Api, admin: Caller) -> None:
        link = await admin.post("/api/admin/users", {"email": "Ada@example.com", "name": "Ada"})
        assert link["url"].startswith("http://relay.test/reset#")
        assert problem_of(await sign_in(api, PASSWORD), 401)["detail"] == "The email or the password is wrong."
        problem_of(await admin.call("POST", "/api/admin/users", {"email": "ada@EXAMPLE.com"}), 409)
        problem_of(await admin.call("POST", "/api/admin/users/nobody/reset-link"), 404)
        token = link["url"].partition("#")[2]
        account = await api.anonymous.post("/api/reset/check", {"token": token})
        assert account == {"email": "ada@example.com", "has_webhook": False, "is_new": False}
        created = data_of(await reset(api, link))
        assert created["user"] == {**created["user"], "name": "Ada", "is_admin": False, "id": link["user_id"]}
        assert (await sign_in(api, NEW)).is_success


class TestResetLinks:
    async def test_reset_link_works_once(self, api: Api, admin: Caller) -> None:
        user = await api.user()
        link = await admin.post(f"/api/admin/users/{user.user.id}/reset-link") if user.user else None
        answers = await asyncio.gather(reset(api, link), reset(api, link, "another one of mine"))
        assert sorted(answer.status_code for answer in answers) == [200, 404]
        problem_of(await reset(api, link), 404)
        problem_of(await sign_in(api, PASSWORD), 401)

    async def test_reset_link_expires(self, api: Api, admin: Caller) -> None:
        link = await admin.post("/api/admin/users", {"email": "ada@example.com"})
        await api.clock.set(api.clock.now + timedelta(seconds=RESET_SECONDS))
        token = link["url"].partition("#")[2]
        problem_of(await api.anonymous.call("POST", "/api/reset/check", {"token": token}), 404)
        problem_of(await reset(api, link), 404)

    async def test_new_reset_link_replaces_the_old_one(self, api: Api, admin: Caller) -> None:
        first = await admin.post("/api/admin/users", {"email": "ada@example.com"})
        second = await admin.post(f"/api/admin/users/{first['user_id']}/reset-link")
        problem_of(await reset(api, first), 404)
        # an invalid password keeps the link
        problem_of(await reset(api, second, "short"), 422)
        common = problem_of(await reset(api, second, "password1"), 422)
        assert common["detail"] == "This is one of the most common passwords. Choose another one."
        assert common["errors"] == {"password": common["detail"]}
        assert (await reset(api, second)).is_success

    async def test_password_reset_ends_all_other_links(self, api: Api, admin: Caller) -> None:
        first = await admin.post("/api/admin/users", {"email": "ada@example.com"})
        second = await admin.post(f"/api/admin/users/{first['user_id']}/reset-link")
        # Two administrators who create a link at the same time leave both valid.
        await execute(api.engine.databases.central, "UPDATE account_links SET used_at = NULL")
        assert (await reset(api, second)).is_success
        problem_of(await reset(api, first), 404)

    async def test_password_reset_ends_sessions_and_api_tokens(self, api: Api, admin: Caller) -> None:
        user = await api.user()
        assert user.user is not None
        session = bearer(api, data_of(await sign_in(api, PASSWORD))["token"])
        await session.get("/api/me")
        answer = await reset(api, await admin.post(f"/api/admin/users/{user.user.id}/reset-link"))
        created = data_of(answer)
        assert "all API tokens have ended" in answer.json()["message"]
        for ended in (session, user):
            problem_of(await ended.call("GET", "/api/me"), 401)
        assert await bearer(api, created["token"]).get("/api/me")

    async def test_check_of_a_reset_link_reports_a_webhook(
        self, api: Api, admin: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user = await api.user()
        assert user.user is not None
        link = await admin.post(f"/api/admin/users/{user.user.id}/reset-link")
        body = {"token": link["url"].partition("#")[2]}
        data_of(await user.call("PUT", "/api/webhook", {"url": "https://example.com/hook"}))
        assert (await api.anonymous.post("/api/reset/check", body))["has_webhook"] is True
        data_of(await user.call("PUT", "/api/webhook", {"url": None}))
        assert (await api.anonymous.post("/api/reset/check", body))["has_webhook"] is False

        async def fails(_tenant_id: str) -> None:
            raise DatabaseUnavailable(name="main")

        # the password can be set while the shard is unreachable
        monkeypatch.setattr(api.engine.webhooks.endpoints, "get", fails)
        assert (await api.anonymous.post("/api/reset/check", body))["has_webhook"] is True
        assert (await reset(api, link)).is_success

    async def test_disabled_account_has_no_reset_link(self, api: Api, admin: Caller) -> None:
        link = await admin.post("/api/admin/users", {"email": "ada@example.com"})
        path = f"/api/admin/users/{link['user_id']}"
        data_of(await admin.call("PATCH", path, {"is_disabled": True}))
        problem_of(await reset(api, link), 404)
        new = await admin.post(f"{path}/reset-link")
        assert "disabled" in problem_of(await reset(api, new), 403)["detail"]
        data_of(await admin.call("PATCH", path, {"is_disabled": False}))
        problem_of(await reset(api, link), 404)
        assert (await reset(api, new)).is_success

    @pytest.mark.parametrize("change", [{"is_disabled": True}, {"is_admin": False}])
    async def test_links_of_a_former_administrator_end(self, api: Api, admin: Caller, change: dict[str, bool]) -> None:
        former = await api.user("former@example.com", is_admin=True)
        assert admin.user is not None
        assert former.user is not None
        link = await former.post(f"/api/admin/users/{admin.user.id}/reset-link")
        data_of(await admin.call("PATCH", f"/api/admin/users/{former.user.id}", change))
        problem_of(await reset(api, link), 404)
        assert await admin.get("/api/me")

    async def test_password_reset_ends_concurrent_sessions(
        self, api: Api, admin: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user = await api.user()
        assert user.user is not None
        link = await admin.post(f"/api/admin/users/{user.user.id}/reset-link")
        accounts = api.engine.accounts.sign_in
        real = accounts.sign_in

        async def slow(**arguments: str) -> Any:
            """Verify the password, and change it before the session starts."""
            shown = await real(**arguments)
            assert (await reset(api, link)).is_success
            return shown

        monkeypatch.setattr(accounts, "sign_in", slow)
        problem_of(await sign_in(api, PASSWORD), 401)

    async def test_setup_code_sets_no_password(self, api: Api) -> None:
        code = (await make_code(api)).replace("-", "")
        problem_of(await api.anonymous.call("POST", "/api/reset", {"token": code, "password": NEW}), 404)


class TestBruteForce:
    def test_password_is_hashed_with_the_recommended_settings(self, real_hasher: PasswordHash) -> None:
        assert real_hasher.hash(PASSWORD).startswith("$argon2id$v=19$m=65536,t=3,p=4$")

    async def test_attack_from_many_addresses_is_slowed_down(self, api: Api) -> None:
        await api.user()
        seen = {}
        for email, network in (("ada@example.com", "203.0.113"), ("nobody@example.com", "198.51.100")):
            answers = []
            for number in range(36):
                # ten attempts from each address
                response = await sign_in(at_address(api, f"{network}.{number // 10}"), f"guess {number}", email)
                answers.append((response.status_code, response.json()["detail"]))
            seen[email] = answers
        assert [status for status, _ in seen["ada@example.com"]] == [401] * 32 + [429] * 4
        assert seen["nobody@example.com"] == seen["ada@example.com"]

    async def test_owner_signs_in_from_another_address_during_an_attack(self, api: Api) -> None:
        await api.user()
        await attack(api)
        assert (await sign_in(at_address(api, "198.51.100.7"), PASSWORD)).is_success

    async def test_known_browser_signs_in_during_an_attack_from_its_own_address(self, api: Api) -> None:
        await api.user()
        cookies = (await sign_in(api, PASSWORD)).cookies
        for _ in range(9):
            problem_of(await sign_in(api, "a guess"), 401)
        problem_of(await sign_in(api, PASSWORD), 429)
        assert (await sign_in(api, PASSWORD, cookies=cookies)).is_success
        # attempts from a known browser are limited, too
        for _ in range(10):
            problem_of(await sign_in(api, "a guess", cookies=cookies), 401)
        problem_of(await sign_in(api, PASSWORD, cookies=cookies), 429)

    async def test_known_browser_is_bound_to_account_password_and_time(self, api: Api, admin: Caller) -> None:
        user = await api.user()
        assert user.user is not None
        cookies = (await sign_in(api, PASSWORD)).cookies
        [name] = [name for name in cookies if name.startswith("comfyrelay_browser_")]
        value = cookies[name]

        async def is_known(email: str = "ada@example.com", **values: str) -> bool:
            account = await api.engine.accounts.sign_in.find_credentials(email)
            assert account is not None
            return api.context.known_browsers.is_known(account, values)

        browser, issued_at, signature = value.split(".")
        assert await is_known(**{name: value})
        assert not await is_known("admin@example.com", **{name: value})
        for forged in ("", "a.b.c", f"x{value}", f"{browser}.{int(issued_at) + 1}.{signature}", f"{value}é"):
            assert not await is_known(**{name: forged})
        await api.clock.set(api.clock.now + timedelta(days=364))
        assert await is_known(**{name: value})
        await api.clock.set(api.clock.now + timedelta(days=1))
        assert not await is_known(**{name: value})
        fresh = (await sign_in(api, PASSWORD)).cookies[name]
        assert await is_known(**{name: fresh})
        data_of(await reset(api, await admin.post(f"/api/admin/users/{user.user.id}/reset-link")))
        assert not await is_known(**{name: fresh})

    async def test_unknown_email_costs_a_password_hash(
        self, api: Api, admin: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await api.user()
        await admin.post("/api/admin/users", {"email": "invited@example.com"})
        work: list[str] = []

        def recorded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def note(*arguments: Any) -> Any:
                work.append(name)
                return real(*arguments)

            return note

        for name in ("hash", "verify"):
            monkeypatch.setattr(passwords.HASHER, name, recorded(name, getattr(passwords.HASHER, name)))
        for email in ("ada@example.com", "nobody@example.com", "invited@example.com"):
            problem_of(await sign_in(api, "a wrong guess", email), 401)
        assert work == ["verify", "hash", "hash"]

    def test_ipv6_network_counts_as_one_address(self) -> None:
        def key(host: str) -> str:
            return address_of(Request({"type": "http", "client": (host, 1)}))

        assert key("2001:db8:1:2::1") == key("2001:db8:1:2:ffff::9") != key("2001:db8:1:3::1")
        assert key("::ffff:192.0.2.1") == key("192.0.2.1") != key("192.0.2.2")
        assert key("fe80::1%eth0") == key("fe80::1")
        assert key("no address") == "no address"

    async def test_successful_sign_in_resets_the_attempts_of_its_address(self, api: Api) -> None:
        await api.user()
        await attack(api)
        for _ in range(3):
            home = at_address(api, "198.51.100.7")
            problem_of(await sign_in(home, "a guess"), 401)
            assert (await sign_in(home, PASSWORD)).is_success


class TestStorage:
    async def test_storage_check_reports_steps_and_a_browser_test(self, api: Api, admin: Caller) -> None:
        found = await admin.post("/api/admin/storage/check")
        problems = {step["part"]: step["problem"] for step in found["checks"]}
        assert [problems[part] for part in ("write", "read", "remove")] == [None] * 3
        sent = await api.anonymous.http.put(
            found["upload_url"], content=found["upload_text"], headers=found["upload_headers"]
        )
        assert sent.is_success
        assert (await api.anonymous.http.get(found["download_url"])).text == found["upload_text"]
        assert await admin.post("/api/admin/storage/check")
        assert (await api.anonymous.http.get(found["download_url"])).status_code == 404, (
            "the next check did not remove the file of the last one"
        )

    async def test_storage_check_reports_the_problem(
        self, api: Api, admin: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def refused(path: str) -> bytes:
            return b"other content"

        monkeypatch.setattr(api.engine.objects, "get", refused)
        found = await admin.post("/api/admin/storage/check")
        assert [step["part"] for step in found["checks"]] == ["write", "read"]
        assert "different content from what was written" in found["checks"][-1]["problem"]
        assert found["upload_url"] is None


class TestJoining:
    async def test_join_command_registers_a_worker(self, api: Api, admin: Caller) -> None:
        await api.effect()
        found = await admin.get("/api/admin/fleets/production/home-clip/join-command")
        assert found["command"].endswith(
            " FLEET_SLUG=home-clip COMFYUI_BASE_URL=http://127.0.0.1:8188 comfyrelay worker"
        )
        secret = found["variables"]["FLEET_SECRET"]
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip"}
        assert (await api.anonymous.post("/api/worker/register", body, headers={"X-Fleet-Secret": secret}))["token"]
        problem_of(await admin.call("GET", "/api/admin/fleets/production/nowhere/join-command"), 404)

    async def test_join_command_exists_for_windows(
        self, api: Api, admin: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await api.effect()
        monkeypatch.setattr(fleets, "COMFYUI_URL", "http://o'brien\u2019s $pc`:8188")
        found = await admin.get("/api/admin/fleets/production/home-clip/join-command")
        *variables, last = found["powershell"].split("; ")
        assert last == "comfyrelay worker"
        # the syntax of a variable differs, too
        assert found["powershell_install"].startswith("$env:COMFYRELAY_WITHOUT_UI='1'; pip install ")
        assert found["install"].startswith("COMFYRELAY_WITHOUT_UI=1 pip install ")
        # between single quotes, nothing is expanded, and a doubled quote is one quote, even in the curl command
        assert "$env:COMFYUI_BASE_URL='http://o''brien\u2019\u2019s $pc`:8188'" in variables
        assert f"$env:FLEET_SECRET='{found['variables']['FLEET_SECRET']}'" in variables
        assert len(variables) == len(found["variables"])
