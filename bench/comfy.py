"""Overhead of the client and the pool: a hash, a conversion, a job through a pool, a long queue over many servers."""

import asyncio
import gc
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
from websockets.asyncio.client import ClientConnection, connect

from bench.figure import Figure
from bench.simulators import simulators
from comfyrelay.comfyui import Graph, workflow_hash
from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.comfyui.pool import WorkflowPool

LAG_EVERY_SECONDS = 0.005


def small_graph(number: int) -> Graph:
    """Return the graph of a small image, different for each number."""
    return {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": number}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": f"b/{uuid4()}"}},
    }


def large_graph(nodes: int) -> Graph:
    graph: Graph = {"0": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd/base.safetensors"}}}
    for number in range(1, nodes):
        inputs = {"model": [str(number - 1), 0], "seed": number, "cfg": 7.5, "text": "a lighthouse in the rain " * 8}
        graph[str(number)] = {"class_type": "KSampler", "inputs": inputs, "_meta": {"title": f"Node {number}"}}
    return graph


def hash_ms(nodes: int = 200, rounds: int = 200) -> float:
    graph = large_graph(nodes)
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        workflow_hash(graph)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def large_workflow(nodes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an editor workflow with half of its nodes in a subgraph, and its node definitions."""
    fields = {"seed": ["INT", {"default": 0, "control_after_generate": True}], "steps": ["INT", {"default": 20}]}
    more = {f"value_{number}": ["FLOAT", {"default": 1.0}] for number in range(10)}
    sampler = {"input": {"required": {"model": ["MODEL"], **fields, **more}}, "output": ["MODEL"]}
    definitions = {
        "Sampler": sampler,
        "Save": {"input": {"required": {"model": ["MODEL"]}}, "output": [], "output_node": True},
    }

    def chain(length: int, *, first: int) -> list[dict[str, Any]]:
        return [
            {
                "id": number,
                "type": "Sampler" if number > 1 else "half",
                "mode": 0,
                "inputs": [{"name": "model", "type": "MODEL", "link": number}],
                "outputs": [{"name": "MODEL", "type": "MODEL", "links": [number + 1]}],
                "widgets_values": [number, "fixed", 8, *([0.5] * 10)] if number > 1 else [],
            }
            for number in range(first, first + length)
        ]

    half = nodes // 2
    inner = [(number, number - 1, 0, number, 0) for number in range(3, half + 2)]
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
    last = (half + 2, half + 1, 0, -20, 0)
    subgraph = {
        "id": "half",
        "nodes": chain(half, first=2),
        "links": [dict(zip(names, link, strict=True)) for link in [*inner, last]],
        "inputs": [],
        "outputs": [{"name": "MODEL", "type": "MODEL", "linkIds": [last[0]]}],
    }
    outer = chain(nodes - half - 1, first=1)
    saved = {"id": nodes, "type": "Save", "mode": 0, "inputs": [{"name": "model", "type": "MODEL", "link": nodes}]}
    links = [[number, number - 1, 0, number, 0, "MODEL"] for number in range(2, len(outer) + 1)]
    workflow = {
        "nodes": [*outer, saved],
        "links": [*links, [nodes, len(outer), 0, nodes, 0, "MODEL"]],
        "definitions": {"subgraphs": [subgraph]},
        "version": 0.4,
    }
    return workflow, definitions


def convert_ms(nodes: int = 500, rounds: int = 50) -> float:
    workflow, definitions = large_workflow(nodes)
    graph = convert_workflow(workflow, definitions)
    # the subgraph node is replaced by its content
    if len(graph) != nodes - 1:
        raise ValueError(f"{len(graph)} of {nodes - 1} nodes were converted.")
    times = []
    for _ in range(rounds):
        began = time.process_time()
        convert_workflow(workflow, definitions)
        times.append(time.process_time() - began)
    return 1000 * statistics.median(times)


async def by_hand(http: httpx.AsyncClient, socket: ClientConnection, client_id: str, graph: Graph) -> bytes:
    """Run a graph with the minimal code for one trusted server: submit, wait for the end, download the file."""
    answer = await http.post("/prompt", json={"prompt": graph, "client_id": client_id})
    prompt_id = answer.json()["prompt_id"]
    while True:
        message: dict[str, Any] = json.loads(await socket.recv())
        if message["type"] == "executing" and message["data"] == {"node": None, "prompt_id": prompt_id}:
            break
    history = (await http.get(f"/history/{prompt_id}")).json()
    file = history[prompt_id]["outputs"]["3"]["images"][0]
    return (await http.get("/view", params=file)).content


async def through_pool(pool: WorkflowPool, graph: Graph) -> bytes:
    job = await pool.enqueue(graph)
    result = await job
    assert job.server is not None
    return b"".join([piece async for piece in job.server.read(result.file)])


async def _timed(call: Callable[[], Awaitable[bytes]]) -> float:
    began = time.perf_counter()
    assert await call()
    return time.perf_counter() - began


async def added_ms(jobs: int) -> tuple[float, float]:
    """Return the median times of jobs by hand and through a pool, in ms, interleaved on the same server."""
    hand: list[float] = []
    pooled: list[float] = []
    async with simulators(1) as [url], httpx.AsyncClient(base_url=url) as http, WorkflowPool([url]) as pool:
        client_id = str(uuid4())
        async with connect(f"{url.replace('http', 'ws', 1)}/ws?clientId={client_id}") as socket:
            # warm up connections, caches and code
            for number in range(-5, jobs):
                by_hand_graph, pool_graph = small_graph(2 * number + 20), small_graph(2 * number + 21)
                one = await _timed(lambda graph=by_hand_graph: by_hand(http, socket, client_id, graph))  # type: ignore[misc]
                other = await _timed(lambda graph=pool_graph: through_pool(pool, graph))  # type: ignore[misc]
                if number >= 0:
                    hand.append(one)
                    pooled.append(other)
    return 1000 * statistics.median(hand), 1000 * statistics.median(pooled)


@asynccontextmanager
async def _lags() -> AsyncIterator[list[float]]:
    """Continuously measure the event loop's lag, in ms."""
    found: list[float] = []

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_EVERY_SECONDS
            await asyncio.sleep(LAG_EVERY_SECONDS)
            found.append(1000 * (loop.time() - due))

    task = asyncio.create_task(watch())
    try:
        yield found
    finally:
        task.cancel()


async def schedule(jobs: int, servers: int) -> tuple[float, float, float]:
    """Return the jobs per second over many servers, and the median and maximum event loop lag in ms."""
    async with simulators(servers) as urls, WorkflowPool(urls) as pool:
        await pool.wait_ready()
        began = time.perf_counter()
        async with _lags() as lags:
            queued = [await pool.enqueue(small_graph(number % 1000), priority=number % 3) for number in range(jobs)]
            for job in queued:
                await job
        return jobs / (time.perf_counter() - began), statistics.median(lags), max(lags)


async def measure(scale: float) -> list[Figure]:
    # Python's garbage collector causes the longest pauses: collect little and often, and freeze older objects.
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 10, 1_000)
    hashed = hash_ms()
    converted = convert_ms()
    hand, pooled = await added_ms(int(100 * max(scale, 0.2)))
    rate, lag, worst = await schedule(int(10_000 * scale), 50)
    added = pooled - hand
    return [
        Figure("workflow hash, 200 nodes", hashed, "ms", goal="≤ 1 ms", is_met=hashed <= 1),
        Figure("conversion of an editor workflow, 500 nodes", converted, "ms", goal="≤ 50 ms", is_met=converted <= 50),
        Figure("small image, by hand", hand, "ms"),
        Figure("small image, through a pool", pooled, "ms", "by hand", pooled / hand),
        Figure("  time added by the pool", added, "ms", goal="≤ 10 ms", is_met=added <= 10),
        Figure("10,000 jobs over 50 servers", rate, "/s"),
        Figure("  event loop lag, median", lag, "ms"),
        Figure("  event loop lag, worst", worst, "ms", goal="≤ 50 ms", is_met=worst <= 50),
    ]
