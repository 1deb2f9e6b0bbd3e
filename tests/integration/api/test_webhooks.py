"""Webhooks report finished jobs: signed, once per job, retried until delivered, and never into our own network."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from comfyrelay.domain.webhooks import NOT_PUBLIC_TEXT, RETRY_DELAYS_SECONDS, is_public, new_secret, url_problem
from comfyrelay.server.http.context import REDELIVERIES_FACTOR
from comfyrelay.services.jobs.submission.requests import JobRequest
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.services.webhooks import deliveries
from comfyrelay.services.webhooks.deliveries import LEASE_SECONDS, DeliveryService
from comfyrelay.services.webhooks.sender import WebhookSender
from comfyrelay.store.database import Boundary
from tests.support.api import Api, Caller, data_of, open_api, problem_of
from tests.support.webhook_receiver import Receiver, open_receiver
from tests.support.world import OUTPUT, PATIENCE_SECONDS, Crash, PostgresBackend, SqliteBackend


@dataclass
class Scenario:
    """A user with an effect and a worker, on a server without background deliveries."""

    api: Api
    caller: Caller
    effect_id: int
    receiver: Receiver

    @property
    def tenant_id(self) -> str:
        assert self.caller.user is not None
        return self.caller.user.tenant_id

    async def submit(self, *, webhook_url: str | None = None, key: str = "one") -> str:
        assert self.caller.user is not None
        request = JobRequest(
            tenant_id=self.tenant_id,
            user_id=self.caller.user.id,
            idempotency_key=key,
            effect_id=self.effect_id,
            webhook_url=webhook_url,
        )
        return (await self.api.engine.jobs.submit.submit(request)).id

    async def complete(self) -> None:
        settle, leased = self.api.engine.queue.settle, await self._lease()
        await settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT)

    async def fail(self, error: str) -> None:
        settle, leased = self.api.engine.queue.settle, await self._lease()
        await settle.fail(leased.dispatch_id, leased.lease_token, error=error)

    async def _lease(self) -> Any:
        [leased] = await self.api.engine.queue.leasing.lease(LeaseRequest(worker_id="gpu-1", providers=["self_hosted"]))
        return leased

    async def finish_job(self, *, key: str = "one") -> str:
        """Finish a job with a webhook to the receiver; return its id."""
        job_id = await self.submit(webhook_url=self.receiver.url, key=key)
        await self.complete()
        return job_id

    async def send(self) -> int:
        return await self.api.engine.webhooks.deliveries.run_once()

    async def advance(self, seconds: float) -> None:
        await self.api.clock.set(self.api.clock.now + timedelta(seconds=seconds))

    async def deliveries(self, job_id: str) -> list[Any]:
        found: list[Any] = (await self.caller.get(f"/api/ai-jobs/{job_id}/deliveries"))["deliveries"]
        return found

    async def secret(self) -> str:
        secret: str = data_of(await self.caller.call("PUT", "/api/webhook", {}))["secret"]
        return secret


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as receiver:
        yield receiver


@pytest.fixture
async def scenario(
    backend: SqliteBackend | PostgresBackend, tmp_path: Path, receiver: Receiver
) -> AsyncIterator[Scenario]:
    async with open_api(backend, tmp_path, webhook_allow_private=True) as api:
        await api.stop_loops()
        # receivers have their own clocks and refuse old requests
        await api.clock.set(datetime.now(UTC))
        effect_id = await api.effect()
        caller = await api.user(tokens=100)
        await api.engine.workers.workers.register(worker_id="gpu-1", fleet_slug="home-clip")
        yield Scenario(api, caller, effect_id, receiver)


class TestContent:
    async def test_completed_job_is_delivered_with_a_signature(self, scenario: Scenario) -> None:
        job_id = await scenario.finish_job()
        assert await scenario.send() == 1
        [(headers, body)] = scenario.receiver.received
        event = Webhook(await scenario.secret()).verify(body, headers)
        assert event["type"] == "job.completed"
        assert event["data"] | {"created_at": 0, "completed_at": 0} == {
            "job_id": job_id,
            "status": "completed",
            "batch_id": None,
            "error": None,
            "effect_id": scenario.effect_id,
            "created_at": 0,
            "completed_at": 0,
        }
        assert event["timestamp"] == event["data"]["completed_at"]
        assert headers["Content-Type"] == "application/json"
        [delivery] = await scenario.deliveries(job_id)
        assert delivery["id"] == headers["webhook-id"]
        assert (delivery["status"], delivery["attempts"], delivery["last_error"]) == ("delivered", 1, None)
        assert delivery["delivered_at"] is not None

    async def test_failed_and_cancelled_jobs_are_delivered_without_internal_errors(self, scenario: Scenario) -> None:
        await scenario.submit(webhook_url=scenario.receiver.url)
        await scenario.fail("cannot write /home/comfy/secret.png")
        await scenario.send()
        event = json.loads(scenario.receiver.received[0][1])
        assert event["type"] == "job.failed"
        assert event["data"]["error"]
        assert "/home" not in scenario.receiver.received[0][1]
        job_id = await scenario.submit(webhook_url=scenario.receiver.url, key="two")
        await scenario.api.engine.queue.control.cancel(scenario.tenant_id, job_id)
        await scenario.send()
        assert json.loads(scenario.receiver.received[1][1])["type"] == "job.canceled"

    async def test_tenant_webhook_is_the_default(self, scenario: Scenario) -> None:
        data_of(await scenario.caller.call("PUT", "/api/webhook", {"url": scenario.receiver.url}))
        await scenario.submit()
        await scenario.complete()
        assert await scenario.send() == 1
        # the webhook of another tenant receives nothing
        other = await scenario.api.user("other@example.com")
        data_of(await other.call("PUT", "/api/webhook", {"url": scenario.receiver.url}))
        assert await scenario.send() == 0

    async def test_job_without_a_webhook_is_not_delivered(self, scenario: Scenario) -> None:
        job_id = await scenario.submit()
        await scenario.complete()
        assert await scenario.send() == 0
        assert await scenario.deliveries(job_id) == []

    async def test_job_end_is_delivered_once(self, scenario: Scenario) -> None:
        job_id = await scenario.submit(webhook_url=scenario.receiver.url)
        leased = await scenario._lease()
        for _ in range(3):
            await scenario.api.engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT)
        await scenario.api.engine.outbox.recovery.run_once(grace_seconds=0)
        await scenario.send()
        await scenario.send()
        assert len(scenario.receiver.received) == len(await scenario.deliveries(job_id)) == 1

    @pytest.mark.parametrize("boundary", Boundary)
    async def test_delivery_commits_with_the_job_end(self, scenario: Scenario, boundary: Boundary) -> None:
        job_id = await scenario.submit(webhook_url=scenario.receiver.url)
        leased = await scenario._lease()
        await scenario.api.engine.outbox.delivery.idle()
        shard = scenario.api.engine.databases.shards["main"]

        async def die(step: str, where: Boundary) -> None:
            if (step, where) == (TransactionStep.DELIVER_APPLY, boundary):
                raise Crash

        shard.crash = die
        with pytest.raises(Crash):
            await scenario.api.engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT)
        shard.crash = None
        assert len(await scenario.deliveries(job_id)) == (1 if boundary is Boundary.AFTER_COMMIT else 0)
        await scenario.api.engine.outbox.recovery.run_once(grace_seconds=0)
        assert len(await scenario.deliveries(job_id)) == 1

    async def test_server_delivers_in_the_background(
        self, backend: SqliteBackend | PostgresBackend, tmp_path: Path, receiver: Receiver
    ) -> None:
        async with open_api(backend, tmp_path, webhook_allow_private=True) as api:
            effect_id, caller = await api.effect(), await api.user(tokens=100)
            job = await caller.post(
                "/api/ai-jobs", {"effect_id": effect_id, "idempotency_key": "k", "webhook_url": receiver.url}
            )
            await caller.post(f"/api/ai-jobs/{job['id']}/cancel")
            await receiver.wait_for(1)


class TestRetries:
    async def test_failed_delivery_is_retried_with_increasing_delays(self, scenario: Scenario) -> None:
        scenario.receiver.statuses = [500] * (len(RETRY_DELAYS_SECONDS) + 1)
        job_id = await scenario.finish_job()
        for count, wait in enumerate(RETRY_DELAYS_SECONDS, start=1):
            assert await scenario.send() == 1
            [delivery] = await scenario.deliveries(job_id)
            assert (delivery["status"], delivery["attempts"]) == ("pending", count)
            assert (delivery["last_status_code"], delivery["last_error"]) == (500, "The response was 500.")
            await scenario.advance(wait - 1)
            assert await scenario.send() == 0
            await scenario.advance(2)
        assert await scenario.send() == 1
        [delivery] = await scenario.deliveries(job_id)
        assert (delivery["status"], delivery["attempts"]) == ("given_up", len(RETRY_DELAYS_SECONDS) + 1)
        await scenario.advance(10 * RETRY_DELAYS_SECONDS[-1])
        assert await scenario.send() == 0
        assert len({headers["webhook-id"] for headers, _ in scenario.receiver.received}) == 1

    async def test_each_attempt_has_a_fresh_signature(self, scenario: Scenario) -> None:
        scenario.receiver.statuses = [503]
        await scenario.finish_job()
        await scenario.send()
        await scenario.advance(6)
        await scenario.send()
        [(first, body), (second, _)] = scenario.receiver.received
        assert first["webhook-timestamp"] != second["webhook-timestamp"]
        Webhook(await scenario.secret()).verify(body, second)
        with pytest.raises(WebhookVerificationError):
            Webhook(new_secret()).verify(body, second)

    async def test_redirect_is_not_followed(self, scenario: Scenario) -> None:
        async with open_receiver() as elsewhere:
            scenario.receiver.statuses, scenario.receiver.headers = [307], {"Location": elsewhere.url}
            job_id = await scenario.finish_job()
            await scenario.send()
            assert elsewhere.received == []
        assert (await scenario.deliveries(job_id))[0]["last_status_code"] == 307

    async def test_large_response_is_not_read(self, scenario: Scenario) -> None:
        scenario.receiver.statuses, scenario.receiver.answer = [200], b"x" * 10_000_000
        job_id = await scenario.finish_job()
        await scenario.send()
        assert (await scenario.deliveries(job_id))[0]["status"] == "delivered"

    async def test_cookies_of_a_receiver_are_ignored(self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            pytest.fail("The cookies were parsed.")

        # Parsing these headers takes seconds, in which no other request is answered.
        monkeypatch.setattr("http.cookiejar.CookieJar.make_cookies", fail)
        receiver.headers = {"Set-Cookie": "tenant=other; Path=/", "Set-Cookie2": "a," * 3000}
        sender = WebhookSender(allow_private=True)
        for _ in range(2):
            assert (await sender.send(receiver.url, "{}", {})).is_ok
        await sender.close()
        assert [headers.get("Cookie") for headers, _ in receiver.received] == [None, None]

    async def test_slow_receiver_delays_no_other(self, scenario: Scenario) -> None:
        async with open_receiver() as other:
            scenario.receiver.free.clear()
            slow = await scenario.finish_job(key="slow")
            quick = await scenario.submit(webhook_url=other.url, key="quick")
            await scenario.complete()
            hasty = WebhookSender(allow_private=True, timeout_seconds=2)
            await DeliveryService(scenario.api.engine.databases, hasty, on_recorded=lambda: None).run_once()
        assert (await scenario.deliveries(quick))[0]["status"] == "delivered"
        [delivery] = await scenario.deliveries(slow)
        assert (delivery["status"], delivery["last_error"]) == ("pending", "No response within 2 seconds.")

    async def test_slow_receivers_of_a_tenant_leave_slots_to_others(
        self, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(deliveries, "MAX_CONCURRENT", 4)
        monkeypatch.setattr(deliveries, "MAX_CONCURRENT_PER_TENANT", 2)
        monkeypatch.setattr(deliveries, "CLAIM_SIZE", 2)
        scenario.receiver.free.clear()
        for number in range(6):
            await scenario.finish_job(key=f"slow-{number}")
        sender = DeliveryService(
            scenario.api.engine.databases, WebhookSender(allow_private=True), on_recorded=lambda: None
        )
        async with open_receiver() as other:
            assert await sender.start_due() == 2
            await scenario.receiver.wait_for(2)
            neighbour = replace(scenario, caller=await scenario.api.user("bob@example.com", tokens=100), receiver=other)
            await neighbour.finish_job(key="quick")
            assert await sender.start_due() == 1
            await other.wait_for(1)
            # A finished delivery of the busy tenant makes room for its next one.
            scenario.receiver.free.set()
            assert await sender.wakeup.wait(PATIENCE_SECONDS)
            assert await sender.run_once() == 4
        await sender.close()
        assert len(scenario.receiver.received) == 6

    async def test_due_deliveries_are_sent_during_a_slow_one(self, scenario: Scenario) -> None:
        async with open_receiver() as other:
            scenario.receiver.free.clear()
            await scenario.finish_job(key="slow")
            sender = DeliveryService(
                scenario.api.engine.databases, WebhookSender(allow_private=True), on_recorded=lambda: None
            )
            assert await sender.start_due() == 1
            await scenario.receiver.wait_for(1)
            await scenario.submit(webhook_url=other.url, key="quick")
            await scenario.complete()
            assert await sender.start_due() == 1
            await other.wait_for(1)
            await sender.close()

    async def test_shutdown_records_sent_deliveries(self, scenario: Scenario) -> None:
        noting, may_go = asyncio.Event(), asyncio.Event()

        async def hold(step: str, boundary: Boundary) -> None:
            if (step, boundary) == (TransactionStep.WEBHOOK_NOTE, Boundary.BEFORE_COMMIT):
                noting.set()
                await may_go.wait()

        scenario.api.engine.databases.shard("main").crash = hold
        job_id = await scenario.finish_job()
        await scenario.api.engine.webhooks.deliveries.start_due()
        await noting.wait()
        closing = asyncio.create_task(scenario.api.engine.webhooks.deliveries.close())
        assert await asyncio.wait([closing], timeout=0.2) == (set(), {closing})
        may_go.set()
        await closing
        assert (await scenario.deliveries(job_id))[0]["status"] == "delivered"

    async def test_unreachable_receiver_is_retried(self, scenario: Scenario) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        job_id = await scenario.submit(webhook_url=url)
        await scenario.complete()
        await scenario.send()
        assert (await scenario.deliveries(job_id))[0]["last_error"] == "No response (ConnectError)."

    async def test_two_servers_send_every_delivery_once(self, scenario: Scenario) -> None:
        for key in ("a", "b", "c", "d"):
            await scenario.finish_job(key=key)
        scenario.receiver.free.clear()
        other = DeliveryService(
            scenario.api.engine.databases, WebhookSender(allow_private=True), on_recorded=lambda: None
        )
        both = asyncio.gather(scenario.send(), other.run_once())
        await scenario.receiver.wait_for(4)
        scenario.receiver.free.set()
        assert sum(await both) == 4
        assert len({headers["webhook-id"] for headers, _ in scenario.receiver.received}) == 4
        await other.close()

    async def test_delivery_of_a_dead_server_is_taken_over(self, scenario: Scenario) -> None:
        job_id = await scenario.finish_job()
        shard = scenario.api.engine.databases.shards["main"]

        async def die(step: str, where: Boundary) -> None:
            if (step, where) == (TransactionStep.WEBHOOK_NOTE, Boundary.BEFORE_COMMIT):
                raise Crash

        shard.crash = die
        with pytest.raises(Crash):
            await scenario.send()
        shard.crash = None
        assert await scenario.send() == 0
        await scenario.advance(LEASE_SECONDS)
        assert await scenario.send() == 1
        [(first, _), (second, _)] = scenario.receiver.received
        assert first["webhook-id"] == second["webhook-id"]
        assert (await scenario.deliveries(job_id))[0]["status"] == "delivered"


class TestRedelivery:
    async def test_deliveries_are_listed_newest_first_and_filtered_by_status(self, scenario: Scenario) -> None:
        scenario.receiver.statuses = [500]
        failed = await scenario.finish_job(key="failed")
        await scenario.send()
        arrived = await scenario.finish_job(key="arrived")
        await scenario.send()
        page = await scenario.caller.get("/api/deliveries")
        assert [(item["job_id"], item["status"]) for item in page["items"]] == [
            (arrived, "delivered"),
            (failed, "pending"),
        ]
        [waiting] = (await scenario.caller.get("/api/deliveries?status=pending"))["items"]
        assert waiting["job_id"] == failed
        first = await scenario.caller.get("/api/deliveries?limit=1")
        [second] = (await scenario.caller.get(f"/api/deliveries?limit=1&cursor={first['next_cursor']}"))["items"]
        assert second["job_id"] == failed
        other = await scenario.api.user("other@example.com")
        assert (await other.get("/api/deliveries"))["items"] == []

    async def test_redelivery_keeps_its_id(self, scenario: Scenario) -> None:
        job_id = await scenario.finish_job()
        await scenario.send()
        [delivery] = await scenario.deliveries(job_id)
        again = await scenario.caller.post(f"/api/deliveries/{delivery['id']}/redeliver")
        assert (again["status"], again["delivered_at"]) == ("pending", None)
        assert await scenario.send() == 1
        [(first, body), (second, same)] = scenario.receiver.received
        assert (first["webhook-id"], body) == (second["webhook-id"], same)
        [delivery] = await scenario.deliveries(job_id)
        # attempts are counted from zero again
        assert (delivery["status"], delivery["attempts"]) == ("delivered", 1)

    async def test_dead_delivery_uses_the_current_url(self, scenario: Scenario) -> None:
        async with open_receiver() as old:
            old.statuses = [500] * (len(RETRY_DELAYS_SECONDS) + 1)
            data_of(await scenario.caller.call("PUT", "/api/webhook", {"url": old.url}))
            job_id = await scenario.submit()
            await scenario.complete()
            while await scenario.send():
                await scenario.advance(RETRY_DELAYS_SECONDS[-1] + 1)
        [delivery] = await scenario.deliveries(job_id)
        assert delivery["status"] == "given_up"
        data_of(await scenario.caller.call("PUT", "/api/webhook", {"url": scenario.receiver.url}))
        await scenario.caller.post(f"/api/deliveries/{delivery['id']}/redeliver")
        # as many attempts are left as for a new delivery
        scenario.receiver.statuses = [500]
        await scenario.send()
        [delivery] = await scenario.deliveries(job_id)
        assert (delivery["status"], delivery["attempts"]) == ("pending", 1)
        await scenario.advance(RETRY_DELAYS_SECONDS[0] + 1)
        await scenario.send()
        assert len(scenario.receiver.received) == 2
        assert (await scenario.deliveries(job_id))[0]["status"] == "delivered"

    async def test_redeliveries_are_limited(self, scenario: Scenario) -> None:
        job_id = await scenario.finish_job()
        await scenario.send()
        [delivery] = await scenario.deliveries(job_id)
        path = f"/api/deliveries/{delivery['id']}/redeliver"
        most = REDELIVERIES_FACTOR * scenario.api.engine.settings.rate_limit_per_minute
        answers = [(await scenario.caller.call("POST", path)).status_code for _ in range(most + 1)]
        assert answers == [200] * most + [429]

    async def test_other_tenants_delivery_is_404(self, scenario: Scenario) -> None:
        job_id = await scenario.finish_job()
        await scenario.send()
        [delivery] = await scenario.deliveries(job_id)
        other = await scenario.api.user("other@example.com")
        problem_of(await other.call("POST", f"/api/deliveries/{delivery['id']}/redeliver"), 404)
        assert await scenario.send() == 0


class TestTestDelivery:
    async def test_test_delivery_is_signed_and_returns_the_response(self, scenario: Scenario) -> None:
        problem_of(await scenario.caller.call("POST", "/api/webhook/test"), 409)
        secret = data_of(await scenario.caller.call("PUT", "/api/webhook", {"url": scenario.receiver.url}))["secret"]
        scenario.receiver.statuses = [418]
        answer = await scenario.caller.post("/api/webhook/test")
        assert answer == {"is_delivered": False, "status_code": 418, "error": "The response was 418."}
        assert (await scenario.caller.post("/api/webhook/test"))["is_delivered"] is True
        headers, body = scenario.receiver.received[0]
        assert Webhook(secret).verify(body, headers)["type"] == "webhook.test"
        assert (await scenario.caller.get("/api/deliveries"))["items"] == []

    async def test_test_deliveries_are_limited(self, scenario: Scenario) -> None:
        data_of(await scenario.caller.call("PUT", "/api/webhook", {"url": scenario.receiver.url}))
        for _ in range(10):
            await scenario.caller.post("/api/webhook/test")
        problem_of(await scenario.caller.call("POST", "/api/webhook/test"), 429)
        assert len(scenario.receiver.received) == 10


class TestAddresses:
    async def test_delivery_to_a_private_address_is_refused(self, scenario: Scenario) -> None:
        careful = DeliveryService(
            scenario.api.engine.databases, WebhookSender(allow_private=False), on_recorded=lambda: None
        )
        job_id = await scenario.finish_job()
        await careful.run_once()
        assert scenario.receiver.received == []
        assert (await scenario.deliveries(job_id))[0]["last_error"] == NOT_PUBLIC_TEXT

    @pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]"])
    async def test_private_address_is_refused_in_any_notation(self, receiver: Receiver, host: str) -> None:
        url = receiver.url.replace("127.0.0.1", host)
        sent = await WebhookSender(allow_private=False).send(url, "{}", {})
        assert sent.status_code is None
        assert sent.error in {NOT_PUBLIC_TEXT, "The host cannot be found."}

    async def test_dns_rebinding_is_refused(self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
        """The name is resolved once, and the checked address is the one connected to."""
        port = int(receiver.url.rpartition(":")[2].partition("/")[0])
        addresses = {"rebind.test": iter(["127.0.0.1", "127.0.0.2"])}

        def getaddrinfo(host: str, *_: Any, **__: Any) -> Any:
            address = next(addresses[host]) if host in addresses else host
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

        monkeypatch.setattr("comfyrelay.services.webhooks.sender.is_public", lambda address: address == "127.0.0.1")
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        sender = WebhookSender(allow_private=False)
        assert (await sender.send(f"http://rebind.test:{port}/hook", "{}", {})).is_ok
        assert (await sender.send(f"http://rebind.test:{port}/hook", "{}", {})).error == NOT_PUBLIC_TEXT
        assert len(receiver.received) == 1

    async def test_host_header_is_the_host_of_the_url(self, receiver: Receiver) -> None:
        port = receiver.url.rpartition(":")[2].partition("/")[0]
        sent = await WebhookSender(allow_private=True).send(f"http://localhost:{port}/hook", "{}", {})
        assert sent.is_ok
        assert receiver.received[0][0]["Host"] == f"localhost:{port}"

    @pytest.mark.parametrize(
        "address",
        [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.100.100.200",
            "192.88.99.1",
            "3fff::1",
            "3fff:fff:ffff::1",
            "5f00::1",
            "100:0:0:1::1",
            "192.0.0.192",
            "168.63.129.16",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::",
            "fe80::1",
            "fec0::1",
            "fd00:ec2::254",
            "ff02::1",
        ],
    )
    def test_private_address_is_not_public(self, address: str) -> None:
        assert not is_public(address)

    @pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
    def test_public_address_is_public(self, address: str) -> None:
        assert is_public(address)

    @pytest.mark.parametrize(
        "url",
        [
            "ftp://example.com/",
            "example.com/hook",
            "https://",
            "https:///hook",
            "https://user@example.com/",
            "https://user:password@example.com/",
            "https://example.com:99999/",
            "https://[::1/",
            "https://exa mple.com/",
            "https://example.com/\n",
            "https://example.com/" + "x" * 3000,
            "javascript:alert(1)",
        ],
    )
    def test_invalid_url_is_refused(self, url: str) -> None:
        assert url_problem(url) is not None

    @pytest.mark.parametrize(
        "url", ["https://example.com/hook?x=1", "http://example.com:8080", "https://bücher.example"]
    )
    def test_valid_url_is_accepted(self, url: str) -> None:
        assert url_problem(url) is None

    @pytest.mark.parametrize(
        "host",
        [
            *("localhost", "localhost.", "a.localhost", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]"),
            *("[::ffff:127.0.0.1]", "10.1.2.3", "169.254.169.254", "[fd00:ec2::254]"),
        ],
    )
    def test_private_host_is_refused_without_dns(self, host: str) -> None:
        assert url_problem(f"http://{host}:8080/hook", allow_private=False) == NOT_PUBLIC_TEXT
        assert url_problem(f"http://{host}:8080/hook", allow_private=True) is None

    @pytest.mark.parametrize(
        "host", ["example.com", "8.8.8.8", "[2606:4700::1111]", "localhost.example", "127.example"]
    )
    def test_public_host_name_is_accepted(self, host: str) -> None:
        assert url_problem(f"https://{host}/hook", allow_private=False) is None

    async def test_private_address_is_refused_before_sending(self, api: Api) -> None:
        caller, effect_id = await api.user(tokens=100), await api.effect()
        url = "http://127.0.0.1:8080/hook"
        refused = problem_of(await caller.call("PUT", "/api/webhook", {"url": url}), 422)
        assert refused["errors"] == {"url": NOT_PUBLIC_TEXT}
        named = {"effect_id": effect_id, "idempotency_key": "k", "webhook_url": url}
        batch: dict[str, Any] = {**named, "items": [{}]}
        for path, body in (("/api/ai-jobs", named), ("/api/batches", batch)):
            refused = problem_of(await caller.call("POST", path, body), 422)
            assert refused["errors"] == {"webhook_url": NOT_PUBLIC_TEXT}
        assert (await caller.get("/api/wallet"))["balance"] == 100


class TestTenantWebhook:
    async def test_secret_is_shown_once(self, scenario: Scenario) -> None:
        empty = await scenario.caller.get("/api/webhook")
        assert empty == {"url": None, "has_secret": False, "updated_at": None, "secret": None}
        first = data_of(await scenario.caller.call("PUT", "/api/webhook", {"url": "https://example.com/a"}))
        assert first["secret"].startswith("whsec_")
        assert (await scenario.caller.get("/api/webhook"))["secret"] is None
        again = data_of(await scenario.caller.call("PUT", "/api/webhook", {"url": "https://example.com/b"}))
        assert (again["url"], again["secret"]) == ("https://example.com/b", None)
        rotated = data_of(await scenario.caller.call("PUT", "/api/webhook", {"url": None, "rotate_secret": True}))
        assert rotated["secret"] not in (None, first["secret"])

    async def test_deleted_webhook_is_not_called(self, scenario: Scenario) -> None:
        data_of(await scenario.caller.call("PUT", "/api/webhook", {"url": scenario.receiver.url}))
        assert (await scenario.caller.call("DELETE", "/api/webhook")).status_code == 204
        assert (await scenario.caller.get("/api/webhook"))["url"] is None
        await scenario.submit()
        await scenario.complete()
        assert await scenario.send() == 0

    async def test_invalid_webhook_url_is_refused(self, scenario: Scenario) -> None:
        for url in ("ftp://example.com", "https://a:b@example.com", "https://example.com/\x00"):
            problem = problem_of(await scenario.caller.call("PUT", "/api/webhook", {"url": url}), 422)
            assert "url" in problem["errors"]

    async def test_deliveries_are_private(self, scenario: Scenario) -> None:
        job_id = await scenario.finish_job()
        other = await scenario.api.user("other@example.com")
        for path in (f"/api/ai-jobs/{job_id}/deliveries", "/api/ai-jobs/nothing/deliveries"):
            problem_of(await other.call("GET", path), 404)
        for method, path in (("GET", "/api/webhook"), ("DELETE", "/api/webhook")):
            problem_of(await scenario.api.anonymous.call(method, path), 401)
        problem_of(await scenario.api.anonymous.call("PUT", "/api/webhook", {}), 401)
