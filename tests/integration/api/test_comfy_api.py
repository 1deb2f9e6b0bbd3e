"""The Comfy API: rules that its SDK does not show, and what ComfyRelay adds to the contract."""

import json
from datetime import timedelta
from typing import Any

import pytest

from comfyrelay.server.comfy_api import events
from comfyrelay.services.jobs.graph_jobs import UNUSED_SECONDS
from tests.integration.api.test_node_definitions import bring
from tests.support.api import Api, Caller, open_api
from tests.support.api_calls import open_stream, png
from tests.support.editor_files import DEFINITIONS, empty, save, workflow
from tests.support.graphs import invert, invert_file
from tests.support.world import SqliteBackend

JOBS = "/api/v2/jobs"
ASSETS = "/api/v2/assets"
SAMPLER: dict[str, Any] = {
    "3": {"class_type": "KSampler", "inputs": {"seed": 5, "steps": 4, "positive": ["6", 0], "negative": ["7", 0]}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a {red|blue} cat"}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurry"}},
    "9": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "ComfyUI"}},
}


async def send(user: Caller, graph: dict[str, Any], **more: Any) -> Any:
    headers = more.pop("headers", {})
    response = await user.call("POST", JOBS, {"workflow": graph, **more}, headers=headers)
    assert response.status_code == 201, response.text
    return response.json()


def refusal(response: Any, status: int) -> Any:
    """The error of a refused request."""
    assert response.status_code == status, response.text
    return response.json()["error"]


async def upload(user: Caller, content: bytes = png("red"), name: str = "photo.png", **fields: str) -> Any:
    form = {"file_path": name, "content_type": "image/png", **fields}
    return await user.call("POST", ASSETS, data=form, files={"file": (name, content, "image/png")})


async def test_graph_runs_with_its_own_values(api: Api) -> None:
    """ComfyUI draws neither seeds nor prompts of a graph."""
    user = await api.user()
    first = await send(user, SAMPLER)
    changed = {**SAMPLER, "3": {**SAMPLER["3"], "inputs": {**SAMPLER["3"]["inputs"], "seed": 6}}}
    second = await send(user, changed)
    for job, graph in ((first, SAMPLER), (second, changed)):
        found = (await user.call("GET", f"{JOBS}/{job['id']}/workflow")).json()
        assert found == {"format": "api", "workflow": graph}
    assert (await user.get(f"/api/ai-jobs/{first['id']}"))["prompt"] == "a {red|blue} cat"
    assert (await user.get(f"/api/ai-jobs/{second['id']}"))["seed"] == 6


@pytest.mark.both_databases
async def test_graph_leaves_no_workflow_behind(api: Api) -> None:
    user = await api.user()
    assert user.user is not None
    jobs = [await send(user, invert(color)) for color in (1, 2)]
    [first, second] = [await user.get(f"/api/ai-jobs/{job['id']}") for job in jobs]
    assert first["workflow_slug"] == second["workflow_slug"]
    assert (await user.get("/api/workflows"))["items"] == []
    for job in jobs:
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
    await api.clock.set(api.clock.now + timedelta(seconds=UNUSED_SECONDS + 1))
    await api.engine.operations.retention.run_once()
    # a canceled job can be retried, so its graph stays
    retried = await user.post(f"/api/ai-jobs/{first['id']}/retry")
    await user.post(f"/api/ai-jobs/{retried['id']}/cancel")
    for id_ in (first["id"], second["id"], retried["id"]):
        await user.call("DELETE", f"/api/ai-jobs/{id_}")
    await api.engine.operations.retention.run_once()
    tenant_id = user.user.tenant_id
    assert (await api.engine.catalogue.workflows.page(tenant_id=tenant_id, limit=10)).items == []


async def test_account_without_own_workflows_is_refused(sqlite_backend: SqliteBackend, tmp_path: Any) -> None:
    async with open_api(sqlite_backend, tmp_path, own_workflows="permitted") as api:
        user = await api.user()
        error = refusal(await user.call("POST", JOBS, {"workflow": invert()}), 403)
        assert error["code"] == "forbidden"
        assert "Ask an administrator" in error["message"]


