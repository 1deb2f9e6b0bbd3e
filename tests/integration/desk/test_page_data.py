"""Data for the page of the desk."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from comfyrelay.desk.examples import sample_image
from comfyrelay.simulator import Simulator
from comfyrelay.web.session_pages import SIGN_IN_PATH
from tests.support.chromium import PROMPT_GRAPH
from tests.support.desk import make_desk, open_desk
from tests.support.desk_owner import owner_http
from tests.support.editor_files import empty, node, workflow
from tests.support.graphs import invert

pytestmark = pytest.mark.asyncio(loop_scope="session")

LARGE_SEED = 2**64 - 2


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def http(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """Yield an HTTP client of the owner of one desk, for all tests."""
    async with (
        make_desk(tmp_path_factory.mktemp("desk"), shutdown_seconds=0).open() as (_worker, ready),
        owner_http(ready.url) as client,
    ):
        yield client


async def test_graph_becomes_a_workflow_with_typed_inputs(http: httpx.AsyncClient) -> None:
    answer = await http.post("/api/workflows", json={"graph": PROMPT_GRAPH, "name": "portrait"})
    assert answer.status_code == 201
    data = answer.json()["data"]
    assert data["roles"] == {"prompt": "prompt", "negative_prompt": "negative_prompt", "seed": "seed"}
    by_key = {field["key"]: field for field in data["properties"]}
    assert list(by_key)[:3] == ["prompt", "negative_prompt", "seed"]
    # the range comes from the node
    steps = by_key["steps"]
    assert (steps["minimum"], steps["maximum"], steps["step"], steps["is_whole"]) == (1, 10000, 1, True)
    assert (steps["label"], steps["role"], steps["group"]) == ("Steps", "steps", "Sampler")
    workflows = (await http.get("/api/workflows")).json()["data"]["items"]
    assert data["slug"] in [workflow["slug"] for workflow in workflows]


async def test_editor_workflow_is_refused_with_all_missing_nodes(http: httpx.AsyncClient) -> None:
    saved = workflow([empty(), node(2, "Foo"), node(3, "Bar", title="The bar")])
    answer = await http.post("/api/workflows", json={"graph": saved})
    assert answer.status_code == 409
    assert "These nodes are not installed: Foo (node 2), Bar (node 3)." in answer.json()["detail"]
    assert [item["name"] for item in answer.json()["missing"]] == ["Foo", "Bar"]


async def test_job_page_shows_every_known_detail(http: httpx.AsyncClient) -> None:
    created = await http.post("/api/workflows", json={"graph": PROMPT_GRAPH, "name": "portrait"})
    body = {
        "workflow_slug": created.json()["data"]["slug"],
        "input_payload": {"prompt": "a hill", "seed": LARGE_SEED},
        "idempotency_key": str(uuid4()),
    }
    job_id = (await http.post("/api/ai-jobs", json=body)).json()["data"]["id"]
    await wait_until_ended(http, job_id)
    about = (await http.get(f"/api/desk/jobs/{job_id}")).json()["data"]
    assert about["workflow_name"] == "portrait"
    values = {field["key"]: field["value"] for field in about["inputs"]}
    assert (values["prompt"], values["negative_prompt"], values["seed"]) == ("a hill", "blurry", LARGE_SEED)
    assert [(attempt["outcome"], attempt["seed"]) for attempt in about["attempts"]] == [("failed", LARGE_SEED)]
    assert about["error_detail"]


async def test_input_file_of_a_job_can_be_viewed(http: httpx.AsyncClient) -> None:
    content = sample_image()
    about_file = {"mime_type": "image/png", "size": len(content), "original_filename": "cat.png"}
    upload = (await http.post("/api/videos/uploads", json=about_file)).json()["data"]
    await http.put(upload["upload_url"], content=content, headers=upload["upload_headers"])
    body = {"effect_id": 1, "input_file_id": upload["file"]["id"], "idempotency_key": str(uuid4())}
    job_id = (await http.post("/api/ai-jobs", json=body)).json()["data"]["id"]
    (shown,) = (await http.get(f"/api/desk/jobs/{job_id}")).json()["data"]["inputs"]
    assert (shown["key"], shown["type"], shown["value"]) == ("image", "image", "cat.png")
    assert (await http.get(shown["url"])).content == content
    assert (await http.get("/api/desk/jobs/nothing")).status_code == 404


async def wait_until_ended(http: httpx.AsyncClient, job_id: str) -> None:
    async with asyncio.timeout(30):
        async with http.stream("GET", f"/api/ai-jobs/{job_id}/events") as events:
            async for _line in events.aiter_lines():
                pass


PASSWORD = "a cat & a hill = 2"


async def test_job_links_to_its_comfyui_only_on_this_machine(tmp_path: Path) -> None:
    async with Simulator() as comfyui:
        made = make_desk(tmp_path / "desk", comfyui_url=[comfyui.url])
        async with open_desk(made) as desk, owner_http(desk.ready.url) as owner:
            mine = await desk.client.create_workflow(invert(), name="mine")
            job = await desk.client.submit(workflow_slug=mine.slug)
            assert (await desk.ended(job.id)).status == "completed"
            about = (await owner.get(f"/api/desk/jobs/{job.id}")).json()["data"]
            assert about["comfyui_url"] == comfyui.url
            await owner.put("/api/desk/password", json={"password": PASSWORD})
            await owner.put("/api/desk/settings", json={"values": {"desk.allowed_hosts": ["desk.home"]}})
            async with httpx.AsyncClient(base_url=desk.ready.url, headers={"Origin": desk.ready.url}) as guest:
                assert (await guest.post(SIGN_IN_PATH, data={"password": PASSWORD})).is_success
                shown = (await guest.get(f"/api/desk/jobs/{job.id}")).json()["data"]
                assert shown["comfyui_url"] is None
            elsewhere = await owner.get(f"/api/desk/jobs/{job.id}", headers={"Host": "desk.home"})
            assert elsewhere.json()["data"]["comfyui_url"] is None
