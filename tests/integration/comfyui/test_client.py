"""The client of a ComfyUI runs graphs, transfers files, reports events, and stops only its own runs."""

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import av
import pytest
from PIL import Image

from comfyrelay.comfyui import (
    Attachment,
    ComfyClient,
    Finished,
    NodeStarted,
    OutputReady,
    Preview,
    Queued,
    RunEvent,
    RunResult,
    Started,
    Step,
    workflow_hash,
)
from comfyrelay.comfyui.client.uploads import LARGE_BYTES, safe_name
from comfyrelay.comfyui.editor.packages import write_node_map
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.errors import (
    ConfigurationError,
    GraphError,
    InvalidInput,
    NotInstalled,
    OutputGone,
    RunInterrupted,
    ServerRefused,
    ServerUnreachable,
)
from comfyrelay.simulator import LostFile, Simulator, Slow
from tests.integration.comfyui.event_listener import Listener
from tests.support.graphs import MP4, PNG, clip, invert, invert_file, invert_video, words

FIRST, SECOND = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


async def content(comfy: ComfyClient, result: RunResult) -> bytes:
    return b"".join([piece async for piece in comfy.read(result.file)])


class TestRuns:
    async def test_image_is_uploaded_and_inverted(self, comfy: ComfyClient) -> None:
        result = await comfy.run(invert_file(), attachments=[Attachment(node="Input", input="image", source=PNG)])
        before, after = Image.open(io.BytesIO(PNG)).convert("RGB"), Image.open(io.BytesIO(await content(comfy, result)))
        assert after.size == before.size
        assert after.getpixel((0, 0)) == tuple(255 - part for part in before.getpixel((0, 0)))  # type: ignore[union-attr]

    async def test_video_is_uploaded_and_inverted(self, comfy: ComfyClient, tmp_path: Path) -> None:
        source = tmp_path / "holiday.mp4"
        source.write_bytes(MP4)
        result = await comfy.run(invert_video(), attachments=[Attachment(node="1", input="file", source=source)])
        # The file is a video, although it is listed under `images`.
        assert (result.file.key, result.file.mime_type) == ("images", "video/mp4")
        size = await comfy.download(result.file, tmp_path / "out.mp4")
        assert size == (tmp_path / "out.mp4").stat().st_size
        with av.open(tmp_path / "out.mp4") as video:
            assert sum(1 for _ in video.decode(video=0)) == 16

    async def test_texts_are_outputs(self, comfy: ComfyClient) -> None:
        result = await comfy.run(words("hello"))
        assert result.texts == {"1": ("hello",)}
        assert result.files == ()

    async def test_outputs_of_the_wanted_node_are_first(self, comfy: ComfyClient) -> None:
        assert [file.node_id for file in (await comfy.run(clip())).files] == ["5", "6"]
        assert [file.node_id for file in (await comfy.run(clip(), wanted=["SaveWEBM"])).files] == ["6", "5"]

    async def test_missing_wanted_node_is_an_error_before_the_submission(
        self, simulator: Simulator, comfy: ComfyClient
    ) -> None:
        with pytest.raises(GraphError, match='id or title "77"'):
            await comfy.run(invert(), wanted=["77"])
        assert simulator.log.prompts_queued == 0

    async def test_editor_file_is_refused_before_submission(self, simulator: Simulator, comfy: ComfyClient) -> None:
        with pytest.raises(GraphError, match="Export"):
            await comfy.run({"last_node_id": 1, "nodes": [], "links": []})
        assert simulator.log.prompts_queued == 0

    async def test_cached_nodes_are_reported(self, comfy: ComfyClient) -> None:
        assert (await comfy.run(invert())).cached_nodes == frozenset()
        assert (await comfy.run(invert())).cached_nodes == {"1", "2"}

    async def test_run_does_not_change_the_graph(self, comfy: ComfyClient) -> None:
        graph = invert_file()
        before = workflow_hash(graph), str(graph)
        await comfy.run(graph, attachments=[Attachment(node="1", input="image", source=PNG)])
        assert (workflow_hash(graph), str(graph)) == before

    async def test_concurrent_runs_each_get_their_own_result(self, comfy: ComfyClient) -> None:
        results = await asyncio.gather(*(comfy.run(invert(color)) for color in range(8)))
        blues = [Image.open(io.BytesIO(await content(comfy, result))).getpixel((0, 0)) for result in results]
        assert blues == [(255, 255, 255 - color) for color in range(8)]

    async def test_file_prefixes_can_be_kept(self, simulator: Simulator) -> None:
        async with ComfyClient(simulator.url, keep_prefixes=True) as comfy:
            result = await comfy.run(invert(prefix="mine/cat"))
        assert (result.file.subfolder, result.file.filename) == ("mine", "cat_00001_.png")

    async def test_history_can_be_deleted_after_a_run(self, simulator: Simulator) -> None:
        async with ComfyClient(simulator.url, delete_history=True) as comfy:
            result = await comfy.run(invert())
            assert await comfy._http.json("GET", f"/history/{result.prompt_id}") == {}


