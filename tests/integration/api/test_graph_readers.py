"""Graphs are read in dedicated threads, one at a time per tenant, so slow graphs delay only their own tenant."""

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.services.catalogue import graph_import, workflows
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.catalogue.reader_threads import ReaderThreads
from comfyrelay.services.forms.describe import DescribedWorkflow, describe_graph
from comfyrelay.services.jobs.submission import resolve
from comfyrelay.services.queue import graph_building
from tests.support.api import Api
from tests.support.api_calls import lease
from tests.support.world import PATIENCE_SECONDS

# more than the default thread pool has on any machine
MANY = 40


def graph(text: str) -> dict[str, Any]:
    return {
        "1": {"class_type": "SaveImage", "inputs": {"images": ["2", 0]}},
        "2": {"class_type": "X", "inputs": {"a": text}},
    }


class LongRead:
    """Work that runs until the test stops it."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.started = threading.Semaphore(0)
        self.at_once = self.most_at_once = 0
        self._counting = threading.Lock()

    def __call__(self) -> None:
        with self._counting:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self.started.release()
        assert self.released.wait(PATIENCE_SECONDS)
        with self._counting:
            self.at_once -= 1

    async def wait_until_started(self) -> None:
        # in its own thread: the default pool may be full
        started = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def wait() -> None:
            assert self.started.acquire(timeout=PATIENCE_SECONDS)
            loop.call_soon_threadsafe(started.set_result, None)

        threading.Thread(target=wait).start()
        await started


async def test_slow_reads_do_not_block_other_requests(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.effect()
    one, other = await api.user(), await api.user("bob@example.com")
    long = LongRead()

    def describe_slowly(value: object, known: Any, **options: Any) -> DescribedWorkflow:
        if "long" in str(value):
            long()
        return describe_graph(value, known, **options)

    monkeypatch.setattr(graph_import, "describe_graph", describe_slowly)
    calls = [
        asyncio.create_task(one.call("POST", "/api/workflows", {"graph": graph(f"long {n}")})) for n in range(MANY)
    ]
    try:
        await long.wait_until_started()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await other.call("POST", "/api/workflows", {"graph": graph("short")})).status_code == 201
    finally:
        long.released.set()
    answers = await asyncio.gather(*calls)
    assert Counter(answer.status_code for answer in answers) == {201: MANY}
    assert long.most_at_once == 1


async def test_cancelled_read_keeps_its_turn_until_the_thread_ends() -> None:
    readers, long = ReaderThreads(), LongRead()
    cancelled = asyncio.create_task(readers.run("a", long))
    await long.wait_until_started()
    cancelled.cancel()
    again = asyncio.create_task(readers.run("a", long))
    # a graph of another tenant is still read
    assert await readers.run("b", lambda: "done") == "done"
    assert long.most_at_once == 1
    long.released.set()
    await again
    assert long.most_at_once == 1
    assert cancelled.cancelled()


async def test_graphs_are_checked_off_the_event_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    on_loop: dict[str, set[bool]] = {}

    def record(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def recorded(*args: Any, **options: Any) -> Any:
            is_loop = threading.current_thread() is threading.main_thread()
            on_loop.setdefault(name, set()).add(is_loop)
            return plain(*args, **options)

        monkeypatch.setattr(owner, name, recorded)

    for owner, name in (
        *((Graphs, "check_size"), (Graphs, "check_texts"), (GraphPolicy, "check"), (graph_import, "as_graph")),
        *((workflows, "read_properties"), (workflows, "_view"), (workflows, "_requirements")),
        *((resolve, "WorkflowHasher"), (graph_building, "replace_placeholders")),
    ):
        record(owner, name)
    user, admin = await api.user(), await api.user("admin@example.com", is_admin=True)
    await api.engine.workers.fleets.create(slug="home")
    long = graph("a\n" * 50_000)
    own = await user.post("/api/workflows", {"graph": long, "properties": [], "output_extension": "png"})
    await admin.post("/api/admin/workflows", {"slug": "w", "graph": long, "properties": []})
    await admin.call("PATCH", "/api/admin/workflows/w", {"graph": long, "properties": []})
    await admin.post("/api/admin/workflows/w/validate")
    await admin.call("PUT", "/api/admin/fleets/production/home/workflows", {"workflow_slugs": [own["slug"]]})
    worker = await api.worker(fleet="home")
    await user.post("/api/ai-jobs", {"workflow_slug": own["slug"], "idempotency_key": "k"})
    await lease(worker)
    assert [name for name, places in on_loop.items() if True in places] == []
    assert len(on_loop) == 9
