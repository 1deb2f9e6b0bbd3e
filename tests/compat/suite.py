"""One suite over real versions of ComfyUI, which the supervisor starts as on a worker.

`python -m tests.compat` runs it for each version. The first line of a docstring is a row of its table.
"""

import asyncio
import io
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image
from playwright.async_api import expect

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.comfyui.editor.editor_only_nodes import BROADCASTS
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.processes.gpus import LocalGpu
from comfyrelay.comfyui.processes.options import ManagedOptions
from comfyrelay.comfyui.processes.supervisor import ManagedProcess, ProcessState, Supervisor
from comfyrelay.comfyui.runs.events import NodeStarted, Preview, RunEvent, Started, Step
from comfyrelay.comfyui.runs.history import Prompt
from comfyrelay.comfyui.versions import CANCEL_BY_ID, version_key
from comfyrelay.errors import ComfyError, GraphRefused, NodeFailed, NotInstalled, OutOfMemory, RunRemoved
from comfyrelay.media.containers import read_container
from comfyrelay.media.info import ProbeLimits
from tests.compat.oracle import first_difference
from tests.compat.report import ABSENT
from tests.integration.api.test_node_definitions import bring
from tests.support import everywhere_files
from tests.support.chromium import open_chromium
from tests.support.comfy_site import open_comfy_site
from tests.support.comfyui_site import open_site
from tests.support.daily_loop import JourneyDesk, walk_daily_loop
from tests.support.paths import QUEUE_PACK
from tests.support.web_app import build_app
from tests.support.world import PATIENCE_SECONDS, SqliteBackend
from tests.unit.comfyui.editor.__main__ import EXPORT, READY

pytestmark = pytest.mark.asyncio(loop_scope="module")
FOLDER = Path(os.environ.get("COMPAT_COMFYUI", "."))
# Importing torch and all nodes takes long on a busy machine.
START_SECONDS = 900.0


