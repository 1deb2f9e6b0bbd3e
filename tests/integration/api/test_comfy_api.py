"""The Comfy API: rules that its SDK does not cover, and ComfyRelay's additions to the contract."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.server.comfy_api import events
from comfyrelay.services.comfyui_api.submission import PromptRequest, RefusedPrompt
from comfyrelay.services.jobs.graph_jobs import RECENT_SECONDS, UNUSED_AT_LIMIT_SECONDS, UNUSED_SECONDS
from comfyrelay.simulator.nodes.catalogue import DEFINITIONS as DEFINED
from comfyrelay.store.central import library
from tests.integration.api.test_node_definitions import bring
from tests.support.api import Api, Caller, open_api
from tests.support.api_calls import complete, lease, lease_of, open_stream, png
from tests.support.editor_files import DEFINITIONS, empty, node, save, workflow
from tests.support.graphs import invert, invert_file, words
from tests.support.world import SqliteBackend

JOBS = "/api/v2/jobs"
ASSETS = "/api/v2/assets"
SAMPLER: dict[str, Any] = {
    "3": {"class_type": "KSampler", "inputs": {"seed": 5, "steps": 4, "positive": ["6", 0], "negative": ["7", 0]}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a {red|blue} cat"}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurry"}},
    "9": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "ComfyUI"}},
}


def described_nodes() -> dict[str, Any]:
    """Return the node definitions of a real ComfyUI."""
    return {class_type: dict(definition.described) for class_type, definition in DEFINED.items()}


async def send(user: Caller, graph: dict[str, Any], **more: Any) -> Any:
    headers = more.pop("headers", {})
    response = await user.call("POST", JOBS, {"workflow": graph, **more}, headers=headers)
    assert response.status_code == 201, response.text
    return response.json()


def refusal(response: Any, status: int) -> Any:
    """Return the error of a refused request."""
    assert response.status_code == status, response.text
    return response.json()["error"]


async def upload(user: Caller, content: bytes = png("red"), name: str = "photo.png", **fields: str) -> Any:
    form = {"file_path": name, "content_type": "image/png", **fields}
    return await user.call("POST", ASSETS, data=form, files={"file": (name, content, "image/png")})


async def test_graph_runs_with_its_own_values(api: Api) -> None:
    """As in ComfyUI, the seeds and prompts of a graph are not randomized."""
    user = await api.user()
    first = await send(user, SAMPLER)
    changed = {**SAMPLER, "3": {**SAMPLER["3"], "inputs": {**SAMPLER["3"]["inputs"], "seed": 6}}}
    second = await send(user, changed)
    for job, graph in ((first, SAMPLER), (second, changed)):
        found = (await user.call("GET", f"{JOBS}/{job['id']}/workflow")).json()
        assert found == {"format": "api", "workflow": graph}
    assert (await user.get(f"/api/ai-jobs/{first['id']}"))["prompt"] == "a {red|blue} cat"
    assert (await user.get(f"/api/ai-jobs/{second['id']}"))["seed"] == 6


async def test_graph_whose_output_depends_on_a_cycle_is_refused(api: Api) -> None:
    cycle = {**SAMPLER, "6": {"class_type": "Join", "inputs": {"a": ["7", 0]}}}
    cycle["7"] = {"class_type": "Join", "inputs": {"a": ["6", 0]}}
    user = await api.user()
    error = refusal(await user.call("POST", JOBS, {"workflow": cycle}), 422)
    assert error["code"] == "invalid_workflow"
    assert error["details"]["node_errors"].keys() == {"6", "7"}


async def test_graph_that_comfyui_would_refuse_is_refused(api: Api) -> None:
    """The Comfy API and ComfyUI's own API apply the same rules."""
    user = await api.user()
    assert user.user is not None
    too_small = {**invert(), "1": {**invert()["1"], "inputs": {**invert()["1"]["inputs"], "width": 0}}}
    # Without definitions, this cannot be checked.
    await send(user, too_small)
    await api.effect()
    await bring(await api.worker(), described_nodes())
    error = refusal(await user.call("POST", JOBS, {"workflow": too_small}), 422)
    assert error["code"] == "invalid_workflow"
    assert [each["type"] for each in error["details"]["node_errors"]["1"]["errors"]] == ["value_smaller_than_min"]
    prompt = await api.engine.comfyui_api.submission.submit(PromptRequest(user=user.user, graph=too_small))
    assert isinstance(prompt, RefusedPrompt)
    assert error["details"]["node_errors"] == prompt.node_errors


