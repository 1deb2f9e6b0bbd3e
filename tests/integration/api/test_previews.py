"""Live previews: sent only while the owner of the job watches, and visible only to the owner."""

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from PIL import Image

from comfyrelay.media.previews import MAX_BYTES, PREVIEWS, preview_path
from comfyrelay.services.queue import previews
from comfyrelay.services.queue.previews import WATCHED_SECONDS
from comfyrelay.storage.objects import LocalObjects
from tests.support.api import Api, Caller, problem_of
from tests.support.world import PATIENCE_SECONDS


def jpeg(colour: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), colour).save(file, "JPEG")
    return file.getvalue()


@dataclass
class Run:
    """A leased job and its user."""

    api: Api
    user: Caller
    worker: Caller
    lease: dict[str, Any]
    job_id: str

    async def look(self, by: Caller | None = None, *, known: str = "") -> httpx.Response:
        headers = {"If-None-Match": known} if known else {}
        return await (by or self.user).call("GET", f"/api/ai-jobs/{self.job_id}/preview", headers=headers)

    async def beat(self, **more: Any) -> Any:
        return await self.worker.post("/api/worker/heartbeat", {**self.lease, "preview_seconds": 0, **more})

    async def put(self, data: bytes) -> httpx.Response:
        offer = await self.beat()
        return await self.api.anonymous.http.put(offer["preview_url"], content=data, headers=offer["preview_headers"])

    async def stored(self) -> list[str]:
        await self.api.engine.queue.previews.idle()
        return [stored.path async for stored in self.api.engine.objects.list(PREVIEWS)]


@pytest.fixture
async def run(api: Api) -> Run:
    effect_id = await api.effect()
    user = await api.user(tokens=100)
    job_id = (await user.post("/api/ai-jobs", {"effect_id": effect_id, "idempotency_key": "k"}))["id"]
    worker = await api.worker()
    job = (await worker.post("/api/worker/poll", {"worker_id": "gpu-1"}))["job"]
    # the tenant database records the start a little later
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await user.get(f"/api/ai-jobs/{job_id}"))["status"] != "processing":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    lease = {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}
    return Run(api, user, worker, lease, job_id)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop cached reads."""
    monkeypatch.setattr(previews, "SHARED_SECONDS", -1.0)


@pytest.fixture
def pass_seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now, passed = previews._now, [0.0]
    monkeypatch.setattr(previews, "_now", lambda: now() + passed[0])

    def advance(seconds: float) -> None:
        passed[0] += seconds

    return advance


async def test_no_previews_are_requested_without_viewers(run: Run) -> None:
    answer = await run.beat()
    assert (answer["preview_url"], answer["preview_seconds"]) == (None, 0.0)


async def test_viewer_gets_the_newest_preview(run: Run, fresh: None) -> None:
    assert (await run.look()).status_code == 204
    for colour in ("red", "blue"):
        assert (await run.put(jpeg(colour))).is_success
        seen = await run.look()
        assert (seen.status_code, seen.headers["content-type"]) == (200, "image/jpeg")
        assert seen.content == jpeg(colour)
        assert seen.headers["x-content-type-options"] == "nosniff"
        known = await run.look(known=seen.headers["etag"])
        assert (known.status_code, known.content) == (304, b"")
        assert known.headers["etag"] == seen.headers["etag"]


async def test_view_counts_for_ten_seconds(run: Run, pass_seconds: Callable[[float], None]) -> None:
    await run.look()
    answer = await run.beat()
    assert 0 < answer["preview_seconds"] <= WATCHED_SECONDS
    pass_seconds(WATCHED_SECONDS / 2)
    await run.look()
    pass_seconds(WATCHED_SECONDS * 0.9)
    assert (await run.beat())["preview_url"] == answer["preview_url"], "the preview URL changed during the watch"
    pass_seconds(WATCHED_SECONDS)
    assert (await run.beat())["preview_url"] is None


async def test_worker_without_preview_support_gets_no_preview_url(run: Run) -> None:
    await run.look()
    answer = await run.worker.post("/api/worker/heartbeat", {**run.lease, "wait_seconds": 0.05})
    assert answer["preview_url"] is None


async def test_parked_heartbeat_is_answered_when_a_viewer_arrives(run: Run) -> None:
    waiting = asyncio.create_task(run.beat(wait_seconds=30))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not run.api.engine.queue.previews._waiting:  # noqa: ASYNC110  (there is no event)
            await asyncio.sleep(0.001)
        assert not waiting.done()
        await run.look()
        assert (await waiting)["preview_url"]


async def test_heartbeat_of_a_sending_worker_stays_parked(run: Run) -> None:
    found = run.api.engine.queue.previews
    await run.look()
    assert found.patience(run.job_id, sends_for=0) == 0.0
    assert found.patience(run.job_id, sends_for=8) == 4.0
    assert found.patience("another", sends_for=0) == float("inf")


@pytest.mark.parametrize("end", ["fail", "requeue"])
async def test_preview_is_removed_with_the_lease(run: Run, fresh: None, end: str) -> None:
    await run.look()
    await run.put(jpeg())
    assert run.user.user is not None
    assert await run.stored() == [preview_path(run.user.user.tenant_id, run.job_id)]
    await run.worker.post(f"/api/worker/{end}", run.lease | {"reason": "spot", "error_message": "It broke."})
    assert await run.stored() == []
    assert (await run.look()).status_code == 204


async def test_orphaned_preview_is_removed_by_retention(run: Run) -> None:
    await run.look()
    await run.put(jpeg())
    assert (await run.api.engine.operations.retention.run_once(grace_seconds=3600)).previews == 0
    assert (await run.api.engine.operations.retention.run_once(grace_seconds=0)).previews == 1
    assert await run.stored() == []


async def test_invalid_preview_is_not_shown(run: Run) -> None:
    await run.look()
    for data in (b"<script>alert(1)</script>", jpeg()[:3] + b"\0" * 100, jpeg() + b"\0" * MAX_BYTES, b""):
        stored = await run.put(data)
        if isinstance(run.api.engine.objects, LocalObjects):
            # S3 cannot refuse it
            problem_of(stored, 422)
            assert await run.stored() == []
        assert (await run.look()).status_code == 204


async def test_preview_upload_requires_an_image_type(run: Run) -> None:
    await run.look()
    offer = await run.beat()
    answer = await run.api.anonymous.http.put(
        offer["preview_url"], content=jpeg(), headers={**offer["preview_headers"], "Content-Type": "text/html"}
    )
    assert answer.status_code == 403
    assert await run.stored() == []


async def test_only_the_owner_can_view_or_request_previews(run: Run) -> None:
    other = await run.api.user("eve@example.com")
    problem_of(await run.look(by=other), 404)
    assert (await run.beat())["preview_url"] is None


async def test_viewers_share_one_storage_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    await run.look()
    await run.put(jpeg())
    found, read = run.api.engine.queue.previews, list[str]()
    newest = found._newest

    async def counted(tenant_id: str, job_id: str) -> Any:
        read.append(job_id)
        return await newest(tenant_id, job_id)

    monkeypatch.setattr(found, "_newest", counted)
    monkeypatch.setattr(previews, "SHARED_SECONDS", PATIENCE_SECONDS)
    found._read.clear()
    assert {(await run.look()).content for _ in range(5)} == {jpeg()}
    assert read == [run.job_id]
