"""Several server processes over one PostgreSQL wake each other, stop gracefully and survive kills."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from comfyrelay.domain.records.accounts import User
from comfyrelay.services.engine import Engine
from comfyrelay.services.jobs.submission.requests import JobRequest
from comfyrelay.settings import Settings
from comfyrelay.store.tenant import job_list
from tests.kept.next_version import next_version
from tests.support.api import FLEET_SECRET, PASSWORD, SECRETS
from tests.support.server_processes import ServerProcess, server_process
from tests.support.world import GRAPH, OUTPUT, PATIENCE_SECONDS, PROMPT, PostgresBackend

SECRET = {"X-Fleet-Secret": FLEET_SECRET}


@dataclass
class Site:
    """The settings that the servers share, an engine on their databases, and a user who may submit jobs."""

    engine: Engine
    settings: dict[str, str]
    user: User
    token: dict[str, str]
    effect_id: int

    async def submit(self, http: httpx.AsyncClient, key: str) -> str:
        body = {"effect_id": self.effect_id, "idempotency_key": key, "input_payload": {}}
        answer = await http.post("/api/ai-jobs", json=body, headers=self.token)
        assert answer.is_success, answer.text
        job_id: str = answer.json()["data"]["id"]
        return job_id


@pytest.fixture
async def site(real_postgres_backend: PostgresBackend, tmp_path: Path) -> AsyncIterator[Site]:
    async with real_postgres_backend.databases(["main"]) as (central, shards, _clock):
        settings = {
            "DATA_DIR": str(tmp_path),
            "DATABASE_URL": central,
            "SHARDS": str(shards).replace("'", '"'),
            "OUTPUT_VALIDATION": "warn",
            "MAX_ACTIVE_JOBS_PER_USER": "1000",
            "LEASE_TTL_SECONDS": "2",
            "REAPER_INTERVAL_SECONDS": "0.2",
            "MAX_ATTEMPTS": "50",
            "RATE_LIMIT_PER_MINUTE": "100000",
        }
        own = Settings(data_dir=tmp_path, database_url=central, shards=shards)
        async with Engine(own, signing_secrets=SECRETS.signing) as engine:
            user = await engine.accounts.sign_in.register(email="ada@example.com", password=PASSWORD)
            await engine.accounts.ledger.credit(user.tenant_id, 10_000, reference="test")
            secret = (await engine.accounts.sign_in.issue(user, name="test")).secret
            await engine.catalogue.workflows.create(slug="clip", graph=GRAPH, properties=[PROMPT])
            effect = await engine.catalogue.effects.create(slug="clip", workflow_slug="clip", credits_cost=1)
            await engine.workers.fleets.create(slug="home", max_workers=1000, workflow_slugs=["clip"])
            yield Site(engine, settings, user, {"Authorization": f"Bearer {secret}"}, effect.id)


async def registered(http: httpx.AsyncClient, worker_id: str) -> dict[str, str]:
    body = {"worker_id": worker_id, "fleet_slug": "home"}
    answer = await http.post("/api/worker/register", json=body, headers=SECRET)
    assert answer.is_success, answer.text
    return {"Authorization": f"Bearer {answer.json()['data']['token']}"}


async def poll(http: httpx.AsyncClient, worker_id: str, token: dict[str, str], wait_seconds: float) -> Any:
    body = {"worker_id": worker_id, "wait_seconds": wait_seconds}
    answer = await http.post("/api/worker/poll", json=body, headers=token)
    assert answer.is_success, answer.text
    return answer.json()["data"]["job"]


async def until_parked(http: httpx.AsyncClient) -> None:
    """Wait until the server counts a parked poll in its metrics, which it updates once per second."""
    while "pollers_parked 1.0" not in (await http.get("/metrics")).text:
        pass


async def test_preview_request_on_one_server_reaches_a_worker_on_another(site: Site) -> None:
    async with server_process(site.settings) as one, server_process(site.settings) as other:
        token = await registered(one.http, "gpu-1")
        job_id = await site.submit(one.http, "k")
        job = await poll(one.http, "gpu-1", token, 30)
        lease = {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"], "preview_seconds": 0}

        async def heard() -> str:
            # leases are short here, so a heartbeat may be answered before the preview is requested
            while True:
                body = {**lease, "wait_seconds": 1}
                answer = await one.http.post("/api/worker/heartbeat", json=body, headers=token)
                assert answer.is_success, answer.text
                if (url := answer.json()["data"]["preview_url"]) is not None:
                    return str(url)

        hearing = asyncio.create_task(heard())
        looked = await other.http.get(f"/api/ai-jobs/{job_id}/preview", headers=site.token)
        assert looked.status_code == 204
        assert f"/previews/{site.user.tenant_id}/{job_id}.jpg" in await hearing


@pytest.mark.journey
async def test_job_submitted_to_one_server_wakes_a_worker_parked_on_another(site: Site) -> None:
    async with server_process(site.settings) as one, server_process(site.settings) as other:
        token = await registered(one.http, "gpu-1")
        waiting = asyncio.create_task(poll(one.http, "gpu-1", token, 30))
        job_id = await site.submit(other.http, "k")
        assert (await waiting)["job_id"] == job_id


@pytest.mark.journey
async def test_stopping_server_answers_parked_polls(site: Site) -> None:
    async with server_process(site.settings) as server:
        token = await registered(server.http, "gpu-1")
        waiting = asyncio.create_task(poll(server.http, "gpu-1", token, 30))
        await until_parked(server.http)
        server.process.send_signal(signal.SIGTERM)
        assert await waiting is None
        assert await server.process.wait() == 0


async def test_disconnected_worker_gets_no_lease(site: Site) -> None:
    async with server_process(site.settings) as server:
        token = await registered(server.http, "gpu-1")
        async with httpx.AsyncClient(base_url=server.url) as http:
            abandoned = asyncio.create_task(poll(http, "gpu-1", token, 30))
            await server.http.get("/healthz")
            abandoned.cancel()
        job_id = await site.submit(server.http, "k")
        other = await registered(server.http, "gpu-2")
        job = await poll(server.http, "gpu-2", other, 30)
        assert (job["job_id"], job["attempt"]) == (job_id, 1)


class KilledServers:
    """Servers that are killed and restarted, with clients that retry."""

    def __init__(self, site: Site, servers: int) -> None:
        self.site = site
        self.alive: list[ServerProcess | None] = [None] * servers
        self.is_over = asyncio.Event()

    async def kill_and_restart(self, number: int, kills: int, *, dice: random.Random) -> None:
        for _ in range(kills):
            async with server_process(self.site.settings) as server:
                self.alive[number] = server
                # the server is killed at an arbitrary point
                await asyncio.sleep(dice.uniform(0.1, 0.6))
                self.alive[number] = None
                await server.kill()
        async with server_process(self.site.settings) as server:
            self.alive[number] = server
            await self.is_over.wait()
            self.alive[number] = None

    @asynccontextmanager
    async def some_server(self, dice: random.Random) -> AsyncIterator[httpx.AsyncClient]:
        while not (able := [server for server in self.alive if server is not None]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        yield dice.choice(able).http

    async def send_until_answered(
        self, dice: random.Random, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> Any:
        """Retry until a server answers; repeated requests must count only once."""
        while True:
            async with self.some_server(dice) as http:
                try:
                    answer = await http.post(path, json=body, headers=headers)
                except httpx.HTTPError:
                    continue
            if answer.status_code < 500:
                return answer

    async def work(self, worker_id: str, seed: int) -> None:
        dice = random.Random(seed)
        body = {"worker_id": worker_id, "fleet_slug": "home"}
        answer = await self.send_until_answered(dice, "/api/worker/register", body, SECRET)
        while answer.status_code != 201:
            # the response was lost, so the worker is registered but has no token
            body["worker_id"] += "x"
            answer = await self.send_until_answered(dice, "/api/worker/register", body, SECRET)
        token = {"Authorization": f"Bearer {answer.json()['data']['token']}"}
        while True:
            request = {
                "worker_id": body["worker_id"],
                "wait_seconds": 0.5,
                "request_id": f"{worker_id}-{dice.random()}",
            }
            polled = await self.send_until_answered(dice, "/api/worker/poll", request, token)
            job = polled.json()["data"]["job"] if polled.is_success else None
            if job is not None:
                lease = {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}
                output = {"output": {"size": 1, "mime_type": "video/mp4"}}
                await self.send_until_answered(dice, "/api/worker/complete", {**lease, **output}, token)


@pytest.mark.journey
async def test_servers_can_be_killed_between_any_two_steps(site: Site) -> None:
    """Submit, poll and complete under load while servers die: every job ends once and is charged once."""
    killing = KilledServers(site, servers=2)
    dice = random.Random(7)
    count = 60
    async with asyncio.TaskGroup() as group:
        for number in range(2):
            group.create_task(killing.kill_and_restart(number, kills=3, dice=random.Random(number)))
        workers = [group.create_task(killing.work(f"gpu-{number}", seed=number)) for number in range(6)]
        for number in range(count):
            body = {"effect_id": site.effect_id, "idempotency_key": f"k{number}", "input_payload": {}}
            answer = await killing.send_until_answered(dice, "/api/ai-jobs", body, site.token)
            assert answer.is_success, answer.text
        # other processes complete the jobs and send no signal
        while await _unfinished(site):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        for worker in workers:
            worker.cancel()
        killing.is_over.set()
    report = await site.engine.operations.reconciler.run(repair=False)
    assert report.findings == []
    assert await site.engine.accounts.ledger.balance(site.user.tenant_id) == 10_000 - count


async def _unfinished(site: Site) -> int:
    async with site.engine.databases.shards["main"].read() as tx:
        found = await job_list.listed(tx, site.user.tenant_id, limit=200)
    return sum(job.status != "completed" for job in found) or (0 if found else 1)


async def test_change_on_one_server_reaches_an_administrator_on_another(site: Site) -> None:
    admin = await site.engine.accounts.sign_in.register(email="root@example.com", password=PASSWORD, is_admin=True)
    token = {"Authorization": f"Bearer {(await site.engine.accounts.sign_in.issue(admin, name='t')).secret}"}
    async with (
        server_process(site.settings) as one,
        server_process(site.settings) as other,
        one.http.stream("GET", "/api/admin/events", headers=token) as stream,
    ):
        lines = stream.aiter_lines()

        async def until_received(part: str) -> None:
            async for line in lines:
                if part in line:
                    return

        await until_received("event: reset")
        # this is sent as a notification, because no row records it
        changed = asyncio.create_task(until_received('"effects":["clip"]'))
        while not changed.done():
            answer = await other.http.patch("/api/admin/effects/clip", json={"name": "Clip"}, headers=token)
            assert answer.is_success, answer.text
            await asyncio.wait({changed}, timeout=1)
        # polling finds this
        await registered(other.http, "gpu-7")
        await until_received('"gpu-7"')


async def test_worker_log_on_one_server_is_visible_on_another(site: Site) -> None:
    admin = await site.engine.accounts.sign_in.register(email="root@example.com", password=PASSWORD, is_admin=True)
    token = {"Authorization": f"Bearer {(await site.engine.accounts.sign_in.issue(admin, name='t')).secret}"}
    async with server_process(site.settings) as one, server_process(site.settings) as other:
        worker = await registered(one.http, "gpu-1")

        async def poll_once() -> None:
            body = {"worker_id": "gpu-1", "wait_seconds": 30}
            while True:
                answer = await one.http.post("/api/worker/poll", json=body, headers=worker)
                if answer.json()["data"]["wants_logs"]:
                    return

        asking = asyncio.create_task(poll_once())
        looked = await other.http.get("/api/admin/workers/gpu-1/logs", headers=token)
        assert looked.status_code == 202
        await asking
        await one.http.post("/api/worker/logs", json={"lines": ["hello"]}, headers=worker)
        looked = await other.http.get("/api/admin/workers/gpu-1/logs", headers=token)
        assert looked.json()["data"]["lines"] == ["hello"]


async def test_servers_of_two_versions_share_a_database(site: Site, tmp_path: Path) -> None:
    async with server_process(site.settings) as old, AsyncExitStack() as stack:
        token = await registered(old.http, "gpu-1")
        waiting = await site.submit(old.http, "before")
        stack.enter_context(next_version(tmp_path / "migrations"))
        own = site.engine.settings
        # The next version upgrades while the old server runs.
        new = await stack.enter_async_context(Engine(own, signing_secrets=SECRETS.signing))
        new.databases.copies = None
        await new.databases.upgrade()
        assert (await new.databases.states())["central"].revision == "central_0002"
        assert (await old.http.get("/readyz")).status_code == 200
        # The old server accepts and leases jobs of both versions, and the new server completes them.
        request = JobRequest(
            tenant_id=site.user.tenant_id, user_id=site.user.id, idempotency_key="after", effect_id=site.effect_id
        )
        added = (await new.jobs.submit.submit(request)).id
        for job_id in (waiting, added, await site.submit(old.http, "later")):
            job = await poll(old.http, "gpu-1", token, 30)
            assert job["job_id"] == job_id
            await new.queue.settle.complete(job["dispatch_id"], job["lease_token"], output=OUTPUT)
            async with asyncio.timeout(PATIENCE_SECONDS):
                # The old server records the lease, and recovery records the completion if it arrives first.
                while await status(old.http, job_id, site.token) != "completed":  # noqa: ASYNC110
                    await asyncio.sleep(0.1)


async def status(http: httpx.AsyncClient, job_id: str, token: dict[str, str]) -> str:
    answer = await http.get(f"/api/ai-jobs/{job_id}", headers=token)
    found: str = answer.json()["data"]["status"]
    return found