@pytest.mark.parametrize("class_type", ["NoSuchNode", "UNETLoader"])
async def test_missing_nodes_and_models_are_listed(
    sqlite_backend: SqliteBackend, tmp_path: Path, class_type: str
) -> None:
    """Another ComfyRelay server that forwarded the job can then try it elsewhere."""
    loader = {"input": {"required": {"unet_name": [["a.safetensors"], {}]}}, "output": ["MODEL"]}
    definitions = {**described_nodes(), "UNETLoader": loader}
    graph = {**words(), "5": {"class_type": class_type, "inputs": {"unet_name": "none.safetensors"}}}
    graph["1"] = {"class_type": "PreviewAny", "inputs": {"source": ["5", 0]}}
    async with open_api(sqlite_backend, tmp_path, default_fleet="home") as api:
        await api.engine.workers.fleets.create(slug="home", workflow_slugs=[])
        abilities = {"node_types": [*definitions], "models": ["a.safetensors"]}
        await bring(await api.worker(fleet="home", capabilities=abilities), definitions)
        user = await api.user()
        error = refusal(await user.call("POST", JOBS, {"workflow": graph}), 422)
        assert error["code"] == "invalid_workflow"
        missing = {"NoSuchNode": "NoSuchNode", "UNETLoader": "none.safetensors"}[class_type]
        assert missing in str(error["details"]["missing"])


async def test_value_of_a_named_input_replaces_an_invalid_one(api: Api) -> None:
    user = await api.user()
    await api.effect()
    await bring(await api.worker(), described_nodes())
    graph = {**invert(), "1": {**invert()["1"], "inputs": {**invert()["1"]["inputs"], "width": 0}}}
    added = await user.post("/api/workflows", {"graph": invert(), "name": "Keys"})
    key = next(prop["key"] for prop in added["properties"] if "width" in prop["key"])
    assert (await send(user, graph, inputs={key: 64}))["status"] == "queued"


async def test_valid_outputs_run_without_the_invalid_ones(api: Api) -> None:
    user = await api.user()
    await api.effect()
    await bring(await api.worker(), described_nodes())
    faulty = {"8": {"class_type": "SaveImage", "inputs": {"filename_prefix": "never"}}}
    job = await send(user, invert() | faulty)
    assert (await user.call("GET", f"{JOBS}/{job['id']}/workflow")).json()["workflow"] == invert()


