"""Retention deletes old videos with their files, unused uploads and lost outputs, but nothing of a live job."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.domain.ids import upload_path
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.services.jobs.submission.requests import ItemRequest, JobRequest
from comfyrelay.services.operations.retention import GRACE_SECONDS, RetentionResult
from comfyrelay.services.outbox.applier import MAX_UPLOAD_SECONDS
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.settings import Settings
from comfyrelay.store.database import Boundary, Database
from tests.support.api import Api, Caller, open_api
from tests.support.world import GRAPH, OUTPUT, PROMPT, Crash, PostgresBackend, SqliteBackend, execute

DAY = 86400.0
# The URLs of a lease work for this long, and a started upload may take longer.
LATE_SECONDS = Settings().lease_url_ttl_seconds + MAX_UPLOAD_SECONDS
MASK = {"key": "mask", "type": "image", "placeholder": "{{MASK}}", "user_configurable": True}
CLIP = {"key": "clip", "type": "video", "placeholder": "{{INPUT}}", "is_primary_input": True}


@dataclass
class Attic:
    """A user whose videos are kept for 30 days and unused uploads for a day."""

    api: Api
    caller: Caller
    user: User
    effect_id: int

    @property
    def shard(self) -> Database:
        return self.api.engine.databases.shards["main"]

    async def file(self, name: str, mime_type: str = "video/mp4") -> str:
        path = f"tenants/{self.user.tenant_id}/uploads/{name}"
        await self.api.engine.objects.put(path, b"bytes")
        return await self.api.engine.accounts.tenancy.add_file(self.user, path=path, mime_type=mime_type, size=5)

    async def video(self, name: str = "clip.mp4") -> str:
        return await self.api.engine.accounts.tenancy.add_video(self.user, original_file_id=await self.file(name))

    async def submit(self, key: str = "k", **item: Any) -> JobRecord:
        request = JobRequest(
            tenant_id=self.user.tenant_id,
            user_id=self.user.id,
            idempotency_key=key,
            effect_id=self.effect_id,
            item=ItemRequest(**item),
        )
        return await self.api.engine.jobs.submit.submit(request)

    async def lease(self, *, upload: bool = True) -> LeasedDispatch:
        [leased] = await self.api.engine.queue.leasing.lease(LeaseRequest(worker_id="gpu-1", providers=["self_hosted"]))
        if upload:
            await self.api.engine.objects.put(self.output_of(leased), b"out")
        return leased

    def output_of(self, leased: LeasedDispatch) -> str:
        return upload_path(
            tenant_id=self.user.tenant_id,
            job_id=leased.dispatch.tenant_job_id,
            lease_token=leased.lease_token,
            extension="mp4",
        )

    async def complete(self, leased: LeasedDispatch) -> None:
        await self.api.engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT)

    async def processed(self, name: str = "clip.mp4") -> str:
        """Return a video with a result."""
        video_id = await self.video(name)
        await self.submit(name, video_id=video_id)
        await self.complete(await self.lease())
        return video_id

    async def advance(self, seconds: float) -> None:
        await self.api.clock.set(self.api.clock.now + timedelta(seconds=seconds))

    async def tidy(self) -> RetentionResult:
        """Run both passes: mark, then remove."""
        first = await self.api.engine.operations.retention.run_once()
        await self.advance(GRACE_SECONDS)
        second = await self.api.engine.operations.retention.run_once()
        return RetentionResult(
            expired=first.expired, unused=first.unused, removed=second.removed, orphans=first.orphans + second.orphans
        )

    async def status(self, video_id: str) -> str:
        found: str = (await execute(self.shard, "SELECT status FROM videos WHERE id = :id", id=video_id))[0].status
        return found

    async def objects(self) -> set[str]:
        """Return the names of the user's objects."""
        listed = self.api.engine.objects.list(f"tenants/{self.user.tenant_id}")
        return {each.path.rpartition("/")[2] async for each in listed}

    async def rows(self) -> set[str]:
        found = await execute(self.shard, "SELECT path FROM files")
        return {each.path.rpartition("/")[2] for each in found}


