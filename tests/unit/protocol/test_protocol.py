"""The wire format is defined once, and receivers ignore unknown fields."""

import json
from collections.abc import AsyncIterator, Callable
from enum import Enum
from inspect import signature
from types import SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from comfyrelay import client
from comfyrelay.client.calls import Calls
from comfyrelay.client.events import parsed
from comfyrelay.desk.routes.scripts import router as script_routes
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import ComfyRelayError, Conflict, ControlPlaneUnreachable, InvalidInput, NotFound
from comfyrelay.http_client import BoundedClient
from comfyrelay.protocol import base, desk, jobs, user, worker
from comfyrelay.protocol.admin import autoscaling, catalogue, dispatches, fleets, operations, tenants, workers
from comfyrelay.protocol.problems import error_from_response
from comfyrelay.server.http.problems import problem_response
from comfyrelay.server.user.events import encode_event
from comfyrelay.server.user.jobs import router as job_routes
from comfyrelay.server.worker.api import router as worker_routes
from comfyrelay.services.catalogue.workflows import Workflows
from comfyrelay.services.jobs.batches import BatchRequest
from comfyrelay.services.jobs.submission.requests import ItemRequest, JobRequest
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.queue.settle import Report
from comfyrelay.services.workers.workers import Workers
from comfyrelay.storage.headers import check_content_type
from comfyrelay.worker import control, lease
from comfyrelay.worker.control import ControlPlane
from tests.support.leases import make_lease

ADMIN_MODULES = (autoscaling, catalogue, dispatches, fleets, operations, tenants, workers)
MODULES = (*ADMIN_MODULES, base, desk, jobs, user, worker)
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
    found = {var for module in MODULES for var in vars(module).values() if isinstance(var, type)}
    return sorted(
        (model for model in found if issubclass(model, kind) and model is not kind), key=lambda model: model.__name__
    )


def with_unknown_fields(value: Any) -> Any:
    """Return the same value with an unknown field in every object."""
    if isinstance(value, dict):
        return {**{key: with_unknown_fields(item) for key, item in value.items()}, "of_a_newer_version": "1"}
    return [with_unknown_fields(item) for item in value] if isinstance(value, list) else value


