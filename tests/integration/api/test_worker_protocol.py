"""The worker protocol over HTTP: seven calls, their answers and every documented error."""

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from comfyrelay.domain.records.accounts import User
from comfyrelay.protocol import worker as wire
from comfyrelay.services.jobs.submission.requests import JobRequest
from comfyrelay.services.queue.heartbeats import Heartbeat, HeartbeatResult
from comfyrelay.services.queue.lease_payload import LeasePayloads
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.workers import workers
from comfyrelay.store.database import Boundary
from tests.support.api import FLEET_SECRET, SECRETS, Api, Caller, data_of, open_api, problem_of
from tests.support.world import GRAPH, PATIENCE_SECONDS, PROMPT, SqliteBackend

SECRET = {"X-Fleet-Secret": FLEET_SECRET}


def picture() -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(made, "PNG")
    return made.getvalue()


PICTURE = picture()


@dataclass(frozen=True)
class Made:
    """A user with an effect and a job of it."""

    user: User
    effect_id: int
    job_id: str


async def submitted(api: Api) -> Made:
    effect_id = await api.effect()
    user = (await api.user(tokens=100)).user
    assert user is not None
    return Made(user, effect_id, await submit(api, user, effect_id, "one"))


async def submit(api: Api, user: User, effect_id: int, key: str) -> str:
    request = JobRequest(tenant_id=user.tenant_id, user_id=user.id, idempotency_key=key, effect_id=effect_id)
    return (await api.engine.jobs.submit.submit(request)).id


async def balance(api: Api, made: Made) -> int:
    await api.engine.outbox.delivery.idle()
    return await api.engine.accounts.ledger.balance(made.user.tenant_id)


async def until(condition: Callable[[], object]) -> None:
    """Yield to other tasks until the condition holds."""
    while not condition():  # noqa: ASYNC110  (there is no event)
        await asyncio.sleep(0.001)


async def poll(worker: Caller, worker_id: str = "gpu-1", **more: Any) -> dict[str, Any] | None:
    answer = await worker.post("/api/worker/poll", {"worker_id": worker_id, **more})
    job: dict[str, Any] | None = answer["job"]
    return job


def lease_of(job: dict[str, Any]) -> dict[str, Any]:
    return {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}


async def upload(api: Api, job: dict[str, Any], content: bytes = PICTURE) -> None:
    answer = await api.anybody.http.put(job["output_url"], content=content, headers=job["output_headers"])
    assert answer.is_success, answer.text


def output(content: bytes = PICTURE) -> dict[str, Any]:
    return {"output": {"size": len(content), "mime_type": "image/png"}}


