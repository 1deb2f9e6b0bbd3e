"""Only files of stopped or failed runs and inputs of abandoned uploads are removed from ComfyUI."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from comfyrelay.comfyui import Attachment, ComfyClient
from comfyrelay.comfyui.graphs.foreign_files import UPLOAD_FOLDER
from comfyrelay.errors import InvalidInput, NodeFailed, ServerRefused, ServerUnreachable
from comfyrelay.simulator import Fail, Refuse, Simulator
from comfyrelay.worker.comfyui.orphaned_files import OrphanedFiles
from comfyrelay.worker.comfyui.recovery import MARK
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.files.run_folders import ComfyFolders
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import StateFolder
from tests.support.api_calls import png
from tests.support.graphs import invert
from tests.support.network_proxy import END_OF_FORM, Proxy
from tests.support.world import PATIENCE_SECONDS


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        yield simulator


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    state = StateFolder(tmp_path / "worker")
    state.open()
    return state


@pytest.fixture
async def servers(simulator: Simulator) -> AsyncIterator[Servers]:
    servers = Servers(WorkerSettings(comfyui_base_url=[simulator.url]), on_change=lambda: None)
    yield servers
    await servers.close()


@pytest.fixture
async def orphaned_files(simulator: Simulator, state: StateFolder, servers: Servers) -> AsyncIterator[OrphanedFiles]:
    orphaned_files = make_orphaned_files(simulator, state, servers)
    yield orphaned_files
    await orphaned_files.close()


def previews(simulator: Simulator) -> list[Path]:
    return [path for path in (simulator.folder / "temp").rglob("*") if path.is_file()]


async def leave_preview(simulator: Simulator, **extra_data: str) -> str:
    """Run a graph that fails after its preview; return the prompt id."""
    graph = {
        "1": invert()["1"],
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
        "3": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "x"}},
    }
    simulator.misbehave(Fail(class_type="SaveImage", times=1))
    before = previews(simulator)
    prompt_ids = []
    async with ComfyClient(simulator.url) as comfy:
        with pytest.raises(NodeFailed):
            await comfy.run(graph, extra_data=extra_data, on_event=lambda event: prompt_ids.append(event.prompt_id))
    assert len(previews(simulator)) == len(before) + 1
    return prompt_ids[0]


async def wait_until_forgotten(state: StateFolder) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while state.unfinished_runs():  # noqa: ASYNC110  (files send no event)
            await asyncio.sleep(0.01)


async def test_files_of_worker_runs_are_removed(
    simulator: Simulator, state: StateFolder, orphaned_files: OrphanedFiles
) -> None:
    prompt_id = await leave_preview(simulator, **{MARK: "1-abc"})
    orphaned_files.add([("comfyui-1", prompt_id)])
    assert state.unfinished_runs() == [("comfyui-1", prompt_id)]
    await wait_until_forgotten(state)
    assert previews(simulator) == []


async def test_files_of_script_runs_are_kept(
    simulator: Simulator, state: StateFolder, orphaned_files: OrphanedFiles
) -> None:
    """The runs of a script are recorded as well, but their files belong to the user."""
    prompt_id = await leave_preview(simulator)
    orphaned_files.add([("comfyui-1", prompt_id)])
    await wait_until_forgotten(state)
    assert len(previews(simulator)) == 1
    async with httpx.AsyncClient() as http:
        assert prompt_id in (await http.get(f"{simulator.url}/history")).json()


async def test_run_of_an_unknown_server_is_not_recorded(state: StateFolder, orphaned_files: OrphanedFiles) -> None:
    orphaned_files.add([("comfy-cloud", "p1"), ("comfyui-1", "../../p2"), ("comfyui-1", "")])
    assert state.unfinished_runs() == []


async def test_server_removed_from_the_settings_is_not_waited_for(
    state: StateFolder, orphaned_files: OrphanedFiles
) -> None:
    state.record_unfinished("comfyui-2", "p1")
    orphaned_files.resume()
    assert state.unfinished_runs() == []


async def test_orphaned_file_removal_does_not_wait_for_a_removed_server(
    simulator: Simulator, state: StateFolder, servers: Servers, orphaned_files: OrphanedFiles
) -> None:
    prompt_id = await leave_preview(simulator, **{MARK: "1-abc"})
    await simulator.stop()
    orphaned_files.add([("comfyui-1", prompt_id)])
    await servers.remove("comfyui-1")
    await wait_until_forgotten(state)


async def test_run_on_an_unreachable_server_remains_recorded_for_the_next_process(
    simulator: Simulator, state: StateFolder, orphaned_files: OrphanedFiles
) -> None:
    prompt_id = await leave_preview(simulator, **{MARK: "1-abc"})
    await simulator.stop()
    orphaned_files.add([("comfyui-1", prompt_id)])
    await orphaned_files.close()
    assert state.unfinished_runs() == [("comfyui-1", prompt_id)]


FOLDER = "job-1-abc"


@pytest.fixture
async def network(simulator: Simulator) -> AsyncIterator[Proxy]:
    async with Proxy(simulator.url) as network:
        yield network


@pytest.fixture
async def proxied_servers(network: Proxy) -> AsyncIterator[Servers]:
    """Yield the server behind a network that can be blocked."""
    servers = Servers(WorkerSettings(comfyui_base_url=[network.url]), on_change=lambda: None)
    yield servers
    await servers.close()


def make_orphaned_files(simulator: Simulator, state: StateFolder, servers: Servers) -> OrphanedFiles:
    return OrphanedFiles(
        state, servers=servers, folders=ComfyFolders(lambda: [simulator.folder], asset_folder="assets")
    )


def inputs(simulator: Simulator) -> list[Path]:
    return [path for path in (simulator.folder / "input" / UPLOAD_FOLDER).rglob("*") if path.is_file()]


async def run_with_input(servers: Servers) -> None:
    graph = invert() | {"1": {"class_type": "LoadImage", "inputs": {"image": ""}}}
    picture = Attachment(source=png("#123456"), node="1", input="image", name="cat.png", folder=FOLDER)
    await servers.own["comfyui-1"].run(graph, attachments=[picture])


async def abandon_upload(network: Proxy, servers: Servers) -> None:
    """Stop a run whose input the hanging server has not read yet."""
    network.hold(suffix=END_OF_FORM)
    run = asyncio.create_task(run_with_input(servers))
    await network.until_held()
    network.hold()
    run.cancel()
    await asyncio.wait({run})


async def wait_until_read(simulator: Simulator) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not simulator.log.uploads_written:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def wait_until_no_upload(state: StateFolder) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while state.unanswered_uploads():  # noqa: ASYNC110  (files send no event)
            await asyncio.sleep(0.01)


async def test_input_read_after_the_end_of_its_job_is_removed(
    simulator: Simulator, state: StateFolder, network: Proxy, proxied_servers: Servers
) -> None:
    orphaned_files = make_orphaned_files(simulator, state, proxied_servers)
    await abandon_upload(network, proxied_servers)
    assert proxied_servers.own["comfyui-1"].pop_unanswered_upload(FOLDER)
    orphaned_files.add_upload("comfyui-1", FOLDER)
    assert state.unanswered_uploads() == [("comfyui-1", FOLDER)]
    assert state.unfinished_runs() == []
    network.release()
    await wait_until_read(simulator)
    await wait_until_no_upload(state)
    assert inputs(simulator) == []
    await orphaned_files.close()


async def test_input_read_after_its_worker_was_killed_is_removed(
    simulator: Simulator, state: StateFolder, network: Proxy, proxied_servers: Servers
) -> None:
    await abandon_upload(network, proxied_servers)
    orphaned_files = make_orphaned_files(simulator, state, proxied_servers)
    orphaned_files.add_upload("comfyui-1", FOLDER)
    await orphaned_files.close()
    network.release()
    await wait_until_read(simulator)
    assert len(inputs(simulator)) == 1
    next_orphaned_files = make_orphaned_files(simulator, state, proxied_servers)
    next_orphaned_files.resume()
    await wait_until_no_upload(state)
    assert inputs(simulator) == []
    await next_orphaned_files.close()


async def test_answered_upload_is_not_recorded(simulator: Simulator, servers: Servers) -> None:
    await run_with_input(servers)
    assert len(inputs(simulator)) == 1
    assert not servers.own["comfyui-1"].pop_unanswered_upload(FOLDER)
    simulator.misbehave(Refuse(status=500, path="/upload", times=1))
    with pytest.raises(ServerRefused):
        await run_with_input(servers)
    assert not servers.own["comfyui-1"].pop_unanswered_upload(FOLDER)


async def test_unsent_upload_is_not_recorded(simulator: Simulator, servers: Servers, tmp_path: Path) -> None:
    missing = Attachment(source=tmp_path / "missing.png", node="1", input="image", content_hash="0" * 64, folder=FOLDER)
    with pytest.raises(InvalidInput):
        await servers.own["comfyui-1"].run(invert(), attachments=[missing])
    await simulator.stop()
    with pytest.raises(ServerUnreachable):
        await run_with_input(servers)
    assert not servers.own["comfyui-1"].pop_unanswered_upload(FOLDER)


async def test_upload_is_not_recorded_without_a_known_comfyui_folder(state: StateFolder, servers: Servers) -> None:
    orphaned_files = OrphanedFiles(state, servers=servers, folders=ComfyFolders(list, asset_folder="assets"))
    orphaned_files.add_upload("comfyui-1", FOLDER)
    assert state.unanswered_uploads() == []


async def test_wait_for_a_hanging_server_is_limited(
    simulator: Simulator, state: StateFolder, network: Proxy, proxied_servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comfyrelay.worker.comfyui.orphaned_files.LONGEST_HANG_SECONDS", 0.1)
    orphaned_files = make_orphaned_files(simulator, state, proxied_servers)
    network.hold()
    orphaned_files.add_upload("comfyui-1", FOLDER)
    await wait_until_no_upload(state)
    await orphaned_files.close()


async def test_unanswered_upload_is_reported_once(network: Proxy, proxied_servers: Servers) -> None:
    await abandon_upload(network, proxied_servers)
    assert proxied_servers.own["comfyui-1"].pop_unanswered_upload(FOLDER)
    assert not proxied_servers.own["comfyui-1"].pop_unanswered_upload(FOLDER)


async def test_upload_to_a_server_removed_from_the_settings_is_not_waited_for(
    simulator: Simulator, state: StateFolder, servers: Servers, orphaned_files: OrphanedFiles
) -> None:
    """Files that the server has read by then are still removed."""
    await run_with_input(servers)
    state.record_upload("comfyui-2", FOLDER)
    orphaned_files.add_upload("comfyui-2", FOLDER)
    orphaned_files.add_upload("comfyui-1", "../elsewhere")
    orphaned_files.resume()
    assert state.unanswered_uploads() == []
    assert inputs(simulator) == []
