"""A tenant's graph is checked against the policy when it is added, and again when a job is submitted."""

from typing import Any

import pytest

from comfyrelay.errors import GraphNotAllowed
from comfyrelay.services.engine import Engine
from tests.support.api import SECRETS, Api, Caller, open_api, problem_of
from tests.support.api_calls import submit
from tests.support.world import SqliteBackend

LINK = ["9", 0]
JOINED = {"9": {"class_type": "StringConcatenate", "inputs": {"string_a": "se", "string_b": "cret"}}}


def graph(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {**JOINED, "4": {"class_type": class_type, "inputs": inputs}}


async def bring(user: Caller, body: dict[str, Any], **properties: Any) -> Any:
    return await user.post("/api/workflows", {"graph": body, "output_extension": "png", **properties})


TEXT = {"key": "text", "type": "text", "placeholder": "{{TEXT}}", "user_configurable": True, "default_value": "a cat"}


async def test_graph_whose_output_depends_on_a_cycle_is_refused(api: Api) -> None:
    body = {
        "1": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "a"}},
    }
    user = await api.user()
    working = await bring(user, graph("Draw", text="a cat"))
    path = f"/api/workflows/{working['slug']}"
    for method, address in (("POST", "/api/workflows"), ("PATCH", path)):
        for more in ({}, {"properties": [], "output_node_id": "3"}):
            problem = problem_of(await user.call(method, address, {"graph": body, **more}), 422)
            assert problem["detail"] == "The links of these nodes form a cycle: 1, 2."


async def test_denied_graph_error_names_node_and_remedy(api: Api) -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
        (graph("PyExec", code="print()"), ["PyExec (4)", "runs code", "administrator"]),
        (graph("LoadImage", image=LINK), ["LoadImage (4): input 'image' is linked", "placeholder"]),
        (graph("OpenThing", directory=LINK), ["OpenThing (4): input 'directory' is linked"]),
        (graph("OpenThing", directory="frames"), ["OpenThing (4): input 'directory' names 'frames'", "property"]),
        (graph("OpenThing", text="frames/**"), ["OpenThing (4): input 'text' names 'frames/**'", "pattern"]),
        (graph("SaveImage", filename_prefix=LINK), ["SaveImage (4): input 'filename_prefix' must be a literal text"]),
    ]
    user = await api.user()
    for body, words in cases:
        problem = problem_of(await user.call("POST", "/api/workflows", {"graph": body}), 422)
        assert problem["type"] == "urn:comfyrelay:graph_not_allowed"
        assert [word for word in words if word not in problem["detail"]] == []


async def test_denied_input_value_is_refused(api: Api) -> None:
    user = await api.user()
    created = await bring(user, graph("Draw", text="{{TEXT}}"), properties=[TEXT])
    body = {"workflow_slug": created["slug"], "idempotency_key": "k"}
    for text in ("/etc/passwd", "frames/**", "x [output]"):
        problem = problem_of(await user.call("POST", "/api/ai-jobs", {**body, "input_payload": {"text": text}}), 422)
        assert "Draw (4): input 'text' names" in problem["detail"]
    assert await user.post("/api/ai-jobs", {**body, "input_payload": {"text": "and/or a cat"}})


async def test_graph_with_a_newly_denied_node_is_refused(api: Api) -> None:
    user = await api.user()
    slug = (await bring(user, graph("Draw", text="a cat")))["slug"]
    assert await user.post("/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "before"})
    settings = api.engine.settings.model_copy(update={"graph_denied_nodes": ["Dr*"]})
    assert user.user is not None
    async with Engine(settings, signing_secrets=SECRETS.signing) as engine:
        with pytest.raises(GraphNotAllowed, match="an administrator has denied it"):
            await engine.jobs.resolve.find_target(user.user.tenant_id, effect_id=None, workflow_slug=slug)


async def test_administrators_graph_is_trusted(backend: SqliteBackend, tmp_path: Any) -> None:
    async with open_api(backend, tmp_path, graph_policy="allow") as api:
        user = await api.user(tokens=100)
        problem = problem_of(await user.call("POST", "/api/workflows", {"graph": graph("Draw")}), 422)
        assert "is not on the administrator's list" in problem["detail"]
        assert await submit(user, await api.effect())


async def test_allow_list_contains_the_workers_nodes(api: Api) -> None:
    await api.effect()
    await api.worker("gpu-1", capabilities={"node_types": ["LoadImage", "PyExec"]})
    await api.worker("gpu-2", capabilities={"node_types": ["SaveImage", "LoadImage"]})
    await api.worker("gpu-3", capabilities={"node_types": None})
    found = await api.engine.workers.nodes.allow_list("home-clip")
    assert found.workers == 2
    assert found.allowed == ["LoadImage", "SaveImage"]
    assert found.left_out == {"PyExec": "it runs code or commands"}
    assert (await api.engine.workers.nodes.allow_list()).allowed == found.allowed
