"""The API tells customers of an effect nothing about nodes, models, workers, databases or settings."""

import re
from typing import Any

import pytest

from comfyrelay.domain.queue.customer_texts import NOT_AVAILABLE, OUT_OF_SERVICE
from tests.support.api import Api, Caller, problem_of
from tests.support.api_calls import complete, follow, lease, lease_of, submit
from tests.support.outages import database_down

pytestmark = pytest.mark.both_databases
OWN_GRAPH = {
    "1": {"class_type": "Prompt", "inputs": {"text": "a cat"}},
    "2": {"class_type": "SaveVideo", "inputs": {"video": ["1", 0]}},
}
OPERATOR_WORDS = re.compile(
    r"COMFYRELAY|[Nn]ode|[Mm]odel|[Ww]orker|[Dd]atabase|shard|[Ss]torage|workflow|safetensors|SaveVideo|gpu-1"
)


def texts_in(answer: Any) -> str:
    """Return all texts of an answer that a customer reads."""
    if isinstance(answer, dict):
        return " ".join(texts_in(value) for name, value in answer.items() if name not in {"type", "workflow_slug"})
    return " ".join(map(texts_in, answer)) if isinstance(answer, list) else answer if isinstance(answer, str) else ""


async def add_worker_without_nodes(api: Api) -> None:
    """Register a worker that lacks the nodes of the effect."""
    await api.worker(capabilities={"node_types": ["Other"], "models": []})


async def test_effect_that_no_worker_can_run_is_refused_without_operator_terms(api: Api) -> None:
    user, admin = await api.user(tokens=20), await api.user("root@example.com", is_admin=True)
    effect_id = await api.effect()
    await add_worker_without_nodes(api)
    for caller, shows in ((user, False), (admin, True)):
        body = {"effect_id": effect_id, "idempotency_key": "k"}
        problem = problem_of(await caller.call("POST", "/api/ai-jobs", body), 409)
        check = (await caller.get(f"/api/missing?effect_id={effect_id}"))["missing"]
        assert (OPERATOR_WORDS.search(texts_in([problem, check])) is not None) is shows
        assert (problem["detail"] == NOT_AVAILABLE, check["text"] == NOT_AVAILABLE) == (not shows, not shows)
        assert ("missing" in problem, bool(check["items"])) == (shows, shows)
    assert (await user.get("/api/wallet"))["balance"] == 20


async def test_owner_of_a_graph_reads_what_is_missing(api: Api) -> None:
    user = await api.user()
    slug = (await user.post("/api/workflows", {"graph": OWN_GRAPH}))["slug"]
    await api.engine.workers.fleets.create(slug="home-clip", workflow_slugs=[slug])
    await add_worker_without_nodes(api)
    problem = problem_of(await user.call("POST", "/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "k"}), 409)
    assert "SaveVideo" in problem["detail"]


async def test_wait_reason_is_the_same_in_the_queue_and_on_the_jobs_page(api: Api) -> None:
    user = await api.user(tokens=20)
    effect_id = await api.effect()
    await add_worker_without_nodes(api)
    job = await submit(user, effect_id, wait_for_missing=True)
    batch = {"effect_id": effect_id, "idempotency_key": "b", "items": [{}], "wait_for_missing": True}
    await user.post("/api/batches", batch)
    text = (await user.get(f"/api/ai-jobs/{job['id']}"))["waiting"]["text"]
    units = (await user.get("/api/queue"))["items"]
    assert [unit["waiting_text"] for unit in units] == [text, text]
    assert OPERATOR_WORDS.search(text) is None


async def test_progress_and_log_of_an_effect_name_no_node(api: Api) -> None:
    user, admin = await api.user(tokens=20), await api.user("root@example.com", is_admin=True)
    await api.effect()
    worker = await api.worker()
    for caller, lines in ((user, 0), (admin, 1)):
        if caller is admin:
            await api.engine.accounts.ledger.credit(str(admin.user and admin.user.tenant_id), 20, reference="r")
        job = await submit(caller, (await caller.get("/api/effects/clip"))["id"])
        leased = await lease(worker)
        report = {"value": 0.5, "phase": "running", "node": "SaveVideo", "server": "gpu-1"}
        beat = {**lease_of(leased), "progress": report, "logs": ["SaveVideo failed to load model.safetensors"]}
        async with follow(caller, job["id"]) as stream:
            await stream.until("job:started")
            await worker.post("/api/worker/heartbeat", beat)
            [*_, event] = await stream.until("progress")
        view = await caller.get(f"/api/ai-jobs/{job['id']}")
        assert view["progress"] == {"value": 0.5, "phase": "running"}
        assert event.data == view["progress"]
        assert len((await caller.get(f"/api/ai-jobs/{job['id']}/logs"))["items"]) == lines
        await complete(api, worker, leased)


async def test_outage_names_the_database_to_administrators_only(api: Api) -> None:
    user, admin = await api.user(), await api.user("root@example.com", is_admin=True)
    await user.get("/api/effects")
    await admin.get("/api/effects")

    async def detail(caller: Caller) -> str:
        problem = problem_of(await caller.call("GET", "/api/ai-jobs"), 503)
        assert (OPERATOR_WORDS.search(texts_in(problem)) is None) is (caller is not admin)
        return str(problem["detail"])

    with database_down(api.engine.databases, "main"):
        assert await detail(user) == OUT_OF_SERVICE
        assert await detail(admin) == "The shard 'main' is unreachable."


async def test_outage_during_an_upload_names_no_database(api: Api, storage_url: str | None) -> None:
    if storage_url is not None:
        pytest.skip("Files are sent to S3, not to this server.")
    user = await api.user()
    about = {"original_filename": "cat.png", "mime_type": "image/png", "size": 9}
    slot = await user.post("/api/videos/uploads", about)
    with database_down(api.engine.databases, "main"):
        sent = await user.http.put(slot["upload_url"], content=b"x" * 9, headers=slot["upload_headers"])
    assert problem_of(sent, 503)["detail"] == OUT_OF_SERVICE


async def test_history_of_a_job_names_no_worker(api: Api) -> None:
    user = await api.user(tokens=20)
    await api.effect()
    worker = await api.worker()
    job = await submit(user, (await user.get("/api/effects/clip"))["id"])
    await complete(api, worker, await lease(worker))
    events = (await user.get(f"/api/ai-jobs/{job['id']}/history"))["items"]
    assert {"job:started", "job:completed"} <= {event["type"] for event in events}
    assert OPERATOR_WORDS.search(texts_in(events)) is None


async def test_new_workflow_without_a_fleet_names_no_setting(api: Api) -> None:
    user, admin = await api.user(), await api.user("root@example.com", is_admin=True)
    for caller in (user, admin):
        message = (await caller.call("POST", "/api/workflows", {"graph": OWN_GRAPH})).json()["message"]
        assert ("COMFYRELAY" in message) is (caller is admin)
        assert "administrator" in message or caller is admin