async def test_job_without_tokens_is_refused(sqlite_backend: SqliteBackend, tmp_path: Any) -> None:
    async with open_api(sqlite_backend, tmp_path, own_workflow_tokens_per_second=1) as api:
        user = await api.user()
        error = refusal(await user.call("POST", JOBS, {"workflow": invert()}), 402)
        assert error["code"] == "insufficient_credits"
        assert error["details"]["required_tokens"] > 0


async def test_full_queue_says_when_to_retry(sqlite_backend: SqliteBackend, tmp_path: Any) -> None:
    async with open_api(sqlite_backend, tmp_path, max_active_jobs_per_user=1) as api:
        user = await api.user()
        await send(user, invert(1))
        response = await user.call("POST", JOBS, {"workflow": invert(2)})
        assert refusal(response, 429)["code"] == "queue_full"
        assert int(response.headers["Retry-After"]) > 0


async def test_number_of_different_graphs_is_limited(sqlite_backend: SqliteBackend, tmp_path: Any) -> None:
    async with open_api(sqlite_backend, tmp_path, max_own_workflows=1) as api:
        user = await api.user()
        await send(user, invert(1))
        await send(user, invert(2))
        error = refusal(await user.call("POST", JOBS, {"workflow": SAMPLER}), 409)
        assert error["code"] == "workflow_limit_reached"
        assert "delete jobs" in error["message"]


async def test_priority_and_webhook_work(api: Api) -> None:
    user = await api.user()
    job = await send(user, invert(), priority=5, webhook_url="https://receiver.test/hook")
    found = await user.get(f"/api/ai-jobs/{job['id']}")
    assert found["priority"] == 5
    await user.post(f"/api/ai-jobs/{job['id']}/cancel")
    deliveries = await user.get(f"/api/ai-jobs/{job['id']}/deliveries")
    assert deliveries["deliveries"][0]["url"] == "https://receiver.test/hook"
    error = refusal(await user.call("POST", JOBS, {"workflow": invert(), "webhook_url": "ftp://x"}), 422)
    assert error["code"] == "invalid_request"
    assert "webhook_url" in error["message"]


async def test_named_inputs_set_values(api: Api) -> None:
    user = await api.user()
    job = await send(user, SAMPLER, inputs={"prompt": "a dog", "3.steps": 9})
    graph = (await user.call("GET", f"{JOBS}/{job['id']}/workflow")).json()["workflow"]
    assert graph["6"]["inputs"]["text"] == "a dog"
    assert graph["3"]["inputs"]["steps"] == 9
    for inputs, words in (({"promt": "x"}, "Unknown input"), ({"99.text": "x"}, "no node '99'")):
        error = refusal(await user.call("POST", JOBS, {"workflow": SAMPLER, "inputs": inputs}), 422)
        assert error["code"] == "invalid_workflow"
        assert words in error["message"]
    asset = (await upload(user)).json()["id"]
    loaded = await send(user, invert_file(), inputs={"image": {"__type": "core/ASSET", "info": {"id": asset}}})
    graph = (await user.call("GET", f"{JOBS}/{loaded['id']}/workflow")).json()["workflow"]
    assert graph["1"]["inputs"]["image"]["info"] == {"id": asset}


async def test_asset_may_be_the_value_of_any_input(api: Api) -> None:
    user = await api.user()
    # its extension does not say that it is an image
    asset = (await upload(user, name="scan.foo")).json()["id"]
    graph = invert() | {"1": {"class_type": "MyLoader", "inputs": {"picture": {"__type": "core/ASSET"}}}}
    assert refusal(await user.call("POST", JOBS, {"workflow": graph}), 422)["code"] == "missing_asset"
    graph["1"]["inputs"]["picture"]["info"] = {"id": asset, "hash": "blake3:00", "file_path": "x.png"}
    job = await send(user, graph)
    found = (await user.call("GET", f"{JOBS}/{job['id']}/workflow")).json()["workflow"]
    assert found["1"]["inputs"] == {"picture": {"__type": "core/ASSET", "info": {"id": asset}}}


