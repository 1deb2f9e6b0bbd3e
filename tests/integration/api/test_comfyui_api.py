"""ComfyUI's own API on a socket, with two workers that have different models."""

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from PIL import Image

from comfyrelay.simulator.misbehaviour import Fail, Slow
from tests.support.api_calls import png
from tests.support.comfyui_site import MODELS, ComfyuiSite, open_site, painted
from tests.support.editor_files import empty, save, workflow
from tests.support.editor_files import invert as invert_node
from tests.support.graphs import five_images, invert, invert_file, words
from tests.support.world import PostgresBackend, SqliteBackend

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def site(
    backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path
) -> AsyncIterator[ComfyuiSite]:
    async with open_site(backend, storage_url, tmp_path) as site:
        yield site


async def test_prompt_runs_and_its_image_can_be_viewed(site: ComfyuiSite) -> None:
    client = site.client
    prompt_id = await client.prompt(invert(), client_id="me", extra_data={"api_key_comfy_org": "secret", "a": 1})
    entry = await client.ended(prompt_id)
    number, id_, graph, extra, outputs = entry["prompt"]
    assert (id_, graph, outputs) == (prompt_id, invert(), ["3"])
    assert isinstance(number, int)
    assert extra["client_id"] == "me"
    assert extra["a"] == 1
    assert "secret" not in str(entry)
    assert entry["status"]["status_str"] == "success"
    assert [name for name, _ in entry["status"]["messages"]] == [
        "execution_start",
        "execution_cached",
        "execution_success",
    ]
    [image] = entry["outputs"]["3"]["images"]
    assert image["subfolder"] == prompt_id
    picture = await client.http.get("/view", params=image)
    assert picture.content.startswith(b"\x89PNG")
    assert picture.headers["content-type"] == "image/png"
    part = await client.http.get("/api/view", params=image, headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, picture.content[:4])
    again = await client.http.get("/view", params=image, headers={"If-None-Match": picture.headers["etag"]})
    assert again.status_code == 304
    listed = await client.get("/history", params={"max_items": 1})
    assert list(listed) == [prompt_id]
    cloud = await client.get(f"/api/history_v2/{prompt_id}")
    assert cloud[prompt_id]["prompt"]["prompt_id"] == prompt_id
    assert cloud[prompt_id]["prompt"]["prompt"] == invert()


async def test_images_contain_the_editor_file(site: ComfyuiSite) -> None:
    drawn = workflow([empty(), invert_node(2, 1), save(3, 2)], [(1, 1, 0, 2, 0), (2, 2, 0, 3, 0)])
    extra = {"extra_pnginfo": {"workflow": drawn}}
    entry = await site.client.ended(await site.client.prompt(invert(77), extra_data=extra))
    [image] = entry["outputs"]["3"]["images"]
    with Image.open(io.BytesIO((await site.client.http.get("/view", params=image)).content)) as picture:
        found = json.loads(picture.info["workflow"])
    assert [node["type"] for node in found["nodes"]] == ["EmptyImage", "ImageInvert", "SaveImage"]


async def test_graphs_run_on_the_worker_that_has_their_model(site: ComfyuiSite) -> None:
    first, second = [await site.client.prompt(painted(model)) for model in MODELS]
    assert (await site.client.ended(first))["status"]["status_str"] == "success"
    assert (await site.client.ended(second))["status"]["status_str"] == "success"
    assert [simulator.log.prompts_queued for simulator in site.simulators] == [1, 1]
    info = await site.client.get("/object_info")
    assert sorted(info["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"][0]) == sorted(MODELS)
    assert await site.client.get("/object_info/NoSuchNode") == {}
    assert "checkpoints" in await site.client.get("/models")
    assert [model["name"] for model in await site.client.get("/experiment/models/checkpoints")] == list(MODELS)
    # no worker has both models
    both = painted(MODELS[0]) | {"7": painted(MODELS[1])["1"]}
    both["6"]["inputs"]["images"] = ["5", 0]
    both["8"] = {"class_type": "VAEDecode", "inputs": {"samples": ["4", 0], "vae": ["7", 2]}}
    both["9"] = {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "ComfyUI"}}
    response = await site.client.post("/prompt", {"prompt": both})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "prompt_outputs_failed_validation"


async def test_output_files_are_listed_by_node(site: ComfyuiSite) -> None:
    prompt_id = await site.client.prompt(five_images())
    outputs = (await site.client.ended(prompt_id))["outputs"]
    assert {node_id: len(output["images"]) for node_id, output in outputs.items()} == {"3": 4, "5": 1}
    names = [image["filename"] for output in outputs.values() for image in output["images"]]
    assert len(set(names)) == 5
    for output in outputs.values():
        for image in output["images"]:
            assert (await site.client.http.get("/view", params=image)).status_code == 200


