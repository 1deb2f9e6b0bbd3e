"""Administrators list the workers and approve or revoke them."""

from typing import Any, ClassVar

import pytest

from comfyrelay.errors import Fault
from comfyrelay.protocol.worker import MAX_CAPABILITIES
from comfyrelay.store import paging
from tests.support.api import Api, data_of, problem_of
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.world import execute

VERSIONS = {8188: "0.28.0", 8189: "99.0", 8190: "0.28.0"}


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    return await open_operator_scenario(api)


def poll(worker_id: str = "gpu-1") -> dict[str, str]:
    return {"worker_id": worker_id}


class TestViews:
    async def test_worker_is_shown_without_its_token(self, desk: OperatorScenario) -> None:
        comfyui = [{"url": "http://127.0.0.1:8188", "gpus": [{"name": "RTX 3090", "memory_total": 24}]}]
        capabilities = {"node_types": ["A"], "comfyui": comfyui}
        await desk.api.worker(display_name="Desk", instance_type="g4dn", capabilities=capabilities)
        found = await desk.get("/workers/gpu-1")
        assert found["capabilities"] == capabilities
        assert [(gpu["name"], gpu["memory_total"]) for gpu in found["gpus"]] == [("RTX 3090", 24)]
        assert (found["fleet_slug"], found["stage"], found["state"]) == ("home-clip", "production", "idle")
        assert (found["display_name"], found["instance_type"]) == ("Desk", "g4dn")
        assert found["workflow_slugs"] == ["clip"]
        assert found["blocks"] == []
        assert not any("token" in name for name in found)

    @pytest.mark.both_databases
    async def test_workers_are_filtered_and_paginated(self, desk: OperatorScenario) -> None:
        await desk.api.effect("other")
        for name in ("a", "b", "c"):
            await desk.worker(name)
        await desk.worker("d", fleet="home-other")
        await desk.api.engine.workers.workers.set_draining("b", is_draining=True)
        first = await desk.get("/workers", fleet="home-clip", limit=2)
        assert [item["worker_id"] for item in first["items"]] == ["a", "b"]
        second = await desk.get("/workers", fleet="home-clip", limit=2, cursor=first["next_cursor"])
        assert [item["worker_id"] for item in second["items"]] == ["c"]
        assert second["next_cursor"] is None
        assert [worker["worker_id"] for worker in (await desk.get("/workers", state="draining"))["items"]] == ["b"]
        assert (await desk.get("/workers", stage="staging"))["items"] == []
        problem_of(await desk.call("GET", "/workers", params={"state": "asleep"}), 422)

    @pytest.mark.both_databases
    async def test_state_counts_ignore_the_state_filter(self, desk: OperatorScenario) -> None:
        for name in ("a", "b", "c"):
            await desk.worker(name)
        await desk.api.engine.workers.workers.set_draining("b", is_draining=True)
        found = await desk.get("/workers", state="draining", limit=1)
        assert found["counts"] == {"revoked": 0, "offline": 0, "draining": 1, "no_comfyui": 0, "busy": 0, "idle": 2}
        assert (await desk.get("/workers", search="b"))["counts"] == {**found["counts"], "idle": 0}

    @pytest.mark.both_databases
    async def test_workers_are_sorted_naturally(self, desk: OperatorScenario) -> None:
        for name in ("gpu-10", "gpu-2", "gpu-1"):
            await desk.worker(name)

        def ids(page: dict[str, Any]) -> list[str]:
            return [item["worker_id"] for item in page["items"]]

        first = await desk.get("/workers", limit=2)
        assert ids(first) == ["gpu-1", "gpu-2"]
        second = await desk.get("/workers", limit=2, cursor=first["next_cursor"])
        assert (ids(second), second["next_cursor"]) == (["gpu-10"], None)
        # a worker that deregisters at the same time does not affect the others
        await desk.api.engine.workers.workers.deregister("gpu-2")
        assert ids(await desk.get("/workers", limit=2, cursor=first["next_cursor"])) == ["gpu-10"]
        assert ids(await desk.get("/workers", sort="-name")) == ["gpu-10", "gpu-1"]
        for sort in ("state", "fleet", "gpu", "version", "seen"):
            assert sorted(ids(await desk.get("/workers", sort=sort))) == ["gpu-1", "gpu-10"]
        problem_of(await desk.call("GET", "/workers", params={"sort": "luck"}), 422)
        problem_of(await desk.call("GET", "/workers", params={"cursor": "gpu-1"}), 422)

    @pytest.mark.both_databases
    async def test_search_matches_every_word(self, desk: OperatorScenario) -> None:
        await desk.worker("gpu-1", display_name="Attic", instance_type="g4dn")
        await desk.worker("gpu-2", display_name="Cellar", instance_type="g5")

        async def found(search: str) -> list[str]:
            return [worker["worker_id"] for worker in (await desk.get("/workers", search=search))["items"]]

        assert await found("GPU-") == ["gpu-1", "gpu-2"]
        assert await found("cell") == ["gpu-2"]
        assert await found("%") == []
        assert await found("attic G4") == ["gpu-1"]
        assert await found("attic g5") == []
        assert await found("home-clip gpu") == ["gpu-1", "gpu-2"]
        assert await found("100%") == []

    @pytest.mark.both_databases
    async def test_workers_are_found_by_running_workflow(self, desk: OperatorScenario) -> None:
        await desk.api.engine.workers.fleets.create(slug="attic", workflow_slugs=["clip"])
        await desk.worker("gpu-1", fleet="attic")
        await desk.worker("gpu-2", fleet="attic")
        assert (await desk.get("/workers", search="clip"))["items"] == []
        await desk.submit()
        await desk.lease("gpu-2")
        assert [worker["worker_id"] for worker in (await desk.get("/workers", search="clip"))["items"]] == ["gpu-2"]

    @pytest.mark.both_databases
    async def test_block_is_shown_with_its_end(self, desk: OperatorScenario) -> None:
        await desk.api.worker()
        await desk.submit()
        leased = await desk.lease()
        await desk.fail(leased, fault=Fault.WORKER)
        [block] = (await desk.get("/workers/gpu-1"))["blocks"]
        assert block["workflow_hash"] == leased.dispatch.workflow_hash
        assert block["blocked_until"] is not None

    async def test_workers_cannot_be_created_assigned_or_deleted(self, desk: OperatorScenario) -> None:
        await desk.worker()
        assert (await desk.call("POST", "/workers", {"worker_id": "x"})).status_code == 405
        assert (await desk.call("PUT", "/workers/gpu-1/workflows", {"workflow_slugs": []})).status_code == 405
        assert (await desk.call("DELETE", "/workers/gpu-1")).status_code == 405

    async def test_unknown_worker_is_404(self, desk: OperatorScenario) -> None:
        for verb in ("approve", "revoke", "drain", "undrain", "unblock", "rotate-token"):
            problem_of(await desk.call("POST", f"/workers/none/{verb}"), 404)
        problem_of(await desk.call("GET", "/workers/none"), 404)
        problem_of(await desk.call("GET", "/workers/none/audit-logs"), 404)

    async def test_worker_id_can_contain_a_slash(self, desk: OperatorScenario) -> None:
        await desk.worker("rack/1")
        assert (await desk.get("/workers/rack/1"))["worker_id"] == "rack/1"
        assert (await desk.send("POST", "/workers/rack/1/revoke"))["state"] == "revoked"
        logs = await desk.get("/workers/rack/1/audit-logs")
        assert [log["event"] for log in logs["items"]] == ["revoke", "register"]

    async def test_comfyui_newer_than_all_tried_versions_has_a_note(self, desk: OperatorScenario) -> None:
        servers = [{"url": f"http://127.0.0.1:{port}", "version": version} for port, version in VERSIONS.items()]
        await desk.api.worker(capabilities={"comfyui": servers})
        found = await desk.get("/workers/gpu-1")
        assert found["comfyui_versions"] == ["0.28.0", "99.0"]
        assert found["comfyui_note"].startswith("ComfyUI 99.0 is newer than 0.28.0")

    @pytest.mark.both_databases
    async def test_page_of_a_worker_is_small_for_any_capabilities(self, desk: OperatorScenario) -> None:
        names = [f"model-{number:060}.safetensors" for number in range(MAX_CAPABILITIES // 8)]
        server = {"url": "http://127.0.0.1:8188", "gpus": [{"name": "RTX 3090"}], "missing": {"models": names}}
        more = {f"fact-{number}": names[:100] for number in range(100)}
        capabilities = {**more, "comfyui": [server, server], "models": {"loras": names}, "node_types": names}
        await desk.api.worker(capabilities=capabilities)
        response = await desk.call("GET", "/workers/gpu-1")
        assert len(response.content) < 200_000
        found = data_of(response)
        assert (found["node_count"], found["model_count"]) == (len(names), len(names))
        assert [gpu["name"] for gpu in found["gpus"]] == ["RTX 3090"] * 2
        assert len((await desk.call("GET", "/workers")).content) < 10_000
        assert len((await desk.admin.call("GET", "/api/slots")).content) < 10_000

    async def test_deeply_nested_capabilities_are_truncated(self, desk: OperatorScenario) -> None:
        deep: object = {}
        for _ in range(300):
            deep = {"a": deep}
        await desk.worker(capabilities={"deep": deep, "node_types": ["A"]})
        assert (await desk.get("/workers/gpu-1"))["capabilities"]["node_types"] == ["A"]


class TestDetails:
    DEVICE: ClassVar = {
        "server": "http://127.0.0.1:8188",
        "name": "RTX 4090",
        "memory_total": 24,
        "memory_used": 5,
        "load": 0.5,
    }

    @pytest.mark.both_databases
    async def test_gpus_and_jobs_are_in_list_and_details(self, desk: OperatorScenario) -> None:
        worker = await desk.api.worker()
        job = await desk.submit()
        leased = (await worker.post("/api/worker/poll", {**poll(), "devices": [self.DEVICE]}))["job"]
        await desk.api.engine.workers.slots.write_noted()
        progress = {"value": 0.25, "phase": "running"}
        beat = {"dispatch_id": leased["dispatch_id"], "lease_token": leased["lease_token"], "progress": progress}
        await worker.post("/api/worker/heartbeat", beat)
        [listed] = (await desk.get("/workers"))["items"]
        shown = await desk.get("/workers/gpu-1")
        for view in (listed, shown):
            [gpu] = view["gpus"]
            assert (gpu["name"], gpu["memory_used"], gpu["load"], gpu["unavailable_reason"]) == (
                "RTX 4090",
                5,
                0.5,
                None,
            )
            [running] = view["jobs"]
            assert (running["job_id"], running["workflow_slug"], running["progress"]) == (job.id, "clip", progress)
            assert running["tenant_id"] == desk.user.tenant_id

    @pytest.mark.both_databases
    async def test_worker_without_comfyui_gets_no_job(self, desk: OperatorScenario) -> None:
        dead = {"server": "comfyui-1", "unavailable_reason": "ComfyUI exited. Its last lines: CUDA error"}
        worker = await desk.api.worker(devices=[dead])
        await desk.submit()
        assert (await worker.post("/api/worker/poll", {**poll(), "devices": [dead]}))["job"] is None
        [listed] = (await desk.get("/workers"))["items"]
        assert (listed["state"], listed["gpus"][0]["unavailable_reason"]) == ("no_comfyui", dead["unavailable_reason"])
        assert (await desk.get("/workers", status="no_comfyui"))["counts"]["no_comfyui"] == 1

        # One usable server is enough.
        assert (await worker.post("/api/worker/poll", {**poll(), "devices": [dead, self.DEVICE]}))["job"] is not None
        await desk.api.engine.workers.slots.write_noted()
        assert (await desk.get("/workers/gpu-1"))["state"] == "busy"

    async def test_warm_and_blocked_workflows_are_shown_by_slug(self, desk: OperatorScenario) -> None:
        worker = await desk.api.worker()
        await desk.submit()
        leased = await desk.lease()
        hash_ = leased.dispatch.workflow_hash
        await desk.fail(leased, fault=Fault.WORKER)
        await worker.post("/api/worker/poll", {**poll(), "warm_workflow_hashes": [hash_, "unknown"]})
        await desk.api.engine.workers.slots.write_noted()
        shown = await desk.get("/workers/gpu-1")
        assert shown["loaded"] == [
            {"workflow_hash": hash_, "workflow_slug": "clip"},
            {"workflow_hash": "unknown", "workflow_slug": None},
        ]
        assert [block["workflow_slug"] for block in shown["blocks"]] == ["clip"]
        assert [item["blocked"] for item in (await desk.get("/workers"))["items"]] == [1]
        await desk.advance(3600)
        assert (await desk.get("/workers/gpu-1"))["blocked"] == 0

    @pytest.mark.both_databases
    async def test_registration_shows_proof_and_last_decision(self, desk: OperatorScenario) -> None:
        await desk.api.worker()
        first = (await desk.get("/workers/gpu-1"))["registration"]
        assert first == {"proof": "secret", "decision": None, "decided_by": None, "decided_at": None}
        await desk.send("POST", "/workers/gpu-1/revoke")
        await desk.send("POST", "/workers/gpu-1/drain")
        found = (await desk.get("/workers/gpu-1"))["registration"]
        assert (found["decision"], found["decided_by"]) == ("revoke", "root@example.com")
        query = "INSERT INTO instance_identities VALUES ('gpu-1', '1', 'x', '2026-01-01 12:00:00.000000')"
        await execute(desk.api.engine.databases.central, query)
        assert (await desk.get("/workers/gpu-1"))["registration"]["proof"] == "identity_document"

    async def test_last_decision_is_shown_after_many_later_entries(
        self, desk: OperatorScenario, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await desk.worker()
        await desk.send("POST", "/workers/gpu-1/approve")
        await desk.completed()
        monkeypatch.setattr(paging, "MAX_SCANNED", 1)
        found = (await desk.get("/workers/gpu-1"))["registration"]
        assert (found["decision"], found["decided_by"]) == ("approve", "root@example.com")

    @pytest.mark.both_databases
    async def test_missing_requirements_and_machine_are_shown(self, desk: OperatorScenario) -> None:
        await desk.api.worker(capabilities={"node_types": ["A"], "models": []})
        central = desk.api.engine.databases.central
        at = "'2026-01-01 12:00:00.000000'"
        await execute(central, f"INSERT INTO workflow_requirements VALUES ('h', '[\"B\"]', '[]', {at})")
        await execute(central, "INSERT INTO worker_missing_requirements VALUES ('gpu-1', 'h', '[\"B\"]', '[]', '[]')")
        await execute(
            central,
            "INSERT INTO machines (key, fleet_id, provider_id, worker_id, instance_type, price_per_hour, ordered_at) "
            f"SELECT 'k', id, 'i-1', 'gpu-1', 'g4dn', 0.5, {at} FROM fleets WHERE slug = 'home-clip'",
        )
        shown = await desk.get("/workers/gpu-1")
        assert shown["missing_requirements"] == [
            {"workflow_hash": "h", "workflow_slug": None, "node_types": ["B"], "models": []}
        ]
        assert (shown["machine"]["provider_id"], shown["machine"]["price_per_hour"]) == ("i-1", 0.5)


class TestActions:
    async def test_revoked_worker_loses_its_leases_until_approved(self, desk: OperatorScenario) -> None:
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
        await desk.send("POST", "/workers/gpu-1/approve")
        assert (await worker.post("/api/worker/poll", poll()))["job"] is not None

    async def test_draining_worker_gets_no_jobs(self, desk: OperatorScenario) -> None:
        worker = await desk.api.worker()
        await desk.submit()
        assert (await desk.send("POST", "/workers/gpu-1/drain"))["state"] == "draining"
        assert (await worker.post("/api/worker/poll", poll()))["job"] is None
        assert (await desk.send("POST", "/workers/gpu-1/undrain"))["state"] == "idle"
        assert (await worker.post("/api/worker/poll", poll()))["job"] is not None

    async def test_rotated_token_replaces_the_old_one(self, desk: OperatorScenario) -> None:
        worker = await desk.api.worker()
        await worker.post("/api/worker/poll", poll())
        rotated = await desk.send("POST", "/workers/gpu-1/rotate-token")
        assert len(rotated["token"]) == 64
        problem_of(await worker.call("POST", "/api/worker/poll", poll()), 401)
        headers = {"Authorization": f"Bearer {rotated['token']}"}
        assert (await desk.api.anonymous.post("/api/worker/poll", poll(), headers=headers))["job"] is None
        for path in ("/audit-logs", "/workers/gpu-1"):
            assert rotated["token"] not in (await desk.call("GET", path)).text


class TestAudit:
    async def test_audit_records_action_and_actor(self, desk: OperatorScenario) -> None:
        await desk.worker()
        for verb in ("drain", "undrain", "revoke", "approve", "rotate-token"):
            await desk.send("POST", f"/workers/gpu-1/{verb}")
        logs = (await desk.get("/workers/gpu-1/audit-logs"))["items"]
        events = ["rotate_token", "approve", "revoke", "undrain", "drain", "register"]
        assert [log["event"] for log in logs] == events
        assert desk.admin.user is not None
        assert all(log["data"]["by"] == desk.admin.user.email for log in logs[:-1])

    async def test_audit_log_outlives_its_worker(self, desk: OperatorScenario) -> None:
        await desk.worker()
        await desk.api.engine.workers.workers.deregister("gpu-1")
        logs = await desk.get("/workers/gpu-1/audit-logs")
        assert [log["event"] for log in logs["items"]] == ["deregister", "register"]

    @pytest.mark.both_databases
    async def test_audit_logs_are_filtered_and_paginated(self, desk: OperatorScenario) -> None:
        for name in ("a", "b"):
            await desk.worker(name)
            await desk.send("POST", f"/workers/{name}/drain")
        first = await desk.get("/audit-logs", limit=3)
        second = await desk.get("/audit-logs", limit=3, cursor=first["next_cursor"])
        seen = [(item["worker_id"], item["event"]) for item in (*first["items"], *second["items"])]
        assert seen == [("b", "drain"), ("b", "register"), ("a", "drain"), ("a", "register")]
        assert second["next_cursor"] is None
        drains = await desk.get("/audit-logs", event="drain")
        assert [drain["worker_id"] for drain in drains["items"]] == ["b", "a"]
        of_a = await desk.get("/audit-logs", worker="a", event="register")
        assert [item["worker_id"] for item in of_a["items"]] == ["a"]
        none = await desk.get("/workers/a/audit-logs", event="revoke")
        assert none == {"items": [], "next_cursor": None}