async def test_wrong_hash_is_refused(api: Api) -> None:
    user = await api.user()
    error = refusal(await upload(user, expected_hash="blake3:" + "0" * 64), 409)
    assert error["code"] == "hash_mismatch"
    assert (await user.get("/api/videos/uploads"))["items"] == []
    missing = await user.call("POST", f"{ASSETS}/from-hash", {"hash": "blake3:" + "0" * 64})
    assert refusal(missing, 404)["code"] == "blob_not_found"


async def test_invalid_uploads_are_refused(sqlite_backend: SqliteBackend, tmp_path: Any) -> None:
    async with open_api(sqlite_backend, tmp_path, max_upload_bytes=2000) as api:
        user = await api.user()
        assert refusal(await user.call("POST", ASSETS, {}), 422)["message"] == "Send the file as multipart/form-data."
        headers = {"Content-Type": "multipart/form-data"}
        assert refusal(await user.call("POST", ASSETS, content=b"x", headers=headers), 422)
        assert "file" in refusal(await user.call("POST", ASSETS, files={"other": b"x"}), 422)["message"]
        assert "empty" in refusal(await upload(user, b""), 422)["message"]
        assert refusal(await upload(user, bytes(2001)), 413)["code"] == "too_large"
        assert refusal(await upload(user, bytes(3_000_000)), 413)["code"] == "too_large"


async def test_upload_is_an_upload_of_the_user(api: Api) -> None:
    user = await api.user()
    asset = (await upload(user)).json()
    [stored] = (await user.get("/api/videos/uploads"))["items"]
    assert stored["id"] == asset["id"]
    assert asset["url"].startswith("http")
    assert asset["url_expires_at"]
    content = await user.call("GET", f"{ASSETS}/{asset['id']}/content")
    assert content.status_code == 302
    part = await api.anonymous.http.get(content.headers["Location"], headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, png("red")[:4])
    graph = invert_file()
    graph["1"]["inputs"]["image"] = {"__type": "core/ASSET", "info": {"id": asset["id"]}}
    await send(user, graph)
    assert refusal(await user.call("DELETE", f"{ASSETS}/{asset['id']}"), 409)["code"] == "asset_in_use"


async def test_list_refuses_unknown_cursors_and_filters(api: Api) -> None:
    user = await api.user()
    for query, code in (
        ("cursor=%27or%201", "invalid_cursor"),
        ("metadata[=x", "invalid_metadata_filter"),
        ("metadata[a]=x&metadata[a]=y", "invalid_metadata_filter"),
    ):
        assert refusal(await user.call("GET", f"{JOBS}?{query}"), 400)["code"] == code


async def test_list_has_no_cursor_on_the_last_page(api: Api) -> None:
    user = await api.user()
    sent = [(await send(user, invert(color)))["id"] for color in range(3)]
    first = (await user.call("GET", f"{JOBS}?limit=2")).json()
    second = (await user.call("GET", f"{JOBS}?limit=2&cursor={first['next_cursor']}")).json()
    assert [job["id"] for job in first["jobs"] + second["jobs"]] == sent[::-1]
    assert "next_cursor" not in second


async def test_last_event_id_continues_the_stream(api: Api) -> None:
    user = await api.user()
    job = await send(user, invert())
    await user.post(f"/api/ai-jobs/{job['id']}/cancel")
    stream = await user.call("GET", f"{JOBS}/{job['id']}/events", headers={"Last-Event-ID": "0"})
    statuses = [line for line in stream.text.splitlines() if line.startswith(("id:", "data:"))]
    assert [json.loads(line[5:])["status"] for line in statuses if line.startswith("data:")] == ["queued", "canceled"]
    last = statuses[-2].removeprefix("id: ")
    ended = await user.call("GET", f"{JOBS}/{job['id']}/events", headers={"Last-Event-ID": last})
    assert ended.status_code == 204