class TestEvents:
    async def test_run_events_cover_queue_to_end(self, simulator: Simulator, comfy: ComfyClient) -> None:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.05, steps=2, previews=True))
        events: list[RunEvent] = [event async for event in comfy.stream(invert())]
        kinds = [type(event) for event in events]
        assert kinds[:2] == [Queued, Started] or kinds[:2] == [Started, Queued]
        assert [event.class_type for event in events if isinstance(event, NodeStarted)] == [
            "EmptyImage",
            "ImageInvert",
            "SaveImage",
        ]
        steps = [event for event in events if isinstance(event, Step)]
        assert [(step.node_id, step.value, step.maximum) for step in steps] == [("2", 1, 2), ("2", 2, 2)]
        assert steps == sorted(steps, key=lambda step: step.progress)
        previews = [event for event in events if isinstance(event, Preview)]
        assert len(previews) == 2
        assert previews[0].node_id == "2"
        Image.open(io.BytesIO(previews[0].image)).verify()
        assert [event.node_id for event in events if isinstance(event, OutputReady)] == ["3"]
        assert isinstance(events[-1], Finished)
        assert events[-1].result.file.node_id == "3"

    async def test_queued_run_reports_its_position(self, simulator: Simulator, comfy: ComfyClient) -> None:
        stuck = simulator.misbehave(Slow(class_type="SaveWEBM", seconds=30, steps=300))
        first, second = Listener(), Listener()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(comfy.run(clip(), on_event=first))
            await first.received(Step)
            waiting = group.create_task(comfy.run(invert(), on_event=second))
            await second.received(Queued, position=1)
            stuck.end()
            running.cancel()
        assert second.kinds[-1] == "Finished"
        assert not waiting.cancelled()

    async def test_leaving_the_stream_stops_the_run(self, simulator: Simulator, comfy: ComfyClient) -> None:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
        stream = comfy.stream(invert())
        async for event in stream:
            if isinstance(event, Step):
                break
        await stream.aclose()  # type: ignore[attr-defined]
        assert simulator.log.interrupts == 1
        simulator.behave()
        await comfy.run(invert(color=9))


class TestStopping:
    @pytest.fixture(params=["0.28.0", "0.7.0"])
    async def simulator(self, request: pytest.FixtureRequest) -> AsyncIterator[Simulator]:
        async with Simulator(version=request.param) as simulator:
            yield simulator

    async def test_cancelling_a_run_interrupts_it_on_the_server(self, simulator: Simulator, comfy: ComfyClient) -> None:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
        listener = Listener()
        run = asyncio.create_task(comfy.run(invert(), on_event=listener))
        await listener.received(Step)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        simulator.behave()
        # The server is free again.
        await comfy.run(invert(color=9))
        assert simulator.log.interrupts == 1

    async def test_cancel_by_id_is_tried_once_on_an_older_server(self) -> None:
        async with Simulator(version="0.7.0") as simulator, ComfyClient(simulator.url) as comfy:
            for prompt_id in (FIRST, SECOND):
                await comfy.cancel(prompt_id)
            assert simulator.log.count("POST", f"/api/jobs/{FIRST}/cancel") == 1
            assert simulator.log.count("POST", f"/api/jobs/{SECOND}/cancel") == 0

    async def test_newer_server_cancels_by_id_in_one_request(self) -> None:
        async with Simulator() as simulator, ComfyClient(simulator.url) as comfy:
            await comfy.cancel(FIRST)
            assert simulator.log.count("POST", "/queue") == 0
            assert simulator.log.count("POST", "/interrupt") == 0

    async def test_cancelling_a_waiting_run_removes_it_and_leaves_the_running_one(
        self, simulator: Simulator, comfy: ComfyClient
    ) -> None:
        slow = simulator.misbehave(Slow(class_type="SaveWEBM", seconds=30, steps=300))
        first, second = Listener(), Listener()
        async with ComfyClient(simulator.url) as other:
            running = asyncio.create_task(other.run(clip(), on_event=first))
            await first.received(Step)
            waiting = asyncio.create_task(comfy.run(invert(), on_event=second))
            await second.received(Queued, position=1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert simulator.log.interrupts == 0
            slow.end()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    async def test_run_of_another_client_is_not_interrupted(self, simulator: Simulator, comfy: ComfyClient) -> None:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.3, steps=30))
        listener = Listener()
        run = asyncio.create_task(comfy.run(invert(), on_event=listener))
        await listener.received(Step)
        async with ComfyClient(simulator.url) as other:
            await other.cancel(FIRST)
        assert (await run).files

    async def test_interrupt_by_another_client_is_reported_as_such(
        self, simulator: Simulator, comfy: ComfyClient
    ) -> None:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
        listener = Listener()
        run = asyncio.create_task(comfy.run(invert(), on_event=listener))
        await listener.received(Step)
        await comfy._http.post("/interrupt", {})
        with pytest.raises(RunInterrupted, match="Another client"):
            await run


