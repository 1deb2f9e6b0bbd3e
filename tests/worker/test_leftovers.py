"""Of runs that were stopped or have failed, what ComfyUI alone knows of is removed, and nothing of anybody else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from comfyrelay.comfy import ComfyClient
from comfyrelay.errors import NodeFailed
from comfyrelay.sim import Fail, Sim
from comfyrelay.worker.comfyui.leftovers import Leftovers
from comfyrelay.worker.comfyui.recovering import MARK
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.files.folders import ComfyFolders
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import State
from tests.comfy.graphs import invert
from tests.harness import PATIENCE_SECONDS


@pytest.fixture
async def sim() -> AsyncIterator[Sim]:
    async with Sim() as sim:
        yield sim


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path / "worker")
    state.open()
    return state


@pytest.fixture
async def servers(sim: Sim) -> AsyncIterator[Servers]:
    servers = Servers(WorkerSettings(comfyui_base_url=[sim.url]), on_change=lambda: None)
    yield servers
    await servers.close()


@pytest.fixture
async def leftovers(sim: Sim, state: State, servers: Servers) -> AsyncIterator[Leftovers]:
    leftovers = Leftovers(state, servers=servers, folders=ComfyFolders(lambda: [sim.folder], asset_folder="assets"))
    yield leftovers
    await leftovers.close()


def previews(sim: Sim) -> list[Path]:
    return [each for each in (sim.folder / "temp").rglob("*") if each.is_file()]


async def failed_run(sim: Sim, **extra_data: str) -> str:
    """A run that has left a preview."""
    graph = {
        "1": invert()["1"],
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
        "3": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "x"}},
    }
    sim.misbehave(Fail(class_type="SaveImage", times=1))
    before = previews(sim)
    prompt_ids = []
    async with ComfyClient(sim.url) as comfy:
        with pytest.raises(NodeFailed):
            await comfy.run(graph, extra_data=extra_data, on_event=lambda event: prompt_ids.append(event.prompt_id))
    assert len(previews(sim)) == len(before) + 1
    return prompt_ids[0]


async def until_forgotten(state: State) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while state.unfinished_runs():  # noqa: ASYNC110  (files tell nobody)
            await asyncio.sleep(0.01)


async def test_the_files_of_our_runs_go(sim: Sim, state: State, leftovers: Leftovers) -> None:
    prompt_id = await failed_run(sim, **{MARK: "1-abc"})
    leftovers.add([("comfyui-1", prompt_id)])
    assert state.unfinished_runs() == [("comfyui-1", prompt_id)]
    await until_forgotten(state)
    assert previews(sim) == []


async def test_those_of_others_stay(sim: Sim, state: State, leftovers: Leftovers) -> None:
    """A script's prompts are among its runs, and what they make is its user's."""
    prompt_id = await failed_run(sim)
    leftovers.add([("comfyui-1", prompt_id)])
    await until_forgotten(state)
    assert len(previews(sim)) == 1
    async with httpx.AsyncClient() as http:
        assert prompt_id in (await http.get(f"{sim.url}/history")).json()


async def test_what_is_no_run_of_a_server_here_is_not_written_down(state: State, leftovers: Leftovers) -> None:
    leftovers.add([("comfy-cloud", "p1"), ("comfyui-1", "../../p2"), ("comfyui-1", "")])
    assert state.unfinished_runs() == []


async def test_a_server_that_is_gone_from_the_settings_is_not_waited_for(state: State, leftovers: Leftovers) -> None:
    state.record_unfinished("comfyui-2", "p1")
    leftovers.recall()
    assert state.unfinished_runs() == []


async def test_a_server_that_was_taken_away_meanwhile_is_not_waited_for(
    sim: Sim, state: State, servers: Servers, leftovers: Leftovers
) -> None:
    prompt_id = await failed_run(sim, **{MARK: "1-abc"})
    await sim.stop()
    leftovers.add([("comfyui-1", prompt_id)])
    await servers.remove("comfyui-1")
    await until_forgotten(state)


async def test_a_server_that_is_away_is_waited_for_by_the_next_process(
    sim: Sim, state: State, leftovers: Leftovers
) -> None:
    prompt_id = await failed_run(sim, **{MARK: "1-abc"})
    await sim.stop()
    leftovers.add([("comfyui-1", prompt_id)])
    await leftovers.close()
    assert state.unfinished_runs() == [("comfyui-1", prompt_id)]
