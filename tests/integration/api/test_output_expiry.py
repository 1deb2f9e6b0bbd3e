"""Old jobs are deleted with their outputs, except starred outputs and outputs in collections."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.domain.ids import job_folder, source_path
from tests.support.api import Api, Caller, open_api
from tests.support.api_calls import complete, fail, lease, png, run, submit
from tests.support.world import PostgresBackend, SqliteBackend

pytestmark = pytest.mark.both_databases


@dataclass
class Scenario:
    """A user whose outputs are kept for a week, and a worker."""

    api: Api
    user: Caller
    worker: Caller
    effect_id: int

    async def run_job(self) -> Any:
        return await run(self.api, self.user, self.worker, self.effect_id)

    async def expire(self, *, after_days: float = 8) -> None:
        await self.api.clock.set(self.api.clock.now + timedelta(days=after_days))
        await self.api.engine.gallery.expiry.run_once()

    async def jobs(self) -> set[str]:
        return {job["id"] for job in (await self.user.get("/api/ai-jobs"))["items"]}

    async def outputs(self) -> set[str]:
        return {item["id"] for item in (await self.user.get("/api/gallery"))["items"]}

    async def objects(self, job: Any) -> list[str]:
        """Return the paths of the job's outputs in object storage."""
        assert self.user.user is not None
        listed = self.api.engine.objects.list(job_folder(self.user.user.tenant_id, job["id"]))
        return [stored.path async for stored in listed if source_path(stored.path) == stored.path]


@pytest.fixture
async def scenario(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[Scenario]:
    async with open_api(backend, tmp_path) as api:
        await api.stop_loops()
        api.engine.gallery.expiry.keep_days = 7
        user, effect_id = await api.user(tokens=100), await api.effect()
        yield Scenario(api, user, await api.worker(), effect_id)


async def test_old_job_is_deleted_with_its_outputs(scenario: Scenario) -> None:
    old = await scenario.run_job()
    assert len(await scenario.objects(old)) == 1
    await scenario.expire(after_days=6)
    new = await scenario.run_job()
    assert await scenario.jobs() == {old["id"], new["id"]}
    await scenario.expire(after_days=2)
    assert await scenario.jobs() == {new["id"]}
    assert await scenario.outputs() == {new["outputs"][0]["file_id"]}
    assert await scenario.objects(old) == []


async def test_nothing_expires_by_default(scenario: Scenario) -> None:
    job = await scenario.run_job()
    scenario.api.engine.gallery.expiry.keep_days = None
    await scenario.expire(after_days=3650)
    assert await scenario.jobs() == {job["id"]}


async def test_starred_and_collected_outputs_are_kept_with_their_jobs(scenario: Scenario) -> None:
    starred, collected, rejected = [await scenario.run_job() for _ in range(3)]
    ids = [job["outputs"][0]["file_id"] for job in (starred, collected, rejected)]
    collection = await scenario.user.post("/api/collections", {"name": "best"})
    await scenario.user.post("/api/gallery/marks", {"ids": [ids[0]], "starred": True})
    await scenario.user.post("/api/gallery/marks", {"ids": [ids[1]], "add_to": collection["id"]})
    await scenario.user.post("/api/gallery/marks", {"ids": [ids[2]], "rejected": True})
    await scenario.expire()
    assert await scenario.jobs() == {starred["id"], collected["id"]}
    assert await scenario.outputs() == {ids[0], ids[1]}
    # an output that is no longer starred expires
    await scenario.user.post("/api/gallery/marks", {"ids": [ids[0]], "starred": False})
    await scenario.expire(after_days=0)
    assert await scenario.outputs() == {ids[1]}


async def test_starred_output_is_kept_when_the_others_of_its_job_expire(scenario: Scenario) -> None:
    job = await submit(scenario.user, scenario.effect_id)
    more = [("png", png("red")), ("png", png("green"))]
    await complete(scenario.api, scenario.worker, await lease(scenario.worker), more=more)
    outputs = (await scenario.user.get(f"/api/ai-jobs/{job['id']}"))["outputs"]
    await scenario.user.post("/api/gallery/marks", {"ids": [outputs[1]["file_id"]], "starred": True})
    await scenario.expire()
    left = (await scenario.user.get(f"/api/ai-jobs/{job['id']}"))["outputs"]
    assert [output["number"] for output in left] == [2]
    assert len(await scenario.objects(job)) == 1
    await scenario.expire(after_days=1)
    assert await scenario.jobs() == {job["id"]}


async def test_old_job_without_outputs_is_deleted(scenario: Scenario) -> None:
    failed, canceled, waiting = [await submit(scenario.user, scenario.effect_id) for _ in range(3)]
    await fail(scenario.api, scenario.worker, await lease(scenario.worker))
    await scenario.user.post(f"/api/ai-jobs/{canceled['id']}/cancel")
    await scenario.api.engine.outbox.delivery.idle()
    assert await scenario.jobs() == {failed["id"], canceled["id"], waiting["id"]}
    await scenario.expire()
    assert await scenario.jobs() == {waiting["id"]}


async def test_jobs_of_a_batch_are_kept_until_the_batch_ends(scenario: Scenario) -> None:
    body = {"effect_id": scenario.effect_id, "idempotency_key": "batch", "items": [{}, {}]}
    batch = await scenario.user.post("/api/batches", body)
    await complete(scenario.api, scenario.worker, await lease(scenario.worker))
    await scenario.expire()
    assert len(await scenario.jobs()) == 2
    await complete(scenario.api, scenario.worker, await lease(scenario.worker))
    await scenario.expire(after_days=0)
    assert len(await scenario.jobs()) == 1
    await scenario.expire()
    assert await scenario.jobs() == set()
    assert (await scenario.user.get(f"/api/batches/{batch['id']}"))["id"] == batch["id"]
