"""Posters and previews are created with the output, have their own URLs, and are deleted with the file."""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from comfyrelay.domain.ids import derived_paths, source_path
from comfyrelay.errors import StorageUnavailable
from comfyrelay.media.info import Renditions
from comfyrelay.services.jobs.removal import GRACE_SECONDS
from comfyrelay.services.outbox.applier import MAX_UPLOAD_SECONDS
from comfyrelay.services.queue.settle import Report, SettledOutput, Verb
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Boundary, Database
from comfyrelay.store.tenant.library import media
from comfyrelay.store.tenant.removals import DRAW_SECONDS
from tests.support import media_samples
from tests.support.api import Api, Caller, open_api
from tests.support.api_calls import complete, lease, lease_of, png, submit, upload
from tests.support.world import GRAPH, PATIENCE_SECONDS, PROMPT, Crash, PostgresBackend, SqliteBackend, execute


@dataclass
class PosterScenario:
    """A user with an image effect, and a worker."""

    api: Api
    user: Caller
    worker: Caller
    effect_id: int
    tenant_id: str

    @property
    def shard(self) -> Database:
        return self.api.engine.databases.shards["main"]

    async def complete_job(self, data: bytes | None = None, **more: Any) -> Any:
        """Complete a job; return it as its user sees it."""
        job = await submit(self.user, self.effect_id, **more)
        await complete(self.api, self.worker, await lease(self.worker), data)
        return await self.user.get(f"/api/ai-jobs/{job['id']}")

    async def object_paths(self) -> set[str]:
        """Return the objects in the tenant storage."""
        return {stored.path async for stored in self.api.engine.objects.list("tenants")}

    async def orphans(self) -> set[str]:
        """Return posters and previews without a file."""
        object_paths = await self.object_paths()
        return {path for path in object_paths if source_path(path) != path and source_path(path) not in object_paths}

    async def run_retention(self) -> None:
        late = self.api.engine.settings.lease_url_ttl_seconds + MAX_UPLOAD_SECONDS + 1
        await self.api.clock.set(self.api.clock.now + timedelta(seconds=late))
        await self.api.engine.operations.retention.run_once()
        await self.api.engine.jobs.removal.run_once()

    async def path(self, file_id: str) -> str:
        found: str = (await execute(self.shard, "SELECT path FROM files WHERE id = :id", id=file_id))[0].path
        return found

    async def facts(self, file_id: str) -> Any:
        found = await self.api.engine.jobs.media.view_files(self.tenant_id, [file_id, "another"])
        return found[file_id]


@pytest.fixture
async def scenario(
    backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path
) -> AsyncIterator[PosterScenario]:
    async with open_api(backend, tmp_path, storage_url=storage_url, poster_seconds=PATIENCE_SECONDS) as api:
        await api.stop_loops()
        user = await api.user(tokens=1000)
        effect_id = await api.effect()
        tenants = await execute(api.engine.databases.central, "SELECT id FROM tenants")
        yield PosterScenario(api, user, await api.worker(), effect_id, tenants[0].id)


async def test_output_has_a_poster_and_a_moving_image_has_a_preview(scenario: PosterScenario) -> None:
    [still] = (await scenario.complete_job(media_samples.image("PNG", (1000, 500))))["outputs"]
    assert (still["width"], still["height"], still["seconds"], still["preview_url"]) == (1000, 500, None, None)
    answer = await scenario.user.http.get(still["poster_url"])
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "image/webp")
    assert "Content-Disposition" not in answer.headers
    assert Image.open(io.BytesIO(answer.content)).size == (480, 240)
    [moving] = (await scenario.complete_job(media_samples.image("PNG", frames=3)))["outputs"]
    answer = await scenario.user.http.get(moving["preview_url"])
    assert (answer.headers["Content-Type"], answer.content[4:8]) == ("video/mp4", b"ftyp")
    if "/files/" in moving["preview_url"]:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert answer.headers["Cache-Control"] == "private, max-age=3600"
        assert "must-revalidate" in (await scenario.user.http.get(moving["url"])).headers["Cache-Control"]
    facts = await scenario.facts(moving["file_id"])
    assert (facts.file.width, facts.poster_url, facts.preview_url) == (64, moving["poster_url"], moving["preview_url"])