async def test_missing_nodes_are_named_without_offering_to_wait(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with open_api(sqlite_backend, tmp_path, default_fleet="home") as api:
        await api.engine.workers.fleets.create(slug="home", workflow_slugs=[])
        await api.worker(fleet="home", capabilities={"node_types": ["LoadImage", "SaveImage"], "models": []})
        user = await api.user()
        error = refusal(await user.call("POST", JOBS, {"workflow": invert()}), 422)
        assert error["code"] == "invalid_workflow"
        assert "ImageInvert" in {item["name"] for item in error["details"]["missing"]}
        assert "anyway" not in error["message"]
        assert "Send a graph that needs only what a worker has" in error["message"]


@pytest.mark.both_databases
async def test_recent_graph_is_not_written_again(api: Api) -> None:
    user = await api.user()
    assert user.user is not None
    tenant_id = user.user.tenant_id

    async def used_at(color: int) -> Any:
        await send(user, invert(color))
        async with api.engine.databases.central.read() as tx:
            [found] = await library.oldest_unlisted(tx, tenant_id, unused_seconds=-1, limit=9)
        return found.updated_at

    first = await used_at(1)
    await api.clock.set(api.clock.now + timedelta(seconds=RECENT_SECONDS / 2))
    assert await used_at(2) == first
    await api.clock.set(api.clock.now + timedelta(seconds=RECENT_SECONDS))
    assert await used_at(3) > first


async def test_workflow_of_a_recent_graph_is_read_once(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with open_api(sqlite_backend, tmp_path) as api:
        user = await api.user()
        await send(user, invert(1))
        read: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("SELECT workflows."):
                read.append(statement)

        reader = api.engine.databases.central._reader.sync_engine
        event.listen(reader, "before_cursor_execute", note)
        await send(user, invert(2))
        event.remove(reader, "before_cursor_execute", note)
        assert len(read) == 1


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
    # a canceled job can be retried, so its graph is kept
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


async def test_graphs_of_ended_jobs_make_room_for_others(sqlite_backend: SqliteBackend, tmp_path: Any) -> None:
    async with open_api(sqlite_backend, tmp_path, max_own_workflows=1) as api:
        user = await api.user()
        ended = await send(user, invert(1))
        await user.post(f"/api/ai-jobs/{ended['id']}/cancel")
        # another submission may be about to use the graph
        assert (await user.call("POST", JOBS, {"workflow": SAMPLER})).status_code == 409
        await api.clock.set(api.clock.now + timedelta(seconds=UNUSED_AT_LIMIT_SECONDS + 1))
        await send(user, SAMPLER)
        found = (await user.call("GET", f"{JOBS}/{ended['id']}/workflow")).json()
        assert found["workflow"] == invert(1)


async def test_job_has_the_requested_priority_and_webhook(api: Api) -> None:
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


@pytest.mark.both_databases
async def test_paid_jobs_run_in_order_and_are_charged(backend: Any, tmp_path: Any) -> None:
    price: dict[str, Any] = {"own_workflow_tokens_per_second": 2, "own_workflow_max_seconds": 20}
    async with open_api(backend, tmp_path, default_fleet="home", **price) as api:
        await api.engine.workers.fleets.create(slug="home", workflow_slugs=[])
        worker, user = await api.worker(fleet="home"), await api.user(tokens=100)
        [failing, urgent] = [await send(user, invert(color), priority=color) for color in (1, 5)]
        assert (await user.get("/api/wallet"))["balance"] == 20
        leased = await lease(worker)
        await api.clock.set(api.clock.now + timedelta(seconds=5))
        await complete(api, worker, leased)
        done = (await user.call("GET", f"{JOBS}/{urgent['id']}")).json()
        assert (done["status"], done["metrics"]["execution_ms"]) == ("succeeded", 5000)
        about = {"failed_node": {"node_id": "2", "class_type": "ImageInvert"}}
        failure = {"error_message": "The node is broken.", "fault": "job", "about": about}
        await worker.post("/api/worker/fail", {**lease_of(await lease(worker)), **failure})
        await api.engine.outbox.delivery.idle()
        error = (await user.call("GET", f"{JOBS}/{failing['id']}")).json()["error"]
        assert (error["node_id"], error["class_type"]) == ("2", "ImageInvert")
        # the failed job is refunded
        assert (await user.get("/api/wallet"))["balance"] == 90
        assert (await api.engine.operations.reconciler.run()).is_clean


async def test_concurrent_requests_with_one_key_create_one_job(api: Api) -> None:
    user = await api.user()
    headers = {"Idempotency-Key": "once"}
    answers = await asyncio.gather(
        *(user.call("POST", JOBS, {"workflow": invert(color)}, headers=headers) for color in range(4))
    )
    [job] = [answer.json() for answer in answers if answer.status_code == 201]
    refused = [refusal(answer, 422) for answer in answers if answer.status_code != 201]
    assert {error["code"] for error in refused} == {"idempotency_key_reuse"}
    assert {error["details"]["job_id"] for error in refused} == {job["id"]}


async def test_named_inputs_set_values(api: Api) -> None:
    user = await api.user()
    job = await send(user, SAMPLER, inputs={"prompt": "a dog", "3.steps": 9})
    graph = (await user.call("GET", f"{JOBS}/{job['id']}/workflow")).json()["workflow"]
    assert graph["6"]["inputs"]["text"] == "a dog"
    assert graph["3"]["inputs"]["steps"] == 9
    for inputs, sentence in (({"promt": "x"}, "Unknown input"), ({"99.text": "x"}, "no node '99'")):
        error = refusal(await user.call("POST", JOBS, {"workflow": SAMPLER, "inputs": inputs}), 422)
        assert error["code"] == "invalid_workflow"
        assert sentence in error["message"]
    asset = (await upload(user)).json()["id"]
    loaded = await send(user, invert_file(), inputs={"image": {"__type": "core/ASSET", "info": {"id": asset}}})
    graph = (await user.call("GET", f"{JOBS}/{loaded['id']}/workflow")).json()["workflow"]
    assert graph["1"]["inputs"]["image"]["info"] == {"id": asset}


async def test_asset_can_be_the_value_of_any_input(api: Api) -> None:
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


async def test_files_and_jobs_of_other_users_are_not_found(api: Api) -> None:
    ada, bob = await api.user(), await api.user("bob@example.com")
    asset = (await upload(ada)).json()
    job = await send(ada, invert())
    digest = asset["hash"]
    unknown = await bob.call("HEAD", f"{ASSETS}/by-hash/{digest}")
    assert (unknown.status_code, unknown.headers["content-type"]) == (404, "application/json")
    assert refusal(await bob.call("POST", f"{ASSETS}/from-hash", {"hash": digest}), 404)["code"] == "blob_not_found"
    for method, path in (
        *(("GET", f"{ASSETS}/{asset['id']}{end}") for end in ("", "/content")),
        ("DELETE", f"{ASSETS}/{asset['id']}"),
        *(("GET", f"{JOBS}/{job['id']}{end}") for end in ("", "/workflow", "/events")),
        ("POST", f"{JOBS}/{job['id']}/cancel"),
    ):
        assert refusal(await bob.call(method, path), 404)["code"] == "not_found", path
    graph = invert_file()
    graph["1"]["inputs"]["image"] = {"__type": "core/ASSET", "info": {"id": asset["id"], "hash": digest}}
    assert refusal(await bob.call("POST", JOBS, {"workflow": graph}), 422)["code"] == "missing_asset"
    assert (await bob.call("GET", JOBS)).json()["jobs"] == []
    # the same bytes become a separate file of Bob
    own = (await upload(bob)).json()
    assert own["id"] != asset["id"]
    assert own["created_new"] is True


async def test_file_names_are_not_paths(api: Api) -> None:
    user = await api.user()
    for number, name in enumerate(("../../etc/passwd", "/etc/passwd", "a\\..\\b.png", "%2e%2e/x.png", "x" * 5000)):
        content = png("red") + bytes([number])
        asset = await upload(user, content, file_path=name)
        assert asset.status_code == 201, asset.text
        found = await user.call("GET", f"{ASSETS}/{asset.json()['id']}/content")
        assert (await api.anonymous.http.get(found.headers["Location"])).content == content


async def test_asset_is_an_upload_of_the_user(api: Api) -> None:
    user = await api.user()
    asset = (await upload(user)).json()
    [stored] = (await user.get("/api/videos/uploads"))["items"]
    assert stored["id"] == asset["id"]
    assert asset["url"].startswith("http")
    assert asset["url_expires_at"]
    content = await user.call("GET", f"{ASSETS}/{asset['id']}/content")
    assert content.status_code == 302
    part = await api.anonymous.http.get(content.headers["Location"], headers={"Range": "bytes=0-3"})
    # rclone answers a range with status 200
    assert part.status_code in (200, 206)
    assert part.content == png("red")[:4]
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
    # the SDK gives up after 45 s without an event
    assert events.QUIET_SECONDS < 45
    monkeypatch.setattr(events, "QUIET_SECONDS", 0.05)
    user = await api.user()
    job = await send(user, invert())
    async with open_stream(user, f"{JOBS}/{job['id']}/events") as stream:
        [queued] = await stream.until("status")
        assert queued.data == {"status": "queued", "queue_position": None}
        await stream.comment(": still here")


async def test_position_of_a_waiting_job_is_updated(
    sqlite_backend: SqliteBackend, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "QUIET_SECONDS", 0.05)
    async with open_api(sqlite_backend, tmp_path, default_fleet="home") as api:
        await api.engine.workers.fleets.create(slug="home", workflow_slugs=[])
        await api.worker(fleet="home")
        user = await api.user()
        [first, second] = [await send(user, invert(color)) for color in (1, 2)]
        async with open_stream(user, f"{JOBS}/{second['id']}/events") as stream:
            [queued] = await stream.until("status")
            before = queued.data["queue_position"]
            await user.post(f"/api/ai-jobs/{first['id']}/cancel")
            [moved] = await stream.until("status")
            assert moved.data == {"status": "queued", "queue_position": before - 1}


async def test_malformed_paths_and_ids_are_not_found(api: Api) -> None:
    user = await api.user()
    for path in ("/api/v2/unknown", f"{JOBS}/..%2f..%2fetc", f"{ASSETS}/{'x' * 300}", f"{JOBS}/%00/workflow"):
        assert refusal(await user.call("GET", path), 404)["code"] in ("not_found", "invalid_request"), path
    assert refusal(await user.call("PUT", JOBS), 405)["message"] == "Method Not Allowed"


async def test_unknown_fields_are_ignored(api: Api) -> None:
    """Later versions of the API may add fields."""
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
    changed = await send(user, workflow([empty(1), save(2, 1)], [[1, 1, 0, 2, 0]]), inputs={"1.width": 256})
    graph = (await user.call("GET", f"{JOBS}/{changed['id']}/workflow")).json()["workflow"]
    assert graph["1"]["inputs"]["width"] == 256


@pytest.mark.parametrize("drawn", [{"nodes": []}, {"nodes": [{"id": 1, "type": 7}], "links": "none"}])
async def test_unreadable_editor_file_is_left_out(api: Api, drawn: dict[str, Any]) -> None:
    user = await api.user()
    await send(user, invert(), extra_data={"extra_pnginfo": {"workflow": drawn}})


async def test_images_contain_the_editor_file(sqlite_backend: SqliteBackend, tmp_path: Any) -> None:
    async with open_api(sqlite_backend, tmp_path, default_fleet="home") as api:
        await api.engine.workers.fleets.create(slug="home", workflow_slugs=[])
        worker, user = await api.worker(fleet="home"), await api.user(tokens=100)
        await bring(worker, DEFINITIONS)
        drawn = workflow([empty(1) | {"pos": [300, 40]}, save(2, 1)], [[1, 1, 0, 2, 0]])
        graph = convert_workflow(drawn, DEFINITIONS)
        graph["1"]["inputs"]["width"] = 96
        job = await send(user, graph, extra_data={"extra_pnginfo": {"workflow": drawn}})
        leased = await lease(worker)
        assert leased["job_id"] == job["id"]
        payload = leased["input_payload"]
        assert payload["workflow"] == graph
        [shown, _] = payload["extra_data"]["extra_pnginfo"]["workflow"]["nodes"]
        assert (shown["pos"], shown["widgets_values"][0]) == ([300, 40], 96)
        for extra in ({"api_key_comfy_org": "key"}, {"extra_pnginfo": {}, "auth_token_comfy_org": "key"}):
            refused = await user.call("POST", JOBS, {"workflow": graph, "extra_data": extra})
            assert refusal(refused, 422)["code"] == "extra_data_not_supported"


async def test_editor_file_can_refer_to_assets(api: Api) -> None:
    await api.effect()
    upload_list = {"input": {"required": {"image": [["a.png"], {"image_upload": True}]}}, "output": ["IMAGE"]}
    await bring(await api.worker(), DEFINITIONS | {"LoadImage": upload_list})
    user = await api.user()
    asset = {"__type": "core/ASSET", "info": {"id": (await upload(user)).json()["id"]}}
    nodes = [node(1, "LoadImage", values=[asset, "image"]), save(2, 1)]
    for sent, inputs in ((asset, {}), ("a.png", {"1.image": asset})):
        nodes[0]["widgets_values"] = [sent, "image"]
        job = await send(user, workflow(nodes, [[1, 1, 0, 2, 0]]), inputs=inputs)
        graph = (await user.call("GET", f"{JOBS}/{job['id']}/workflow")).json()["workflow"]
        assert graph["1"]["inputs"]["image"] == asset


async def test_token_in_the_api_key_header_is_accepted(api: Api) -> None:
    user = await api.user()
    token = user.headers["Authorization"].removeprefix("Bearer ")
    answer = await api.anonymous.call("POST", JOBS, {"workflow": invert()}, headers={"X-API-Key": token})
    assert answer.status_code == 201
    refused = await api.anonymous.call("GET", JOBS, headers={"X-API-Key": "wrong"})
    assert refusal(refused, 401)["code"] == "unauthorized"


async def test_null_counts_as_an_absent_field(api: Api) -> None:
    user = await api.user()
    body = {"workflow": invert(), "metadata": None, "inputs": None, "extra_data": None}
    assert (await user.call("POST", JOBS, body)).status_code == 201


async def test_list_has_only_jobs_with_the_requested_status(api: Api) -> None:
    user = await api.user()
    [waiting, canceled] = [await send(user, invert(color)) for color in (1, 2)]
    await user.call("POST", f"{JOBS}/{canceled['id']}/cancel")
    for status, wanted in (("queued", [waiting]), ("canceled", [canceled]), ("succeeded", [])):
        found = (await user.call("GET", f"{JOBS}?status={status}")).json()["jobs"]
        assert [job["id"] for job in found] == [job["id"] for job in wanted]
    assert (await user.call("GET", f"{JOBS}?status=unknown")).status_code == 422


async def test_only_responses_to_uploads_say_whether_the_asset_is_new(api: Api) -> None:
    user = await api.user()
    created = (await upload(user)).json()
    assert created["created_new"] is True
    found = (await user.call("GET", f"{ASSETS}/{created['id']}")).json()
    assert "created_new" not in found
    assert found["hash"] is not None


async def test_job_in_a_forwarding_loop_is_refused(api: Api) -> None:
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
