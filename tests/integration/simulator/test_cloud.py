"""The simulated cloud implements the Comfy API v2, and refuses everything that is not in its contract."""

import io
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from blake3 import blake3
from PIL import Image

from comfyrelay.simulator import EndAs, ErrorAfterQueueing, Fail, LostFile, Refuse, Simulator, Slow, Stuck
from tests.integration.simulator.raw_client import NO_TLS, invert_graph, until
from tests.support.paths import RECORDINGS
from tests.support.world import PATIENCE_SECONDS

PICTURE = (RECORDINGS / "rec.png").read_bytes()
TEXT = {"1": {"class_type": "PreviewAny", "inputs": {"source": "x"}}}


class Cloud:
    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.http = httpx.AsyncClient(
            base_url=f"{simulator.url}/api/v2",
            headers={"Authorization": f"Bearer {simulator.api_key}"},
            timeout=PATIENCE_SECONDS,
            verify=NO_TLS,
        )

    async def upload(self, content: bytes = PICTURE, **fields: str) -> httpx.Response:
        form = {"content_type": "image/png", "file_path": "a.PNG", **fields}
        return await self.http.post("/assets", files={"file": ("a.png", content)}, data=form)

    async def post(self, graph: dict[str, Any], *, key: str | None = None, **fields: Any) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.http.post("/jobs", json={"workflow": graph, **fields}, headers=headers)

    async def submit(self, graph: dict[str, Any] | None = None) -> str:
        if graph is None:
            asset = (await self.upload()).json()
            graph = invert_graph("")
            graph["1"]["inputs"]["image"] = {"__type": "core/ASSET", "info": {"id": asset["id"]}}
        response = await self.post(graph)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    async def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.http.get(f"/jobs/{job_id}")).json()
        return found

    async def reach(self, job_id: str, state: str) -> dict[str, Any]:
        async def is_there() -> bool:
            return bool((await self.job(job_id))["status"] == state)

        await until(is_there)
        return await self.job(job_id)


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    async with Simulator(cloud=True) as simulator:
        cloud = Cloud(simulator)
        async with cloud.http:
            yield cloud


def code_of(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


async def test_api_key_is_required(cloud: Cloud) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-API-Key": cloud.simulator.api_key}):
        async with httpx.AsyncClient(base_url=cloud.simulator.url, headers=headers, verify=NO_TLS) as http:
            response = await http.get("/api/v2/jobs/x")
        assert (response.status_code, code_of(response)) == (401, "unauthorized")
    assert (await cloud.http.get("/jobs/x")).status_code == 404


async def test_other_apis_are_not_served(cloud: Cloud) -> None:
    for path in ("/prompt", "/queue", "/ws", "/api/prompt", "/api/job/x/status", "/api/v2/jobs", "/api/object_info"):
        assert (await cloud.http.get(f"{cloud.simulator.url}{path}")).status_code in (404, 405), path


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"metadata": {"a": "b"}}, "metadata_not_supported"),
        ({"inputs": {}}, "invalid_request"),
        ({"webhook_url": "https://example.org"}, "invalid_request"),
        ({"priority": 1}, "invalid_request"),
        ({"extra_data": {"extra_pnginfo": {}}}, "invalid_request"),
        ({"graph": {"nodes": [], "links": [], "version": 0.4}}, "workflow_format_ui"),
        ({"graph": {}}, "invalid_workflow"),
        ({"graph": {"1": {"class_type": "No", "inputs": {}}}}, "invalid_workflow"),
        (
            {"graph": {"1": {"class_type": "PreviewAny", "inputs": {"source": {"__type": "core/ASSET"}}}}},
            "missing_asset",
        ),
    ],
)
async def test_submission_is_refused(cloud: Cloud, fields: dict[str, Any], code: str) -> None:
    response = await cloud.post(**{"graph": TEXT, "key": "k", **fields})
    assert (response.status_code, code_of(response)) == (422, code)
    # A refused submission releases its key.
    assert (await cloud.post(TEXT, key="k", extra_data={"api_key_comfy_org": "x"})).status_code == 201


async def test_idempotency_key_is_accepted_for_one_job(cloud: Cloud) -> None:
    assert (await cloud.post(TEXT, key="k")).status_code == 201
    again = await cloud.post(TEXT, key="k")
    assert (again.status_code, code_of(again)) == (422, "idempotency_key_reuse")
    cloud.simulator.misbehave(ErrorAfterQueueing(times=1))
    assert (await cloud.post(TEXT, key="unknown outcome")).status_code == 500
    assert code_of(await cloud.post(TEXT, key="unknown outcome")) == "idempotency_key_reuse"
    assert cloud.simulator.log.prompts_queued == 2


async def test_output_is_downloaded_from_another_origin(cloud: Cloud) -> None:
    done = await cloud.reach(await cloud.submit(), "succeeded")
    [output] = done["outputs"]
    assert (output["node_id"], output["type"], output["job_id"]) == ("3", "image", done["id"])
    answer = await cloud.http.get(f"/assets/{output['id']}/content")
    assert answer.status_code == 302
    location = answer.headers["location"]
    assert urlsplit(location).netloc != urlsplit(cloud.simulator.url).netloc
    async with httpx.AsyncClient(verify=NO_TLS) as plain:
        content = (await plain.get(location)).content
        part = await plain.get(location, headers={"Range": "bytes=4-"})
    assert Image.open(io.BytesIO(content)).format == "PNG"
    assert (part.status_code, part.content) == (206, content[4:])
    assert cloud.simulator.log.leaked_credentials == []
    assert code_of(await cloud.http.delete(f"/assets/{output['id']}")) == "asset_in_use"


