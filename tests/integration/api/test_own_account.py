"""Users change their password and address, and delete their account with all data."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from comfyrelay.domain.ids import tenant_folder
from comfyrelay.store.central import tables as central
from comfyrelay.store.tenant import erasure
from comfyrelay.store.tenant import tables as tenant
from tests.support.api import PASSWORD, Api, Caller, data_of, open_api, problem_of
from tests.support.api_calls import lease, lease_of, submit, upload
from tests.support.mail import Mailbox, mail_server, secret_in
from tests.support.world import PostgresBackend, SqliteBackend

ADA, EVE = "ada@example.com", "eve@example.com"
OWN_GRAPH = {"1": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "mine"}}}
OWN_GRAPH["2"] = {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8}}
NEW_PASSWORD = "purple monkey dishwasher"


@pytest.fixture
async def mailbox() -> AsyncIterator[Mailbox]:
    async with mail_server() as box:
        yield box


@pytest.fixture
async def mailing_api(
    backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path, mailbox: Mailbox
) -> AsyncIterator[Api]:
    async with open_api(backend, tmp_path, storage_url=storage_url, **mailbox.settings) as api:
        await api.stop_loops()
        yield api


async def sign_in(api: Api, email: str = ADA, password: str = PASSWORD) -> Caller:
    data = await api.anonymous.post("/api/login", {"email": email, "password": password})
    api.anonymous.http.cookies.clear()
    return Caller(api.anonymous.http, {"Authorization": f"Bearer {data['token']}"})


class TestPassword:
    @pytest.mark.both_databases
    async def test_change_ends_other_sessions_and_keeps_tokens(self, api: Api) -> None:
        user = await api.user(ADA)
        mine, other = await sign_in(api), await sign_in(api)
        await mine.post("/api/account/password", {"current_password": PASSWORD, "new_password": NEW_PASSWORD})
        assert await mine.get("/api/me")
        assert await user.get("/api/me")
        problem_of(await other.call("GET", "/api/me"), 401)
        problem_of(await api.anonymous.call("POST", "/api/login", {"email": ADA, "password": PASSWORD}), 401)
        await sign_in(api, password=NEW_PASSWORD)

    async def test_wrong_password_is_refused_and_limited(self, api: Api) -> None:
        user = await api.user(ADA)
        body = {"current_password": "wrong", "new_password": NEW_PASSWORD}
        for _ in range(10):
            problem = problem_of(await user.call("POST", "/api/account/password", body), 422)
            assert problem["errors"] == {"current_password": "This is not your current password."}
        problem_of(await user.call("POST", "/api/account/password", body), 429)

    async def test_weak_password_names_the_field(self, api: Api) -> None:
        user = await api.user(ADA)
        body = {"current_password": PASSWORD, "new_password": "short"}
        problem = problem_of(await user.call("POST", "/api/account/password", body), 422)
        assert problem["errors"] == {"new_password": "This must have at least 8 characters."}

    async def test_change_is_reported_by_mail(self, mailing_api: Api, mailbox: Mailbox) -> None:
        user = await mailing_api.user(ADA)
        await user.post("/api/account/password", {"current_password": PASSWORD, "new_password": NEW_PASSWORD})
        await mailing_api.engine.accounts.mailer.run_once()
        mail = await mailbox.next()
        assert mail["Subject"] == "Your password on relay.test was changed"
        assert "http://relay.test/forgot" in mail.get_content()


class TestEmail:
    async def test_server_without_mail_changes_the_address_at_once(self, api: Api) -> None:
        user = await api.user(ADA)
        body = {"email": "Ada@Example.org", "password": PASSWORD}
        assert await user.post("/api/account/email", body) == {"is_changed": True}
        assert (await user.get("/api/me"))["email"] == "ada@example.org"
        await sign_in(api, "ada@example.org")

    async def test_taken_address_is_refused(self, api: Api) -> None:
        await api.user(EVE)
        user = await api.user(ADA)
        response = await user.call("POST", "/api/account/email", {"email": EVE, "password": PASSWORD})
        assert problem_of(response, 409)["detail"] == "This address cannot be used. Choose another one."

    @pytest.mark.both_databases
    async def test_link_to_the_new_address_confirms_the_change(self, mailing_api: Api, mailbox: Mailbox) -> None:
        user = await mailing_api.user(ADA)
        new = "ada@example.org"
        assert await user.post("/api/account/email", {"email": new, "password": PASSWORD}) == {"is_changed": False}
        assert (await user.get("/api/account"))["email"] == ADA
        await mailing_api.engine.accounts.mailer.run_once()
        token = secret_in(await mailbox.next_link(new))
        assert await mailing_api.anonymous.post("/api/email/confirm", {"token": token}) == {"email": new}
        account = await user.get("/api/account")
        assert (account["email"], account["is_verified"]) == (new, True)
        await mailing_api.engine.accounts.mailer.run_once()
        notice = await mailbox.next()
        assert (notice["To"], notice["Subject"]) == (ADA, "Your address on relay.test was changed")
        problem_of(await mailing_api.anonymous.call("POST", "/api/email/confirm", {"token": token}), 404)

    @pytest.mark.both_databases
    async def test_confirmed_address_is_recorded(self, mailing_api: Api, mailbox: Mailbox) -> None:
        user, admin = await mailing_api.user(ADA), await mailing_api.user("root@example.com", is_admin=True)
        new = "ada@example.org"
        await user.post("/api/account/email", {"email": new, "password": PASSWORD})
        await mailing_api.engine.accounts.mailer.run_once()
        token = secret_in(await mailbox.next_link(new))
        await mailing_api.anonymous.post("/api/email/confirm", {"token": token})
        problem_of(await mailing_api.anonymous.call("POST", "/api/email/confirm", {"token": token}), 404)
        found = (await admin.get("/api/admin/audit", params={"action": "confirm_email"}))["items"]
        assert user.user is not None
        [entry] = found
        assert (entry["actor"], entry["address"], entry["subject"]) == (ADA, "127.0.0.1", f"users/{user.user.id}")
        assert (entry["before"]["user.email"], entry["after"]["user.email"]) == (ADA, new)
        assert token not in json.dumps(found)

    async def test_current_address_can_be_verified(self, mailing_api: Api, mailbox: Mailbox) -> None:
        user = await mailing_api.user(ADA)
        assert (await user.get("/api/account"))["is_verified"] is False
        await user.post("/api/account/email", {"email": ADA, "password": PASSWORD})
        await mailing_api.engine.accounts.mailer.run_once()
        token = secret_in(await mailbox.next_link(ADA))
        await mailing_api.anonymous.post("/api/email/confirm", {"token": token})
        assert (await user.get("/api/account"))["is_verified"] is True

    async def test_answer_does_not_reveal_an_account(self, mailing_api: Api, mailbox: Mailbox) -> None:
        await mailing_api.user(EVE)
        user = await mailing_api.user(ADA)
        body = {"email": EVE, "password": PASSWORD}
        assert await user.post("/api/account/email", body) == {"is_changed": False}
        await mailing_api.engine.accounts.mailer.run_once()
        mail = await mailbox.next()
        assert (mail["To"], mail["Subject"]) == (EVE, "You have an account on relay.test")
        assert "#" not in mail.get_content()

    async def test_password_link_does_not_change_the_address(self, mailing_api: Api, mailbox: Mailbox) -> None:
        await mailing_api.user(ADA)
        await mailing_api.anonymous.post("/api/reset/request", {"email": ADA})
        await mailing_api.engine.accounts.mailer.run_once()
        token = secret_in(await mailbox.next_link(ADA))
        problem_of(await mailing_api.anonymous.call("POST", "/api/email/confirm", {"token": token}), 404)


async def rows_of(api: Api, tenant_id: str) -> dict[str, list[Any]]:
    """Return the rows of a tenant by table, in all databases."""
    found = {}
    databases = api.engine.databases
    for database, tables in (
        (databases.central, central.metadata.tables),
        (databases.shards["main"], tenant.metadata.tables),
    ):
        async with database.read() as tx:
            for name, table in tables.items():
                if "tenant_id" in table.c and (
                    rows := (await tx.execute(select(table).where(table.c.tenant_id == tenant_id))).all()
                ):
                    found[name] = list(rows)
    return found


async def advance(api: Api, seconds: float) -> None:
    await api.clock.set(api.clock.now + timedelta(seconds=seconds))


class TestDeletion:
    @pytest.mark.both_databases
    async def test_all_data_is_erased_except_the_ledger(self, api: Api) -> None:
        await api.stop_loops()
        effect_id = await api.effect()
        user = await api.user(ADA, tokens=100)
        assert user.user is not None
        tenant_id = user.user.tenant_id
        await submit(user, effect_id)
        await upload(user)
        await user.post("/api/workflows", {"name": "Mine", "graph": OWN_GRAPH})
        await user.call("PUT", "/api/webhook", {"url": "https://example.com/hook"})
        await user.post("/api/tokens", {"name": "laptop"})
        await api.engine.gallery.collections.create(tenant_id, "mine")
        await api.engine.objects.put(f"tenants/{tenant_id}/uploads/cat.png", b"cat")
        await user.post("/api/account/delete", {"password": PASSWORD})
        problem_of(await user.call("GET", "/api/me"), 401)
        problem_of(await api.anonymous.call("POST", "/api/login", {"email": ADA, "password": PASSWORD}), 401)
        assert await api.engine.operations.erasure.run_once() == 1
        left = await rows_of(api, tenant_id)
        assert left.keys() <= {"token_wallets", "token_transactions", "ai_job_dispatches", "usage", "workflows"}
        assert [row.description for row in left["token_transactions"]] == [None] * len(left["token_transactions"])
        assert sum(row.amount for row in left["token_transactions"]) == left["token_wallets"][0].balance == 100
        assert [stored.path async for stored in api.engine.objects.list(tenant_folder(tenant_id))] == []
        assert ADA not in str(left)

    async def test_late_upload_is_erased_too(self, api: Api) -> None:
        await api.stop_loops()
        user = await api.user(ADA)
        assert user.user is not None
        await user.post("/api/account/delete", {"password": PASSWORD})
        await api.engine.operations.erasure.run_once()
        late = f"tenants/{user.user.tenant_id}/uploads/late.png"
        await api.engine.objects.put(late, b"late")
        await advance(api, api.engine.settings.lease_url_ttl_seconds + 1)
        assert await api.engine.operations.erasure.run_once() == 1
        assert not await api.engine.objects.exists(late)
        assert await api.engine.operations.erasure.run_once() == 0

    async def test_running_job_is_canceled_first(self, api: Api) -> None:
        await api.stop_loops()
        effect_id = await api.effect()
        worker = await api.worker("gpu-1")
        user = await api.user(ADA, tokens=100)
        assert user.user is not None
        await submit(user, effect_id)
        job = await lease(worker)
        await user.post("/api/account/delete", {"password": PASSWORD})
        await api.engine.operations.erasure.run_once()
        assert "ai_jobs" in await rows_of(api, user.user.tenant_id)
        await worker.post("/api/worker/fail", {**lease_of(job), "error": "stopped"})
        await api.engine.outbox.delivery.idle()
        await api.engine.operations.erasure.run_once()
        assert "ai_jobs" not in await rows_of(api, user.user.tenant_id)

    async def test_address_can_be_used_again(self, api: Api) -> None:
        user = await api.user(ADA)
        await user.post("/api/account/delete", {"password": PASSWORD})
        response = await api.anonymous.call("POST", "/api/register", {"email": ADA, "password": PASSWORD})
        assert response.status_code == 201

    async def test_wrong_password_deletes_nothing(self, api: Api) -> None:
        user = await api.user(ADA)
        problem_of(await user.call("POST", "/api/account/delete", {"password": "wrong"}), 422)
        assert await user.get("/api/me")

    async def test_only_administrator_cannot_be_deleted(self, api: Api) -> None:
        admin = await api.user("root@example.com", is_admin=True)
        assert admin.user is not None
        problem_of(await admin.call("POST", "/api/account/delete", {"password": PASSWORD}), 409)
        problem_of(await admin.call("DELETE", f"/api/admin/users/{admin.user.id}"), 409)

    async def test_administrator_deletes_another_account(self, api: Api) -> None:
        admin = await api.user("root@example.com", is_admin=True)
        user = await api.user(ADA)
        assert user.user is not None
        data_of(await admin.call("DELETE", f"/api/admin/users/{user.user.id}"))
        problem_of(await user.call("GET", "/api/me"), 401)
        problem_of(await admin.call("DELETE", f"/api/admin/users/{user.user.id}"), 404)

    def test_every_table_of_a_tenant_is_erased_or_kept(self) -> None:
        with_tenant = {name for name, table in tenant.metadata.tables.items() if "tenant_id" in table.c}
        assert with_tenant == {*erasure.TABLES, *(table.name for table in erasure.KEPT)}