async def test_texts_are_listed_by_node(site: ComfyuiSite) -> None:
    prompt_id = await site.client.prompt(invert() | {"9": words()["1"]})
    assert (await site.client.ended(prompt_id))["outputs"]["9"]["text"] == ["hello"]
    only_text = await site.client.prompt(words())
    assert (await site.client.ended(only_text))["outputs"]["1"]["text"] == ["hello"]


async def test_uploads_can_be_named_as_inputs(site: ComfyuiSite) -> None:
    client = site.client
    assert await client.upload("photo.png", png("red")) == {"name": "photo.png", "subfolder": "", "type": "input"}
    assert (await client.upload("photo.png", png("red")))["name"] == "photo.png"
    assert (await client.upload("photo.png", png("blue")))["name"] == "photo (1).png"
    assert await client.upload("photo.png", png("green"), subfolder="a/b") == {
        "name": "photo.png",
        "subfolder": "a/b",
        "type": "input",
    }
    assert await client.get("/internal/files/input") == ["photo (1).png [input]", "photo.png [input]"]
    assert await client.get("/internal/files/output") == []
    assert (await client.http.get("/internal/files/user")).status_code == 400
    info = await client.get("/object_info/LoadImage")
    assert info["LoadImage"]["input"]["required"]["image"][0] == ["photo (1).png", "photo.png"]
    for name in ("photo.png", "a/b/photo.png", "photo (1).png [input]"):
        assert (await client.ended(await client.prompt(invert_file(name))))["status"]["completed"], name
    seen = await client.http.get("/view", params={"filename": "photo.png", "type": "input", "subfolder": "a/b"})
    assert seen.content == png("green")
    assert (await client.upload("photo.png", png("blue"), overwrite="true"))["name"] == "photo.png"
    replaced = await client.http.get("/view", params={"filename": "photo.png", "type": "input"})
    assert replaced.content == png("blue")


async def test_output_is_the_input_of_another_prompt(site: ComfyuiSite) -> None:
    prompt_id = await site.client.prompt(invert())
    [image] = (await site.client.ended(prompt_id))["outputs"]["3"]["images"]
    name = f"{image['subfolder']}/{image['filename']} [output]"
    assert (await site.client.ended(await site.client.prompt(invert_file(name))))["status"]["completed"]


async def test_missing_file_is_a_400_error_of_its_node(site: ComfyuiSite) -> None:
    response = await site.client.post("/prompt", {"prompt": invert_file("none.png")})
    assert response.status_code == 400
    body = response.json()
    assert body["error"]["type"] == "prompt_outputs_failed_validation"
    assert body["node_errors"]["1"]["dependent_outputs"] == ["3"]
    [error] = body["node_errors"]["1"]["errors"]
    assert (error["type"], error["details"]) == (
        "custom_validation_failed",
        "image - Invalid image file: none.png",
    )


async def test_prompt_with_a_faulty_output_runs_the_other_outputs(site: ComfyuiSite) -> None:
    graph = invert() | {
        "7": {"class_type": "LoadImage", "inputs": {"image": "none.png"}},
        "8": {"class_type": "SaveImage", "inputs": {"images": ["7", 0], "filename_prefix": "b"}},
    }
    response = await site.client.post("/prompt", {"prompt": graph})
    assert response.status_code == 200
    assert list(response.json()["node_errors"]) == ["7"]
    entry = await site.client.ended(response.json()["prompt_id"])
    assert list(entry["outputs"]) == ["3"]
    assert entry["prompt"][4] == ["3"]


def with_cycle(name: str) -> dict[str, Any]:
    """Two nodes that are linked in a cycle, and an output that needs them."""
    return {
        "11": {"class_type": "ImageInvert", "inputs": {"image": ["12", 0]}},
        "12": {"class_type": "ImageInvert", "inputs": {"image": ["11", 0]}},
        "13": {"class_type": "SaveImage", "inputs": {"images": ["11", 0], "filename_prefix": name}},
    }


