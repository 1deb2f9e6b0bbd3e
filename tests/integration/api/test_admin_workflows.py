"""Administrators register graphs, change them without touching submitted jobs, and see which workers can run them."""

import asyncio
import hashlib
import io
import json
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import Conflict, NotFound
from comfyrelay.store.tenant import jobs
from tests.support.api import Api, problem_of
from tests.support.api_calls import png, upload
from tests.support.editor_files import empty, save, workflow
from tests.support.media_samples import png_with_compressed
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.world import GRAPH, PROMPT, graph_of


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    return await open_operator_scenario(api)


def new(slug: str = "swap", **more: Any) -> dict[str, Any]:
    return {"slug": slug, "graph": GRAPH, "properties": [PROMPT], "output_node_id": "3", **more}


LOGO = {"key": "logo", "type": "image", "placeholder": "{{INPUT}}"}
LOGO_HASH = hashlib.sha256(png()).hexdigest()


async def asset(desk: OperatorScenario) -> str:
    """Return the path of an uploaded effect file."""
    body = {"mime_type": "image/png", "size": len(png()), "original_filename": "logo.png"}
    started = await desk.send("POST", "/assets", body)
    sent = await desk.admin.http.put(started["upload_url"], content=png(), headers=started["upload_headers"])
    assert sent.is_success, sent.text
    path: str = started["path"]
    return path


