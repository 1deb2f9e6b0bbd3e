"""Prices that depend on the inputs: the price on the button is the price that is charged."""

from pathlib import Path
from typing import Any

import pytest

from comfyrelay.errors import RunTimedOut
from tests.support.api import Api, Caller, open_api, problem_of
from tests.support.api_calls import complete, lease, png, upload
from tests.support.world import PostgresBackend, SqliteBackend

pytestmark = pytest.mark.both_databases

GRAPH = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "{{PHOTO}}"}},
    "2": {"class_type": "Sample", "inputs": {"image": ["1", 0], "steps": "{{STEPS}}", "width": "{{WIDTH}}"}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0]}},
}
PHOTO = {
    "key": "photo",
    "type": "image",
    "placeholder": "{{PHOTO}}",
    "is_primary_input": True,
    "required": True,
    "user_configurable": True,
}
STEPS = {
    "key": "steps",
    "type": "number",
    "placeholder": "{{STEPS}}",
    "default_value": 8,
    "minimum": 1,
    "maximum": 50,
    "is_whole": True,
    "user_configurable": True,
}
WIDTH = {**STEPS, "key": "width", "placeholder": "{{WIDTH}}", "default_value": 512, "minimum": 64, "maximum": 2048}


async def offer(api: Api, admin: Caller, **price: Any) -> int:
    """Create an effect with this price; return its id."""
    workflow = {
        "slug": "w",
        "graph": GRAPH,
        "properties": [PHOTO, STEPS, WIDTH],
        "output_extension": "png",
        "output_mime_type": "image/png",
    }
    await admin.post("/api/admin/workflows", workflow)
    await api.engine.workers.fleets.create(slug="home-clip", workflow_slugs=["w"])
    effect = await admin.post("/api/admin/effects", {"slug": "e", "workflow_slug": "w", **price})
    return int(effect["id"])


async def root(api: Api) -> Caller:
    return await api.user("root@example.com", is_admin=True)


async def balance(user: Caller) -> int:
    return int((await user.get("/api/wallet"))["balance"])


async def test_price_on_the_button_is_charged(api: Api) -> None:
    user, admin = await api.user(tokens=100), await root(api)
    effect_id = await offer(api, admin, credits_cost=3, price_formula="2 * steps + 0.5", max_credits_cost=60)
    assert (await user.get("/api/effects/e"))["max_credits_cost"] == 60
    inputs = {"effect_id": effect_id, "input_payload": {"steps": 4}, "input_file_id": await upload(user)}
    assert await user.post("/api/ai-jobs/price", inputs) == {"tokens": 9}
    job = await user.post("/api/ai-jobs", {**inputs, "idempotency_key": "k", "expected_tokens": 9})
    assert (job["reserved_tokens"], await balance(user)) == (9, 91)
    worker = await api.worker()
    await complete(api, worker, await lease(worker))
    assert (await user.get(f"/api/ai-jobs/{job['id']}"))["charged_tokens"] == 9
    assert await balance(user) == 91
    assert (await api.engine.operations.reconciler.run()).is_clean


async def test_input_is_measured_by_the_server(api: Api) -> None:
    user, admin = await api.user(tokens=100), await root(api)
    # The picture has 8 × 8 pixels; its name says something else.
    effect_id = await offer(api, admin, credits_cost=1, price_formula="1000000 * megapixels", max_credits_cost=99)
    file_id = await upload(user, png(), name="1x1.png")
    assert await user.post("/api/ai-jobs/price", {"effect_id": effect_id, "input_file_id": file_id}) == {"tokens": 64}
    problem = problem_of(
        await user.call(
            "POST",
            "/api/ai-jobs",
            {
                "effect_id": effect_id,
                "input_file_id": await upload(user, b"no picture"),
                "idempotency_key": "k",
            },
        ),
        422,
    )
    assert "input_file_id" in problem["errors"]
    assert await balance(user) == 100


async def test_price_that_does_not_depend_on_the_input_is_known_before_the_upload(api: Api) -> None:
    user, admin = await api.user(), await root(api)
    effect_id = await offer(api, admin, credits_cost=1, price_formula="2 * steps", max_credits_cost=60)
    assert (await user.get("/api/effects/e"))["price_needs_input"] is False
    body = {"effect_id": effect_id, "input_payload": {"steps": 4}}
    assert await user.post("/api/ai-jobs/price", body) == {"tokens": 8}
    problem_of(await user.call("POST", "/api/ai-jobs", {**body, "idempotency_key": "k", "expected_tokens": 8}), 422)
    await admin.call("PATCH", "/api/admin/effects/e", {"price_formula": "steps + megapixels"})
    assert (await user.get("/api/effects/e"))["price_needs_input"] is True
    problem = problem_of(await user.call("POST", "/api/ai-jobs/price", body), 422)
    assert problem["errors"] == {"photo": "This input is required: send input_file_id or video_id."}


