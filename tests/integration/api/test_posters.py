"""Posters and previews:

made with the output, served by their own URLs, deleted with the file; they never delay a job.
"""

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
class Wall:
    """A user with an image effect, and a worker."""

    api: Api
    user: Caller
    worker: Caller
    effect_id: int
    tenant_id: str

    @property
    def shard(self) -> Database:
        return self.api.engine.databases.shards["main"]

    async def made(self, data: bytes | None = None, **more: Any) -> Any:
        """Complete a job; return it as its user sees it."""
        job = await submit(self.user, self.effect_id, **more)
        await complete(self.api, self.worker, await lease(self.worker), data)
        return await self.user.get(f"/api/ai-jobs/{job['id']}")

    async def there(self) -> set[str]:
        """Return the objects in the tenant storage."""
        return {each.path async for each in self.api.engine.objects.list("tenants")}

    async def alone(self) -> set[str]:
        """Return posters and previews without a file."""
        there = await self.there()
        return {each for each in there if source_path(each) != each and source_path(each) not in there}

    async def tidy(self) -> None:
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
async def wall(
    backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path
) -> AsyncIterator[Wall]:
    async with open_api(backend, tmp_path, storage_url=storage_url, poster_seconds=PATIENCE_SECONDS) as api:
        await api.stop_loops()
        user = await api.user(tokens=1000)
        effect_id = await api.effect()
        tenants = await execute(api.engine.databases.central, "SELECT id FROM tenants")
        yield Wall(api, user, await api.worker(), effect_id, tenants[0].id)


async def test_output_has_a_poster_its_size_and_a_preview_where_it_moves(wall: Wall) -> None:
    [still] = (await wall.made(media_samples.image("PNG", (1000, 500))))["outputs"]
    assert (still["width"], still["height"], still["seconds"], still["preview_url"]) == (1000, 500, None, None)
    answer = await wall.user.http.get(still["poster_url"])
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "image/webp")
    assert "Content-Disposition" not in answer.headers
    assert Image.open(io.BytesIO(answer.content)).size == (480, 240)
    [moving] = (await wall.made(media_samples.image("PNG", frames=3)))["outputs"]
    answer = await wall.user.http.get(moving["preview_url"])
    assert (answer.headers["Content-Type"], answer.content[4:8]) == ("video/mp4", b"ftyp")
    if "/files/" in moving["preview_url"]:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert answer.headers["Cache-Control"] == "private, max-age=3600"
        assert "must-revalidate" in (await wall.user.http.get(moving["url"])).headers["Cache-Control"]
    facts = await wall.facts(moving["file_id"])
    assert (facts.file.width, facts.poster_url, facts.preview_url) == (64, moving["poster_url"], moving["preview_url"])


