"""Time from submitting a job that needs a new machine to the provider call."""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg

from bench.engine import engine_on, postgres_urls
from bench.figure import Figure
from bench.postgres import Server, postgres_server
from comfyrelay.autoscaling.loop import scaling
from comfyrelay.autoscaling.providers.base import (
    LaunchResult,
    MachineOrder,
    ProviderFleet,
    ProviderMachine,
    ProviderMachineState,
)
from comfyrelay.domain.autoscaling.spec import InstanceType
from comfyrelay.domain.queue.states import Stage
from comfyrelay.services.engine import Engine
from comfyrelay.services.jobs.submission.requests import JobRequest

GRAPH = {"1": {"class_type": "SaveVideo", "inputs": {"text": "a cat"}}}
# A long queue of a report-only fleet waits at the same time.
QUEUED = """
INSERT INTO ai_job_dispatches (workflow_id, rank, available_at, created_at, max_attempts, stage, provider, tenant_id,
                               tenant_job_id, shard, workflow_hash)
SELECT $1, n, now(), now(), 3, 'production', 'self_hosted', 't', 'j' || n, 'main', 'h' FROM generate_series(1, $2) AS n
"""
WITHOUT_MACHINES = "UPDATE machines SET ended_at = now(), reason = 'unneeded' WHERE ended_at IS NULL"
GOAL_SECONDS = 1.0
# The default scaling policy of a fleet.
POLICY = "balanced"
MINE, OTHERS = "mine", "others"


class Provider:
    """Answers at once and records when it was called."""

    can_launch = True

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.called_at = 0.0
        self.ordered = 0

    def get(self, _name: str, /) -> Provider:
        return self

    async def observe(self, _fleet: ProviderFleet) -> Sequence[ProviderMachine]:
        return ()

    async def launch(self, _fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:
        del total
        self.called_at = time.perf_counter()
        self.ordered += len(orders)
        self.called.set()
        return LaunchResult(
            launched=[
                ProviderMachine(id=order.key, state=ProviderMachineState.PENDING, key=order.key) for order in orders
            ]
        )

    async def end(self, _fleet: ProviderFleet, _ids: Sequence[str]) -> None: ...

    async def prices(self, _fleet: ProviderFleet) -> Sequence[InstanceType]:
        return ()

    async def close(self) -> None: ...


async def measure(scale: float) -> list[Figure]:
    async with postgres_server() as server:
        return [
            *await _launches(server, samples=max(20, int(150 * scale)), queued=0),
            *await _launches(server, samples=max(20, int(50 * scale)), queued=10_000),
        ]


async def _launches(server: Server, *, samples: int, queued: int) -> list[Figure]:
    async with postgres_urls(server, f"scaling_{queued}", ["main"]) as (central, shards), AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-scaling-")))
        # one engine takes jobs and the other one scales; they communicate through the database
        engine = await stack.enter_async_context(engine_on(central, shards, data_dir=folder))
        scaler = await stack.enter_async_context(engine_on(central, shards, data_dir=folder))
        for instance in (engine, scaler):
            await instance.notify_channel.start()
        await _set_up(engine, central, queued)
        user = await engine.accounts.tenancy.create_user(email="bench@example.org")
        provider = Provider()
        await stack.enter_async_context(scaling(scaler, provider))
        connection = await asyncpg.connect(central)
        seconds = []
        for number in range(samples + 1):
            effect_id = await _next_effect(engine, number)
            # at a random time between two ticks
            await asyncio.sleep(random.uniform(0.2, 1.2))
            await connection.execute(WITHOUT_MACHINES)
            provider.called.clear()
            began = time.perf_counter()
            request = JobRequest(
                tenant_id=user.tenant_id, user_id=user.id, idempotency_key=f"{number}", effect_id=effect_id
            )
            job = await engine.jobs.submit.submit(request)
            await asyncio.wait_for(provider.called.wait(), 30)
            seconds.append(provider.called_at - began)
            await engine.queue.control.cancel(job.tenant_id, job.id)
        if provider.ordered != samples + 1:
            raise RuntimeError(f"{samples + 1} jobs have launched {provider.ordered} machines; expected one per job.")
        await connection.close()
    # skip the first sample: it includes the leader election
    ordered = sorted(seconds[1:])
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    name = f"submit until the provider is called, {POLICY}, {queued:,} queued"
    return [
        Figure(f"{name}, p50", 1000 * statistics.median(ordered), "ms"),
        Figure(f"{name}, p99", 1000 * p99, "ms", goal=f"≤ {GOAL_SECONDS:g} s", is_met=p99 <= GOAL_SECONDS),
    ]


async def _set_up(engine: Engine, central: str, queued: int) -> None:
    """Create a fleet that launches machines, and a report-only fleet with a queue."""
    await engine.catalogue.workflows.create(slug=OTHERS, graph=GRAPH)
    for slug in (MINE, OTHERS):
        scaling = {"policy": POLICY, "launches_per_minute": 100_000, "is_dry_run": slug == OTHERS}
        await engine.workers.fleets.create(
            slug=slug, stage=Stage.PRODUCTION, machines={"provider": "command"}, autoscaling=scaling
        )
    await engine.workers.fleets.map_workflows(stage=Stage.PRODUCTION, slug=OTHERS, workflow_slugs=[OTHERS])
    if queued:
        connection = await asyncpg.connect(central)
        workflow = await connection.fetchval("SELECT id FROM workflows WHERE slug = $1", OTHERS)
        await connection.execute(QUEUED, workflow, queued)
        await connection.close()


async def _next_effect(engine: Engine, number: int) -> int:
    """Create an effect with a new workflow: with a recent one, the next job would launch no machine."""
    slug = f"{MINE}-{number}"
    await engine.catalogue.workflows.create(slug=slug, graph=GRAPH)
    await engine.workers.fleets.map_workflows(stage=Stage.PRODUCTION, slug=MINE, workflow_slugs=[slug])
    return (await engine.catalogue.effects.create(slug=slug, workflow_slug=slug, credits_cost=0)).id