async def test_cycle_of_links_is_a_400_of_its_nodes(site: ComfyuiSite) -> None:
    """The answer equals that of ComfyUI 0.28."""
    response = await site.client.post("/prompt", {"prompt": with_cycle("a")})
    assert response.status_code == 400
    body = response.json()
    assert body["error"]["type"] == "prompt_outputs_failed_validation"
    assert {node_id: found["dependent_outputs"] for node_id, found in body["node_errors"].items()} == {
        "11": ["13"],
        "12": ["13"],
    }
    assert body["node_errors"]["12"]["errors"] == [
        {
            "type": "dependency_cycle",
            "message": "Dependency cycle detected",
            "details": "11 (ImageInvert) -> 12 (ImageInvert) -> 11 (ImageInvert)",
            "extra_info": {"node_id": "12", "cycle_nodes": ["11", "12"]},
        }
    ]


async def test_outputs_without_the_cycle_run(site: ComfyuiSite) -> None:
    response = await site.client.post("/prompt", {"prompt": invert() | with_cycle("a")})
    assert response.status_code == 200
    assert list(response.json()["node_errors"]) == ["11", "12"]
    entry = await site.client.ended(response.json()["prompt_id"])
    assert list(entry["outputs"]) == ["3"]


async def test_only_the_requested_targets_run(site: ComfyuiSite) -> None:
    prompt_id = await site.client.prompt(five_images(), partial_execution_targets=["5"])
    assert list((await site.client.ended(prompt_id))["outputs"]) == ["5"]
    response = await site.client.post("/prompt", {"prompt": invert(), "partial_execution_targets": ["1"]})
    assert response.json()["error"]["type"] == "prompt_no_outputs"


async def test_prompt_id_of_a_client_names_one_job(site: ComfyuiSite) -> None:
    id_ = str(uuid4())
    assert await site.client.prompt(invert(), prompt_id=id_) == id_
    assert await site.client.prompt(invert(), prompt_id=id_) == id_
    await site.client.ended(id_)
    assert sum(simulator.log.prompts_queued for simulator in site.simulators) == 1
    # another user may choose the same id
    other = await site.new_client("bob@example.com")
    assert await other.prompt(invert(), prompt_id=id_) == id_
    await other.ended(id_)
    response = await site.client.post("/prompt", {"prompt": invert(), "prompt_id": "no uuid"})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_prompt_id")


async def test_queue_lists_and_cancels_prompts(site: ComfyuiSite) -> None:
    client = site.client
    for simulator in site.simulators:
        simulator.misbehave(Slow(seconds=60, steps=600))
    running = [await client.prompt(invert(number)) for number in range(2)]
    await client.until_running(2)
    waiting = [await client.prompt(invert(10 + number)) for number in range(3)]
    found = await client.get("/queue")
    assert [item[1] for item in found["queue_running"]] == running
    assert [item[1] for item in found["queue_pending"]] == waiting
    assert (await client.get("/prompt"))["exec_info"]["queue_remaining"] == 5
    assert (await client.get("/api/jobs", params={"status": "pending,in_progress"}))["pagination"]["total"] == 5
    assert (await client.post("/queue", {"delete": [waiting[0], running[0], "unknown"]})).status_code == 200
    # a worker has already fetched the prompt and must return it first
    await client.until_pending(waiting[1:])
    assert (await client.post("/queue", {"clear": True})).status_code == 200
    await client.until_pending([])
    # without an id, only the longest-running prompt ends
    assert (await client.http.post("/interrupt")).status_code == 200
    entry = await client.ended(running[0])
    assert entry["status"]["messages"][-1][0] == "execution_interrupted"
    assert [item[1] for item in (await client.get("/queue"))["queue_running"]] == [running[1]]
    await client.post("/interrupt", {"prompt_id": "unknown"})
    assert [item[1] for item in (await client.get("/queue"))["queue_running"]] == [running[1]]
    await client.post("/interrupt", {"prompt_id": running[1]})
    assert (await client.ended(running[1]))["status"]["completed"] is False
    jobs = await client.get("/api/jobs", params={"status": "cancelled"})
    assert len(jobs["jobs"]) == 5