class TestFiles:
    async def test_same_content_is_uploaded_once(
        self, simulator: Simulator, comfy: ComfyClient, tmp_path: Path
    ) -> None:
        (tmp_path / "other.png").write_bytes(PNG)
        uploads = await asyncio.gather(
            comfy.upload(PNG, name="a.png"), comfy.upload(tmp_path / "other.png"), comfy.upload(PNG, name="b.png")
        )
        assert len(set(uploads)) == 1
        assert simulator.log.uploads_written == 1
        assert simulator.log.count("POST", "/upload/image") == 1

    async def test_known_hash_avoids_reading_the_file(self, simulator: Simulator, comfy: ComfyClient) -> None:
        first = await comfy.upload(PNG, name="a.png")
        digest = first.name.partition(".")[0] + "0" * 24
        assert await comfy.upload(Path("not-read.png"), content_hash=digest) == first

    async def test_any_media_can_be_uploaded(self, comfy: ComfyClient) -> None:
        assert (await comfy.upload(MP4, name="clip.MP4")).name.endswith(".mp4")
        assert (await comfy.upload(b"RIFF", name="sound.wav")).name.endswith(".wav")

    async def test_names_cannot_collide_or_escape(self, simulator: Simulator, comfy: ComfyClient) -> None:
        names = [
            "../../etc/passwd",
            "a/b\\c.png",
            "x.p/ng",
            "über bild.png",
            "a.php\0.png",
            "",
            ".",
            "CON.",
            "a." + "x" * 99,
        ]
        for name in names:
            uploaded = await comfy.upload(PNG + name.encode(), name=name)
            assert uploaded.name == safe_name(uploaded.name.partition(".")[0], name)
            assert uploaded.name.isascii()
            assert uploaded.subfolder == "comfyrelay"
        folders = [path.parent.name for path in (simulator.folder / "input").rglob("*.*")]
        assert folders == ["comfyrelay"] * len(names)

    async def test_file_that_cannot_be_read_is_a_clear_error(self, comfy: ComfyClient, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match=r"gone\.png cannot be read: No such file"):
            await comfy.upload(tmp_path / "gone.png")

    async def test_file_that_vanished_from_the_server_is_uploaded_again(
        self, simulator: Simulator, comfy: ComfyClient
    ) -> None:
        attachment = Attachment(node="1", input="image", source=PNG, name="a.png")
        await comfy.run(invert_file(), attachments=[attachment])
        for path in (simulator.folder / "input" / "comfyrelay").iterdir():
            path.unlink()
        assert (await comfy.run(invert_file(), attachments=[attachment])).files
        assert simulator.log.uploads_written == 2

    async def test_failed_download_leaves_no_file(
        self, simulator: Simulator, comfy: ComfyClient, tmp_path: Path
    ) -> None:
        result = await comfy.run(invert())
        simulator.misbehave(LostFile())
        with pytest.raises(OutputGone, match="no longer on the server"):
            await comfy.download(result.file, tmp_path / "out.png")
        assert list(tmp_path.iterdir()) == []

    async def test_file_larger_than_the_server_allows_is_a_clear_error(self) -> None:
        async with Simulator(max_upload_bytes=1000) as simulator, ComfyClient(simulator.url) as comfy:
            with pytest.raises(ServerRefused, match="--max-upload-size"):
                await comfy.upload(b"x" * 5000, name="big.mp4")
            with pytest.raises(ServerRefused, match="--max-upload-size"):
                await comfy.upload(bytes(LARGE_BYTES), name="bigger.mp4")
            # The server names its limit, so the larger file is not sent at all.
            assert simulator.log.count("POST", "/upload/image") == 1


