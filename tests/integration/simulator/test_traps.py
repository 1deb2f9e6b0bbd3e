"""The simulator reproduces behaviour of the real server that surprises clients."""

import asyncio
import uuid

import httpx
import pytest

from comfyrelay.simulator import LateHistory, Simulator, Slow, Stuck
from tests.integration.simulator.raw_client import PROMPT_ID, Client, invert_graph, listening, until
from tests.support.paths import RECORDINGS
from tests.support.world import PATIENCE_SECONDS


async def test_cached_run_names_the_old_file_even_if_it_is_missing(client: Client) -> None:
    [item] = (await client.run(invert_graph()))["outputs"]["3"]["images"]
    [again] = (await client.run(invert_graph()))["outputs"]["3"]["images"]
    assert again == item
    (client.simulator.folder / "output" / item["subfolder"] / item["filename"]).unlink()
    [gone] = (await client.run(invert_graph()))["outputs"]["3"]["images"]
    assert (await client.http.get("/view", params=gone)).status_code == 404


async def test_valid_output_runs_if_another_is_refused(client: Client) -> None:
    graph = {**invert_graph(), "4": {"class_type": "SaveImage", "inputs": {"filename_prefix": "x"}}}
    response = await client.prompt(graph)
    assert response.status_code == 200
    assert response.json()["node_errors"]["4"]["dependent_outputs"] == ["4"]
    entry = await client.ended(response.json()["prompt_id"])
    assert set(entry["outputs"]) == {"3"}
    assert entry["prompt"][4] == ["3"]


async def test_prompt_id_can_be_used_twice(client: Client) -> None:
    prompt_id = str(uuid.uuid4())
    await client.run(invert_graph(), prompt_id=prompt_id)
    second = await client.queue_prompt(invert_graph(prefix="other"), prompt_id=prompt_id)
    assert second == prompt_id
    await until(client.idle)
    entry = await client.ended(prompt_id)
    assert entry["outputs"]["3"]["images"][0]["filename"] == "other_00001_.png"


async def test_status_500_can_have_queued_the_prompt(client: Client) -> None:
    stuck = client.simulator.misbehave(Stuck(times=1))
    await client.queue_prompt(invert_graph())
    first = await client.prompt(invert_graph(prefix="a"), prompt_id=PROMPT_ID, number=7)
    second = await client.prompt(invert_graph(prefix="b"), prompt_id=PROMPT_ID, number=7)
    assert (first.status_code, second.status_code) == (200, 500)
    assert second.headers["content-type"].startswith("text/plain")
    assert second.text.startswith("500 Internal Server Error")
    assert [item[:2] for item in (await client.queue())["queue_pending"]] == [[7.0, PROMPT_ID]] * 2
    stuck.end()
    await client.ended(PROMPT_ID)
    await until(client.idle)


async def test_success_event_precedes_the_history(client: Client) -> None:
    client.simulator.misbehave(LateHistory(seconds=0.8))
    async with listening(client.simulator) as listener:
        prompt_id = await client.queue_prompt(invert_graph(), client_id=listener.client_id)
        await listener.wait(lambda message: message["type"] == "execution_success")
        assert (await client.http.get(f"/history/{prompt_id}")).json() == {}
        await listener.wait_for_end(prompt_id)
        assert (await client.http.get(f"/history/{prompt_id}")).json() != {}


async def test_socket_that_ends_late_unregisters_the_new_one(client: Client) -> None:
    async with listening(client.simulator, "same") as old, listening(client.simulator, "same") as new:
        assert client.simulator.clients == ["same"]
        await old.socket.close()
        await until(client.has_no_listener)
        prompt_id = await client.queue_prompt(invert_graph(), client_id="same")
        await client.ended(prompt_id)
        pong = await new.socket.ping()
        await asyncio.wait_for(pong, PATIENCE_SECONDS)
        assert new.kinds() == ["status"]


async def test_restart_empties_queue_history_cache_and_temp(client: Client) -> None:
    simulator = client.simulator
    done = await client.queue_prompt(invert_graph(), client_id="c")
    await client.ended(done)
    (simulator.folder / "temp" / "x.png").write_bytes(b"x")
    simulator.misbehave(Stuck(class_type="ImageScale"))
    await client.queue_prompt(_scaling())
    await client.queue_prompt(_scaling())
    url = simulator.url
    await simulator.restart()
    assert simulator.url == url
    assert await client.queue() == {"queue_running": [], "queue_pending": []}
    assert (await client.http.get("/history")).json() == {}
    assert not list((simulator.folder / "temp").iterdir())
    assert (simulator.folder / "input" / "rec.png").is_file()
    entry = await client.run(invert_graph())
    assert entry["status"]["messages"][1][1]["nodes"] == []
    assert entry["outputs"]["3"]["images"][0]["filename"] == "out_00002_.png"


def _scaling() -> dict[str, object]:
    inputs = {"image": ["1", 0], "upscale_method": "area", "width": 8, "height": 8, "crop": "disabled"}
    return {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}},
        "2": {"class_type": "ImageScale", "inputs": inputs},
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
    }


async def test_history_is_empty_for_unknown_pending_and_running_prompts(client: Client) -> None:
    client.simulator.misbehave(Stuck())
    running, pending = [await client.queue_prompt(invert_graph()) for _ in range(2)]
    for prompt_id in (running, pending, "unknown"):
        response = await client.http.get(f"/history/{prompt_id}")
        assert (response.status_code, response.json()) == (200, {})


