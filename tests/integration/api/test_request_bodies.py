"""Request bodies: size limits per caller, and hostile bodies that delay no other request."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, field_validator

from comfyrelay.desk import routes as desk
from comfyrelay.server import app
from comfyrelay.server.http.bodies import SMALL_BYTES, BodyRoute, large_body
from comfyrelay.server.http.problems import MAX_NAMED_ERRORS
from tests.support.api import FLEET_SECRET, Api, open_api, problem_of
from tests.support.world import SqliteBackend

SMALL, LARGE = 2000, 200_000
GRAPH = {"1": {"class_type": "Prompt", "inputs": {"text": "a cat"}}}


@pytest.fixture
async def api(sqlite_backend: SqliteBackend, tmp_path: Path) -> AsyncIterator[Api]:
    limits: dict[str, Any] = {
        "max_body_bytes": SMALL,
        "max_large_body_bytes": LARGE,
        "max_graph_bytes": LARGE,
        "max_body_values": 1000,
        "max_graph_nodes": 10,
        "max_batch_nodes": 20,
        "max_own_workflows": 2,
    }
    async with open_api(sqlite_backend, tmp_path, body_seconds=0.2, **limits) as api:
        yield api


def chunks(body: bytes, read: list[int]) -> Any:
    """Return a body without a length, which appends the position of each chunk to `read`."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1000):
            read.append(start)
            yield body[start : start + 1000]

    return pieces()


def padded(size: int, **fields: Any) -> bytes:
    return json.dumps({**fields, "name": "x"}).encode().ljust(size)


JSON = {"Content-Type": "application/json"}


def routes() -> Iterator[APIRoute]:
    for router in (*app.ROUTERS, *desk.ROUTERS):
        yield from (route for route in router.load().routes if isinstance(route, APIRoute))


def test_every_route_with_a_body_limits_it() -> None:
    assert {"/api/batches", "/api/desk/batches", "/api/worker/register"} <= {
        route.path for route in routes() if route.body_field is not None
    }
    assert [route.path for route in routes() if route.body_field is not None and not isinstance(route, BodyRoute)] == []


async def test_body_limit_is_small_without_a_graph_or_batch(api: Api) -> None:
    caller = await api.user()
    for path in ("/api/login", "/api/presets", "/api/ai-jobs"):
        answer = await caller.call("POST", path, content=padded(SMALL + 1), headers=JSON)
        assert f"{SMALL} bytes (COMFYRELAY_MAX_BODY_BYTES)" in problem_of(answer, 413)["detail"]


async def test_large_body_is_not_read_before_authentication(api: Api) -> None:
    for path in ("/api/workflows", "/api/batches", "/api/worker/register", "/api/worker/heartbeat"):
        answer = await api.anonymous.call("POST", path, content=padded(LARGE * 10), headers=JSON)
        problem_of(answer, 401)
        read: list[int] = []
        answer = await api.anonymous.call("POST", path, content=chunks(padded(LARGE * 10), read), headers=JSON)
        problem_of(answer, 401)
        assert len(read) <= 4


async def test_body_limits_of_graphs_and_batches_are_large(api: Api) -> None:
    caller = await api.user()
    answer = await caller.call("POST", "/api/workflows", content=padded(LARGE, graph=GRAPH), headers=JSON)
    assert answer.status_code == 201, answer.text
    for content in (padded(LARGE + 1, graph=GRAPH), chunks(padded(LARGE + 1, graph=GRAPH), [])):
        answer = await caller.call("POST", "/api/workflows", content=content, headers=JSON)
        assert f"{LARGE} bytes (COMFYRELAY_MAX_GRAPH_BYTES)." in problem_of(answer, 413)["detail"]
    answer = await caller.call("POST", "/api/batches", content=padded(LARGE + 1, items=[{}]), headers=JSON)
    detail = problem_of(answer, 413)["detail"]
    assert f"{LARGE} bytes (COMFYRELAY_MAX_LARGE_BODY_BYTES). Send a large batch as several" in detail


async def test_registration_with_the_secret_can_be_large(api: Api) -> None:
    await api.effect()
    body = {"worker_id": "gpu-1", "fleet_slug": "home-clip", "capabilities": {"node_types": ["x" * 50] * 900}}
    answer = await api.anonymous.call("POST", "/api/worker/register", body, headers={"X-Fleet-Secret": FLEET_SECRET})
    assert answer.status_code == 201


async def test_large_body_is_validated_in_another_thread(api: Api) -> None:
    checked_in: list[threading.Thread] = []

    class Body(BaseModel):
        text: str

        @field_validator("text")
        @classmethod
        def _note(cls, text: str) -> str:
            checked_in.append(threading.current_thread())
            return text

    async def anonymous(*_caller: object) -> None:
        pass

    @large_body(anonymous)
    async def text_length(body: Body) -> int:
        return len(body.text)

    router = APIRouter(route_class=BodyRoute)
    router.post("/texts")(text_length)
    other = FastAPI()
    other.include_router(router)
    other.state.context = api.context
    async with httpx.AsyncClient(transport=httpx.ASGITransport(other), base_url="http://other.test") as http:
        for length in (10, 2 * SMALL_BYTES):
            assert (await http.post("/texts", json={"text": "x" * length})).json() == length
    # once each: FastAPI reuses the checked values
    in_loop, in_thread = checked_in
    assert in_loop is threading.current_thread()
    assert in_thread is not threading.current_thread()


