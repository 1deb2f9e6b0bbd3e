"""The worker protocol over HTTP: seven calls, their answers and every documented error."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.protocol import worker as wire
from comfyrelay.services.queue.heartbeats import Heartbeat, HeartbeatResult
from comfyrelay.services.queue.lease_payload import LeasePayloads
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.workers import workers
from comfyrelay.store.database import Boundary
from tests.support.api import SECRETS, Api, data_of, open_api, problem_of
from tests.support.api_calls import lease, lease_of
from tests.support.worker_calls import (
    PICTURE,
    SECRET_HEADERS,
    SubmittedJob,
    poll,
    submit_first_job,
    submit_job,
    upload_output,
)
from tests.support.world import GRAPH, PATIENCE_SECONDS, PROMPT, SqliteBackend

NODES = [f"Node{number:026}" for number in range(3000)]
MODELS = [f"{number:040}.safetensors" for number in range(5000)]


async def balance(api: Api, submission: SubmittedJob) -> int:
    await api.engine.outbox.delivery.idle()
    return await api.engine.accounts.ledger.balance(submission.user.tenant_id)


async def until(condition: Callable[[], object]) -> None:
    """Yield to other tasks until the condition holds."""
    while not condition():  # noqa: ASYNC110  (there is no event)
        await asyncio.sleep(0.001)


def output(content: bytes = PICTURE) -> dict[str, Any]:
    return {"output": {"size": len(content), "mime_type": "image/png"}}


class TestRegister:
    async def test_registration_returns_the_fleet_and_a_token(self, api: Api) -> None:
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
        response = await api.anonymous.call("POST", "/api/worker/register", body, headers=SECRET_HEADERS)
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

    async def test_dry_run_reports_missing_requirements_and_registers_nothing(self, api: Api) -> None:
        await api.effect()
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip", "dry_run": True}
        response = await api.anonymous.call("POST", "/api/worker/register", body, headers=SECRET_HEADERS)
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
        capabilities = {"node_types": ["Prompt", "SaveVideo"], "models": {"checkpoints": []}}
        answer = await api.anonymous.post(
            "/api/worker/register", {**body, "capabilities": capabilities}, headers=SECRET_HEADERS
        )
        assert answer["missing"] == {"clip": ["CheckpointLoader", "model.safetensors"]}
        async with api.engine.databases.central.read() as tx:
            assert await workers.get(tx, "gpu-1") is None

    async def test_dry_run_returns_the_errors_of_a_registration(self, api: Api) -> None:
        await api.effect()
        cases: list[tuple[dict[str, Any], dict[str, str], int]] = [
            ({}, {}, 401),
            ({"fleet_slug": "none"}, SECRET_HEADERS, 404),
            ({"workflow_slugs": ["other"]}, SECRET_HEADERS, 422),
        ]
        for wrong, headers, status in cases:
            body = {"worker_id": "gpu-1", "fleet_slug": "home-clip", **wrong}
            dry_run = await api.anonymous.call(
                "POST", "/api/worker/register", {**body, "dry_run": True}, headers=headers
            )
            real = await api.anonymous.call("POST", "/api/worker/register", body, headers=headers)
            assert problem_of(dry_run, status) == problem_of(real, status)

    async def test_wrong_or_foreign_fleet_secret_is_refused(self, api: Api) -> None:
        cases: list[tuple[dict[str, str], str]] = [
            ({}, "production"),
            ({"X-Fleet-Secret": "wrong"}, "production"),
            ({"X-Fleet-Secret": "fleet-secret-of-staging"}, "production"),
            (SECRET_HEADERS, "staging"),
        ]
        for headers, stage in cases:
            body = {"worker_id": "w", "fleet_slug": "home-clip", "stage": stage}
            problem_of(await api.anonymous.call("POST", "/api/worker/register", body, headers=headers), 401)

    async def test_old_fleet_secret_is_valid_during_rotation(self, api: Api) -> None:
        await api.effect()
        body = {"worker_id": "w", "fleet_slug": "home-clip"}
        await api.anonymous.post(
            "/api/worker/register", body, headers={"X-Fleet-Secret": SECRETS.fleet["production"][1]}
        )

    async def test_unknown_fleet_is_not_found(self, api: Api) -> None:
        body = {"worker_id": "w", "fleet_slug": "nowhere"}
        problem_of(await api.anonymous.call("POST", "/api/worker/register", body, headers=SECRET_HEADERS), 404)

    async def test_registered_worker_id_is_a_conflict(self, api: Api) -> None:
        await api.effect()
        await api.worker("gpu-1")
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip"}
        problem_of(await api.anonymous.call("POST", "/api/worker/register", body, headers=SECRET_HEADERS), 409)

    async def test_id_of_an_offline_worker_without_leases_is_reusable(self, api: Api) -> None:
        await submit_first_job(api)
        lost = await api.worker()
        job = await poll(lost)
        assert job is not None
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip"}
        await api.clock.set(api.clock.now + timedelta(seconds=301))
        # the worker may still run its leased job
        problem_of(await api.anonymous.call("POST", "/api/worker/register", body, headers=SECRET_HEADERS), 409)
        await lost.post("/api/worker/requeue", {**lease_of(job), "reason": "shutdown"})
        await api.anonymous.post("/api/worker/register", body, headers=SECRET_HEADERS)
        problem_of(await lost.call("POST", "/api/worker/poll", {"worker_id": "gpu-1"}), 401)

    async def test_id_of_a_revoked_worker_is_not_reusable(self, api: Api) -> None:
        await api.effect()
        await api.worker()
        await api.engine.workers.workers.set_approved("gpu-1", is_approved=False)
        await api.clock.set(api.clock.now + timedelta(seconds=301))
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip"}
        problem_of(await api.anonymous.call("POST", "/api/worker/register", body, headers=SECRET_HEADERS), 409)

    async def test_full_fleet_refuses_registration(self, api: Api) -> None:
        await api.effect()
        await api.engine.workers.fleets.create(slug="small", max_workers=1, workflow_slugs=["clip"])
        await api.worker("gpu-1", fleet="small")
        body = {"worker_id": "gpu-2", "fleet_slug": "small"}
        for dry_run in (False, True):
            sent = {**body, "dry_run": dry_run}
            problem_of(await api.anonymous.call("POST", "/api/worker/register", sent, headers=SECRET_HEADERS), 403)
        # a registered worker is not new
        sent = {**body, "worker_id": "gpu-1", "dry_run": True}
        answer = await api.anonymous.post("/api/worker/register", sent, headers=SECRET_HEADERS)
        assert answer["workflows_assigned"] == ["clip"]

    async def test_fleet_without_an_active_workflow_refuses_registration(self, api: Api) -> None:
        await api.engine.workers.fleets.create(slug="empty")
        body = {"worker_id": "w", "fleet_slug": "empty"}
        problem = problem_of(
            await api.anonymous.call("POST", "/api/worker/register", body, headers=SECRET_HEADERS), 422
        )
        assert "no active workflow" in problem["errors"]["fleet_slug"]

    async def test_invalid_registration_names_the_field(self, api: Api) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"fleet_slug": "x"}, "worker_id"),
            ({"worker_id": "", "fleet_slug": "x"}, "worker_id"),
            ({"worker_id": "w", "fleet_slug": "x", "max_concurrency": 0}, "max_concurrency"),
            ({"worker_id": "w", "fleet_slug": "x", "stage": "moon"}, "stage"),
        ]
        for body, field in cases:
            problem = problem_of(
                await api.anonymous.call("POST", "/api/worker/register", body, headers=SECRET_HEADERS), 422
            )
            assert list(problem["errors"]) == [field]

    async def test_unknown_request_fields_are_ignored(self, api: Api) -> None:
        submission = await submit_first_job(api)
        worker = await api.worker(of_a_newer_version=1)
        leased = await worker.post("/api/worker/poll", {"worker_id": "gpu-1", "of_a_newer_version": 1})
        named = {name: leased["job"][name] for name in ("dispatch_id", "lease_token")} | {"of_a_newer_version": 1}
        assert leased["job"]["job_id"] == submission.job_id
        assert (await worker.post("/api/worker/heartbeat", named))["stop"] is None
        assert (await worker.post("/api/worker/requeue", {**named, "reason": "leaving"}))["status"] == "queued"
        assert await worker.post("/api/worker/deregister", {"of_a_newer_version": 1}) == {"released": 0}

    async def test_registrations_are_limited_by_address(self, api: Api) -> None:
        body = {"worker_id": "w", "fleet_slug": "nowhere"}
        for _ in range(10):
            problem_of(await api.anonymous.call("POST", "/api/worker/register", body, headers=SECRET_HEADERS), 404)
        response = await api.anonymous.call("POST", "/api/worker/register", body, headers=SECRET_HEADERS)
        problem_of(response, 429)
        assert 0 < int(response.headers["Retry-After"]) <= 60


class TestPoll:
    async def test_leased_job_has_its_payload_and_urls(self, api: Api) -> None:
        submission = await submit_first_job(api)
        job = await poll(await api.worker())
        assert job is not None
        assert job["job_id"] == submission.job_id
        assert job["tenant_id"] == submission.user.tenant_id
        assert job["effect_id"] == submission.effect_id
        assert job["attempt"] == 1
        assert job["provider"] == "self_hosted"
        assert job["input_url"] is None
        assert job["output_headers"]["Content-Type"] == "image/png"
        payload = job["input_payload"]
        assert payload["workflow"]["2"]["inputs"]["text"] == PROMPT["default_value"]
        assert payload["workflow"]["1"] == GRAPH["1"]
        assert (payload["output_node_id"], payload["output_extension"]) == ("3", "png")
        assert payload["assets"] == []

    async def test_parked_poll_returns_a_new_job(self, api: Api) -> None:
        effect_id = await api.effect()
        user = (await api.user(tokens=100)).user
        assert user is not None
        worker = await api.worker()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(poll(worker, wait_seconds=30))
            await until(lambda: api.engine.queue.polls.parked)
            await submit_job(api, user, effect_id, "one")
        job = waiting.result()
        assert job is not None

    async def test_lease_reports_how_many_more_jobs_wait(self, api: Api) -> None:
        effect_id = await api.effect()
        user = (await api.user(tokens=100)).user
        assert user is not None
        for key in ("one", "two", "three"):
            await submit_job(api, user, effect_id, key)
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
        await submit_first_job(api)
        worker = await api.worker()
        first, second = await poll(worker, request_id="r1"), await poll(worker, request_id="r1")
        assert first is not None
        assert second is not None
        assert lease_of(first) == lease_of(second)

    async def test_repeated_request_of_an_ended_lease_returns_at_once(self, api: Api) -> None:
        await submit_first_job(api)
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

    async def test_token_is_valid_for_its_own_worker_only(self, api: Api) -> None:
        await api.effect()
        worker = await api.worker("gpu-1")
        problem_of(await worker.call("POST", "/api/worker/poll", {"worker_id": "gpu-2"}), 403)

    async def test_missing_or_wrong_token_is_401(self, api: Api) -> None:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}):
            problem_of(await api.anonymous.call("POST", "/api/worker/poll", {"worker_id": "w"}, headers=headers), 401)

    async def test_revoked_worker_is_refused(self, api: Api) -> None:
        await api.effect()
        worker = await api.worker()
        await api.engine.workers.workers.set_approved("gpu-1", is_approved=False)
        api.context.forget_worker("gpu-1")
        problem_of(await worker.call("POST", "/api/worker/poll", {"worker_id": "gpu-1"}), 403)

    async def test_parked_poll_with_a_rotated_token_gets_no_job(self, api: Api) -> None:
        effect_id = await api.effect()
        user, admin = await api.user(tokens=100), await api.user("admin@example.com", is_admin=True)
        assert user.user is not None
        worker = await api.worker()
        body = {"worker_id": "gpu-1", "wait_seconds": 30}
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(worker.call("POST", "/api/worker/poll", body))
            await until(lambda: api.engine.queue.polls.parked)
            await admin.post("/api/admin/workers/gpu-1/rotate-token")
            await submit_job(api, user.user, effect_id, "one")
        problem_of(waiting.result(), 401)

    async def test_large_comfyui_is_within_the_limits_of_capabilities(self, api: Api) -> None:
        await api.effect()
        missing = {"node_types": NODES, "models": MODELS}
        servers = [{"url": f"http://127.0.0.1:{port}", "missing": missing} for port in range(8188, 8192)]
        worker = await api.worker(capabilities={"node_types": NODES, "models": MODELS, "comfyui": servers})
        await poll(worker, capabilities={"node_types": NODES, "models": {"checkpoints": MODELS}})

    @pytest.mark.parametrize(
        "report",
        [
            {"node_types": ["n"] * wire.MAX_CAPABILITIES},
            {"models": {f"folder-{number}": [] for number in range(wire.MAX_CAPABILITIES)}},
            {"models": ["é" * 1_000_000] * 3},
        ],
        ids=["names", "folders", "bytes"],
    )
    async def test_excessive_capabilities_are_refused(self, api: Api, report: dict[str, Any]) -> None:
        await api.effect()
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip", "capabilities": report}
        problem = problem_of(
            await api.anonymous.call("POST", "/api/worker/register", body, headers=SECRET_HEADERS), 422
        )
        assert problem["errors"] == {"capabilities": wire.TOO_MANY_CAPABILITIES}
        worker = await api.worker()
        answer = await worker.call("POST", "/api/worker/poll", {"worker_id": "gpu-1", "capabilities": report})
        assert problem_of(answer, 422)["errors"] == {"capabilities": wire.TOO_MANY_CAPABILITIES}

    async def test_capabilities_are_written_only_when_they_change(self, api: Api) -> None:
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

    async def test_worker_deregistered_by_another_server_is_refused(self, api: Api) -> None:
        await api.effect()
        worker = await api.worker()
        assert await poll(worker) is None
        await api.engine.workers.workers.deregister("gpu-1")
        problem_of(await worker.call("POST", "/api/worker/poll", {"worker_id": "gpu-1"}), 401)

    async def test_deregistration_affects_no_other_worker(self, api: Api) -> None:
        await api.effect()
        leaving, staying = await api.worker("gpu-1"), await api.worker("gpu-2")
        assert await poll(staying, "gpu-2") is None
        known = dict(api.context.worker_of._entries)
        await leaving.post("/api/worker/deregister")
        assert dict(api.context.worker_of._entries) == known
        problem_of(await leaving.call("POST", "/api/worker/poll", {"worker_id": "gpu-1"}), 401)

    async def test_draining_worker_gets_no_job(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        await api.engine.workers.workers.set_draining("gpu-1", is_draining=True)
        assert await poll(worker) is None


class TestHeartbeat:
    async def test_heartbeat_extends_the_lease_and_renews_urls_on_request(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        body = {**lease_of(job), "progress": {"value": 0.5}, "logs": ["half way"]}
        answer = await worker.post("/api/worker/heartbeat", body)
        assert answer["stop"] is None
        assert answer["lease_expires_at"] >= job["lease_expires_at"]
        # the URLs are as new as the lease
        assert answer["urls"] is None
        answer = await worker.post("/api/worker/heartbeat", {**lease_of(job), "fresh_urls": True})
        assert answer["urls"]["output_url"].partition("?")[0] == job["output_url"].partition("?")[0]
        problem_of(await worker.call("POST", "/api/worker/heartbeat", {**lease_of(job), "logs": ["a\0b"]}), 422)

    async def test_heartbeat_counts_as_a_sign_of_life(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        api.engine.workers.workers.take_seen()
        await worker.post("/api/worker/heartbeat", lease_of(job))
        assert api.engine.workers.workers.take_seen() == {"gpu-1"}

    async def test_heartbeat_returns_fresh_urls_when_the_age_is_unknown(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        # simulate another server, which has not delivered this lease
        limits = {"lease_url_ttl_seconds": 900, "max_output_bytes": 1000, "max_output_files": 1}
        api.engine.queue.lease_payloads = LeasePayloads(
            api.engine.databases, api.engine.objects, api.engine.settings.model_copy(update=limits)
        )
        answer = await worker.post("/api/worker/heartbeat", lease_of(job))
        assert answer["urls"]["output_url"].partition("?")[0] == job["output_url"].partition("?")[0]

    async def test_parked_heartbeat_returns_on_cancel(self, api: Api) -> None:
        submission = await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        async with asyncio.TaskGroup() as group:
            body = {**lease_of(job), "wait_seconds": 30}
            waiting = group.create_task(worker.post("/api/worker/heartbeat", body))
            await until(lambda: api.engine.queue.stop_requests.waiting)
            await api.engine.queue.control.cancel(submission.user.tenant_id, submission.job_id)
        assert waiting.result()["stop"] == "cancel"

    async def test_heartbeat_after_a_cancel_returns_at_once(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        """The cancel commits after the heartbeat has read the lease and before it waits; no tick wakes it here."""
        submission = await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        api.engine.queue.stop_requests._tick_seconds = 10 * PATIENCE_SECONDS
        beat = api.engine.queue.heartbeats.beat

        async def beat_and_cancel(heartbeat: Heartbeat) -> HeartbeatResult:
            answer = await beat(heartbeat)
            if answer.stop is None:
                await api.engine.queue.control.cancel(submission.user.tenant_id, submission.job_id)
            return answer

        monkeypatch.setattr(api.engine.queue.heartbeats, "beat", beat_and_cancel)
        monkeypatch.setattr(wire, "MAX_WAIT_SECONDS", 10 * PATIENCE_SECONDS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await worker.post(
                "/api/worker/heartbeat", {**lease_of(job), "wait_seconds": 10 * PATIENCE_SECONDS}
            )
        assert answer["stop"] == "cancel"


class TestSettling:
    async def test_completion_is_idempotent(self, api: Api) -> None:
        submission = await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        await upload_output(api, job)
        for _ in range(2):
            answer = await worker.post("/api/worker/complete", {**lease_of(job), **output()})
            assert answer == {"status": "completed"}
        assert await balance(api, submission) == 93

    async def test_completion_without_an_output_keeps_the_lease(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        for body in (lease_of(job), {**lease_of(job), **output()}):
            problem = problem_of(await worker.call("POST", "/api/worker/complete", body), 422)
            assert "The output is missing" in problem["errors"]["output"]
        await upload_output(api, job)
        await worker.post("/api/worker/complete", {**lease_of(job), **output()})

    async def test_output_that_differs_from_the_report_is_refused(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        cases: list[tuple[bytes, dict[str, Any], str]] = [
            (PICTURE, {"size": len(PICTURE) + 1, "mime_type": "image/png"}, "bytes, not"),
            (b"not a picture", {"size": 13, "mime_type": "image/png"}, "not a readable image"),
            (PICTURE, {"size": len(PICTURE), "mime_type": "video/mp4"}, "but this workflow creates image/png"),
        ]
        for content, reported, reason in cases:
            await upload_output(api, job, content)
            response = await worker.call("POST", "/api/worker/complete", {**lease_of(job), "output": reported})
            assert reason in problem_of(response, 422)["errors"]["output"]

    async def test_output_passes_with_a_warning_without_media_libraries(
        self, sqlite_backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("comfyrelay.extras.find_spec", lambda _name: None)
        async with open_api(sqlite_backend, tmp_path, output_validation="warn") as api:
            await submit_first_job(api)
            worker = await api.worker()
            job = await lease(worker)
            await upload_output(api, job)
            answer = await worker.post("/api/worker/complete", {**lease_of(job), **output()})
            assert answer == {"status": "completed"}

    async def test_job_failure_is_final_and_refunded(self, api: Api) -> None:
        submission = await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        for _ in range(2):
            body = {**lease_of(job), "error_message": '{"exception_message": "bad graph"}'}
            assert await worker.post("/api/worker/fail", body) == {"status": "failed"}
        assert await balance(api, submission) == 100

    async def test_worker_fault_is_retried(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        body = {**lease_of(job), "error_message": "out of memory", "fault": "worker"}
        assert await worker.post("/api/worker/fail", body) == {"status": "queued"}

    async def test_requeue_costs_no_attempt(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        for _ in range(5):
            job = await lease(worker)
            assert job["attempt"] == 1
            body = {**lease_of(job), "reason": "spot_interruption"}
            assert await worker.post("/api/worker/requeue", body) == {"status": "queued"}

    async def test_wrong_or_ended_lease_is_404(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        wrong = {**lease_of(job), "lease_token": "11111111-1111-4111-8111-111111111111"}
        cases: list[tuple[str, dict[str, Any]]] = [
            ("heartbeat", {}),
            ("complete", output()),
            ("fail", {"error_message": "x"}),
            ("requeue", {"reason": "x"}),
        ]
        for path, more in cases:
            problem_of(await worker.call("POST", f"/api/worker/{path}", {**wrong, **more}), 404)
        await worker.post("/api/worker/requeue", {**lease_of(job), "reason": "x"})
        for path, more in cases:
            problem_of(await worker.call("POST", f"/api/worker/{path}", {**lease_of(job), **more}), 404)

    async def test_lease_of_another_worker_cannot_be_settled(self, api: Api) -> None:
        await submit_first_job(api)
        worker, other = await api.worker("gpu-1"), await api.worker("gpu-2")
        job = await lease(worker)
        problem_of(await other.call("POST", "/api/worker/heartbeat", lease_of(job)), 404)
        problem_of(await other.call("POST", "/api/worker/fail", {**lease_of(job), "error_message": "x"}), 404)

    async def test_deregistration_releases_leases(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker("gpu-1")
        assert await poll(worker) is not None
        assert await worker.post("/api/worker/deregister", {"reason": "shutdown"}) == {"released": 1}
        problem_of(await worker.call("POST", "/api/worker/poll", {"worker_id": "gpu-1"}), 401)
        again = await api.worker("gpu-2")
        assert await poll(again, "gpu-2") is not None