class TestRegister:
    async def test_worker_joins_its_fleet_and_gets_a_token_once(self, api: Api) -> None:
        await api.effect()
        body = {
            "worker_id": "i-123",
            "fleet_slug": "home-clip",
            "max_concurrency": 2,
            "capabilities": {"gpu": "RTX"},
            "display_name": "Under the desk",
            "capacity_type": "spot",
            "instance_type": "g5.xlarge",
        }
        response = await api.anybody.call("POST", "/api/worker/register", body, headers=SECRET)
        assert response.status_code == 201
        answer = data_of(response)
        assert len(answer.pop("token")) == 64
        assert answer == {
            "worker_id": "i-123",
            "workflows_assigned": ["clip"],
            "fleet_slug": "home-clip",
            "stage": "production",
            "leases": 0,
            "protocol": wire.PROTOCOL,
        }

    async def test_dry_run_says_what_would_happen_and_registers_nothing(self, api: Api) -> None:
        await api.effect()
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip", "dry_run": True}
        response = await api.anybody.call("POST", "/api/worker/register", body, headers=SECRET)
        assert response.status_code == 200
        assert data_of(response) == {
            "worker_id": "gpu-1",
            "token": "",
            "workflows_assigned": ["clip"],
            "fleet_slug": "home-clip",
            "stage": "production",
            "leases": 0,
            "protocol": wire.PROTOCOL,
            "missing": {},
        }
        async with api.engine.databases.central.read() as tx:
            assert await workers.get(tx, "gpu-1") is None

    async def test_dry_run_reports_missing_requirements(self, api: Api) -> None:
        await api.effect()
        has = {"node_types": ["Prompt", "SaveVideo"], "models": {"checkpoints": []}}
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip", "capabilities": has, "dry_run": True}
        tried = await api.anybody.post("/api/worker/register", body, headers=SECRET)
        assert tried["missing"] == {"clip": ["CheckpointLoader", "model.safetensors"]}

    async def test_registered_worker_may_try_though_its_fleet_is_full(self, api: Api) -> None:
        await api.effect()
        await api.engine.workers.fleets.create(slug="small", max_workers=1, workflow_slugs=["clip"])
        await api.worker("gpu-1", fleet="small")
        body = {"worker_id": "gpu-1", "fleet_slug": "small", "dry_run": True}
        assert (await api.anybody.post("/api/worker/register", body, headers=SECRET))["workflows_assigned"] == ["clip"]
        other = {**body, "worker_id": "gpu-2"}
        problem_of(await api.anybody.call("POST", "/api/worker/register", other, headers=SECRET), 403)

    @pytest.mark.parametrize(
        ("wrong", "headers", "status"),
        [({}, {}, 401), ({"fleet_slug": "none"}, SECRET, 404), ({"workflow_slugs": ["other"]}, SECRET, 422)],
    )
    async def test_dry_run_is_refused_like_a_registration(
        self, api: Api, wrong: dict[str, Any], headers: dict[str, str], status: int
    ) -> None:
        await api.effect()
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip", **wrong}
        tried = await api.anybody.call("POST", "/api/worker/register", {**body, "dry_run": True}, headers=headers)
        real = await api.anybody.call("POST", "/api/worker/register", body, headers=headers)
        assert problem_of(tried, status) == problem_of(real, status)

    @pytest.mark.parametrize(
        ("headers", "stage"),
        [
            ({}, "production"),
            ({"X-Fleet-Secret": "wrong"}, "production"),
            ({"X-Fleet-Secret": "fleet-secret-of-staging"}, "production"),
            (SECRET, "staging"),
        ],
    )
    async def test_wrong_secret_or_one_of_another_stage_is_refused(
        self, api: Api, headers: dict[str, str], stage: str
    ) -> None:
        body = {"worker_id": "w", "fleet_slug": "home-clip", "stage": stage}
        problem_of(await api.anybody.call("POST", "/api/worker/register", body, headers=headers), 401)

    async def test_two_secrets_are_valid_while_one_is_being_replaced(self, api: Api) -> None:
        await api.effect()
        body = {"worker_id": "w", "fleet_slug": "home-clip"}
        await api.anybody.post("/api/worker/register", body, headers={"X-Fleet-Secret": SECRETS.fleet["production"][1]})

    async def test_unknown_fleet_is_not_found(self, api: Api) -> None:
        body = {"worker_id": "w", "fleet_slug": "nowhere"}
        problem_of(await api.anybody.call("POST", "/api/worker/register", body, headers=SECRET), 404)

    async def test_id_that_is_taken_is_a_conflict(self, api: Api) -> None:
        await api.effect()
        await api.worker("gpu-1")
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip"}
        problem_of(await api.anybody.call("POST", "/api/worker/register", body, headers=SECRET), 409)

    async def test_name_of_a_worker_that_is_gone_may_be_taken_again(self, api: Api) -> None:
        await submitted(api)
        lost = await api.worker()
        job = await poll(lost)
        assert job is not None
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip"}
        await api.clock.set(api.clock.now + timedelta(seconds=301))
        # it holds a job, which it may still be running
        problem_of(await api.anybody.call("POST", "/api/worker/register", body, headers=SECRET), 409)
        await lost.post("/api/worker/requeue", {**lease_of(job), "reason": "shutdown"})
        await api.anybody.post("/api/worker/register", body, headers=SECRET)
        problem_of(await lost.call("POST", "/api/worker/poll", {"worker_id": "gpu-1"}), 401)

    async def test_name_of_a_worker_that_was_revoked_may_not(self, api: Api) -> None:
        await api.effect()
        await api.worker()
        await api.engine.workers.workers.set_approved("gpu-1", is_approved=False)
        await api.clock.set(api.clock.now + timedelta(seconds=301))
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip"}
        problem_of(await api.anybody.call("POST", "/api/worker/register", body, headers=SECRET), 409)

    async def test_full_fleet_refuses_registration(self, api: Api) -> None:
        await api.effect()
        await api.engine.workers.fleets.create(slug="small", max_workers=1, workflow_slugs=["clip"])
        await api.worker("gpu-1", fleet="small")
        body = {"worker_id": "gpu-2", "fleet_slug": "small"}
        problem_of(await api.anybody.call("POST", "/api/worker/register", body, headers=SECRET), 403)

    async def test_fleet_without_an_active_workflow_refuses_registration(self, api: Api) -> None:
        await api.engine.workers.fleets.create(slug="empty")
        body = {"worker_id": "w", "fleet_slug": "empty"}
        problem = problem_of(await api.anybody.call("POST", "/api/worker/register", body, headers=SECRET), 422)
        assert "no active workflow" in problem["errors"]["fleet_slug"]

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"fleet_slug": "x"}, "worker_id"),
            ({"worker_id": "", "fleet_slug": "x"}, "worker_id"),
            ({"worker_id": "w", "fleet_slug": "x", "max_concurrency": 0}, "max_concurrency"),
            ({"worker_id": "w", "fleet_slug": "x", "stage": "moon"}, "stage"),
        ],
    )
    async def test_bad_body_names_the_field(self, api: Api, body: dict[str, Any], field: str) -> None:
        problem = problem_of(await api.anybody.call("POST", "/api/worker/register", body, headers=SECRET), 422)
        assert list(problem["errors"]) == [field]

    async def test_fields_that_only_a_newer_worker_knows_are_ignored(self, api: Api) -> None:
        made = await submitted(api)
        worker = await api.worker(of_a_newer_version=1)
        leased = await worker.post("/api/worker/poll", {"worker_id": "gpu-1", "of_a_newer_version": 1})
        named = {name: leased["job"][name] for name in ("dispatch_id", "lease_token")} | {"of_a_newer_version": 1}
        assert leased["job"]["job_id"] == made.job_id
        assert (await worker.post("/api/worker/heartbeat", named))["stop"] is None
        assert (await worker.post("/api/worker/requeue", {**named, "reason": "leaving"}))["status"] == "queued"
        assert await worker.post("/api/worker/deregister", {"of_a_newer_version": 1}) == {"released": 0}

    async def test_address_registers_ten_times_a_minute(self, api: Api) -> None:
        body = {"worker_id": "w", "fleet_slug": "nowhere"}
        for _ in range(10):
            problem_of(await api.anybody.call("POST", "/api/worker/register", body, headers=SECRET), 404)
        response = await api.anybody.call("POST", "/api/worker/register", body, headers=SECRET)
        problem_of(response, 429)
        assert 0 < int(response.headers["Retry-After"]) <= 60


