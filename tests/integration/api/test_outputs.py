"""The output of a job is a read-only copy with the reported size, hash and type."""

import asyncio
import hashlib
import io
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from comfyrelay.domain.ids import job_folder, source_path
from comfyrelay.services.outbox.applier import MAX_UPLOAD_SECONDS
from comfyrelay.services.queue.settle import Report, SettledOutput, Verb
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Boundary
from tests.support import media_samples
from tests.support.api import Api, Caller, open_api, problem_of
from tests.support.api_calls import lease, lease_of, png, submit
from tests.support.world import Crash, PostgresBackend, SqliteBackend, execute

pytestmark = pytest.mark.both_databases

MAX_BYTES = 5000


@dataclass
class Scenario:
    """A user, and a worker with a job of that user."""

    api: Api
    user: Caller
    worker: Caller
    job: dict[str, Any]

    async def put(self, data: bytes, job: dict[str, Any] | None = None) -> int:
        leased = job or self.job
        return (
            await self.worker.http.put(leased["output_url"], content=data, headers=leased["output_headers"])
        ).status_code

    async def complete(self, data: bytes, job: dict[str, Any] | None = None, **reported: Any) -> Any:
        output = {"size": len(data), "mime_type": "image/png", "sha256": hashlib.sha256(data).hexdigest(), **reported}
        return await self.worker.call("POST", "/api/worker/complete", {**lease_of(job or self.job), "output": output})

    async def stored_objects(self) -> dict[str, str]:
        """Return the objects of the job by path, as `upload` or `output`; a poster counts if its file is missing."""
        folder = job_folder(self.job["tenant_id"], self.job["job_id"])
        paths = [stored.path async for stored in self.api.engine.objects.list(folder)]
        files = [path for path in paths if source_path(path) == path or source_path(path) not in paths]
        return {path: path.rpartition("/")[2].partition("-")[0] for path in files}

    async def output(self) -> bytes:
        """Return the output as the user gets it."""
        await self.api.engine.outbox.delivery.idle()
        [shown] = (await self.user.get(f"/api/ai-jobs/{self.job['job_id']}"))["outputs"]
        return (await self.user.http.get(shown["url"])).content

    async def run_retention(self) -> None:
        await self.api.engine.outbox.delivery.idle()
        # at this time, no URL of an ended job works, and no upload is running
        late = self.api.engine.settings.lease_url_ttl_seconds + MAX_UPLOAD_SECONDS + 1
        await self.api.clock.set(self.api.clock.now + timedelta(seconds=late))
        await self.api.engine.operations.retention.run_once()

    def report(self, data: bytes) -> Report:
        output = SettledOutput(
            size=len(data), mime_type="image/png", extension="", sha256=hashlib.sha256(data).hexdigest()
        )
        return Report(verb=Verb.COMPLETE, **lease_of(self.job), output=output)


@pytest.fixture
async def scenario(
    backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path
) -> AsyncIterator[Scenario]:
    async with open_api(backend, tmp_path, storage_url=storage_url, max_output_bytes=MAX_BYTES) as api:
        await api.stop_loops()
        user = await api.user(tokens=100)
        await submit(user, await api.effect())
        worker = await api.worker()
        yield Scenario(api, user, worker, await lease(worker))


def is_local(scenario: Scenario) -> bool:
    return "/files/" in scenario.job["output_url"]


async def test_upload_after_completion_changes_nothing(scenario: Scenario) -> None:
    assert await scenario.put(png("blue")) == 200
    assert (await scenario.complete(png("blue"))).status_code == 200
    # the upload is deleted, and the URL still works
    assert [*(await scenario.stored_objects()).values()] == ["output"]
    assert await scenario.put(png("red")) == 200
    assert await scenario.output() == png("blue")
    await scenario.run_retention()
    assert [*(await scenario.stored_objects()).values()] == ["output"]
    assert await scenario.output() == png("blue")


