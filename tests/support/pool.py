"""Graphs, tickets and servers for pool tests."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.pool import Bucket, EventStream, MemberTimings, PoolEvent, Ticket, WorkflowPool
from comfyrelay.comfyui.pool.members import Member
from comfyrelay.simulator import Simulator

E = TypeVar("E", bound=PoolEvent)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
# Retry unreachable servers at short intervals.
QUICK = MemberTimings(reconnect_grace_seconds=0.01, first_backoff_seconds=0.02, last_backoff_seconds=0.1)


def invert(color: int = 7) -> Graph:
    """Return a graph; another colour gives another result of the same workflow."""
    return {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": color}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "pool"}},
    }


def plain(color: int = 7) -> Graph:
    """Return another workflow, without the node that tests make fail."""
    graph = invert(color)
    del graph["2"]
    graph["3"]["inputs"]["images"] = ["1", 0]
    return graph


def ticket(number: int, *, workflow: str = "w", priority: int = 0, bucket: Bucket | None = None, **more: Any) -> Ticket:
    return Ticket(
        id=f"job-{number}",
        sequence=number,
        bucket=bucket or Bucket(workflow),
        graph=b'{"1": {"class_type": "A", "inputs": {}}}',
        created_at=NOW,
        priority=priority,
        **more,
    )


def member(client_id: str, *, server: Any = None, gpu: str | None = None, comfyui: Any = None) -> Member:
    """Return a pool server that is not watched."""
    return Member(
        client_id,
        server,
        is_owned=False,
        timings=QUICK,
        on_change=lambda _member, _reason: None,
        gpu=gpu,
        comfyui=comfyui,
    )


def anywhere(_bucket: Bucket) -> bool:
    return True


async def until(stream: EventStream[Any], kind: type[E], matches: Callable[[E], bool] = lambda _: True) -> E:
    """Read a stream up to the first event of this kind."""
    async for event in stream:
        if isinstance(event, kind) and matches(event):
            return event
    raise AssertionError(f"The stream ended without {kind.__name__}.")


@asynccontextmanager
async def ready_pool(*simulators: Simulator, **options: Any) -> AsyncIterator[WorkflowPool]:
    """Open a pool and wait until its servers, named a, b, c…, are online."""
    named = {name: simulator.url for name, simulator in zip("abcdef", simulators, strict=False)}
    async with WorkflowPool(named, **{"timings": QUICK, **options}) as pool:
        await pool.wait_ready()
        yield pool
