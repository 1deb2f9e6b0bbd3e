"""Uploads go straight to storage, and a video shows the progress of its job and the URLs of its files."""

from pathlib import Path
from typing import Any

import pytest

from comfyrelay.domain.queue import customer_texts
from tests.support.api import Api, Caller, data_of, open_api, problem_of
from tests.support.api_calls import complete, fail, lease, png, run, submit, upload
from tests.support.world import GRAPH, SqliteBackend

UPLOAD = {"mime_type": "image/png", "size": 3, "original_filename": "cat.png"}
PHOTO = {"key": "photo", "type": "image", "placeholder": "{{INPUT}}", "required": True, "is_primary_input": True}


async def photo_effect(api: Api, slug: str = "clip", **more: Any) -> int:
    """Create an effect with a required and an optional photo; return its id."""
    extra = {"key": "extra", "type": "image", "placeholder": "{{PROMPT}}", "user_configurable": True}
    await api.engine.catalogue.workflows.create(
        slug=slug,
        graph=GRAPH,
        properties=[PHOTO, extra],
        output_node_id="3",
        output_extension="png",
        output_mime_type="image/png",
        **more,
    )
    effect = await api.engine.catalogue.effects.create(slug=slug, workflow_slug=slug, credits_cost=0)
    await api.engine.workers.fleets.create(slug=f"home-{slug}", workflow_slugs=[slug])
    return effect.id


async def video_of(user: Caller, **more: Any) -> Any:
    return await user.post("/api/videos", {"original_file_id": await upload(user), **more})


