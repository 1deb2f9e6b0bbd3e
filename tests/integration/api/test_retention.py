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
from tests.support.media_samples import image, video
from tests.support.world import GRAPH, OUTPUT, PROMPT, Crash, PostgresBackend, SqliteBackend, execute

DAY = 86400.0
# The URLs of a lease work for their TTL, and an upload that has started may take longer.
LATE_SECONDS = Settings().lease_url_ttl_seconds + MAX_UPLOAD_SECONDS
MASK = {"key": "mask", "type": "image", "placeholder": "{{MASK}}", "user_configurable": True}
CLIP = {"key": "clip", "type": "video", "placeholder": "{{INPUT}}", "is_primary_input": True}

# Inputs of effects are measured.
CLIP_BYTES = video(frames=1)
MASK_BYTES = image("PNG")


@dataclass
class RetentionScenario:
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
        content = MASK_BYTES if mime_type == "image/png" else CLIP_BYTES
        await self.api.engine.objects.put(path, content)
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

    async def delete(self, job: JobRecord) -> None:
        """Delete a waiting job."""
        await self.api.engine.queue.control.cancel(job.tenant_id, job.id)
        await self.api.engine.jobs.removal.remove_job(job.tenant_id, job.id)

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
        """Process a video; return its id."""
        video_id = await self.video(name)
        await self.submit(name, video_id=video_id)
        await self.complete(await self.lease())
        return video_id

    async def advance(self, seconds: float) -> None:
        await self.api.clock.set(self.api.clock.now + timedelta(seconds=seconds))

    async def run_retention(self) -> RetentionResult:
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
        return {stored.path.rpartition("/")[2] async for stored in listed}

    async def rows(self) -> set[str]:
        found = await execute(self.shard, "SELECT path FROM files")
        return {row.path.rpartition("/")[2] for row in found}