def is_closed(annotation: Any) -> bool:
    """Return whether a type contains a closed set of values anywhere."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal or (isinstance(annotation, type) and issubclass(annotation, Enum)):
        return True
    is_open = get_origin(annotation) in (Union, UnionType) and str in inner
    return not is_open and any(map(is_closed, inner))


def body_of(routes: Any, path: str) -> object:
    [route] = [item for item in routes.routes if isinstance(item, APIRoute) and item.path == path]
    return route.endpoint.__annotations__["body"]


def test_server_worker_and_client_have_the_same_models() -> None:
    assert body_of(worker_routes, "/api/worker/heartbeat") is worker.HeartbeatRequest
    assert body_of(worker_routes, "/api/worker/complete") is worker.CompleteRequest
    assert vars(control)["HeartbeatRequest"] is worker.HeartbeatRequest
    assert vars(control)["CompleteRequest"] is worker.CompleteRequest
    assert vars(lease)["LeasedJob"] is worker.LeasedJob
    assert client.Job is jobs.Job
    assert client.Batch is jobs.Batch
    assert client.JobEvent is jobs.JobEvent
    assert body_of(job_routes, "/api/ai-jobs/bulk") is jobs.BulkRequest
    assert body_of(script_routes, "/api/desk/script/preview") is desk.ScriptJob


@pytest.mark.parametrize("model", models(base.Request))
def test_requests_to_the_user_and_admin_api_are_strict(model: type[BaseModel]) -> None:
    assert model.model_config["extra"] == "forbid"
    assert model.model_json_schema()["additionalProperties"] is False


@pytest.mark.parametrize("model", models(base.WorkerRequest))
def test_worker_requests_ignore_unknown_fields(model: type[BaseModel]) -> None:
    assert model.model_config["extra"] == "ignore"


# The required fields of the worker protocol's models
NEEDED: dict[str, Any] = {
    "assets": {},
    "dispatch_id": 1,
    "download_url": "u",
    "extension": "png",
    "fleet_slug": "f",
    "input_payload": {"workflow": {}},
    "key": "k",
    "missing": {},
    "lease_expires_at": "2030-01-01T00:00:00Z",
    "lease_token": "t",
    "mime_type": "image/png",
    "number": 2,
    "output_url": "u",
    "placeholder": "p",
    "released": 0,
    "server": "gpu-0",
    "sha256": "0" * 64,
    "reason": "spot",
    "size": 1,
    "status": "completed",
    "token": "t",
    "url": "u",
    "worker_id": "w",
    "workflow": {},
}


@pytest.mark.parametrize(
    "model",
    [var for var in vars(worker).values() if isinstance(var, type) and var.__module__ == worker.__name__],
)
def test_absent_and_null_fields_mean_the_default(model: type[BaseModel]) -> None:
    needed = {name: NEEDED[name] for name, field in model.model_fields.items() if field.is_required()}
    plain = model.model_validate(needed).model_dump()
    more = model.model_validate({**needed, "of_a_newer_version": 1})
    assert more.model_dump(exclude={"of_a_newer_version"}) == plain
    for name in model.model_fields.keys() - needed.keys():
        assert model.model_validate({**needed, name: None}).model_dump() == plain, name
    assert model.model_validate({**dict.fromkeys(model.model_fields), **needed}).model_dump() == plain


def values_with(annotation: Any, text: str) -> list[Any]:
    """Return values of a type: for each place that accepts a text, one value with this text there."""
    inner = get_args(annotation)
    if get_origin(annotation) in (list, tuple):
        return [[item] for item in values_with(inner[0], text)]
    if get_origin(annotation) is dict or annotation is Any:
        return [{"a": text}, {text: 1}, {"a": [{"b": text}]}]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.items()
        return [{name: item} for name, field in fields for item in values_with(field.annotation, text)]
    if annotation is str:
        return [text]
    return (
        [value for part in inner for value in values_with(part, text)] if get_origin(annotation) is not Literal else []
    )


@pytest.mark.parametrize("model", [*models(base.Request), *models(base.WorkerRequest)])
def test_unstorable_text_is_refused_in_every_request(model: type[BaseModel]) -> None:
    """Such a text would fail the whole transaction that its call shares with other calls."""
    for name, field in model.model_fields.items():
        for value in (*values_with(field.annotation, "a\0b"), *values_with(field.annotation, "a\ud800b")):
            with pytest.raises(ValidationError) as refused:
                model.model_validate({name: value})
            wrong = {error["loc"][0] for error in refused.value.errors() if error["type"] != "missing"}
            assert name in wrong, (name, value)


@pytest.mark.parametrize("mime_type", ["image/png\0", "image", "a/b\r\nX: y", ""])
def test_invalid_output_type_is_refused(mime_type: str) -> None:
    with pytest.raises(ValidationError, match="mime_type"):
        worker.StoredOutput(size=1, mime_type=mime_type)
    with pytest.raises(InvalidInput):
        check_content_type(mime_type)


@pytest.mark.parametrize("mime_type", ["image/png", 'text/plain; charset="utf-8"', "video/mp4; codecs=avc1"])
def test_storable_output_type_is_accepted(mime_type: str) -> None:
    assert worker.StoredOutput(size=1, mime_type=mime_type).mime_type == check_content_type(mime_type)


def test_output_size_fits_a_database_integer() -> None:
    with pytest.raises(ValidationError, match="size"):
        worker.StoredOutput(size=2**63, mime_type="image/png")


@pytest.mark.parametrize("model", models(base.AnswerBody))
def test_answers_allow_unknown_fields_and_enum_values(model: type[BaseModel]) -> None:
    assert model.model_config["extra"] == "allow"
    assert [name for name, field in model.model_fields.items() if is_closed(field.annotation)] == []


def test_job_with_an_unknown_status_leaves_the_page_readable() -> None:
    optional: dict[str, Any] = {name: None for name, field in jobs.Job.model_fields.items() if field.is_required()}
    job = {**optional, "id": "j", "status": "queued", "item_no": 0, "priority": 0, "attempts": 0, "max_attempts": 3}
    job |= {"reserved_tokens": 0, "cost_micros": 0, "outputs": [], "created_at": "2026-01-01T00:00:00Z"}
    page = base.Page[jobs.Job].model_validate({"items": [job, {**job, "status": "archived"}]})
    assert [item.status for item in page.items] == [JobStatus.QUEUED, "archived"]
    assert isinstance(page.items[0].status, JobStatus)
    assert not page.items[1].has_ended


def test_schema_lists_known_enum_values() -> None:
    schema = jobs.Job.model_json_schema()
    assert schema["properties"]["status"]["anyOf"] == [{"$ref": "#/$defs/JobStatus"}, {"type": "string"}]
    assert schema["$defs"]["JobStatus"]["enum"] == list(JobStatus)


@pytest.mark.parametrize("stop", [None, "cancel", "of a newer version"])
async def test_worker_ignores_fields_of_a_newer_control_plane(stop: str | None) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        data = ANSWERS[request.url.path.rpartition("/")[2]]
        data = {**data, "stop": stop} if "stop" in data else data
        return httpx.Response(200, json=with_unknown_fields({"data": data}))

    plane = ControlPlane("http://plane.test", worker_id="w")
    plane._http = httpx.AsyncClient(base_url="http://plane.test", transport=httpx.MockTransport(answer))
    plane.token = (await plane.register({"X-Fleet-Secret": "secret"}, {"fleet_slug": "f"})).token
    leased = await plane.poll({"wait_seconds": 0.0})
    assert leased is not None
    assert leased.name == HELD.name
    assert leased.urls.output_url == HELD.urls.output_url
    assert await plane.heartbeat(leased) == ("cancel" if stop == "cancel" else None)
    run = worker.RunReport(seed=1)
    output = worker.StoredOutput(size=1, mime_type="image/png")
    await plane.complete(leased, run, output=output, provider_job_id="p")
    await plane.requeue(leased, run, reason="leaving")
    await plane.deregister(reason="shutdown")
    await plane.close()


async def test_answer_of_another_service_does_not_end_a_lease() -> None:
    plane = ControlPlane("http://plane.test", worker_id="w")
    strange = httpx.MockTransport(lambda _: httpx.Response(200, json={"data": {"of": "somebody else"}}))
    plane._http = httpx.AsyncClient(base_url="http://plane.test", transport=strange)
    plane.token = "t"
    with pytest.raises(ControlPlaneUnreachable):
        await plane.heartbeat(make_lease())
    assert not plane.is_up
    await plane.close()


async def test_client_passes_on_fields_of_a_newer_server() -> None:
    calls = Calls("http://server.test")
    body: dict[str, Any] = {"id": "b", "label": None, "total": 1, "done": 0, "progress": 0.0}
    body |= {
        "expected_seconds": None,
        "counts": {"queued": 1},
        "held": None,
        "created_at": "2026-01-01T00:00:00Z",
        "of_a_newer_version": {"a": 1},
    }
    answer = httpx.MockTransport(lambda _: httpx.Response(200, json={"data": body, "message": "OK", "more": 1}))
    calls.http = BoundedClient(base_url="http://server.test", transport=answer)
    batch = await calls.get("/api/batches/b", jobs.Batch)
    assert batch.total == 1
    assert json.loads(batch.model_dump_json()) == body
    await calls.close()


@pytest.mark.parametrize("id_", [None, 7])
async def test_event_round_trips(id_: int | None) -> None:
    event = jobs.JobEvent(type="job:canceled", data={"text": "a\nb"}, id=id_)

    async def lines() -> AsyncIterator[str]:
        for line in encode_event(event).split("\n"):
            yield line

    assert [item async for item in parsed(lines())] == [event]
    assert event.is_last


@pytest.mark.parametrize("error", [NotFound("Gone."), Conflict("Taken."), InvalidInput("No.", errors={"a": "b"})])
def test_error_round_trips(error: ComfyRelayError) -> None:
    sent = problem_response(error)
    assert sent is not None
    read = error_from_response(httpx.Response(sent.status_code, content=bytes(sent.body)))
    assert type(read) is type(error)
    assert vars(read) == vars(error)


@pytest.mark.parametrize("body", [{}, {"type": "urn:comfyrelay:not_found"}, {"type": "about:blank", "detail": "Off"}])
def test_answer_without_problem_fields_is_not_an_error(body: dict[str, str]) -> None:
    assert error_from_response(httpx.Response(404, json=body)) is None


async def test_client_validates_requests() -> None:
    calls = Calls("http://server.test")
    with pytest.raises(InvalidInput) as refused:
        await calls.send("/api/presets", user.Preset, user.NewPreset, name="", values={}, surprise=1)
    assert set(refused.value.errors) == {"name", "surprise"}
    await calls.close()


def test_body_copies_only_its_own_fields_from_a_record() -> None:
    record = User(id="u", tenant_id="t", email="ada@example.com", name="Ada", is_admin=False)
    more = {
        "created_at": "2026-01-01T00:00:00Z",
        "expires_at": None,
        "scope": None,
        "is_session": False,
        "is_current": False,
    }
    assert set(user.Token.of(record, **more).model_dump()) == {"id", "name", *more}
    assert set(user.User.of(record).model_dump()) == set(user.User.model_fields)


def test_misspelt_field_raises() -> None:
    with pytest.raises(TypeError, match="User has no field is_administrator"):
        user.User.of(User(id="u", tenant_id="t", email="e", name="n", is_admin=False), is_administrator=True)
    with pytest.raises(TypeError, match="DeregisterRequest has no field why"):
        base.checked(worker.DeregisterRequest, why="shutdown")


def test_request_fields_are_passed_by_name() -> None:
    item = jobs.Item(input_payload={"prompt": "a cat"})
    batch = jobs.NewBatch(items=[item], label="Cats")
    # nested models are passed unchanged
    assert batch.fields()["items"] == [item]
    assert batch.fields().keys() == jobs.NewBatch.model_fields.keys()
    assert batch.fields(jobs.Submission).keys() == jobs.Submission.model_fields.keys()
    assert "items" not in batch.fields(but=("items",))
    with pytest.raises(TypeError, match="NewBatch has no field item"):
        batch.fields(but=("item",))


@pytest.mark.parametrize(
    ("model", "but", "taker"),
    [
        (jobs.Submission, set(), JobRequest),
        (jobs.Submission, set(), BatchRequest),
        (jobs.Item, set(), ItemRequest),
        (worker.EndOfLease, set(), Report),
        (worker.PollRequest, {"capabilities", "comfyui_restarted", "devices", "wait_seconds"}, LeaseRequest),
        (worker.RegisterRequest, {"registration_key", "dry_run"}, Workers.register),
        (catalogue.NewCatalogueWorkflow, set(), Workflows.create),
    ],
)
def test_handler_parameters_match_the_request_fields(
    model: type[BaseModel], but: set[str], taker: Callable[..., Any]
) -> None:
    assert model.model_fields.keys() - signature(taker).parameters.keys() == but


def test_numbers_in_admin_requests_are_strict() -> None:
    checked: list[str] = []
    for model in (var for module in ADMIN_MODULES for var in vars(module).values()):
        if not (isinstance(model, type) and issubclass(model, base.Request)):
            continue
        for name, field in model.model_fields.items():
            if not any(leaf in (int, float) for leaf in _leaves(field.annotation)) or "Scalar" in str(field):
                continue
            for value in (True, "1"):
                with pytest.raises(ValidationError) as refused:
                    model.model_validate({name: value})
                assert any(error["loc"][0] == name and error["input"] == value for error in refused.value.errors())
            checked.append(f"{model.__name__}.{name}")
    assert {"NewCredits.amount", "NewEffect.credits_cost", "FleetPatch.max_workers", "NewPriority.priority"} <= {
        *checked
    }


def _leaves(kind: Any) -> list[Any]:
    inner = get_args(kind)
    return [leaf for part in inner for leaf in _leaves(part)] if inner else [kind]


def test_sources_that_disagree_about_a_field_are_refused() -> None:
    class Counts(base.AnswerBody):
        failed: int
        slug: str

    limit, count = SimpleNamespace(failed=3, slug="home"), SimpleNamespace(failed=0, slug="home")
    with pytest.raises(TypeError, match=r"different values of Counts\.failed: pass it by keyword"):
        Counts.of(limit, count)
    assert Counts.of(limit, count, failed=count.failed).failed == 0
