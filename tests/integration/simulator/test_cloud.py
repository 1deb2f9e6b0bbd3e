"""The cloud API: keys, jobs by state, uploads by content, and downloads from another origin."""

import io
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from comfyrelay.simulator import EndAs, ErrorAfterQueueing, Fail, LostFile, Refuse, Simulator, Slow, Stuck
from tests.integration.simulator.raw_client import NO_TLS, invert_graph, until
from tests.support.paths import RECORDINGS
from tests.support.world import PATIENCE_SECONDS


class Cloud:
    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.http = httpx.AsyncClient(
            base_url=simulator.url, headers={"X-API-Key": simulator.api_key}, timeout=PATIENCE_SECONDS, verify=NO_TLS
        )

    async def upload(self, content: bytes) -> str:
        response = await self.http.post(
            "/api/upload/image", files={"image": ("a.PNG", content)}, data={"type": "input"}
        )
        assert response.status_code == 200
        return str(response.json()["name"])

    async def submit(self, graph: dict[str, Any] | None = None) -> str:
        if graph is None:
            graph = invert_graph(await self.upload((RECORDINGS / "rec.png").read_bytes()))
        response = await self.http.post("/api/prompt", json={"prompt": graph})
        assert response.status_code == 200, response.text
        return str(response.json()["prompt_id"])

    async def state(self, job_id: str) -> str:
        return str((await self.http.get(f"/api/job/{job_id}/status")).json()["status"])

    async def reach(self, job_id: str, state: str) -> None:
        async def is_there() -> bool:
            return await self.state(job_id) == state

        await until(is_there)


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    async with Simulator(cloud=True) as simulator:
        cloud = Cloud(simulator)
        async with cloud.http:
            yield cloud


async def test_api_key_is_required(cloud: Cloud) -> None:
    for headers in ({}, {"X-API-Key": "wrong"}):
        async with httpx.AsyncClient(base_url=cloud.simulator.url, headers=headers, verify=NO_TLS) as http:
            response = await http.get("/api/object_info")
        assert response.status_code == 401
        assert set(response.json()) == {"code", "message"}
    assert (await cloud.http.get("/api/object_info")).status_code == 200


async def test_native_routes_are_not_served(cloud: Cloud) -> None:
    for path in ("/prompt", "/queue", "/history/x", "/system_stats", "/ws", "/api/history"):
        assert (await cloud.http.get(path)).status_code in (404, 405), path


async def test_output_is_downloaded_from_another_origin(cloud: Cloud) -> None:
    job_id = await cloud.submit()
    await cloud.reach(job_id, "success")
    job = (await cloud.http.get(f"/api/jobs/{job_id}")).json()
    assert job["status"] == "completed"
    [item] = job["outputs"]["3"]["images"]
    answer = await cloud.http.get("/api/view", params=item)
    assert answer.status_code == 302
    location = answer.headers["location"]
    assert urlsplit(location).netloc != urlsplit(cloud.simulator.url).netloc
    async with httpx.AsyncClient(verify=NO_TLS) as plain:
        content = (await plain.get(location)).content
    assert Image.open(io.BytesIO(content)).format == "PNG"
    assert cloud.simulator.log.leaked_credentials == []


@pytest.mark.parametrize("header", ["X-API-Key", "Authorization"])
async def test_credential_sent_to_the_store_is_refused_and_logged(header: str, cloud: Cloud) -> None:
    job_id = await cloud.submit()
    await cloud.reach(job_id, "success")
    [item] = (await cloud.http.get(f"/api/jobs/{job_id}")).json()["outputs"]["3"]["images"]
    location = (await cloud.http.get("/api/view", params=item)).headers["location"]
    async with httpx.AsyncClient(headers={header: "secret"}, verify=NO_TLS) as http:
        assert (await http.get(location)).status_code == 400
    assert len(cloud.simulator.log.leaked_credentials) == 1


async def test_job_and_jobs_routes_use_different_state_names(cloud: Cloud) -> None:
    stuck = cloud.simulator.misbehave(Stuck(class_type="ImageInvert", times=1))
    running = await cloud.submit()
    await cloud.reach(running, "executing")
    pending = await cloud.submit()
    assert await cloud.state(pending) == "submitted"
    friendly = [(await cloud.http.get(f"/api/jobs/{job_id}")).json()["status"] for job_id in (running, pending)]
    assert friendly == ["in_progress", "pending"]
    queue = (await cloud.http.get("/api/queue")).json()
    assert queue["queue_pending"][0][3] == ["3"]
    assert set(queue["queue_pending"][0][4]) == {"create_time"}
    answer = await cloud.http.post("/api/queue", json={"delete": [running, pending]})
    assert answer.json() == {"deleted": [pending], "cleared": False}
    assert await cloud.state(pending) == "cancelled"
    stuck.end()
    await cloud.reach(running, "success")


async def test_jobs_are_cancelled_in_any_state(cloud: Cloud) -> None:
    cloud.simulator.misbehave(Slow(class_type="ImageInvert", seconds=20, steps=1000))
    running = await cloud.submit()
    await cloud.reach(running, "executing")
    pending = await cloud.submit()
    for job_id in (pending, running, running):
        assert (await cloud.http.post(f"/api/jobs/{job_id}/cancel")).status_code == 200
    await cloud.reach(running, "cancelled")
    assert await cloud.state(pending) == "cancelled"
    assert (await cloud.http.get(f"/api/jobs/{running}")).json()["status"] == "cancelled"
    assert (await cloud.http.post("/api/jobs/unknown/cancel")).status_code == 404


