"""Sign-up and new passwords by mail, through a real SMTP server."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.services.accounts import mailed_links
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Boundary
from tests.support.api import PASSWORD, Api, Caller, data_of, open_api, problem_of
from tests.support.mail import Mailbox, mail_server, secret_in
from tests.support.world import PostgresBackend, SqliteBackend

pytestmark = pytest.mark.both_databases
ADA = "ada@example.com"
NEW_PASSWORD = "purple monkey dishwasher"
MANY: dict[str, Any] = {"rate_limit_per_minute": 1000}


class Crash(Exception):
    pass


@pytest.fixture
async def mailbox() -> AsyncIterator[Mailbox]:
    async with mail_server() as box:
        yield box


@pytest.fixture
async def api(
    backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path, mailbox: Mailbox
) -> AsyncIterator[Api]:
    async with open_api(backend, tmp_path, storage_url=storage_url, **mailbox.settings, **MANY) as api:
        # Each test delivers the mails itself.
        await api.stop_loops()
        yield api


async def advance(api: Api, seconds: float) -> None:
    await api.clock.set(api.clock.now + timedelta(seconds=seconds))


async def sign_up(api: Api, email: str = ADA, **more: Any) -> dict[str, Any]:
    response = await api.anonymous.call("POST", "/api/sign-up", {"email": email, **more})
    assert response.status_code == 202
    answer: dict[str, Any] = response.json()
    return answer


async def request_password(api: Api, email: str = ADA) -> dict[str, Any]:
    response = await api.anonymous.call("POST", "/api/reset/request", {"email": email})
    assert response.status_code == 202
    answer: dict[str, Any] = response.json()
    return answer


async def link_to(api: Api, mailbox: Mailbox, email: str = ADA) -> str:
    await api.engine.accounts.mailer.run_once()
    return secret_in(await mailbox.next_link(email))


async def set_password(api: Api, token: str, password: str = PASSWORD) -> Any:
    return await api.anonymous.call("POST", "/api/reset", {"token": token, "password": password})


class TestSigningUp:
    async def test_link_creates_a_verified_account(self, api: Api, mailbox: Mailbox) -> None:
        assert await sign_up(api, name="Ada") == {
            "data": None,
            "message": "Check your mail: if the address is correct, a link is on its way.",
        }
        token = await link_to(api, mailbox)
        found = await api.anonymous.post("/api/reset/check", {"token": token})
        assert found == {"email": ADA, "has_webhook": False, "is_new": True}
        data = data_of(await set_password(api, token))
        assert (data["user"]["email"], data["user"]["name"]) == (ADA, "Ada")
        caller = Caller(api.anonymous.http, {"Authorization": f"Bearer {data['token']}"})
        assert (await caller.get("/api/account"))["is_verified"] is True

    async def test_link_works_once(self, api: Api, mailbox: Mailbox) -> None:
        await sign_up(api)
        token = await link_to(api, mailbox)
        data_of(await set_password(api, token))
        problem_of(await set_password(api, token), 404)

    async def test_no_account_exists_before_the_link_is_used(self, api: Api, mailbox: Mailbox) -> None:
        await sign_up(api)
        await link_to(api, mailbox)
        assert await api.engine.accounts.tenancy.find_user(ADA) is None

    async def test_answer_does_not_reveal_an_account(self, api: Api, mailbox: Mailbox) -> None:
        first = await sign_up(api)
        data_of(await set_password(api, await link_to(api, mailbox)))
        assert await sign_up(api) == first
        await api.engine.accounts.mailer.run_once()
        mail = await mailbox.next()
        assert mail["Subject"] == "You have an account on relay.test"
        assert "#" not in mail.get_content()

    async def test_mailed_link_leads_back_to_the_page(self, api: Api, mailbox: Mailbox) -> None:
        await sign_up(api, to="/studio/effects/clip?step=1")
        await api.engine.accounts.mailer.run_once()
        link = await mailbox.next_link(ADA)
        assert "/reset?to=%2Fstudio%2Feffects%2Fclip%3Fstep%3D1#" in link
        data_of(await set_password(api, secret_in(link)))
        await sign_up(api, to="/studio/effects/clip")
        await api.engine.accounts.mailer.run_once()
        assert (await mailbox.next_link(ADA)).endswith("/sign-in?to=%2Fstudio%2Feffects%2Fclip")

    @pytest.mark.parametrize("to", ["https://evil.example", "//evil.example", "/\\evil.example", "studio"])
    async def test_mailed_link_leads_to_no_other_site(self, api: Api, to: str) -> None:
        response = await api.anonymous.call("POST", "/api/sign-up", {"email": ADA, "to": to})
        assert "to" in problem_of(response, 422)["errors"]

    async def test_sign_up_with_a_password_is_refused(self, api: Api) -> None:
        body = {"email": ADA, "password": PASSWORD}
        assert "by mail" in problem_of(await api.anonymous.call("POST", "/api/register", body), 403)["detail"]

    async def test_expired_link_is_refused(self, api: Api, mailbox: Mailbox) -> None:
        await sign_up(api)
        token = await link_to(api, mailbox)
        await advance(api, 24 * 3600 + 1)
        problem_of(await set_password(api, token), 404)

    @pytest.mark.parametrize(("mode", "words"), [("invitation", "by invitation"), ("closed", "closed")])
    async def test_only_open_servers_accept_sign_ups(
        self, sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox, mode: str, words: str
    ) -> None:
        async with open_api(sqlite_backend, tmp_path, sign_up=mode, **mailbox.settings) as api:
            entry = await api.anonymous.get("/api/entry")
            assert (entry["can_sign_up"], entry["sign_up"], entry["sends_mail"]) == (False, mode, True)
            response = await api.anonymous.call("POST", "/api/sign-up", {"email": ADA})
            assert words in problem_of(response, 403)["detail"]
            assert mailbox.mails.empty()


class TestForgottenPassword:
    async def test_link_sets_a_new_password(self, api: Api, mailbox: Mailbox) -> None:
        await api.user(ADA)
        await request_password(api)
        data_of(await set_password(api, await link_to(api, mailbox), NEW_PASSWORD))
        await api.anonymous.post("/api/login", {"email": ADA, "password": NEW_PASSWORD})

    async def test_answer_does_not_reveal_an_account(self, api: Api, mailbox: Mailbox) -> None:
        await api.user(ADA)
        assert await request_password(api) == await request_password(api, "nobody@example.com")
        await link_to(api, mailbox)
        assert mailbox.mails.empty()

    async def test_disabled_user_gets_no_mail(self, api: Api, mailbox: Mailbox) -> None:
        user = await api.user(ADA)
        assert user.user is not None
        await api.engine.accounts.tenancy.change_user(user.user.id, is_disabled=True, by=user.user)
        await request_password(api)
        assert await api.engine.accounts.mailer.run_once() == 0

    async def test_address_gets_few_mails_an_hour(self, api: Api, mailbox: Mailbox) -> None:
        await api.user(ADA)
        for _ in range(mailed_links.MAX_MAILS + 2):
            await request_password(api)
        assert await api.engine.accounts.mailer.run_once() == mailed_links.MAX_MAILS
        await advance(api, mailed_links.PER_SECONDS + 1)
        await request_password(api)
        assert await api.engine.accounts.mailer.run_once() == 1

    async def test_requests_are_limited_per_address(
        self, sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox
    ) -> None:
        async with open_api(sqlite_backend, tmp_path, **mailbox.settings) as api:
            for number in range(10):
                await request_password(api, f"ada{number}@example.com")
            for path in ("/api/reset/request", "/api/sign-up"):
                problem_of(await api.anonymous.call("POST", path, {"email": ADA}), 429)

    async def test_server_without_mail_says_so(self, sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
        async with open_api(sqlite_backend, tmp_path) as api:
            for path in ("/api/reset/request", "/api/sign-up"):
                problem = problem_of(await api.anonymous.call("POST", path, {"email": ADA}), 409)
                assert problem["detail"] == "This server sends no mail. Ask your administrator for a link."


class TestInvitations:
    async def test_invitation_is_mailed_and_verifies_the_address(self, api: Api, mailbox: Mailbox) -> None:
        admin = await api.user("root@example.com", is_admin=True)
        link = await admin.post("/api/admin/users", {"email": ADA, "name": "Ada"})
        assert link["is_mailed"] is True
        token = await link_to(api, mailbox)
        assert token != secret_in(link["url"])
        assert data_of(await set_password(api, token))["user"]["name"] == "Ada"
        # Using the mailed link also ends the link that the administrator saw.
        problem_of(await set_password(api, secret_in(link["url"])), 404)
        user = await api.engine.accounts.tenancy.find_user(ADA)
        assert user is not None
        tenant = await admin.get(f"/api/admin/tenants/{user.tenant_id}")
        assert tenant["users"][0]["is_verified"] is True

    async def test_link_passed_on_by_an_administrator_verifies_nothing(self, api: Api) -> None:
        admin = await api.user("root@example.com", is_admin=True)
        link = await admin.post("/api/admin/users", {"email": ADA})
        data = data_of(await set_password(api, secret_in(link["url"])))
        caller = Caller(api.anonymous.http, {"Authorization": f"Bearer {data['token']}"})
        assert (await caller.get("/api/account"))["is_verified"] is False

    async def test_closed_server_refuses_invitations(self, sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
        async with open_api(sqlite_backend, tmp_path, sign_up="closed") as api:
            admin = await api.user("root@example.com", is_admin=True)
            problem_of(await admin.call("POST", "/api/admin/users", {"email": ADA}), 403)


class TestQueue:
    async def test_refused_mail_is_sent_when_the_mail_server_accepts_it(self, api: Api, mailbox: Mailbox) -> None:
        await sign_up(api)
        mailbox.refusal = "451 Try later"
        assert await api.engine.accounts.mailer.run_once() == 0
        mailbox.refusal = None
        assert await api.engine.accounts.mailer.run_once() == 0
        await advance(api, 11)
        assert await link_to(api, mailbox)

    async def test_permanent_refusal_gives_up_and_deletes_the_link(self, api: Api, mailbox: Mailbox) -> None:
        await sign_up(api)
        mailbox.refusal = "550 No such user"
        assert await api.engine.accounts.mailer.run_once() == 0
        assert api.engine.accounts.mailer.outcomes == {"given_up": 1}
        mailbox.refusal = None
        await advance(api, 100_000)
        assert await api.engine.accounts.mailer.run_once() == 0

    async def test_crash_after_sending_sends_the_same_mail_again(self, api: Api, mailbox: Mailbox) -> None:
        await sign_up(api)

        async def crash(step: str, boundary: Boundary) -> None:
            if (step, boundary) == (TransactionStep.MAIL_NOTE, Boundary.BEFORE_COMMIT):
                raise Crash

        api.engine.databases.central.crash = crash
        with pytest.raises(Crash):
            await api.engine.accounts.mailer.run_once()
        api.engine.databases.central.crash = None
        await advance(api, 3600)
        assert await api.engine.accounts.mailer.run_once() == 1
        first, second = await mailbox.next(), await mailbox.next()
        assert first["Message-ID"] == second["Message-ID"]

    async def test_crash_before_the_commit_sends_nothing(self, api: Api) -> None:
        async def crash(step: str, boundary: Boundary) -> None:
            if (step, boundary) == (TransactionStep.TENANT, Boundary.BEFORE_COMMIT):
                raise Crash

        api.engine.databases.central.crash = crash
        assert (await api.anonymous.call("POST", "/api/sign-up", {"email": ADA})).status_code == 500
        api.engine.databases.central.crash = None
        assert await api.engine.accounts.mailer.run_once() == 0

    async def test_address_that_contains_another_one_is_refused(self, api: Api, mailbox: Mailbox) -> None:
        for email in ("eve,ada@example.com", "ada(1)@example.com", "ada@["):
            problem_of(await api.anonymous.call("POST", "/api/sign-up", {"email": email}), 422)
        assert await api.engine.accounts.mailer.run_once() == 0
        assert mailbox.mails.empty()

    async def test_password_is_not_sent_without_encryption(
        self, sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox
    ) -> None:
        url = f"smtp://studio:secret@127.0.0.1:{mailbox.port}"
        async with open_api(sqlite_backend, tmp_path, **{**mailbox.settings, "smtp_url": url}) as api:
            await api.stop_loops()
            await sign_up(api)
            assert await api.engine.accounts.mailer.run_once() == 0
            assert api.engine.accounts.mailer.outcomes == {"postponed": 1}
            assert mailbox.mails.empty()


async def test_mails_name_the_studio(
    backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path, mailbox: Mailbox
) -> None:
    settings = {**mailbox.settings, "studio_name": "Pixel Barn"}
    async with open_api(backend, tmp_path, storage_url=storage_url, **settings) as api:
        await api.stop_loops()
        await sign_up(api)
        await api.engine.accounts.mailer.run_once()
        assert (await mailbox.next())["Subject"] == "Confirm your address for Pixel Barn"