@pytest.fixture
async def attic(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[Attic]:
    async with open_api(backend, tmp_path, retention_days=30, unused_upload_hours=24) as api:
        await api.stop_loops()
        await api.engine.catalogue.workflows.create(
            slug="clip", graph=GRAPH, properties=[PROMPT, MASK, CLIP], output_extension="mp4"
        )
        effect = await api.engine.catalogue.effects.create(slug="clip", workflow_slug="clip", credits_cost=0)
        await api.engine.workers.fleets.create(slug="home", workflow_slugs=["clip"])
        await api.engine.workers.workers.register(worker_id="gpu-1", fleet_slug="home", max_concurrency=5)
        caller = await api.user()
        assert caller.user is not None
        yield Attic(api, caller, caller.user, effect.id)


class TestOldVideos:
    async def test_old_video_expires_with_its_rows_and_objects(self, attic: Attic) -> None:
        video_id = await attic.processed()
        await attic.advance(29 * DAY)
        assert await attic.tidy() == RetentionResult()
        await attic.advance(2 * DAY)
        assert await attic.tidy() == RetentionResult(expired=1, removed=2)
        assert (await attic.objects(), await attic.rows()) == (set(), set())
        shown = await attic.caller.get(f"/api/videos/{video_id}")
        assert shown["status"] == "expired"
        assert (shown["original_file_url"], shown["processed_file_url"]) == (None, None)

    async def test_expired_video_shows_no_file(self, attic: Attic) -> None:
        video_id = await attic.processed()
        await attic.advance(31 * DAY)
        await attic.api.engine.operations.retention.run_once()
        shown = await attic.caller.get(f"/api/videos/{video_id}")
        assert (shown["status"], shown["original_file_url"]) == ("expired", None)
        assert len(await attic.objects()) == 2

    async def test_job_of_an_expired_video_says_so(self, attic: Attic) -> None:
        deleted, kept = await attic.processed("deleted.mp4"), await attic.processed("kept.mp4")
        await attic.caller.call("DELETE", f"/api/videos/{deleted}")

        async def told(query: str = "") -> list[tuple[bool, int]]:
            found = (await attic.caller.get(f"/api/ai-jobs{query}"))["items"]
            return [(each["is_expired"], len(each["outputs"])) for each in found]

        assert await told() == [(False, 1), (False, 0)]
        assert await told("?expired=true") == []
        await attic.advance(31 * DAY)
        await attic.tidy()
        assert await attic.status(kept) == "expired"
        assert await told() == [(True, 0), (False, 0)]
        assert await told("?expired=true") == [(True, 0)]

    async def test_new_result_has_its_own_expiry(self, attic: Attic) -> None:
        video_id = await attic.processed()
        [first] = (await attic.caller.get("/api/ai-jobs"))["items"]
        await attic.advance(20 * DAY)
        again = await attic.caller.post(f"/api/ai-jobs/{first['id']}/again")
        await attic.complete(await attic.lease())
        assert again["video_id"] not in (None, video_id)
        await attic.advance(11 * DAY)
        await attic.tidy()
        assert (await attic.status(video_id), await attic.status(again["video_id"])) == ("expired", "completed")
        # the shared input stays for the other video
        assert "clip.mp4" in await attic.objects()
        await attic.advance(20 * DAY)
        await attic.tidy()
        assert await attic.status(again["video_id"]) == "expired"
        assert (await attic.objects(), await attic.rows()) == (set(), set())

    async def test_new_job_gives_it_new_time(self, attic: Attic) -> None:
        video_id = await attic.processed()
        await attic.advance(29 * DAY)
        await attic.submit("again", video_id=video_id)
        await attic.complete(await attic.lease())
        await attic.advance(2 * DAY)
        await attic.tidy()
        assert await attic.status(video_id) == "completed"

    async def test_video_that_was_never_used_expires_too(self, attic: Attic) -> None:
        video_id = await attic.video()
        await attic.advance(31 * DAY)
        await attic.tidy()
        assert await attic.status(video_id) == "expired"
        assert await attic.objects() == set()

    @pytest.mark.parametrize("state", ["queued", "processing", "paused"])
    async def test_video_of_a_live_job_is_kept(self, attic: Attic, state: str) -> None:
        video_id = await attic.video()
        job = await attic.submit(video_id=video_id)
        if state == "processing":
            await attic.lease(upload=False)
        if state == "paused":
            await attic.api.engine.queue.control.pause(job.tenant_id, job.id)
        await attic.advance(365 * DAY)
        assert await attic.tidy() == RetentionResult()
        assert await attic.objects() == {"clip.mp4"}

    async def test_video_is_kept_for_an_older_job_that_is_still_live(self, attic: Attic) -> None:
        video_id = await attic.video()
        await attic.submit("older", video_id=video_id)
        leased = await attic.lease(upload=False)
        newer = await attic.submit("newer", video_id=video_id)
        await attic.api.engine.queue.control.cancel(newer.tenant_id, newer.id)
        await attic.advance(31 * DAY)
        assert (await attic.tidy()).expired == 0
        await attic.complete(leased)
        assert await attic.objects() == {"clip.mp4"}

    async def test_file_that_a_live_job_needs_keeps_its_video(self, attic: Attic) -> None:
        """A job refers to its inputs by path in its payload; no column has them."""
        mask = await attic.file("mask.png", "image/png")
        video_id = await attic.api.engine.accounts.tenancy.add_video(attic.user, original_file_id=mask)
        await attic.submit(input_file_id=await attic.file("a.mp4"), input_payload={"mask": mask})
        await attic.advance(31 * DAY)
        assert await attic.tidy() == RetentionResult()
        assert await attic.status(video_id) == "uploaded"
        assert await attic.objects() == {"mask.png", "a.mp4"}

    async def test_file_that_another_video_shows_is_kept(self, attic: Attic) -> None:
        file_id = await attic.file("both.mp4")
        old = await attic.api.engine.accounts.tenancy.add_video(attic.user, original_file_id=file_id)
        await attic.advance(20 * DAY)
        young = await attic.api.engine.accounts.tenancy.add_video(attic.user, original_file_id=file_id)
        await attic.advance(11 * DAY)
        await attic.tidy()
        assert (await attic.status(old), await attic.status(young)) == ("expired", "uploaded")
        assert await attic.objects() == {"both.mp4"}
        await attic.advance(20 * DAY)
        await attic.tidy()
        assert await attic.objects() == await attic.rows() == set()

    @pytest.mark.parametrize("used_at", ["NULL", "relay_now(0)"])
    async def test_submission_that_was_under_way_wins(self, attic: Attic, used_at: str) -> None:
        """It found the file just before the file was marked."""
        await attic.submit(input_file_id=await attic.file("late.mp4"))
        await execute(attic.shard, f"UPDATE files SET used_at = {used_at}, removing_at = relay_now(-1)")
        leased = await attic.lease()
        if used_at != "NULL":
            await attic.complete(leased)
        await attic.advance(GRACE_SECONDS)
        assert (await attic.api.engine.operations.retention.run_once()).removed == 0
        assert "late.mp4" in await attic.objects()
        assert await execute(attic.shard, "SELECT id FROM files WHERE removing_at IS NOT NULL") == []

    async def test_without_the_setting_videos_are_kept_for_ever(
        self, backend: SqliteBackend | PostgresBackend, tmp_path: Path
    ) -> None:
        async with open_api(backend, tmp_path) as api:
            caller = await api.user()
            assert caller.user is not None
            attic = Attic(api, caller, caller.user, 0)
            await attic.video()
            await attic.advance(10_000 * DAY)
            assert await attic.tidy() == RetentionResult()

    async def test_expiry_runs_in_batches(self, attic: Attic, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("comfyrelay.services.operations.retention.BATCH_SIZE", 2)
        for number in range(5):
            await attic.video(f"{number}.mp4")
        live = await attic.video("live.mp4")
        await attic.submit(video_id=live)
        await attic.advance(31 * DAY)
        assert await attic.tidy() == RetentionResult(expired=5, removed=5)
        assert await attic.objects() == {"live.mp4"}


class TestUnusedUploads:
    async def test_upload_that_nothing_uses_is_removed(self, attic: Attic) -> None:
        await attic.file("forgotten.mp4")
        await attic.advance(23 * 3600)
        assert await attic.tidy() == RetentionResult()
        await attic.advance(2 * 3600)
        assert await attic.tidy() == RetentionResult(unused=1, removed=1)
        assert (await attic.objects(), await attic.rows()) == (set(), set())

    async def test_upload_without_bytes_is_removed(self, attic: Attic) -> None:
        await attic.api.engine.accounts.tenancy.add_file(attic.user, path="tenants/x/never.mp4", mime_type="video/mp4")
        await attic.advance(2 * DAY)
        assert await attic.tidy() == RetentionResult(unused=1, removed=1)
        assert await attic.rows() == set()

    async def test_upload_that_a_video_or_a_job_uses_is_kept(self, attic: Attic) -> None:
        await attic.video("of-a-video.mp4")
        mask = await attic.file("mask.png", "image/png")
        job = await attic.submit(input_file_id=await attic.file("input.mp4"), input_payload={"mask": mask})
        await attic.api.engine.queue.control.cancel(job.tenant_id, job.id)
        await attic.advance(2 * DAY)
        assert await attic.tidy() == RetentionResult()
        assert await attic.objects() == {"of-a-video.mp4", "mask.png", "input.mp4"}

    async def test_upload_that_is_going_cannot_be_used_any_more(self, attic: Attic) -> None:
        file_id = await attic.file("going.mp4")
        await attic.advance(2 * DAY)
        await attic.api.engine.operations.retention.run_once()
        answer = await attic.caller.call("POST", "/api/videos", {"original_file_id": file_id})
        assert answer.status_code == 422

    async def test_output_is_not_an_upload(self, attic: Attic) -> None:
        await attic.submit(input_file_id=await attic.file("a.mp4"))
        leased = await attic.lease()
        await attic.complete(leased)
        await attic.advance(2 * DAY)
        assert await attic.tidy() == RetentionResult()
        assert len(await attic.objects()) == 2


class TestLostOutputs:
    async def test_only_the_output_that_won_is_kept(self, attic: Attic) -> None:
        await attic.submit(input_file_id=await attic.file("a.mp4"))
        lost = await attic.lease()
        await attic.api.engine.queue.settle.requeue(lost.dispatch_id, lost.lease_token, reason="spot_interruption")
        won = await attic.lease()
        await attic.complete(won)
        assert (await attic.api.engine.operations.retention.run_once()).orphans == 0
        await attic.advance(LATE_SECONDS)
        assert (await attic.api.engine.operations.retention.run_once()).orphans == 1
        names = {attic.output_of(each).rpartition("/")[2] for each in (lost, won)}
        assert await attic.objects() & names == {attic.output_of(won).rpartition("/")[2]}
        assert await execute(attic.shard, "SELECT * FROM orphaned_outputs") == []

    async def test_upload_of_a_failed_job_is_removed(self, attic: Attic) -> None:
        await attic.submit(input_file_id=await attic.file("a.mp4"))
        leased = await attic.lease()
        await attic.api.engine.queue.settle.fail(leased.dispatch_id, leased.lease_token, error="it broke")
        await attic.advance(LATE_SECONDS)
        assert (await attic.api.engine.operations.retention.run_once()).orphans == 1
        assert await attic.objects() == {"a.mp4"}

    async def test_nothing_of_a_live_job_is_touched(self, attic: Attic) -> None:
        await attic.submit(input_file_id=await attic.file("a.mp4"))
        lost = await attic.lease()
        await attic.api.engine.queue.settle.requeue(lost.dispatch_id, lost.lease_token, reason="spot_interruption")
        await attic.lease()
        await attic.advance(10 * DAY)
        assert await attic.tidy() == RetentionResult()
        assert len(await attic.objects()) == 3

    async def test_upload_after_the_end_is_removed(self, attic: Attic) -> None:
        await attic.submit(input_file_id=await attic.file("a.mp4"))
        leased = await attic.lease()
        await attic.complete(leased)
        late = attic.output_of(leased).replace("upload-", "upload-late-")
        await attic.api.engine.objects.put(late, b"late")
        assert (await attic.api.engine.operations.retention.run_once()).orphans == 0
        await attic.advance(LATE_SECONDS)
        assert (await attic.api.engine.operations.retention.run_once()).orphans == 1
        assert await attic.objects() == {"a.mp4", attic.output_of(leased).rpartition("/")[2]}

    async def test_job_that_was_never_leased_is_not_looked_at(self, attic: Attic) -> None:
        job = await attic.submit(input_file_id=await attic.file("a.mp4"))
        await attic.api.engine.queue.control.cancel(job.tenant_id, job.id)
        assert await execute(attic.shard, "SELECT * FROM orphaned_outputs") == []


@pytest.mark.parametrize("boundary", Boundary)
@pytest.mark.parametrize(
    "step", [TransactionStep.RETENTION_MARK, TransactionStep.RETENTION_REMOVE, TransactionStep.REMOVE_FORGET]
)
async def test_crash_at_any_step_leaves_nothing_behind(attic: Attic, step: TransactionStep, boundary: Boundary) -> None:
    video_id = await attic.processed()
    await attic.file("unused.mp4")
    await attic.submit("failed", input_file_id=await attic.file("a.mp4"))
    leased = await attic.lease()
    await attic.api.engine.queue.settle.fail(leased.dispatch_id, leased.lease_token, error="it broke")
    await attic.advance(31 * DAY)
    died: list[str] = []

    async def die(at: str, where: Boundary) -> None:
        if (at, where) == (step, boundary) and not died:
            died.append(at)
            raise Crash

    attic.shard.crash = die
    for _ in range(3):
        try:
            await attic.tidy()
        except Crash:
            await attic.advance(GRACE_SECONDS)
    assert died
    assert await attic.status(video_id) == "expired"
    assert await attic.objects() == await attic.rows() == {"a.mp4"}
