"""Administrators create fleets, assign workflows to them and see their state."""

from typing import Any

import pytest

from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import Fault
from tests.support.api import Api, problem_of
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.world import GRAPH

HOME = "/fleets/production/home-clip"


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    return await open_operator_scenario(api)


async def test_fleet_is_created_changed_and_deleted(desk: OperatorScenario) -> None:
    sent = {"slug": "spot", "stage": "staging", "name": "Spot", "max_workers": 3, "workflow_slugs": ["clip"]}
    created = await desk.send("POST", "/fleets", sent)
    assert created.items() >= sent.items()
    assert created["workers"] == 0
    changed = await desk.send("PATCH", "/fleets/staging/spot", {"max_workers": None, "name": "Cheap"})
    assert (changed["max_workers"], changed["name"]) == (None, "Cheap")
    assert changed == await desk.get("/fleets/staging/spot")
    await desk.send("DELETE", "/fleets/staging/spot")
    problem_of(await desk.call("GET", "/fleets/staging/spot"), 404)


async def test_stages_do_not_share_slugs(desk: OperatorScenario) -> None:
    await desk.send("POST", "/fleets", {"slug": "home-clip", "stage": "staging"})
    problem_of(await desk.call("POST", "/fleets", {"slug": "home-clip", "stage": "staging"}), 409)
    first = await desk.get("/fleets", limit=1)
    second = await desk.get("/fleets", limit=1, cursor=first["next_cursor"])
    assert [page["items"][0]["stage"] for page in (first, second)] == ["production", "staging"]
    assert second["next_cursor"] is None
    assert len((await desk.get("/fleets", stage="staging"))["items"]) == 1


async def test_slug_and_stage_cannot_be_changed(desk: OperatorScenario) -> None:
    for fixed in ("slug", "stage"):
        problem = problem_of(await desk.call("PATCH", HOME, {fixed: "staging"}), 422)
        assert "cannot be changed" in problem["errors"][fixed]


async def test_patch_with_workflows_names_the_right_route(desk: OperatorScenario) -> None:
    problem = problem_of(await desk.call("PATCH", HOME, {"workflow_slugs": []}), 422)
    assert "PUT /api/admin/fleets/{stage}/{slug}/workflows" in problem["errors"]["workflow_slugs"]


async def test_unknown_fleet_is_404(desk: OperatorScenario) -> None:
    calls: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("PATCH", "", {"name": "x"}),
        ("DELETE", "", None),
        ("PUT", "/workflows", {"workflow_slugs": []}),
        ("GET", "/metrics", None),
    ]
    for method, path, body in calls:
        problem_of(await desk.call(method, f"/fleets/production/none{path}", body), 404)
        problem_of(await desk.call(method, f"/fleets/nowhere/home-clip{path}", body), 422)


async def test_fleet_with_workers_is_not_deleted(desk: OperatorScenario) -> None:
    await desk.worker()
    problem_of(await desk.call("DELETE", HOME), 409)
    assert (await desk.get(HOME))["workers"] == 1
    await desk.api.engine.workers.workers.deregister("gpu-1")
    await desk.send("DELETE", HOME)


class TestMapping:
    async def test_mapping_updates_workers_within_their_own_workflows(self, desk: OperatorScenario) -> None:
        await desk.send("POST", "/workflows", {"slug": "second", "graph": GRAPH})
        await desk.worker("wide")
        await desk.worker("narrow", workflow_slugs=["clip"])
        mapped = await desk.send("PUT", f"{HOME}/workflows", {"workflow_slugs": ["second", "clip", "second"]})
        assert mapped["workflow_slugs"] == ["clip", "second"]
        assert (await desk.get("/workers/wide"))["workflow_slugs"] == ["clip", "second"]
        assert (await desk.get("/workers/narrow"))["workflow_slugs"] == ["clip"]
        await desk.send("PUT", f"{HOME}/workflows", {"workflow_slugs": []})
        assert (await desk.get("/workers/wide"))["workflow_slugs"] == []

    async def test_unknown_workflow_changes_nothing(self, desk: OperatorScenario) -> None:
        body = {"workflow_slugs": ["clip", "none"]}
        problem = problem_of(await desk.call("PUT", f"{HOME}/workflows", body), 422)
        assert "'none'" in problem["errors"]["workflow_slugs"]
        assert (await desk.get(HOME))["workflow_slugs"] == ["clip"]