class TestRegistering:
    async def test_created_workflow_is_returned_unchanged(self, desk: OperatorScenario) -> None:
        sent = new(name="Face swap", output_extension=".webm", output_mime_type="video/webm", provider="cloud")
        created = await desk.send("POST", "/workflows", sent)
        assert created == await desk.get("/workflows/swap")
        assert created["graph"] == GRAPH
        assert created["properties"] == [PROMPT]
        assert created["output_extension"] == "webm"
        assert (created["name"], created["provider"], created["is_active"]) == ("Face swap", "cloud", True)
        assert created["warnings"] == []

    async def test_workflow_with_prices_runs_on_any_provider(self, desk: OperatorScenario) -> None:
        prices: dict[str, Any] = {
            "self_hosted_micros_per_second": 250,
            "cloud_micros_per_second": 1000,
            "burst_micros_per_hour": 5_000_000,
        }
        created = await desk.send("POST", "/workflows", new(provider="any", **prices))
        assert {name: created[name] for name in ("provider", *prices)} == {"provider": "any", **prices}
        assert [
            workflow["provider"] for workflow in (await desk.get("/workflows"))["items"] if workflow["slug"] == "swap"
        ] == ["any"]
        changed = await desk.send("PATCH", "/workflows/swap", {"burst_micros_per_hour": None})
        assert (changed["provider"], changed["burst_micros_per_hour"]) == ("any", None)
        back = await desk.send("PATCH", "/workflows/swap", {"provider": "self_hosted"})
        assert back["provider"] == "self_hosted"

    async def test_invalid_price_is_refused(self, desk: OperatorScenario) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"provider": "any"}, "cloud_micros_per_second"),
            ({"provider": "any", "cloud_micros_per_second": 0}, "cloud_micros_per_second"),
            ({"provider": "any", "cloud_micros_per_second": 0.5}, "cloud_micros_per_second"),
            ({"burst_micros_per_hour": -1}, "burst_micros_per_hour"),
            ({"provider": "elsewhere"}, "provider"),
        ]
        for wrong, field in cases:
            problem = problem_of(await desk.call("POST", "/workflows", new(**wrong)), 422)
            assert field in problem["errors"]

    async def test_hash_of_a_default_file_is_computed(self, desk: OperatorScenario) -> None:
        logo = {**LOGO, "default_value": await asset(desk)}
        await desk.send("POST", "/workflows", new(properties=[LOGO]))
        changed = await desk.send("PATCH", "/workflows/swap", {"properties": [logo]})
        created = await desk.send("POST", "/workflows", new("other", properties=[logo]))
        for workflow_ in (changed, created):
            assert workflow_["properties"][0]["default_value_hash"] == LOGO_HASH

    async def test_wrong_hash_of_a_default_file_is_refused(self, desk: OperatorScenario) -> None:
        logo = {**LOGO, "default_value": await asset(desk), "default_value_hash": "0" * 64}
        problem = problem_of(await desk.call("POST", "/workflows", new(properties=[logo])), 422)
        assert LOGO_HASH in problem["errors"]["properties.0.default_value_hash"]

    async def test_hash_of_a_missing_file_is_accepted(self, desk: OperatorScenario) -> None:
        logo = {**LOGO, "default_value": "assets/later.png", "default_value_hash": "0" * 64}
        created = await desk.send("POST", "/workflows", new(properties=[logo]))
        assert created["properties"][0]["default_value_hash"] == "0" * 64

    async def test_placeholder_that_no_node_uses_is_a_warning(self, desk: OperatorScenario) -> None:
        style = {"key": "style", "type": "text", "placeholder": "{{STYLE}}"}
        answer = await desk.call("POST", "/workflows", new(properties=[PROMPT, style]))
        assert answer.status_code == 201
        [warning] = answer.json()["data"]["warnings"]
        assert "'{{STYLE}}'" in warning
        assert "warnings" in answer.json()["message"]

    async def test_local_file_in_the_graph_is_a_warning(self, desk: OperatorScenario) -> None:
        graph = {**GRAPH, "4": {"class_type": "LoadImage", "inputs": {"image": "example.png"}}}
        created = await desk.send("POST", "/workflows", new(graph=graph))
        assert "'example.png'" in created["warnings"][0]

    async def test_refused_editor_file_has_an_explanation(self, desk: OperatorScenario) -> None:
        problem = problem_of(await desk.call("POST", "/workflows", new(graph={"nodes": [], "links": []})), 422)
        assert problem["detail"] == "The workflow has no nodes."
        saved = workflow([empty(), save(9, 1)], [(1, 1, 0, 9, 0)])
        problem = problem_of(await desk.call("POST", "/workflows", new(graph=saved)), 409)
        assert "Export (API)" in problem["detail"]
        assert [requirement["name"] for requirement in problem["missing"]] == ["EmptyImage", "SaveImage"]

    async def test_validation_error_names_the_field(self, desk: OperatorScenario) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"slug": "has space"}, "slug"),
            ({"slug": "a/b"}, "slug"),
            ({"output_node_id": "99"}, "output_node_id"),
            ({"output_extension": "../mp4"}, "output_extension"),
            ({"output_mime_type": "video/mp4\r\nX: y"}, "output_mime_type"),
            ({"provider": "mine"}, "provider"),
            ({"colour": "red"}, "colour"),
            ({"properties": [PROMPT, PROMPT]}, "properties.prompt"),
            ({"properties": [{**PROMPT, "type": "colour"}]}, "properties.0.type"),
            ({"properties": [{**PROMPT, "type": "number"}]}, "properties.prompt"),
            ({"graph": {"1": {"class_type": "A", "inputs": {"text": "a\x00b"}}}}, "graph"),
        ]
        for wrong, field in cases:
            problem = problem_of(await desk.call("POST", "/workflows", new(**wrong)), 422)
            assert list(problem["errors"]) == [field]
            problem_of(await desk.call("GET", "/workflows/swap"), 404)

    async def test_deeply_nested_graph_is_refused(self, desk: OperatorScenario) -> None:
        deep: Any = "x"
        for _ in range(300):
            deep = [deep]
        graph = {"1": {"class_type": "A", "inputs": {"deep": deep}}}
        problem = problem_of(await desk.call("POST", "/workflows", new(graph=graph, output_node_id=None)), 422)
        assert "nested too deeply" in problem["errors"]["graph"]

    async def test_slug_is_unique(self, desk: OperatorScenario) -> None:
        await desk.send("POST", "/workflows", new())
        problem_of(await desk.call("POST", "/workflows", new()), 409)

    async def test_list_is_paginated_without_private_workflows(self, desk: OperatorScenario) -> None:
        for slug in ("c", "a", "b"):
            await desk.send("POST", "/workflows", new(slug, is_active=slug != "b"))
        create = desk.api.engine.catalogue.workflows.create
        await create(slug="aa-private", graph=GRAPH, tenant_id=desk.user.tenant_id)
        first = await desk.get("/workflows", limit=2)
        assert [item["slug"] for item in first["items"]] == ["a", "b"]
        assert "graph" not in first["items"][0]
        second = await desk.get("/workflows", limit=2, cursor=first["next_cursor"])
        assert [item["slug"] for item in second["items"]] == ["c", "clip"]
        assert second["next_cursor"] is None
        own = await desk.get("/workflows", tenant_id=desk.user.tenant_id)
        assert [item["slug"] for item in own["items"]] == ["aa-private"]
        off = await desk.get("/workflows", is_active=False)
        assert [item["slug"] for item in off["items"]] == ["b"]


