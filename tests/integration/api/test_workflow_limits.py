"""Private workflows and free jobs are limited per tenant, and give their space back when they are removed."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.domain.space import JOB_BYTES, check_space, space_of_job
from comfyrelay.errors import WorkflowLimitReached
from comfyrelay.services.catalogue import checks
from comfyrelay.services.operations.retention import GRACE_SECONDS
from comfyrelay.store import paging
from comfyrelay.store.central.catalogue import MAX_PRIVATE_VERSIONS
from comfyrelay.store.database import Database
from tests.support.api import Api, Caller, open_api, problem_of
from tests.support.world import PostgresBackend, SqliteBackend, execute

pytestmark = pytest.mark.both_databases

MAX_GRAPH_BYTES, MAX_WORKFLOW_BYTES = 20_000, 60_000
PROMPT = {"key": "prompt", "type": "text", "placeholder": "{{PROMPT}}", "user_configurable": True, "default_value": "a"}


@pytest.fixture
async def api(backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path) -> AsyncIterator[Api]:
    limits: dict[str, Any] = {"max_graph_bytes": MAX_GRAPH_BYTES, "max_workflow_bytes": MAX_WORKFLOW_BYTES}
    async with open_api(
        backend, tmp_path, storage_url=storage_url, graph_policy="off", max_body_bytes=2000, **limits
    ) as api:
        await api.stop_loops()
        yield api


@pytest.fixture
async def user(api: Api) -> Caller:
    return await api.user()


def graph(text: str = "", size: int = 0) -> dict[str, Any]:
    inputs = {"text": "{{PROMPT}}", "filename_prefix": text.ljust(size, ".")}
    return {"1": {"class_type": "SaveText", "inputs": inputs}}


def workflow(text: str = "", size: int = 0) -> dict[str, Any]:
    return {"graph": graph(text, size), "name": text or "mine", "properties": [PROMPT], "output_node_id": "1"}


async def add(user: Caller, text: str = "", size: int = 0) -> str:
    slug: str = (await user.post("/api/workflows", workflow(text, size)))["slug"]
    return slug


async def submit(user: Caller, slug: str, key: str = "k") -> Any:
    body = {"workflow_slug": slug, "idempotency_key": key, "wait_for_missing": True}
    return await user.post("/api/ai-jobs", body)


async def end(user: Caller, job: Any) -> None:
    await user.post(f"/api/ai-jobs/{job['id']}/cancel")


async def graphs(api: Api, user: Caller) -> list[str]:
    assert user.user is not None
    return [object_.path async for object_ in api.engine.objects.list(f"tenants/{user.user.tenant_id}/graphs")]


async def space(api: Api) -> int:
    [wallet] = await execute(api.engine.databases.shards["main"], "SELECT space_bytes FROM token_wallets")
    return int(wallet.space_bytes)


async def clean_up(api: Api) -> None:
    """Run retention before and after the grace period of unused graphs."""
    for _ in range(2):
        await api.engine.operations.retention.run_once()
        await api.clock.set(api.clock.now + timedelta(seconds=GRACE_SECONDS + 1))
        while await api.engine.jobs.removal.run_once():
            pass


def with_choices(text: str, size: int) -> dict[str, Any]:
    choices = {**PROMPT, "type": "choice", "choices": ["a", *(f"{number:0100}" for number in range(size // 100))]}
    return {**workflow(text), "properties": [choices]}


async def test_properties_of_a_workflow_are_limited(user: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_PROPERTIES_BYTES", 10 * 1024)
    await user.post("/api/workflows", with_choices("small", 8_000))
    refused = problem_of(await user.call("POST", "/api/workflows", with_choices("large", 15_000)), 422)
    assert refused["errors"] == {
        "properties": "All properties together have 15 KiB; the limit is 10 KiB. Give them fewer choices or shorter "
        "defaults."
    }
    assert [item["name"] for item in (await user.get("/api/workflows"))["items"]] == ["small"]


async def test_page_of_large_workflows_ends_early(user: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 10_000)
    for name in "abc":
        await user.post("/api/workflows", with_choices(name, 4_000))
    first = await user.get("/api/workflows?limit=200")
    second = await user.get(f"/api/workflows?limit=200&cursor={first['next_cursor']}")
    assert [[item["name"] for item in page["items"]] for page in (first, second)] == [["c", "b"], ["a"]]
    assert second["next_cursor"] is None


async def test_graph_body_is_limited_before_it_is_parsed(user: Caller) -> None:
    problem = problem_of(await user.call("POST", "/api/workflows", workflow(size=MAX_GRAPH_BYTES)), 413)
    assert f"{MAX_GRAPH_BYTES} bytes (COMFYRELAY_MAX_GRAPH_BYTES)" in problem["detail"]
    slug = await add(user, size=MAX_GRAPH_BYTES - 1000)
    problem_of(await user.call("PATCH", f"/api/workflows/{slug}", workflow(size=MAX_GRAPH_BYTES)), 413)


async def test_workflows_of_a_tenant_are_limited_in_size(api: Api, user: Caller) -> None:
    for text in "abc":
        await add(user, text, 18_000)
    problem = problem_of(await user.call("POST", "/api/workflows", workflow("d", 18_000)), 409)
    assert problem["type"].endswith("workflow_limit_reached")
    assert "your limit is 60.0 KB. Delete ended jobs, and workflows that you no longer need." in problem["detail"]
    assert len(await graphs(api, user)) == 3
    # The same graph again takes no space, and another tenant has its own limit.
    await add(user, "a", 18_000)
    await add(await api.user("other@example.com"), "d", 18_000)


async def test_concurrent_workflows_cannot_exceed_the_limit_together(user: Caller) -> None:
    answers = await asyncio.gather(
        *(user.call("POST", "/api/workflows", workflow(f"{number}", 18_000)) for number in range(6))
    )
    assert sorted(answer.status_code for answer in answers) == [201] * 3 + [409] * 3


async def test_equal_graphs_that_are_added_concurrently_count_once(api: Api, user: Caller) -> None:
    assert user.user is not None
    tenant_id, reserve = user.user.tenant_id, api.engine.catalogue.private_graphs.reserve
    paths = await asyncio.gather(*(reserve(tenant_id, b"x" * 1000, [PROMPT]) for _ in range(4)))
    assert len(set(paths)) == 1
    assert 1000 < await space(api) < 1500


async def test_graph_is_removed_with_its_workflow_and_its_last_job(api: Api, user: Caller) -> None:
    slug = await add(user)
    job = await submit(user, slug)
    await end(user, job)
    await user.call("DELETE", f"/api/workflows/{slug}")
    await clean_up(api)
    assert len(await graphs(api, user)) == 1
    await user.call("DELETE", f"/api/ai-jobs/{job['id']}")
    await clean_up(api)
    assert await graphs(api, user) == []
    assert await space(api) == 0
    [left] = await execute(api.engine.databases.central, "SELECT properties FROM workflows")
    assert left.properties in ([], "[]")


async def test_unused_graph_is_kept_for_submissions_in_progress(api: Api, user: Caller) -> None:
    slug = await add(user)
    await user.call("DELETE", f"/api/workflows/{slug}")
    for _ in range(2):
        assert (await api.engine.operations.retention.run_once()).graphs == 0
    await api.clock.set(api.clock.now + timedelta(seconds=GRACE_SECONDS + 1))
    # Adding the graph again cancels its removal.
    await add(user)
    assert (await api.engine.operations.retention.run_once()).graphs == 0
    assert len(await graphs(api, user)) == 1


async def test_no_graph_is_removed_while_a_shard_is_unreachable(
    api: Api, user: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slug = await add(user)
    await user.call("DELETE", f"/api/workflows/{slug}")
    graphs_of = api.engine.catalogue.private_graphs
    assert await graphs_of.remove_unused(grace_seconds=0) == 0
    lost = Database("lost", f"sqlite+aiosqlite:///{tmp_path}")
    monkeypatch.setitem(api.engine.databases.shards, "lost", lost)
    assert await graphs_of.remove_unused(grace_seconds=0) == 0
    monkeypatch.undo()
    await lost.close()
    assert await graphs_of.remove_unused(grace_seconds=0) == 1


async def test_replaced_graphs_are_removed_with_their_versions(api: Api, user: Caller) -> None:
    slug = await add(user, "0")
    for number in range(1, MAX_PRIVATE_VERSIONS + 3):
        answer = await user.call("PATCH", f"/api/workflows/{slug}", {**workflow(f"{number}"), "name": "mine"})
        assert answer.status_code == 200
    await clean_up(api)
    assert len(await graphs(api, user)) == MAX_PRIVATE_VERSIONS
    [count] = await execute(api.engine.databases.central, "SELECT count(*) AS number FROM workflow_versions")
    assert count.number == MAX_PRIVATE_VERSIONS


async def test_jobs_without_a_price_count_until_they_are_deleted(api: Api, user: Caller) -> None:
    slug = await add(user)
    taken = await space(api)
    room = (MAX_WORKFLOW_BYTES - taken) // (JOB_BYTES + 1)
    jobs = []
    for number in range(room):
        jobs.append(await submit(user, slug, f"{number}"))
        await end(user, jobs[-1])
    body = {"workflow_slug": slug, "idempotency_key": "more", "wait_for_missing": True}
    problem = problem_of(await user.call("POST", "/api/ai-jobs", body), 409)
    assert problem["type"].endswith("workflow_limit_reached")
    await user.call("DELETE", f"/api/ai-jobs/{jobs[0]['id']}")
    await user.post("/api/ai-jobs", body)


async def test_long_default_counts_in_every_item_of_a_batch(api: Api, user: Caller) -> None:
    long = {**PROMPT, "default_value": "x" * 15_000}
    slug = (await user.post("/api/workflows", {**workflow(), "properties": [long]}))["slug"]
    taken = await space(api)
    body = {"workflow_slug": slug, "idempotency_key": "b", "wait_for_missing": True, "items": [{}] * 4}
    problem = problem_of(await user.call("POST", "/api/batches", body), 409)
    assert problem["type"].endswith("workflow_limit_reached")
    assert await space(api) == taken


async def test_changed_properties_of_a_stored_graph_count(api: Api, user: Caller) -> None:
    await add(user)
    taken = await space(api)
    changed = {**workflow(), "properties": [{**PROMPT, "default_value": "x" * 15_000}]}
    for _ in range(2):
        await user.post("/api/workflows", changed)
        assert 15_000 < await space(api) - taken < 16_000


def test_paid_job_takes_no_space() -> None:
    assert space_of_job({"values": {"{{A}}": "abc", "{{B}}": 1}}, tokens=1) is None
    assert space_of_job({"values": {"{{A}}": "abc", "{{B}}": 1}}, tokens=0) == JOB_BYTES + 3


def test_space_is_limited_only_if_a_limit_is_set() -> None:
    check_space(10**15, max_bytes=None)
    check_space(10, max_bytes=10)
    with pytest.raises(WorkflowLimitReached):
        check_space(11, max_bytes=10)
