"""A job keeps every file that its run made: numbered, checked, limited, and removed together."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.domain.ids import job_folder, source_path
from comfyrelay.services.outbox.applier import MAX_UPLOAD_SECONDS
from comfyrelay.services.queue import outputs
from tests.support.api import Api, Caller, open_api, problem_of
from tests.support.api_calls import complete, lease, lease_of, png, submit, upload, upload_more
from tests.support.world import PostgresBackend, SqliteBackend

pytestmark = pytest.mark.both_databases

MAX_FILES = 5


@dataclass
class Scenario:
    """A user with a running job, and its worker."""

    api: Api
    user: Caller
    worker: Caller
    effect_id: int
    job: Any

    async def send(self, *more: dict[str, Any], data: bytes | None = None) -> Any:
        """Upload the first output, and complete the job with further ones."""
        data = png("blue") if data is None else data
        await self.worker.http.put(self.job["output_url"], content=data, headers=self.job["output_headers"])
        output = {"size": len(data), "mime_type": "image/png"}
        body = {**lease_of(self.job), "output": output, "more_outputs": more}
        answer = await self.worker.call("POST", "/api/worker/complete", body)
        await self.api.engine.outbox.delivery.idle()
        return answer

    async def upload(self, number: int, extension: str, data: bytes) -> dict[str, Any]:
        return await upload_more(self.worker, self.job, number, extension, data)

    async def outputs(self) -> list[Any]:
        found: list[Any] = (await self.user.get(f"/api/ai-jobs/{self.job['job_id']}"))["outputs"]
        return found

    async def objects(self) -> list[str]:
        """Return the kinds of the stored files of the job without posters: `upload` or `output`."""
        folder = job_folder(self.job["tenant_id"], self.job["job_id"])
        paths = [stored.path async for stored in self.api.engine.objects.list(folder)]
        return sorted(path.rpartition("/")[2].partition("-")[0] for path in paths if source_path(path) == path)


@pytest.fixture
async def scenario(
    backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path
) -> AsyncIterator[Scenario]:
    async with open_api(backend, tmp_path, storage_url=storage_url, max_output_files=MAX_FILES) as api:
        await api.stop_loops()
        user, effect_id = await api.user(tokens=100), await api.effect()
        await submit(user, effect_id)
        worker = await api.worker()
        yield Scenario(api, user, worker, effect_id, await lease(worker))


async def test_uploads_are_replaced_by_read_only_outputs(scenario: Scenario) -> None:
    more = [await scenario.upload(number, "png", png("red")) for number in (2, 3)]
    assert (await scenario.send(*more)).status_code == 200
    assert await scenario.objects() == ["output"] * 3
    assert [(output["number"], output["content_hash"] is None) for output in await scenario.outputs()] == [
        (1, True),
        (2, False),
        (3, False),
    ]


async def test_repeated_completion_changes_nothing(scenario: Scenario) -> None:
    more = [await scenario.upload(2, "png", png("red"))]
    await scenario.send(*more)
    before = [output["file_id"] for output in await scenario.outputs()]
    answer = await scenario.send(*more)
    assert (answer.status_code, answer.json()["data"]["status"]) == (200, "completed")
    assert [output["file_id"] for output in await scenario.outputs()] == before


async def test_missing_or_changed_output_is_refused_and_keeps_the_lease(scenario: Scenario) -> None:
    sent = await scenario.upload(2, "png", png("red"))
    problem = problem_of(await scenario.send(sent, {**sent, "extension": "jpg"}), 422)
    assert problem["errors"] == {"output": "Output 3 is missing. Upload it to its URL and complete again."}
    problem = problem_of(await scenario.send({**sent, "sha256": "0" * 64}), 422)
    assert "SHA-256" in problem["errors"]["output"]
    # no copy is left
    assert await scenario.objects() == ["upload", "upload"]
    assert (await scenario.send(sent)).status_code == 200
    assert len(await scenario.outputs()) == 2


async def test_unreadable_further_output_is_kept_as_a_file(scenario: Scenario) -> None:
    broken = await scenario.upload(2, "png", b"no picture")
    page = await scenario.upload(3, "html", b"<script>alert(1)</script>")
    assert (await scenario.send(broken, page)).status_code == 200
    found = await scenario.outputs()
    # a browser must not open them as a page or an image
    assert [output["mime_type"] for output in found[1:]] == ["application/octet-stream"] * 2
    assert (await scenario.user.http.get(found[1]["url"])).content == b"no picture"
    assert await scenario.api.log_lines(scenario.user, scenario.job["job_id"]) == [
        "No preview was made of output.png, which is kept as a file. The output is not a readable image."
    ]


async def test_number_of_outputs_is_limited(scenario: Scenario) -> None:
    assert scenario.job["max_output_files"] == MAX_FILES
    body = {**lease_of(scenario.job), "number": MAX_FILES + 1, "extension": "png"}
    problem = problem_of(await scenario.worker.call("POST", "/api/worker/output-url", body), 422)
    assert problem["errors"]["number"] == "A job keeps at most 5 outputs (COMFYRELAY_MAX_OUTPUT_FILES)."
    sent = await scenario.upload(2, "png", png("red"))
    problem = problem_of(await scenario.send(*[sent] * MAX_FILES), 422)
    assert problem["errors"] == {"more_outputs": "The job has 6 outputs, but at most 5 are kept. Leave the others out."}


@pytest.mark.parametrize("extension", ["", "../x", "PNG", "tar.gz", "a" * 11])
async def test_extension_other_than_a_plain_word_is_refused(scenario: Scenario, extension: str) -> None:
    body = {**lease_of(scenario.job), "number": 2, "extension": extension}
    problem_of(await scenario.worker.call("POST", "/api/worker/output-url", body), 422)


async def test_output_url_requires_the_lease(scenario: Scenario) -> None:
    body = {**lease_of(scenario.job), "number": 2, "extension": "png"}
    other = await scenario.api.worker("gpu-2")
    problem_of(await other.call("POST", "/api/worker/output-url", body), 404)
    await scenario.send()
    problem_of(await scenario.worker.call("POST", "/api/worker/output-url", body), 404)


async def test_late_upload_of_a_further_output_is_removed(scenario: Scenario) -> None:
    sent = await scenario.upload(2, "png", png("red"))
    await scenario.upload(3, "png", png("green"))
    await scenario.send(sent)
    assert await scenario.objects() == ["output", "output", "upload"]
    late = scenario.api.engine.settings.lease_url_ttl_seconds + MAX_UPLOAD_SECONDS + 1
    await scenario.api.clock.set(scenario.api.clock.now + timedelta(seconds=late))
    await scenario.api.engine.operations.retention.run_once()
    assert await scenario.objects() == ["output", "output"]


async def test_posters_of_many_outputs_are_drawn_later(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MAX_DRAWN", 2)
    await scenario.send(*[await scenario.upload(number, "png", png("red")) for number in (2, 3)])
    found = await scenario.outputs()
    assert [(output["width"], output["poster_url"] is not None) for output in found] == [
        (8, True),
        (8, True),
        (8, False),
    ]
    await scenario.api.engine.jobs.pending_posters.run_once()
    assert all(output["poster_url"] for output in await scenario.outputs())


async def test_every_output_can_be_the_input_of_another_job(scenario: Scenario) -> None:
    await scenario.send(await scenario.upload(2, "png", png("red")))
    path = f"/api/ai-jobs/{scenario.job['job_id']}/outputs"
    copied = await scenario.user.post(f"{path}/2/as-input", {})
    file = await scenario.user.get(f"/api/videos/uploads/{copied['id']}")
    assert (await scenario.user.http.get(file["url"])).content == png("red")
    problem_of(await scenario.user.call("POST", f"{path}/3/as-input", {}), 404)


async def test_job_that_reuses_another_gets_all_its_outputs(scenario: Scenario) -> None:
    await scenario.send(await scenario.upload(2, "png", png("red")), await scenario.upload(3, "txt", b"words"))
    reused = await submit(scenario.user, scenario.effect_id, reuse=True)
    found = (await scenario.user.get(f"/api/ai-jobs/{reused['id']}"))["outputs"]
    assert reused["reused_from"] == scenario.job["job_id"]
    assert [(await scenario.user.http.get(output["url"])).content for output in found] == [
        png("blue"),
        png("red"),
        b"words",
    ]
    assert not {output["file_id"] for output in found} & {output["file_id"] for output in await scenario.outputs()}


async def test_job_without_its_first_output_is_not_reused(scenario: Scenario) -> None:
    await scenario.send(await scenario.upload(2, "txt", b"words"))
    [first, _] = await scenario.outputs()
    await scenario.user.post("/api/gallery/delete", {"ids": [first["file_id"]]})
    assert (await submit(scenario.user, scenario.effect_id, reuse=True))["reused_from"] is None


async def test_empty_further_output_does_not_fail_the_job(scenario: Scenario) -> None:
    assert (await scenario.send(await scenario.upload(2, "txt", b""))).status_code == 200
    assert [output["size"] for output in await scenario.outputs()][1] == 0


async def test_video_is_deleted_with_all_outputs_of_its_job(scenario: Scenario) -> None:
    await scenario.send()
    original = await upload(scenario.user)
    video = await scenario.user.post("/api/videos", {"original_file_id": original})
    job = await submit(scenario.user, scenario.effect_id, video_id=video["id"])
    leased = await lease(scenario.worker)
    await complete(scenario.api, scenario.worker, leased, more=[("png", png("red")), ("png", png("green"))])
    first, second, third = (
        output["file_id"] for output in (await scenario.user.get(f"/api/ai-jobs/{job['id']}"))["outputs"]
    )
    # the next output becomes the result of the video
    await scenario.user.post("/api/gallery/delete", {"ids": [first]})
    shown = await scenario.user.get(f"/api/videos/{video['id']}")
    assert (await scenario.user.http.get(shown["processed_file_url"])).content == png("red")
    assert (await scenario.user.call("DELETE", f"/api/videos/{video['id']}")).status_code == 200
    listed = {item["id"] for item in (await scenario.user.get("/api/gallery"))["items"]}
    assert not listed & {second, third}


async def test_video_expires_with_all_outputs_of_its_job(
    sqlite_backend: SqliteBackend, storage_url: str | None, tmp_path: Path
) -> None:
    async with open_api(sqlite_backend, tmp_path, storage_url=storage_url, retention_days=1) as api:
        await api.stop_loops()
        user, effect_id = await api.user(tokens=100), await api.effect()
        video = await user.post("/api/videos", {"original_file_id": await upload(user)})
        job = await submit(user, effect_id, video_id=video["id"])
        worker = await api.worker()
        await complete(api, worker, await lease(worker), more=[("png", png("red"))])
        assert (await user.get("/api/gallery"))["total"] == 2
        await api.clock.set(api.clock.now + timedelta(days=2))
        await api.engine.operations.retention.run_once()
        assert (await user.get("/api/gallery"))["total"] == 0
        found = await user.get(f"/api/ai-jobs/{job['id']}")
        assert (found["outputs"], found["output_count"], found["is_expired"]) == ([], 0, True)


async def test_output_number_has_one_upload_for_any_extension(scenario: Scenario) -> None:
    for extension in ("webp", "jpg"):
        await scenario.upload(2, extension, png("red"))
    await scenario.upload(2, "png", png("red"))
    assert await scenario.objects() == ["upload"]