@pytest.mark.parametrize("header", ["X-API-Key", "Authorization"])
async def test_credential_sent_to_the_store_is_refused_and_logged(header: str, cloud: Cloud) -> None:
    url = (await cloud.upload()).json()["url"]
    async with httpx.AsyncClient(headers={header: "secret"}, verify=NO_TLS) as http:
        assert (await http.get(url)).status_code == 400
    assert len(cloud.simulator.log.leaked_credentials) == 1


async def test_jobs_are_canceled_in_any_state(cloud: Cloud) -> None:
    cloud.simulator.misbehave(Slow(class_type="ImageInvert", seconds=20, steps=1000))
    running = await cloud.submit()
    await cloud.reach(running, "running")
    pending = await cloud.submit()
    assert (await cloud.job(pending))["queue_position"] == 0
    for job_id in (pending, running, running):
        assert (await cloud.http.post(f"/jobs/{job_id}/cancel")).status_code == 200
    await cloud.reach(running, "canceled")
    assert (await cloud.job(pending))["status"] == "canceled"
    assert (await cloud.http.post("/jobs/unknown/cancel")).status_code == 404


async def test_events_end_with_the_last_status(cloud: Cloud) -> None:
    cloud.simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.5, steps=10, previews=True))
    job_id = await cloud.submit()
    names, statuses = [], []
    async with cloud.http.stream("GET", f"/jobs/{job_id}/events") as response:
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                names.append(line.removeprefix("event: "))
            elif line.startswith("data: ") and names[-1] == "status":
                statuses.append(json.loads(line.removeprefix("data: "))["status"])
    assert {"status", "progress", "preview"} == set(names)
    assert statuses[-1] == "succeeded"
    done = await cloud.job(job_id)
    assert done["progress"] is None
    assert (await cloud.http.get(f"/jobs/{job_id}/workflow")).json()["format"] == "api"


async def test_failed_job_names_its_node(cloud: Cloud) -> None:
    cloud.simulator.misbehave(Fail(class_type="ImageInvert", exception_type="OOMError", message="no memory"))
    job = await cloud.reach(await cloud.submit(), "failed")
    assert job["error"] == {
        "code": "node_execution_error",
        "message": "no memory",
        "node_id": "2",
        "class_type": "ImageInvert",
        "traceback": None,
    }


async def test_jobs_can_end_in_other_states(cloud: Cloud) -> None:
    cloud.simulator.misbehave(EndAs(state="expired", times=1))
    assert (await cloud.job(await cloud.submit()))["status"] == "expired"
    await cloud.reach(await cloud.submit(), "succeeded")


async def test_restart_expires_the_queue(cloud: Cloud) -> None:
    cloud.simulator.misbehave(Stuck(class_type="ImageInvert", times=1))
    job_id = await cloud.submit()
    await cloud.simulator.restart()
    assert (await cloud.http.get(f"/jobs/{job_id}")).status_code == 404


async def test_assets_are_deduplicated_by_content(cloud: Cloud) -> None:
    digest = f"blake3:{blake3(b'1').hexdigest()}"
    assert (await cloud.http.head(f"/assets/by-hash/{digest}")).status_code == 404
    assert code_of(await cloud.http.post("/assets/from-hash", json={"hash": digest})) == "blob_not_found"
    assert code_of(await cloud.upload(b"1", expected_hash="blake3:0")) == "hash_mismatch"
    first, again = await cloud.upload(b"1", expected_hash=digest), await cloud.upload(b"1")
    assert [first.status_code, again.status_code] == [201, 200]
    assert [first.json()["created_new"], again.json()["created_new"]] == [True, False]
    assert first.json()["hash"] == digest
    assert (await cloud.http.head(f"/assets/by-hash/{digest}")).status_code == 200
    assert (await cloud.http.post("/assets/from-hash", json={"hash": digest})).status_code == 201
    assert cloud.simulator.log.uploads_written == 1
    assert (await cloud.http.delete(f"/assets/{first.json()['id']}")).status_code == 204
    assert (await cloud.http.get(f"/assets/{first.json()['id']}")).status_code == 404
    assert (await cloud.http.get(f"/assets/{again.json()['id']}")).status_code == 200


async def test_upload_needs_all_fields(cloud: Cloud) -> None:
    response = await cloud.http.post("/assets", files={"file": ("a.png", PICTURE)}, data={"file_path": "a.png"})
    assert (response.status_code, code_of(response)) == (422, "invalid_request")


async def test_repeated_job_still_has_its_outputs(cloud: Cloud) -> None:
    for _ in range(2):
        assert (await cloud.reach(await cloud.submit(), "succeeded"))["outputs"]


async def test_refusal_has_the_requested_status_and_code(cloud: Cloud) -> None:
    cloud.simulator.misbehave(Refuse(status=429, error_type="queue_full", retry_after=3, times=2))
    cloud.simulator.misbehave(Refuse(status=402, error_type="insufficient_credits", times=1))
    answers = [await cloud.post(TEXT) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [429, 429, 402, 201]
    assert answers[0].headers["retry-after"] == "3"
    assert [code_of(answer) for answer in answers[1:3]] == ["queue_full", "insufficient_credits"]


async def test_lost_file_is_reported(cloud: Cloud) -> None:
    asset = (await cloud.upload()).json()
    cloud.simulator.misbehave(LostFile(times=1))
    assert (await cloud.http.get(f"/assets/{asset['id']}/content")).status_code == 404
    assert (await cloud.http.get(f"/assets/{asset['id']}/content")).status_code == 302
