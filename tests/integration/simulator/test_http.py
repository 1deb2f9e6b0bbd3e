"""Each route of the simulator handles its parameters and answers as ComfyUI does."""

import asyncio
import io
import json
from typing import Any

from PIL import Image
from websockets.asyncio.client import connect

from comfyrelay.simulator import Simulator, Slow, Stuck
from tests.integration.simulator.raw_client import Client, invert_graph, listening
from tests.support.paths import RECORDINGS
from tests.support.world import PATIENCE_SECONDS


async def test_routes_exist_with_and_without_the_api_prefix(client: Client) -> None:
    for path in ("/prompt", "/queue", "/history", "/system_stats", "/features", "/object_info", "/models"):
        bare, prefixed = await client.http.get(path), await client.http.get(f"/api{path}")
        assert bare.status_code == prefixed.status_code == 200
        assert bare.json() == prefixed.json()
    for path in ("/extensions", "/users", "/settings", "/experiment/models", "/experiment/models/loras"):
        assert (await client.http.get(path)).json() == (await client.http.get(f"/api{path}")).json()
    assert (await client.http.get("/jobs")).status_code == 404
    assert (await client.http.get("/api/jobs")).status_code == 200


async def test_lowest_number_runs_first(client: Client) -> None:
    stuck = client.simulator.misbehave(Stuck(times=1))
    await client.queue_prompt(invert_graph())
    late = await client.queue_prompt(invert_graph(prefix="late"))
    front = await client.queue_prompt(invert_graph(prefix="front"), front=True)
    exact = await client.queue_prompt(invert_graph(prefix="exact"), number=-100)
    stuck.end()
    await client.ended(late)
    order = list((await client.http.get("/history")).json())
    assert order[1:] == [exact, front, late]


async def test_history_is_paged_and_deleted(client: Client) -> None:
    ids = [await client.queue_prompt(invert_graph(prefix=f"p{n}")) for n in range(4)]
    await client.ended(ids[-1])

    async def listed(**params: int) -> list[str]:
        return list((await client.http.get("/history", params=params)).json())

    assert await listed() == ids
    assert await listed(max_items=2) == ids[2:]
    assert await listed(max_items=2, offset=1) == ids[1:3]
    await client.http.post("/history", json={"delete": [ids[0]]})
    assert await listed() == ids[1:]
    await client.http.post("/history", json={"clear": True})
    assert await listed() == []


async def test_clearing_the_queue_keeps_the_running_prompt(client: Client) -> None:
    client.simulator.misbehave(Stuck())
    running, *_ = [await client.queue_prompt(invert_graph()) for _ in range(3)]
    assert (await client.http.post("/queue", json={"delete": [running, "unknown"]})).status_code == 200
    await client.http.post("/queue", json={"clear": True})
    queue = await client.queue()
    assert [item[1] for item in queue["queue_running"]] == [running]
    assert queue["queue_pending"] == []
    assert (await client.http.post("/queue")).status_code == 500


async def test_interrupt_for_another_prompt_does_nothing(client: Client) -> None:
    client.simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.2, steps=2))
    async with listening(client.simulator) as listener:
        prompt_id = await client.queue_prompt(invert_graph(), client_id=listener.client_id)
        await listener.wait(lambda message: message["type"] == "progress")
        assert (await client.http.post("/interrupt", json={"prompt_id": "another"})).status_code == 200
        await listener.wait_for_end(prompt_id)
    assert (await client.ended(prompt_id))["status"]["completed"]
    assert client.simulator.log.interrupts == 1
    # An idle server ignores an interrupt.
    await client.http.post("/interrupt")
    assert (await client.run(invert_graph(prefix="x")))["status"]["completed"]


async def test_server_answers_while_a_node_computes(client: Client) -> None:
    graph = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 2000, "height": 2000, "batch_size": 1, "color": 0}},
        "2": {"class_type": "ImageAddNoise", "inputs": {"image": ["1", 0], "seed": 1, "strength": 1.0}},
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
    }
    async with listening(client.simulator) as listener:
        prompt_id = await client.queue_prompt(graph, client_id=listener.client_id)
        await listener.wait_for_node("3")
        assert [item[1] for item in (await client.queue())["queue_running"]] == [prompt_id]
        await listener.wait_for_end(prompt_id)


async def test_only_the_targets_run(client: Client) -> None:
    graph = {**invert_graph(), "4": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}}
    entry = await client.run(graph, partial_execution_targets=["4"])
    assert set(entry["outputs"]) == {"4"}
    response = await client.prompt(graph, partial_execution_targets=["1"])
    assert response.json()["error"]["type"] == "prompt_no_outputs"


async def test_missing_prompt_is_reported(client: Client) -> None:
    response = await client.http.post("/prompt", json={})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "no_prompt")


