"""An engine filled with jobs."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from sqlalchemy import insert

from bench.postgres import Server
from comfyrelay.domain.records.accounts import User
from comfyrelay.services.engine import Engine
from comfyrelay.services.jobs.batches import BatchRequest
from comfyrelay.services.jobs.submission.requests import ItemRequest
from comfyrelay.settings import Settings
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.tables import files, videos
from comfyrelay.store.types import relay_now
from tests.support.api_calls import png

GRAPH = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "{{INPUT}}"}},
    "2": {"class_type": "Invert", "inputs": {"image": ["1", 0], "text": "{{PROMPT}}"}},
    "3": {"class_type": "SaveVideo", "inputs": {"video": ["2", 0]}},
}
PROPERTIES = [
    {"key": "prompt", "type": "text", "placeholder": "{{PROMPT}}", "default_value": "a cat", "user_configurable": True},
    {"key": "input", "type": "image", "placeholder": "{{INPUT}}", "required": True, "is_primary_input": True},
]
PICTURE = png("blue")
COST = 7


@dataclass
class Filled:
    engine: Engine
    tenants: int
    workers: Sequence[str]
    jobs: int = 0


@asynccontextmanager
async def postgres_urls(server: Server, name: str, shards: Sequence[str]) -> AsyncIterator[tuple[str, dict[str, str]]]:
    yield (
        await server.create_database(f"{name}_central"),
        {shard: await server.create_database(f"{name}_{shard}") for shard in shards},
    )


@asynccontextmanager
async def engine_on(
    central_url: str, shard_urls: dict[str, str], *, data_dir: Path | None = None
) -> AsyncIterator[Engine]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = Settings(
            data_dir=data_dir or Path(folder),
            database_url=central_url,
            shards=shard_urls,
            max_active_jobs_per_user=1_000_000,
            max_fleet_workers=1_000_000,
        )
        async with Engine(settings) as engine:
            await engine.databases.upgrade()
            yield engine


async def fill(engine: Engine, *, jobs: int, tenants: int, workers: int, concurrency: int) -> Filled:
    """Submit jobs of many tenants through the services, each with an input file and a video."""
    await engine.catalogue.workflows.create(slug="bench", graph=GRAPH, properties=PROPERTIES)
    effect = await engine.catalogue.effects.create(slug="bench", workflow_slug="bench", credits_cost=COST)
    await engine.workers.fleets.create(slug="bench", workflow_slugs=["bench"])
    names = [f"worker-{n}" for n in range(workers)]
    for name in names:
        await engine.workers.workers.register(worker_id=name, fleet_slug="bench", max_concurrency=concurrency)
    users = [await engine.accounts.tenancy.create_user(email=f"{n}@example.org") for n in range(tenants)]
    filled = Filled(engine=engine, tenants=tenants, workers=names)
    for user in users:
        await add_jobs(filled, user, effect.id, jobs // tenants)
    return filled


async def add_jobs(filled: Filled, user: User, effect_id: int, count: int) -> None:
    engine = filled.engine
    await engine.accounts.ledger.credit(user.tenant_id, count * COST, reference=uuid.uuid4().hex)
    video_ids = await _add_videos(engine, user, count)
    request = BatchRequest(
        tenant_id=user.tenant_id,
        user_id=user.id,
        idempotency_key=uuid.uuid4().hex,
        effect_id=effect_id,
        items=[
            ItemRequest(video_id=video_id, input_payload={"prompt": f"number {n}"})
            for n, video_id in enumerate(video_ids)
        ],
    )
    await engine.jobs.batches.submit(request)
    filled.jobs += count


async def _add_videos(engine: Engine, user: User, count: int) -> list[str]:
    ids = [uuid.uuid4().hex for _ in range(count)]
    own = {"tenant_id": user.tenant_id, "user_id": user.id, "created_at": relay_now()}
    paths = {id_: f"uploads/{id_}" for id_ in ids}
    for path in paths.values():
        await engine.objects.put(path, PICTURE)

    async def work(tx: Tx) -> None:
        for id_, path in paths.items():
            await tx.execute(insert(files).values(id=id_, disk="objects", path=path, mime_type="image/png", **own))
            await tx.execute(insert(videos).values(id=id_, original_file_id=id_, updated_at=relay_now(), **own))

    await (await engine.databases.shard_of(user.tenant_id)).run("bench", work)
    return ids


async def vacuum(urls: Sequence[str]) -> None:
    """Analyze the filled tables, as autovacuum does in production."""
    for url in urls:
        connection = await asyncpg.connect(url)
        await connection.execute("VACUUM ANALYZE")
        await connection.close()


async def count_rows(url: str, queries: dict[str, str]) -> dict[str, int]:
    connection = await asyncpg.connect(url)
    try:
        return {name: int(await connection.fetchval(query)) for name, query in queries.items()}
    finally:
        await connection.close()