class TestServerState:
    async def test_stats_and_node_definitions_can_be_read(self, simulator: Simulator, comfy: ComfyClient) -> None:
        assert (await comfy.system_stats())["system"]["comfyui_version"] == "0.28.0"
        assert "SaveImage" in await comfy.object_info()
        await comfy.object_info()
        assert simulator.log.count("GET", "/object_info") == 1
        await comfy.object_info(refresh=True)
        assert simulator.log.count("GET", "/object_info") == 2

    async def test_memory_can_be_freed(self, comfy: ComfyClient) -> None:
        await comfy.run(invert())
        await comfy.free()
        assert (await comfy.run(invert())).cached_nodes == frozenset()

    async def test_queue_length_is_reported(self, simulator: Simulator, comfy: ComfyClient) -> None:
        await comfy.check()
        assert comfy.queue_remaining is not None

    async def test_preflight_finds_everything_at_once(self, comfy: ComfyClient) -> None:
        graph = {
            "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "no.safetensors"}},
            "2": {"class_type": "NoSuchNode", "inputs": {}},
            "3": {"class_type": "KSampler", "inputs": {"sampler_name": "magic", "model": ["1", 0], "seed": 1}},
            "4": {"class_type": "LoadImage", "inputs": {"image": "folder/gone.png [output]"}},
            "5": {"class_type": "SaveImage", "inputs": {"images": ["99", 0], "filename_prefix": "x"}},
        }
        problems = await comfy.preflight(graph)
        assert (
            "CheckpointLoaderSimple (1): the model 'no.safetensors' is not installed on the server (input 'ckpt_name')"
            in problems
        )
        assert "NoSuchNode (2): this node is not installed on the server" in problems
        assert "KSampler (3): input 'positive' is not connected" in problems
        assert "KSampler (3): 'magic' is not a choice of input 'sampler_name'" in problems
        assert "LoadImage (4): the file 'folder/gone.png [output]' is not on the server (input 'image')" in problems
        assert "SaveImage (5): input 'images' is linked to node 99, which does not exist" in problems

    async def test_missing_nodes_are_named_with_their_package(self, simulator: Simulator, tmp_path: Path) -> None:
        node_map = tmp_path / "map.json"
        write_node_map(node_map, json.dumps({"https://github.com/me/mine": [["NoSuchNode"], {}]}).encode())
        os.utime(node_map, (0, 1_790_000_000))
        graph: Graph = {**invert(), "9": {"class_type": "NoSuchNode", "inputs": {}}}
        expected = "NoSuchNode (9): this node is not installed on the server (package me/mine, from the node map of "
        async with ComfyClient(simulator.url, node_map=node_map) as comfy:
            assert await comfy.preflight(graph) == [f"{expected}2026-09-21)"]
            with pytest.raises(NotInstalled) as caught:
                await comfy.run(graph)
        assert caught.value.problems == (f"{expected}2026-09-21)",)

    async def test_preflight_finds_no_problem_in_a_valid_graph(self, comfy: ComfyClient) -> None:
        uploaded = await comfy.upload(PNG, name="a.png")
        assert await comfy.preflight(invert_file(uploaded.reference)) == []
        result = await comfy.run(invert())
        again = f"{result.file.subfolder}/{result.file.filename} [output]"
        assert await comfy.preflight(invert_file(again)) == []
        assert (await comfy.run(invert_file(again))).files

    async def test_unreachable_server_is_reported_at_once(self, simulator: Simulator, comfy: ComfyClient) -> None:
        await simulator.stop()
        with pytest.raises(ServerUnreachable, match="Is ComfyUI running there"):
            await comfy.check()
        with pytest.raises(ServerUnreachable):
            await comfy.run(invert())

    async def test_lost_server_is_detected(self, simulator: Simulator, comfy: ComfyClient) -> None:
        await comfy.check()
        lost = asyncio.create_task(comfy.disconnected())
        await simulator.stop()
        await lost

    @pytest.mark.parametrize("url", ["", "ftp://host", "http://", "not a url://"])
    def test_malformed_address_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="http://127"):
            ComfyClient(url)

    async def test_address_may_omit_the_scheme(self, simulator: Simulator) -> None:
        async with ComfyClient(simulator.url.removeprefix("http://") + "/") as comfy:
            assert comfy.url == simulator.url
            await comfy.check()