async def test_late_upload_is_removed_even_with_long_leases(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with open_api(sqlite_backend, tmp_path, lease_ttl_seconds=6 * 3600) as api:
        await api.stop_loops()
        user = await api.user(tokens=100)
        await submit(user, await api.effect())
        worker = await api.worker()
        scenario = Scenario(api, user, worker, await lease(worker))
        await scenario.put(png("blue"))
        await scenario.complete(png("blue"))
        await api.engine.outbox.delivery.idle()
        await api.clock.set(api.clock.now + timedelta(seconds=api.engine.settings.lease_url_ttl_seconds - 1))
        # retention ran before this upload and must run again after it
        await api.engine.operations.retention.run_once()
        assert await scenario.put(png("red")) == 200
        assert sorted((await scenario.stored_objects()).values()) == ["output", "upload"]
        await scenario.run_retention()
        assert [*(await scenario.stored_objects()).values()] == ["output"]


async def test_output_is_never_at_a_writable_url(scenario: Scenario) -> None:
    await scenario.put(png())
    [upload] = await scenario.stored_objects()
    await scenario.complete(png())
    [output] = await scenario.stored_objects()
    assert (upload.rpartition("/")[0], upload in scenario.job["output_url"]) == (output.rpartition("/")[0], True)
    assert output.rpartition("/")[2].startswith("output-")
    assert output.rpartition("/")[2] not in scenario.job["output_url"]


async def test_output_with_a_wrong_hash_is_refused_and_its_copy_removed(scenario: Scenario) -> None:
    await scenario.put(png("blue"))
    # the same size, but another hash
    problem = problem_of(await scenario.complete(png("blue"), sha256=hashlib.sha256(b"").hexdigest()), 422)
    assert "SHA-256" in problem["errors"]["output"]
    assert [*(await scenario.stored_objects()).values()] == ["upload"]
    assert (await scenario.complete(png("blue"))).status_code == 200


async def test_oversized_output_is_refused_and_removed(scenario: Scenario) -> None:
    data = b"x" * (MAX_BYTES + 1)
    assert scenario.job["max_output_bytes"] == MAX_BYTES
    if is_local(scenario):
        assert await scenario.put(data) == 422

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(data), 1000):
                yield data[start : start + 1000]

        # without a content length
        sent = await scenario.worker.http.put(
            scenario.job["output_url"], content=pieces(), headers=scenario.job["output_headers"]
        )
        assert sent.status_code == 422
        assert await scenario.stored_objects() == {}
        # bypass the upload route
        await scenario.api.engine.objects.put(
            scenario.job["output_url"].partition("/files/")[2].partition("?")[0], data
        )
    else:
        assert await scenario.put(data) == 200
    problem = problem_of(await scenario.complete(data), 422)
    assert problem["errors"]["output"] == "The output is too large: 5001 bytes, but at most 5000 are allowed."
    assert await scenario.stored_objects() == {}
    await scenario.put(png())
    assert (await scenario.complete(png())).status_code == 200


async def test_output_of_another_media_type_is_refused(scenario: Scenario) -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "WEBP")
    await scenario.put(file.getvalue())
    for reported in ("text/html", "video/mp4", "image/svg+xml", "application/json"):
        problem = problem_of(await scenario.complete(file.getvalue(), mime_type=reported), 422)
        assert problem["errors"]["output"] == f"The output is {reported}, but this workflow creates image/png."
    for reported in ("image", "image/png\nx: y", "a" * 201):
        problem_of(await scenario.complete(file.getvalue(), mime_type=reported), 422)
    # another format of the same kind is accepted
    assert (await scenario.complete(file.getvalue(), mime_type="image/webp")).status_code == 200
    assert await scenario.output() == file.getvalue()


async def test_invalid_stored_media_type_is_returned_unchanged(scenario: Scenario) -> None:
    await scenario.put(png())
    await scenario.complete(png())
    await scenario.api.engine.outbox.delivery.idle()
    await execute(scenario.api.engine.databases.shards["main"], "UPDATE files SET mime_type = 'no type'")
    assert await scenario.output() == png()
    [listed] = (await scenario.user.get("/api/ai-jobs"))["items"]
    assert listed["outputs"][0]["mime_type"] == "no type"


async def test_completion_of_an_expired_lease_changes_nothing(scenario: Scenario) -> None:
    await scenario.put(png("red"))
    await scenario.api.clock.set(scenario.api.clock.now + timedelta(seconds=1801))
    await scenario.api.engine.queue.reaper.run_once()
    second = await lease(scenario.worker)
    await scenario.put(png("blue"), second)
    problem_of(await scenario.complete(png("red")), 404)
    assert (await scenario.complete(png("blue"), second)).status_code == 200
    problem_of(await scenario.complete(png("red")), 404)
    assert sorted((await scenario.stored_objects()).values()) == ["output", "upload"]
    await scenario.run_retention()
    assert [*(await scenario.stored_objects()).values()] == ["output"]
    assert await scenario.output() == png("blue")


async def test_concurrent_completions_create_one_output(scenario: Scenario) -> None:
    await scenario.put(png())
    answers = await asyncio.gather(*(scenario.complete(png()) for _ in range(3)))
    assert {answer.status_code for answer in answers} == {200}
    assert [*(await scenario.stored_objects()).values()] == ["output"]
    assert await scenario.output() == png()


