"""Administrators browse the queue, and stop, retry or reprioritize single jobs."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import Fault
from comfyrelay.services.jobs.batches import BatchRequest
from comfyrelay.services.jobs.submission.requests import ItemRequest
from comfyrelay.store.central.queue import dispatch_list
from tests.support.api import Api, problem_of
from tests.support.operator import OperatorScenario, open_operator_scenario


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    return await open_operator_scenario(api)


class TestViews:
    async def test_dispatch_is_shown_without_its_lease_token(self, desk: OperatorScenario) -> None:
        await desk.worker()
        job = await desk.submit(priority=3)
        leased = await desk.lease()
        answer = await desk.call("GET", f"/dispatches/{leased.dispatch_id}")
        found = answer.json()["data"]
        assert (found["job_id"], found["status"], found["workflow_slug"]) == (job.id, "leased", "clip")
        assert (found["worker_id"], found["priority"], found["attempts"]) == ("gpu-1", 3, 1)
        assert leased.lease_token not in answer.text
        problem_of(await desk.call("GET", "/dispatches/999"), 404)

    @pytest.mark.both_databases
    async def test_audit_lists_every_worker_of_a_dispatch(self, desk: OperatorScenario) -> None:
        for worker in ("gpu-1", "gpu-2"):
            await desk.worker(worker)
        await desk.submit()
        lost = await desk.lease("gpu-1")
        await desk.fail(lost, "out of memory", fault=Fault.WORKER)
        await desk.api.clock.set(desk.api.clock.now + timedelta(hours=1))
        await desk.complete(await desk.lease("gpu-2"))
        # another job, which the audit must not show
        await desk.completed()
        found = await desk.get(f"/dispatches/{lost.dispatch_id}/audit")
        assert [(attempt["worker_id"], attempt["outcome"], attempt["attempt"]) for attempt in found["attempts"]] == [
            ("gpu-2", "completed", 2),
            ("gpu-1", "failed", 1),
        ]
        entries = found["entries"]["items"]
        assert [(entry["worker_id"], entry["event"]) for entry in entries] == [
            ("gpu-2", "complete"),
            ("gpu-2", "lease"),
            ("gpu-1", "fail"),
            ("gpu-1", "lease"),
        ]
        assert {entry["dispatch_id"] for entry in entries} == {lost.dispatch_id}
        assert entries[2]["data"]["error"] == "out of memory"
        assert lost.lease_token not in str(found)

    @pytest.mark.both_databases
    async def test_audit_is_paginated(self, desk: OperatorScenario) -> None:
        await desk.worker()
        await desk.submit()
        leased = await desk.lease()
        await desk.complete(leased)
        path = f"/dispatches/{leased.dispatch_id}/audit"
        first = (await desk.get(path, limit=1))["entries"]
        second = (await desk.get(path, limit=1, cursor=first["next_cursor"]))["entries"]
        assert [item["event"] for item in (*first["items"], *second["items"])] == ["complete", "lease"]
        assert second["next_cursor"] is None

    async def test_dispatch_without_a_worker_has_no_audit(self, desk: OperatorScenario) -> None:
        dispatch = await desk.dispatch(await desk.submit())
        found = await desk.get(f"/dispatches/{dispatch.id}/audit")
        assert found == {"attempts": [], "entries": {"items": [], "next_cursor": None}}
        problem_of(await desk.call("GET", "/dispatches/999/audit"), 404)

    @pytest.mark.both_databases
    async def test_dispatches_are_paginated_newest_first(self, desk: OperatorScenario) -> None:
        jobs = [(await desk.submit()).id for _ in range(5)]
        first = await desk.get("/dispatches", limit=3)
        assert [item["job_id"] for item in first["items"]] == jobs[:1:-1]
        second = await desk.get("/dispatches", limit=3, cursor=first["next_cursor"])
        assert [item["job_id"] for item in second["items"]] == jobs[1::-1]
        assert second["next_cursor"] is None

    async def test_invalid_page_is_refused(self, desk: OperatorScenario) -> None:
        cases: list[tuple[int, Any]] = [(0, None), (201, None), (50, -1), (50, 2**63), (50, "x")]
        for limit, cursor in cases:
            problem_of(await desk.call("GET", "/dispatches", params={"limit": limit, "cursor": cursor or ""}), 422)

    @pytest.mark.both_databases
    async def test_dispatches_are_filtered(self, desk: OperatorScenario) -> None:
        await desk.worker()
        done = await desk.completed()
        failed = await desk.failed()
        other = await desk.api.effect("other")
        elsewhere = await desk.submit(effect_id=other)
        staged = await desk.submit(stage=Stage.STAGING)
        running = await desk.submit()
        await desk.lease()
        assert await desk.ids(status="completed") == [done.id]
        assert await desk.ids(status="failed") == [failed.id]
        assert await desk.ids(status="leased") == [running.id]
        assert await desk.ids(status="queued") == [staged.id, elsewhere.id]
        assert await desk.ids(status="canceled") == []
        assert await desk.ids(workflow="other") == [elsewhere.id]
        assert await desk.ids(workflow="none") == []
        assert await desk.ids(stage="staging") == [staged.id]
        assert await desk.ids(tenant=desk.user.tenant_id, status="failed") == [failed.id]
        assert await desk.ids(tenant="nobody") == []
        assert await desk.ids(worker="gpu-1", status="leased") == [running.id]
        assert await desk.ids(worker="gpu-1") == [running.id, failed.id, done.id]
        assert await desk.ids(worker="gpu-1", status="failed", workflow="clip", stage="production") == [failed.id]
        problem_of(await desk.call("GET", "/dispatches", params={"status": "running"}), 422)

    @pytest.mark.both_databases
    async def test_batch_is_found_by_its_id(self, desk: OperatorScenario) -> None:
        await desk.submit()
        batch = await desk.api.engine.jobs.batches.submit(
            BatchRequest(
                tenant_id=desk.user.tenant_id,
                user_id=desk.user.id,
                idempotency_key="batch",
                effect_id=desk.effect_id,
                items=[ItemRequest(), ItemRequest()],
            )
        )
        assert len(await desk.ids(batch=batch.id)) == 2

    @pytest.mark.both_databases
    async def test_search_covers_job_worker_and_error(self, desk: OperatorScenario) -> None:
        await desk.worker("rack-1")
        await desk.submit()
        await desk.fail(await desk.lease("rack-1"), "CUDA out of memory: 100% of_it")
        await desk.worker("gpu-1")
        other = await desk.failed("The prompt is empty")
        job = (await desk.ids(search="Out Of Memory"))[0]
        assert await desk.ids(search=job) == [job]
        assert await desk.ids(search="RACK") == [job]
        assert await desk.ids(search="100%") == [job]
        assert await desk.ids(search="of_it") == [job]
        assert await desk.ids(search="o%t") == []
        assert await desk.ids(search="prompt is") == [other.id]
        assert await desk.ids(search="00000000-0000-0000-0000-000000000000") == []
        problem_of(await desk.call("GET", "/dispatches?search=%00"), 422)

    @pytest.mark.both_databases
    async def test_search_reads_a_bounded_number_of_rows_per_page(
        self, desk: OperatorScenario, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dispatch_list, "MAX_SEARCHED", 3)
        await desk.worker()
        wanted = await desk.failed("the needle")
        for _ in range(4):
            await desk.failed("hay")
        first = await desk.get("/dispatches", search="needle")
        assert first["items"] == []
        second = await desk.get("/dispatches", search="needle", cursor=first["next_cursor"])
        assert [item["job_id"] for item in second["items"]] == [wanted.id]
        assert second["next_cursor"] is None


class TestCanceling:
    async def test_queued_dispatch_is_cancelled_at_once_and_refunded(self, desk: OperatorScenario) -> None:
        job = await desk.submit()
        id_ = (await desk.dispatch(job)).id
        assert (await desk.send("POST", f"/dispatches/{id_}/cancel"))["status"] == "canceled"
        assert (await desk.send("POST", f"/dispatches/{id_}/cancel"))["status"] == "canceled"
        assert await desk.api.engine.accounts.ledger.balance(job.tenant_id) == 100

    async def test_cancel_answers_the_parked_heartbeat(self, desk: OperatorScenario) -> None:
        worker = await desk.api.worker()
        await desk.submit()
        job = (await worker.post("/api/worker/poll", {"worker_id": "gpu-1"}))["job"]
        beat = {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}
        waiting = asyncio.create_task(worker.post("/api/worker/heartbeat", {**beat, "wait_seconds": 30}))
        await asyncio.sleep(0)
        found = await desk.send("POST", f"/dispatches/{job['dispatch_id']}/cancel")
        assert (found["status"], found["cancel_requested_at"] is None) == ("leased", False)
        async with asyncio.timeout(25):
            assert (await waiting)["stop"] == "cancel"

    async def test_ended_dispatch_is_not_cancelled(self, desk: OperatorScenario) -> None:
        await desk.worker()
        id_ = (await desk.dispatch(await desk.completed())).id
        problem_of(await desk.call("POST", f"/dispatches/{id_}/cancel"), 409)
        problem_of(await desk.call("POST", "/dispatches/999/cancel"), 404)


class TestRetrying:
    async def test_retry_creates_a_new_job_of_the_tenant(self, desk: OperatorScenario) -> None:
        await desk.worker()
        job = await desk.failed()
        id_ = (await desk.dispatch(job)).id
        retried = await desk.send("POST", f"/dispatches/{id_}/retry")
        assert retried["retry_of"] == job.id
        assert retried["dispatch"]["job_id"] == retried["job_id"]
        assert retried["dispatch"]["tenant_id"] == job.tenant_id
        assert retried["dispatch"]["status"] == "queued"
        assert await desk.api.engine.accounts.ledger.balance(job.tenant_id) == 93
        again = await desk.send("POST", f"/dispatches/{id_}/retry")
        assert again["job_id"] == retried["job_id"]

    async def test_only_failed_dispatches_are_retried(self, desk: OperatorScenario) -> None:
        id_ = (await desk.dispatch(await desk.submit())).id
        problem_of(await desk.call("POST", f"/dispatches/{id_}/retry"), 409)
        problem_of(await desk.call("POST", "/dispatches/999/retry"), 404)

    async def test_retry_respects_the_tenants_job_limit(self, desk: OperatorScenario) -> None:
        await desk.worker()
        id_ = (await desk.dispatch(await desk.failed())).id
        for _ in range(5):
            await desk.submit()
        problem_of(await desk.call("POST", f"/dispatches/{id_}/retry"), 429)

    async def test_retry_is_charged_to_the_tenant(self, desk: OperatorScenario) -> None:
        await desk.worker()
        job = await desk.failed()
        id_ = (await desk.dispatch(job)).id
        await desk.send("PATCH", "/effects/clip", {"credits_cost": 97})
        await desk.submit()
        problem = problem_of(await desk.call("POST", f"/dispatches/{id_}/retry"), 422)
        assert problem["required_tokens"] == 7


class TestPriority:
    async def test_administrator_priority_exceeds_the_user_range(self, desk: OperatorScenario) -> None:
        await desk.worker()
        await desk.submit(priority=10)
        late = await desk.submit()
        id_ = (await desk.dispatch(late)).id
        found = await desk.send("POST", f"/dispatches/{id_}/priority", {"priority": 500})
        assert found["priority"] == 500
        assert (await desk.lease()).dispatch.tenant_job_id == late.id

    async def test_priority_of_an_ended_dispatch_is_refused(self, desk: OperatorScenario) -> None:
        await desk.worker()
        id_ = (await desk.dispatch(await desk.completed())).id
        problem_of(await desk.call("POST", f"/dispatches/{id_}/priority", {"priority": 1}), 409)
        problem_of(await desk.call("POST", "/dispatches/999/priority", {"priority": 1}), 404)
        problem_of(await desk.call("POST", f"/dispatches/{id_}/priority", {"priority": 2**40}), 422)


class TestWaiting:
    async def test_wait_reason_has_text_and_data(self, desk: OperatorScenario) -> None:
        id_ = (await desk.dispatch(await desk.submit())).id
        assert (await desk.get(f"/dispatches/{id_}/waiting"))["reason"] == "no_worker"
        await desk.worker()
        found = await desk.get(f"/dispatches/{id_}/waiting")
        assert (found["reason"], found["position"], found["workers"]) == ("starting", 1, 1)
        assert found["text"] == "Next in the queue; a worker is free."
        await desk.lease()
        assert (await desk.get(f"/dispatches/{id_}/waiting"))["reason"] == "not_waiting"
        problem_of(await desk.call("GET", "/dispatches/999/waiting"), 404)
