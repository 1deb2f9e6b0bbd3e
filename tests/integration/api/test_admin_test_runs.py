"""Administrators test a workflow on a chosen worker and see its earlier test runs."""

from typing import Any

import pytest

from comfyrelay.store.tenant import jobs
from tests.support.api import Api, problem_of
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.world import GRAPH


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    found = await open_operator_scenario(api)
    await found.worker("gpu-1")
    await found.worker("gpu-2")
    return found


async def start_test_run(desk: OperatorScenario, **body: Any) -> Any:
    return await desk.send("POST", "/workflows/clip/test-run", body)


class TestTestRuns:
    async def test_test_run_is_a_free_job_of_the_administrator(self, desk: OperatorScenario) -> None:
        started = await start_test_run(desk, values={"prompt": "a dog"})
        job = await desk.admin.get(f"/api/ai-jobs/{started['job_id']}")
        assert (job["status"], job["label"]) == ("queued", "Test of clip")
        leased = await desk.lease("gpu-2")
        assert leased.dispatch.tenant_job_id == started["job_id"]
        assert "a dog" in str(leased.graph)
        await desk.complete(leased)
        assert desk.admin.user is not None
        assert await desk.api.engine.accounts.ledger.balance(desk.admin.user.tenant_id) == 0

    @pytest.mark.both_databases
    async def test_only_the_named_worker_gets_the_test_run(self, desk: OperatorScenario) -> None:
        started = await start_test_run(desk, worker_id="gpu-2")
        assert started["only_worker"] == "gpu-2"
        with pytest.raises(ValueError, match="not enough values"):
            await desk.lease("gpu-1")
        assert (await desk.lease("gpu-2")).dispatch.tenant_job_id == started["job_id"]

    async def test_idle_worker_gets_a_later_test_run(self, desk: OperatorScenario) -> None:
        worker = await desk.api.worker("gpu-3")
        poll = {"worker_id": "gpu-3"}
        assert (await worker.post("/api/worker/poll", poll))["job"] is None
        started = await start_test_run(desk, worker_id="gpu-3")
        assert (await worker.post("/api/worker/poll", poll))["job"]["job_id"] == started["job_id"]

    async def test_wait_reason_refers_to_the_named_worker(self, desk: OperatorScenario) -> None:
        started = await start_test_run(desk, worker_id="gpu-2")
        await desk.api.engine.workers.workers.set_draining("gpu-2", is_draining=True)
        job = await desk.admin.get(f"/api/ai-jobs/{started['job_id']}")
        assert job["waiting"]["reason"] == "no_worker"

    async def test_retried_test_run_stays_with_its_worker(self, desk: OperatorScenario) -> None:
        started = await start_test_run(desk, worker_id="gpu-2")
        await desk.fail(await desk.lease("gpu-2"))
        again = await desk.admin.post(f"/api/ai-jobs/{started['job_id']}/retry")
        async with desk.api.engine.databases.shards["main"].read() as tx:
            [job] = await jobs.by_ids(tx, [again["id"]])
        assert job.only_worker == "gpu-2"

    async def test_invalid_test_run_is_refused(self, desk: OperatorScenario) -> None:
        await desk.api.effect("other")
        await desk.worker("other", fleet="home-other")
        await desk.worker("revoked")
        await desk.api.engine.workers.workers.set_approved("revoked", is_approved=False)
        cases: list[tuple[dict[str, Any], int]] = [
            ({"worker_id": "none"}, 422),
            ({"worker_id": "other"}, 409),
            ({"worker_id": "revoked"}, 409),
            ({"values": {"colour": "red"}}, 422),
            ({"values": []}, 422),
            ({"effect_id": 1}, 422),
        ]
        for body, status in cases:
            problem_of(await desk.call("POST", "/workflows/clip/test-run", body), status)

    async def test_unknown_or_private_workflow_is_404(self, desk: OperatorScenario) -> None:
        problem_of(await desk.call("POST", "/workflows/none/test-run", {}), 404)
        create = desk.api.engine.catalogue.workflows.create
        await create(slug="private", graph=GRAPH, tenant_id=desk.user.tenant_id)
        problem_of(await desk.call("POST", "/workflows/private/test-run", {}), 404)

    async def test_catalogue_workflow_is_404_for_ordinary_jobs(self, desk: OperatorScenario) -> None:
        user = await desk.api.user("eve@example.com", tokens=100)
        body = {"workflow_slug": "clip", "idempotency_key": "k"}
        problem_of(await user.call("POST", "/api/ai-jobs", body), 404)
        problem_of(await desk.admin.call("POST", "/api/ai-jobs", body), 404)


