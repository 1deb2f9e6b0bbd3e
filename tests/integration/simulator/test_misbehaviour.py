"""A test can request every kind of misbehaviour."""

import asyncio
import io
import json
import struct
from typing import Any

import httpx
import pytest
from PIL import Image

from comfyrelay.errors import InvalidInput
from comfyrelay.simulator import (
    DropSocket,
    EmptyOutputs,
    ErrorAfterQueueing,
    ErrorBeforeQueueing,
    Fail,
    LostFile,
    MissingModel,
    OutOfMemory,
    Refuse,
    Restart,
    SilentSocket,
    Simulator,
    Slow,
    SlowHttp,
    Stuck,
    read_misbehaviour,
)
from tests.integration.simulator.raw_client import PROMPT_ID, Client, error_of, invert_graph, listening, until
from tests.support.world import PATIENCE_SECONDS


async def test_slow_node_reports_its_progress(client: Client) -> None:
    client.simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.04, steps=4, previews=True))
    async with listening(client.simulator) as listener:
        prompt_id = await client.queue_prompt(invert_graph(), client_id=listener.client_id)
        await listener.wait_for_end(prompt_id)
    steps = [message["data"] for message in listener.messages if message["type"] == "progress"]
    assert steps == [{"value": n, "max": 4, "prompt_id": prompt_id, "node": "2"} for n in (1, 2, 3, 4)]
    states = [message["data"]["nodes"]["2"] for message in listener.messages if "2" in message["data"].get("nodes", ())]
    assert [(state["value"], state["state"]) for state in states[:6]] == [
        (0.0, "running"),
        (1, "running"),
        (2, "running"),
        (3, "running"),
        (4, "running"),
        (4, "finished"),
    ]
    assert len(listener.frames) == 4
    kind, encoding = struct.unpack(">II", listener.frames[0][:8])
    assert (kind, encoding) == (1, 1)
    assert Image.open(io.BytesIO(listener.frames[0][8:])).format == "JPEG"


async def test_previews_have_metadata_if_the_client_supports_it(client: Client) -> None:
    client.simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.01, steps=1, previews=True))
    async with listening(client.simulator, flags={"supports_preview_metadata": True}) as listener:
        await listener.wait(lambda message: message["type"] == "feature_flags")
        prompt_id = await client.queue_prompt(invert_graph(), client_id=listener.client_id)
        await listener.wait_for_end(prompt_id)
    [frame] = listener.frames
    kind, length = struct.unpack(">II", frame[:8])
    assert kind == 4
    assert json.loads(frame[8 : 8 + length]) == {
        "node_id": "2",
        "prompt_id": prompt_id,
        "display_node_id": "2",
        "parent_node_id": None,
        "real_node_id": "2",
        "image_type": "image/jpeg",
    }
    assert Image.open(io.BytesIO(frame[8 + length :])).size == (64, 64)


async def test_slow_node_stops_at_its_next_step(client: Client) -> None:
    client.simulator.misbehave(Slow(class_type="ImageInvert", seconds=30, steps=1000))
    async with listening(client.simulator) as listener:
        prompt_id = await client.queue_prompt(invert_graph(), client_id=listener.client_id)
        await listener.wait(lambda message: message["type"] == "progress")
        await client.http.post("/interrupt", json={"prompt_id": prompt_id})
        await listener.wait_for_end(prompt_id)
    kind, data = (await client.ended(prompt_id))["status"]["messages"][-1]
    assert (kind, data["node_id"], data["executed"]) == ("execution_interrupted", "2", ["1"])


async def test_out_of_memory_fails_the_node(client: Client) -> None:
    handle = client.simulator.misbehave(OutOfMemory(class_type="ImageInvert", times=1))
    error = error_of(await client.run(invert_graph()))
    assert error["exception_type"] == "torch.OutOfMemoryError"
    assert error["exception_message"].startswith("Allocation on device")
    assert handle.happened == 1
    assert (await client.run(invert_graph()))["status"]["completed"]


