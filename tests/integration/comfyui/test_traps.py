"""Each test covers one ComfyUI behaviour that breaks naive clients."""

import asyncio
import time
from contextlib import suppress

import httpx
import pytest

from comfyrelay.comfyui import ComfyClient, Queued, RunTimeouts, Started, Step
from comfyrelay.errors import GraphRefused, NodeFailed, OutputGone, RunLost, RunRemoved
from comfyrelay.simulator import (
    DropSocket,
    ErrorAfterQueueing,
    LateHistory,
    LostFile,
    SilentSocket,
    Simulator,
    Slow,
)
from tests.integration.comfyui.event_listener import Listener
from tests.support.graphs import clip, invert


async def test_cached_run_still_has_its_outputs(simulator: Simulator) -> None:
    """Without a client id, a run that is served from the cache succeeds without any outputs."""
    async with ComfyClient(simulator.url, keep_prefixes=True) as comfy:
        first, second = await comfy.run(invert()), await comfy.run(invert())
    assert second.cached_nodes == {"1", "2", "3"}
    assert second.file.filename == first.file.filename


async def test_each_run_writes_its_own_file(simulator: Simulator, comfy: ComfyClient) -> None:
    """A run whose saver node is cached names the old file, which may have been deleted."""
    first = await comfy.run(invert())
    (simulator.folder / "output" / first.file.subfolder / first.file.filename).unlink()
    second = await comfy.run(invert())
    assert second.file.subfolder != first.file.subfolder
    assert b"".join([piece async for piece in comfy.read(second.file)])


async def test_status_200_may_carry_errors(simulator: Simulator, comfy: ComfyClient) -> None:
    """ComfyUI silently drops outputs that fail validation and runs the rest."""
    graph = invert() | {"4": {"class_type": "SaveImage", "inputs": {"filename_prefix": "x"}}}
    with pytest.raises(GraphRefused, match=r"SaveImage \(4\): input 'images' is not connected"):
        await comfy.run(graph)
    # Node 4 was not requested here, so its error does not matter.
    assert [file.node_id for file in (await comfy.run(graph, wanted=["3"])).files] == ["3"]


async def test_partly_accepted_graph_does_not_keep_running(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
    graph = invert() | {"4": {"class_type": "SaveImage", "inputs": {"filename_prefix": "x"}}}
    with pytest.raises(GraphRefused):
        await comfy.run(graph)
    simulator.behave()
    await comfy.run(invert(color=9))


async def test_every_submission_has_its_own_id(simulator: Simulator, comfy: ComfyClient) -> None:
    """Reusing an id would overwrite the first run's history; newer servers require a lowercase UUID."""
    ids = [(await comfy.run(invert(color))).prompt_id for color in range(3)]
    assert len(set(ids)) == 3
    assert all(len(id_) == 36 and id_ == id_.lower() for id_ in ids)


async def test_status_500_may_have_queued_the_run(simulator: Simulator, comfy: ComfyClient) -> None:
    failed = simulator.misbehave(ErrorAfterQueueing(times=1))
    assert (await comfy.run(invert())).files
    assert failed.happened == 1
    # The run was looked up rather than sent again.
    assert simulator.log.prompts_queued == 1


async def test_success_event_may_precede_the_history(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(LateHistory(seconds=0.4))
    assert (await comfy.run(invert())).files


async def test_videos_are_listed_as_images(comfy: ComfyClient) -> None:
    result = await comfy.run(clip())
    assert [(file.key, file.mime_type) for file in result.files] == [
        ("images", "video/mp4"),
        ("images", "video/webm"),
    ]


async def test_odd_size_for_h264_is_a_clear_error(comfy: ComfyClient) -> None:
    with pytest.raises(NodeFailed, match=r"SaveVideo \(5\): H.264 needs an even width and height"):
        await comfy.run(clip(width=33))
    webm_only = {node_id: node for node_id, node in clip(width=33).items() if node_id in "16"}
    assert (await comfy.run(webm_only)).file.mime_type == "video/webm"


async def test_silent_server_is_not_lost(simulator: Simulator, comfy: ComfyClient) -> None:
    """The server sends nothing while a node works or while it is idle."""
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.6))
    assert (await comfy.run(invert())).files


async def test_new_connection_has_a_new_client_id(simulator: Simulator, comfy: ComfyClient) -> None:
    """With the same client id, the end of the old connection would silence the new one."""
    listener = Listener()
    await comfy.run(invert())
    before = comfy._router.socket.client_id
    simulator.misbehave(DropSocket(class_type="ImageInvert", times=1))
    assert (await comfy.run(invert(color=9))).files
    await comfy.run(invert(color=10), on_event=listener)
    assert comfy._router.socket.client_id != before
    assert "NodeStarted" in listener.kinds


async def test_socket_that_went_silent_is_replaced(simulator: Simulator, comfy: ComfyClient) -> None:
    await comfy.check()
    simulator.misbehave(SilentSocket(class_type="EmptyImage", times=1))
    assert (await comfy.run(invert())).files
    listener = Listener()
    # The first run received its start event; the second receives nothing, which is detected.
    await comfy.run(invert(color=9))
    await comfy.run(invert(color=10), on_event=listener)
    assert "NodeStarted" in listener.kinds


async def test_restart_empties_queue_and_history(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
    listener = Listener()
    run = asyncio.create_task(comfy.run(invert(), on_event=listener))
    await listener.received(Step)
    await simulator.restart()
    with pytest.raises(RunLost, match="restarted"):
        await run


async def test_empty_history_is_not_an_end(simulator: Simulator, comfy: ComfyClient) -> None:
    """`/history/{id}` answers 200 with an empty body for waiting, running and unknown runs."""
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.8))
    simulator.misbehave(SilentSocket(class_type="EmptyImage"))
    assert (await comfy.run(invert())).files


async def test_removed_run_is_detected(simulator: Simulator, comfy: ComfyClient) -> None:
    slow = simulator.misbehave(Slow(class_type="SaveWEBM", seconds=60, steps=6000))
    first = Listener()
    running = asyncio.create_task(comfy.run(clip(), on_event=first))
    await first.received(Step)
    second = Listener()
    waiting = asyncio.create_task(comfy.run(invert(), on_event=second))
    await second.received(Queued)
    async with httpx.AsyncClient(base_url=simulator.url) as http:
        await http.post("/queue", json={"clear": True})
    with pytest.raises(RunRemoved, match="Another client"):
        await waiting
    slow.end()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_listed_file_may_be_missing(simulator: Simulator, comfy: ComfyClient) -> None:
    result = await comfy.run(invert())
    simulator.misbehave(LostFile(filename=result.file.filename))
    with pytest.raises(OutputGone):
        async for _ in comfy.read(result.file):
            pass


async def test_start_timeout_excludes_time_in_the_queue(simulator: Simulator, comfy: ComfyClient) -> None:
    """A start timeout that included time in the queue would fail every run behind a long one."""
    simulator.misbehave(Slow(class_type="SaveWEBM", seconds=2.5, steps=8))
    listener = Listener()
    first = asyncio.create_task(comfy.run(clip(), on_event=listener))
    await listener.received(Started)
    began = time.monotonic()
    assert (await comfy.run(invert(), timeouts=RunTimeouts(start_seconds=2))).files
    assert time.monotonic() - began > 2
    await first
