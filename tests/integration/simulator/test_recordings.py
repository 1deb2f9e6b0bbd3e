"""The simulator sends the same answers and messages in the same order as a real server."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from comfyrelay.simulator import Simulator, Slow, Stuck
from tests.integration.simulator.raw_client import Client, Listener, listening, recording
from tests.integration.simulator.replay import normal, replay
from tests.support.paths import RECORDINGS
from tests.support.simulator_files import OBJECT_INFO_RECORDED

VERSIONS = ("0.7.0", "0.28.0")


@pytest.fixture(params=VERSIONS)
async def versioned(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Client, str]]:
    """Yield a client of a simulator of this ComfyUI version."""
    async with Simulator(version=request.param) as simulator:
        client = Client(simulator)
        async with client.http:
            await client.upload(RECORDINGS / "rec.png")
            await client.upload(RECORDINGS / "clip.mp4", "rec.mp4")
            yield client, request.param


async def test_cold_run_matches_the_recording(versioned: tuple[Client, str]) -> None:
    client, version = versioned
    async with listening(client.simulator) as listener:
        await replay(recording("image_invert", version), client, listener)


async def test_cached_run_matches_the_recording(versioned: tuple[Client, str]) -> None:
    client, version = versioned
    await client.run(recording("image_invert", version)["http"][0]["request"]["prompt"])
    async with listening(client.simulator) as listener:
        await replay(recording("image_invert_cached", version), client, listener)


async def test_cached_run_without_a_client_has_the_recorded_outputs(versioned: tuple[Client, str]) -> None:
    client, version = versioned
    sent, recorded = recording("image_invert_cached_without_client", version)["http"]
    graph = sent["request"]["prompt"]
    await client.run(graph, client_id=None)
    entry = await client.run(graph, client_id=None)
    [expected] = recorded["response"].values()
    theirs, ours = ({item["prompt"][1]: "PROMPT"} for item in (expected, entry))
    assert normal(entry, ours) == normal(expected, theirs)


async def test_nodes_run_in_the_recorded_order(versioned: tuple[Client, str]) -> None:
    client, version = versioned
    await client.run(recording("image_invert", version)["http"][0]["request"]["prompt"])
    async with listening(client.simulator) as listener:
        await replay(recording("image_to_video", version), client, listener)
    nodes = [message["data"]["node"] for message in listener.messages if message["type"] == "executing"]
    assert nodes == ["2", "3", "6", "4", "5", None]


@pytest.mark.parametrize(
    "name",
    [
        "video_invert",
        "error_missing_input_file",
        "error_missing_node",
        "error_no_outputs",
        "error_required_input_missing",
    ],
)
async def test_run_matches_its_recording(name: str, versioned: tuple[Client, str]) -> None:
    client, version = versioned
    async with listening(client.simulator) as listener:
        await replay(recording(name, version), client, listener)


@pytest.mark.parametrize("name", ["audio", "error_cycle", "text", "text_file"])
async def test_run_of_a_newer_version_matches_its_recording(name: str, client: Client) -> None:
    async with listening(client.simulator) as listener:
        await replay(recording(name, "0.28.0"), client, listener)


async def test_3d_output_has_the_same_fields_as_the_recording(client: Client) -> None:
    """The recorded run created its cube without a model."""
    [recorded] = recording("mesh", "0.28.0")["http"][1]["response"].values()
    graph = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "simulator.safetensors"}},
        "2": {"class_type": "EmptyLatentHunyuan3Dv2", "inputs": {"resolution": 64, "batch_size": 1}},
        "4": {
            "class_type": "VAEDecodeHunyuan3D",
            "inputs": {"samples": ["2", 0], "vae": ["1", 2], "num_chunks": 8000, "octree_resolution": 16},
        },
        "5": {"class_type": "VoxelToMeshBasic", "inputs": {"voxel": ["4", 0], "threshold": 0.5}},
        "3": {"class_type": "SaveGLB", "inputs": {"mesh": ["5", 0], "filename_prefix": "577c686f/cube"}},
    }
    outputs = (await client.run(graph))["outputs"]
    assert outputs == recorded["outputs"]
    content = await client.download(outputs["3"]["3d"][0])
    assert (content[:4], int.from_bytes(content[8:12], "little")) == (b"glTF", len(content))


@pytest.mark.parametrize("version", VERSIONS)
async def test_missing_model_is_refused_as_recorded(version: str) -> None:
    async with Simulator(models={}, version=version) as simulator, listening(simulator) as listener:
        await replay(recording("error_missing_model", version), Client(simulator), listener)


async def test_failing_node_fails_as_recorded(versioned: tuple[Client, str]) -> None:
    client, version = versioned
    (client.simulator.folder / "input" / "bad.png").write_text("this is no picture")
    async with listening(client.simulator) as listener:
        await replay(recording("error_execution", version), client, listener)


async def test_interrupt_stops_the_next_node_as_recorded(versioned: tuple[Client, str]) -> None:
    client, version = versioned
    first, second = (client.simulator.misbehave(Stuck(class_type="ImageScale", times=1)) for _ in range(2))

    async def second_node_runs(listener: Listener) -> None:
        await listener.wait_for_node("1")
        first.end()
        await listener.wait_for_node("2")

    async def release_prompt(_listener: Listener) -> None:
        second.end()

    async with listening(client.simulator) as listener:
        before = {"POST /interrupt": second_node_runs, "GET /history": release_prompt}
        await replay(recording("interrupted", version), client, listener, before=before)


async def test_deleted_pending_prompt_leaves_no_trace_as_recorded(versioned: tuple[Client, str]) -> None:
    client, version = versioned
    stuck = client.simulator.misbehave(Stuck(class_type="EmptyImage"))
    recorded = recording("pending_deleted", version)
    interrupted = recorded["http"][-1]

    async def first_node_runs(listener: Listener) -> None:
        await listener.wait_for_node("0")

    async def release_prompt(_listener: Listener) -> None:
        stuck.end()

    async with listening(client.simulator) as listener:
        before = {"GET /queue": first_node_runs, f"GET {interrupted['path']}": release_prompt}
        await replay(recorded, client, listener, before=before, in_order=False)


async def test_uploads_are_answered_as_recorded(versioned: tuple[Client, str]) -> None:
    client, version = versioned
    contents = {"rec.png": (RECORDINGS / "rec.png").read_bytes(), "bad.png": b"no picture", "x.png": b"x"}
    for exchange in recording("uploads", version)["exchanges"]:
        fields = dict(exchange["multipart"])
        name = fields.pop("image")
        response = await client.http.post(exchange["path"], files={"image": (name, contents[name])}, data=fields)
        assert response.status_code == exchange["status"]
        assert (response.json() if response.content else "") == exchange["response"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_single_requests_are_answered_as_recorded(version: str) -> None:
    async with Simulator(version=version) as simulator, Client(simulator).http as http:
        await _compare_single_requests(http, recording("misc", version)["exchanges"])


async def _compare_single_requests(http: httpx.AsyncClient, exchanges: list[dict[str, Any]]) -> None:
    for exchange in exchanges:
        if exchange["path"].startswith("/api/jobs?") and exchange["status"] == 200:
            continue
        response = await http.request(exchange["method"], exchange["path"], json=exchange.get("request"))
        assert response.status_code == exchange["status"]
        assert (response.json() if response.content else "") == exchange["response"]


async def test_jobs_have_the_recorded_fields(versioned: tuple[Client, str]) -> None:
    client, version = versioned
    exchanges = recording("misc", version)["exchanges"]
    client.simulator.misbehave(Slow(class_type="ImageInvert", seconds=30, steps=1000))
    graph = recording("image_invert")["http"][0]["request"]["prompt"]
    async with listening(client.simulator) as listener:
        for _ in range(3):
            prompt_id = await client.queue_prompt(graph, client_id=listener.client_id)
            await listener.wait(lambda message, it=prompt_id: _starts(message, it))  # type: ignore[misc]
            await client.http.post("/interrupt", json={"prompt_id": prompt_id})
            await listener.wait_for_end(prompt_id)
    recorded = next(exchange for exchange in exchanges if exchange["path"].startswith("/api/jobs"))
    got = (await client.http.get(recorded["path"])).json()
    theirs, ours = (
        {job["id"]: f"JOB {place}" for place, job in enumerate(answer["jobs"])}
        for answer in (recorded["response"], got)
    )
    assert normal(got["jobs"], ours) == normal(recorded["response"]["jobs"], theirs)
    assert got["pagination"] == {**recorded["response"]["pagination"], "total": 3}


def _starts(message: dict[str, Any], prompt_id: str) -> bool:
    return bool(message["type"] == "executing" and message["data"].get("prompt_id") == prompt_id)


async def test_node_classes_are_described_as_recorded(client: Client) -> None:
    recorded = json.loads(OBJECT_INFO_RECORDED.read_text())
    recorded["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"][0] = [
        "simulator.safetensors",
        "broken.safetensors",
    ]
    for name in ("LoraLoader", "LoraLoaderModelOnly"):
        recorded[name]["input"]["required"]["lora_name"][0] = ["simulator.safetensors"]
    got = (await client.http.get("/object_info")).json()
    assert set(got) == set(recorded)
    for name, wanted in recorded.items():
        assert normal(got[name], {}) == normal(wanted, {}), name
        assert got[name]["input_order"] == wanted["input_order"]
