"""Values that no database stores, in paths, queries and bodies: refused by name, never a server error."""

import json
import re
from itertools import product
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from comfyrelay.server.app import ROUTERS
from comfyrelay.server.operations import files
from tests.support.api import Api, problem_of
from tests.support.world import GRAPH

PROMPT_FIELDS = {"key": "prompt", "type": "text", "placeholder": "{{PROMPT}}"}
# just above what a column of 32 or 64 bits holds
WRONG_NUMBERS = (-1, 2**31, 2**63)
# NUL, and half of a surrogate pair as some programs write it
UNSTORABLE = ("a%00b", "a%ED%A0%80b")


def calls(unstorable: str) -> list[tuple[str, str]]:
    """Return a call for every path and query parameter of every route, with this value in it."""
    found = []
    for router in (*(lazy.load() for lazy in ROUTERS), files.router):
        for route in router.routes:
            assert isinstance(route, APIRoute)
            path = re.sub(r"\{[^}]+\}", unstorable, route.path)
            query = "&".join(f"{query_param.name}={unstorable}" for query_param in route.dependant.query_params)
            if unstorable in f"{path}?{query}":
                found += [(method, f"{path}?{query}") for method in sorted(route.methods or ())]
    return found


@pytest.mark.both_databases
@pytest.mark.parametrize("unstorable", UNSTORABLE)
async def test_unstorable_path_or_query_is_a_client_error(api: Api, unstorable: str) -> None:
    await api.effect()
    admin_ = await api.user("root@example.com", is_admin=True)
    worker_ = await api.worker()
    for method, path in calls(unstorable):
        caller = worker_ if path.startswith("/api/worker") else admin_
        body: Any = {} if method in ("POST", "PUT", "PATCH") else None
        answer = await caller.call(method, path, body)
        assert answer.status_code < 500, (method, path, answer.text)
        assert answer.status_code != 401, (method, path, "the caller is not signed in")


async def test_unstorable_value_is_refused_by_field(api: Api) -> None:
    caller = await api.user()
    calls: list[tuple[str, str, dict[str, Any], str]] = [
        ("POST", "/api/login", {"email": "a@b.example", "password": "a\0b"}, "password"),
        ("PUT", "/api/webhook", {"url": "https://example.com/\0"}, "url"),
        ("POST", "/api/ai-jobs", {"idempotency_key": "k", "input_payload": {"prompt": "\ud800"}}, "input_payload"),
        ("POST", "/api/presets", {"name": "n", "values": {"a\0b": 1}}, "values"),
    ]
    for method, path, body, field in calls:
        # httpx would refuse to encode it
        sent = {"content": json.dumps(body), "headers": {"Content-Type": "application/json"}}
        assert "cannot be stored" in problem_of(await caller.call(method, path, **sent), 422)["errors"][field]


async def test_invalid_field_error_names_valid_values(api: Api) -> None:
    caller = await api.user(is_admin=True)
    cases: list[tuple[tuple[str, str], Any, str, str]] = [
        (("POST", "/api/presets"), {"name": "n", "values": {}, "nmae": 1}, "nmae", "Valid fields: name, values."),
        (
            ("POST", "/api/batches"),
            {"items": [{"imput": 1}]},
            "items.0.imput",
            "Valid fields: input_file_id, input_payload, ",
        ),
        (("POST", "/api/ai-jobs/bulk"), {"action": "stop", "ids": ["a"]}, "action", "'cancel'"),
        (
            ("PATCH", "/api/admin/fleets/production/x"),
            {"max_worker": 1},
            "max_worker",
            "Valid fields: autoscaling, ",
        ),
        (("GET", "/api/ai-jobs?status=lost"), None, "status", "'queued'"),
        (
            ("POST", "/api/register"),
            {"email": "nope", "password": "long enough"},
            "email",
            "This is not an email address.",
        ),
    ]
    for call, body, field, allowed in cases:
        assert allowed in problem_of(await caller.call(*call, body), 422)["errors"][field]


async def test_unstorable_number_is_a_client_error(api: Api) -> None:
    await api.effect()
    caller = await api.user(is_admin=True)
    for path in ("/versions?cursor=9223372036854775807", "/versions/9223372036854775807"):
        problem_of(await caller.call("GET", f"/api/admin/workflows/clip{path}"), 422)
    body = {"slug": "other", "graph": GRAPH, "properties": [{**PROMPT_FIELDS, "choices": ["?"]}]}
    for number in ("1e400", "NaN"):
        sent = {
            "content": json.dumps(body).replace('"?"', number),
            "headers": {"Content-Type": "application/json"},
        }
        refused = problem_of(await caller.call("POST", "/api/admin/workflows", **sent), 422)
        assert any(field.startswith("properties.0.choices.0") for field in refused["errors"])


def integer_calls(schema: dict[str, Any], ids: dict[str, str]) -> list[tuple[str, str, dict[str, str]]]:
    """Return calls of every route, with a wrong number in each of its integer parameters in turn."""
    found = []
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            sent = [item for item in route.get("parameters", ()) if item["in"] in ("path", "query")]
            integers = [item for item in sent if '"type": "integer"' in json.dumps(item)]
            for parameter, number in product(integers, WRONG_NUMBERS):
                given = {parameter["name"]: str(number)}
                names = {**dict.fromkeys(re.findall(r"\{(\w+)", path), "1"), **ids, **given}
                place = re.sub(r":\w+(?=\})", "", path).format(**names)
                found.append((method.upper(), place, given if parameter["in"] == "query" else {}))
    return found


@pytest.mark.both_databases
async def test_wrong_number_in_a_path_or_query_is_a_client_error(api: Api) -> None:
    effect_id = await api.effect()
    await api.engine.workers.fleets.create(slug="clip", workflow_slugs=["clip"])
    await api.worker()
    caller = await api.user("root@example.com", is_admin=True, tokens=100)
    assert caller.user is not None
    batch = await caller.post("/api/batches", {"effect_id": effect_id, "idempotency_key": "b", "items": [{}, {}]})
    [job, _] = (await caller.get(f"/api/queue/{batch['id']}/items"))["items"]
    ids = {
        "batch_id": batch["id"],
        "job_id": job["id"],
        "slug": "clip",
        "stage": "production",
        "tenant_id": caller.user.tenant_id,
        "worker_id": "gpu-1",
        "effect_id": str(effect_id),
    }
    transport = api.anonymous.http._transport
    assert isinstance(transport, httpx.ASGITransport)
    assert isinstance(transport.app, FastAPI)
    calls = integer_calls(transport.app.openapi(), ids)
    assert ("GET", f"/api/queue/{batch['id']}/items", {"cursor": str(2**31)}) in calls
    for method, path, query in calls:
        body: Any = {} if method in ("POST", "PUT", "PATCH") else None
        answer = await caller.call(method, path, body, params=query)
        assert answer.status_code < 500, (method, path, query, answer.text)