@pytest.fixture
async def scenario(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[RetentionScenario]:
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
        yield RetentionScenario(api, caller, caller.user, effect.id)


class TestOldVideos:
    async def test_old_video_expires_with_its_rows_and_objects(self, scenario: RetentionScenario) -> None:
        video_id = await scenario.processed()
        await scenario.advance(29 * DAY)
        assert await scenario.run_retention() == RetentionResult()
        await scenario.advance(2 * DAY)
        assert (await scenario.api.engine.operations.retention.run_once()).expired == 1
        shown = await scenario.caller.get(f"/api/videos/{video_id}")
        # the first pass hides the files, and the second removes them
        assert (shown["status"], shown["original_file_url"], len(await scenario.objects())) == ("expired", None, 2)
        await scenario.advance(GRACE_SECONDS)
        assert (await scenario.api.engine.operations.retention.run_once()).removed == 2
        assert (await scenario.objects(), await scenario.rows()) == (set(), set())
        shown = await scenario.caller.get(f"/api/videos/{video_id}")
        assert shown["status"] == "expired"
        assert (shown["original_file_url"], shown["processed_file_url"]) == (None, None)

    async def test_job_of_an_expired_video_is_marked_expired(self, scenario: RetentionScenario) -> None:
        deleted, remaining = await scenario.processed("deleted.mp4"), await scenario.processed("kept.mp4")
        await scenario.caller.call("DELETE", f"/api/videos/{deleted}")

        async def list_jobs(query: str = "") -> list[tuple[bool, int]]:
            found = (await scenario.caller.get(f"/api/ai-jobs{query}"))["items"]
            return [(job["is_expired"], len(job["outputs"])) for job in found]

        assert await list_jobs() == [(False, 1), (False, 0)]
        assert await list_jobs("?expired=true") == []
        await scenario.advance(31 * DAY)
        await scenario.run_retention()
        assert await scenario.status(remaining) == "expired"
        assert await list_jobs() == [(True, 0), (False, 0)]
        assert await list_jobs("?expired=true") == [(True, 0)]

    async def test_new_result_has_its_own_expiry(self, scenario: RetentionScenario) -> None:
        video_id = await scenario.processed()
        [first] = (await scenario.caller.get("/api/ai-jobs"))["items"]
        await scenario.advance(20 * DAY)
        again = await scenario.caller.post(f"/api/ai-jobs/{first['id']}/again")
        await scenario.complete(await scenario.lease())
        assert again["video_id"] not in (None, video_id)
        await scenario.advance(11 * DAY)
        await scenario.run_retention()
        assert (await scenario.status(video_id), await scenario.status(again["video_id"])) == ("expired", "completed")
        # the shared input is kept for the other video
        assert "clip.mp4" in await scenario.objects()
        await scenario.advance(20 * DAY)
        await scenario.run_retention()
        assert await scenario.status(again["video_id"]) == "expired"
        assert (await scenario.objects(), await scenario.rows()) == (set(), set())

    async def test_new_job_extends_the_expiry(self, scenario: RetentionScenario) -> None:
        video_id = await scenario.processed()
        await scenario.advance(29 * DAY)
        await scenario.submit("again", video_id=video_id)
        await scenario.complete(await scenario.lease())
        await scenario.advance(2 * DAY)
        await scenario.run_retention()
        assert await scenario.status(video_id) == "completed"

    async def test_unused_video_expires(self, scenario: RetentionScenario) -> None:
        video_id = await scenario.video()
        await scenario.advance(31 * DAY)
        await scenario.run_retention()
        assert await scenario.status(video_id) == "expired"
        assert await scenario.objects() == set()

    async def test_video_of_a_live_job_is_kept(self, scenario: RetentionScenario) -> None:
        names = ("processing.mp4", "paused.mp4", "queued.mp4")
        jobs = [await scenario.submit(name, video_id=await scenario.video(name)) for name in names]
        await scenario.lease(upload=False)
        await scenario.api.engine.queue.control.pause(jobs[1].tenant_id, jobs[1].id)
        await scenario.advance(365 * DAY)
        assert await scenario.run_retention() == RetentionResult()
        assert await scenario.objects() == set(names)

    async def test_video_of_an_older_live_job_is_kept(self, scenario: RetentionScenario) -> None:
        video_id = await scenario.video()
        await scenario.submit("older", video_id=video_id)
        leased = await scenario.lease(upload=False)
        newer = await scenario.submit("newer", video_id=video_id)
        await scenario.api.engine.queue.control.cancel(newer.tenant_id, newer.id)
        await scenario.advance(31 * DAY)
        assert (await scenario.run_retention()).expired == 0
        await scenario.complete(leased)
        assert await scenario.objects() == {"clip.mp4"}

    async def test_video_of_a_live_jobs_input_is_kept(self, scenario: RetentionScenario) -> None:
        """A job refers to its inputs by path in its payload; no column has them."""
        mask = await scenario.file("mask.png", "image/png")
        video_id = await scenario.api.engine.accounts.tenancy.add_video(scenario.user, original_file_id=mask)
        await scenario.submit(input_file_id=await scenario.file("a.mp4"), input_payload={"mask": mask})
        await scenario.advance(31 * DAY)
        assert await scenario.run_retention() == RetentionResult()
        assert await scenario.status(video_id) == "uploaded"
        assert await scenario.objects() == {"mask.png", "a.mp4"}

    async def test_file_shared_with_another_video_is_kept(self, scenario: RetentionScenario) -> None:
        file_id = await scenario.file("both.mp4")
        old = await scenario.api.engine.accounts.tenancy.add_video(scenario.user, original_file_id=file_id)
        await scenario.advance(20 * DAY)
        young = await scenario.api.engine.accounts.tenancy.add_video(scenario.user, original_file_id=file_id)
        await scenario.advance(11 * DAY)
        await scenario.run_retention()
        assert (await scenario.status(old), await scenario.status(young)) == ("expired", "uploaded")
        assert await scenario.objects() == {"both.mp4"}
        await scenario.advance(20 * DAY)
        await scenario.run_retention()
        assert await scenario.objects() == await scenario.rows() == set()

    @pytest.mark.parametrize("used_at", ["NULL", "relay_now(0)"])
    async def test_concurrent_submission_keeps_its_file(self, scenario: RetentionScenario, used_at: str) -> None:
        """The submission found the file just before retention marked it."""
        await scenario.submit(input_file_id=await scenario.file("late.mp4"))
        await execute(scenario.shard, f"UPDATE files SET used_at = {used_at}, removing_at = relay_now(-1)")
        leased = await scenario.lease()
        if used_at != "NULL":
            await scenario.complete(leased)
        await scenario.advance(GRACE_SECONDS)
        assert (await scenario.api.engine.operations.retention.run_once()).removed == 0
        assert "late.mp4" in await scenario.objects()
        assert await execute(scenario.shard, "SELECT id FROM files WHERE removing_at IS NOT NULL") == []

    async def test_videos_are_kept_without_a_retention_setting(
        self, backend: SqliteBackend | PostgresBackend, tmp_path: Path
    ) -> None:
        async with open_api(backend, tmp_path) as api:
            caller = await api.user()
            assert caller.user is not None
            scenario = RetentionScenario(api, caller, caller.user, 0)
            await scenario.video()
            await scenario.advance(10_000 * DAY)
            assert await scenario.run_retention() == RetentionResult()

    async def test_expiry_runs_in_batches(self, scenario: RetentionScenario, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("comfyrelay.services.operations.retention.BATCH_SIZE", 2)
        for number in range(5):
            await scenario.video(f"{number}.mp4")
        live = await scenario.video("live.mp4")
        await scenario.submit(video_id=live)
        await scenario.advance(31 * DAY)
        assert await scenario.run_retention() == RetentionResult(expired=5, removed=5)
        assert await scenario.objects() == {"live.mp4"}


class TestUnusedUploads:
    async def test_unused_upload_is_removed(self, scenario: RetentionScenario) -> None:
        await scenario.file("forgotten.mp4")
        await scenario.advance(23 * 3600)
        assert await scenario.run_retention() == RetentionResult()
        await scenario.advance(2 * 3600)
        assert await scenario.run_retention() == RetentionResult(unused=1, removed=1)
        assert (await scenario.objects(), await scenario.rows()) == (set(), set())

    async def test_upload_without_bytes_is_removed(self, scenario: RetentionScenario) -> None:
        await scenario.api.engine.accounts.tenancy.add_file(
            scenario.user, path="tenants/x/never.mp4", mime_type="video/mp4"
        )
        await scenario.advance(2 * DAY)
        assert await scenario.run_retention() == RetentionResult(unused=1, removed=1)
        assert await scenario.rows() == set()

    async def test_used_upload_is_kept(self, scenario: RetentionScenario) -> None:
        await scenario.video("of-a-video.mp4")
        mask = await scenario.file("mask.png", "image/png")
        job = await scenario.submit(input_file_id=await scenario.file("input.mp4"), input_payload={"mask": mask})
        await scenario.api.engine.queue.control.cancel(job.tenant_id, job.id)
        await scenario.advance(2 * DAY)
        assert await scenario.run_retention() == RetentionResult()
        assert await scenario.objects() == {"of-a-video.mp4", "mask.png", "input.mp4"}

    async def test_input_is_removed_some_time_after_its_last_job_was_deleted(self, scenario: RetentionScenario) -> None:
        mask = await scenario.file("mask.png", "image/png")
        [first, second] = [
            await scenario.submit(name, input_file_id=await scenario.file(f"{name}.mp4"), input_payload={"mask": mask})
            for name in ("first", "second")
        ]
        await scenario.advance(5 * DAY)
        await scenario.delete(first)
        await scenario.advance(23 * 3600)
        assert await scenario.run_retention() == RetentionResult()
        await scenario.advance(2 * 3600)
        # another job still uses the mask
        assert await scenario.run_retention() == RetentionResult(unused=1, removed=1)
        assert await scenario.objects() == {"mask.png", "second.mp4"}
        await scenario.delete(second)
        await scenario.advance(2 * DAY)
        assert await scenario.run_retention() == RetentionResult(unused=2, removed=2)
        assert await scenario.rows() == set()

    async def test_input_of_a_deleted_job_is_kept_for_a_new_one(self, scenario: RetentionScenario) -> None:
        file_id = await scenario.file("again.mp4")
        await scenario.delete(await scenario.submit(input_file_id=file_id))
        await scenario.advance(20 * 3600)
        await scenario.submit("again", input_file_id=file_id)
        await scenario.advance(5 * DAY)
        assert await scenario.run_retention() == RetentionResult()
        assert await scenario.objects() == {"again.mp4"}

    async def test_output_that_was_the_input_of_a_deleted_job_is_kept(self, scenario: RetentionScenario) -> None:
        job = await scenario.submit(input_file_id=await scenario.file("a.mp4"))
        leased = await scenario.lease(upload=False)
        await scenario.api.engine.objects.put(scenario.output_of(leased), CLIP_BYTES)
        await scenario.complete(leased)
        [output] = await execute(scenario.shard, "SELECT id FROM outputs WHERE job_id = :id", id=job.id)
        await scenario.delete(await scenario.submit("next", input_file_id=output.id))
        await scenario.advance(5 * DAY)
        assert await scenario.run_retention() == RetentionResult()
        assert len(await scenario.objects()) == 2

    async def test_upload_being_removed_cannot_be_used(self, scenario: RetentionScenario) -> None:
        file_id = await scenario.file("going.mp4")
        await scenario.advance(2 * DAY)
        await scenario.api.engine.operations.retention.run_once()
        answer = await scenario.caller.call("POST", "/api/videos", {"original_file_id": file_id})
        assert answer.status_code == 422

    async def test_output_is_not_an_upload(self, scenario: RetentionScenario) -> None:
        await scenario.submit(input_file_id=await scenario.file("a.mp4"))
        leased = await scenario.lease()
        await scenario.complete(leased)
        await scenario.advance(2 * DAY)
        assert await scenario.run_retention() == RetentionResult()
        assert len(await scenario.objects()) == 2


class TestLostOutputs:
    async def test_output_of_a_lost_lease_is_removed(self, scenario: RetentionScenario) -> None:
        await scenario.submit(input_file_id=await scenario.file("a.mp4"))
        lost = await scenario.lease()
        await scenario.api.engine.queue.settle.requeue(lost.dispatch_id, lost.lease_token, reason="spot_interruption")
        won = await scenario.lease()
        await scenario.complete(won)
        assert (await scenario.api.engine.operations.retention.run_once()).orphans == 0
        await scenario.advance(LATE_SECONDS)
        assert (await scenario.api.engine.operations.retention.run_once()).orphans == 1
        names = {scenario.output_of(leased).rpartition("/")[2] for leased in (lost, won)}
        assert await scenario.objects() & names == {scenario.output_of(won).rpartition("/")[2]}
        assert await execute(scenario.shard, "SELECT * FROM orphaned_outputs") == []

    async def test_upload_of_a_failed_job_is_removed(self, scenario: RetentionScenario) -> None:
        await scenario.submit(input_file_id=await scenario.file("a.mp4"))
        leased = await scenario.lease()
        await scenario.api.engine.queue.settle.fail(leased.dispatch_id, leased.lease_token, error="it broke")
        await scenario.advance(LATE_SECONDS)
        assert (await scenario.api.engine.operations.retention.run_once()).orphans == 1
        assert await scenario.objects() == {"a.mp4"}

    async def test_files_of_a_live_job_are_kept(self, scenario: RetentionScenario) -> None:
        await scenario.submit(input_file_id=await scenario.file("a.mp4"))
        lost = await scenario.lease()
        await scenario.api.engine.queue.settle.requeue(lost.dispatch_id, lost.lease_token, reason="spot_interruption")
        await scenario.lease()
        await scenario.advance(10 * DAY)
        assert await scenario.run_retention() == RetentionResult()
        assert len(await scenario.objects()) == 3

    async def test_upload_after_the_end_is_removed(self, scenario: RetentionScenario) -> None:
        await scenario.submit(input_file_id=await scenario.file("a.mp4"))
        leased = await scenario.lease()
        await scenario.complete(leased)
        late = scenario.output_of(leased).replace("upload-", "upload-late-")
        await scenario.api.engine.objects.put(late, b"late")
        assert (await scenario.api.engine.operations.retention.run_once()).orphans == 0
        await scenario.advance(LATE_SECONDS)
        assert (await scenario.api.engine.operations.retention.run_once()).orphans == 1
        assert await scenario.objects() == {"a.mp4", scenario.output_of(leased).rpartition("/")[2]}

    async def test_job_without_a_lease_has_no_orphaned_outputs(self, scenario: RetentionScenario) -> None:
        job = await scenario.submit(input_file_id=await scenario.file("a.mp4"))
        await scenario.api.engine.queue.control.cancel(job.tenant_id, job.id)
        assert await execute(scenario.shard, "SELECT * FROM orphaned_outputs") == []


@pytest.mark.parametrize("boundary", Boundary)
@pytest.mark.parametrize(
    "step", [TransactionStep.RETENTION_MARK, TransactionStep.RETENTION_REMOVE, TransactionStep.REMOVE_FORGET]
)
async def test_retention_recovers_from_a_crash_at_any_step(
    scenario: RetentionScenario, step: TransactionStep, boundary: Boundary
) -> None:
    video_id = await scenario.processed()
    await scenario.file("unused.mp4")
    await scenario.submit("failed", input_file_id=await scenario.file("a.mp4"))
    leased = await scenario.lease()
    await scenario.api.engine.queue.settle.fail(leased.dispatch_id, leased.lease_token, error="it broke")
    await scenario.advance(31 * DAY)
    died: list[str] = []

    async def die(at: str, where: Boundary) -> None:
        if (at, where) == (step, boundary) and not died:
            died.append(at)
            raise Crash

    scenario.shard.crash = die
    for _ in range(3):
        try:
            await scenario.run_retention()
        except Crash:
            await scenario.advance(GRACE_SECONDS)
    assert died
    assert await scenario.status(video_id) == "expired"
    assert await scenario.objects() == await scenario.rows() == {"a.mp4"}
