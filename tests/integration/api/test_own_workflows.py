"""Workflows of users on a server that sells effects: who may have them, and what their runs cost."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.domain.prices.metered import MeteredPrice
from tests.support.api import Api, Caller, open_api, problem_of
from tests.support.api_calls import complete, lease
from tests.support.world import PROMPT, PostgresBackend, SqliteBackend

pytestmark = pytest.mark.both_databases

FLEET = "gpus"
OWN_GRAPH = {
    "1": {"class_type": "Prompt", "inputs": {"text": "{{PROMPT}}"}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}},
}
WORKFLOW = {"graph": OWN_GRAPH, "properties": [PROMPT], "output_extension": "png"}


@pytest.fixture
async def api(backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path) -> AsyncIterator[Api]:
    """Yield a server with a default fleet. Own workflows cost 2.5 tokens a second and run for at most 60 seconds."""
    settings: dict[str, Any] = {
        "default_fleet": FLEET,
        "own_workflows": "permitted",
        "own_workflow_tokens_per_second": 2.5,
        "own_workflow_max_seconds": 60,
    }
    async with open_api(backend, tmp_path, storage_url=storage_url, **settings) as api:
        await api.engine.workers.fleets.create(slug=FLEET)
        yield api


async def permit(api: Api, user: Caller, *, allowed: bool = True) -> None:
    assert user.user is not None
    tenancy = api.engine.accounts.tenancy
    await tenancy.set_limits(user.user.tenant_id, {"may_add_workflows": allowed})


async def submit_own(user: Caller, key: str = "first", **more: Any) -> Any:
    slug = (await user.post("/api/workflows", WORKFLOW))["slug"]
    return await user.post("/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": key, **more})


async def balance(user: Caller) -> int:
    return int((await user.get("/api/wallet"))["balance"])


async def amounts(user: Caller, job: Any) -> dict[str, int]:
    found = (await user.get("/api/wallet"))["transactions"]
    entries = found["items"] if isinstance(found, dict) else found
    return {entry["type"]: entry["amount"] for entry in entries if entry["job_id"] == job["id"]}


async def report_failure(api: Api, worker: Caller, job: Any, *, fault: str, **more: Any) -> None:
    body = {key: job[key] for key in ("dispatch_id", "lease_token")}
    await worker.post("/api/worker/fail", {**body, "error_message": "It broke.", "fault": fault, **more})
    await api.engine.outbox.delivery.idle()


async def requeue(api: Api, worker: Caller, job: Any, **more: Any) -> None:
    """Report that the worker stopped the job."""
    body = {key: job[key] for key in ("dispatch_id", "lease_token")}
    await worker.post("/api/worker/requeue", {**body, "reason": "canceled", **more})
    await api.engine.outbox.delivery.idle()


class TestPermission:
    async def test_user_without_permission_cannot_add_or_run_a_workflow(self, api: Api) -> None:
        eve = await api.user("eve@example.com")
        problem = problem_of(await eve.call("POST", "/api/workflows", WORKFLOW), 403)
        assert problem["detail"] == (
            "Your account can run only effects. Ask an administrator to allow your own workflows."
        )
        assert (await eve.get("/api/me"))["own_workflows"] is None
        assert (await eve.get("/api/workflows"))["items"] == []

    async def test_administrator_gives_and_takes_the_permission(self, api: Api) -> None:
        user, admin = await api.user(tokens=1000), await api.user("root@example.com", is_admin=True)
        assert user.user is not None
        path = f"/api/admin/tenants/{user.user.tenant_id}"
        changed = await admin.call("PATCH", path, {"may_add_workflows": True})
        assert changed.json()["data"]["may_add_workflows"] is True
        assert (await user.get("/api/me"))["own_workflows"] == {
            "tokens_per_second": 2.5,
            "max_seconds": 60,
            "reserved_tokens": 150,
        }
        slug = (await user.post("/api/workflows", WORKFLOW))["slug"]
        job = await user.post("/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "k"})
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        other = {**OWN_GRAPH, "1": {"class_type": "Prompt", "inputs": {"text": "{{PROMPT}}", "more": 1}}}
        assert (await user.call("PATCH", f"/api/workflows/{slug}", {**WORKFLOW, "graph": other})).is_success
        await admin.call("PATCH", path, {"may_add_workflows": False})
        limits = (await admin.get(path))["limits"]
        assert (limits["may_add_workflows"], limits["everyone_may_add_workflows"]) == (False, False)
        body = {"workflow_slug": slug, "idempotency_key": "k2"}
        for method, target, sent in (
            ("POST", "/api/ai-jobs", body),
            ("POST", "/api/ai-jobs/price", {"workflow_slug": slug}),
            ("POST", "/api/batches/price", {"workflow_slug": slug, "items": [{}]}),
            ("POST", "/api/workflows", WORKFLOW),
            ("POST", f"/api/workflows/{slug}/versions/1/bring-back", {}),
            ("POST", f"/api/ai-jobs/{job['id']}/workflow", {}),
            ("POST", "/api/v2/jobs", {"workflow": OWN_GRAPH}),
            ("GET", f"/api/missing?workflow_slug={slug}", None),
            ("POST", f"/api/ai-jobs/{job['id']}/retry", {}),
            ("POST", f"/api/ai-jobs/{job['id']}/again", {}),
            ("POST", "/api/batches", {"workflow_slug": slug, "idempotency_key": "b", "items": [{}]}),
            ("PATCH", f"/api/workflows/{slug}", WORKFLOW),
        ):
            response = await user.call(method, target, sent)
            assert response.status_code == 403, (target, response.text)
        bulk = await user.post("/api/ai-jobs/bulk", {"ids": [job["id"]], "action": "retry"})
        assert (bulk["changed"], len(bulk["refused"])) == (0, 1)
        assert await balance(user) == 1000
        # Users can still delete the workflows that they have added.
        assert (await user.call("DELETE", f"/api/workflows/{slug}")).status_code == 200

    async def test_replacing_the_workflows_of_a_fleet_keeps_own_workflows(self, api: Api) -> None:
        user, admin = await api.user(tokens=1000), await api.user("root@example.com", is_admin=True)
        await permit(api, user)
        job = await submit_own(user)
        worker = await api.worker(fleet=FLEET)
        path = f"/api/admin/fleets/production/{FLEET}/workflows"
        assert (await admin.call("PUT", path, {"workflow_slugs": []})).is_success
        assert (await lease(worker))["job_id"] == job["id"]

    async def test_outputs_of_own_workflows_offer_their_graph(self, api: Api) -> None:
        user = await api.user(tokens=1000)
        await permit(api, user)
        await submit_own(user)
        worker = await api.worker(fleet=FLEET)
        await complete(api, worker, await lease(worker))
        [item] = (await user.get("/api/gallery"))["items"]
        assert item["has_graph"]

    async def test_user_cannot_permit_themselves(self, api: Api) -> None:
        user = await api.user()
        assert user.user is not None
        path = f"/api/admin/tenants/{user.user.tenant_id}"
        problem_of(await user.call("PATCH", path, {"may_add_workflows": True}), 403)
        assert (await user.get("/api/me"))["own_workflows"] is None


class TestPrice:
    async def test_measured_seconds_are_charged_and_the_rest_is_released_once(self, api: Api) -> None:
        user = await api.user(tokens=1000)
        await permit(api, user)
        job = await submit_own(user)
        assert (job["reserved_tokens"], await balance(user)) == (150, 850)
        worker = await api.worker(fleet=FLEET)
        leased = await lease(worker)
        assert leased["max_run_seconds"] == 60
        await api.clock.set(api.clock.now + timedelta(seconds=10.1))
        await complete(api, worker, leased)
        done = await user.get(f"/api/ai-jobs/{job['id']}")
        # 10.1 s × 2.5 tokens, rounded up.
        assert (done["status"], done["reserved_tokens"], done["charged_tokens"]) == ("completed", 150, 26)
        assert await amounts(user, job) == {"JOB_RESERVE": -150, "JOB_CONSUME": 124}
        assert await balance(user) == 974
        body = {key: leased[key] for key in ("dispatch_id", "lease_token")}
        await worker.post("/api/worker/complete", {**body, "output": {"size": 1, "mime_type": "image/png"}})
        await api.engine.outbox.delivery.idle()
        assert await balance(user) == 974
        assert (await api.engine.operations.reconciler.run(repair=True)).is_clean
        assert await balance(user) == 974

    async def test_longer_run_costs_at_most_the_reservation(self, api: Api) -> None:
        user = await api.user(tokens=150)
        await permit(api, user)
        job = await submit_own(user)
        worker = await api.worker(fleet=FLEET)
        leased = await lease(worker)
        await api.clock.set(api.clock.now + timedelta(seconds=400))
        await complete(api, worker, leased)
        assert (await user.get(f"/api/ai-jobs/{job['id']}"))["charged_tokens"] == 150
        assert await balance(user) == 0

    @pytest.mark.parametrize(
        ("ran", "fault", "charged"),
        [(True, "job", 50), (True, "worker", 0), (False, "job", 0)],
        ids=["graph fails", "worker fails", "graph is refused"],
    )
    async def test_failed_run_costs_its_seconds_unless_the_worker_is_at_fault(
        self, api: Api, ran: bool, fault: str, charged: int
    ) -> None:
        user = await api.user(tokens=150)
        await permit(api, user)
        job = await submit_own(user)
        for number in range(3):
            worker = await api.worker(f"gpu-{number}", fleet=FLEET)
            leased = await lease(worker, f"gpu-{number}")
            await api.clock.set(api.clock.now + timedelta(seconds=30))
            # The run began 10 s after the lease.
            began = {"began_after_seconds": 10} if ran else {}
            await report_failure(api, worker, leased, fault=fault, **began)
            if fault == "job":
                break
        done = await user.get(f"/api/ai-jobs/{job['id']}")
        assert (done["status"], done["charged_tokens"]) == ("failed", charged)
        settled = "JOB_CONSUME" if charged else "JOB_REFUND"
        assert await amounts(user, job) == {"JOB_RESERVE": -150, settled: 150 - charged}
        assert await balance(user) == 150 - charged
        assert (await api.engine.operations.reconciler.run()).is_clean

    async def test_canceled_run_costs_its_seconds(self, api: Api) -> None:
        user, admin = await api.user(tokens=300), await api.user("root@example.com", is_admin=True)
        await permit(api, user)
        first = await submit_own(user)
        worker = await api.worker(fleet=FLEET)
        leased = await lease(worker)
        await api.clock.set(api.clock.now + timedelta(seconds=20))
        await user.post(f"/api/ai-jobs/{first['id']}/cancel")
        await requeue(api, worker, leased, began_after_seconds=0)
        done = await user.get(f"/api/ai-jobs/{first['id']}")
        assert (done["status"], done["charged_tokens"], await balance(user)) == ("canceled", 50, 250)
        # A run that has not begun costs nothing.
        second = await user.post(f"/api/ai-jobs/{first['id']}/retry")
        leased = await lease(worker)
        await api.clock.set(api.clock.now + timedelta(seconds=20))
        await user.post(f"/api/ai-jobs/{second['id']}/cancel")
        await requeue(api, worker, leased)
        assert (await user.get(f"/api/ai-jobs/{second['id']}"))["charged_tokens"] == 0
        assert await balance(user) == 250
        assert (await api.engine.operations.reconciler.run()).is_clean
        # An administrator can refund the seconds.
        [dispatch] = (await admin.get(f"/api/admin/dispatches?search={first['id']}"))["items"]
        assert await admin.post(f"/api/admin/dispatches/{dispatch['id']}/refund") == {"tokens": 50}
        assert await balance(user) == 300
        assert (await api.engine.operations.reconciler.run()).is_clean

    async def test_pause_does_not_stop_a_charged_run(self, api: Api) -> None:
        user = await api.user(tokens=300)
        await permit(api, user)
        job = await submit_own(user)
        worker = await api.worker(fleet=FLEET)
        leased = await lease(worker)
        await user.post(f"/api/ai-jobs/{job['id']}/pause", {"mode": "now"})
        await user.post("/api/ai-jobs/bulk", {"ids": [job["id"]], "action": "pause", "mode": "now"})
        await user.post("/api/queue/pause", {"mode": "now"})
        body = {key: leased[key] for key in ("dispatch_id", "lease_token")}
        answer = await worker.post("/api/worker/heartbeat", body)
        assert answer["stop"] is None

    async def test_rerun_costs_the_current_price_per_second(self, api: Api) -> None:
        user = await api.user(tokens=1000)
        await permit(api, user)
        job = await submit_own(user)
        worker = await api.worker(fleet=FLEET)
        await complete(api, worker, await lease(worker))
        api.engine.accounts.own_workflows.price = MeteredPrice(millitokens_per_second=5000, max_seconds=30)
        shown = (await user.get(f"/api/ai-jobs/{job['id']}"))["again_tokens"]
        again = await user.post(f"/api/ai-jobs/{job['id']}/again", {"expected_tokens": shown})
        assert (shown, again["reserved_tokens"]) == (150, 150)
        assert (await lease(worker))["max_run_seconds"] == 30

    async def test_run_requires_tokens_for_its_maximum_time(self, api: Api) -> None:
        user = await api.user(tokens=149)
        await permit(api, user)
        slug = (await user.post("/api/workflows", WORKFLOW))["slug"]
        body = {"workflow_slug": slug, "idempotency_key": "k"}
        problem = problem_of(await user.call("POST", "/api/ai-jobs", body), 422)
        assert problem["required_tokens"] == 150
        assert (await user.get("/api/ai-jobs"))["items"] == []

    async def test_reconcile_settles_a_charged_run_like_the_queue(self, api: Api) -> None:
        user = await api.user(tokens=1000)
        await permit(api, user)
        job = await submit_own(user)
        worker = await api.worker(fleet=FLEET)
        leased = await lease(worker)
        await api.clock.set(api.clock.now + timedelta(seconds=4))
        await complete(api, worker, leased)
        again = await user.post(f"/api/ai-jobs/{job['id']}/again", {"expected_tokens": 150})
        assert (again["reserved_tokens"], again["charged_tokens"]) == (150, None)
        assert (await lease(worker))["max_run_seconds"] == 60
        assert await balance(user) == 1000 - 10 - 150
        assert (await api.engine.operations.reconciler.run()).is_clean