class TestPoll:
    async def test_nothing_to_do(self, api: Api) -> None:
        await api.effect()
        assert await poll(await api.worker()) is None

    async def test_job_comes_with_all_that_it_needs(self, api: Api) -> None:
        made = await submitted(api)
        job = await poll(await api.worker())
        assert job is not None
        assert job["job_id"] == made.job_id
        assert job["tenant_id"] == made.user.tenant_id
        assert job["effect_id"] == made.effect_id
        assert job["attempt"] == 1
        assert job["provider"] == "self_hosted"
        assert job["input_url"] is None
        assert job["output_headers"]["Content-Type"] == "image/png"
        payload = job["input_payload"]
        assert payload["workflow"]["2"]["inputs"]["text"] == PROMPT["default_value"]
        assert payload["workflow"]["1"] == GRAPH["1"]
        assert (payload["output_node_id"], payload["output_extension"]) == ("3", "png")
        assert payload["assets"] == []

    async def test_poll_that_waits_is_answered_when_a_job_comes(self, api: Api) -> None:
        effect_id = await api.effect()
        user = (await api.user(tokens=100)).user
        assert user is not None
        worker = await api.worker()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(poll(worker, wait_seconds=30))
            await until(lambda: api.engine.queue.polls.parked)
            await submit(api, user, effect_id, "one")
        job = waiting.result()
        assert job is not None

    async def test_lease_reports_how_many_more_jobs_wait(self, api: Api) -> None:
        effect_id = await api.effect()
        user = (await api.user(tokens=100)).user
        assert user is not None
        for key in ("one", "two", "three"):
            await submit(api, user, effect_id, key)
        worker = await api.worker()
        body = {"worker_id": "gpu-1", "max_concurrency": 3, "warm_workflow_hashes": ["something"]}
        waiting = [(await worker.post("/api/worker/poll", body))["more_waiting"] for _ in range(3)]
        assert waiting == [2, 1, 0]

    async def test_polled_concurrency_replaces_the_registered_one(self, api: Api) -> None:
        await api.effect()
        worker = await api.worker(max_concurrency=1)
        for slots in (3, 2):
            await poll(worker, max_concurrency=slots)
            async with api.engine.databases.central.read() as tx:
                known = await workers.get(tx, "gpu-1")
            assert known is not None
            assert known.max_concurrency == slots

    async def test_same_request_id_gets_the_same_lease_with_fresh_urls(self, api: Api) -> None:
        await submitted(api)
        worker = await api.worker()
        first, second = await poll(worker, request_id="r1"), await poll(worker, request_id="r1")
        assert first is not None
        assert second is not None
        assert lease_of(first) == lease_of(second)

    async def test_request_whose_lease_has_ended_is_answered_at_once(self, api: Api) -> None:
        await submitted(api)
        worker = await api.worker()
        job = await poll(worker, request_id="r1")
        assert job is not None
        await worker.post("/api/worker/requeue", {**lease_of(job), "reason": "spot_interruption"})
        async with asyncio.timeout(25):
            assert await poll(worker, request_id="r1", wait_seconds=30) is None
        assert await poll(worker, request_id="r2") is not None

    async def test_parked_polls_are_answered_when_the_server_stops(self, api: Api) -> None:
        await api.effect()
        worker = await api.worker()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(poll(worker, wait_seconds=30))
            await until(lambda: api.engine.queue.polls.parked)
            await api.context.stop_waiting()
        assert waiting.result() is None

    async def test_token_speaks_for_its_own_worker_only(self, api: Api) -> None:
        await api.effect()
        worker = await api.worker("gpu-1")
        problem_of(await worker.call("POST", "/api/worker/poll", {"worker_id": "gpu-2"}), 403)

    async def test_missing_or_wrong_token_is_401(self, api: Api) -> None:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}):
            problem_of(await api.anybody.call("POST", "/api/worker/poll", {"worker_id": "w"}, headers=headers), 401)

    async def test_revoked_worker_is_refused(self, api: Api) -> None:
        await api.effect()
        worker = await api.worker()
        await api.engine.workers.workers.set_approved("gpu-1", is_approved=False)
        api.context.forget_worker("gpu-1")
        problem_of(await worker.call("POST", "/api/worker/poll", {"worker_id": "gpu-1"}), 403)

    async def test_poll_parked_with_a_token_that_is_rotated_meanwhile_gets_no_job(self, api: Api) -> None:
        effect_id = await api.effect()
        user, admin = await api.user(tokens=100), await api.user("admin@example.com", is_admin=True)
        assert user.user is not None
        worker = await api.worker()
        body = {"worker_id": "gpu-1", "wait_seconds": 30}
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(worker.call("POST", "/api/worker/poll", body))
            await until(lambda: api.engine.queue.polls.parked)
            await admin.post("/api/admin/workers/gpu-1/rotate-token")
            await submit(api, user.user, effect_id, "one")
        problem_of(waiting.result(), 401)

    async def test_capabilities_are_written_when_they_change_and_only_then(self, api: Api) -> None:
        await api.effect()
        worker = await api.worker(capabilities={"gpus": 1})
        await api.stop_loops()
        written: list[str] = []

        async def note(step: str, at: Boundary) -> None:
            if step == TransactionStep.WORKER and at is Boundary.AFTER_COMMIT:
                written.append(step)

        api.engine.databases.central.crash = note
        for gpus, writes in ((1, 0), (2, 1), (2, 1), (1, 2)):
            await poll(worker, capabilities={"gpus": gpus})
            assert len(written) == writes
        async with api.engine.databases.central.read() as tx:
            known = await workers.get(tx, "gpu-1")
        assert known is not None
        assert known.capabilities == {"gpus": 1}

    async def test_deregistered_worker_is_refused_on_every_server(self, api: Api) -> None:
        await api.effect()
        worker = await api.worker()
        await poll(worker)
        await api.engine.workers.workers.deregister("gpu-1")
        problem_of(await worker.call("POST", "/api/worker/poll", {"worker_id": "gpu-1"}), 401)

    async def test_deregistration_affects_no_other_worker(self, api: Api) -> None:
        await api.effect()
        leaving, staying = await api.worker("gpu-1"), await api.worker("gpu-2")
        await poll(staying, "gpu-2")
        known = dict(api.context.worker_of._known)
        await leaving.post("/api/worker/deregister")
        assert dict(api.context.worker_of._known) == known
        problem_of(await leaving.call("POST", "/api/worker/poll", {"worker_id": "gpu-1"}), 401)

    async def test_draining_worker_gets_nothing(self, api: Api) -> None:
        await submitted(api)
        worker = await api.worker()
        await api.engine.workers.workers.set_draining("gpu-1", is_draining=True)
        assert await poll(worker) is None

    async def test_worker_at_capacity_gets_nothing(self, api: Api) -> None:
        made = await submitted(api)
        await submit(api, made.user, made.effect_id, "two")
        worker = await api.worker()
        assert await poll(worker) is not None
        assert await poll(worker) is None


