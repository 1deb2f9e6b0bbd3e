"""An administrator offers workflows to users as effects."""

from typing import Any

import pytest

from comfyrelay.store.tenant import jobs
from tests.support.api import Api, problem_of
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.world import GRAPH


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    return await open_operator_scenario(api)


def new(slug: str = "cat", **more: Any) -> dict[str, Any]:
    return {"slug": slug, "workflow_slug": "clip", "credits_cost": 3, **more}


async def test_created_effect_is_returned_unchanged(desk: OperatorScenario) -> None:
    sent = new(name="Cat", property_overrides={"prompt": "a cat"}, is_active=False)
    created = await desk.send("POST", "/effects", sent)
    assert created.items() >= sent.items()
    assert created == await desk.get("/effects/cat")


async def test_effects_are_filtered_and_paginated(desk: OperatorScenario) -> None:
    for slug in ("b", "a"):
        await desk.send("POST", "/effects", new(slug, is_active=slug == "a"))
    first = await desk.get("/effects", limit=2)
    assert [item["slug"] for item in first["items"]] == ["a", "b"]
    second = await desk.get("/effects", limit=2, cursor=first["next_cursor"])
    assert [item["slug"] for item in second["items"]] == ["clip"]
    assert [effect["slug"] for effect in (await desk.get("/effects", is_active=False))["items"]] == ["b"]
    assert len((await desk.get("/effects", workflow="clip"))["items"]) == 3
    assert (await desk.get("/effects", workflow="none"))["items"] == []


async def test_validation_error_names_the_field(desk: OperatorScenario) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"workflow_slug": "none"}, "workflow_slug"),
        ({"credits_cost": -1}, "credits_cost"),
        ({"credits_cost": 2**70}, "credits_cost"),
        ({"property_overrides": {"colour": "red"}}, "property_overrides.colour"),
        ({"property_overrides": {"prompt": 7}}, "property_overrides.prompt"),
    ]
    for wrong, field in cases:
        assert list(problem_of(await desk.call("POST", "/effects", new(**wrong)), 422)["errors"]) == [field]
        assert list(problem_of(await desk.call("PATCH", "/effects/clip", wrong), 422)["errors"]) == [field]


async def test_private_workflow_is_not_offered_as_an_effect(desk: OperatorScenario) -> None:
    create = desk.api.engine.catalogue.workflows.create
    await create(slug="private", graph=GRAPH, tenant_id=desk.user.tenant_id)
    problem = problem_of(await desk.call("POST", "/effects", new(workflow_slug="private")), 422)
    assert list(problem["errors"]) == ["workflow_slug"]


async def test_slug_is_unique_and_cannot_be_changed(desk: OperatorScenario) -> None:
    problem_of(await desk.call("POST", "/effects", new("clip")), 409)
    problem = problem_of(await desk.call("PATCH", "/effects/clip", {"slug": "clap"}), 422)
    assert "cannot be changed" in problem["errors"]["slug"]


async def test_new_price_applies_to_new_jobs(desk: OperatorScenario) -> None:
    old = await desk.submit()
    changed = await desk.send("PATCH", "/effects/clip", {"credits_cost": 20, "name": "Dear"})
    assert (changed["credits_cost"], changed["name"], changed["workflow_slug"]) == (20, "Dear", "clip")
    assert old.reserved_tokens == 7
    assert (await desk.submit()).reserved_tokens == 20


async def test_effect_can_move_to_a_workflow_with_its_properties(desk: OperatorScenario) -> None:
    await desk.send("PATCH", "/effects/clip", {"property_overrides": {"prompt": "a dog"}})
    await desk.send("POST", "/workflows", {"slug": "bare", "graph": GRAPH, "properties": []})
    problem = problem_of(await desk.call("PATCH", "/effects/clip", {"workflow_slug": "bare"}), 422)
    assert list(problem["errors"]) == ["property_overrides.prompt"]
    moved = await desk.send("PATCH", "/effects/clip", {"workflow_slug": "bare", "property_overrides": {}})
    assert (moved["workflow_slug"], moved["property_overrides"]) == ("bare", {})


async def test_jobs_of_a_deleted_effect_continue(desk: OperatorScenario) -> None:
    await desk.worker()
    job = await desk.submit()
    await desk.send("DELETE", "/effects/clip")
    problem_of(await desk.call("GET", "/effects/clip"), 404)
    problem_of(await desk.call("DELETE", "/effects/clip"), 404)
    problem_of(await desk.call("PATCH", "/effects/clip", {"name": "x"}), 404)
    await desk.complete(await desk.lease())
    async with desk.api.engine.databases.shards["main"].read() as tx:
        found = await jobs.get(tx, job.tenant_id, job.id)
    assert found is not None
    assert found.status == "completed"


async def test_id_of_a_deleted_effect_is_not_reused(desk: OperatorScenario) -> None:
    await desk.send("DELETE", "/effects/clip")
    assert (await desk.send("POST", "/effects", new()))["id"] > desk.effect_id