@pytest.mark.parametrize("body", ["{no json", '{"prompt": {"last_node_id": 3, "nodes": []}}', ""])
async def test_malformed_body_is_a_plain_500(body: str, client: Client) -> None:
    response = await client.http.post("/prompt", content=body)
    assert response.status_code == 500
    assert response.text.startswith("500 Internal Server Error")


async def test_editor_workflow_that_starts_with_a_text_is_an_invalid_prompt_or_an_error(client: Client) -> None:
    assert (await client.prompt({"id": "x", "nodes": []})).status_code == 500
    async with Simulator(version="0.7.0") as older:
        response = await Client(older).prompt({"id": "x", "nodes": []})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_prompt"
    assert error["message"] == "Cannot execute because a node is missing the class_type property."
    assert error["details"] == "Node ID '#id'"


async def test_idle_socket_is_silent(simulator: Simulator) -> None:
    async with listening(simulator) as listener:
        pong = await listener.socket.ping()
        await asyncio.wait_for(pong, PATIENCE_SECONDS)
        assert listener.kinds() == ["status"]


async def test_reconnected_client_gets_the_running_node(client: Client) -> None:
    stuck = client.simulator.misbehave(Stuck(class_type="ImageInvert"))
    async with listening(client.simulator, "me") as first:
        prompt_id = await client.queue_prompt(invert_graph(), client_id="me")
        await first.wait_for_node("2")
    await until(client.has_no_listener)
    async with listening(client.simulator, "me") as again, listening(client.simulator, "other") as other:
        assert (await again.wait_for_node("2"))["data"] == {"node": "2"}
        stuck.end()
        await again.wait_for_end(prompt_id)
        assert set(other.kinds()) == {"status"}


async def test_only_progress_of_an_anonymous_prompt_is_broadcast(client: Client) -> None:
    client.simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.01, steps=2))
    async with listening(client.simulator) as listener:
        await client.ended(await client.queue_prompt(invert_graph()))
        await listener.wait(lambda message: message["type"] == "status" and message["data"] == _idle())
    assert set(listener.kinds()) == {"status", "progress_state", "progress"}


def _idle() -> dict[str, object]:
    return {"status": {"exec_info": {"queue_remaining": 0}}}


async def test_interrupt_without_a_client_is_broadcast(client: Client) -> None:
    client.simulator.misbehave(Slow(class_type="ImageInvert", seconds=30, steps=1000))
    async with listening(client.simulator) as listener:
        await client.queue_prompt(invert_graph())
        await listener.wait(lambda message: message["type"] == "progress")
        await client.http.post("/interrupt")
        interrupted = await listener.wait(lambda message: message["type"] == "execution_interrupted")
    assert interrupted["data"]["node_type"] == "ImageInvert"


async def test_cache_key_is_the_content_not_the_node_id(client: Client) -> None:
    await client.run(invert_graph())
    renamed = {
        "30": {"class_type": "SaveImage", "inputs": {"images": ["20", 0], "filename_prefix": "job/out"}, "_meta": {}},
        "20": {"class_type": "ImageInvert", "inputs": {"image": ["10", 0]}},
        "10": {"class_type": "LoadImage", "inputs": {"image": "rec.png"}},
    }
    entry = await client.run(renamed)
    assert sorted(entry["status"]["messages"][1][1]["nodes"]) == ["10", "20", "30"]
    assert entry["meta"]["30"]["node_id"] == "3"


async def test_only_the_latest_prompt_is_cached(client: Client) -> None:
    for graph, cached in (
        (invert_graph(), []),
        (_scaling(), []),
        (invert_graph(), []),
        (invert_graph(prefix="new"), ["1", "2"]),
    ):
        entry = await client.run(graph)
        assert entry["status"]["messages"][1][1]["nodes"] == cached


async def test_new_bytes_under_the_same_name_are_a_miss(client: Client) -> None:
    await client.run(invert_graph())
    data = (RECORDINGS / "rec.png").read_bytes() + b"more"
    await client.http.post("/upload/image", files={"image": ("rec.png", data)}, data={"overwrite": "1"})
    entry = await client.run(invert_graph())
    assert entry["status"]["messages"][1][1]["nodes"] == []


async def test_free_memory_empties_the_cache(client: Client) -> None:
    await client.run(invert_graph())
    response = await client.http.post("/free", json={"unload_models": True, "free_memory": True})
    assert response.status_code == 200
    entry = await client.run(invert_graph())
    assert entry["status"]["messages"][1][1]["nodes"] == []
    assert (await client.http.post("/free")).status_code == 500


async def test_client_keys_are_not_in_the_history(client: Client) -> None:
    extra = {"api_key_comfy_org": "secret", "auth_token_comfy_org": "secret", "mine": 1}
    entry = await client.run(invert_graph(), extra_data=extra)
    assert set(entry["prompt"][3]) == {"mine", "client_id", "create_time"}
    assert (await client.prompt(invert_graph(), extra_data=None)).status_code == 500


async def test_socket_of_a_stopped_server_ends_without_a_close_frame(simulator: Simulator) -> None:
    async with listening(simulator) as listener:
        await simulator.stop()
        assert await listener.wait_closed() == 1006
    with pytest.raises(httpx.ConnectError):
        await Client(simulator).http.get("/prompt")