async def test_url_of_a_poster_stays_the_same_for_a_while(wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    [output] = (await wall.made())["outputs"]
    await wall.api.clock.set(wall.api.clock.now + timedelta(seconds=2))
    media, signed = wall.api.engine.jobs.media, []
    sign = media._objects.sign_download

    async def counted(path: str, **more: Any) -> str:
        signed.append(path)
        return await sign(path, **more)

    monkeypatch.setattr(media._objects, "sign_download", counted)
    assert (await wall.facts(output["file_id"])).poster_url == output["poster_url"]
    assert signed == []
    media._ttl_seconds = 0
    media._urls.clear()
    for _ in range(2):
        await wall.facts(output["file_id"])
    assert len(signed) == 2


async def test_poster_that_cannot_be_made_costs_neither_the_job_nor_its_output(
    wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = wall.api.engine.queue.posters._probes

    async def never(*_args: Any, **_more: Any) -> Renditions:
        await asyncio.Event().wait()
        raise AssertionError

    async def broken(*_args: Any, **_more: Any) -> Renditions:
        raise RuntimeError("It fell apart.")

    monkeypatch.setattr(wall.api.engine.queue.posters, "_seconds", 0.01)
    for failing in (never, broken):
        with monkeypatch.context() as patched:
            patched.setattr(probes, "draw", failing)
            job = await wall.made()
        [output] = job["outputs"]
        assert (job["status"], output["poster_url"], output["width"]) == ("completed", None, 8)
        # it is made later
        assert await wall.api.engine.jobs.pending_posters.run_once() == 1
        assert (await wall.facts(output["file_id"])).poster_url is not None
    assert await wall.api.engine.jobs.pending_posters.run_once() == 0


async def test_input_gets_its_poster_after_it_was_used_and_submitting_waits_for_nothing(wall: Wall) -> None:
    drawing = wall.api.engine.jobs.pending_posters
    unused = await upload(wall.user)
    assert await drawing.run_once() == 0
    file_id = await _used(wall, media_samples.image("PNG", (300, 200)))
    await _used(wall, media_samples.wav(), name="a.wav", mime_type="audio/wav")
    assert (await wall.facts(file_id)).poster_url is None
    assert await drawing.run_once() == 1
    facts = await wall.facts(file_id)
    assert (facts.file.width, facts.file.height, facts.preview_url) == (300, 200, None)
    assert (await wall.user.http.get(facts.poster_url)).status_code == 200
    assert (await wall.facts(unused)).poster_url is None


async def test_submission_with_files_wakes_the_poster_loop(wall: Wall) -> None:
    wakeup, catalogue = wall.api.engine.jobs.pending_posters.wakeup, wall.api.engine.catalogue
    clip = {"key": "clip", "type": "image", "placeholder": "{{INPUT}}", "is_primary_input": True}
    await catalogue.workflows.create(slug="from-a-file", graph=GRAPH, properties=[PROMPT, clip])
    effect = await catalogue.effects.create(slug="from-a-file", workflow_slug="from-a-file", credits_cost=0)
    await wakeup.wait(0)
    await submit(wall.user, wall.effect_id)
    assert not await wakeup.wait(0)
    await submit(wall.user, effect.id, input_file_id=await upload(wall.user))
    assert await wakeup.wait(0)


async def test_input_that_is_no_picture_is_looked_at_once(wall: Wall) -> None:
    file_id = await _used(wall, b"not a picture")
    assert await wall.api.engine.jobs.pending_posters.run_once() == 1
    assert (await wall.facts(file_id)).poster_url is None
    await wall.api.clock.set(wall.api.clock.now + timedelta(seconds=2 * DRAW_SECONDS))
    assert await wall.api.engine.jobs.pending_posters.run_once() == 0


async def test_poster_waits_for_storage_and_is_made_once(wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    file_id = await _used(wall, png())
    drawing = wall.api.engine.jobs.pending_posters

    async def away(*_args: Any, **_more: Any) -> None:
        # another process checks at the same time
        assert await drawing.run_once() == 0
        raise StorageUnavailable("Away.")

    with monkeypatch.context() as patched:
        patched.setattr(wall.api.engine.objects, "put", away)
        assert await drawing.run_once() == 1
    assert await drawing.run_once() == 0
    await wall.api.clock.set(wall.api.clock.now + timedelta(seconds=DRAW_SECONDS + 1))
    assert await drawing.run_once() == 1
    assert (await wall.facts(file_id)).poster_url is not None


@pytest.mark.parametrize("boundary", Boundary)
async def test_orphaned_poster_is_removed_after_a_crash(wall: Wall, boundary: Boundary) -> None:
    job = await submit(wall.user, wall.effect_id)
    leased, data = await lease(wall.worker), media_samples.image("PNG", frames=2)
    await wall.worker.http.put(leased["output_url"], content=data, headers=leased["output_headers"])
    output = SettledOutput(size=len(data), mime_type="image/png", extension="", sha256=hashlib.sha256(data).hexdigest())
    report = Report(verb=Verb.COMPLETE, **lease_of(leased), output=output)

    async def die(step: str, at: Boundary) -> None:
        if (step, at) == (TransactionStep.SETTLE, boundary):
            raise Crash

    central = wall.api.engine.databases.central
    central.crash = die
    with pytest.raises(Crash):
        await wall.api.engine.queue.outputs.complete(report)
    central.crash = None
    wall.api.engine.queue.lease_payloads._known.clear()
    await wall.api.engine.queue.outputs.complete(report)
    await wall.api.engine.outbox.recovery.run_once(grace_seconds=0)
    await wall.api.engine.outbox.delivery.idle()
    await wall.tidy()
    [shown] = (await wall.user.get(f"/api/ai-jobs/{job['id']}"))["outputs"]
    path = await wall.path(shown["file_id"])
    assert await wall.there() == {path, f"{path}.poster.webp", f"{path}.preview.mp4"}
    for url in (shown["url"], shown["poster_url"], shown["preview_url"]):
        assert (await wall.user.http.get(url)).status_code == 200


@pytest.mark.parametrize("boundary", Boundary)
async def test_input_poster_is_retried_after_a_crash(wall: Wall, boundary: Boundary) -> None:
    file_id = await _used(wall, png())

    async def die(step: str, at: Boundary) -> None:
        if (step, at) == (TransactionStep.DRAW_NOTE, boundary):
            raise Crash

    wall.shard.crash = die
    with pytest.raises(Crash):
        await wall.api.engine.jobs.pending_posters.run_once()
    wall.shard.crash = None
    await wall.api.clock.set(wall.api.clock.now + timedelta(seconds=DRAW_SECONDS + 1))
    await wall.api.engine.jobs.pending_posters.run_once()
    path = await wall.path(file_id)
    assert {each for each in await wall.there() if source_path(each) == path} == {path, f"{path}.poster.webp"}
    assert (await wall.facts(file_id)).poster_url is not None


@pytest.mark.parametrize("dies", [False, True])
async def test_file_that_is_removed_while_it_is_drawn_leaves_no_poster(
    wall: Wall, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    file_id = await _used(wall, png())
    video = await wall.user.post("/api/videos", {"original_file_id": file_id})
    put = wall.api.engine.objects.put

    async def removed_meanwhile(to: str, data: bytes) -> None:
        assert (await wall.user.call("DELETE", f"/api/videos/{video['id']}")).is_success
        assert await wall.there() == set()
        await put(to, data)

    async def die(step: str, _at: Boundary) -> None:
        if dies and step == TransactionStep.DRAW_NOTE:
            raise Crash

    monkeypatch.setattr(wall.api.engine.objects, "put", removed_meanwhile)
    wall.shard.crash = die
    if dies:
        with pytest.raises(Crash):
            await wall.api.engine.jobs.pending_posters.run_once()
        wall.shard.crash = None
        # the process did not see that the file is missing
        assert len(await wall.alone()) == 1
        await wall.api.clock.set(wall.api.clock.now + timedelta(seconds=DRAW_SECONDS + GRACE_SECONDS + 1))
        await wall.api.engine.jobs.removal.run_once()
    else:
        assert await wall.api.engine.jobs.pending_posters.run_once() == 1
    assert await wall.there() == set()


async def test_poster_is_deleted_with_its_file(wall: Wall) -> None:
    job = await wall.made(media_samples.image("PNG", frames=2))
    path = await wall.path(job["outputs"][0]["file_id"])
    there = await wall.there()
    assert {each for each in there if source_path(each) == path} == {path, *(set(derived_paths(path)) & there)}
    assert len(there) == 3
    # the search for orphaned files leaves them alone
    await wall.tidy()
    assert await wall.there() == there
    # an unknown poster of another format
    await wall.api.engine.objects.put(f"{path}.preview.webm", b"left")
    await wall.user.call("DELETE", f"/api/ai-jobs/{job['id']}")
    assert await wall.there() == set()


async def test_upload_that_nothing_uses_any_more_goes_with_its_poster(wall: Wall) -> None:
    file_id = await _used(wall, png())
    await wall.api.engine.jobs.pending_posters.run_once()
    assert len(await wall.there()) == 2
    await execute(wall.shard, "UPDATE files SET used_at = NULL WHERE id = :id", id=file_id)
    days = timedelta(hours=wall.api.engine.settings.unused_upload_hours + 1)
    for _ in range(2):
        await wall.api.clock.set(wall.api.clock.now + days)
        await wall.api.engine.operations.retention.run_once()
    assert await wall.there() == set()


async def _used(wall: Wall, data: bytes, **more: str) -> str:
    """Return a file that a job refers to."""
    file_id = await upload(wall.user, data, **more)
    paths = [await wall.path(file_id)]
    await wall.shard.run(TransactionStep.TENANT, lambda tx: media.use_files(tx, wall.tenant_id, paths))
    return file_id