async def test_fleet_secret_attempt_counts_once_per_request(api: Api) -> None:
    async def answers(**secret: str) -> list[int]:
        body = {"worker_id": "w", "fleet_slug": "nowhere", "capabilities": {"node_types": ["x" * SMALL]}}
        tries = [await api.anonymous.call("POST", "/api/worker/register", body, headers=secret) for _ in range(6)]
        return [answer.status_code for answer in tries]

    assert await answers(**{"X-Fleet-Secret": FLEET_SECRET}) == [404] * 6
    assert await answers(**{"X-Fleet-Secret": "a wrong one"}) == [401] * 4 + [429] * 2


async def test_graph_of_too_many_nodes_or_values_is_413(api: Api) -> None:
    caller = await api.user()
    cases: list[tuple[Any, str]] = [
        ({str(n): {"class_type": "A", "inputs": {}} for n in range(11)}, "MAX_GRAPH_NODES"),
        ({"1": {"class_type": "A", "inputs": {str(n): [] for n in range(501)}}}, "MAX_GRAPH_NODES"),
        ({"1": {"class_type": "A", "inputs": {"many": [0] * 40_000}}}, "MAX_BODY_VALUES"),
    ]
    for graph, name in cases:
        answer = await caller.call("POST", "/api/workflows", {"graph": graph, "output_extension": "png"})
        assert f"COMFYRELAY_{name}" in problem_of(answer, 413)["detail"]


@pytest.mark.parametrize(
    "graph",
    [
        {str(n): {"class_type": "A", "inputs": {}} for n in range(4)},
        {"1": {"class_type": "A", "inputs": {str(n): "a {{TEXT}}" for n in range(4)}}},
    ],
)
async def test_batch_of_too_many_nodes_is_413_with_the_item_limit(api: Api, graph: Any) -> None:
    caller = await api.user()
    text = {"key": "text", "type": "text", "placeholder": "{{TEXT}}", "user_configurable": True}
    new = {"graph": graph, "properties": [text] if len(graph) == 1 else [], "output_extension": "png"}
    slug = (await caller.post("/api/workflows", new))["slug"]
    body = {"workflow_slug": slug, "idempotency_key": "k", "items": [{}] * 6}
    detail = problem_of(await caller.call("POST", "/api/batches", body), 413)["detail"]
    assert "allows 5 items with this graph. Send several batches." in detail
    answer = await caller.call("POST", "/api/batches", {**body, "items": [{}] * 5})
    assert answer.status_code == 201, answer.text


async def test_too_large_batch_of_an_effect_names_no_nodes_and_settings(api: Api) -> None:
    user = await api.user()
    body = {"effect_id": await api.effect(), "idempotency_key": "k", "items": [{}] * 50}
    problem = problem_of(await user.call("POST", "/api/batches", body), 413)
    assert re.fullmatch(r"A batch of this effect has at most \d+ items\. Send several batches\.", problem["detail"])


async def test_punctuation_in_texts_is_not_counted_as_values(api: Api) -> None:
    caller = await api.user()
    graph = {"1": {"class_type": "Prompt", "inputs": {"text": 'a cat, a dog, [not] a {list} \\"quoted\\", ' * 2000}}}
    answer = await caller.call("POST", "/api/workflows", {"graph": graph, "output_extension": "png"})
    assert answer.status_code == 201, answer.text


async def test_invalid_field_is_named_in_small_and_large_bodies(api: Api) -> None:
    caller = await api.user()
    for pad in ("", "x" * 50_000):
        graph = {"1": {"class_type": "A", "inputs": {"text": pad}}}
        answer = await caller.call("POST", "/api/workflows", {"graph": graph, "output_extension": "a b"})
        assert problem_of(answer, 422)["errors"].keys() == {"output_extension"}


@pytest.mark.parametrize("is_large", [False, True])
async def test_only_some_of_many_invalid_fields_are_named(api: Api, is_large: bool) -> None:
    caller = await api.user()
    unknown = {f"unknown_{number}".ljust(100 if is_large else 0, "_"): 1 for number in range(MAX_NAMED_ERRORS + 100)}
    answer = await caller.call("POST", "/api/workflows", {"graph": GRAPH, **unknown})
    errors = problem_of(answer, 422)["errors"]
    if is_large:
        assert errors == {"body": f"{len(unknown)} values are invalid, too many to list."}
    else:
        assert len(errors) == MAX_NAMED_ERRORS


async def test_invalid_json_is_422(api: Api) -> None:
    caller = await api.user()
    for text in ((b"[" * 900).ljust(50_000), b"{" + b" " * 50_000, b'{"name": "\\ud800"}'.ljust(50_000)):
        problem_of(await caller.call("POST", "/api/workflows", content=text, headers=JSON), 422)


async def test_incomplete_body_is_408(api: Api) -> None:
    caller = await api.user()

    async def stalled_body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    answer = await caller.call("POST", "/api/presets", content=stalled_body(), headers=JSON)
    assert "COMFYRELAY_BODY_SECONDS" in problem_of(answer, 408)["detail"]


async def test_own_workflows_are_limited_per_tenant(api: Api) -> None:
    user, other = await api.user(), await api.user("bob@example.com")

    def graph(number: int) -> dict[str, Any]:
        node = {"class_type": "Prompt", "inputs": {"text": f"cat {number}"}}
        return {"graph": {"1": node}, "properties": [], "output_node_id": "1", "output_extension": "png"}

    first, _ = [await user.post("/api/workflows", graph(n)) for n in range(2)]
    refused = problem_of(await user.call("POST", "/api/workflows", graph(2)), 409)
    assert "COMFYRELAY_MAX_OWN_WORKFLOWS" in refused["detail"]
    # an existing workflow does not count again
    assert (await user.call("POST", "/api/workflows", graph(1))).status_code == 200
    assert (await other.call("POST", "/api/workflows", graph(2))).status_code == 201
    await user.call("DELETE", f"/api/workflows/{first['slug']}")
    assert (await user.call("POST", "/api/workflows", graph(2))).status_code == 201