class TestHeartbeat:
    async def test_heartbeat_extends_the_lease(self, api: Api) -> None:
        await submitted(api)
        worker = await api.worker()
        job = await poll(worker)
        assert job is not None
        body = {**lease_of(job), "progress": {"value": 0.5}, "logs": ["half way"]}
        answer = await worker.post("/api/worker/heartbeat", body)
        assert answer["stop"] is None
        assert answer["lease_expires_at"] >= job["lease_expires_at"]
        # the URLs are as new as the lease
        assert answer["urls"] is None

    async def test_heartbeat_returns_fresh_urls_on_request(self, api: Api) -> None:
        await submitted(api)
        worker = await api.worker()
        job = await poll(worker)
        assert job is not None
        answer = await worker.post("/api/worker/heartbeat", {**lease_of(job), "fresh_urls": True})
        assert answer["urls"]["output_url"].partition("?")[0] == job["output_url"].partition("?")[0]

    async def test_text_that_no_database_can_hold_is_refused(self, api: Api) -> None:
        await submitted(api)
        worker = await api.worker()
        job = await poll(worker)
        assert job is not None
        body = {**lease_of(job), "logs": ["a\0b"]}
        problem_of(await worker.call("POST", "/api/worker/heartbeat", body), 422)

    async def test_heartbeat_returns_fresh_urls_when_the_age_is_unknown(self, api: Api) -> None:
        await submitted(api)
        worker = await api.worker()
        job = await poll(worker)
        assert job is not None
        # like another server, which has not delivered this lease
        limits = {"lease_url_ttl_seconds": 900, "max_output_bytes": 1000, "max_output_files": 1}
        api.engine.queue.lease_payloads = LeasePayloads(
            api.engine.databases, api.engine.objects, api.engine.settings.model_copy(update=limits)
        )
        answer = await worker.post("/api/worker/heartbeat", lease_of(job))
        assert answer["urls"]["output_url"].partition("?")[0] == job["output_url"].partition("?")[0]

    async def test_parked_heartbeat_returns_on_cancel(self, api: Api) -> None:
        made = await submitted(api)
        worker = await api.worker()
        job = await poll(worker)
        assert job is not None
        async with asyncio.TaskGroup() as group:
            body = {**lease_of(job), "wait_seconds": 30}
            waiting = group.create_task(worker.post("/api/worker/heartbeat", body))
            await until(lambda: api.engine.queue.stop_requests.waiting)
            await api.engine.queue.control.cancel(made.user.tenant_id, made.job_id)
        assert waiting.result()["stop"] == "cancel"

    async def test_heartbeat_after_a_cancel_returns_at_once(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has read that it may continue, and does not wait yet. No tick wakes it here."""
        made = await submitted(api)
        worker = await api.worker()
        job = await poll(worker)
        assert job is not None
        api.engine.queue.stop_requests._tick_seconds = 10 * PATIENCE_SECONDS
        beat = api.engine.queue.heartbeats.beat

        async def beat_and_cancel(given: Heartbeat) -> HeartbeatResult:
            answer = await beat(given)
            if answer.stop is None:
                await api.engine.queue.control.cancel(made.user.tenant_id, made.job_id)
            return answer

        monkeypatch.setattr(api.engine.queue.heartbeats, "beat", beat_and_cancel)
        monkeypatch.setattr(wire, "MAX_WAIT_SECONDS", 10 * PATIENCE_SECONDS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await worker.post(
                "/api/worker/heartbeat", {**lease_of(job), "wait_seconds": 10 * PATIENCE_SECONDS}
            )
        assert answer["stop"] == "cancel"


class TestSettling:
    async def test_complete_with_its_output_is_accepted_and_may_be_repeated(self, api: Api) -> None:
        made = await submitted(api)
        worker = await api.worker()
        job = await poll(worker)
        assert job is not None
        await upload(api, job)
        for _ in range(2):
            answer = await worker.post("/api/worker/complete", {**lease_of(job), **output()})
            assert answer == {"status": "completed"}
        assert await balance(api, made) == 93

    async def test_without_an_output_it_is_refused_and_the_lease_kept(self, api: Api) -> None:
        await submitted(api)
        worker = await api.worker()
        job = await poll(worker)
        assert job is not None
        for body in (lease_of(job), {**lease_of(job), **output()}):
            problem = problem_of(await worker.call("POST", "/api/worker/complete", body), 422)
            assert "The output is missing" in problem["errors"]["output"]
        await upload(api, job)
        await worker.post("/api/worker/complete", {**lease_of(job), **output()})

    @pytest.mark.parametrize(
        ("content", "told", "reason"),
        [
            (PICTURE, {"size": len(PICTURE) + 1, "mime_type": "image/png"}, "bytes, not"),
            (b"not a picture", {"size": 13, "mime_type": "image/png"}, "not a readable image"),
            (PICTURE, {"size": len(PICTURE), "mime_type": "video/mp4"}, "but this workflow creates image/png"),
        ],
    )
    async def test_output_that_is_not_what_was_said_is_refused(
        self, api: Api, content: bytes, told: dict[str, Any], reason: str
    ) -> None:
        await submitted(api)
        worker = await api.worker()
        job = await poll(worker)
        assert job is not None
        await upload(api, job, content)
        response = await worker.call("POST", "/api/worker/complete", {**lease_of(job), "output": told})
        assert reason in problem_of(response, 422)["errors"]["output"]

    async def test_output_passes_with_a_warning_without_media_libraries(
        self, sqlite_backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("comfyrelay.extras.find_spec", lambda _name: None)
        async with open_api(sqlite_backend, tmp_path, output_validation="warn") as api:
            await submitted(api)
            worker = await api.worker()
            job = await poll(worker)
            assert job is not None
            await upload(api, job)
            answer = await worker.post("/api/worker/complete", {**lease_of(job), **output()})
            assert answer == {"status": "completed"}

    async def test_plain_fail_is_final_and_refunds(self, api: Api) -> None:
        made = await submitted(api)
        worker = await api.worker()
        job = await poll(worker)
        assert job is not None
        for _ in range(2):
            body = {**lease_of(job), "error_message": '{"exception_message": "bad graph"}'}
            assert await worker.post("/api/worker/fail", body) == {"status": "failed"}
        assert await balance(api, made) == 100

    async def test_fault_of_the_worker_is_tried_again(self, api: Api) -> None:
        await submitted(api)
        worker = await api.worker()
        job = await poll(worker)
        assert job is not None
        body = {**lease_of(job), "error_message": "out of memory", "fault": "worker"}
        assert await worker.post("/api/worker/fail", body) == {"status": "queued"}

    async def test_requeue_costs_no_attempt(self, api: Api) -> None:
        await submitted(api)
        worker = await api.worker()
        for _ in range(5):
            job = await poll(worker)
            assert job is not None
            assert job["attempt"] == 1
            body = {**lease_of(job), "reason": "spot_interruption"}
            assert await worker.post("/api/worker/requeue", body) == {"status": "queued"}

    @pytest.mark.parametrize(
        ("path", "more"),
        [
            ("heartbeat", {}),
            ("complete", output()),
            ("fail", {"error_message": "x"}),
            ("requeue", {"reason": "x"}),
        ],
    )
    async def test_wrong_or_ended_lease_is_not_found_and_changes_nothing(
        self, api: Api, path: str, more: dict[str, Any]
    ) -> None:
        await submitted(api)
        worker = await api.worker()
        job = await poll(worker)
        assert job is not None
        wrong = {**lease_of(job), "lease_token": "11111111-1111-4111-8111-111111111111"}
        problem_of(await worker.call("POST", f"/api/worker/{path}", {**wrong, **more}), 404)
        await worker.post("/api/worker/requeue", {**lease_of(job), "reason": "x"})
        problem_of(await worker.call("POST", f"/api/worker/{path}", {**lease_of(job), **more}), 404)

    async def test_lease_of_another_worker_cannot_be_settled(self, api: Api) -> None:
        await submitted(api)
        worker, other = await api.worker("gpu-1"), await api.worker("gpu-2")
        job = await poll(worker)
        assert job is not None
        problem_of(await other.call("POST", "/api/worker/heartbeat", lease_of(job)), 404)
        problem_of(await other.call("POST", "/api/worker/fail", {**lease_of(job), "error_message": "x"}), 404)

    async def test_deregistering_gives_back_what_is_held(self, api: Api) -> None:
        await submitted(api)
        worker = await api.worker("gpu-1")
        assert await poll(worker) is not None
        assert await worker.post("/api/worker/deregister", {"reason": "shutdown"}) == {"released": 1}
        problem_of(await worker.call("POST", "/api/worker/poll", {"worker_id": "gpu-1"}), 401)
        again = await api.worker("gpu-2")
        assert await poll(again, "gpu-2") is not None