@pytest.mark.parametrize("boundary", Boundary)
async def test_completion_is_repeatable_after_a_crash(scenario: Scenario, boundary: Boundary) -> None:
    await scenario.put(png("blue"))

    async def die(step: str, at: Boundary) -> None:
        if (step, at) == (TransactionStep.SETTLE, boundary):
            raise Crash

    scenario.api.engine.databases.central.crash = die
    with pytest.raises(Crash):
        await scenario.api.engine.queue.outputs.complete(scenario.report(png("blue")))
    scenario.api.engine.databases.central.crash = None
    # another process has no cached payload; both the copy and the upload exist
    scenario.api.engine.queue.lease_payloads._known.clear()
    assert sorted((await scenario.stored_objects()).values()) == ["output", "upload"]
    for _ in range(2):
        assert (await scenario.complete(png("blue"))).status_code == 200
    await scenario.api.engine.outbox.recovery.run_once(grace_seconds=0)
    await scenario.run_retention()
    assert [*(await scenario.stored_objects()).values()] == ["output"]
    assert await scenario.output() == png("blue")
    assert await scenario.api.engine.accounts.ledger.balance(scenario.job["tenant_id"]) == 93


async def test_output_with_too_many_pixels_completes_its_job_without_a_poster(scenario: Scenario) -> None:
    data = media_samples.png_that_claims(16_000, 11_000)
    await scenario.put(data)
    assert (await scenario.complete(data, metadata={"filename": "wall_00001_.png"})).status_code == 200
    assert await scenario.output() == data
    job = await scenario.user.get(f"/api/ai-jobs/{scenario.job['job_id']}")
    assert job["status"] == "completed"
    [output] = job["outputs"]
    assert (output["width"], output["height"], output["poster_url"]) == (16_000, 11_000, None)
    [line] = await scenario.api.log_lines(scenario.user, scenario.job["job_id"])
    assert line == (
        "No preview was made of wall_00001_.png: the file is too large: it has 16000 × 11000 pixels, and at most "
        "100,000,000 are allowed (COMFYRELAY_PROBE_MAX_PIXELS). The file itself is complete."
    )


def large_image() -> bytes:
    file = io.BytesIO()
    Image.new("P", (9000, 9000)).save(file, "GIF")
    return file.getvalue()


@pytest.mark.parametrize(
    ("limits", "make", "why"),
    [
        pytest.param(
            {"probe_max_frames": 2},
            partial(media_samples.image, "PNG", frames=3),
            "is too long: an image may have 2 frames at most (COMFYRELAY_PROBE_MAX_FRAMES)",
            id="frames",
        ),
        pytest.param(
            {"probe_timeout_seconds": 1e-6},
            png,
            "takes longer than 1e-06 s to be read (COMFYRELAY_PROBE_TIMEOUT_SECONDS)",
            id="time",
        ),
        pytest.param(
            {"probe_memory_bytes": 32 * 1024**2},
            large_image,
            "needs more than 32 MiB of memory to be read (COMFYRELAY_PROBE_MEMORY_BYTES)",
            id="memory",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="Windows does not limit the memory of a process"),
        ),
        pytest.param(
            {},
            lambda: b"GIF89a\x08\0\x08\0\0\0\0" + b"\x21\xfe\0" * 300_000,
            "is made of too many small blocks to be read: save it again with another program",
            id="blocks",
        ),
    ],
)
async def test_output_beyond_a_limit_of_the_inspection_completes_its_job(
    sqlite_backend: SqliteBackend, tmp_path: Path, limits: dict[str, Any], make: Callable[[], bytes], why: str
) -> None:
    async with open_api(sqlite_backend, tmp_path, **limits) as api:
        await api.stop_loops()
        user = await api.user(tokens=100)
        await submit(user, await api.effect())
        worker = await api.worker()
        scenario = Scenario(api, user, worker, await lease(worker))
        data = make()
        await scenario.put(data)
        answer = await scenario.complete(data, metadata={"filename": "long.png"})
        assert answer.status_code == 200, answer.text
        assert await scenario.output() == data
        job = await user.get(f"/api/ai-jobs/{scenario.job['job_id']}")
        [output] = job["outputs"]
        assert (job["status"], output["mime_type"], output["poster_url"]) == ("completed", "image/png", None)
        [line] = await api.log_lines(user, scenario.job["job_id"])
        assert line == f"No preview was made of long.png: the file {why}. The file itself is complete."


async def test_output_of_another_kind_with_too_many_pixels_is_refused(scenario: Scenario) -> None:
    data = b"<html>" + media_samples.png_that_claims(16_000, 11_000)
    await scenario.put(data)
    problem = problem_of(await scenario.complete(data), 422)
    assert problem["errors"]["output"] == "The output is not a readable image."