async def test_interrupt_cancels_the_running_job(cloud: Cloud) -> None:
    cloud.simulator.misbehave(Slow(class_type="ImageInvert", seconds=20, steps=1000))
    running = await cloud.submit()
    await cloud.reach(running, "executing")
    assert (await cloud.http.post("/api/interrupt")).status_code == 200
    await cloud.reach(running, "cancelled")


async def test_failed_job_has_a_reason(cloud: Cloud) -> None:
    cloud.simulator.misbehave(Fail(exception_type="OOMError", message="no memory"))
    job_id = await cloud.submit()
    await cloud.reach(job_id, "error")
    assert (await cloud.http.get(f"/api/job/{job_id}/status")).json()["error_message"] == "no memory\n"
    job = (await cloud.http.get(f"/api/jobs/{job_id}")).json()
    assert job["status"] == "failed"
    assert job["execution_error"]["exception_type"] == "OOMError"


@pytest.mark.parametrize("state", ["lost", "non_retryable_error"])
async def test_jobs_can_end_in_other_states(state: str, cloud: Cloud) -> None:
    cloud.simulator.misbehave(EndAs(state=state, times=1))
    job_id = await cloud.submit()
    assert await cloud.state(job_id) == state
    assert (await cloud.http.get(f"/api/jobs/{job_id}")).json()["status"] == "failed"
    await cloud.reach(await cloud.submit(), "success")


async def test_history_has_the_prompt_as_an_object(cloud: Cloud) -> None:
    job_id = await cloud.submit()
    await cloud.reach(job_id, "success")
    entry = (await cloud.http.get(f"/api/history_v2/{job_id}")).json()[job_id]
    assert entry["prompt"]["prompt_id"] == job_id
    assert entry["outputs"]["3"]["images"]
    assert (await cloud.http.get("/api/history_v2/unknown")).json() == {}


async def test_uploads_are_named_by_their_content(cloud: Cloud) -> None:
    first, again, other = [await cloud.upload(content) for content in (b"1", b"1", b"2")]
    assert first == again != other
    assert first.endswith(".png")
    assert cloud.simulator.log.uploads_written == 2
    large = await cloud.http.post("/api/upload/image", files={"image": ("a.png", bytes(50 * 1024**2 + 1))})
    assert large.status_code == 400
    assert (await cloud.http.post("/api/upload/image", data={"image": "text"})).status_code == 400


async def test_repeated_job_still_has_its_outputs(cloud: Cloud) -> None:
    for _ in range(2):
        job_id = await cloud.submit()
        await cloud.reach(job_id, "success")
        assert (await cloud.http.get(f"/api/jobs/{job_id}")).json()["outputs"]["3"]["images"]


async def test_refusal_has_the_requested_status_and_type(cloud: Cloud) -> None:
    graph = {"1": {"class_type": "PreviewAny", "inputs": {"source": "x"}}}

    async def submit() -> httpx.Response:
        return await cloud.http.post("/api/prompt", json={"prompt": graph})

    cloud.simulator.misbehave(Refuse(status=429, error_type="QUEUE_LIMIT", retry_after=3, times=2))
    cloud.simulator.misbehave(Refuse(status=402, error_type="PAYMENT_REQUIRED", times=1))
    cloud.simulator.misbehave(Refuse(status=503, times=1))
    answers = [await submit() for _ in range(5)]
    assert [answer.status_code for answer in answers] == [429, 429, 402, 503, 200]
    assert answers[0].headers["retry-after"] == "3"
    assert answers[0].json()["error"]["type"] == "QUEUE_LIMIT"
    assert answers[2].json()["error"]["type"] == "PAYMENT_REQUIRED"


async def test_status_500_after_queueing_keeps_the_job(cloud: Cloud) -> None:
    cloud.simulator.misbehave(ErrorAfterQueueing(times=1))
    graph = {"1": {"class_type": "PreviewAny", "inputs": {"source": "x"}}}
    response = await cloud.http.post("/api/prompt", json={"prompt": graph, "prompt_id": "mine"})
    assert response.status_code == 500
    await cloud.reach("mine", "success")


async def test_invalid_graphs_and_unknown_ids_are_refused(cloud: Cloud) -> None:
    bad = await cloud.http.post("/api/prompt", json={"prompt": {"1": {"class_type": "No", "inputs": {}}}})
    assert (bad.status_code, bad.json()["error"]["type"]) == (400, "missing_node_type")
    assert (await cloud.http.post("/api/prompt", json={})).status_code == 400
    for path in ("/api/job/x/status", "/api/jobs/x", "/api/view?filename=x.png"):
        answer = await cloud.http.get(path)
        assert answer.status_code == 404
        assert set(answer.json()) == {"code", "message"}
    name = await cloud.upload(b"1")
    cloud.simulator.misbehave(LostFile(times=1))
    assert (await cloud.http.get("/api/view", params={"filename": name})).status_code == 404
    assert (await cloud.http.get("/api/view", params={"filename": name})).status_code == 302