class TestChanging:
    async def test_omitted_fields_stay_unchanged(self, desk: OperatorScenario) -> None:
        before = await desk.send("POST", "/workflows", new())
        await desk.advance(5)
        after = await desk.send("PATCH", "/workflows/swap", {"name": "Other", "is_active": False})
        assert after["updated_at"] > before["updated_at"]
        changed = {"name": "Other", "is_active": False, "updated_at": after["updated_at"]}
        assert after == {**before, **changed}

    async def test_slug_cannot_be_changed(self, desk: OperatorScenario) -> None:
        problem = problem_of(await desk.call("PATCH", "/workflows/clip", {"slug": "clap"}), 422)
        assert "cannot be changed" in problem["errors"]["slug"]

    async def test_null_is_accepted_for_optional_fields_only(self, desk: OperatorScenario) -> None:
        assert (await desk.send("PATCH", "/workflows/clip", {"output_node_id": None}))["output_node_id"] is None
        problem = problem_of(await desk.call("PATCH", "/workflows/clip", {"name": None}), 422)
        assert list(problem["errors"]) == ["name"]

    async def test_submitted_jobs_keep_their_graph(self, desk: OperatorScenario) -> None:
        await desk.worker()
        old = await desk.submit()
        after = await desk.send("PATCH", "/workflows/clip", {"graph": graph_of("new")})
        assert after["graph"] == graph_of("new")
        await desk.submit()
        assert (await desk.lease()).graph["1"]["inputs"]["ckpt_name"] == "model.safetensors"
        await desk.worker("gpu-2")
        assert (await desk.lease("gpu-2")).graph["1"]["inputs"]["ckpt_name"] == "new.safetensors"
        async with desk.api.engine.databases.shards["main"].read() as tx:
            assert await jobs.get(tx, old.tenant_id, old.id) is not None

    async def test_output_node_must_be_in_the_new_graph(self, desk: OperatorScenario) -> None:
        graph = {"1": {"class_type": "SaveVideo", "inputs": {}}}
        problem = problem_of(await desk.call("PATCH", "/workflows/clip", {"graph": graph}), 422)
        assert list(problem["errors"]) == ["output_node_id"]
        after = await desk.send("PATCH", "/workflows/clip", {"graph": graph, "output_node_id": "1"})
        assert (after["output_node_id"], len(after["warnings"])) == ("1", 1)

    async def test_property_with_an_effect_override_cannot_be_removed(self, desk: OperatorScenario) -> None:
        await desk.send("PATCH", "/effects/clip", {"property_overrides": {"prompt": "a dog"}})
        problem = problem_of(await desk.call("PATCH", "/workflows/clip", {"properties": []}), 422)
        assert "'clip'" in problem["errors"]["properties"]

    async def test_unknown_workflow_is_404(self, desk: OperatorScenario) -> None:
        for method, path, body in (
            ("GET", "/workflows/none", None),
            ("PATCH", "/workflows/none", {"name": "x"}),
            ("DELETE", "/workflows/none", None),
            ("POST", "/workflows/none/validate", None),
        ):
            problem_of(await desk.call(method, path, body), 404)


