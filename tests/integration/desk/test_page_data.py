"""Data for the page of the desk, and its access control."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from comfyrelay.desk.examples import sample_image
from tests.support.chromium import PROMPT_GRAPH
from tests.support.desk import make_desk
from tests.support.desk_owner import owner_http
from tests.support.editor_files import empty, node, workflow

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATHS = ("/", "/icon.svg", "/api/desk", "/api/desk/now")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def untouched(tmp_path_factory: pytest.TempPathFactory, built_app: None) -> Any:
    """A desk for all tests that change nothing."""
    async with (
        make_desk(tmp_path_factory.mktemp("untouched")).open() as (_worker, ready),
        owner_http(ready.url) as client,
    ):
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def http(desk_url: str) -> Any:
    async with owner_http(desk_url) as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
async def test_foreign_name_is_refused(untouched: httpx.AsyncClient, path: str) -> None:
    assert (await untouched.get(path)).status_code == 200
    for name in ("evil.example", f"evil.example:{untouched.base_url.port}", "127.0.0.1:1"):
        assert (await untouched.get(path, headers={"Host": name})).status_code == 403


@pytest.mark.parametrize("path", PATHS)
async def test_foreign_page_is_refused(untouched: httpx.AsyncClient, path: str) -> None:
    own = f"http://{untouched.base_url.netloc.decode()}"
    assert (await untouched.get(path, headers={"Origin": own})).status_code == 200
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        assert (await untouched.get(path, headers={"Origin": origin})).status_code == 403


async def test_foreign_page_cannot_add_a_graph(untouched: httpx.AsyncClient) -> None:
    answer = await untouched.post(
        "/api/workflows", json={"graph": PROMPT_GRAPH}, headers={"Origin": "https://evil.example"}
    )
    assert answer.status_code == 403
    assert (await untouched.get("/api/workflows")).json()["data"]["items"] == []


async def test_graph_becomes_a_workflow_with_typed_inputs(http: httpx.AsyncClient) -> None:
    answer = await http.post("/api/workflows", json={"graph": PROMPT_GRAPH, "name": "portrait"})
    assert answer.status_code == 201
    data = answer.json()["data"]
    assert data["roles"] == {"prompt": "prompt", "negative_prompt": "negative_prompt", "seed": "seed"}
    by_key = {each["key"]: each for each in data["properties"]}
    assert list(by_key)[:3] == ["prompt", "negative_prompt", "seed"]
    # the range is that of the node
    steps = by_key["steps"]
    assert (steps["minimum"], steps["maximum"], steps["step"], steps["is_whole"]) == (1, 10000, 1, True)
    assert (steps["label"], steps["role"], steps["group"]) == ("Steps", "steps", "Sampler")
    listed = (await http.get("/api/workflows")).json()["data"]["items"]
    assert [each["slug"] for each in listed] == [data["slug"]]


async def test_editor_workflow_is_refused_with_all_missing_nodes(
    untouched: httpx.AsyncClient,
) -> None:
    saved = workflow([empty(), node(2, "Foo"), node(3, "Bar", title="The bar")])
    answer = await untouched.post("/api/workflows", json={"graph": saved})
    assert answer.status_code == 409
    assert "These nodes are not installed: Foo (node 2), Bar (node 3)." in answer.json()["detail"]
    assert [each["name"] for each in answer.json()["missing"]] == ["Foo", "Bar"]


async def test_job_page_shows_all_known_details(http: httpx.AsyncClient) -> None:
    made = (await http.post("/api/workflows", json={"graph": PROMPT_GRAPH, "name": "portrait"})).json()["data"]
    body = {
        "workflow_slug": made["slug"],
        "input_payload": {"prompt": "a hill", "seed": 18446744073709551614},
        "idempotency_key": str(uuid4()),
    }
    job_id = (await http.post("/api/ai-jobs", json=body)).json()["data"]["id"]
    await _ended(http, job_id)
    about = (await http.get(f"/api/desk/jobs/{job_id}")).json()["data"]
    assert about["workflow_name"] == "portrait"
    values = {each["key"]: each["value"] for each in about["inputs"]}
    assert (values["prompt"], values["negative_prompt"], values["seed"]) == ("a hill", "blurry", 18446744073709551614)
    assert [(each["outcome"], each["seed"]) for each in about["attempts"]] == [("failed", 18446744073709551614)]
    assert about["error_detail"]


async def test_file_of_a_job_can_be_looked_at(http: httpx.AsyncClient) -> None:
    content = sample_image()
    about_file = {"mime_type": "image/png", "size": len(content), "original_filename": "cat.png"}
    upload = (await http.post("/api/videos/uploads", json=about_file)).json()["data"]
    await http.put(upload["upload_url"], content=content, headers=upload["upload_headers"])
    body = {"effect_id": 1, "input_file_id": upload["file"]["id"], "idempotency_key": str(uuid4())}
    job_id = (await http.post("/api/ai-jobs", json=body)).json()["data"]["id"]
    (shown,) = (await http.get(f"/api/desk/jobs/{job_id}")).json()["data"]["inputs"]
    assert (shown["key"], shown["type"], shown["value"]) == ("image", "image", "cat.png")
    assert (await http.get(shown["url"])).content == content


async def test_nothing_is_known_of_a_job_that_is_not_there(untouched: httpx.AsyncClient) -> None:
    assert (await untouched.get("/api/desk/jobs/nothing")).status_code == 404


async def _ended(http: httpx.AsyncClient, job_id: str) -> None:
    async with asyncio.timeout(30):
        async with http.stream("GET", f"/api/ai-jobs/{job_id}/events") as events:
            async for _line in events.aiter_lines():
                pass