class TestMetrics:
    async def test_workers_are_counted_by_state(self, desk: OperatorScenario) -> None:
        workers = desk.api.engine.workers.workers
        await desk.worker("offline")
        await desk.advance(301)
        for name in ("busy", "idle", "draining", "revoked"):
            await desk.worker(name)
        await desk.submit()
        await desk.lease("busy")
        await workers.set_draining("draining", is_draining=True)
        await workers.set_approved("revoked", is_approved=False)
        found = await desk.get(f"{HOME}/metrics")
        assert found["workers"] == {"revoked": 1, "offline": 1, "draining": 1, "no_comfyui": 0, "busy": 1, "idle": 1}
        assert found["leases"] == 1

    async def test_idle_fleet_has_empty_metrics(self, desk: OperatorScenario) -> None:
        found = await desk.get(f"{HOME}/metrics")
        assert (found["queued"], found["completed"], found["failed"]) == (0, 0, 0)
        assert found["oldest_age_seconds"] is found["mean_duration_seconds"] is None
        assert [workflow["workflow_slug"] for workflow in found["workflows"]] == ["clip"]

    async def test_metrics_show_queues_and_last_hour_by_workflow(self, desk: OperatorScenario) -> None:
        await desk.worker()
        await desk.completed()
        await desk.advance(3601)
        for seconds in (10, 20):
            await desk.submit()
            leased = await desk.lease()
            await desk.advance(seconds)
            await desk.complete(leased)
        await desk.failed()
        await desk.submit()
        await desk.advance(40)
        await desk.submit()
        found = await desk.get(f"{HOME}/metrics")
        expected = {
            "queued": 2,
            "oldest_age_seconds": 40.0,
            "completed": 2,
            "failed": 1,
            "mean_duration_seconds": 15.0,
        }
        assert found.items() >= expected.items()
        assert found["workflows"] == [{"workflow_slug": "clip", **expected}]

    async def test_retried_attempt_is_not_counted_as_failed(self, desk: OperatorScenario) -> None:
        await desk.worker()
        await desk.submit()
        await desk.fail(await desk.lease(), fault=Fault.WORKER)
        found = await desk.get(f"{HOME}/metrics")
        assert (found["failed"], found["queued"]) == (0, 1)

    async def test_other_stages_and_workflows_do_not_count(self, desk: OperatorScenario) -> None:
        await desk.api.effect("other")
        await desk.submit(stage=Stage.STAGING)
        found = await desk.get("/fleets/production/home-other/metrics")
        assert found["queued"] == 0
        assert (await desk.get(f"{HOME}/metrics"))["queued"] == 0


WRONG_OPTIONS = [
    ("local", {"envirnoment": {}}, "envirnoment", "Unknown field. Valid fields: answer_seconds, boot_seconds, "),
    ("aws", {"subnet": []}, "subnet", "Unknown field. Valid fields: api_base_url, "),
    ("kubernetes", {"gpu": 1}, "gpu", "Unknown field. Valid fields: boot_seconds, gpus, node_selector."),
    ("command", {"boot_seconds": 5}, "command", "Set the file name of the script"),
    ("command", {"command": "x", "boot_seconds": "soon"}, "boot_seconds", "Input should be a valid number"),
]


async def test_unknown_provider_options_are_refused(desk: OperatorScenario) -> None:
    for provider, options, wrong, words in WRONG_OPTIONS:
        machines = {"provider": provider, "options": options}
        for method, path, body in (("POST", "/fleets", {"slug": "spot"}), ("PATCH", HOME, {})):
            problem = problem_of(await desk.call(method, path, {**body, "machines": machines}), 422)
            assert problem["errors"][f"machines.options.{wrong}"].startswith(words)
        problem_of(await desk.call("GET", "/fleets/production/spot"), 404)


async def test_options_are_validated_for_the_fleets_provider(desk: OperatorScenario) -> None:
    await desk.send("PATCH", HOME, {"machines": {"provider": "local", "options": {"grace_seconds": 5}}})
    problem_of(await desk.call("PATCH", HOME, {"machines": {"options": {"command": "x"}}}), 422)
    problem_of(await desk.call("PATCH", HOME, {"machines": {"provider": "kubernetes"}}), 422)
    await desk.send("PATCH", HOME, {"machines": {"slots": 2}})
    await desk.send("PATCH", HOME, {"machines": {"provider": "command", "options": {"command": "x", "own": 1}}})