async def test_upload_of_other_bytes_is_renamed(client: Client) -> None:
    async def upload(content: bytes, **fields: str) -> dict[str, str]:
        response = await client.http.post("/upload/image", files={"image": ("a.png", content)}, data=fields)
        assert response.status_code == 200
        answer: dict[str, str] = response.json()
        return answer

    names = [(await upload(content))["name"] for content in (b"1", b"2", b"1", b"2", b"3")]
    assert names == ["a.png", "a (1).png", "a.png", "a (1).png", "a (2).png"]
    assert (await upload(b"4", overwrite="True"))["name"] == "a (3).png"
    assert (await upload(b"5", overwrite="true"))["name"] == "a.png"
    assert await upload(b"6", subfolder="x/y") == {"name": "a.png", "subfolder": "x/y", "type": "input"}
    assert (client.simulator.folder / "input" / "x" / "y" / "a.png").read_bytes() == b"6"
    assert client.simulator.log.uploads_written == 2 + 6


async def test_malformed_upload_is_refused(client: Client) -> None:
    file = ("a.png", b"1")
    for fields, files, status in (
        ({"type": "nonsense"}, {"image": file}, 500),
        ({"subfolder": "../x"}, {"image": file}, 400),
        ({}, {"other": file}, 400),
        ({"image": "text"}, {"other": file}, 500),
        ({}, {"image": ("../a.png", b"1")}, 400),
    ):
        response = await client.http.post("/upload/image", data=fields, files=files)
        assert response.status_code == status, (fields, files)


async def test_body_over_the_limit_is_refused() -> None:
    async with Simulator(max_upload_bytes=1000) as simulator:
        client = Client(simulator)
        response = await client.http.post("/upload/image", files={"image": ("a.png", b"x" * 2000)})
        assert response.status_code == 413
        assert response.text.startswith("Maximum request body size 1000 exceeded")
        assert (await client.http.get("/features")).json()["max_upload_size"] == 1000


async def test_mask_replaces_the_alpha_of_a_picture(client: Client) -> None:
    mask = io.BytesIO()
    size = Image.open(RECORDINGS / "rec.png").size
    Image.new("RGBA", size, (0, 0, 0, 7)).save(mask, "PNG")

    async def upload(name: str, original: str) -> int:
        reference = json.dumps({"filename": original, "type": "input"})
        response = await client.http.post(
            "/upload/mask", files={"image": (name, mask.getvalue())}, data={"original_ref": reference}
        )
        return response.status_code

    assert await upload("masked.png", "rec.png") == 200
    masked = Image.open(client.simulator.folder / "input" / "masked.png")
    assert masked.getchannel("A").getextrema() == (7, 7)
    for original in ("missing.png", "../rec.png"):
        assert await upload("none.png", original) == 200
    assert not (client.simulator.folder / "input" / "none.png").exists()


async def test_view_serves_ranges_and_types(client: Client) -> None:
    whole = (RECORDINGS / "rec.png").read_bytes()
    response = await client.http.get("/view", params={"filename": "rec.png", "type": "input"})
    assert response.content == whole
    assert response.headers["content-type"] == "image/png"
    assert {"etag", "last-modified"} <= set(response.headers)
    part = await client.http.get(
        "/view", params={"filename": "rec.png", "type": "input"}, headers={"Range": "bytes=10-19"}
    )
    assert (part.status_code, part.content) == (206, whole[10:20])
    (client.simulator.folder / "input" / "page.html").write_text("<p>")
    page = await client.http.get("/view", params={"filename": "page.html", "type": "input"})
    assert page.headers["content-type"] == "application/octet-stream"


async def test_view_refuses_invalid_requests(client: Client) -> None:
    requests: list[tuple[dict[str, str], int]] = [
        ({}, 404),
        ({"filename": "none.png"}, 404),
        ({"filename": "/etc/passwd"}, 400),
        ({"filename": "../x"}, 400),
        ({"filename": "rec.png", "type": "nonsense"}, 400),
        ({"filename": "rec.png", "type": "input", "subfolder": "../.."}, 403),
        ({"filename": "rec.mp4", "type": "input", "preview": "webp;50"}, 500),
    ]
    for params, status in requests:
        assert (await client.http.get("/view", params=params)).status_code == status, params


async def test_view_re_encodes_on_request(client: Client) -> None:
    base = {"filename": "rec.png", "type": "input"}
    for more, content_type, kind in (
        ({"preview": "webp;50"}, "image/webp", "WEBP"),
        ({"preview": "jpeg"}, "image/jpeg", "JPEG"),
        ({"channel": "rgb"}, "image/png", "PNG"),
        ({"channel": "a"}, "image/png", "PNG"),
    ):
        response = await client.http.get("/view", params={**base, **more})
        assert response.headers["content-type"] == content_type
        assert Image.open(io.BytesIO(response.content)).format == kind


async def test_foreign_origin_is_refused_on_this_machine(client: Client) -> None:
    for headers, status in (
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": client.simulator.url}, 200),
        ({"Origin": "https://evil.example", "Host": "gpu.example"}, 403),
        ({"Origin": "http://[evil"}, 403),
        ({"Origin": "http://127.0.0.1:99999"}, 403),
        ({}, 200),
    ):
        assert (await client.http.get("/prompt", headers=headers)).status_code == status


