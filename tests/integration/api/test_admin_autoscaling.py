"""Administrators configure the machines and limits of a fleet, and read its decisions."""

from typing import Any

import pytest

from comfyrelay.autoscaling.loop import ScalingLoop
from tests.support.api import Api, problem_of
from tests.support.memory_provider import MemoryProvider
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.world import execute

HOME = "/fleets/production/home-clip"
MACHINES = {
    "provider": "aws",
    "image": "ami-1",
    "instance_types": [{"name": "g5.xlarge", "price_per_hour": 0.5, "speed": 2.0}],
    "bundle": {"node_types": ["CheckpointLoader", "Prompt", "SaveVideo"], "models": ["model.safetensors"]},
    "slots": 2,
    "options": {"subnets": ["subnet-a", "subnet-b", "subnet-c"]},
}
WORKDAYS = {"days": [0, 1, 2, 3, 4], "begins": "09:00", "ends": "18:00", "at_least": 2, "timezone": "Europe/Berlin"}
SCALING = {
    "policy": "cheap",
    "min_machines": 1,
    "max_machines": 4,
    "launches_per_minute": 3,
    "cost_per_hour": 2.5,
    "failed_boots": 2,
    "schedules": [WORKDAYS],
    "last_idle_seconds": 60.0,
    "is_dry_run": True,
    "is_paused": False,
}


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    return await open_operator_scenario(api)


class TestSpecs:
    async def test_fleet_is_created_with_machines_and_autoscaling(self, desk: OperatorScenario) -> None:
        sent = {"slug": "spot", "machines": MACHINES, "autoscaling": SCALING}
        created = await desk.send("POST", "/fleets", sent)
        assert created.items() >= sent.items()
        assert await desk.get("/fleets/production/spot") == created

    async def test_fleet_may_have_neither_machines_nor_autoscaling(self, desk: OperatorScenario) -> None:
        found = await desk.get(HOME)
        assert (found["machines"], found["autoscaling"]) == (None, None)

    async def test_omitted_fields_are_kept_and_null_resets(self, desk: OperatorScenario) -> None:
        await desk.send("PATCH", HOME, {"machines": MACHINES, "autoscaling": SCALING})
        changed = await desk.send("PATCH", HOME, {"autoscaling": {"max_machines": 7, "cost_per_hour": None}})
        assert changed["autoscaling"] == {**SCALING, "max_machines": 7, "cost_per_hour": None}
        assert changed["machines"] == MACHINES
        assert (await desk.send("PATCH", HOME, {"machines": None}))["machines"] is None

    async def test_invalid_settings_are_refused_with_a_reason(self, desk: OperatorScenario) -> None:
        cases: list[tuple[dict[str, Any], str, str]] = [
            ({"machines": {"provider": "moon"}}, "machines.provider", "aws"),
            ({"machines": {"instance_types": [{"name": "a", "price_per_hour": -1.0}]}}, "price_per_hour", "0"),
            ({"machines": {"instance_types": [{"name": "a", "speed": 0.0}]}}, "speed", "0"),
            ({"machines": {"instance_types": [{"name": "a"}, {"name": "a"}]}}, "machines", "repeated: a"),
            ({"machines": {"slots": 0}}, "machines.slots", "1"),
            ({"autoscaling": {"policy": "greedy"}}, "autoscaling.policy", "balanced"),
            ({"autoscaling": {"min_machines": 11}}, "autoscaling.min_machines", "more than max_machines, which is 10"),
            ({"autoscaling": {"cost_per_hour": -0.5}}, "autoscaling.cost_per_hour", "0"),
            ({"autoscaling": {"launches_per_minute": 0}}, "autoscaling.launches_per_minute", "1"),
            ({"autoscaling": {"schedules": [{**WORKDAYS, "timezone": "Mars/Olympus"}]}}, "timezone", "Europe/Berlin"),
            ({"autoscaling": {"schedules": [{**WORKDAYS, "timezone": "../etc"}]}}, "timezone", "Europe/Berlin"),
            ({"autoscaling": {"schedules": [{**WORKDAYS, "ends": "09:00"}]}}, "schedules.0", "begins and ends at"),
            ({"autoscaling": {"schedules": [{**WORKDAYS, "begins": "nine"}]}}, "begins", "like 09:00"),
            ({"autoscaling": {"schedules": [{**WORKDAYS, "begins": "09:00+05:00"}]}}, "begins", "has an offset"),
            ({"autoscaling": {"schedules": [{**WORKDAYS, "begins": "24:00"}]}}, "begins", "like 09:00"),
            ({"autoscaling": {"schedules": [{**WORKDAYS, "days": [7]}]}}, "days", "6"),
            ({"autoscaling": {"speed": 1}}, "autoscaling.speed", "Unknown field"),
        ]
        for body, field, words in cases:
            problem = problem_of(await desk.call("PATCH", HOME, body), 422)
            [(name, text)] = problem["errors"].items()
            assert field in name
            assert words in text
            assert (await desk.get(HOME))["autoscaling"] is None

    async def test_schedule_can_last_the_whole_day(self, desk: OperatorScenario) -> None:
        all_day = {**WORKDAYS, "begins": "00:00", "ends": "24:00"}
        changed = await desk.send("PATCH", HOME, {"autoscaling": {"schedules": [all_day]}})
        assert changed["autoscaling"]["schedules"] == [all_day]
        # the answer can be sent back unchanged
        await desk.send("PATCH", HOME, {"autoscaling": {"schedules": changed["autoscaling"]["schedules"]}})