class TestUploads:
    async def test_upload_url_cannot_replace_the_input_of_a_job(
        self, sqlite_backend: SqliteBackend, tmp_path: Path
    ) -> None:
        # only local files: rclone, the S3 server of the tests, has no conditional writes
        async with open_api(sqlite_backend, tmp_path) as api:
            user = await api.user()
            effect_id = await photo_effect(api)
            cat = png()
            dog = bytes(len(cat))
            created = await user.post("/api/videos/uploads", {**UPLOAD, "size": len(cat)})
            for content, status in ((cat, 200), (dog, 409), (cat, 200)):
                sent = await user.http.put(created["upload_url"], content=content, headers=created["upload_headers"])
                assert sent.status_code == status
            await submit(user, effect_id, input_file_id=created["file"]["id"])
            sent = await user.http.put(created["upload_url"], content=dog, headers=created["upload_headers"])
            assert "already received another file" in problem_of(sent, 409)["detail"]
            leased = await lease(await api.worker(fleet="home-clip"))
            assert (await user.http.get(leased["input_url"])).content == cat

    async def test_upload_uses_a_signed_url(self, api: Api) -> None:
        user = await api.user()
        response = await user.call("POST", "/api/videos/uploads", UPLOAD)
        assert response.status_code == 201
        started = data_of(response)
        assert started.keys() == {"file", "upload_url", "upload_headers", "expires_at"}
        assert started["file"]["original_filename"] == "cat.png"
        assert started["upload_headers"]["Content-Type"] == "image/png"
        sent = await api.anonymous.http.put(started["upload_url"], content=b"abc", headers=started["upload_headers"])
        assert sent.status_code == 200

    async def test_upload_type_and_length_are_signed(self, api: Api) -> None:
        user = await api.user()
        started = await user.post("/api/videos/uploads", UPLOAD)
        for data, type_ in ((b"abcd", "image/png"), (b"ab", "image/png"), (b"abc", "text/html")):
            sent = await api.anonymous.http.put(started["upload_url"], content=data, headers={"Content-Type": type_})
            assert sent.status_code == 403

    async def test_upload_of_another_type_is_refused(self, api: Api) -> None:
        user = await api.user()
        for mime_type in ("text/html", "application/json", "image", "x/image/png"):
            response = await user.call("POST", "/api/videos/uploads", {**UPLOAD, "mime_type": mime_type})
            error = problem_of(response, 422)["errors"]["mime_type"]
            if not mime_type.startswith(("image", "x")):
                assert error.startswith("cat.png cannot be used: ")

    async def test_upload_over_the_limit_is_refused(self, sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
        async with open_api(sqlite_backend, tmp_path, max_upload_bytes=1000) as api:
            user = await api.user()
            refused = await user.call("POST", "/api/videos/uploads", {**UPLOAD, "size": 6_400_000_000})
            assert problem_of(refused, 413)["detail"] == "cat.png is too large: 6.4 GB, but the limit is 1.0 KB."
            problem_of(await user.call("POST", "/api/videos/uploads", {**UPLOAD, "size": 1001}), 413)
            assert await user.post("/api/videos/uploads", {**UPLOAD, "size": 1000})

    async def test_file_name_does_not_affect_the_storage_path(self, api: Api) -> None:
        user = await api.user()
        me = await user.get("/api/me")
        for name in (
            "../../etc/passwd",
            "a.b/../../c",
            "x" * 200 + ".PNG",
            "Katze \N{CAT FACE}.png",
            ".png",
            "a.p%2Fng",
        ):
            started = await user.post("/api/videos/uploads", {**UPLOAD, "original_filename": name})
            path = started["upload_url"].partition("?")[0]
            # local files and S3 differ in the prefix
            assert f"/tenants/{me['tenant_id']}/uploads/{started['file']['id']}" in path
            assert ".." not in path

    async def test_upload_type_is_checked_against_the_effect(self, api: Api) -> None:
        user, effect = await api.user(), await photo_effect(api)
        assert await user.post("/api/videos/uploads", {**UPLOAD, "effect_id": effect})
        wrong = {**UPLOAD, "mime_type": "video/mp4", "effect_id": effect}
        assert "mime_type" in problem_of(await user.call("POST", "/api/videos/uploads", wrong), 422)["errors"]
        problem_of(await user.call("POST", "/api/videos/uploads", {**UPLOAD, "effect_id": 999}), 404)


class TestVideos:
    async def test_video_is_created_from_an_uploaded_file(self, api: Api) -> None:
        user = await api.user()
        started = await user.post("/api/videos/uploads", {**UPLOAD, "size": len(png())})
        body = {"original_file_id": started["file"]["id"], "title": "My cat"}
        response = await user.call("POST", "/api/videos", body)
        assert "not been uploaded" in problem_of(response, 422)["errors"]["original_file_id"]
        await api.anonymous.http.put(started["upload_url"], content=png(), headers=started["upload_headers"])
        response = await user.call("POST", "/api/videos", body)
        assert response.status_code == 201
        video = data_of(response)
        assert (video["status"], video["title"], video["job_id"]) == ("uploaded", "My cat", None)
        assert (await api.anonymous.http.get(video["original_file_url"])).content == png()

    async def test_other_users_file_makes_no_video(self, api: Api) -> None:
        user, other = await api.user(), await api.user("eve@example.com")
        response = await other.call("POST", "/api/videos", {"original_file_id": await upload(user)})
        assert "original_file_id" in problem_of(response, 422)["errors"]

    async def test_video_follows_its_job(self, api: Api) -> None:
        user, effect, worker = await api.user(), await photo_effect(api), await api.worker()
        video = await video_of(user, title="My cat")
        job = await submit(user, effect, video_id=video["id"])
        seen = await user.get(f"/api/videos/{video['id']}")
        assert (seen["status"], seen["job_id"]) == ("queued", job["id"])
        leased = await lease(worker)
        beat = {"dispatch_id": leased["dispatch_id"], "lease_token": leased["lease_token"], "progress": {"done": 0.5}}
        await worker.post("/api/worker/heartbeat", beat)
        await api.engine.outbox.delivery.idle()
        seen = await user.get(f"/api/videos/{video['id']}")
        assert (seen["status"], seen["progress"]) == ("processing", {"done": 0.5})
        await complete(api, worker, leased)
        seen = await user.get(f"/api/videos/{video['id']}")
        assert (seen["status"], seen["progress"], seen["error"]) == ("completed", None, None)
        got = await api.anonymous.http.get(seen["processed_file_url"])
        assert got.content == png("blue")
        assert got.headers["Content-Disposition"].startswith('attachment; filename="My cat-')

    async def test_failed_video_shows_the_error(self, api: Api) -> None:
        user, effect, worker = await api.user(), await photo_effect(api), await api.worker()
        video = await video_of(user)
        await submit(user, effect, video_id=video["id"])
        await fail(api, worker, await lease(worker), "CUDA is on fire")
        seen = await user.get(f"/api/videos/{video['id']}")
        assert (seen["status"], seen["error"]) == ("failed", customer_texts.INTERRUPTED)

    async def test_videos_are_paginated_newest_first(self, api: Api) -> None:
        user = await api.user()
        ids = [(await video_of(user))["id"] for _ in range(3)]
        first = await user.get("/api/videos?limit=2")
        second = await user.get(f"/api/videos?limit=2&cursor={first['next_cursor']}")
        assert [item["id"] for item in (*first["items"], *second["items"])] == ids[::-1]
        assert second["next_cursor"] is None

    async def test_other_users_video_is_404(self, api: Api) -> None:
        user, other = await api.user(), await api.user("eve@example.com")
        video = await video_of(user)
        problem_of(await other.call("GET", f"/api/videos/{video['id']}"), 404)
        problem_of(await other.call("DELETE", f"/api/videos/{video['id']}"), 404)
        assert (await other.get("/api/videos"))["items"] == []
        assert await user.get(f"/api/videos/{video['id']}")

    async def test_malformed_id_is_a_client_error(self, api: Api) -> None:
        user = await api.user()
        for id_ in ("nothing", "%00", "a b", "x" * 65):
            response = await user.call("GET", f"/api/videos/{id_}")
            assert response.status_code in (404, 422)


class TestDeleting:
    async def test_deleted_video_removes_all_its_files(self, api: Api) -> None:
        user, effect, worker = await api.user(), await photo_effect(api), await api.worker()
        video = await video_of(user)
        first = await run(api, user, worker, effect, video_id=video["id"])
        again = await run(api, user, worker, effect, video_id=video["id"])
        seen = await user.get(f"/api/videos/{video['id']}")
        urls = [seen["original_file_url"], seen["processed_file_url"], first["outputs"][0]["url"]]
        for url in urls:
            assert (await api.anonymous.http.get(url)).status_code == 200
        data_of(await user.call("DELETE", f"/api/videos/{video['id']}"))
        for url in urls:
            assert (await api.anonymous.http.get(url)).status_code == 404
        problem_of(await user.call("GET", f"/api/videos/{video['id']}"), 404)
        job = await user.get(f"/api/ai-jobs/{again['id']}")
        assert (job["status"], job["video_id"], job["outputs"]) == ("completed", None, [])

    async def test_video_of_an_active_job_is_not_deleted(self, api: Api) -> None:
        user, effect = await api.user(), await photo_effect(api)
        video = await video_of(user)
        job = await submit(user, effect, video_id=video["id"])
        problem_of(await user.call("DELETE", f"/api/videos/{video['id']}"), 409)
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        data_of(await user.call("DELETE", f"/api/videos/{video['id']}"))

    async def test_video_with_a_file_in_use_is_not_deleted(self, api: Api) -> None:
        user, effect = await api.user(), await photo_effect(api)
        file, other = await upload(user), await upload(user)
        video = await user.post("/api/videos", {"original_file_id": file})
        await submit(user, effect, input_file_id=file)
        problem_of(await user.call("DELETE", f"/api/videos/{video['id']}"), 409)
        video = await user.post("/api/videos", {"original_file_id": other})
        await submit(user, effect, input_file_id=await upload(user), input_payload={"extra": other})
        problem_of(await user.call("DELETE", f"/api/videos/{video['id']}"), 409)

    async def test_file_of_another_video_is_kept(self, api: Api) -> None:
        user = await api.user()
        file = await upload(user)
        one, two = [await user.post("/api/videos", {"original_file_id": file}) for _ in range(2)]
        data_of(await user.call("DELETE", f"/api/videos/{one['id']}"))
        seen = await user.get(f"/api/videos/{two['id']}")
        assert (await api.anonymous.http.get(seen["original_file_url"])).status_code == 200

    async def test_job_with_a_deleted_input_cannot_be_retried(self, api: Api) -> None:
        user, effect = await api.user(), await photo_effect(api)
        video = await video_of(user)
        job = await submit(user, effect, video_id=video["id"])
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        data_of(await user.call("DELETE", f"/api/videos/{video['id']}"))
        problem_of(await user.call("POST", f"/api/ai-jobs/{job['id']}/retry"), 409)

    async def test_failed_removal_is_retried_later(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        user = await api.user()
        video = await video_of(user)

        async def broken(_paths: object) -> None:
            raise OSError("storage is away")

        with monkeypatch.context() as patch:
            patch.setattr(api.engine.objects, "remove_many", broken)
            data_of(await user.call("DELETE", f"/api/videos/{video['id']}"))
        assert (await api.anonymous.http.get(video["original_file_url"])).status_code == 200
        assert await api.engine.jobs.removal.run_once(grace_seconds=0) == 1
        assert (await api.anonymous.http.get(video["original_file_url"])).status_code == 404
        assert await api.engine.jobs.removal.run_once(grace_seconds=0) == 0

    async def test_concurrent_submission_for_a_deleted_video_is_refused(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user, effect = await api.user(), await photo_effect(api)
        video = await video_of(user)
        real = api.engine.jobs.resolve.load_media

        async def load_before_deletion(*arguments: Any, **more: Any) -> Any:
            found = await real(*arguments, **more)
            data_of(await user.call("DELETE", f"/api/videos/{video['id']}"))
            return found

        monkeypatch.setattr(api.engine.jobs.resolve, "load_media", load_before_deletion)
        body = {"effect_id": effect, "idempotency_key": "k", "video_id": video["id"]}
        problem_of(await user.call("POST", "/api/ai-jobs", body), 409)
        assert (await user.get("/api/ai-jobs"))["items"] == []