async def test_models_and_definitions_are_listed() -> None:
    models = {"checkpoints": ["a.safetensors"], "embeddings": ["e.pt"]}
    async with Simulator(models=models, version="0.9.9", vram_bytes=5) as simulator:
        client = Client(simulator)
        stats = (await client.http.get("/system_stats")).json()
        assert stats["system"]["comfyui_version"] == "0.9.9"
        assert stats["devices"][0]["vram_total"] == 5
        assert (await client.http.get("/models")).json() == ["checkpoints", "embeddings"]
        assert (await client.http.get("/models/checkpoints")).json() == ["a.safetensors"]
        assert (await client.http.get("/models/none")).status_code == 404
        assert (await client.http.get("/embeddings")).json() == ["e"]
        assert (await client.http.get("/object_info/Unknown")).json() == {}
        known = (await client.http.get("/object_info/CheckpointLoaderSimple")).json()
        assert known["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"][0] == ["a.safetensors"]


async def test_editor_routes_are_answered(client: Client) -> None:
    async def got(path: str) -> Any:
        answer = await client.http.get(path)
        assert answer.status_code == 200
        return answer.json()

    assert await got("/extensions") == []
    assert await got("/users") == {"storage": "server", "migrated": False}
    assert await got("/settings") == {}
    assert await got("/settings/Comfy.Color") is None
    await client.http.post("/settings", json={"Comfy.Color": "dark", "other": 1})
    await client.http.post("/settings/other", json=[2])
    assert await got("/settings") == {"Comfy.Color": "dark", "other": [2]}
    assert await got("/settings/other") == [2]
    assert await got("/users") == {"storage": "server", "migrated": True}
    folders = await got("/experiment/models")
    assert [folder["name"] for folder in folders] == await got("/models")
    assert all(isinstance(place, str) for folder in folders for place in folder["folders"])
    [lora] = await got("/experiment/models/loras")
    assert lora == {"name": "simulator.safetensors", "pathIndex": 0, "modified": 0, "created": 0, "size": 0}
    assert (await client.http.get("/experiment/models/none")).status_code == 404
    raw = await got("/internal/logs/raw")
    assert raw["size"].keys() == {"cols", "rows"}
    assert [entry.keys() for entry in raw["entries"]] == [{"t", "m"}] * len(raw["entries"])
    assert raw["entries"][0]["m"] in await got("/internal/logs")


async def test_jobs_cover_pending_running_and_ended(client: Client) -> None:
    done = await client.queue_prompt(invert_graph(), extra_data={"extra_pnginfo": {"workflow": {"id": "w"}}})
    await client.ended(done)
    client.simulator.misbehave(Stuck())
    running, pending = [await client.queue_prompt(invert_graph(prefix=str(n))) for n in range(2)]
    statuses = {}
    for prompt_id in (done, running, pending):
        job = (await client.http.get(f"/api/jobs/{prompt_id}")).json()
        statuses[prompt_id] = job["status"]
        assert job["workflow"]["prompt"].keys() == {"1", "2", "3"}
    assert statuses == {done: "completed", running: "in_progress", pending: "pending"}
    job = (await client.http.get(f"/api/jobs/{done}")).json()
    assert job["outputs_count"] == 1
    assert job["workflow_id"] == "w"
    assert job["preview_output"]["nodeId"] == "3"
    assert job["outputs"]["3"]["images"]
    listed = (await client.http.get("/api/jobs", params={"status": "pending,in_progress", "limit": 1})).json()
    assert listed["pagination"] == {"offset": 0, "limit": 1, "total": 2, "has_more": True}
    assert (await client.http.get("/api/jobs/none")).status_code == 404
    for bad in ({"status": "x"}, {"limit": "0"}, {"limit": "x"}, {"sort_by": "x"}, {"sort_order": "x"}):
        assert (await client.http.get("/api/jobs", params=bad)).status_code == 400


async def test_bounds_of_a_page_of_jobs_are_checked_as_in_comfyui(client: Client) -> None:
    answer = await client.http.get("/api/jobs", params={"limit": 0})
    assert (answer.status_code, answer.json()) == (400, {"error": "limit must be a positive integer"})
    page = (await client.http.get("/api/jobs", params={"offset": -1, "limit": 1})).json()
    assert page["pagination"] == {"offset": 0, "limit": 1, "total": 0, "has_more": False}


async def test_feature_flags_are_exchanged_once(simulator: Simulator) -> None:
    async with listening(simulator, flags={"supports_preview_metadata": True}) as listener:
        flags = await listener.wait(lambda message: message["type"] == "feature_flags")
        assert flags["data"]["supports_preview_metadata"] is True
        await listener.socket.send(json.dumps({"type": "feature_flags", "data": {}}))
        await asyncio.wait_for(await listener.socket.ping(), PATIENCE_SECONDS)
        assert listener.kinds().count("feature_flags") == 1


async def test_socket_without_an_id_gets_one(simulator: Simulator) -> None:
    async with connect(f"{simulator.url.replace('http', 'ws', 1)}/ws", close_timeout=0.1) as socket:
        first = json.loads(await socket.recv())
        assert [first["data"]["sid"]] == simulator.clients
