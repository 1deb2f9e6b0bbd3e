"""Thousands of jobs on fifty servers must not block the event loop."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.client.uploads import Attachment, Uploaded
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.comfyui.pool import WorkflowPool
from comfyrelay.comfyui.runs.events import EventListener, Queued, Started
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from tests.support.full import full_only

MANY = pytest.mark.parametrize("many", [1_000, *full_only(10_000)])
SERVERS = 50
WORKFLOWS = 200
LIMIT_CALLS = 20_000
"""Work that grows with jobs and servers would make millions of calls. `bench` measures the time of a turn."""


class InstantServer:
    """A server that finishes at once when the gate is open, so that tests measure only the pool."""

    slots = 1
    queue_remaining: int | None = None

    def __init__(self, url: str, gate: asyncio.Event) -> None:
        self.url = url
        self._gate = gate

    async def close(self) -> None:
        return None

    async def check(self) -> None:
        return None

    async def disconnected(self) -> None:
        await asyncio.Event().wait()

    async def upload(
        self, source: Path | bytes, *, name: str | None = None, content_hash: str | None = None
    ) -> Uploaded:
        return Uploaded(name="file")

    async def run(
        self,
        graph: Graph,
        *,
        wanted: Sequence[str] = (),
        attachments: Iterable[Attachment] = (),
        timeouts: RunTimeouts | None = None,
        on_event: EventListener | None = None,
        extra_data: Mapping[str, Any] | None = None,
    ) -> RunResult:
        if on_event is not None:
            on_event(Queued(prompt_id="p"))
            on_event(Started(prompt_id="p"))
        await self._gate.wait()
        await asyncio.sleep(0)
        return RunResult(prompt_id="p")

    async def cancel(self, prompt_id: str) -> None:
        return None

    async def wait_until_stopped(self, prompt_id: str) -> None:
        return None

    async def read(self, file: OutputFile) -> AsyncIterator[bytes]:
        yield b""

    async def download(self, file: OutputFile, to: Path) -> int:
        return 0

    async def object_info(self, *, refresh: bool = False) -> dict[str, Any]:
        return {}

    async def preflight(self, graph: Graph) -> list[str]:
        return []


class Turns:
    """Count the most calls in one turn of the event loop, which does not depend on the speed of the machine."""

    def __init__(self) -> None:
        self.most = 0
        self._calls = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._tick)
        sys.setprofile(self._count)

    def stop(self) -> None:
        sys.setprofile(None)
        self._handle.cancel()

    def _count(self, frame: FrameType, event: str, arg: object) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    def _tick(self) -> None:
        self.most = max(self.most, self._calls)
        self._calls = 0
        self._handle = self._loop.call_soon(self._tick)


def graph(number: int) -> Graph:
    """Return one of many workflows."""
    nodes: Graph = {
        str(node): {"class_type": "Node", "inputs": {"from": [str(node - 1), 0], "seed": number, "text": "words"}}
        for node in range(1, 20)
    }
    return nodes | {"0": {"class_type": f"Load{number}", "inputs": {"model": "a.safetensors"}}}


@MANY
async def test_thousands_of_jobs_do_not_block_the_event_loop(many: int) -> None:
    gate = asyncio.Event()
    servers: list[ComfyServer] = [InstantServer(f"http://{number}", gate) for number in range(SERVERS)]
    graphs = [graph(number) for number in range(WORKFLOWS)]
    async with WorkflowPool(servers, keep_finished=many) as pool:
        await pool.wait_ready()
        turns = Turns()
        jobs = [await pool.enqueue(graphs[number % WORKFLOWS], priority=number % 5) for number in range(many)]
        stats = pool.stats()
        assert (stats.queued, stats.running) == (many - SERVERS, SERVERS)
        gate.set()
        for job in jobs:
            await job
        turns.stop()
        assert pool.stats().completed == many
    assert turns.most < LIMIT_CALLS


@MANY
async def test_jobs_that_exclude_a_free_server_do_not_block_the_event_loop(many: int) -> None:
    """This is the worst case for the scheduler: a bucket for each job, and a free server that no job may use."""
    gate = asyncio.Event()
    servers: list[ComfyServer] = [InstantServer(f"http://{number}", gate) for number in range(SERVERS)]
    async with WorkflowPool(servers, keep_finished=many) as pool:
        await pool.wait_ready()
        small: Graph = {"1": {"class_type": "Node", "inputs": {}}}
        turns = Turns()
        jobs = [
            await pool.enqueue(small, exclude_clients=["http://0", f"http://other-{number}"]) for number in range(many)
        ]
        gate.set()
        for job in jobs:
            await job
        turns.stop()
        stats = pool.stats()
        assert (stats.completed, stats.clients["http://0"].completed) == (many, 0)
    assert turns.most < LIMIT_CALLS