async def test_jobs_are_paged_sorted_and_canceled(site: ComfyuiSite) -> None:
    client = site.client
    workflow = {"id": "w-1", "nodes": []}
    extra = {"extra_pnginfo": {"workflow": workflow}}
    ids = [await client.prompt(invert(number), extra_data=extra if number else {}) for number in range(3)]
    for id_ in ids:
        await client.ended(id_)
    first = await client.get("/api/jobs", params={"limit": 2})
    assert [job["id"] for job in first["jobs"]] == [ids[2], ids[1]]
    assert first["pagination"] == {"offset": 0, "limit": 2, "total": 3, "has_more": True}
    job = first["jobs"][0]
    assert (job["status"], job["outputs_count"], job["workflow_id"]) == ("completed", 1, "w-1")
    assert job["preview_output"]["nodeId"] == "3"
    assert job["preview_output"]["mediaType"] == "images"
    assert job["create_time"] <= job["execution_start_time"] <= job["execution_end_time"]
    rest = await client.get("/api/jobs", params={"limit": 2, "offset": 2})
    assert [job["id"] for job in rest["jobs"]] == [ids[0]]
    for sort in ("execution_duration", "execution_time"):
        by_duration = await client.get("/api/jobs", params={"sort_by": sort, "sort_order": "asc"})
        assert {job["id"] for job in by_duration["jobs"]} == set(ids)
    of_workflow = await client.get("/api/jobs", params={"workflow_id": "w-1"})
    assert of_workflow["pagination"]["total"] == 2
    detail = await client.get(f"/api/jobs/{ids[2]}")
    assert detail["workflow"]["prompt"] == invert(2)
    assert detail["workflow"]["extra_data"]["extra_pnginfo"]["workflow"] == workflow
    assert detail["execution_status"]["completed"] is True
    assert (await client.post(f"/api/jobs/{ids[0]}/cancel")).json() == {"cancelled": False}
    assert (await client.post("/api/jobs/cancel", {"job_ids": ["unknown"]})).json() == {"cancelled": False}
    for query in ({"status": "nope"}, {"sort_by": "nope"}, {"limit": "0"}, {"offset": "-1"}, {"limit": "x"}):
        assert (await client.http.get("/api/jobs", params=query)).status_code == 400, query
    unknown = await client.http.get("/api/jobs/unknown")
    assert unknown.json() == {"error": "Job not found", "code": "not_found", "message": "Job not found"}
    assert (await client.http.get("/jobs")).status_code == 404


async def test_cleared_history_keeps_jobs_and_outputs(site: ComfyuiSite) -> None:
    client = site.client
    ids = [await client.prompt(invert(number)) for number in range(2)]
    [image] = [(await client.ended(id_))["outputs"]["3"]["images"][0] for id_ in ids][:1]
    await client.post("/history", {"delete": [ids[0]]})
    assert list(await client.get("/history")) == [ids[1]]
    await client.post("/history", {"clear": True})
    assert await client.get("/history") == {}
    assert (await client.get("/api/jobs"))["jobs"] == []
    assert (await client.http.get("/view", params=image)).status_code == 200
    assert client.user is not None
    tenant_id = client.user.user.tenant_id if client.user.user else ""
    assert len((await site.api.engine.jobs.views.jobs(tenant_id, limit=10)).items) == 2


async def test_failed_prompt_says_why(site: ComfyuiSite) -> None:
    for simulator in site.simulators:
        simulator.misbehave(Fail(class_type="ImageInvert", message="out of paint"))
    prompt_id = await site.client.prompt(invert())
    entry = await site.client.ended(prompt_id)
    kind, data = entry["status"]["messages"][-1]
    assert kind == "execution_error"
    assert "out of paint" in data["exception_message"]
    job = await site.client.get(f"/api/jobs/{prompt_id}")
    assert job["status"] == "failed"
    assert job["execution_error"]["traceback"] == []
    assert (job["execution_error"]["node_id"], job["execution_error"]["node_type"]) == ("2", "ImageInvert")


async def test_users_see_only_their_own_data(site: ComfyuiSite) -> None:
    ada, bob = site.client, await site.new_client("bob@example.com")
    await ada.upload("photo.png", png("red"))
    prompt_id = await ada.prompt(invert_file("photo.png"))
    [image] = (await ada.ended(prompt_id))["outputs"]["3"]["images"]
    assert await bob.get("/queue") == {"queue_running": [], "queue_pending": []}
    assert await bob.get("/history") == {}
    assert await bob.get(f"/history/{prompt_id}") == {}
    assert (await bob.http.get(f"/api/jobs/{prompt_id}")).status_code == 404
    assert (await bob.post(f"/api/jobs/{prompt_id}/cancel")).json() == {"cancelled": False}
    assert (await bob.http.get("/view", params=image)).status_code == 404
    assert (await bob.http.get("/view", params={"filename": "photo.png", "type": "input"})).status_code == 404
    await bob.post("/history", {"clear": True, "delete": [prompt_id]})
    assert list(await ada.get("/history")) == [prompt_id]
    info = await bob.get("/object_info/LoadImage")
    assert info["LoadImage"]["input"]["required"]["image"][0] == []
    for name in ("photo.png", f"{prompt_id}/{image['filename']} [output]"):
        assert (await bob.post("/prompt", {"prompt": invert_file(name)})).status_code == 400
