"""The wire is described once, and who receives ignores what it does not know."""

import json
import subprocess
import sys
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel

from comfyrelay import client
from comfyrelay.client.calls import Calls
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import ControlPlaneUnreachable, InvalidInput
from comfyrelay.protocol import admin, base, desk, jobs, user, worker
from comfyrelay.server.user.jobs import router as job_routes
from comfyrelay.server.worker.api import router as worker_routes
from comfyrelay.worker import control, lease
from comfyrelay.worker.control import Control
from tests.worker.leases import make_lease

MODULES = (admin, base, desk, jobs, user, worker)
HELD = make_lease()
ANSWERS: dict[str, dict[str, Any]] = {
    "register": {"worker_id": "w", "token": "t", "workflows_assigned": [], "fleet_slug": "f", "stage": "production"},
    "poll": {"job": HELD.job.model_dump(mode="json")},
    "heartbeat": {"lease_expires_at": "2030-01-01T00:00:00Z", "stop": None, "urls": HELD.urls.model_dump()},
    "complete": {"status": "completed"},
    "fail": {"status": "failed"},
    "requeue": {"status": "queued"},
    "deregister": {"released": 0},
}


def models(kind: type[BaseModel]) -> list[type[BaseModel]]:
    found = {each for module in MODULES for each in vars(module).values() if isinstance(each, type)}
    return sorted(
        (each for each in found if issubclass(each, kind) and each is not kind), key=lambda each: each.__name__
    )


def with_news(value: Any) -> Any:
    """The same with a field more in each object that has the names of fields."""
    if isinstance(value, dict):
        return {**{key: with_news(each) for key, each in value.items()}, "of_a_newer_version": "1"}
    return [with_news(each) for each in value] if isinstance(value, list) else value


def body_of(routes: Any, path: str) -> object:
    [route] = [each for each in routes.routes if isinstance(each, APIRoute) and each.path == path]
    return route.endpoint.__annotations__["body"]


def test_server_worker_and_client_have_the_same_models() -> None:
    assert body_of(worker_routes, "/api/worker/heartbeat") is worker.Heartbeat is vars(control)["Heartbeat"]
    assert body_of(worker_routes, "/api/worker/complete") is worker.Complete is vars(control)["Complete"]
    assert vars(lease)["LeasedJob"] is worker.LeasedJob
    assert client.Job is jobs.Job
    assert client.Batch is jobs.Batch
    assert body_of(job_routes, "/api/ai-jobs/bulk") is jobs.BulkRequest


def test_the_protocol_needs_no_web_framework() -> None:
    names = ", ".join(each.__name__ for each in MODULES)
    program = f"import sys, {names}, comfyrelay.client, comfyrelay.worker.control; print('fastapi' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"


@pytest.mark.parametrize("model", models(base.Request))
def test_requests_to_the_user_and_admin_api_are_strict(model: type[BaseModel]) -> None:
    assert model.model_config["extra"] == "forbid"
    assert model.model_json_schema()["additionalProperties"] is False


@pytest.mark.parametrize("model", models(base.WorkerRequest))
def test_requests_of_workers_may_have_fields_that_the_server_does_not_know(model: type[BaseModel]) -> None:
    assert model.model_config["extra"] == "ignore"


@pytest.mark.parametrize("model", models(base.AnswerBody))
def test_answers_may_have_fields_that_their_receiver_does_not_know(model: type[BaseModel]) -> None:
    assert model.model_config["extra"] == "allow"


@pytest.mark.parametrize("stop", [None, "cancel", "of a newer version"])
async def test_a_worker_ignores_what_a_newer_control_plane_adds(stop: str | None) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        data = ANSWERS[request.url.path.rpartition("/")[2]]
        data = {**data, "stop": stop} if "stop" in data else data
        return httpx.Response(200, json=with_news({"data": data}))

    plane = Control("http://plane.test", worker_id="w")
    plane._http = httpx.AsyncClient(base_url="http://plane.test", transport=httpx.MockTransport(answer))
    plane.token = (await plane.register("secret", {"fleet_slug": "f"})).token
    leased = await plane.poll({"wait_seconds": 0.0})
    assert leased is not None
    assert leased.name == HELD.name
    assert leased.urls.output_url == HELD.urls.output_url
    assert await plane.heartbeat(leased) == ("cancel" if stop == "cancel" else None)
    run = worker.RunReport(seed=1)
    await plane.complete(leased, run, output={"size": 1, "mime_type": "image/png"}, provider_job_id="p")
    await plane.requeue(leased, run, reason="leaving")
    await plane.deregister(reason="shutdown")
    await plane.close()


async def test_what_is_not_an_answer_of_a_control_plane_is_no_verdict_about_a_lease() -> None:
    plane = Control("http://plane.test", worker_id="w")
    strange = httpx.MockTransport(lambda _: httpx.Response(200, json={"data": {"of": "somebody else"}}))
    plane._http = httpx.AsyncClient(base_url="http://plane.test", transport=strange)
    plane.token = "t"
    with pytest.raises(ControlPlaneUnreachable):
        await plane.heartbeat(make_lease())
    assert not plane.is_up
    await plane.close()


async def test_a_client_passes_on_what_a_newer_server_adds() -> None:
    calls = Calls("http://server.test")
    answered: dict[str, Any] = {"id": "b", "label": None, "total": 1, "done": 0, "progress": 0.0}
    answered |= {
        "expected_seconds": None,
        "counts": {"queued": 1},
        "created_at": "2026-01-01T00:00:00Z",
        "of_a_newer_version": {"a": 1},
    }
    answer = httpx.MockTransport(lambda _: httpx.Response(200, json={"data": answered, "message": "OK", "more": 1}))
    calls._http = httpx.AsyncClient(base_url="http://server.test", transport=answer)
    batch = await calls.get("/api/batches/b", jobs.Batch)
    assert batch.total == 1
    assert json.loads(batch.model_dump_json()) == answered
    await calls.close()


async def test_a_client_says_what_a_server_would_refuse() -> None:
    calls = Calls("http://server.test")
    with pytest.raises(InvalidInput) as refused:
        await calls.send("/api/presets", user.Preset, user.NewPreset, name="", values={}, surprise=1)
    assert set(refused.value.errors) == {"name", "surprise"}
    await calls.close()


def test_a_body_takes_from_a_record_what_it_has_and_no_more() -> None:
    record = User(id="u", tenant_id="t", email="ada@example.com", name="Ada", is_admin=False)
    token = user.Token.of(record, created_at="2026-01-01T00:00:00Z", expires_at=None)
    assert set(token.model_dump()) == {"id", "name", "created_at", "expires_at"}
    assert set(user.User.of(record).model_dump()) == set(user.User.model_fields)
