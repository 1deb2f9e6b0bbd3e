"""The APIs of ComfyUI's clients: the Comfy API compared with ComfyRelay's own, and 500 open WebSockets."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import aiohttp
import orjson
import psutil

from bench import comfy
from bench.figure import Figure
from bench.http import FIRST_PORT, Caller, Site, site
from bench.postgres import Server
from tests.support.api_calls import png

JOBS, EVENT_JOBS, SOCKETS, USERS = 200, 100, 500, 10
MAX_OVERHEAD = 1.1
COMFYUI_PORT = FIRST_PORT + 100
CLIENT_ID = "bench"
PICTURE = png("blue")
Submit = Callable[[int], Awaitable[str]]


GRAPH = comfy.small_graph(0)


def small_graph(number: int) -> dict[str, Any]:
    """Return a graph that differs only in a value, like the graphs of a client."""
    return {**GRAPH, "1": {**GRAPH["1"], "inputs": {**GRAPH["1"]["inputs"], "color": number}}}


class Bench:
    """A user, and a worker that completes each job at once."""

    def __init__(self, here: Site, session: aiohttp.ClientSession, worker: tuple[str, str]) -> None:
        self._here = here
        self._session = session
        self._name, token = worker
        self._worker = Caller(session, here.urls[0], token)
        self._user = Caller(session, here.urls[0], here.token)
        self.headers = {"Authorization": f"Bearer {here.token}"}
        self._slug = ""

    async def add_workflow(self) -> None:
        added = await self._user.post("/api/workflows", {"graph": small_graph(0), "name": "bench"})
        self._slug = added["slug"]

    async def submit_own(self, number: int) -> str:
        """Submit a job with the workflow that was added before, and a value."""
        body = {
            "workflow_slug": self._slug,
            "idempotency_key": str(uuid4()),
            "input_payload": {"empty_image_color": number},
        }
        return str((await self._user.post("/api/ai-jobs", body))["id"])

    async def submit_graph(self, number: int) -> str:
        """Submit a job with the whole graph."""
        return str((await self._call("POST", "/api/v2/jobs", {"workflow": small_graph(number)}))["id"])

    async def read_own(self, job_id: str) -> None:
        job = (await self._call("GET", f"/api/ai-jobs/{job_id}"))["data"]
        assert job["status"] == "completed", job

    async def read_v2(self, job_id: str) -> None:
        job = await self._call("GET", f"/api/v2/jobs/{job_id}")
        assert job["status"] == "succeeded", job

    async def work(self) -> None:
        """Lease a job, upload its output and complete it."""
        job = (await self._worker.post("/api/worker/poll", {"worker_id": self._name, "wait_seconds": 30}))["job"]
        async with self._session.put(job["output_url"], data=PICTURE, headers=job["output_headers"]) as answer:
            answer.raise_for_status()
        output = {"size": len(PICTURE), "mime_type": "image/png"}
        lease = {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}
        await self._worker.post("/api/worker/complete", {**lease, "output": output})

    async def event_ms(self, listener: "Listener", number: int) -> float:
        """Return the time from the completion of a prompt until its client has the last event."""
        body = {"prompt": small_graph(number), "client_id": CLIENT_ID}
        async with self._session.post(f"{_comfyui_url('http')}/prompt", json=body, headers=self.headers) as answer:
            answer.raise_for_status()
            prompt_id = (await answer.json())["prompt_id"]
        await self.work()
        completed = time.perf_counter()
        # An event may be faster than the answer.
        return max(0.0, 1000 * (await listener.until_done(prompt_id) - completed))

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        url = f"{self._here.urls[0]}{path}"
        async with self._session.request(method, url, json=body, headers=self.headers) as answer:
            if answer.status >= 400:
                raise RuntimeError(f"{path}: {answer.status} {await answer.text()}")
            return await answer.json()


async def measure(server: Server, scale: float) -> list[Figure]:
    settings = {
        "COMFYUI_API_PORT": str(COMFYUI_PORT),
        "DEFAULT_FLEET": "bench",
        "OWN_WORKFLOWS": "everyone",
        "RATE_LIMIT_PER_MINUTE": "1000000",
        "MAX_CONNECTIONS_PER_CALLER": "1000",
    }
    connector = aiohttp.TCPConnector(limit=0)
    async with site(server, "clients", 1, **settings) as here, aiohttp.ClientSession(connector=connector) as session:
        bench = Bench(here, session, (await here.workers(1))[0])
        await bench.add_workflow()
        return [
            *await _overhead(bench, max(5, int(JOBS * scale))),
            *await _sockets(here, session, bench, max(5, int(EVENT_JOBS * scale))),
        ]


async def _overhead(bench: Bench, jobs: int) -> list[Figure]:
    """Submit, run and read jobs through both APIs in turn. Skip the first tenth, which runs with cold caches."""
    submits: dict[str, list[float]] = {"own": [], "v2": []}
    totals: dict[str, list[float]] = {"own": [], "v2": []}
    calls = {"own": (bench.submit_own, bench.read_own), "v2": (bench.submit_graph, bench.read_v2)}
    for number in range(jobs):
        for name, (submit, read) in calls.items():
            began = time.perf_counter()
            job_id = await submit(number)
            submits[name].append(1000 * (time.perf_counter() - began))
            await bench.work()
            await _until_read(read, job_id)
            totals[name].append(1000 * (time.perf_counter() - began))
    cold = jobs // 10
    own_submit, v2_submit = (statistics.median(submits[name][cold:]) for name in ("own", "v2"))
    own, v2 = (statistics.median(totals[name][cold:]) for name in ("own", "v2"))
    ratio = v2 / own
    return [
        Figure("submit a job, own API, p50", own_submit, "ms"),
        Figure("submit a graph, Comfy API, p50", v2_submit, "ms", "own API", v2_submit / own_submit),
        Figure("submit, run and read a job, own API, p50", own, "ms"),
        Figure(
            "submit, run and read a job, Comfy API, p50", v2, "ms", "own API", ratio, "≤ 1.1 ×", ratio <= MAX_OVERHEAD
        ),
    ]


async def _until_read(read: Callable[[str], Awaitable[None]], job_id: str) -> None:
    """Read a job until it has ended, because its result is written after the answer to the worker."""
    async with asyncio.timeout(30):
        while True:
            try:
                await read(job_id)
            except AssertionError:
                await asyncio.sleep(0.002)
            else:
                return


async def _sockets(here: Site, session: aiohttp.ClientSession, bench: Bench, jobs: int) -> list[Figure]:
    """Measure events with one socket and with 500 sockets, in turn."""
    process = psutil.Process(here.pids[0])
    # The user of the events has a tenth of the sockets.
    others = [bench.headers, *[await _headers(here, number) for number in range(1, USERS)]]
    times: dict[str, list[float]] = {"one": [], "many": []}
    memory: list[float] = []
    async with AsyncExitStack() as always:
        listening = await always.enter_async_context(_listening(session, bench.headers, CLIENT_ID))
        rounds = 5
        for turn in range(rounds):
            for number in range(jobs // rounds):
                times["one"].append(await bench.event_ms(listening, 10**6 + turn * jobs + number))
            before = process.memory_info().rss
            async with AsyncExitStack() as stack:
                idle = [
                    await stack.enter_async_context(_listening(session, others[number % USERS], f"idle-{number}"))
                    for number in range(SOCKETS - 1)
                ]
                memory.append((process.memory_info().rss - before) / SOCKETS / 1024)
                for number in range(jobs // rounds):
                    times["many"].append(await bench.event_ms(listening, 2 * 10**6 + turn * jobs + number))
                lost = sum(listener.socket.closed for listener in idle)
                if lost:
                    raise RuntimeError(f"{lost} of {SOCKETS} WebSockets were closed.")
    one, many = (statistics.median(times[name]) for name in ("one", "many"))
    return [
        Figure("last event of a prompt, 1 open WebSocket, p50", one, "ms"),
        Figure(f"last event of a prompt, {SOCKETS} open WebSockets, p50", many, "ms", "1 WebSocket", many / one),
        Figure(
            f"last event of a prompt, {SOCKETS} open WebSockets, p95", sorted(times["many"])[int(0.95 * jobs)], "ms"
        ),
        # The first turn allocates; later ones reuse its memory.
        Figure("memory of a server per open WebSocket", memory[0], "KiB"),
    ]


async def _headers(here: Site, number: int) -> dict[str, str]:
    user = await here.engine.accounts.tenancy.create_user(email=f"socket{number}@example.org")
    return {"Authorization": f"Bearer {(await here.engine.accounts.sign_in.issue(user, name='bench')).secret}"}


class Listener:
    """An open WebSocket. It is read continuously, because a client that does not answer pings is disconnected."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self._ended: asyncio.Queue[tuple[str, float]] = asyncio.Queue()

    async def read(self) -> None:
        async for message in self.socket:
            if message.type == aiohttp.WSMsgType.TEXT:
                event = orjson.loads(message.data)
                if event["type"] == "executing" and event["data"]["node"] is None:
                    self._ended.put_nowait((event["data"]["prompt_id"], time.perf_counter()))

    async def until_done(self, prompt_id: str) -> float:
        """Return when the last event of a prompt arrived."""
        async with asyncio.timeout(30):
            while True:
                ended, at = await self._ended.get()
                if ended == prompt_id:
                    return at


@asynccontextmanager
async def _listening(
    session: aiohttp.ClientSession, headers: dict[str, str], client_id: str
) -> AsyncIterator[Listener]:
    async with session.ws_connect(f"{_comfyui_url('ws')}/ws?clientId={client_id}", headers=headers) as socket:
        # The first event shows that the connection is open.
        await socket.receive()
        listener = Listener(socket)
        reading = asyncio.create_task(listener.read())
        try:
            yield listener
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


def _comfyui_url(scheme: str) -> str:
    return f"{scheme}://127.0.0.1:{COMFYUI_PORT}"
