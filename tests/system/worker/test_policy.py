"""Tenant graphs are refused by the server or the worker, and no part of a refused graph runs."""

from typing import Any

import pytest

from comfyrelay.comfyui.graphs.graph import Graph
from tests.support.api_calls import png
from tests.support.graphs import invert, invert_file
from tests.support.whole_system import INPUT, System

FLEET = {"DEFAULT_FLEET": "home"}
OFF = {**FLEET, "GRAPH_POLICY": "off"}


async def bring(system: System, graph: Graph, **more: Any) -> str:
    body = {"graph": graph, "output_node_id": "3", "output_extension": "png", **more}
    slug: str = (await system.user("POST", "/workflows", body))["slug"]
    return slug


@pytest.mark.parametrize("settings", [FLEET])
async def test_tenant_graph_runs_with_its_own_file(system: System) -> None:
    slug = await bring(system, invert_file("{{INPUT}}"), properties=[INPUT])
    await system.started()
    assert await system.completed(await system.submit(slug, png("#123456")))


@pytest.mark.parametrize("settings", [OFF])
async def test_worker_policy_refuses_a_tenant_graph(system: System) -> None:
    # effects of administrators are exempt
    effect = await system.plain_effect()
    linked_file, linked_prefix = invert_file(), invert()
    linked_file["1"]["inputs"]["image"] = ["4", 0]
    linked_prefix["3"]["inputs"]["filename_prefix"] = ["4", 0]
    text_node = {"4": {"class_type": "PreviewAny", "inputs": {"source": "x"}}}
    expected = {
        await bring(system, linked_file | text_node): "LoadImage (1): input 'image' is linked",
        await bring(system, linked_prefix | text_node): "SaveImage (3): input 'filename_prefix' must be a literal text",
        await bring(system, invert()): "ImageInvert (2) is not allowed in your graphs",
    }
    await system.started(graph_denied_nodes="Image*")
    for slug, sentence in expected.items():
        job = await system.until(await system.submit(slug), "failed")
        assert sentence in job["error"]
        assert job["attempts"] == 1
    assert system.simulator.log.prompts_queued == 0
    await system.completed(await system.plain(effect))


@pytest.mark.parametrize("settings", [OFF])
async def test_files_of_other_jobs_are_unreachable_without_a_policy(system: System) -> None:
    secret = png("#abcdef")
    (system.simulator.folder / "input" / "secret.png").write_bytes(secret)
    system.assets.append(secret)
    text = {"key": "name", "type": "text", "placeholder": "{{NAME}}", "user_configurable": True}
    effect = await system.effect("nosy", invert_file("{{NAME}}"), properties=[text])
    slug = await bring(system, invert_file("secret.png"), properties=[])
    await system.started(graph_policy="off")
    for wish, payload in ((effect, {"name": "secret.png"}), (slug, {})):
        job = await system.until(await system.submit(wish, input_payload=payload), "failed")
        # The author of a graph sees texts about its nodes; the user of an effect does not.
        is_own = wish is slug
        assert (
            "LoadImage (1): input 'image' names 'secret.png', which is not a file of this job" in job["error"]
        ) is is_own
        assert job["attempts"] == 1
    assert system.simulator.log.prompts_queued == 0