class TestBundles:
    async def fleet(self, desk: OperatorScenario, **bundle: Any) -> str:
        body = {"slug": "spot", "machines": {"bundle": bundle}}
        await desk.send("POST", "/fleets", body)
        return "/fleets/production/spot"

    async def test_workflow_within_the_bundle_is_mapped(self, desk: OperatorScenario) -> None:
        path = await self.fleet(desk, **MACHINES["bundle"])  # type: ignore[arg-type]
        mapped = await desk.send("PUT", f"{path}/workflows", {"workflow_slugs": ["clip"]})
        assert mapped["workflow_slugs"] == ["clip"]

    async def test_workflow_with_missing_requirements_is_refused_with_the_list(self, desk: OperatorScenario) -> None:
        path = await self.fleet(desk, node_types=["CheckpointLoader", "Prompt"])
        answer = await desk.call("PUT", f"{path}/workflows", {"workflow_slugs": ["clip"]})
        problem = problem_of(answer, 409)
        assert {(requirement["kind"], requirement["name"]) for requirement in problem["missing"]} == {
            ("node", "SaveVideo"),
            ("model", "model.safetensors"),
        }
        assert "the node SaveVideo and the model model.safetensors" in problem["detail"]
        assert (await desk.get(path))["workflow_slugs"] == []

    async def test_force_maps_the_workflow_permanently(self, desk: OperatorScenario) -> None:
        path = await self.fleet(desk)
        await desk.send("PUT", f"{path}/workflows", {"workflow_slugs": ["clip"], "force": True})
        assert (await desk.send("PUT", f"{path}/workflows", {"workflow_slugs": ["clip"]}))["workflow_slugs"] == ["clip"]

    async def test_fleet_with_unmet_requirements_is_not_created(self, desk: OperatorScenario) -> None:
        body = {"slug": "spot", "machines": {"bundle": {}}, "workflow_slugs": ["clip"]}
        problem_of(await desk.call("POST", "/fleets", body), 409)
        problem_of(await desk.call("GET", "/fleets/production/spot"), 404)
        await desk.send("POST", "/fleets", {**body, "force": True})

    async def test_registered_workers_count_without_a_bundle(self, desk: OperatorScenario) -> None:
        await desk.send("PUT", f"{HOME}/workflows", {"workflow_slugs": []})
        await desk.api.engine.workers.fleets.create(slug="other", workflow_slugs=["clip"])
        await desk.worker("bare", fleet="other", capabilities={"node_types": ["Prompt"], "models": []})
        await desk.send("PUT", "/fleets/production/other/workflows", {"workflow_slugs": []})
        put = ("PUT", "/fleets/production/other/workflows", {"workflow_slugs": ["clip"]})
        problem = problem_of(await desk.call(*put), 409)
        assert {requirement["name"] for requirement in problem["missing"]} == {
            "CheckpointLoader",
            "SaveVideo",
            "model.safetensors",
        }
        # a worker that reports nothing may meet the requirements
        await desk.send("PUT", put[1], {"workflow_slugs": ["clip"], "force": True})
        await desk.worker("silent", fleet="other")
        await desk.send("PUT", put[1], {"workflow_slugs": []})
        assert (await desk.send(*put))["workflow_slugs"] == ["clip"]

    async def test_several_fleets_can_serve_one_workflow(self, desk: OperatorScenario) -> None:
        await desk.send("POST", "/fleets", {"slug": "second", "workflow_slugs": ["clip"]})
        assert (await desk.get(HOME))["workflow_slugs"] == ["clip"]


