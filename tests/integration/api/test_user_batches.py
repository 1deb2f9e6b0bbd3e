"""Batches over HTTP: all items or none, one progress, and one action for all."""

from typing import Any

import pytest

from comfyrelay.errors import InvalidInput
from comfyrelay.services.jobs.batches import BatchRequest
from comfyrelay.services.jobs.submission.requests import ItemRequest
from tests.support.api import Api, Caller, data_of, problem_of
from tests.support.api_calls import complete, fail, lease, submit


@pytest.fixture
async def user(api: Api) -> Caller:
    return await api.user(tokens=100)


@pytest.fixture
async def effect(api: Api) -> int:
    return await api.effect()


def batch_of(effect: int, count: int = 3, **more: Any) -> dict[str, Any]:
    items = [{"input_payload": {"prompt": f"item {n}"}} for n in range(count)]
    return {"effect_id": effect, "items": items, **more}


async def counts(user: Caller, batch: Any) -> dict[str, int]:
    seen = (await user.get(f"/api/batches/{batch['id']}"))["counts"]
    return {status: count for status, count in seen.items() if count}


class TestSubmitting:
    async def test_all_items_are_accepted_and_held(self, user: Caller, effect: int) -> None:
        response = await user.call("POST", "/api/batches", batch_of(effect, label="night run"))
        assert response.status_code == 201
        batch = data_of(response)
        assert (batch["label"], batch["total"], batch["done"], batch["progress"]) == ("night run", 3, 0, 0.0)
        assert (await user.get("/api/wallet"))["balance"] == 79
        jobs = (await user.get(f"/api/ai-jobs?batch_id={batch['id']}"))["items"]
        assert sorted(job["item_no"] for job in jobs) == [0, 1, 2]

    async def test_server_batches_notify_by_webhook_only(self, api: Api, user: Caller, effect: int) -> None:
        urls = ["json://169.254.169.254/latest"]
        body = batch_of(effect, notify_urls=urls)
        assert "notify_urls" in problem_of(await user.call("POST", "/api/batches", body), 422)["errors"]
        problem_of(await user.call("POST", "/api/desk/batches", {"effect_slug": "x", "notify_urls": urls}), 404)
        assert user.user is not None
        request = BatchRequest(
            tenant_id=user.user.tenant_id,
            user_id=user.user.id,
            idempotency_key="k",
            items=[ItemRequest()],
            effect_id=effect,
            notify_urls=urls,
        )
        # the same applies to a program that calls the engine directly
        with pytest.raises(InvalidInput) as refused:
            await api.context.engine.jobs.batches.submit(request)
        assert "webhook_url" in refused.value.errors["notify_urls"]

    async def test_batch_is_created_once_per_key(self, user: Caller, effect: int) -> None:
        body = batch_of(effect, idempotency_key="k")
        first, again = [await user.call("POST", "/api/batches", body) for _ in range(2)]
        assert (first.status_code, again.status_code) == (201, 200)
        assert data_of(first)["id"] == data_of(again)["id"]
        problem_of(await user.call("POST", "/api/batches", batch_of(effect, 2, idempotency_key="k")), 409)

    async def test_batches_without_a_key_are_separate(self, user: Caller, effect: int) -> None:
        first, second = [await user.post("/api/batches", batch_of(effect)) for _ in range(2)]
        assert first["id"] != second["id"]

    async def test_batch_with_an_invalid_item_is_refused(self, user: Caller, effect: int) -> None:
        body = batch_of(effect)
        body["items"][1] = {"input_payload": {"prompt": 5}}
        assert "items.1.prompt" in problem_of(await user.call("POST", "/api/batches", body), 422)["errors"]
        assert (await user.get("/api/batches"))["items"] == []
        response = await user.call("POST", "/api/batches", batch_of(effect, 15))
        assert problem_of(response, 422)["required_tokens"] == 105

    async def test_invalid_batch_is_refused(self, user: Caller, effect: int) -> None:
        invalid: list[Any] = [[], [{"input_file_id": "a", "video_id": "b"}], [{"x": 1}], "items"]
        for items in invalid:
            problem_of(await user.call("POST", "/api/batches", {"effect_id": effect, "items": items}), 422)

    async def test_batch_counts_as_one_active_job(self, user: Caller, effect: int) -> None:
        await user.post("/api/batches", batch_of(effect, 6))
        for _ in range(4):
            await submit(user, effect)
        problem_of(await user.call("POST", "/api/batches", batch_of(effect, 1)), 429)


class TestActions:
    async def test_batch_is_paused_resumed_and_cancelled(self, user: Caller, effect: int) -> None:
        batch = await user.post("/api/batches", batch_of(effect))
        path = f"/api/batches/{batch['id']}"
        assert (await user.post(f"{path}/pause", {"mode": "now"}))["counts"]["paused"] == 3
        assert (await user.post(f"{path}/resume"))["counts"]["queued"] == 3
        canceled = await user.post(f"{path}/cancel")
        assert (canceled["counts"]["canceled"], canceled["progress"]) == (3, 1.0)
        assert (await user.get("/api/wallet"))["balance"] == 100

    async def test_failed_items_are_retried_in_the_same_batch(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        batch = await user.post("/api/batches", batch_of(effect))
        await complete(api, worker, await lease(worker))
        await fail(api, worker, await lease(worker))
        assert await counts(user, batch) == {"completed": 1, "failed": 1, "queued": 1}
        await user.post(f"/api/batches/{batch['id']}/retry-failed")
        assert await counts(user, batch) == {"completed": 1, "queued": 2}

    async def test_moved_batch_is_leased_first(self, api: Api, user: Caller, effect: int) -> None:
        await submit(user, effect)
        batch = await user.post("/api/batches", batch_of(effect))
        await user.post(f"/api/batches/{batch['id']}/move", {"to": "top"})
        job = await user.get(f"/api/ai-jobs/{(await lease(await api.worker()))['job_id']}")
        assert (job["batch_id"], job["item_no"]) == (batch["id"], 0)

    async def test_other_users_batch_is_404(self, api: Api, user: Caller, effect: int) -> None:
        batch = await user.post("/api/batches", batch_of(effect))
        other = await api.user("eve@example.com")
        for verb in ("", "/pause", "/resume", "/cancel", "/retry-failed", "/move"):
            body = {"to": "top"} if verb == "/move" else None
            method = "POST" if verb else "GET"
            problem_of(await other.call(method, f"/api/batches/{batch['id']}{verb}", body), 404)
        assert (await other.get("/api/batches"))["items"] == []
        assert (await other.get(f"/api/ai-jobs?batch_id={batch['id']}"))["items"] == []
        assert await counts(user, batch) == {"queued": 3}


async def test_batches_are_paginated_newest_first(user: Caller, effect: int) -> None:
    created = [(await user.post("/api/batches", batch_of(effect, n)))["id"] for n in (1, 2, 3)]
    first = await user.get("/api/batches?limit=2")
    second = await user.get(f"/api/batches?limit=2&cursor={first['next_cursor']}")
    assert [item["id"] for item in (*first["items"], *second["items"])] == created[::-1]
    assert [item["total"] for item in first["items"]] == [3, 2]
    assert second["next_cursor"] is None
