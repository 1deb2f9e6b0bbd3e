"""An administrator sees the workers, and decides who may work."""

import pytest

from comfyrelay.errors import Fault
from tests.api.harness import Api, problem_of
from tests.api.operating import Operating, operate


@pytest.fixture
async def desk(api: Api) -> Operating:
    return await operate(api)


def poll(worker_id: str = "gpu-1") -> dict[str, str]:
    return {"worker_id": worker_id}


class TestLooking:
    async def test_a_worker_is_told_of_without_its_token(self, desk: Operating) -> None:
        await desk.api.worker(display_name="Desk", instance_type="g4dn", capabilities={"node_types": ["A"]})
        found = await desk.get("/workers/gpu-1")
        assert found["capabilities"] == {"node_types": ["A"]}
        assert (found["fleet_slug"], found["stage"], found["state"]) == ("home-clip", "production", "idle")
        assert (found["display_name"], found["instance_type"]) == ("Desk", "g4dn")
        assert found["workflow_slugs"] == ["clip"]
        assert found["blocks"] == []
        assert not any("token" in name for name in found)

    async def test_workers_are_filtered_and_come_page_by_page(self, desk: Operating) -> None:
        await desk.api.effect("other")
        for name in ("a", "b", "c"):
            await desk.worker(name)
        await desk.worker("d", fleet="home-other")
        await desk.api.engine.fleet.workers.set_draining("b", is_draining=True)
        first = await desk.get("/workers", fleet="home-clip", limit=2)
        assert [each["worker_id"] for each in first["items"]] == ["a", "b"]
        second = await desk.get("/workers", fleet="home-clip", limit=2, cursor=first["next_cursor"])
        assert [each["worker_id"] for each in second["items"]] == ["c"]
        assert second["next_cursor"] is None
        assert [each["worker_id"] for each in (await desk.get("/workers", state="draining"))["items"]] == ["b"]
        assert (await desk.get("/workers", stage="staging"))["items"] == []
        problem_of(await desk.call("GET", "/workers", params={"state": "asleep"}), 422)

    async def test_a_block_is_shown_with_its_end(self, desk: Operating) -> None:
        await desk.api.worker()
        await desk.submit()
        leased = await desk.lease()
        await desk.fail(leased, fault=Fault.WORKER)
        [block] = (await desk.get("/workers/gpu-1"))["blocks"]
        assert block["workflow_hash"] == leased.dispatch.workflow_hash
        assert block["blocked_until"] is not None

    async def test_workers_are_neither_made_nor_assigned_by_hand(self, desk: Operating) -> None:
        await desk.worker()
        assert (await desk.call("POST", "/workers", {"worker_id": "x"})).status_code == 405
        assert (await desk.call("PUT", "/workers/gpu-1/workflows", {"workflow_slugs": []})).status_code == 405
        assert (await desk.call("DELETE", "/workers/gpu-1")).status_code == 405

    @pytest.mark.parametrize("verb", ["approve", "revoke", "drain", "undrain", "rotate-token"])
    async def test_one_that_is_not_there_is_404(self, desk: Operating, verb: str) -> None:
        problem_of(await desk.call("POST", f"/workers/none/{verb}"), 404)
        problem_of(await desk.call("GET", "/workers/none"), 404)
        problem_of(await desk.call("GET", "/workers/none/audit-logs"), 404)

    async def test_a_name_with_a_slash_is_reached_all_the_same(self, desk: Operating) -> None:
        await desk.worker("rack/1")
        assert (await desk.get("/workers/rack/1"))["worker_id"] == "rack/1"
        assert (await desk.send("POST", "/workers/rack/1/revoke"))["state"] == "revoked"
        logs = await desk.get("/workers/rack/1/audit-logs")
        assert [each["event"] for each in logs["items"]] == ["revoke", "register"]

    async def test_a_report_that_is_nested_too_deeply_is_cut(self, desk: Operating) -> None:
        deep: object = {}
        for _ in range(300):
            deep = {"a": deep}
        await desk.worker(capabilities={"deep": deep, "node_types": ["A"]})
        assert (await desk.get("/workers/gpu-1"))["capabilities"]["node_types"] == ["A"]