class RunningComfyUI:
    """A ComfyUI that the supervisor keeps running, and a client."""

    def __init__(self, supervisor: Supervisor, folder: Path) -> None:
        self.supervisor = supervisor
        self.folder = folder
        self.client = ComfyClient(self.process.url)

    @property
    def process(self) -> ManagedProcess:
        [process] = self.supervisor.processes
        return process

    async def until_up(self) -> None:
        await until(lambda: self.process.state is ProcessState.UP, seconds=START_SECONDS)

    async def until_prompts(self, count: int) -> dict[str, Prompt]:
        """Wait until the server has this number of prompts, of all clients."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            # Another process decides.
            while len(found := await self.client.prompts()) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return found

    async def record(self, graph: Graph) -> tuple[RunResult, list[RunEvent]]:
        events: list[RunEvent] = []
        return await self.client.run(graph, on_event=events.append), events


async def until(holds: Callable[[], object], *, seconds: float = PATIENCE_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        # Another process decides.
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@asynccontextmanager
async def running_comfyui(folder: Path, *arguments: str) -> AsyncIterator[RunningComfyUI]:
    gpu = LocalGpu(key="cpu", name="CPU", memory_bytes=None, variables={})
    supervisor = Supervisor(ManagedOptions(folder=FOLDER, arguments=("--cpu", *arguments)), folder=folder, gpus=[gpu])
    await supervisor.open()
    try:
        await until(lambda: supervisor.processes and supervisor.processes[0].url)
        running = RunningComfyUI(supervisor, folder)
        await running.until_up()
        yield running
        await running.client.close()
    finally:
        await supervisor.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def comfyui(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningComfyUI]:
    async with running_comfyui(tmp_path_factory.mktemp("managed")) as running:
        yield running


def graph_of(*nodes: tuple[str, dict[str, Any]]) -> Graph:
    return {
        str(number): {"class_type": class_type, "inputs": inputs}
        for number, (class_type, inputs) in enumerate(nodes, 1)
    }


def image(*, color: int = 0, batch: int = 1) -> Graph:
    return graph_of(
        ("EmptyImage", {"width": 64, "height": 48, "batch_size": batch, "color": color}),
        ("SaveImage", {"images": ["1", 0], "filename_prefix": "picture"}),
    )


def slow(seed: int, *, steps: int = 4, seconds: float = 0.05) -> Graph:
    return graph_of(
        ("CompatSlowImage", {"steps": steps, "seconds": seconds, "seed": seed}),
        ("SaveImage", {"images": ["1", 0], "filename_prefix": "slow"}),
    )


def failing(error: str) -> Graph:
    return graph_of(
        ("CompatFailingImage", {"error": error, "seed": 1}),
        ("SaveImage", {"images": ["1", 0], "filename_prefix": "never"}),
    )


async def content(comfyui: RunningComfyUI, result: RunResult, number: int = 0) -> bytes:
    return b"".join([piece async for piece in comfyui.client.read(result.files[number])])


async def pixels(comfyui: RunningComfyUI, result: RunResult) -> bytes:
    with Image.open(io.BytesIO(await content(comfyui, result))) as picture:
        return picture.tobytes()


async def test_managed_start_uses_its_own_folders(comfyui: RunningComfyUI) -> None:
    """Managed start with its own folders and arguments"""
    stats = await comfyui.client.system_stats()
    assert stats["system"]["comfyui_version"]
    assert "--cpu" in stats["system"]["argv"]
    result = await comfyui.client.run(image(color=7))
    [file] = result.files
    assert (comfyui.process.folder / "output" / file.subfolder / file.filename).is_file()
    assert not list((FOLDER / "output").rglob(file.filename))


async def test_node_definitions_are_readable(comfyui: RunningComfyUI, tmp_path: Path) -> None:
    """Definitions of all nodes, and a check of a graph against them"""
    info = await comfyui.client.object_info(refresh=True)
    assert len(info) > 300
    async with open_site(SqliteBackend(tmp_path / "databases"), None, tmp_path, models=()) as site:
        await bring(await site.api.worker("gpu-1", fleet="home"), info)
        assert (await site.client.get("/object_info")).keys() == info.keys()
    assert await comfyui.client.preflight(slow(0)) == []
    [problem] = await comfyui.client.preflight(graph_of(("NoSuchNode", {})))
    assert "NoSuchNode" in problem


async def test_image_outputs_arrive_in_order(comfyui: RunningComfyUI) -> None:
    """Images, several per node"""
    result, _ = await comfyui.record(image(color=255, batch=3))
    assert [file.mime_type for file in result.files] == ["image/png"] * 3
    with Image.open(io.BytesIO(await content(comfyui, result))) as picture:
        assert picture.size == (64, 48)
        assert json.loads(picture.info["prompt"])["1"]["class_type"] == "EmptyImage"


async def test_video_output_arrives(comfyui: RunningComfyUI, tmp_path: Path) -> None:
    """Video"""
    result, _ = await comfyui.record(
        graph_of(
            ("EmptyImage", {"width": 64, "height": 64, "batch_size": 8, "color": 200}),
            ("CreateVideo", {"images": ["1", 0], "fps": 8.0}),
            ("SaveVideo", {"video": ["2", 0], "filename_prefix": "video", "format": "mp4", "codec": "h264"}),
        )
    )
    [file] = result.files
    await comfyui.client.download(file, tmp_path / "video.mp4")
    with (tmp_path / "video.mp4").open("rb") as video:
        assert read_container(video, "video", ProbeLimits()).width == 64


async def test_audio_output_arrives(comfyui: RunningComfyUI) -> None:
    """Audio"""
    result, _ = await comfyui.record(
        graph_of(
            ("EmptyAudio", {"duration": 1.0, "sample_rate": 44_100, "channels": 2}),
            ("SaveAudio", {"audio": ["1", 0], "filename_prefix": "audio"}),
        )
    )
    assert (await content(comfyui, result)).startswith(b"fLaC")


async def test_text_output_arrives(comfyui: RunningComfyUI) -> None:
    """Text"""
    graph = graph_of(("PrimitiveString", {"value": "a lake\nat night"}), ("PreviewAny", {"source": ["1", 0]}))
    result, _ = await comfyui.record(graph)
    assert result.texts == {"2": ("a lake\nat night",)}


async def test_mesh_output_arrives(comfyui: RunningComfyUI) -> None:
    """3D"""
    result, _ = await comfyui.record(
        graph_of(
            ("CompatCube", {"side": 4}),
            ("VoxelToMeshBasic", {"voxel": ["1", 0], "threshold": 0.5}),
            ("SaveGLB", {"mesh": ["2", 0], "filename_prefix": "cube"}),
        )
    )
    assert (await content(comfyui, result)).startswith(b"glTF")


async def test_progress_and_previews_are_reported(comfyui: RunningComfyUI) -> None:
    """Progress and previews"""
    _, events = await comfyui.record(slow(11, steps=5))
    assert [event.value for event in events if isinstance(event, Step)][-1] == 5
    assert {event.node_id for event in events if isinstance(event, NodeStarted)} >= {"1", "2"}
    previews = [event for event in events if isinstance(event, Preview)]
    assert previews
    assert previews[0].mime_type == "image/jpeg"
    # Versions without preview metadata do not name the node.
    assert {event.node_id for event in previews} <= {"1", None}


async def test_cached_run_has_its_outputs(comfyui: RunningComfyUI) -> None:
    """Cached run"""
    first = await comfyui.client.run(slow(12))
    second = await comfyui.client.run(slow(12))
    assert "1" in second.cached_nodes
    # The metadata of the files names their run.
    assert await pixels(comfyui, first) == await pixels(comfyui, second)


async def test_run_has_its_outputs_although_no_result_is_cached(comfyui: RunningComfyUI, tmp_path: Path) -> None:
    """RAM-pressure cache that has to drop all results (since 0.28)"""
    version = (await comfyui.client.system_stats())["system"]["comfyui_version"]
    if (version_key(version) or ()) < CANCEL_BY_ID:
        pytest.skip(ABSENT)
    # No machine has this much memory, so there is always pressure.
    async with running_comfyui(tmp_path, "--cache-ram", "100000", "100000") as pressed:
        big = {"width": 2048, "height": 2048, "batch_size": 12, "color": 7}
        first, last = ({"image": ["1", 0], "batch_index": at, "length": 1} for at in (0, 11))
        graph = graph_of(
            ("EmptyImage", big),
            *(("ImageFromBatch", first), ("SaveImage", {"images": ["2", 0], "filename_prefix": "first"})),
            *(("ImageFromBatch", last), ("SaveImage", {"images": ["4", 0], "filename_prefix": "last"})),
        )
        for _ in range(2):
            result = await pressed.client.run(graph, wanted=["3", "5"])
            assert [file.node_id for file in result.files] == ["3", "5"]
            assert "1" not in result.cached_nodes
            assert await pixels(pressed, result)


async def test_canceled_run_stops_and_the_next_one_runs(comfyui: RunningComfyUI) -> None:
    """Cancel of a running and of a waiting run"""
    started = asyncio.Event()
    running = asyncio.create_task(
        comfyui.client.run(
            slow(13, steps=1000), on_event=lambda event: started.set() if isinstance(event, Step) else None
        )
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        await started.wait()
    waiting = asyncio.create_task(comfyui.client.run(slow(14)))
    behind = asyncio.create_task(comfyui.client.run(slow(15)))
    await comfyui.until_prompts(3)
    waiting.cancel()
    running.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    assert (await behind).files
    assert await comfyui.client.prompts() == {}


async def test_cancel_of_one_run_spares_that_of_another_client(comfyui: RunningComfyUI) -> None:
    """Two clients at once: a cancel stops only one's own run"""
    async with ComfyClient(comfyui.process.url) as other:
        started = asyncio.Event()
        theirs = asyncio.create_task(
            other.run(slow(16, steps=40), on_event=lambda event: started.set() if isinstance(event, Started) else None)
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            await started.wait()
        mine = asyncio.create_task(comfyui.client.run(slow(17)))
        await comfyui.until_prompts(2)
        mine.cancel()
        await asyncio.gather(mine, return_exceptions=True)
        assert (await theirs).files


async def test_run_deleted_by_another_client_is_reported(comfyui: RunningComfyUI) -> None:
    """Queue delete and interrupt by another client"""
    async with ComfyClient(comfyui.process.url) as other:
        ahead = asyncio.create_task(other.run(slow(18, steps=60)))
        await comfyui.until_prompts(1)
        mine = asyncio.create_task(comfyui.client.run(slow(19)))
        found = await comfyui.until_prompts(2)
        [deleted] = [prompt for prompt, sent in found.items() if sent.graph["1"]["inputs"]["seed"] == 19]
        await other.remove(deleted)
        [active] = set(found) - {deleted}
        await comfyui.client.interrupt(active)
        with pytest.raises(RunRemoved):
            await mine
        with pytest.raises(ComfyError, match="interrupted"):
            await ahead


async def test_invalid_graph_names_node_and_input(comfyui: RunningComfyUI) -> None:
    """Validation error"""
    wrong = image()
    wrong["1"]["inputs"]["width"] = 10**9
    with pytest.raises(GraphRefused, match="width"):
        await comfyui.client.run(wrong)
    with pytest.raises(NotInstalled, match="NoSuchNode"):
        await comfyui.client.run(graph_of(("NoSuchNode", {}), ("SaveImage", {"images": ["1", 0]})))


async def test_graph_with_a_replaced_node_runs(comfyui: RunningComfyUI) -> None:
    """Replaced nodes: checked, converted and run (since 0.28)"""
    if "CompatOldImage" in await comfyui.client.object_info():
        pytest.skip(ABSENT)
    old = {
        "id": 1,
        "type": "CompatRenamedImage",
        "widgets_values": [3, 9],
        "outputs": [{"type": "IMAGE", "links": [1]}],
    }
    saver = {"id": 2, "type": "SaveImage", "widgets_values": ["renamed"], "inputs": [{"name": "images", "link": 1}]}
    file = {"nodes": [old, saver], "links": [[1, 1, 0, 2, 0, "IMAGE"]], "version": 0.4}
    graph = convert_workflow(file, await comfyui.client.object_info())
    assert graph["1"]["inputs"] == {"count": 3, "number": 9}
    assert set(await pixels(comfyui, await comfyui.client.run(graph))) == {9}


async def test_exception_of_a_node_is_the_failure(comfyui: RunningComfyUI) -> None:
    """Exception in a node"""
    with pytest.raises(NodeFailed, match="the lens is dirty") as caught:
        await comfyui.client.run(failing("exception"))
    assert caught.value.node_id == "1"


async def test_out_of_memory_is_recognised(comfyui: RunningComfyUI) -> None:
    """Out of memory"""
    with pytest.raises(OutOfMemory):
        await comfyui.client.run(failing("out of memory"))
    await comfyui.client.free()
    assert (await comfyui.client.run(slow(20))).files


async def test_freed_memory_has_no_cached_results(comfyui: RunningComfyUI) -> None:
    """`/free` unloads models and drops cached results"""
    await comfyui.client.run(slow(30))
    assert "1" in (await comfyui.client.run(slow(30))).cached_nodes
    await comfyui.client.free()
    assert "1" not in (await comfyui.client.run(slow(30))).cached_nodes


@pytest.mark.parametrize(
    "name", ["a lake (1).png", "Größe 5%.png", "写真.png", "semi;colon&amp.png", "x" * 120 + ".png"]
)
async def test_upload_with_an_odd_name_is_read_back(comfyui: RunningComfyUI, name: str, tmp_path: Path) -> None:
    """Uploads with odd names"""
    source = tmp_path / name
    Image.new("RGB", (40, 30), (1, len(name), 3)).save(source)
    graph = graph_of(
        ("LoadImage", {"image": ""}),
        ("SaveImage", {"images": ["1", 0], "filename_prefix": "back"}),
    )
    result = await comfyui.client.run(graph, attachments=[Attachment(source=source, node="1", input="image")])
    with Image.open(io.BytesIO(await content(comfyui, result))) as picture:
        assert picture.getpixel((5, 5)) == (1, len(name), 3)


async def test_editor_exports_what_the_conversion_makes(comfyui: RunningComfyUI) -> None:
    """Editor in Chromium: exports the same graph as our conversion"""
    async with open_chromium() as browser:
        page = await browser.new_page()
        page.set_default_timeout(1000 * PATIENCE_SECONDS)
        await page.goto(comfyui.process.url)
        await page.wait_for_function("() => window.app?.graph && window.LiteGraph?.registered_node_types?.SaveImage")
        exported = await page.evaluate(
            """async (graph) => {
              await window.app.loadApiJson(graph, "compat");
              const { workflow, output } = await window.app.graphToPrompt();
              return { workflow, output };
            }""",
            slow(21),
        )
    converted = convert_workflow(exported["workflow"], await comfyui.client.object_info())
    plain = {number: {key: node[key] for key in ("class_type", "inputs")} for number, node in converted.items()}
    assert plain == {
        number: {key: node[key] for key in ("class_type", "inputs")} for number, node in exported["output"].items()
    }


async def test_use_everywhere_is_exported_as_by_its_pack(comfyui: RunningComfyUI) -> None:
    """Node pack Use Everywhere in the editor: exports the same graphs as our conversion"""
    installed = await comfyui.client.object_info()
    if BROADCASTS[0] not in installed:
        pytest.skip("the pack is not installed")
    # The conversion must not need the pack.
    definitions = {name: found for name, found in installed.items() if not name.startswith(BROADCASTS)}
    differences: dict[str, str | None] = {}
    async with open_chromium() as browser:
        page = await browser.new_page()
        page.set_default_timeout(1000 * PATIENCE_SECONDS)
        await page.goto(comfyui.process.url)
        await page.wait_for_function(READY)
        # Otherwise, the pack adds its links only when a graph is queued.
        switch = "(on) => window.app.ui.settings.setSettingValueAsync('Use Everywhere.Options.always_modify_graph', on)"
        await page.evaluate(switch, True)
        for name, file in everywhere_files.all_files().items():
            exported = await page.evaluate(EXPORT, file)
            # No output needs the broadcasting nodes.
            graph = {key: node for key, node in exported.items() if not node["class_type"].startswith(BROADCASTS)}
            differences[name] = first_difference(graph, convert_workflow(file, definitions), definitions)
        await page.evaluate(switch, False)
    assert differences == dict.fromkeys(differences)


async def test_button_in_the_editor_runs_the_graph_on_a_server(comfyui: RunningComfyUI, tmp_path: Path) -> None:
    """Node pack "Queue on ComfyRelay" in the editor"""
    source = tmp_path / "photo.png"
    Image.new("RGB", (32, 16), (255, 0, 0)).save(source)
    name = (await comfyui.client.upload(source)).reference
    graph = graph_of(
        ("LoadImage", {"image": name}),
        ("ImageInvert", {"image": ["1", 0]}),
        ("SaveImage", {"images": ["2", 0], "filename_prefix": "relayed"}),
    )
    async with open_comfy_site(SqliteBackend(tmp_path / "db"), tmp_path) as site, open_chromium() as browser:
        settings = FOLDER / "custom_nodes" / QUEUE_PACK.name / "settings.json"
        settings.write_text(json.dumps({"url": site.url, "token": site.token}))
        page = await browser.new_page(viewport={"width": 1600, "height": 900}, locale="en-US")
        page.set_default_timeout(1000 * PATIENCE_SECONDS)
        await page.goto(comfyui.process.url)
        await page.wait_for_function("() => window.app?.graph && window.LiteGraph?.registered_node_types?.SaveImage")
        await page.evaluate("(graph) => window.app.loadApiJson(graph, 'relayed')", graph)
        if BROADCASTS[0] in await comfyui.client.object_info():
            # The picture must reach the inversion without a link.
            await page.evaluate(
                """() => {
                  window.app.graph.getNodeById(1).properties.ue_convert = true;
                  window.app.graph.getNodeById(2).disconnectInput(0);
                }"""
            )
        await page.evaluate("() => window.app.extensionManager.command.execute('ComfyRelay.Queue')")
        await expect(page.get_by_text("The graph is in the queue.")).to_be_visible(timeout=1000 * PATIENCE_SECONDS)
        # The output node shows the picture of the server, from the folder of this ComfyUI.
        await page.wait_for_function("() => window.app.graph.getNodeById(3).imgs?.[0]?.naturalWidth === 32")
        [job] = (await site.user.get("/api/ai-jobs"))["items"]
        assert job["status"] == "completed"
        assert await comfyui.client.prompts() == {}
        shown = await page.evaluate("() => window.app.graph.getNodeById(3).imgs[0].src")
        assert job["id"] in shown


async def test_daily_loop_of_a_creator_survives_a_kill(tmp_path: Path) -> None:
    """A desk in Chromium: drop, run, compare, recall, sweep, kill, grid, settings, pause, phone"""
    build_app()
    async with open_chromium() as browser:
        await walk_daily_loop(JourneyDesk(tmp_path, comfyui_dir=str(FOLDER), comfyui_args="--cpu"), browser)


async def test_killed_comfyui_is_restarted_and_runs_again(comfyui: RunningComfyUI) -> None:
    """Kill and restart"""
    started = asyncio.Event()
    running = asyncio.create_task(
        comfyui.client.run(
            slow(22, steps=1000), on_event=lambda event: started.set() if isinstance(event, Step) else None
        )
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        await started.wait()
    starts = comfyui.process.starts
    for pid in comfyui.process.process_tree:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ComfyError):
        await running
    await until(lambda: comfyui.process.starts > starts, seconds=START_SECONDS)
    await comfyui.until_up()
    async with ComfyClient(comfyui.process.url) as client:
        assert (await client.run(slow(23))).files