async def test_poster_url_is_cached(scenario: PosterScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    [output] = (await scenario.complete_job())["outputs"]
    await scenario.api.clock.set(scenario.api.clock.now + timedelta(seconds=2))
    media, signed = scenario.api.engine.jobs.media, []
    sign = media._objects.sign_download

    async def counted(path: str, **more: Any) -> str:
        signed.append(path)
        return await sign(path, **more)

    monkeypatch.setattr(media._objects, "sign_download", counted)
    assert (await scenario.facts(output["file_id"])).poster_url == output["poster_url"]
    assert signed == []
    media._ttl_seconds = 0
    media._urls.clear()
    for _ in range(2):
        await scenario.facts(output["file_id"])
    assert len(signed) == 2


async def test_failed_poster_does_not_fail_the_job(scenario: PosterScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = scenario.api.engine.queue.posters._probes

    async def hang(*_args: Any, **_more: Any) -> Renditions:
        await asyncio.Event().wait()
        raise AssertionError

    async def broken(*_args: Any, **_more: Any) -> Renditions:
        raise RuntimeError("It fell apart.")

    monkeypatch.setattr(scenario.api.engine.queue.posters, "_seconds", 0.01)
    for failing in (hang, broken):
        with monkeypatch.context() as patched:
            patched.setattr(probes, "draw", failing)
            job = await scenario.complete_job()
        [output] = job["outputs"]
        assert (job["status"], output["poster_url"], output["width"]) == ("completed", None, 8)
        # the background loop draws it later
        assert await scenario.api.engine.jobs.pending_posters.run_once() == 1
        assert (await scenario.facts(output["file_id"])).poster_url is not None
    assert await scenario.api.engine.jobs.pending_posters.run_once() == 0


async def test_used_input_gets_a_poster_in_the_background(scenario: PosterScenario) -> None:
    drawing = scenario.api.engine.jobs.pending_posters
    unused = await upload(scenario.user)
    assert await drawing.run_once() == 0
    file_id = await _used(scenario, media_samples.image("PNG", (300, 200)))
    await _used(scenario, media_samples.wav(), name="a.wav", mime_type="audio/wav")
    assert (await scenario.facts(file_id)).poster_url is None
    assert await drawing.run_once() == 1
    facts = await scenario.facts(file_id)
    assert (facts.file.width, facts.file.height, facts.preview_url) == (300, 200, None)
    assert (await scenario.user.http.get(facts.poster_url)).status_code == 200
    assert (await scenario.facts(unused)).poster_url is None


async def test_submission_with_files_wakes_the_poster_loop(scenario: PosterScenario) -> None:
    wakeup, catalogue = scenario.api.engine.jobs.pending_posters.wakeup, scenario.api.engine.catalogue
    clip = {"key": "clip", "type": "image", "placeholder": "{{INPUT}}", "is_primary_input": True}
    await catalogue.workflows.create(slug="from-a-file", graph=GRAPH, properties=[PROMPT, clip])
    effect = await catalogue.effects.create(slug="from-a-file", workflow_slug="from-a-file", credits_cost=0)
    await wakeup.wait(0)
    await submit(scenario.user, scenario.effect_id)
    assert not await wakeup.wait(0)
    await submit(scenario.user, effect.id, input_file_id=await upload(scenario.user))
    assert await wakeup.wait(0)


async def test_invalid_image_is_tried_once(scenario: PosterScenario) -> None:
    file_id = await _used(scenario, b"not a picture")
    assert await scenario.api.engine.jobs.pending_posters.run_once() == 1
    assert (await scenario.facts(file_id)).poster_url is None
    await scenario.api.clock.set(scenario.api.clock.now + timedelta(seconds=2 * DRAW_SECONDS))
    assert await scenario.api.engine.jobs.pending_posters.run_once() == 0


async def test_poster_waits_for_storage_and_is_created_once(
    scenario: PosterScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_id = await _used(scenario, png())
    drawing = scenario.api.engine.jobs.pending_posters

    async def fail_to_put(*_args: Any, **_more: Any) -> None:
        # another process runs at the same time
        assert await drawing.run_once() == 0
        raise StorageUnavailable("Away.")

    with monkeypatch.context() as patched:
        patched.setattr(scenario.api.engine.objects, "put", fail_to_put)
        assert await drawing.run_once() == 1
    assert await drawing.run_once() == 0
    await scenario.api.clock.set(scenario.api.clock.now + timedelta(seconds=DRAW_SECONDS + 1))
    assert await drawing.run_once() == 1
    assert (await scenario.facts(file_id)).poster_url is not None


@pytest.mark.parametrize("boundary", Boundary)
async def test_orphaned_poster_is_removed_after_a_crash(scenario: PosterScenario, boundary: Boundary) -> None:
    job = await submit(scenario.user, scenario.effect_id)
    leased, data = await lease(scenario.worker), media_samples.image("PNG", frames=2)
    await scenario.worker.http.put(leased["output_url"], content=data, headers=leased["output_headers"])
    output = SettledOutput(size=len(data), mime_type="image/png", extension="", sha256=hashlib.sha256(data).hexdigest())
    report = Report(verb=Verb.COMPLETE, **lease_of(leased), output=output)

    async def die(step: str, at: Boundary) -> None:
        if (step, at) == (TransactionStep.SETTLE, boundary):
            raise Crash

    central = scenario.api.engine.databases.central
    central.crash = die
    with pytest.raises(Crash):
        await scenario.api.engine.queue.outputs.complete(report)
    central.crash = None
    scenario.api.engine.queue.lease_payloads._known.clear()
    await scenario.api.engine.queue.outputs.complete(report)
    await scenario.api.engine.outbox.recovery.run_once(grace_seconds=0)
    await scenario.api.engine.outbox.delivery.idle()
    await scenario.run_retention()
    [shown] = (await scenario.user.get(f"/api/ai-jobs/{job['id']}"))["outputs"]
    path = await scenario.path(shown["file_id"])
    assert await scenario.object_paths() == {path, f"{path}.poster.webp", f"{path}.preview.mp4"}
    for url in (shown["url"], shown["poster_url"], shown["preview_url"]):
        assert (await scenario.user.http.get(url)).status_code == 200


@pytest.mark.parametrize("boundary", Boundary)
async def test_input_poster_is_retried_after_a_crash(scenario: PosterScenario, boundary: Boundary) -> None:
    file_id = await _used(scenario, png())

    async def die(step: str, at: Boundary) -> None:
        if (step, at) == (TransactionStep.DRAW_NOTE, boundary):
            raise Crash

    scenario.shard.crash = die
    with pytest.raises(Crash):
        await scenario.api.engine.jobs.pending_posters.run_once()
    scenario.shard.crash = None
    await scenario.api.clock.set(scenario.api.clock.now + timedelta(seconds=DRAW_SECONDS + 1))
    await scenario.api.engine.jobs.pending_posters.run_once()
    path = await scenario.path(file_id)
    assert {item for item in await scenario.object_paths() if source_path(item) == path} == {
        path,
        f"{path}.poster.webp",
    }
    assert (await scenario.facts(file_id)).poster_url is not None


@pytest.mark.parametrize("dies", [False, True])
async def test_file_removed_during_drawing_leaves_no_poster(
    scenario: PosterScenario, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    file_id = await _used(scenario, png())
    video = await scenario.user.post("/api/videos", {"original_file_id": file_id})
    put = scenario.api.engine.objects.put

    async def remove_then_put(to: str, data: bytes) -> None:
        assert (await scenario.user.call("DELETE", f"/api/videos/{video['id']}")).is_success
        assert await scenario.object_paths() == set()
        await put(to, data)

    async def die(step: str, _at: Boundary) -> None:
        if dies and step == TransactionStep.DRAW_NOTE:
            raise Crash

    monkeypatch.setattr(scenario.api.engine.objects, "put", remove_then_put)
    scenario.shard.crash = die
    if dies:
        with pytest.raises(Crash):
            await scenario.api.engine.jobs.pending_posters.run_once()
        scenario.shard.crash = None
        # the process did not see that the file is missing
        assert len(await scenario.orphans()) == 1
        await scenario.api.clock.set(scenario.api.clock.now + timedelta(seconds=DRAW_SECONDS + GRACE_SECONDS + 1))
        await scenario.api.engine.jobs.removal.run_once()
    else:
        assert await scenario.api.engine.jobs.pending_posters.run_once() == 1
    assert await scenario.object_paths() == set()


async def test_poster_is_deleted_with_its_file(scenario: PosterScenario) -> None:
    job = await scenario.complete_job(media_samples.image("PNG", frames=2))
    path = await scenario.path(job["outputs"][0]["file_id"])
    object_paths = await scenario.object_paths()
    assert {item for item in object_paths if source_path(item) == path} == {
        path,
        *(set(derived_paths(path)) & object_paths),
    }
    assert len(object_paths) == 3
    # the search for orphaned files leaves them alone
    await scenario.run_retention()
    assert await scenario.object_paths() == object_paths
    # an unknown poster of another format
    await scenario.api.engine.objects.put(f"{path}.preview.webm", b"left")
    await scenario.user.call("DELETE", f"/api/ai-jobs/{job['id']}")
    assert await scenario.object_paths() == set()


async def test_unused_upload_is_removed_with_its_poster(scenario: PosterScenario) -> None:
    file_id = await _used(scenario, png())
    await scenario.api.engine.jobs.pending_posters.run_once()
    assert len(await scenario.object_paths()) == 2
    await execute(scenario.shard, "UPDATE files SET used_at = NULL WHERE id = :id", id=file_id)
    days = timedelta(hours=scenario.api.engine.settings.unused_upload_hours + 1)
    for _ in range(2):
        await scenario.api.clock.set(scenario.api.clock.now + days)
        await scenario.api.engine.operations.retention.run_once()
    assert await scenario.object_paths() == set()


async def _used(scenario: PosterScenario, data: bytes, **more: str) -> str:
    """Return a file that a job refers to."""
    file_id = await upload(scenario.user, data, **more)
    paths = [await scenario.path(file_id)]
    await scenario.shard.run(TransactionStep.TENANT, lambda tx: media.use_files(tx, scenario.tenant_id, paths))
    return file_id