class TestDeciding:
    async def test_a_revoked_worker_is_shut_out_at_once_and_loses_its_leases(self, desk: Operating) -> None:
        worker = await desk.api.worker()
        await desk.submit()
        job = (await worker.post("/api/worker/poll", poll()))["job"]
        revoked = await desk.send("POST", "/workers/gpu-1/revoke")
        assert (revoked["state"], revoked["is_approved"], revoked["leases"]) == ("revoked", False, 0)
        beat = {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}
        problem_of(await worker.call("POST", "/api/worker/heartbeat", beat), 403)
        problem_of(await worker.call("POST", "/api/worker/poll", poll()), 403)
        [dispatch] = (await desk.get("/dispatches"))["items"]
        assert (dispatch["status"], dispatch["attempts"], dispatch["last_worker_id"]) == ("queued", 0, "gpu-1")

    async def test_an_approved_one_works_again_at_once(self, desk: Operating) -> None:
        worker = await desk.api.worker()
        await desk.send("POST", "/workers/gpu-1/revoke")
        problem_of(await worker.call("POST", "/api/worker/poll", poll()), 403)
        await desk.send("POST", "/workers/gpu-1/approve")
        await desk.submit()
        assert (await worker.post("/api/worker/poll", poll()))["job"] is not None

    async def test_a_draining_worker_gets_nothing_new(self, desk: Operating) -> None:
        worker = await desk.api.worker()
        await desk.submit()
        assert (await desk.send("POST", "/workers/gpu-1/drain"))["state"] == "draining"
        assert (await worker.post("/api/worker/poll", poll()))["job"] is None
        assert (await desk.send("POST", "/workers/gpu-1/undrain"))["state"] == "idle"
        assert (await worker.post("/api/worker/poll", poll()))["job"] is not None

    async def test_a_new_token_takes_the_place_of_the_old_one_at_once(self, desk: Operating) -> None:
        worker = await desk.api.worker()
        await worker.post("/api/worker/poll", poll())
        rotated = await desk.send("POST", "/workers/gpu-1/rotate-token")
        assert len(rotated["token"]) == 64
        problem_of(await worker.call("POST", "/api/worker/poll", poll()), 401)
        headers = {"Authorization": f"Bearer {rotated['token']}"}
        assert await desk.api.anybody.post("/api/worker/poll", poll(), headers=headers) == {"job": None}

    async def test_a_token_is_written_down_nowhere(self, desk: Operating) -> None:
        await desk.api.worker()
        token = (await desk.send("POST", "/workers/gpu-1/rotate-token"))["token"]
        logs = await desk.call("GET", "/audit-logs")
        shown = await desk.call("GET", "/workers/gpu-1")
        assert token not in logs.text + shown.text


class TestAudit:
    async def test_what_was_done_is_written_down_with_who_did_it(self, desk: Operating) -> None:
        await desk.worker()
        for verb in ("drain", "undrain", "revoke", "approve", "rotate-token"):
            await desk.send("POST", f"/workers/gpu-1/{verb}")
        logs = (await desk.get("/workers/gpu-1/audit-logs"))["items"]
        events = ["rotate_token", "approve", "revoke", "undrain", "drain", "register"]
        assert [each["event"] for each in logs] == events
        assert desk.admin.user is not None
        assert all(each["data"]["by"] == desk.admin.user.id for each in logs[:-1])

    async def test_the_logs_of_one_that_has_left_stay(self, desk: Operating) -> None:
        await desk.worker()
        await desk.api.engine.fleet.workers.deregister("gpu-1")
        logs = await desk.get("/workers/gpu-1/audit-logs")
        assert [each["event"] for each in logs["items"]] == ["deregister", "register"]

    async def test_logs_are_filtered_and_come_page_by_page(self, desk: Operating) -> None:
        for name in ("a", "b"):
            await desk.worker(name)
            await desk.send("POST", f"/workers/{name}/drain")
        first = await desk.get("/audit-logs", limit=3)
        second = await desk.get("/audit-logs", limit=3, cursor=first["next_cursor"])
        seen = [(each["worker_id"], each["event"]) for each in (*first["items"], *second["items"])]
        assert seen == [("b", "drain"), ("b", "register"), ("a", "drain"), ("a", "register")]
        assert second["next_cursor"] is None
        drains = await desk.get("/audit-logs", event="drain")
        assert [each["worker_id"] for each in drains["items"]] == ["b", "a"]
        of_a = await desk.get("/audit-logs", worker="a", event="register")
        assert [each["worker_id"] for each in of_a["items"]] == ["a"]
        none = await desk.get("/workers/a/audit-logs", event="revoke")
        assert none == {"items": [], "next_cursor": None}
