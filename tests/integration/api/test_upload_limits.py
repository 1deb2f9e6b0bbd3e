"""Uploads are limited in number and size per tenant, and give their space back when they are removed."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.domain.uploads import UploadLimits, UploadUsage, tenant_of_upload
from comfyrelay.errors import UploadLimitReached
from comfyrelay.server.forms import MAX_OVERHEAD_BYTES
from comfyrelay.services.jobs.removal import GRACE_SECONDS as REMOVAL_SECONDS
from comfyrelay.services.operations.retention import GRACE_SECONDS
from tests.support.api import Api, Caller, open_api, problem_of
from tests.support.api_calls import png, submit, upload
from tests.support.media_samples import png_that_claims
from tests.support.world import PostgresBackend, SqliteBackend

pytestmark = pytest.mark.both_databases

UPLOADS = "/api/videos/uploads"
MAX_FILES, MAX_BYTES = 5, 10_000


@pytest.fixture
async def api(backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path) -> AsyncIterator[Api]:
    limits: dict[str, Any] = {"max_stored_files": MAX_FILES, "max_stored_bytes": MAX_BYTES}
    async with open_api(backend, tmp_path, storage_url=storage_url, **limits) as api:
        await api.stop_loops()
        yield api


@pytest.fixture
async def user(api: Api) -> Caller:
    return await api.user()


def body(size: int) -> dict[str, Any]:
    return {"mime_type": "image/png", "size": size, "original_filename": "cat.png"}


async def stored(user: Caller) -> tuple[int, int]:
    found = (await user.get(UPLOADS))["stored"]
    return found["files"], found["bytes"]


async def advance(api: Api, seconds: float) -> None:
    await api.clock.set(api.clock.now + timedelta(seconds=seconds))


async def test_announced_bytes_count_before_they_are_sent(user: Caller) -> None:
    await user.post(UPLOADS, body(MAX_BYTES - 1000))
    found = await user.get(UPLOADS)
    assert found["stored"] == {"files": 1, "bytes": 9000, "max_files": MAX_FILES, "max_bytes": MAX_BYTES}
    problem = problem_of(await user.call("POST", UPLOADS, body(1001)), 409)
    assert problem["type"].endswith("upload_limit_reached")
    assert problem["detail"] == (
        "Your uploads (1 file, 9.0 KB) have reached your limit: 10.0 KB in all, and 1.0 KB more would exceed it. "
        "Delete uploads or videos that you no longer need. Uploads that no job has used are deleted after 24 hours."
    )
    await user.post(UPLOADS, body(1000))


async def test_concurrent_uploads_cannot_exceed_a_limit_together(user: Caller) -> None:
    answers = await asyncio.gather(*(user.call("POST", UPLOADS, body(1)) for _ in range(2 * MAX_FILES)))
    assert sorted(answer.status_code for answer in answers) == [201] * MAX_FILES + [409] * MAX_FILES
    assert "your limit: 5 files." in problem_of(await user.call("POST", UPLOADS, body(1)), 409)["detail"]
    assert await stored(user) == (MAX_FILES, MAX_FILES)


async def test_tenants_have_separate_limits(api: Api, user: Caller) -> None:
    await user.post(UPLOADS, body(MAX_BYTES))
    other = await api.user("other@example.com")
    await other.post(UPLOADS, body(MAX_BYTES))
    assert await stored(user) == await stored(other) == (1, MAX_BYTES)


async def test_deleted_upload_gives_its_space_back(api: Api, user: Caller) -> None:
    file_id = await upload(user)
    [listed] = (await user.get(UPLOADS))["items"]
    assert (listed["id"], listed["is_used"], listed["original_filename"]) == (file_id, False, "cat.png")
    await user.call("DELETE", f"{UPLOADS}/{file_id}")
    assert await stored(user) == (0, 0)
    problem_of(await user.call("DELETE", f"{UPLOADS}/{file_id}"), 404)
    assert user.user is not None
    assert [object_ async for object_ in api.engine.objects.list(f"tenants/{user.user.tenant_id}")] == []


async def test_bytes_sent_after_the_deletion_are_not_kept(api: Api, user: Caller, storage_url: str | None) -> None:
    data = png()
    announced = await user.post(UPLOADS, body(len(data)))
    await user.call("DELETE", f"{UPLOADS}/{announced['file']['id']}")
    sent = await user.http.put(announced["upload_url"], content=data, headers=announced["upload_headers"])
    # S3 does not know that the upload was deleted, so its object is removed when the URL has expired.
    assert sent.status_code == (404 if storage_url is None else 200)
    await advance(api, api.context.settings.presigned_ttl_seconds + REMOVAL_SECONDS + 1)
    await api.engine.jobs.removal.run_once()
    assert user.user is not None
    assert [object_ async for object_ in api.engine.objects.list(f"tenants/{user.user.tenant_id}")] == []


async def test_unused_upload_gives_its_space_back_when_it_expires(api: Api, user: Caller) -> None:
    await user.post(UPLOADS, body(MAX_BYTES))
    await advance(api, 24 * 3600 + 1)
    await api.engine.operations.retention.run_once()
    # Its object may still exist.
    assert await stored(user) == (1, MAX_BYTES)
    assert (await user.get(UPLOADS))["items"] == []
    await advance(api, GRACE_SECONDS)
    await api.engine.operations.retention.run_once()
    assert await stored(user) == (0, 0)
    await user.post(UPLOADS, body(MAX_BYTES))


async def test_upload_in_use_cannot_be_deleted(api: Api) -> None:
    user = await api.user("rich@example.com", tokens=100)
    file_id = await upload(user)
    effect_id = await api.effect()
    job = await submit(user, effect_id, input_file_id=file_id)
    assert "unfinished job" in problem_of(await user.call("DELETE", f"{UPLOADS}/{file_id}"), 409)["detail"]
    await user.post(f"/api/ai-jobs/{job['id']}/cancel")
    video = await user.post("/api/videos", {"original_file_id": file_id})
    assert "delete the video" in problem_of(await user.call("DELETE", f"{UPLOADS}/{file_id}"), 409)["detail"]
    await user.call("DELETE", f"/api/videos/{video['id']}")
    assert await stored(user) == (0, 0)


async def test_administrator_sets_and_sees_the_limits_of_a_tenant(api: Api, user: Caller) -> None:
    admin = await api.user("admin@example.com", is_admin=True)
    assert user.user is not None
    path = f"/api/admin/tenants/{user.user.tenant_id}"
    await user.post(UPLOADS, body(MAX_BYTES))
    found = await admin.get(path)
    assert (found["stored_files"], found["stored_bytes"]) == (1, MAX_BYTES)
    assert (found["limits"]["usual_stored_files"], found["limits"]["usual_stored_bytes"]) == (MAX_FILES, MAX_BYTES)
    await admin.call("PATCH", path, {"max_stored_bytes": 2 * MAX_BYTES, "max_stored_files": 2})
    await user.post(UPLOADS, body(MAX_BYTES))
    assert "20.0 KB in all" in problem_of(await user.call("POST", UPLOADS, body(1)), 409)["detail"]
    assert (await user.get(UPLOADS))["stored"]["max_files"] == 2
    await admin.call("PATCH", path, {"max_stored_bytes": None, "max_stored_files": None})
    problem_of(await user.call("POST", UPLOADS, body(1)), 409)
    problem_of(await admin.call("PATCH", path, {"max_stored_bytes": -1}), 422)


async def test_upload_with_another_size_than_announced_is_refused(api: Api, storage_url: str | None) -> None:
    user = await api.user("rich@example.com", tokens=100)
    announced = await user.post(UPLOADS, body(10))
    effect_id = await api.effect()
    assert user.user is not None
    # An S3 server that ignores the length in the URL would store this.
    path = f"tenants/{user.user.tenant_id}/uploads/{announced['file']['id']}.png"
    await api.engine.objects.put(path, bytes(5000))
    answer = await user.call(
        "POST",
        "/api/ai-jobs",
        {"effect_id": effect_id, "idempotency_key": "k", "input_file_id": announced["file"]["id"]},
    )
    if storage_url is None:
        # The server itself refuses bodies of another size.
        assert answer.status_code == 201
    else:
        text = "cat.png has 5000 bytes, but 10 were announced: upload it again."
        assert problem_of(answer, 422)["errors"] == {"input_file_id": text}


def test_no_limit_allows_everything() -> None:
    usage = UploadUsage(files=10**6, bytes=10**15)
    UploadLimits().check(usage, new_files=1, new_bytes=1, unused_hours=24)
    with pytest.raises(UploadLimitReached):
        UploadLimits(max_files=10**6).check(usage, new_files=1, new_bytes=1, unused_hours=24)


@pytest.mark.parametrize(
    "path", ["tenants/t/ai-jobs/j/uploads/a", "assets/a.png", "tenants//uploads/a", "x/tenants/t/uploads/a"]
)
def test_other_paths_are_not_uploads(path: str) -> None:
    assert tenant_of_upload(path) is None


@pytest.mark.parametrize("hides_size", [False, True])
async def test_input_with_too_many_pixels_is_refused_before_it_runs(api: Api, user: Caller, hides_size: bool) -> None:
    effect_id = await api.effect(credits_cost=0)
    data = png_that_claims(16_000, 11_000)
    # After the signature, Pillow uses the last header.
    large = await upload(user, png_that_claims(16, 16)[:33] + data[8:] if hides_size else data)
    body = {"effect_id": effect_id, "idempotency_key": "k", "input_file_id": large}
    problem = problem_of(await user.call("POST", "/api/ai-jobs", body), 422)
    assert problem["errors"]["input_file_id"].endswith(
        ".png is too large: it has 16000 × 11000 pixels, and at most 100,000,000 are allowed."
    )
    assert (await user.get("/api/ai-jobs"))["items"] == []


async def test_empty_upload_is_explained(user: Caller) -> None:
    problem = problem_of(await user.call("POST", UPLOADS, body(0)), 422)
    assert problem["errors"] == {"size": "This file is empty. Choose another one."}


FORM = {"Content-Type": "multipart/form-data; boundary=x"}
BEGINNING = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
ASSETS = "/api/v2/assets"


async def test_form_over_the_limit_is_refused_before_its_file(user: Caller) -> None:
    await user.post(UPLOADS, body(MAX_BYTES))
    read: list[bytes] = []

    async def form() -> AsyncIterator[bytes]:
        read.append(BEGINNING)
        yield BEGINNING

    refused = await user.http.post(ASSETS, headers={**user.headers, **FORM}, content=form())
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "upload_limit_reached")
    assert read == []


async def test_form_larger_than_the_remaining_space_is_refused(user: Caller) -> None:
    await user.post(UPLOADS, body(MAX_BYTES - 1000))
    sent = 0

    async def form() -> AsyncIterator[bytes]:
        nonlocal sent
        yield BEGINNING
        while True:
            sent += 100_000
            yield b"x" * 100_000

    refused = await user.http.post(ASSETS, headers={**user.headers, **FORM}, content=form())
    assert refused.status_code == 413
    assert "you can upload at most 1.0 KB" in refused.json()["error"]["message"]
    assert sent <= MAX_OVERHEAD_BYTES + 200_000


async def test_third_form_of_a_user_is_refused(api: Api, user: Caller) -> None:
    begun, release = asyncio.Semaphore(0), asyncio.Event()

    async def form() -> AsyncIterator[bytes]:
        yield BEGINNING + png()
        begun.release()
        await release.wait()
        yield b"\r\n--x--\r\n"

    def send(caller: Caller) -> Any:
        return caller.http.post(ASSETS, headers={**caller.headers, **FORM}, content=form())

    running = [asyncio.create_task(send(user)) for _ in range(2)]
    for _ in running:
        await begun.acquire()
    refused = await send(user)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
    # another user is not affected
    other = asyncio.create_task(send(await api.user("bob@example.com")))
    await begun.acquire()
    release.set()
    answers = await asyncio.gather(*running, other)
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert (await send(user)).status_code == 200