class TestDeleting:
    async def test_workflow_of_an_effect_is_not_deleted(self, desk: OperatorScenario) -> None:
        problem = problem_of(await desk.call("DELETE", "/workflows/clip"), 409)
        assert "clip" in problem["detail"]

    async def test_workflow_with_active_jobs_is_not_deleted(self, desk: OperatorScenario) -> None:
        await desk.worker()
        job = await desk.submit()
        await desk.send("DELETE", "/effects/clip")
        problem_of(await desk.call("DELETE", "/workflows/clip"), 409)
        await desk.api.engine.queue.control.pause(job.tenant_id, job.id)
        problem_of(await desk.call("DELETE", "/workflows/clip"), 409)
        await desk.api.engine.queue.control.resume(job.tenant_id, job.id)
        leased = await desk.lease()
        problem_of(await desk.call("DELETE", "/workflows/clip"), 409)
        await desk.complete(leased)
        await desk.send("DELETE", "/workflows/clip")

    async def test_deleted_workflow_keeps_history_and_frees_its_slug(self, desk: OperatorScenario) -> None:
        await desk.worker()
        job = await desk.completed()
        await desk.send("DELETE", "/effects/clip")
        await desk.send("DELETE", "/workflows/clip")
        problem_of(await desk.call("GET", "/workflows/clip"), 404)
        [listed] = (await desk.get("/dispatches"))["items"]
        assert (listed["job_id"], listed["workflow_slug"]) == (job.id, "clip")
        assert (await desk.get("/fleets/production/home-clip"))["workflow_slugs"] == []
        assert (await desk.get("/workers/gpu-1"))["workflow_slugs"] == []
        created = await desk.send("POST", "/workflows", new("clip"))
        assert created["id"] > 1

    async def test_retry_with_a_deleted_workflow_is_refused(self, desk: OperatorScenario) -> None:
        await desk.worker()
        job = await desk.failed()
        await desk.send("DELETE", "/effects/clip")
        await desk.send("DELETE", "/workflows/clip")
        with pytest.raises(Conflict, match="was deleted, so it cannot run again"):
            await desk.api.engine.jobs.submit.retry(job.tenant_id, job.id)

    async def test_concurrent_submission_blocks_the_deletion_or_fails(self, desk: OperatorScenario) -> None:
        create = desk.api.engine.catalogue.workflows.create
        for number in range(5):
            slug = f"own-{number}"
            await create(slug=slug, graph={"2": GRAPH["2"]}, tenant_id=desk.user.tenant_id)
            submitting = asyncio.create_task(desk.submit(effect_id=None, workflow_slug=slug))
            answer = await desk.call("DELETE", f"/workflows/{slug}")
            try:
                job = await submitting
            except NotFound:
                assert answer.status_code == 200
                continue
            async with desk.api.engine.databases.shards["main"].read() as tx:
                found = await jobs.get(tx, job.tenant_id, job.id)
            assert found is not None
            assert (answer.status_code, found.status) in {(409, "queued"), (200, "failed")}
            if found.status == "queued":
                await desk.api.engine.queue.control.cancel(job.tenant_id, job.id)


