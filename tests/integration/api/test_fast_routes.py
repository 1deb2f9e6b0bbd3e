"""Submissions, polls, heartbeats and completions run without FastAPI's machinery, with the same responses."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter, Request

from comfyrelay.server.http import middleware
from comfyrelay.server.http.bodies import SMALL_BYTES
from comfyrelay.server.http.fast_routes import FastRoutes, fast
from comfyrelay.server.lazy_routers import LazyRouter
from comfyrelay.server.worker import api as worker_api
from comfyrelay.services.queue.settle import Settlement
from tests.support.api import Api, open_api
from tests.support.raw_asgi import JSON, app_of, call, count_calls
from tests.support.world import SqliteBackend

LEASE = {"dispatch_id": 4711, "lease_token": "wrong"}
ROUTES: dict[str, dict[str, Any]] = {
    "/api/worker/poll": {"worker_id": "gpu-1", "wait_seconds": 0},
    "/api/worker/heartbeat": {**LEASE, "progress": {"value": 0.5}},
    "/api/worker/complete": {**LEASE, "output": {"size": 1, "mime_type": "image/png"}},
}
WRONG_VALUES: tuple[Any, ...] = (None, [], {}, "", "x" * 300, -1, 1.5, True, "5", 10**30, "a\x00b", "\ud800")
CONTENT_TYPES = (
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/vnd.x+json",
    "application/json; charset=utf-8",
    "APPLICATION/JSON",
    "application/jsonx",
    "application",
    " application/json",
    "x; application/json",
    "application/+json",
)
# Calls of Python functions per request without the engine, plus ten percent. FastAPI's machinery needs 449 and 494.
MAX_CALLS = {"/api/worker/poll": 198, "/api/worker/complete": 221}


def _bodies(valid: dict[str, Any]) -> Iterator[tuple[bytes, dict[str, str]]]:
    encoded = json.dumps(valid).encode()
    yield encoded, JSON
    yield encoded, {}
    yield from ((encoded, {"content-type": kind}) for kind in CONTENT_TYPES)
    yield from ((text, JSON) for text in (b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 2000, encoded + b"}"))
    yield json.dumps(valid).encode("utf-16"), JSON
    yield b"\xef\xbb\xbf" + encoded, JSON
    yield b'{"dispatch_id": 1' + b"0" * 5000 + b"}", JSON
    yield b'{"worker_id": NaN, "dispatch_id": Infinity}', JSON
    for name in valid:
        yield json.dumps({key: value for key, value in valid.items() if key != name}).encode(), JSON
        yield from ((json.dumps({**valid, name: wrong}).encode(), JSON) for wrong in WRONG_VALUES)
    yield json.dumps({**valid, "about": {"x": "y" * SMALL_BYTES}}).encode(), JSON
    yield json.dumps({"about": {"x": "y" * SMALL_BYTES}}).encode(), JSON
    yield b"{" + b" " * SMALL_BYTES, JSON
    yield encoded, {**JSON, "content-length": "999999999999"}


@pytest.mark.parametrize("path", ROUTES)
async def test_fast_response_equals_that_of_fastapi(api: Api, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.effect()
    worker, other, revoked = await api.worker("gpu-1"), await api.worker("gpu-2"), await api.worker("gpu-3")
    await api.engine.workers.workers.set_approved("gpu-3", is_approved=False)
    api.context.forget_worker("gpu-3")
    tokens: list[Mapping[str, str]] = [
        worker.headers,
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic x"},
    ]
    requests = [(body, {**headers, **token}) for token in tokens for body, headers in _bodies(ROUTES[path])]
    encoded = json.dumps(ROUTES[path]).encode()
    requests += [(encoded, {**JSON, **caller.headers}) for caller in (other, revoked)]

    found = [await call(app_of(api), path, body, headers) for body, headers in requests]
    monkeypatch.setattr(FastRoutes, "__call__", lambda self, *request: self._app(*request))
    assert found == [await call(app_of(api), path, body, headers) for body, headers in requests]
    statuses = {response.status for response in found}
    assert statuses >= {401, 403, 413, 422, 200 if path.endswith("poll") else 404}


async def test_fast_submission_equals_that_of_fastapi(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tokens suffice for the first job only, so all later requests change nothing.
    effect_id, user = await api.effect(), await api.user(tokens=7)
    path, valid = "/api/ai-jobs", {"effect_id": effect_id, "idempotency_key": "first", "input_payload": {}}
    tokens: list[Mapping[str, str]] = [user.headers, {}, {"Authorization": "Bearer wrong"}]
    requests = [(body, {**headers, **token}) for token in tokens for body, headers in _bodies(valid)]
    encoded = json.dumps(valid).encode()
    assert (await call(app_of(api), path, encoded, {**JSON, **user.headers})).status == 201

    found = [await call(app_of(api), path, body, headers) for body, headers in requests]
    monkeypatch.setattr(FastRoutes, "__call__", lambda self, *request: self._app(*request))
    assert found == [await call(app_of(api), path, body, headers) for body, headers in requests]
    assert {response.status for response in found} >= {200, 401, 409, 413, 422}


async def test_other_methods_and_paths_are_left_to_fastapi(api: Api) -> None:
    await api.effect()
    worker = await api.worker()
    body = json.dumps(ROUTES["/api/worker/poll"]).encode()
    headers = {**JSON, **worker.headers}
    assert (await call(app_of(api), "/api/worker/poll", b"", headers, method="GET")).status == 405
    for path in ("/api/worker/poll/", "/api/worker/polls"):
        assert (await call(app_of(api), path, body, headers)).status == 404
    # The path of a mounted application begins with its root path.
    mounted = await call(app_of(api), "/relay/api/worker/poll", body, headers, root_path="/relay")
    assert mounted.data["job"] is None


async def test_fast_request_is_measured_under_its_route(api: Api) -> None:
    await api.effect()
    worker = await api.worker()
    body = json.dumps(ROUTES["/api/worker/poll"]).encode()
    response = await call(app_of(api), "/api/worker/poll", body, {**JSON, **worker.headers})
    assert {b"x-request-id", b"x-content-type-options", b"x-comfyrelay-version"} <= dict(response.headers).keys()
    labels = {"method": "POST", "route": "/api/worker/poll", "status": "200"}
    registry = api.context.metrics.registry
    assert registry.get_sample_value("comfyrelay_request_seconds_count", labels) == 1


def test_route_with_unsupported_parameters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter(prefix="/fast")

    @router.post("/x")
    @fast
    async def endpoint(body: dict[str, int], request: Request, limit: int = 1) -> dict[str, int]:
        raise NotImplementedError

    monkeypatch.setattr(worker_api, "router", router)
    routes = FastRoutes(_no_app, routers=[LazyRouter("/fast", worker_api.__name__)])
    with pytest.raises(TypeError, match="/fast/x has parameters"):
        routes.find("POST", "/fast/x")


async def _no_app(*_: object) -> None:
    raise NotImplementedError


async def test_hot_routes_take_few_function_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_api(SqliteBackend(tmp_path / "databases"), tmp_path / "data") as api:
        await api.stop_loops()
        await api.effect()
        headers = {**JSON, **(await api.worker()).headers}

        async def lease_nothing(*_: Any, **__: Any) -> list[Any]:
            return []

        async def settle(*_: Any) -> Settlement:
            return Settlement(dispatch_id=4711, status="completed")

        monkeypatch.setattr(api.engine.queue.polls, "poll", lease_nothing)
        monkeypatch.setattr(api.engine.queue.outputs, "complete", settle)
        # The cost of a log line depends on its renderer.
        monkeypatch.setattr(middleware, "log", SimpleNamespace(info=lambda *_, **__: None))
        for path, max_calls in MAX_CALLS.items():
            body = json.dumps(ROUTES[path]).encode()
            # The first call fills caches.
            assert (await call(app_of(api), path, body, headers)).status == 200
            with count_calls() as calls:
                await call(app_of(api), path, body, headers)
                counted = calls()
            assert counted <= max_calls, path