async def test_price_is_known_without_a_required_text(api: Api) -> None:
    user, admin = await api.user(), await root(api)
    effect_id = await offer(
        api, admin, credits_cost=1, price_formula="steps + 1000000 * megapixels", max_credits_cost=99
    )
    prompt = {"key": "prompt", "type": "text", "placeholder": "{{PROMPT}}", "required": True, "user_configurable": True}
    graph = {**GRAPH, "4": {"class_type": "Text", "inputs": {"text": "{{PROMPT}}"}}}
    change = {"graph": graph, "properties": [PHOTO, STEPS, WIDTH, prompt]}
    assert (await admin.call("PATCH", "/api/admin/workflows/w", change)).is_success
    body = {"effect_id": effect_id, "input_file_id": await upload(user)}
    assert await user.post("/api/ai-jobs/price", body) == {"tokens": 72}
    problem = problem_of(await user.call("POST", "/api/ai-jobs", {**body, "idempotency_key": "k"}), 422)
    assert "prompt" in problem["errors"]


async def test_changed_price_is_refused_with_the_new_one(api: Api) -> None:
    user, admin = await api.user(tokens=100), await root(api)
    effect_id = await offer(api, admin, credits_cost=1, price_formula="steps", max_credits_cost=60)
    inputs = {"effect_id": effect_id, "input_payload": {"steps": 5}, "input_file_id": await upload(user)}
    seen = (await user.post("/api/ai-jobs/price", inputs))["tokens"]
    await admin.call("PATCH", "/api/admin/effects/e", {"price_formula": "3 * steps"})
    body = {**inputs, "idempotency_key": "k", "expected_tokens": seen}
    problem = problem_of(await user.call("POST", "/api/ai-jobs", body), 409)
    assert problem["detail"] == "The price is now 15 tokens, not 5. No job was started. Confirm the new price."
    assert await balance(user) == 100


async def test_changed_price_of_a_batch_is_refused_with_the_new_one(api: Api) -> None:
    user, admin = await api.user(tokens=100), await root(api)
    effect_id = await offer(api, admin, credits_cost=1, price_formula="steps", max_credits_cost=60)
    file_id = await upload(user)
    items = [{"input_payload": {"steps": steps}, "input_file_id": file_id} for steps in (5, 7)]
    body = {"effect_id": effect_id, "items": items, "idempotency_key": "k"}
    problem = problem_of(await user.call("POST", "/api/batches", {**body, "expected_tokens": 2}), 409)
    assert (problem["required_tokens"], await balance(user)) == (12, 100)
    assert (await user.get("/api/batches"))["items"] == []
    await user.post("/api/batches", {**body, "expected_tokens": 12})
    assert await balance(user) == 88


async def test_price_of_a_batch_is_charged(api: Api) -> None:
    user, admin = await api.user(tokens=5000), await root(api)
    formula = "steps + 1000000 * megapixels"
    effect_id = await offer(api, admin, credits_cost=1, price_formula=formula, max_credits_cost=99)
    files = [await upload(user, png(width=1 + number % 8)) for number in range(30)]
    items = [{"input_file_id": file, "input_payload": {"steps": 1 + at % 2}} for at, file in enumerate(files)]
    body = {"effect_id": effect_id, "items": items}
    price = await user.post("/api/batches/price", body)
    assert price["items"] == [1 + at % 2 + 8 * (1 + at % 8) for at in range(30)]
    assert price["tokens"] == sum(price["items"])
    assert await balance(user) == 5000
    await user.post("/api/batches", {**body, "idempotency_key": "k", "expected_tokens": price["tokens"]})
    assert await balance(user) == 5000 - price["tokens"]


