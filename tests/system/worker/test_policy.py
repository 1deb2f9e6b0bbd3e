"""Graphs that tenants bring, through the whole system: what is refused, by whom, and that nothing of it runs."""

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
async def test_graph_of_a_tenant_runs_with_the_file_of_its_job(system: System) -> None:
    slug = await bring(system, invert_file("{{INPUT}}"), properties=[INPUT])
    await system.started()
    assert await system.completed(await system.submit(slug, png("#123456")))


@pytest.mark.parametrize("settings", [OFF])
async def test_worker_runs_no_graph_of_a_tenant_that_its_own_policy_does_not_allow(system: System) -> None:
    # what an administrator has made an effect of may have it
    effect = await system.plain_effect()
    linked_file, linked_prefix = invert_file(), invert()
    linked_file["1"]["inputs"]["image"] = ["4", 0]
    linked_prefix["3"]["inputs"]["filename_prefix"] = ["4", 0]
    words = {"4": {"class_type": "PreviewAny", "inputs": {"source": "x"}}}
    expected = {
        await bring(system, linked_file | words): "LoadImage (1): input 'image' is linked",
        await bring(system, linked_prefix | words): "SaveImage (3): input 'filename_prefix' must be a text itself",
        await bring(system, invert()): "ImageInvert (2) may not be in a graph of yours",
    }
    await system.started(graph_denied_nodes="Image*")
    for slug, sentence in expected.items():
        job = await system.until(await system.submit(slug), "failed")
        assert sentence in job["error"]
        assert job["attempts"] == 1
    assert system.simulator.log.prompts_queued == 0
    await system.completed(await system.plain(effect))


@pytest.mark.parametrize("settings", [OFF])
async def test_with_no_policy_at_all_files_of_other_jobs_stay_out_of_reach(system: System) -> None:
    secret = png("#abcdef")
    (system.simulator.folder / "input" / "secret.png").write_bytes(secret)
    system.assets.append(secret)
    text = {"key": "name", "type": "text", "placeholder": "{{NAME}}", "user_configurable": True}
    effect = await system.effect("nosy", invert_file("{{NAME}}"), properties=[text])
    slug = await bring(system, invert_file("secret.png"), properties=[])
    await system.started(graph_policy="off")
    for wish, payload in ((effect, {"name": "secret.png"}), (slug, {})):
        job = await system.until(await system.submit(wish, input_payload=payload), "failed")
        assert "LoadImage (1): input 'image' names 'secret.png', which is not a file of this job" in job["error"]
        assert job["attempts"] == 1
    assert system.simulator.log.prompts_queued == 0