async def test_failure_has_its_type_and_a_traceback_with_paths(client: Client) -> None:
    client.simulator.misbehave(Fail(class_type="SaveImage", exception_type="ImportError", message="No module"))
    error = error_of(await client.run(invert_graph()))
    assert (error["exception_type"], error["exception_message"]) == ("ImportError", "No module\n")
    assert error["node_id"] == "3"
    assert error["executed"] == ["1", "2"]
    assert "/comfyui/" in error["traceback"][0]


async def test_dropped_socket_has_no_close_frame_and_the_run_continues(client: Client) -> None:
    client.simulator.misbehave(DropSocket(class_type="ImageInvert", times=1))
    async with listening(client.simulator) as listener:
        prompt_id = await client.queue_prompt(invert_graph(), client_id=listener.client_id)
        assert await listener.wait_closed() == 1006
    assert (await client.ended(prompt_id))["status"]["completed"]


async def test_silent_socket_stays_open(client: Client) -> None:
    client.simulator.misbehave(SilentSocket(class_type="ImageInvert", times=1))
    async with listening(client.simulator) as listener:
        prompt_id = await client.queue_prompt(invert_graph(), client_id=listener.client_id)
        await client.ended(prompt_id)
        await asyncio.wait_for(await listener.socket.ping(), PATIENCE_SECONDS)
        assert "execution_success" not in listener.kinds()
        assert listener.close_code is None
    async with listening(client.simulator) as other:
        await client.run(invert_graph(prefix="x"), client_id=other.client_id)
        await other.wait(lambda message: message["type"] == "execution_success")


async def test_restart_in_the_middle_loses_the_prompt(client: Client) -> None:
    client.simulator.misbehave(Restart(class_type="ImageInvert", times=1))
    async with listening(client.simulator) as listener:
        prompt_id = await client.queue_prompt(invert_graph(), client_id=listener.client_id)
        assert await listener.wait_closed() == 1006

    async def is_back() -> bool:
        try:
            return (await client.http.get("/prompt")).status_code == 200
        except httpx.TransportError:
            return False

    await until(is_back)
    assert await client.queue() == {"queue_running": [], "queue_pending": []}
    assert (await client.http.get(f"/history/{prompt_id}")).json() == {}
    assert (await client.run(invert_graph()))["status"]["completed"]


async def test_status_500_after_queueing_keeps_the_prompt(client: Client) -> None:
    client.simulator.misbehave(ErrorAfterQueueing(times=1))
    response = await client.prompt(invert_graph(), prompt_id=PROMPT_ID, client_id="c")
    assert response.status_code == 500
    assert response.text.startswith("500 Internal Server Error")
    assert (await client.ended(PROMPT_ID))["status"]["completed"]
    assert client.simulator.log.prompts_queued == 1


async def test_status_500_before_queueing_drops_the_prompt(client: Client) -> None:
    client.simulator.misbehave(ErrorBeforeQueueing(class_type="SaveImage", times=1))
    assert (await client.prompt(invert_graph(), prompt_id=PROMPT_ID)).status_code == 500
    assert client.simulator.log.prompts_queued == 0
    assert (await client.prompt(invert_graph())).status_code == 200


async def test_run_may_succeed_without_outputs(client: Client) -> None:
    client.simulator.misbehave(EmptyOutputs(times=1))
    entry = await client.run(invert_graph())
    assert (entry["status"]["status_str"], entry["outputs"]) == ("success", {})
    assert (await client.run(invert_graph(prefix="x")))["outputs"]


async def test_listed_model_may_be_missing(client: Client) -> None:
    name = "simulator.safetensors"
    graph = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": name}},
        "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}},
    }
    client.simulator.misbehave(MissingModel(model=name, times=1))
    response = await client.prompt(graph)
    [error] = response.json()["node_errors"]["1"]["errors"]
    assert error["type"] == "value_not_in_list"
    assert name in (await client.http.get("/models/checkpoints")).json()
    assert (await client.prompt(graph)).status_code == 200


