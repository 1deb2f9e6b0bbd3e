"""A worker chooses a server for each job, and reports warm workflows, versions and capabilities of its servers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.hash import workflow_hash
from comfyrelay.comfyui.pool import PoolJobEvent
from comfyrelay.errors import ComfyError, Fault, NodeFailed, NotInstalled
from comfyrelay.errors import OutOfMemory as NoMemory
from comfyrelay.simulator import Fail, OutOfMemory, SimulatedGpuOptions, Simulator, Slow, SlowHttp, Stuck
from comfyrelay.simulator.gpu import GIB
from comfyrelay.worker.comfyui.capabilities import Capabilities, gather
from comfyrelay.worker.comfyui.recovery import SupervisedProcess
from comfyrelay.worker.comfyui.servers import MAX_WARM, RunHistory, Servers
from comfyrelay.worker.lease import PreviewTarget
from comfyrelay.worker.settings import WorkerSettings
from tests.support.graphs import invert, words
from tests.support.leases import make_lease
from tests.support.world import PATIENCE_SECONDS


@asynccontextmanager
async def open_servers(*urls: str, online: int = 0) -> AsyncIterator[Servers]:
    """Open the servers and wait until `online` of them are online."""
    changed = asyncio.Event()
    servers = Servers(WorkerSettings(comfyui_base_url=list(urls)), on_change=changed.set)
    await servers.open()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(servers.online("self_hosted")) < online:
                changed.clear()
                await changed.wait()
        yield servers
    finally:
        await servers.close()


async def test_addresses_of_one_gpu_share_its_memory() -> None:
    async def gpus(*names: str) -> list[str | None]:
        urls = [f"http://127.0.0.1:{port}" for port in (1, 2, 3)]
        servers = Servers(WorkerSettings(comfyui_base_url=urls, comfyui_gpus=list(names)), on_change=lambda: None)
        found = [client.gpu for client in servers.pool.stats().clients.values()]
        await servers.close()
        return found

    assert await gpus() == [None, None, None]
    assert await gpus("gpu") == ["gpu", "gpu", "gpu"]
    assert await gpus("x", "x", "y") == ["x", "x", "y"]
    with pytest.raises(ValueError, match="COMFYUI_GPUS must name one GPU, or one for each address"):
        await gpus("x", "y")


async def test_larger_gpu_gets_the_job_that_ran_out_of_memory(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        options = [SimulatedGpuOptions(folder=tmp_path / str(gib), memory_bytes=gib * GIB) for gib in (8, 24, 8)]
        simulators = [await stack.enter_async_context(Simulator(gpu=option)) for option in options]
        servers = await stack.enter_async_context(open_servers(*(simulator.url for simulator in simulators), online=3))
        for _ in range(3):
            history, lease = RunHistory(), make_lease(ran_out_bytes=8 * GIB)
            await servers.run(lease, invert(), (), history=history, on_event=lambda _: None, on_move=lambda: None)
            assert history.client_id == "comfyui-2"


def workflows(count: int) -> Iterator[Graph]:
    """Yield workflows that differ in the id of their node."""
    for number in range(count):
        yield {str(number): words()["1"]}


async def test_newest_warm_workflows_of_each_server_are_reported() -> None:
    async with Simulator() as first, Simulator() as second, open_servers(first.url, second.url, online=2) as servers:
        accepted = asyncio.Event()

        async def run(graph: Graph, on_event: Callable[[PoolJobEvent], None] = lambda _: None) -> str:
            history = RunHistory()
            await servers.run(make_lease(), graph, (), history=history, on_event=on_event, on_move=lambda: None)
            return f"{history.client_id} {workflow_hash(graph)}"

        async with asyncio.timeout(PATIENCE_SECONDS):
            stuck = first.misbehave(Stuck(class_type="ImageInvert"))
            delayed_run = asyncio.create_task(run(invert(), lambda _: accepted.set()))
            await accepted.wait()
            many = [await run(workflow) for workflow in workflows(MAX_WARM + 5)]
            stuck.end()
            alone = await delayed_run
        reported = servers.warm_hashes()
    assert {run.split()[0] for run in many} == {"comfyui-2"}
    assert alone.split()[0] == "comfyui-1"
    newest = [run.split()[1] for run in (alone, *reversed(many))]
    assert reported == newest[:MAX_WARM]


async def test_node_exception_fails_the_job_without_another_server() -> None:
    async with Simulator() as first, Simulator() as second, open_servers(first.url, second.url, online=2) as servers:
        for simulator in (first, second):
            simulator.misbehave(Fail(class_type="ImageInvert", exception_type="ValueError", message="wrong"))
        with pytest.raises(NodeFailed) as caught:
            await servers.run(
                make_lease(), invert(), (), history=RunHistory(), on_event=lambda _: None, on_move=lambda: None
            )
    assert caught.value.fault is Fault.JOB
    assert first.log.prompts_queued + second.log.prompts_queued == 1


class SimulatedProcess(SupervisedProcess):
    """The process of a simulator."""

    def __init__(self, simulator: Simulator) -> None:
        self.restarted = asyncio.Event()
        self._simulator = simulator

    async def mark_run_started(self) -> None: ...

    async def restart_out_of_memory(self) -> None:
        await self._simulator.restart()
        self.restarted.set()


class TestOutOfMemory:
    """A managed ComfyUI that unexpectedly runs out of memory is restarted."""

    colors = count()

    @pytest.fixture
    async def simulators(self) -> AsyncIterator[list[Simulator]]:
        async with Simulator() as first, Simulator() as second:
            yield [first, second]

    @asynccontextmanager
    async def managed(self, *simulators: Simulator) -> AsyncIterator[tuple[Servers, list[SimulatedProcess]]]:
        changed = asyncio.Event()
        servers = Servers(WorkerSettings(comfyui_dir=Path("ComfyUI")), on_change=changed.set)
        await servers.open()
        processes = [SimulatedProcess(simulator) for simulator in simulators]
        for number, (simulator, process) in enumerate(zip(simulators, processes, strict=True)):
            servers.add(f"comfyui-{number}", simulator.url, process=process, gpu=f"gpu-{number}")
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(servers.online("self_hosted")) < len(simulators):
                    changed.clear()
                    await changed.wait()
                yield servers, processes
        finally:
            await servers.close()

    async def run(self, servers: Servers) -> str | None:
        # ComfyUI would serve an equal graph from its cache.
        history, graph = RunHistory(), invert(next(self.colors))
        await servers.run(make_lease(), graph, (), history=history, on_event=lambda _: None, on_move=lambda: None)
        return history.client_id

    async def test_server_is_blocked_and_restarted_if_another_may_have_enough(
        self, simulators: list[Simulator]
    ) -> None:
        simulators[0].misbehave(OutOfMemory(class_type="ImageInvert"))
        async with self.managed(*simulators) as (servers, processes):
            assert [await self.run(servers) for _ in range(3)] == ["comfyui-1"] * 3
            await processes[0].restarted.wait()
            assert not processes[1].restarted.is_set()
            assert simulators[0].log.prompts_queued == 2
            [blocked, fine] = servers.pool.stats().clients.values()
            assert (len(blocked.blocked_hashes), len(fine.blocked_hashes)) == (1, 0)

    async def test_single_server_is_restarted_if_it_has_run_the_workflow_before(
        self, simulators: list[Simulator]
    ) -> None:
        async with self.managed(simulators[0]) as (servers, [process]):
            for _ in range(2):
                assert await self.run(servers) == "comfyui-0"
                failing = simulators[0].misbehave(OutOfMemory(class_type="ImageInvert"))
                with pytest.raises(NoMemory):
                    await self.run(servers)
                await process.restarted.wait()
                process.restarted.clear()
                # The restarted server has not run the workflow yet, so it is not restarted again.
                with pytest.raises(NoMemory):
                    await self.run(servers)
                assert not process.restarted.is_set()
                failing.end()

    async def test_server_blocked_by_the_control_plane_is_restarted_once_per_hour(
        self, simulators: list[Simulator], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = {"now": 0.0}
        monkeypatch.setattr("comfyrelay.worker.comfyui.servers.monotonic", lambda: clock["now"])
        async with self.managed(simulators[0]) as (servers, [process]):
            for clock["now"], is_restarted in ((0.0, True), (3599.0, False), (3600.0, True)):
                process.restarted.clear()
                servers.restart_blocked("comfyui-0")
                if is_restarted:
                    await process.restarted.wait()
                # The server runs jobs in either case.
                assert await self.run(servers) == "comfyui-0"
                assert process.restarted.is_set() is is_restarted
            servers.restart_blocked("comfyui-of-another-time")

    async def test_server_with_another_fault_is_neither_blocked_nor_restarted(
        self, simulators: list[Simulator]
    ) -> None:
        for simulator in simulators:
            simulator.misbehave(Fail(class_type="ImageInvert", exception_type="ModuleNotFoundError", message="torch"))
        async with self.managed(*simulators) as (servers, processes):
            with pytest.raises(NodeFailed):
                await self.run(servers)
            assert [process.restarted.is_set() for process in processes] == [False, False]
            assert not any(client.blocked_hashes for client in servers.pool.stats().clients.values())


class TestUnreachableServer:
    """A job does not wait for an unreachable server, even if this worker has others."""

    @pytest.fixture(autouse=True)
    def short_offline_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("comfyrelay.worker.comfyui.servers.OFFLINE_SECONDS", 1.0)

    async def test_job_failed_by_one_server_does_not_wait_for_an_unreachable_one(self) -> None:
        async with (
            Simulator() as first,
            Simulator() as second,
            open_servers(first.url, second.url, online=2) as servers,
        ):
            first.misbehave(Fail(class_type="ImageInvert", exception_type="ModuleNotFoundError", message="no torch"))
            stuck = second.misbehave(Stuck(class_type="ImageInvert"))
            accepted, moved = asyncio.Event(), asyncio.Event()

            async def run(
                on_event: Callable[[PoolJobEvent], None] = lambda _: None, on_move: Callable[[], None] = lambda: None
            ) -> None:
                await servers.run(make_lease(), invert(), (), history=RunHistory(), on_event=on_event, on_move=on_move)

            async with asyncio.timeout(PATIENCE_SECONDS):
                other = asyncio.create_task(
                    run(lambda event: accepted.set() if event.client_id == "comfyui-2" else None)
                )
                await accepted.wait()
                waiting = asyncio.create_task(run(on_move=moved.set))
                await moved.wait()
                await second.stop()
                stuck.end()
                with pytest.raises(ComfyError, match="no torch"):
                    await waiting
                await asyncio.gather(other, return_exceptions=True)

    async def test_job_with_missing_nodes_does_not_wait_for_an_unreachable_server(self) -> None:
        graph = invert()
        graph["2"]["class_type"] = "NoSuchNode"
        async with Simulator() as simulator, open_servers(simulator.url, "http://127.0.0.1:1") as servers:
            async with asyncio.timeout(PATIENCE_SECONDS):
                with pytest.raises(NotInstalled):
                    await servers.run(
                        make_lease(), graph, (), history=RunHistory(), on_event=lambda _: None, on_move=lambda: None
                    )


@asynccontextmanager
async def fake_comfyui(stats: Any, info: Any) -> AsyncIterator[str]:
    """Start a fake ComfyUI that reports these values."""

    answers = {"/system_stats": stats, "/object_info": info}

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(answers[request.path])

    app = web.Application()
    for path in answers:
        app.router.add_get(path, answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


def loader(*names: Any) -> dict[str, Any]:
    return {"input": {"required": {"ckpt_name": [list(names)]}}, "output": ["MODEL"]}


@pytest.mark.parametrize(
    "stats",
    [{}, {"system": None, "devices": None}, {"system": "?", "devices": "?"}, {"devices": ["?", 7, None]}],
)
async def test_server_with_invalid_stats_is_still_reported(stats: dict[str, Any]) -> None:
    async with fake_comfyui(stats, {"A": loader("a.safetensors")}) as url, open_servers(url) as servers:
        report = await gather(servers, {})
    assert report["comfyui"] == [{"url": url, "version": None, "gpus": []}]
    assert (report["node_types"], report["models"]) == (["A"], ["a.safetensors"])


async def test_every_gpu_of_a_server_is_reported() -> None:
    devices = [{"name": name, "type": "cuda", "vram_total": 10, "vram_free": 8, "index": 1} for name in ("a", "b")]
    async with fake_comfyui({"devices": devices}, {}) as url, open_servers(url) as servers:
        report = await gather(servers, {})
    gpus = [{"name": name, "type": "cuda", "memory_total": 10, "memory_free": 8} for name in ("a", "b")]
    assert report["comfyui"] == [{"url": url, "version": None, "gpus": gpus}]


async def test_server_reports_missing_nodes_and_models() -> None:
    both, one = {"A": loader("a.safetensors"), "B": loader("b.safetensors")}, {"A": loader("a.safetensors")}
    async with fake_comfyui({}, both) as first, fake_comfyui({}, one) as second, open_servers(first, second) as servers:
        report = await gather(servers, {})
    assert (report["node_types"], report["models"]) == (["A", "B"], ["a.safetensors", "b.safetensors"])
    missing = [server.get("missing") for server in report["comfyui"]]
    assert missing == [None, {"node_types": ["B"], "models": ["b.safetensors"]}]


async def test_invalid_names_are_skipped() -> None:
    """On Linux, a file name may contain any bytes; the control plane would refuse the whole report."""
    names = ["good.safetensors", "half \udce4.safetensors", "zero \0.safetensors", "line\n.safetensors"]
    async with fake_comfyui({}, {"A": loader(*names), "B\0": loader()}) as url, open_servers(url) as servers:
        report = await gather(servers, {})
    assert (report["node_types"], report["models"]) == (["A"], ["good.safetensors"])


async def test_configured_capabilities_do_not_hide_detected_ones() -> None:
    configured = {"room": "attic", "node_types": ["Everything"], "providers": ["cloud"]}
    async with fake_comfyui({}, {"A": loader()}) as url, open_servers(url) as servers:
        capabilities = Capabilities(servers, configured)
        assert capabilities.current == configured
        await capabilities.refresh()
    assert capabilities.current["room"] == "attic"
    assert (capabilities.current["node_types"], capabilities.current["providers"]) == (["A"], ["self_hosted"])


async def test_unreachable_server_reports_nothing() -> None:
    async with open_servers("http://127.0.0.1:1") as servers:
        assert await gather(servers, {}) == {"providers": ["self_hosted"]}


@pytest.mark.parametrize(
    ("usual", "watched", "method"),
    [(None, False, "auto"), (5.0, False, "auto"), (0.8, False, "none"), (0.8, True, "auto")],
)
async def test_short_run_requests_no_previews_unless_watched(usual: float | None, watched: bool, method: str) -> None:
    lease = make_lease()
    if watched:
        lease.preview = PreviewTarget(url="http://nowhere", headers={}, until=monotonic() + 60)
    async with Simulator() as simulator, open_servers(simulator.url, online=1) as servers:
        stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
        accepted = asyncio.Event()
        running = asyncio.create_task(
            servers.run(
                lease,
                invert(),
                (),
                history=RunHistory(),
                on_event=lambda _: accepted.set(),
                on_move=lambda: None,
                usual_seconds=usual,
            )
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            await accepted.wait()
            [prompt] = (await servers.own["comfyui-1"].prompts()).values()
            stuck.end()
            await running
    assert prompt.extra_data["preview_method"] == method


async def test_run_stopped_during_its_submission_is_recorded() -> None:
    """ComfyUI may have started the run, so its files must be found."""
    history = RunHistory()
    async with Simulator() as simulator, open_servers(simulator.url, online=1) as servers:
        simulator.misbehave(SlowHttp(seconds=0.3, path="/prompt", times=1))
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
        run = servers.run(make_lease(), invert(), (), history=history, on_event=lambda _: None, on_move=lambda: None)
        running = asyncio.create_task(run)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while simulator.log.count("POST", "/prompt") == 0:  # noqa: ASYNC110  (there is no event)
                await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.wait({running})
        [(server, prompt_id)] = history.runs
        assert server == "comfyui-1"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await servers.own[server].prompts():  # noqa: ASYNC110  (there is no event)
                await asyncio.sleep(0.01)
            assert await servers.own[server].history(prompt_id)