class TestValidating:
    async def test_validation_reports_every_assigned_worker(self, desk: OperatorScenario) -> None:
        nodes = ["CheckpointLoader", "Prompt", "SaveVideo"]
        models = {"checkpoints": ["model.safetensors"]}
        await desk.worker("able", capabilities={"node_types": nodes, "models": models})
        await desk.worker("lacking", capabilities={"node_types": ["Prompt"], "models": []})
        await desk.worker("silent")
        await desk.api.engine.catalogue.workflows.create(slug="other", graph=GRAPH)
        await desk.api.engine.workers.fleets.create(slug="other", stage=Stage.STAGING, workflow_slugs=["other"])
        await desk.worker("elsewhere", fleet="other", stage=Stage.STAGING)
        found = await desk.send("POST", "/workflows/clip/validate")
        assert found["node_types"] == nodes
        assert found["models"] == ["model.safetensors"]
        assert found["assigned_workers"] == 3
        by_worker = {worker["worker_id"]: worker for worker in found["workers"]["items"]}
        assert {name: item["fit"] for name, item in by_worker.items()} == {
            "able": "able",
            "lacking": "unable",
            "silent": "unknown",
        }
        assert by_worker["lacking"]["missing_node_types"] == ["CheckpointLoader", "SaveVideo"]
        assert by_worker["lacking"]["missing_models"] == ["model.safetensors"]
        assert "model.safetensors" in by_worker["lacking"]["text"]
        assert found["text"] == "1 of 3 workers can run this workflow (1 cannot, 1 unknown)."

    async def test_selectable_models_are_required(self, desk: OperatorScenario) -> None:
        choice = {
            "key": "model",
            "type": "choice",
            "placeholder": "{{MODEL}}",
            "choices": ["a.safetensors", "b.safetensors"],
            "default_value": "a.safetensors",
            "user_configurable": True,
        }
        graph = {"1": {"class_type": "CheckpointLoader", "inputs": {"ckpt_name": "{{MODEL}}"}}}
        await desk.send("POST", "/workflows", {"slug": "pick", "graph": graph, "properties": [choice]})
        found = await desk.send("POST", "/workflows/pick/validate")
        assert found["models"] == ["a.safetensors", "b.safetensors"]
        assert found["text"].startswith("This workflow is not assigned to any worker")
        # If users cannot configure the choice, only its default model is required.
        await desk.send("PATCH", "/workflows/pick", {"properties": [{**choice, "user_configurable": False}]})
        assert (await desk.send("POST", "/workflows/pick/validate"))["models"] == ["a.safetensors"]

    async def test_workers_are_paginated(self, desk: OperatorScenario) -> None:
        for number in range(3):
            await desk.worker(f"gpu-{number}")
        first = (await desk.call("POST", "/workflows/clip/validate", params={"limit": 2})).json()["data"]["workers"]
        query = {"limit": 2, "cursor": first["next_cursor"]}
        second = (await desk.call("POST", "/workflows/clip/validate", params=query)).json()["data"]["workers"]
        names = [item["worker_id"] for item in (*first["items"], *second["items"])]
        assert names == ["gpu-0", "gpu-1", "gpu-2"]
        assert second["next_cursor"] is None


class TestEmbeddedWorkflows:
    async def test_workflow_is_read_from_the_callers_file(self, desk: OperatorScenario) -> None:
        texts = PngInfo()
        texts.add_text("prompt", json.dumps(GRAPH))
        created = io.BytesIO()
        Image.new("RGB", (8, 8)).save(created, "PNG", pnginfo=texts)
        for content, graph in ((created.getvalue(), GRAPH), (png(), None)):
            file_id = await upload(desk.admin, content)
            assert await desk.get(f"/uploads/{file_id}/workflow") == {"graph": graph}

    async def test_unusable_workflow_is_refused(self, desk: OperatorScenario) -> None:
        nodes = ",".join(f'"{number}":{{"class_type":"A","inputs":{{}}}}' for number in range(100_000))
        deep = f'{{"1":{{"class_type":"A","inputs":{{"a":{"[" * 100}{"]" * 100}}}}}}}'
        for graph, why in ((f"{{{nodes}}}", "too large"), (deep, "nested too deeply")):
            content = png_with_compressed(b"prompt", graph.encode())
            file_id = await upload(desk.admin, content)
            assert why in problem_of(await desk.call("GET", f"/uploads/{file_id}/workflow"), 422)["detail"]

    async def test_other_users_file_is_not_read(self, desk: OperatorScenario) -> None:
        file_id = await upload(await desk.api.user("other@example.com"))
        problem_of(await desk.call("GET", f"/uploads/{file_id}/workflow"), 404)
