"""Workers of other versions: extra, missing or different fields cost no job."""

from typing import Any

import pytest

from comfyrelay import __version__
from comfyrelay.domain.queue import customer_texts
from comfyrelay.protocol import worker as wire
from comfyrelay.protocol.base import WorkerRequest
from comfyrelay.store.tenant.library import media
from tests.support.api import Api, problem_of
from tests.support.api_calls import lease, lease_of
from tests.support.full import full_only
from tests.support.worker_calls import PICTURE, SECRET_HEADERS, poll, submit_first_job, submit_job, upload_output
from tests.support.world import execute

REGISTER = "/api/worker/register"
TOO_OLD = (
    "This worker is too old: it uses protocol version 0, and this server requires at least version 1. "
    "Update the worker."
)
KEY = "0123456789abcdef"


def nulls(model: type[WorkerRequest]) -> dict[str, Any]:
    """Set all optional fields to null."""
    return {name: None for name, field in model.model_fields.items() if not field.is_required()}


class TestRegistration:
    async def test_same_registration_key_rotates_the_token_and_keeps_leases(self, api: Api) -> None:
        submission = await submit_first_job(api)
        first = await api.worker(registration_key=KEY)
        job = await lease(first)
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip", "registration_key": KEY}
        again = await api.anonymous.post(REGISTER, body, headers=SECRET_HEADERS)
        assert again["leases"] == 1
        problem_of(await first.call("POST", "/api/worker/poll", {"worker_id": "gpu-1"}), 401)
        problem_of(await first.call("POST", "/api/worker/heartbeat", lease_of(job)), 401)
        headers = {"Authorization": f"Bearer {again['token']}"}
        await api.anonymous.post("/api/worker/heartbeat", lease_of(job), headers=headers)
        assert (
            await api.engine.queue.wait_reasons.of_job(submission.user.tenant_id, submission.job_id)
        ).reason == "not_waiting"

    async def test_wrong_registration_key_is_refused(self, api: Api) -> None:
        await api.effect()
        worker = await api.worker(registration_key=KEY)
        keys: list[dict[str, Any]] = [{}, {"registration_key": None}, {"registration_key": "another" + KEY}]
        for other in keys:
            body = {"worker_id": "gpu-1", "fleet_slug": "home-clip", **other}
            problem_of(await api.anonymous.call("POST", REGISTER, body, headers=SECRET_HEADERS), 409)
            assert await poll(worker) is None

    async def test_protocol_and_version_are_shown(self, api: Api) -> None:
        await api.effect()
        admin = await api.user("root@example.com", is_admin=True)
        await api.worker("new", protocol=7, version="9.9")
        await api.worker("old")
        listed = (await admin.get("/api/admin/workers"))["items"]
        assert [(worker["protocol"], worker["version"]) for worker in listed] == [(7, "9.9"), (1, None)]
        assert (await admin.get("/api/admin/workers/new"))["version"] == "9.9"

    async def test_outdated_worker_is_refused_with_a_message(self, api: Api) -> None:
        await api.effect()
        body = {"worker_id": "gpu-1", "fleet_slug": "home-clip", "protocol": 0}
        refused = problem_of(await api.anonymous.call("POST", REGISTER, body, headers=SECRET_HEADERS), 422)
        assert refused["errors"] == {"protocol": TOO_OLD}

    async def test_every_answer_has_the_versions_of_the_server(self, api: Api) -> None:
        expected = f"{__version__}; protocol={wire.PROTOCOL}"
        for path in ("register", "poll", "of-a-newer-version"):
            answer = await api.anonymous.call("POST", f"/api/worker/{path}", {})
            assert (answer.is_success, answer.headers[wire.VERSION_HEADER]) == (False, expected)

    async def test_outdated_worker_finishes_its_jobs_and_gets_no_new_ones(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        await execute(api.engine.databases.central, "UPDATE workers SET protocol = 0")
        api.context.forget_worker("gpu-1")
        refused = problem_of(await worker.call("POST", "/api/worker/poll", {"worker_id": "gpu-1"}), 401)
        assert refused["detail"] == TOO_OLD
        await worker.post("/api/worker/heartbeat", lease_of(job))

    async def test_null_optional_fields_are_accepted(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker(**nulls(wire.RegisterRequest))
        assert await poll(worker, **nulls(wire.PollRequest)) is not None


class TestPoll:
    @pytest.mark.parametrize("fields", [{}, {"providers": []}, *full_only({"providers": None})])
    async def test_no_providers_mean_self_hosted(self, api: Api, fields: dict[str, Any]) -> None:
        await submit_first_job(api)
        job = await poll(await api.worker(), **fields)
        assert job is not None
        assert job["provider"] == "self_hosted"

    async def test_unknown_providers_are_ignored(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        assert await poll(worker, providers=["of_a_newer_version"]) is None
        assert await poll(worker, providers=["of_a_newer_version", "self_hosted"]) is not None
        refused = await worker.call("POST", "/api/worker/poll", {"worker_id": "gpu-1", "providers": [1]})
        assert problem_of(refused, 422)["errors"].keys() == {"providers.0"}

    async def test_reported_load_counts(self, api: Api) -> None:
        submission = await submit_first_job(api)
        worker = await api.worker(max_concurrency=2)
        assert await poll(worker, current_load=2) is None
        assert await poll(worker, current_load=1) is not None
        # the job that the worker leased counts even if the worker reports no load
        await submit_job(api, submission.user, submission.effect_id, "two")
        assert await poll(worker, current_load=0, max_concurrency=1) is None
        # the last reported concurrency applies until the worker reports another one
        assert await poll(worker, current_load=0) is None
        assert await poll(worker, current_load=0, max_concurrency=2) is not None

    async def test_increased_concurrency_gets_more_jobs(self, api: Api) -> None:
        submission = await submit_first_job(api)
        await submit_job(api, submission.user, submission.effect_id, "two")
        worker = await api.worker(max_concurrency=1)
        assert await poll(worker) is not None
        assert await poll(worker) is None
        assert await poll(worker, current_load=1, max_concurrency=2) is not None

    async def test_full_worker_can_prefetch(self, api: Api) -> None:
        await submit_first_job(api)
        assert await poll(await api.worker(), current_load=1, prefetch=1) is not None


class TestHeartbeat:
    async def test_progress_is_passed_through_unchanged(self, api: Api) -> None:
        submission = await submit_first_job(api)
        admin = await api.user("root@example.com", is_admin=True)
        worker = await api.worker()
        job = await lease(worker)
        reported = {"value": "half", "phase": 7, "began_at": "soon", "server": [], "step": None, "of": {"a": ["newer"]}}
        await worker.post("/api/worker/heartbeat", {**lease_of(job), "progress": reported})
        [held] = (await admin.get("/api/admin/workers/gpu-1"))["jobs"]
        assert held["progress"] == reported
        assert (await admin.get(f"/api/admin/dispatches/{job['dispatch_id']}"))["progress"] == reported
        await api.engine.outbox.delivery.idle()
        # users of an effect do not see texts for operators
        shown = (await api.engine.jobs.views.job(submission.user.tenant_id, submission.job_id)).progress
        assert shown == {"began_at": "soon"}
        [slot] = (await admin.get("/api/slots"))["items"]
        assert slot["job"] is None

    async def test_progress_must_be_an_object(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        invalid: list[object] = [0.5, "half", [0.5], True]
        for reported in invalid:
            refused = await worker.call("POST", "/api/worker/heartbeat", {**lease_of(job), "progress": reported})
            assert problem_of(refused, 422)["errors"].keys() == {"progress"}


class TestSettling:
    @pytest.mark.parametrize("fields", [{}, {"error_message": " "}, *full_only({"error_message": None})])
    async def test_failure_without_a_message_has_a_default_error(self, api: Api, fields: dict[str, Any]) -> None:
        submission = await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        assert await worker.post("/api/worker/fail", {**lease_of(job), **fields}) == {"status": "failed"}
        await api.engine.outbox.delivery.idle()
        found = await api.engine.jobs.views.job(submission.user.tenant_id, submission.job_id)
        assert (found.job.error_message or "").startswith(customer_texts.FAILED)

    async def test_unknown_fault_is_not_final(self, api: Api) -> None:
        await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        failed = {**lease_of(job), "error_message": "too hot", "fault": "of_a_newer_version"}
        assert await worker.post("/api/worker/fail", failed) == {"status": "queued"}

    @pytest.mark.parametrize("fields", [{}, {"reason": " "}, *full_only({"reason": None})])
    async def test_requeue_needs_a_reason(self, api: Api, fields: dict[str, Any]) -> None:
        """ComfyRelay's own worker always sends a reason."""
        await submit_first_job(api)
        worker = await api.worker()
        job = await lease(worker)
        refused = await worker.call("POST", "/api/worker/requeue", {**lease_of(job), **fields})
        assert problem_of(refused, 422)["errors"].keys() == {"reason"}
        # The lease stays valid.
        assert await worker.post("/api/worker/requeue", {**lease_of(job), "reason": "sigterm"}) == {"status": "queued"}

    async def test_video_stores_the_reported_output(self, api: Api) -> None:
        submission = await submit_first_job(api)
        shard = api.engine.databases.shard("main")
        await execute(
            shard,
            "INSERT INTO videos (id, tenant_id, user_id, status, job_id, created_at, updated_at)"
            " SELECT 'v', tenant_id, user_id, 'queued', id, created_at, created_at FROM ai_jobs",
        )
        await execute(shard, "UPDATE ai_jobs SET video_id = 'v'")
        worker = await api.worker()
        job = await lease(worker)
        await upload_output(api, job)
        sent = {"size": len(PICTURE), "mime_type": "image/png", "sha256": None, "frames": 1, "of": {"a": ["newer"]}}
        await worker.post("/api/worker/complete", {**lease_of(job), "output": sent, "more": 1})
        await api.engine.outbox.delivery.idle()
        async with shard.read() as tx:
            video = (await media.videos_of_jobs(tx, [submission.job_id]))[submission.job_id]
        assert (video.processing_details or {})["output"] == sent