async def test_stream_of_a_waiting_job_is_never_silent(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    # the SDK gives up after 45 s
    assert events.QUIET_SECONDS < 45
    monkeypatch.setattr(events, "QUIET_SECONDS", 0.05)
    user = await api.user()
    job = await send(user, invert())
    async with open_stream(user, f"{JOBS}/{job['id']}/events") as stream:
        [queued] = await stream.until("status")
        assert queued.data == {"status": "queued", "queue_position": None}
        await stream.comment(": still here")


async def test_unknown_fields_are_ignored(api: Api) -> None:
    """The contract may grow."""
    user = await api.user()
    assert (await send(user, invert(), future_field=1))["urls"]["self"].startswith("/api/v2/jobs/")


async def test_editor_file_runs_as_the_editor_would_run_it(api: Api) -> None:
    await api.effect()
    worker = await api.worker()
    await bring(worker, DEFINITIONS)
    user = await api.user()
    job = await send(user, workflow([empty(1), save(2, 1)], [[1, 1, 0, 2, 0]]), inputs={"width": 128})
    graph = (await user.call("GET", f"{JOBS}/{job['id']}/workflow")).json()["workflow"]
    assert {node["class_type"] for node in graph.values()} == {"EmptyImage", "SaveImage"}
    assert graph["1"]["inputs"]["width"] == 128
    assert (await user.get(f"/api/ai-jobs/{job['id']}"))["status"] == "queued"


async def test_api_key_header_is_a_token(api: Api) -> None:
    user = await api.user()
    token = user.headers["Authorization"].removeprefix("Bearer ")
    answer = await api.anonymous.call("POST", JOBS, {"workflow": invert()}, headers={"X-API-Key": token})
    assert answer.status_code == 201
    refused = await api.anonymous.call("GET", JOBS, headers={"X-API-Key": "wrong"})
    assert refusal(refused, 401)["code"] == "unauthorized"


async def test_null_is_an_absent_field(api: Api) -> None:
    user = await api.user()
    body = {"workflow": invert(), "metadata": None, "inputs": None, "extra_data": None}
    assert (await user.call("POST", JOBS, body)).status_code == 201


async def test_list_has_only_jobs_with_the_status(api: Api) -> None:
    user = await api.user()
    [waiting, canceled] = [await send(user, invert(color)) for color in (1, 2)]
    await user.call("POST", f"{JOBS}/{canceled['id']}/cancel")
    for status, wanted in (("queued", [waiting]), ("canceled", [canceled]), ("succeeded", [])):
        found = (await user.call("GET", f"{JOBS}?status={status}")).json()["jobs"]
        assert [job["id"] for job in found] == [job["id"] for job in wanted]
    assert (await user.call("GET", f"{JOBS}?status=unknown")).status_code == 422


async def test_only_created_assets_say_whether_they_are_new(api: Api) -> None:
    user = await api.user()
    created = (await upload(user)).json()
    assert created["created_new"] is True
    found = (await user.call("GET", f"{ASSETS}/{created['id']}")).json()
    assert "created_new" not in found
    assert found["hash"] is not None


async def test_job_that_comes_back_is_refused(api: Api) -> None:
    user = await api.user()
    own, other = api.context.secrets.server_ids[0], "0123456789abcdef"
    accepted = await user.call("POST", JOBS, {"workflow": invert()}, headers={"ComfyRelay-Via": other})
    assert accepted.status_code == 201
    for via in (f"{other}, {own}", ", ".join([other] * 9)):
        answer = await user.call("POST", JOBS, {"workflow": invert()}, headers={"ComfyRelay-Via": via})
        assert refusal(answer, 422)["code"] == "federation_loop"


async def test_health_needs_no_token(api: Api) -> None:
    answer = await api.anonymous.call("GET", "/api/v2/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "healthy"})