async def test_lost_file_is_not_found(client: Client) -> None:
    [item] = (await client.run(invert_graph()))["outputs"]["3"]["images"]
    client.simulator.misbehave(LostFile(filename=item["filename"], times=1))
    assert (await client.http.get("/view", params={"filename": "rec.png", "type": "input"})).status_code == 200
    assert (await client.http.get("/view", params=item)).status_code == 404
    assert (await client.http.get("/view", params=item)).status_code == 200


async def test_stuck_node_ignores_interrupts_until_it_is_released(client: Client) -> None:
    stuck = client.simulator.misbehave(Stuck(class_type="ImageInvert"))
    async with listening(client.simulator) as listener:
        prompt_id = await client.queue_prompt(invert_graph(), client_id=listener.client_id)
        await listener.wait_for_node("2")
        await client.http.post("/interrupt", json={"prompt_id": prompt_id})
        assert (await client.queue())["queue_running"][0][1] == prompt_id
        seen = len(listener.messages)
        await asyncio.wait_for(await listener.socket.ping(), PATIENCE_SECONDS)
        assert len(listener.messages) == seen
        stuck.end()
        await listener.wait_for_end(prompt_id)
    assert (await client.ended(prompt_id))["status"]["messages"][-1][0] == "execution_interrupted"


async def test_slow_route_does_not_delay_others(client: Client) -> None:
    client.simulator.misbehave(SlowHttp(seconds=100 * PATIENCE_SECONDS, path="/history"))
    with pytest.raises(httpx.ReadTimeout):
        await client.http.get("/history", timeout=httpx.Timeout(PATIENCE_SECONDS, read=0.1))
    assert (await client.http.get("/prompt")).status_code == 200


async def test_refused_request_has_the_requested_status(client: Client) -> None:
    client.simulator.misbehave(Refuse(status=503, path="/prompt", times=2))
    answers = [(await client.prompt(invert_graph())).status_code for _ in range(3)]
    assert answers == [503, 503, 200]


async def test_misbehaviour_is_requested_over_http(client: Client) -> None:
    async def misbehave(**fields: Any) -> httpx.Response:
        return await client.http.post("/simulator/misbehave", json=fields)

    assert (await misbehave(name="Fail", class_type="ImageInvert", message="requested")).status_code == 204
    assert error_of(await client.run(invert_graph()))["exception_message"] == "requested\n"
    assert (await client.http.delete("/simulator/misbehave")).status_code == 204
    assert (await client.run(invert_graph()))["status"]["completed"]
    for bad in ({"name": "Nothing"}, {"name": "Slow"}, {"name": "Slow", "seconds": 1, "minutes": 2}, {}):
        answer = await misbehave(**bad)
        assert answer.status_code == 400
        assert answer.json()["error"]


def test_misbehaviour_is_read_from_json() -> None:
    read = read_misbehaviour({"name": "Slow", "class_type": "ImageInvert", "seconds": 2, "steps": 3, "times": 1})
    assert read == Slow(class_type="ImageInvert", seconds=2, steps=3, times=1)
    assert read_misbehaviour({"name": "MissingModel", "model": "x"}) == MissingModel(model="x")
    with pytest.raises(InvalidInput):
        read_misbehaviour({"name": "Slow", "seconds": "long"})


async def test_behave_releases_stuck_nodes(simulator: Simulator) -> None:
    client = Client(simulator)
    simulator.misbehave(Stuck(times=1))
    graph = {"1": {"class_type": "PreviewAny", "inputs": {"source": "x"}}}
    prompt_id = await client.queue_prompt(graph, client_id="c")
    simulator.behave()
    assert (await client.ended(prompt_id))["status"]["completed"]