class TestVersions:
    @pytest.mark.both_databases
    async def test_version_is_created_when_graph_or_output_changes(self, desk: OperatorScenario) -> None:
        other = {**GRAPH, "9": {"class_type": "Note", "inputs": {}}}
        await desk.send("PATCH", "/workflows/clip", {"name": "Only the name"})
        await desk.send("PATCH", "/workflows/clip", {"graph": other})
        await desk.send("PATCH", "/workflows/clip", {"graph": other})
        await desk.send("PATCH", "/workflows/clip", {"output_extension": "webp"})
        found = (await desk.get("/workflows/clip/versions"))["items"]
        assert [(version["number"], version["output_extension"]) for version in found] == [
            (3, "webp"),
            (2, "png"),
            (1, "png"),
        ]
        assert (await desk.get("/workflows/clip/versions/1"))["graph"] == GRAPH
        assert (await desk.get("/workflows/clip/versions/3"))["graph"] == other

    async def test_earlier_version_can_be_restored(self, desk: OperatorScenario) -> None:
        await desk.send("PATCH", "/workflows/clip", {"graph": {**GRAPH, "9": {"class_type": "Note", "inputs": {}}}})
        first = await desk.get("/workflows/clip/versions/1")
        again = {name: first[name] for name in ("graph", "properties", "output_node_id", "output_extension")}
        await desk.send("PATCH", "/workflows/clip", again)
        assert (await desk.get("/workflows/clip/versions", limit=1))["items"][0]["number"] == 3
        assert (await desk.get("/workflows/clip"))["graph"] == GRAPH

    @pytest.mark.both_databases
    async def test_versions_are_paginated(self, desk: OperatorScenario) -> None:
        for extension in ("webp", "jpg"):
            await desk.send("PATCH", "/workflows/clip", {"output_extension": extension})
        first = await desk.get("/workflows/clip/versions", limit=2)
        second = await desk.get("/workflows/clip/versions", limit=2, cursor=first["next_cursor"])
        assert [item["number"] for item in (*first["items"], *second["items"])] == [3, 2, 1]

    async def test_unknown_version_is_404(self, desk: OperatorScenario) -> None:
        problem_of(await desk.call("GET", "/workflows/none/versions"), 404)
        problem_of(await desk.call("GET", "/workflows/clip/versions/9"), 404)
        problem_of(await desk.call("GET", "/workflows/clip/versions/x"), 422)


class TestPreviews:
    async def upload(self, desk: OperatorScenario, name: str = "cat.png", mime_type: str = "image/png") -> str:
        asset = await desk.send("POST", "/assets", {"mime_type": mime_type, "size": 3, "original_filename": name})
        sent = await desk.api.anonymous.http.put(asset["upload_url"], content=b"cat", headers=asset["upload_headers"])
        assert sent.is_success, sent.text
        path: str = asset["path"]
        return path

    @pytest.mark.both_databases
    async def test_effect_preview_is_shown_to_administrators_and_users(self, desk: OperatorScenario) -> None:
        assert (await desk.get("/effects/clip"))["preview_url"] is None
        path = await self.upload(desk)
        changed = await desk.send("PATCH", "/effects/clip", {"preview_path": path})
        assert changed["preview_path"] == (await desk.get("/effects/clip"))["preview_path"]
        user = await desk.api.user("eve@example.com")
        [listed] = (await desk.get("/effects"))["items"]
        [offered] = (await user.get("/api/effects"))["items"]
        one = await user.get("/api/effects/clip")
        for url in (changed["preview_url"], listed["preview_url"], offered["preview_url"], one["preview_url"]):
            assert (await desk.api.anonymous.http.get(url)).content == b"cat"
        # the URL does not change, because browsers cache by URL
        assert offered["preview_url"] == one["preview_url"]
        assert "preview_path" not in one
        assert (await desk.send("PATCH", "/effects/clip", {"preview_path": None}))["preview_url"] is None

    async def test_effect_can_be_created_with_a_preview(self, desk: OperatorScenario) -> None:
        path = await self.upload(desk, "cat.mp4", "video/mp4")
        body = {"slug": "cat", "workflow_slug": "clip", "credits_cost": 1, "preview_path": path}
        assert (await desk.send("POST", "/effects", body))["preview_url"] is not None

    async def test_invalid_preview_path_is_refused(self, desk: OperatorScenario) -> None:
        audio = await self.upload(desk, "cat.mp3", "audio/mpeg")
        for path in (
            "catalogue/assets/none.png",
            "tenants/secret.png",
            "catalogue/assets/../../x.png",
            "",
            "x" * 400,
            audio,
        ):
            problem = problem_of(await desk.call("PATCH", "/effects/clip", {"preview_path": path}), 422)
            assert list(problem["errors"]) == ["preview_path"]