class TestDecisions:
    async def test_machines_and_last_decision_are_shown(self, desk: OperatorScenario) -> None:
        await desk.send("PATCH", HOME, {"machines": {**MACHINES, "bundle": None}, "autoscaling": {"max_machines": 3}})
        await desk.submit()
        engine = desk.api.engine
        provider = MemoryProvider()
        engine.autoscaling.leadership.ttl_seconds = 1_000_000.0
        await engine.autoscaling.leadership.claim()
        loop = ScalingLoop(engine, provider)
        await loop.decide_once()
        await loop.idle()
        found = await desk.get(f"{HOME}/autoscaling")
        assert (found["slug"], found["stage"], found["provider"]) == ("home-clip", "production", "aws")
        assert (found["max_machines"], found["queued_jobs"], found["queued_seconds"]) == (3, 1, 60.0)
        assert found["by_state"] == {"booting": 1, "ready": 0, "busy": 0, "draining": 0}
        assert [machine["instance_type"] for machine in found["machines"]] == ["g5.xlarge"]
        assert found["spent_per_hour"] == 0.5
        # The limit of failed rounds is 3, but no launch has failed.
        assert (found["failed_boots"], found["launch_pause_seconds"]) == (0, None)
        assert found["leader"] == engine.autoscaling.leadership.holder
        assert found["decision"]["launch"] == [{"count": 1, "instance_type": "g5.xlarge"}]
        [decision] = (await desk.get(f"{HOME}/decisions"))["items"]
        assert decision == found["decision"]
        assert decision["outcome"] == {"launched": 1, "refused": 0}

    async def test_failed_launches_are_reported_and_reset(self, desk: OperatorScenario) -> None:
        scaling = {"min_machines": 1, "failed_boots": 1}
        await desk.send("PATCH", HOME, {"machines": {**MACHINES, "bundle": None}, "autoscaling": scaling})
        await _fail_boot(desk, MemoryProvider())
        found = await desk.get(f"{HOME}/autoscaling")
        assert (found["failed_boots"], found["launch_pause_seconds"]) == (1, pytest.approx(300, abs=30))
        reset = await desk.send("POST", f"{HOME}/reset-launches")
        assert (reset["failed_boots"], reset["launch_pause_seconds"]) == (0, None)
        problem_of(await desk.call("POST", "/fleets/production/none/reset-launches"), 404)

    async def test_ended_machines_are_listed_with_jobs_and_cost(self, desk: OperatorScenario) -> None:
        await desk.send("PATCH", HOME, {"machines": {**MACHINES, "bundle": None}, "autoscaling": {"min_machines": 2}})
        provider = MemoryProvider()
        await _fail_boot(desk, provider)
        provider.there.clear()
        loop = ScalingLoop(desk.api.engine, provider)
        await loop.observe_once()
        await loop.idle()
        first = await desk.get(f"{HOME}/machines", limit=1)
        second = await desk.get(f"{HOME}/machines", limit=1, cursor=first["next_cursor"])
        assert second["next_cursor"] is None
        [one], [other] = first["items"], second["items"]
        assert one["id"] != other["id"]
        assert (one["instance_type"], one["registered_at"], one["jobs"]) == ("g5.xlarge", None, 0)
        assert one["reason"].startswith("boot_failed")
        # A thousand seconds at 0.5 an hour.
        assert one["cost"] == pytest.approx(0.139, abs=0.01)
        for cursor in ("x", "2026-01-01T00:00:00 key"):
            problem_of(await desk.call("GET", f"{HOME}/machines?cursor={cursor}"), 422)

    async def test_decisions_are_paginated_newest_first(self, desk: OperatorScenario) -> None:
        await desk.send("PATCH", HOME, {"autoscaling": {"is_dry_run": True}})
        engine = desk.api.engine
        engine.autoscaling.leadership.ttl_seconds = 1_000_000.0
        await engine.autoscaling.leadership.claim()
        loop = ScalingLoop(engine, MemoryProvider())
        await loop.decide_once()
        await desk.submit()
        await loop.decide_once()
        first = await desk.get(f"{HOME}/decisions", limit=1)
        second = await desk.get(f"{HOME}/decisions", limit=1, cursor=first["next_cursor"])
        assert "dry run" in first["items"][0]["reason"]
        assert "no jobs wait" in second["items"][0]["reason"]
        assert second["next_cursor"] is None

    async def test_pause_and_resume_keep_other_settings(self, desk: OperatorScenario) -> None:
        await desk.send("PATCH", HOME, {"autoscaling": SCALING})
        assert (await desk.send("POST", f"{HOME}/pause"))["is_paused"] is True
        assert (await desk.get(HOME))["autoscaling"] == {**SCALING, "is_paused": True}
        assert (await desk.send("POST", f"{HOME}/resume"))["is_paused"] is False
        assert (await desk.get(HOME))["autoscaling"] == SCALING

    async def test_unknown_fleet_is_404(self, desk: OperatorScenario) -> None:
        calls: list[tuple[str, str]] = [
            ("GET", "autoscaling"),
            ("GET", "decisions"),
            ("POST", "pause"),
            ("POST", "resume"),
        ]
        for method, path in calls:
            problem_of(await desk.call(method, f"/fleets/production/none/{path}"), 404)
            problem_of(await desk.call(method, f"/fleets/nowhere/home-clip/{path}"), 422)


async def test_external_scaler_reads_the_desired_number(desk: OperatorScenario) -> None:
    assert (await desk.get(f"{HOME}/desired"))["desired"] == 0
    await desk.send("PATCH", HOME, {"autoscaling": {"min_machines": 2}})
    found = await desk.get(f"{HOME}/desired")
    assert found["desired"] == 2
    assert "the minimum is now 2" in found["reason"]
    # reading the number records no decision
    assert (await desk.get(f"{HOME}/decisions"))["items"] == []
    problem_of(await desk.call("GET", "/fleets/production/unknown/desired"), 404)


async def _fail_boot(desk: OperatorScenario, provider: MemoryProvider) -> None:
    """Launch machines that do not become workers for a thousand seconds."""
    engine = desk.api.engine
    engine.autoscaling.leadership.ttl_seconds = 1_000_000.0
    await engine.autoscaling.leadership.claim()
    loop = ScalingLoop(engine, provider)
    await loop.decide_once()
    await loop.idle()
    earlier = "UPDATE machines SET ordered_at = relay_now(-1000), launched_at = relay_now(-1000)"
    await execute(engine.databases.central, earlier)
    await loop.observe_once()
    await loop.idle()
