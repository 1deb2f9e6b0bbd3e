"""Customers cannot get anything for free, and pay for everything that is delivered."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api import Api, Caller, data_of, open_api, problem_of
from tests.support.api_calls import complete, fail, lease, submit, upload
from tests.support.media_samples import (
    image,
    mkv_that_claims,
    png_with_default_image,
    png_with_two_sizes,
    video,
)
from tests.support.world import PostgresBackend, SqliteBackend

pytestmark = pytest.mark.both_databases

SECRET = "secret-of-the-payment-provider"
GRAPH = {
    "1": {"class_type": "Sample", "inputs": {"steps": "{{STEPS}}", "sampler": "{{SAMPLER}}"}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}},
}
STEPS = {
    "key": "steps",
    "type": "number",
    "placeholder": "{{STEPS}}",
    "default_value": 10,
    "minimum": 1,
    "maximum": 50,
    "is_whole": True,
    "user_configurable": True,
}
SAMPLER = {"key": "sampler", "type": "text", "placeholder": "{{SAMPLER}}", "default_value": "euler"}


@pytest.fixture
async def api(backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path) -> AsyncIterator[Api]:
    """Yield a studio with default settings, payments and a default fleet."""
    settings: dict[str, Any] = {
        "own_workflows": "permitted",
        "own_workflow_tokens_per_second": 1,
        "default_fleet": "home-clip",
        "payment_webhook_secret": SECRET,
    }
    async with open_api(backend, tmp_path, storage_url=storage_url, **settings) as api:
        await api.engine.workers.fleets.create(slug="home-clip")
        await api.engine.catalogue.workflows.create(
            slug="w",
            graph=GRAPH,
            properties=[STEPS, SAMPLER],
            output_extension="png",
            output_mime_type="image/png",
        )
        await api.engine.catalogue.effects.create(
            slug="e", workflow_slug="w", credits_cost=5, price_formula="steps", max_credits_cost=50
        )
        yield api


async def offer_converter(api: Api, kind: str, **price: Any) -> int:
    """Publish an effect that takes an image of at most one megapixel, or a video of at most one second; return its
    id."""
    given = {"key": "given", "type": kind, "placeholder": "{{P}}", "maximum": 1, "is_primary_input": True}
    await api.engine.catalogue.workflows.create(
        slug="converter",
        graph={**GRAPH, "3": {"class_type": "Load", "inputs": {"file": "{{P}}"}}},
        properties=[STEPS, SAMPLER, given],
        output_extension="png",
        output_mime_type="image/png",
    )
    effects = api.engine.catalogue.effects
    return (await effects.create(slug="converter", workflow_slug="converter", credits_cost=1, **price)).id


async def effect_of(user: Caller) -> int:
    return int((await user.get("/api/effects/e"))["id"])


async def balance(user: Caller) -> int:
    return int((await user.get("/api/wallet"))["balance"])


async def report(api: Api, **event: Any) -> httpx.Response:
    """Send a payment event as the payment provider does."""
    body = json.dumps(event).encode()
    at = int(api.clock.now.timestamp())
    signed = hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"X-Signature": f"t={at},v1={signed}"}
    return await api.anonymous.http.post("/api/webhooks/payments", content=body, headers=headers)


async def pay(api: Api, event_id: str = "pay-1", amount: int = 10) -> None:
    response = await report(
        api, type="payment.succeeded", event_id=event_id, email="ada@example.com", amount=amount, currency="EUR"
    )
    assert data_of(response)["status"] == "credited"


def refund(api: Api, event_id: str = "ref-1", **fields: Any) -> Any:
    return report(api, type="payment.refunded", event_id=event_id, payment_id="pay-1", **fields)


class TestJobs:
    async def test_own_graph_and_workflow_of_the_catalogue_are_refused(self, api: Api) -> None:
        user = await api.user()
        problem_of(await user.call("POST", "/api/workflows", {"graph": GRAPH, "properties": [STEPS, SAMPLER]}), 403)
        for path in ("/api/ai-jobs", "/api/ai-jobs/price"):
            body = {"workflow_slug": "w", **({"idempotency_key": "k"} if path == "/api/ai-jobs" else {})}
            problem_of(await user.call("POST", path, body), 404)
        problem_of(await user.call("POST", "/api/admin/workflows/w/test-run", {}), 403)

    async def test_price_cannot_be_lowered_by_the_request(self, api: Api) -> None:
        user = await api.user(tokens=100)
        effect_id = await effect_of(user)
        body = {"effect_id": effect_id, "idempotency_key": "k", "input_payload": {"steps": 40}}
        for expected in (0, 5, 39):
            problem_of(await user.call("POST", "/api/ai-jobs", {**body, "expected_tokens": expected}), 409)
        for more in ({"reserved_tokens": 0}, {"credits_cost": 0}, {"is_test": True}, {"expected_tokens": -40}):
            problem_of(await user.call("POST", "/api/ai-jobs", {**body, **more}), 422)
        for payload in ({"steps": 51}, {"steps": -40}, {"steps": 0}, {"sampler": "free"}, {"price": 0}):
            problem_of(await user.call("POST", "/api/ai-jobs", {**body, "input_payload": payload}), 422)
        assert await balance(user) == 100

    async def test_long_text_and_long_video_are_refused(self, api: Api) -> None:
        user = await api.user(tokens=100)
        words = {"key": "words", "type": "text", "placeholder": "{{W}}", "maximum": 20, "user_configurable": True}
        clip = {"key": "clip", "type": "video", "placeholder": "{{V}}", "maximum": 1, "is_primary_input": True}
        graph = {**GRAPH, "3": {"class_type": "Video", "inputs": {"words": "{{W}}", "clip": "{{V}}"}}}
        await api.engine.catalogue.workflows.create(
            slug="v",
            graph=graph,
            properties=[STEPS, SAMPLER, words, clip],
            output_extension="mp4",
            output_mime_type="video/mp4",
        )
        # Without the limit of the input, a video of any length would cost at most 2 tokens.
        effect = await api.engine.catalogue.effects.create(
            slug="v", workflow_slug="v", credits_cost=1, price_formula="seconds", max_credits_cost=2
        )
        long, short = [
            await upload(user, video(frames=frames), name="a.mp4", mime_type="video/mp4") for frames in (30, 20)
        ]
        for file_id, text, field in ((long, "a", "input_file_id"), (short, "a" * 21, "words")):
            body = {"effect_id": effect.id, "input_file_id": file_id, "input_payload": {"words": text}}
            for path, more in (("/api/ai-jobs", {"idempotency_key": "k"}), ("/api/ai-jobs/price", {})):
                assert field in problem_of(await user.call("POST", path, {**body, **more}), 422)["errors"]
        item = {"input_file_id": long}
        batch = {"effect_id": effect.id, "idempotency_key": "b", "items": [item]}
        assert "items.0.input_file_id" in problem_of(await user.call("POST", "/api/batches", batch), 422)["errors"]
        assert await balance(user) == 100
        await submit(user, effect.id, input_file_id=short, input_payload={"words": "a" * 20})

    async def test_batch_costs_the_price_of_each_job(self, api: Api) -> None:
        user = await api.user(tokens=60)
        body = {"effect_id": await effect_of(user), "items": [{"input_payload": {"steps": n}} for n in (40, 15)]}
        await user.post("/api/batches", {**body, "idempotency_key": "b"})
        assert await balance(user) == 5
        problem_of(await user.call("POST", "/api/batches", {**body, "idempotency_key": "c"}), 422)
        huge = {**body, "items": [{"input_payload": {"steps": 51}}], "idempotency_key": "d"}
        assert "items.0.steps" in problem_of(await user.call("POST", "/api/batches", huge), 422)["errors"]
        assert await balance(user) == 5

    async def test_key_of_a_cheap_job_is_refused_for_an_expensive_job(self, api: Api) -> None:
        user = await api.user(tokens=100)
        effect_id = await effect_of(user)
        body = {"effect_id": effect_id, "idempotency_key": "k"}
        await user.post("/api/ai-jobs", {**body, "input_payload": {"steps": 5}})
        problem_of(await user.call("POST", "/api/ai-jobs", {**body, "input_payload": {"steps": 50}}), 409)
        assert await balance(user) == 95

    async def test_concurrent_jobs_cannot_share_the_last_tokens(self, api: Api) -> None:
        user = await api.user(tokens=10)
        effect_id = await effect_of(user)
        bodies = [{"effect_id": effect_id, "idempotency_key": f"k{number}"} for number in range(5)]
        responses = await asyncio.gather(*(user.call("POST", "/api/ai-jobs", body) for body in bodies))
        assert sorted(response.status_code for response in responses) == [201, 422, 422, 422, 422]
        assert await balance(user) == 0

    async def test_concurrent_batches_and_jobs_cannot_share_the_last_tokens(self, api: Api) -> None:
        user = await api.user(tokens=20)
        effect_id = await effect_of(user)
        batch = {"effect_id": effect_id, "items": [{}, {}]}
        sent = [
            *(user.call("POST", "/api/batches", {**batch, "idempotency_key": f"b{number}"}) for number in range(3)),
            *(user.call("POST", "/api/ai-jobs", {"effect_id": effect_id, "idempotency_key": "a"}) for _ in range(3)),
        ]
        await asyncio.gather(*sent)
        [reserved] = {sum(job["reserved_tokens"] for job in (await user.get("/api/ai-jobs"))["items"])}
        assert (reserved, await balance(user)) in {(20, 0), (10, 10)}
        assert (await api.engine.operations.reconciler.run()).is_clean

    async def test_concurrent_reruns_cannot_share_the_last_tokens(self, api: Api) -> None:
        user, worker = await api.user(tokens=20), await api.worker()
        job = await submit(user, await effect_of(user))
        await complete(api, worker, await lease(worker))
        path = f"/api/ai-jobs/{job['id']}/again"
        answers = await asyncio.gather(*(user.call("POST", path, {}) for _ in range(4)))
        assert sorted(answer.status_code for answer in answers) == [201, 422, 422, 422]
        assert await balance(user) == 0

    async def test_canceled_job_is_retried_and_paid_once(self, api: Api) -> None:
        user = await api.user(tokens=40)
        job = await submit(user, await effect_of(user))
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        path = f"/api/ai-jobs/{job['id']}/retry"
        answers = await asyncio.gather(*(user.post(path) for _ in range(4)))
        assert len({answer["id"] for answer in answers}) == 1
        await api.engine.outbox.delivery.idle()
        assert await balance(user) == 30

    async def test_values_are_not_evaluated_as_formulas(self, api: Api) -> None:
        user = await api.user(tokens=100)
        effect_id = await effect_of(user)
        texts = ("10) * (0", "0 * 40", "min(1, 40)", "__import__('os')", "40; steps = 1", "{{SAMPLER}}")
        for value in (*texts, [1], {"steps": 1}, True):
            body = {"effect_id": effect_id, "input_payload": {"steps": value}}
            for path, more in (("/api/ai-jobs/price", {}), ("/api/ai-jobs", {"idempotency_key": "k"})):
                problem_of(await user.call("POST", path, {**body, **more}), 422)
        for key in ("min", "price_formula", "credits_cost", "__class__", "steps + 0"):
            body = {"effect_id": effect_id, "input_payload": {key: 1}, "idempotency_key": "k"}
            problem_of(await user.call("POST", "/api/ai-jobs", body), 422)
        # Numbers that JSON does not allow.
        for number in ("NaN", "-Infinity", "1e999"):
            content = f'{{"effect_id": {effect_id}, "idempotency_key": "k", "input_payload": {{"steps": {number}}}}}'
            headers = {**user.headers, "Content-Type": "application/json"}
            assert (await user.http.post("/api/ai-jobs", content=content, headers=headers)).status_code == 422
        problem_of(await user.call("PATCH", "/api/admin/effects/e", {"price_formula": "0 * steps"}), 403)
        assert await balance(user) == 100

    async def test_input_cannot_grow_after_its_price_is_accepted(self, api: Api) -> None:
        user = await api.user(tokens=100)
        clip = {"key": "clip", "type": "video", "placeholder": "{{V}}", "maximum": 9, "is_primary_input": True}
        await api.engine.catalogue.workflows.create(
            slug="v",
            graph={**GRAPH, "3": {"class_type": "Video", "inputs": {"clip": "{{V}}"}}},
            properties=[STEPS, SAMPLER, clip],
            output_extension="mp4",
            output_mime_type="video/mp4",
        )
        effect = await api.engine.catalogue.effects.create(
            slug="v", workflow_slug="v", credits_cost=1, price_formula="10 * seconds", max_credits_cost=90
        )
        short, long = video(frames=25), video(frames=200)
        about = {"original_filename": "a.mp4", "mime_type": "video/mp4", "size": len(short)}
        slot = await user.post("/api/videos/uploads", about)
        url, headers = slot["upload_url"], slot["upload_headers"]
        assert (await user.http.put(url, content=short, headers=headers)).is_success
        job = await submit(user, effect.id, input_file_id=slot["file"]["id"])
        assert job["reserved_tokens"] == 10
        # A client may also send more than the announced size.
        for more in (headers, {**headers, "Content-Length": str(len(long))}):
            sent = await user.http.put(url, content=long, headers=more)
            assert sent.status_code >= 400

    @pytest.mark.parametrize("price", [{}, {"price_formula": "megapixels", "max_credits_cost": 9}])
    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (image("TIFF", (1200, 900)), "This image has more than 1 megapixels."),
            (image("AVIF", (1200, 900)), "This image has more than 1 megapixels."),
            (image("GIF", frames=2), "This image is animated. Upload a single picture."),
            (image("WEBP", frames=2), "This image is animated. Upload a single picture."),
            (image("PNG", frames=2), "This image is animated. Upload a single picture."),
            (png_with_default_image(), "This image is animated. Upload a single picture."),
            (png_with_two_sizes((16, 16), (1200, 900)), "This image has more than 1 megapixels."),
            (b"no image", "cat.png: The file is not a readable image."),
        ],
        ids=["tiff", "avif", "gif", "webp", "apng", "default image", "two sizes", "text"],
    )
    async def test_image_is_measured_in_every_format(
        self, api: Api, data: bytes, problem: str, price: dict[str, Any]
    ) -> None:
        user = await api.user(tokens=100)
        effect_id = await offer_converter(api, "image", **price)
        body = {"effect_id": effect_id, "input_file_id": await upload(user, data)}
        for path, more in (("/api/ai-jobs", {"idempotency_key": "k"}), ("/api/ai-jobs/price", {})):
            refused = problem_of(await user.call("POST", path, {**body, **more}), 422)
            assert refused["errors"] == {"input_file_id": problem}
        assert await balance(user) == 100

    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (mkv_that_claims(0.5, video("matroska", frames=50)), "This must be at most 1 seconds long."),
            (
                video("matroska", frames=80, rate=100),
                "This video has more than 60 frames per second. It must have at most 60 frames, and has 80. "
                "Shorten it, or save it with 60 frames per second.",
            ),
        ],
        ids=["false duration", "many frames"],
    )
    @pytest.mark.parametrize("price", [{}, {"price_formula": "seconds", "max_credits_cost": 9}])
    async def test_frames_of_a_video_are_counted(
        self, api: Api, data: bytes, problem: str, price: dict[str, Any]
    ) -> None:
        user = await api.user(tokens=100)
        effect_id = await offer_converter(api, "video", **price)
        file_id = await upload(user, data, name="a.mkv", mime_type="video/x-matroska")
        body = {"effect_id": effect_id, "input_file_id": file_id, "idempotency_key": "k"}
        refused = problem_of(await user.call("POST", "/api/ai-jobs", body), 422)
        assert refused["errors"] == {"input_file_id": problem}

    async def test_slow_motion_costs_what_its_frames_take(self, api: Api) -> None:
        user = await api.user(tokens=100)
        effect_id = await offer_converter(api, "video", price_formula="60 * seconds", max_credits_cost=90)
        for frames, rate, tokens in ((20, 60, 20), (48, 240, 48)):
            data = video(frames=frames, rate=rate)
            body = {"effect_id": effect_id, "input_file_id": await upload(user, data, mime_type="video/mp4")}
            assert (await user.post("/api/ai-jobs/price", body))["tokens"] == tokens
            job = await user.post("/api/ai-jobs", {**body, "idempotency_key": f"{rate}"})
            assert job["reserved_tokens"] == tokens

    async def test_replaced_input_is_measured_again(self, api: Api) -> None:
        """A few S3 servers let an upload replace another one."""
        user = await api.user(tokens=100)
        effect_id = await offer_converter(api, "video", price_formula="50 * seconds", max_credits_cost=90)
        long, short = video(frames=20), video(frames=10)
        file_id = await upload(user, short + bytes(len(long) - len(short)), mime_type="video/mp4")
        body = {"effect_id": effect_id, "input_file_id": file_id}
        assert (await user.post("/api/ai-jobs/price", body))["tokens"] == 20
        [path] = [entry.path async for entry in api.engine.objects.list() if file_id in entry.path]
        await api.engine.objects.put(path, long)
        assert (await user.post("/api/ai-jobs/price", body))["tokens"] == 40

    async def test_file_that_is_not_uploaded_yet_is_refused(self, api: Api) -> None:
        """Otherwise, any file could be uploaded after the limits were checked."""
        user = await api.user(tokens=100)
        effect_id = await offer_converter(api, "image")
        about = {"original_filename": "cat.png", "mime_type": "image/png", "size": 1000}
        file_id = (await user.post("/api/videos/uploads", about))["file"]["id"]
        body = {"effect_id": effect_id, "input_file_id": file_id, "idempotency_key": "k"}
        problem = problem_of(await user.call("POST", "/api/ai-jobs", body), 422)
        assert problem["errors"] == {"input_file_id": "cat.png is not uploaded yet."}

    async def test_deleted_job_is_not_refunded(self, api: Api) -> None:
        user, worker = await api.user(tokens=20), await api.worker()
        done, running = await submit(user, await effect_of(user)), await submit(user, await effect_of(user))
        await complete(api, worker, await lease(worker))
        await lease(worker)
        assert (await user.call("DELETE", f"/api/ai-jobs/{done['id']}")).is_success
        problem_of(await user.call("DELETE", f"/api/ai-jobs/{running['id']}"), 409)
        await api.engine.outbox.delivery.idle()
        assert await balance(user) == 0
        problem_of(await user.call("POST", f"/api/ai-jobs/{done['id']}/again", {}), 404)

    async def test_jobs_of_others_cannot_be_run_again_or_refunded(self, api: Api) -> None:
        owner, thief, worker = await api.user(tokens=10), await api.user("eve@example.com"), await api.worker()
        job = await submit(owner, await effect_of(owner))
        await complete(api, worker, await lease(worker))
        for verb in ("again", "retry", "cancel"):
            problem_of(await thief.call("POST", f"/api/ai-jobs/{job['id']}/{verb}", {}), 404)
        for verb in ("refund", "run-free"):
            problem_of(await thief.call("POST", f"/api/admin/dispatches/1/{verb}", {}), 403)
        assert (await balance(owner), await balance(thief)) == (0, 0)

    async def test_failed_or_canceled_job_is_refunded_once(self, api: Api) -> None:
        user, worker = await api.user(tokens=20), await api.worker()
        first, second = await submit(user, await effect_of(user)), await submit(user, await effect_of(user))
        leased = await lease(worker)
        await asyncio.gather(*(fail(api, worker, leased) for _ in range(3)))
        other = {first["id"], second["id"]} - {leased["job_id"]}
        for _ in range(3):
            await user.call("POST", f"/api/ai-jobs/{other.copy().pop()}/cancel", {})
        await api.engine.outbox.delivery.idle()
        assert await balance(user) == 20
        report_ = await api.engine.operations.reconciler.run(repair=True)
        assert (report_.is_clean, await balance(user)) == (True, 20)

    async def test_completed_job_is_not_refunded_by_a_late_cancel(self, api: Api) -> None:
        user, worker = await api.user(tokens=20), await api.worker()
        job = await submit(user, await effect_of(user))
        leased = await lease(worker)
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        await complete(api, worker, leased)
        await user.call("POST", f"/api/ai-jobs/{job['id']}/cancel", {})
        assert (await user.get(f"/api/ai-jobs/{job['id']}"))["charged_tokens"] == 10
        assert await balance(user) == 10


class TestMoney:
    @pytest.mark.parametrize("amount", [0, -5, 1.5, "5", True, None, 10**30])
    async def test_amounts_must_be_positive_whole_numbers(self, api: Api, amount: Any) -> None:
        user, admin = await api.user(tokens=5), await api.user("root@example.com", is_admin=True)
        assert user.user is not None
        for what in ("credits", "debits"):
            path = f"/api/admin/tenants/{user.user.tenant_id}/{what}"
            problem_of(await admin.call("POST", path, {"amount": amount, "reference": "r"}), 422)
        problem_of(
            await report(api, type="payment.succeeded", event_id="p", email="ada@example.com", amount=amount), 422
        )
        if amount is not None:
            problem_of(await refund(api, amount=amount), 422)
        assert await balance(user) == 5

    async def test_administrators_debit_applies_once_and_never_exceeds_the_balance(self, api: Api) -> None:
        user, admin = await api.user(tokens=30), await api.user("root@example.com", is_admin=True)
        assert user.user is not None
        path = f"/api/admin/tenants/{user.user.tenant_id}/debits"
        taken = await asyncio.gather(*(admin.post(path, {"amount": 20, "reference": "r"}) for _ in range(3)))
        assert [answer["balance"] for answer in taken] == [10, 10, 10]
        problem_of(await admin.call("POST", path, {"amount": 5, "reference": "r"}), 409)
        problem = problem_of(await admin.call("POST", path, {"amount": 11, "reference": "r2"}), 422)
        assert problem["errors"]["amount"].startswith("The wallet has only 10 tokens.")
        problem_of(await user.call("POST", path, {"amount": 1, "reference": "r3"}), 403)
        assert await balance(user) == 10
        assert (await api.engine.operations.reconciler.run()).is_clean

    async def test_refunded_payment_is_taken_back_once(self, api: Api) -> None:
        user = await api.user()
        await pay(api)
        answers = await asyncio.gather(*(refund(api) for _ in range(3)))
        assert [data_of(answer)["status"] for answer in answers] == ["refunded"] * 3
        assert await balance(user) == 0
        # Another event cannot return the same payment again, and the payment cannot be credited again.
        problem_of(await refund(api, "ref-2"), 409)
        await pay(api)
        assert await balance(user) == 0

    async def test_partial_refunds_never_exceed_the_payment(self, api: Api) -> None:
        user, admin = await api.user(tokens=100), await api.user("root@example.com", is_admin=True)
        await pay(api)
        answers = await asyncio.gather(*(refund(api, f"ref-{number}", amount=4) for number in range(5)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 409, 409, 409]
        assert await balance(user) == 102
        [payment] = (await admin.get("/api/admin/payments"))["items"]
        assert (payment["email"], payment["amount"], payment["refunded"]) == ("ada@example.com", 10, 8)
        problem_of(await user.call("GET", "/api/admin/payments"), 403)

    async def test_spent_tokens_of_a_refunded_payment_are_owed(self, api: Api) -> None:
        user = await api.user()
        await pay(api)
        job = await submit(user, await effect_of(user))
        data_of(await refund(api))
        wallet = await user.get("/api/wallet")
        assert (wallet["balance"], wallet["owed_tokens"]) == (0, 10)
        # The canceled job gives the tokens back to the wallet, but they cannot be spent.
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        await api.engine.outbox.delivery.idle()
        body = {"effect_id": await effect_of(user), "idempotency_key": "again"}
        problem_of(await user.call("POST", "/api/ai-jobs", body), 422)
        await pay(api, "pay-2", 3)
        wallet = await user.get("/api/wallet")
        assert (wallet["balance"], wallet["owed_tokens"]) == (3, 0)
        assert (await api.engine.operations.reconciler.run()).is_clean

    async def test_completed_job_is_refunded_once(self, api: Api) -> None:
        user, admin = await api.user(tokens=10), await api.user("root@example.com", is_admin=True)
        worker = await api.worker()
        job = await submit(user, await effect_of(user))
        await complete(api, worker, await lease(worker))
        [dispatch] = (await admin.get(f"/api/admin/dispatches?search={job['id']}"))["items"]
        path = f"/api/admin/dispatches/{dispatch['id']}/refund"
        answers = await asyncio.gather(*(admin.post(path) for _ in range(4)))
        assert answers == [{"tokens": 10}] * 4
        assert await balance(user) == 10
        assert (await api.engine.operations.reconciler.run()).is_clean

    async def test_refund_of_an_unknown_or_unsigned_payment_changes_nothing(self, api: Api) -> None:
        user = await api.user(tokens=7)
        problem_of(await refund(api), 404)
        body = {"type": "payment.succeeded", "event_id": "p", "email": "ada@example.com", "amount": 100}
        problem_of(await user.call("POST", "/api/webhooks/payments", body), 401)
        assert await balance(user) == 7
