"""Some nodes send their outputs only over the WebSocket."""

import asyncio
import io
import struct
from pathlib import Path

import pytest
from PIL import Image

from comfyrelay.comfyui import ComfyClient
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import OutputFile
from comfyrelay.comfyui.pool import PoolJobStatus, SqliteQueue, WorkflowPool
from comfyrelay.comfyui.runs.events import OutputReady, Preview, RunEvent
from comfyrelay.comfyui.runs.progress import RunProgress
from comfyrelay.comfyui.runs.socket import parse_frame
from comfyrelay.errors import OutputGone, TooLarge
from comfyrelay.simulator import DropSocket, SilentSocket, Simulator, Slow
from tests.support.graphs import invert, words


def sends(count: int = 1, color: int = 255) -> Graph:
    return {
        "1": {
            "class_type": "EmptyImage",
            "inputs": {"width": 8, "height": 6, "batch_size": count, "color": color},
        },
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "5": {"class_type": "SaveImageWebsocket", "inputs": {"images": ["2", 0]}},
    }


def size_of(file: OutputFile) -> tuple[int, int]:
    return Image.open(io.BytesIO(file.content or b"")).size


async def test_images_that_a_node_sends_over_the_socket_are_outputs(comfy: ComfyClient, tmp_path: Path) -> None:
    events: list[RunEvent] = []
    # Run the graph twice, because such a node is never cached.
    first, result = [await comfy.run(sends(3), on_event=events.append) for _ in range(2)]
    assert first.files == result.files
    assert [file.filename for file in result.files] == [f"node-5_0000{number}.png" for number in (1, 2, 3)]
    assert [file.mime_type for file in result.files] == ["image/png"] * 3
    assert all(size_of(file) == (8, 6) for file in result.files)
    assert await comfy.download(result.file, tmp_path / "out.png") == len(result.file.content or b"")
    reported = [event.files for event in events if isinstance(event, OutputReady)]
    assert reported == [result.files, result.files]


async def test_wanted_socket_images_precede_files_and_texts(comfy: ComfyClient) -> None:
    graph = {**sends(), "3": invert()["3"], "6": words()["1"]}
    result = await comfy.run(graph, wanted=["5"])
    assert [(file.node_id, file.type) for file in result.files] == [("5", "socket"), ("3", "output")]
    assert result.texts == {"6": ("hello",)}


async def test_previews_of_other_nodes_are_not_outputs(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.02, steps=2, previews=True))
    simulator.misbehave(Slow(class_type="SaveImage", seconds=0.02, steps=2, previews=True))
    events: list[RunEvent] = []
    result = await comfy.run(invert(), on_event=events.append)
    assert [event.node_id for event in events if isinstance(event, Preview)] == ["2", "2", "3", "3"]
    assert [file.type for file in result.files] == ["output"]


async def test_run_whose_images_were_missed_is_repeated(simulator: Simulator, comfy: ComfyClient) -> None:
    dropped = simulator.misbehave(DropSocket(class_type="ImageInvert", times=1))
    result = await comfy.run(sends(2))
    assert (len(result.files), dropped.happened, simulator.log.prompts_queued) == (2, 1, 2)


async def test_run_whose_images_are_missed_twice_fails_with_advice(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(DropSocket(class_type="SaveImageWebsocket"))
    with pytest.raises(OutputGone, match="save them with SaveImage instead"):
        await comfy.run(sends())
    assert simulator.log.prompts_queued == 2


async def test_run_does_not_wait_forever_for_a_silent_socket(
    simulator: Simulator, comfy: ComfyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comfyrelay.comfyui.runs.watch.SENT_LATE_SECONDS", 0.2)
    monkeypatch.setattr("comfyrelay.comfyui.runs.watch.LAST_CHECK_SECONDS", 0.2)
    simulator.misbehave(SilentSocket(class_type="ImageInvert", times=1))
    with pytest.raises(OutputGone):
        await comfy.run(sends())


async def test_oversized_socket_images_are_refused(comfy: ComfyClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("progress", "watch"):
        monkeypatch.setattr(f"comfyrelay.comfyui.runs.{module}.MAX_SENT_BYTES", 10)
    with pytest.raises(TooLarge, match="save them with SaveImage"):
        await comfy.run(sends())


async def test_durable_queue_keeps_socket_images(simulator: Simulator, tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    async with WorkflowPool([simulator.url], queue=SqliteQueue(path)) as pool:
        job = await pool.enqueue(sends(2))
        result = await job
    async with WorkflowPool([simulator.url], queue=SqliteQueue(path)) as pool:
        again = pool.job(job.id)
        assert (again.status, await again) == (PoolJobStatus.COMPLETED, result)
        await asyncio.wait_for(again.download(result.files[1], tmp_path / "out.png"), 10)
    assert (tmp_path / "out.png").read_bytes() == result.files[1].content


def test_frame_without_a_node_belongs_to_the_running_node() -> None:
    progress = RunProgress(graph=sends(), prompt_id="p", on_event=lambda _: None)
    frame = parse_frame(struct.pack(">II", 1, 2) + b"png")
    assert frame is not None
    for node in ("2", "5"):
        progress.handle_message("executing", {"node": node, "prompt_id": "p"})
        progress.preview(frame.image, frame.mime_type, frame.node_id)
    assert progress.sent_by("2") == []
    assert [file.content for file in progress.sent_by("5")] == [b"png"]