async def test_batch_that_is_too_large_has_no_price(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> None:
    async with open_api(backend, tmp_path, max_batch_nodes=2 * len(GRAPH)) as api:
        user, admin = await api.user(), await root(api)
        effect_id = await offer(api, admin, credits_cost=1, price_formula="steps", max_credits_cost=60)
        body = {"effect_id": effect_id, "items": [{"input_payload": {"steps": 4}}] * 2}
        assert await user.post("/api/batches/price", body) == {"tokens": 8, "items": [4, 4]}
        problem = problem_of(await user.call("POST", "/api/batches/price", {**body, "items": [{}] * 3}), 413)
        assert problem["detail"] == "A batch of this effect has at most 2 items. Send several batches."
        problem_of(await user.call("POST", "/api/batches/price", {**body, "items": []}), 422)


@pytest.mark.parametrize(
    ("price", "field"),
    [
        ({"price_formula": "__import__('os')", "max_credits_cost": 9}, "price_formula"),
        ({"price_formula": "2 * seconds", "max_credits_cost": 9}, "price_formula"),
        ({"price_formula": "9 / (steps - 1)", "max_credits_cost": 9}, "price_formula"),
        ({"price_formula": "steps"}, "max_credits_cost"),
        ({"price_formula": "steps", "max_credits_cost": -1}, "max_credits_cost"),
        ({"price_formula": "steps", "max_credits_cost": 0}, "max_credits_cost"),
    ],
)
async def test_unsafe_price_is_not_published(api: Api, price: dict[str, Any], field: str) -> None:
    admin = await root(api)
    await offer(api, admin, credits_cost=1)
    problem = problem_of(await admin.call("PATCH", "/api/admin/effects/e", price), 422)
    assert field in problem["errors"]


async def test_effect_without_limits_is_not_published(api: Api) -> None:
    admin = await root(api)
    await offer(api, admin, credits_cost=1)
    huge = {**STEPS, "key": "batch_size", "placeholder": "{{WIDTH}}", "maximum": 4096}
    workflow = {
        "slug": "huge",
        "graph": GRAPH,
        "properties": [PHOTO, STEPS, huge],
        "output_extension": "png",
        "output_mime_type": "image/png",
    }
    await admin.post("/api/admin/workflows", workflow)
    body = {"slug": "h", "workflow_slug": "huge", "credits_cost": 1}
    problem = problem_of(await admin.call("POST", "/api/admin/effects", body), 422)
    assert problem["errors"]["properties.batch_size"] == "Lower the maximum to 64 or less, such as 1 to 8."
    # A draft may be saved without limits, but not published, and a published effect keeps its limits.
    await admin.post("/api/admin/effects", {**body, "is_active": False})
    problem_of(await admin.call("PATCH", "/api/admin/effects/h", {"is_active": True}), 422)
    unlimited = {**WIDTH, "maximum": None}
    change = {"properties": [PHOTO, STEPS, unlimited]}
    problem_of(await admin.call("PATCH", "/api/admin/workflows/w", change), 422)


async def test_customer_cannot_exceed_a_limit(api: Api) -> None:
    user, admin = await api.user(tokens=100), await root(api)
    effect_id = await offer(api, admin, credits_cost=1)
    body = {"effect_id": effect_id, "idempotency_key": "k", "input_file_id": await upload(user)}
    for value in (51, 0, -1, 1e400, "8", True, 2.5):
        text = await user.call("POST", "/api/ai-jobs", {**body, "input_payload": {"steps": str(value)}})
        assert text.status_code == 422
    for value in (51, 0, -1, 10**30):
        problem_of(await user.call("POST", "/api/ai-jobs", {**body, "input_payload": {"steps": value}}), 422)
    assert await balance(user) == 100


async def completed(api: Api, user: Caller, effect_id: int, **payload: Any) -> Any:
    body = {"effect_id": effect_id, "input_payload": payload, "input_file_id": await upload(user)}
    job = await user.post("/api/ai-jobs", {**body, "idempotency_key": f"first-{payload}"})
    worker = await api.worker()
    await complete(api, worker, await lease(worker))
    return await user.get(f"/api/ai-jobs/{job['id']}")


async def test_rerun_costs_the_current_price(api: Api) -> None:
    user, admin = await api.user(tokens=200), await root(api)
    effect_id = await offer(api, admin, credits_cost=1, price_formula="steps", max_credits_cost=60)
    job = await completed(api, user, effect_id, steps=5)
    assert job["again_tokens"] == 5
    # 5 steps, and the 64 pixels of the input, which the server measures again.
    formula = "3 * steps + 1000000 * megapixels"
    await admin.call("PATCH", "/api/admin/effects/e", {"price_formula": formula, "max_credits_cost": 99})
    path = f"/api/ai-jobs/{job['id']}"
    problem = problem_of(await user.call("POST", f"{path}/again", {"expected_tokens": 5}), 409)
    assert problem["detail"].startswith("The price is now 79 tokens, not 5.")
    shown = (await user.get(path))["again_tokens"]
    again = await user.post(f"{path}/again", {"expected_tokens": shown})
    assert (shown, again["reserved_tokens"], await balance(user)) == (79, 79, 200 - 5 - 79)
    # A lowered price applies, too.
    await admin.call("PATCH", "/api/admin/effects/e", {"price_formula": None, "max_credits_cost": None})
    assert (await user.post(f"{path}/again"))["reserved_tokens"] == 1
    assert (await api.engine.operations.reconciler.run()).is_clean


async def test_job_of_a_deleted_effect_is_not_offered_for_free(api: Api) -> None:
    user, admin = await api.user(tokens=100), await root(api)
    effect_id = await offer(api, admin, credits_cost=7)
    job = await completed(api, user, effect_id)
    await admin.call("DELETE", "/api/admin/effects/e")
    path = f"/api/ai-jobs/{job['id']}"
    assert (await user.get(path))["again_tokens"] == 7
    problem_of(await user.call("POST", f"{path}/again", {"expected_tokens": 0}), 409)


async def test_rerun_of_a_batch_costs_the_current_price(api: Api) -> None:
    user, admin = await api.user(tokens=100), await root(api)
    effect_id = await offer(api, admin, credits_cost=1, price_formula="steps", max_credits_cost=60)
    file_id = await upload(user)
    items = [{"input_payload": {"steps": steps}, "input_file_id": file_id} for steps in (2, 3)]
    batch = await user.post("/api/batches", {"effect_id": effect_id, "idempotency_key": "b", "items": items})
    await admin.call("PATCH", "/api/admin/effects/e", {"price_formula": "10 * steps"})
    await user.post(f"/api/batches/{batch['id']}/again")
    assert await balance(user) == 100 - 5 - 50


async def test_rerun_cannot_exceed_a_lowered_limit(api: Api) -> None:
    user, admin = await api.user(tokens=100), await root(api)
    effect_id = await offer(api, admin, credits_cost=1)
    job = await completed(api, user, effect_id, steps=40)
    properties = [PHOTO, {**STEPS, "maximum": 20}, WIDTH]
    await admin.call("PATCH", "/api/admin/workflows/w", {"properties": properties})
    problem = problem_of(await user.call("POST", f"/api/ai-jobs/{job['id']}/again", {}), 409)
    assert problem["detail"] == (
        "The limits of 'e' have changed. steps: This must be at most 20. Open the effect to start a new job."
    )
    assert await balance(user) == 99


async def test_retry_costs_the_price_that_was_accepted(api: Api) -> None:
    user, admin = await api.user(tokens=100), await root(api)
    effect_id = await offer(api, admin, credits_cost=7)
    body = {"effect_id": effect_id, "input_file_id": await upload(user), "idempotency_key": "k"}
    job = await user.post("/api/ai-jobs", body)
    await user.post(f"/api/ai-jobs/{job['id']}/cancel")
    await admin.call("PATCH", "/api/admin/effects/e", {"credits_cost": 30})
    path = f"/api/ai-jobs/{job['id']}"
    assert (await user.get(path))["again_tokens"] == 7
    retry = await user.post(f"{path}/retry", {"expected_tokens": 7})
    assert (retry["reserved_tokens"], await balance(user)) == (7, 93)


async def test_run_of_an_effect_has_a_limit(api: Api) -> None:
    user, admin = await api.user(tokens=100), await root(api)
    effect_id = await offer(api, admin, credits_cost=7)
    worker = await api.worker()
    assert (await admin.get("/api/admin/effects/e"))["max_run_seconds"] == 1800
    for value in (0, -1, 86_401, None, "60"):
        problem_of(await admin.call("PATCH", "/api/admin/effects/e", {"max_run_seconds": value}), 422)
    await admin.call("PATCH", "/api/admin/effects/e", {"max_run_seconds": 90})
    body = {"effect_id": effect_id, "input_file_id": await upload(user), "idempotency_key": "k"}
    job = await user.post("/api/ai-jobs", body)
    leased = await lease(worker)
    assert leased["max_run_seconds"] == 90
    error = RunTimedOut("The run was stopped after 90 s, which is the limit for this job.").detail
    report = {key: leased[key] for key in ("dispatch_id", "lease_token")}
    await worker.post("/api/worker/fail", {**report, "error_message": error, "fault": "job"})
    await api.engine.outbox.delivery.idle()
    failed = await user.get(f"/api/ai-jobs/{job['id']}")
    assert failed["error"] == (
        "It took too long. Try a smaller image, a shorter video or lower settings. Your tokens were returned."
    )
    assert (failed["status"], await balance(user)) == ("failed", 100)
