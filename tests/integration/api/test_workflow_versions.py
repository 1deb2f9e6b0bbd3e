"""A changed workflow replaces the one of the same name; its earlier versions are kept and can be restored."""

from pathlib import Path
from typing import Any

import pytest

from comfyrelay.services.operations.retention import GRACE_SECONDS
from comfyrelay.store.central.catalogue import MAX_PRIVATE_VERSIONS
from tests.support.api import Api, Caller, problem_of
from tests.support.api_calls import submit

pytestmark = pytest.mark.both_databases


def graph(steps: int = 20, *, prefix: str = "x", has_text: bool = True) -> dict[str, Any]:
    text = {"text": "a cat"} if has_text else {}
    return {
        "1": {"class_type": "Sample", "inputs": {"steps": steps, "link": ["2", 0]}},
        "2": {"class_type": "Write", "inputs": {**text, "size": 8}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": prefix}},
    }


@pytest.fixture
async def user(api: Api) -> Caller:
    return await api.user()


async def add(user: Caller, body: dict[str, Any], *, name: str = "portrait", **fields: Any) -> Any:
    return await user.post("/api/workflows", {"graph": body, "name": name, **fields})


async def versions(user: Caller, slug: str) -> list[Any]:
    found: list[Any] = (await user.get(f"/api/workflows/{slug}/versions"))["items"]
    return found


async def canceled_job(user: Caller, slug: str) -> str:
    job: str = (await user.post("/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "job"}))["id"]
    await user.call("POST", f"/api/ai-jobs/{job}/cancel")
    return job


async def names(user: Caller) -> list[str]:
    return sorted(item["name"] for item in (await user.get("/api/workflows"))["items"])


async def test_changed_workflow_of_the_same_name_is_refused_with_its_slug(user: Caller) -> None:
    slug = (await add(user, graph()))["slug"]
    body = {"graph": graph(30), "name": "portrait", "same_name": "refuse"}
    problem = problem_of(await user.call("POST", "/api/workflows", body), 409)
    assert (problem["type"], problem["workflow_slug"]) == ("urn:comfyrelay:workflow_name_taken", slug)
    assert "keeps its jobs and presets" in problem["detail"]
    assert await names(user) == ["portrait"]


async def test_renamed_workflow_is_found_by_the_name_it_was_added_with(user: Caller) -> None:
    slug = (await add(user, graph()))["slug"]
    await user.call("PATCH", f"/api/workflows/{slug}", {"name": "My portrait"})
    body = {"graph": graph(30), "name": "portrait", "same_name": "refuse"}
    problem = problem_of(await user.call("POST", "/api/workflows", body), 409)
    assert problem["workflow_slug"] == slug
    assert "'My portrait'" in problem["detail"]


async def test_equal_graph_reuses_the_workflow_without_a_question(user: Caller) -> None:
    slug = (await add(user, graph()))["slug"]
    answer = await user.call("POST", "/api/workflows", {"graph": graph(), "name": "portrait", "same_name": "refuse"})
    assert (answer.status_code, answer.json()["data"]["slug"]) == (200, slug)
    assert len(await versions(user, slug)) == 1


async def test_workflow_name_of_another_tenant_is_available(api: Api, user: Caller) -> None:
    await add(await api.user("other@example.com"), graph())
    assert (await add(user, graph(30), same_name="refuse"))["name"] == "portrait"


async def test_second_workflow_of_a_name_is_numbered(user: Caller) -> None:
    for steps in (20, 30, 40):
        await add(user, graph(steps), same_name="number")
    assert await names(user) == ["portrait", "portrait (2)", "portrait (3)"]
    long = "n" * 200
    await add(user, graph(50), name=long, same_name="number")
    added = await add(user, graph(60), name=long, same_name="number")
    assert len(added["name"]) == 200
    assert added["name"].endswith("n (2)")


async def test_replaced_workflow_keeps_slug_jobs_and_their_graph(api: Api, user: Caller) -> None:
    slug = (await add(user, graph()))["slug"]
    await api.engine.workers.fleets.create(slug="all", workflow_slugs=[slug])
    worker = await api.worker(fleet="all")
    job = await user.post("/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "before"})
    answer = await user.call("PATCH", f"/api/workflows/{slug}", {"graph": graph(30)})
    assert answer.json()["data"]["slug"] == slug
    assert (await user.get(f"/api/ai-jobs/{job['id']}"))["status"] == "queued"
    leased = (await worker.post("/api/worker/poll", {"worker_id": "gpu-1"}))["job"]
    assert leased["input_payload"]["workflow"]["1"]["inputs"]["steps"] == 20


async def test_preset_whose_input_vanished_is_named(user: Caller) -> None:
    slug = (await add(user, graph()))["slug"]
    keys = {item["default_value"]: item["key"] for item in (await user.get("/api/workflows"))["items"][0]["properties"]}
    await user.post("/api/presets", {"name": "cats", "values": {keys["a cat"]: "two cats", "unknown": 1}})
    await user.post("/api/presets", {"name": "steps", "values": {keys[20]: 12}})
    answer = await user.call("PATCH", f"/api/workflows/{slug}", {"graph": graph(has_text=False)})
    assert f"The workflow has lost {keys['a cat']}, which the preset 'cats' sets." in answer.json()["message"]
    assert "'steps'" not in answer.json()["message"]
    assert [preset["name"] for preset in (await user.get("/api/presets"))["items"]] == ["steps", "cats"]


async def test_versions_list_their_changes_and_can_be_restored(user: Caller) -> None:
    slug = (await add(user, graph()))["slug"]
    path = f"/api/workflows/{slug}"
    await user.call("PATCH", path, {"graph": graph(30)})
    wider = {**graph(30), "4": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}}
    await user.call("PATCH", path, {"graph": wider})
    found = await versions(user, slug)
    assert [(version["number"], version["is_current"], version["changes"]) for version in found] == [
        (3, True, ["Added nodes: PreviewImage (4)."]),
        (2, False, ["Changed values: Sample (1) steps (20, now 30)."]),
        (1, False, ["Added."]),
    ]
    answer = await user.call("POST", f"{path}/versions/1/bring-back")
    assert answer.json()["message"].startswith("Version 1 is back.")
    assert 20 in [prop["default_value"] for prop in answer.json()["data"]["properties"]]
    newest, *_ = await versions(user, slug)
    assert newest["number"] == 4
    assert newest["changes"] == [
        "Removed nodes: PreviewImage (4).",
        "Changed values: Sample (1) steps (30, now 20).",
    ]
    problem = problem_of(await user.call("POST", f"{path}/versions/4/bring-back"), 409)
    assert problem["detail"] == "Version 4 is the current version already."
    problem_of(await user.call("POST", f"{path}/versions/9/bring-back"), 404)


async def test_only_the_newest_versions_are_kept(user: Caller) -> None:
    slug = (await add(user, graph(1)))["slug"]
    for steps in range(2, MAX_PRIVATE_VERSIONS + 4):
        await user.call("PATCH", f"/api/workflows/{slug}", {"graph": graph(steps)})
    found = await versions(user, slug)
    assert len(found) == MAX_PRIVATE_VERSIONS
    assert found[-1]["changes"] == [f"The oldest of the {MAX_PRIVATE_VERSIONS} versions that are kept."]
    problem_of(await user.call("POST", f"/api/workflows/{slug}/versions/1/bring-back"), 404)


async def test_graphs_of_versions_are_removed_with_the_workflow(api: Api, user: Caller, tmp_path: Path) -> None:
    slug = (await add(user, graph(prefix="a")))["slug"]
    await user.call("PATCH", f"/api/workflows/{slug}", {"graph": graph(prefix="b")})
    assert user.user is not None
    graphs = api.engine.catalogue.private_graphs
    assert await graphs.remove_unused(grace_seconds=0) == 0
    await user.call("POST", f"/api/workflows/{slug}/versions/1/bring-back")
    await user.call("DELETE", f"/api/workflows/{slug}")
    await graphs.remove_unused(grace_seconds=GRACE_SECONDS)
    assert await graphs.remove_unused(grace_seconds=0) == 2


async def test_versions_of_another_tenant_are_not_found(api: Api, user: Caller) -> None:
    slug = (await add(user, graph()))["slug"]
    other = await api.user("other@example.com")
    problem_of(await other.call("GET", f"/api/workflows/{slug}/versions"), 404)
    problem_of(await other.call("POST", f"/api/workflows/{slug}/versions/1/bring-back"), 404)


async def test_removed_workflow_is_added_again_from_its_job(user: Caller) -> None:
    slug = (await add(user, graph()))["slug"]
    before = (await user.get("/api/workflows"))["items"][0]
    job = await canceled_job(user, slug)
    assert (await user.call("POST", f"/api/ai-jobs/{job}/workflow")).json()["data"]["slug"] == slug
    await user.call("DELETE", f"/api/workflows/{slug}")
    # another workflow has taken its name in the meantime
    await add(user, graph(30))
    again = await user.post(f"/api/ai-jobs/{job}/workflow")
    assert (again["name"], again["properties"]) == ("portrait (2)", before["properties"])
    assert await names(user) == ["portrait", "portrait (2)"]
    answer = await user.call("POST", f"/api/ai-jobs/{job}/workflow")
    assert (answer.status_code, answer.json()["data"]["slug"]) == (200, again["slug"])


async def test_graph_of_a_job_is_added_again_after_its_workflow_was_changed(user: Caller) -> None:
    slug = (await add(user, graph()))["slug"]
    job = await canceled_job(user, slug)
    await user.call("PATCH", f"/api/workflows/{slug}", {"graph": graph(has_text=False)})
    await user.call("DELETE", f"/api/workflows/{slug}")
    again = await user.post(f"/api/ai-jobs/{job}/workflow")
    assert "prompt" in {entry["key"] for entry in again["properties"]}


async def test_job_of_an_effect_has_no_workflow_to_add(api: Api) -> None:
    user = await api.user("buyer@example.com", tokens=10)
    job = (await submit(user, await api.effect()))["id"]
    problem_of(await user.call("POST", f"/api/ai-jobs/{job}/workflow"), 409)
    other = await api.user("other@example.com")
    problem_of(await other.call("POST", f"/api/ai-jobs/{job}/workflow"), 404)
