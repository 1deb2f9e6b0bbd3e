"""`run` and `batch add` work with a server, and the client manages a user's workflows."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from comfyrelay.cli.jobs.targets import find_target, remove_added
from comfyrelay.errors import Conflict, NotFound
from tests.support.api_calls import complete, lease
from tests.support.chromium import PROMPT_GRAPH
from tests.support.client_site import Site
from tests.support.editor_files import empty, save, workflow
from tests.support.graphs import invert_file


def written(folder: Path, graph: Any, name: str = "graph.json") -> str:
    (folder / name).write_text(json.dumps(graph))
    return str(folder / name)


async def graphs_of(site: Site, count: int) -> list[Any]:
    """Return the graphs that a worker gets for the newest workflow's jobs, in order."""
    [workflow] = await site.client.workflows()
    await site.api.engine.workers.fleets.create(slug="own", workflow_slugs=[workflow.slug])
    worker = await site.api.worker("gpu-own", fleet="own", max_concurrency=count)
    polls = [{"worker_id": "gpu-own", "request_id": str(number)} for number in range(count)]
    return [(await worker.post("/api/worker/poll", poll))["job"]["input_payload"]["workflow"] for poll in polls]


async def test_batch_of_a_graph_works_as_on_a_desk(site: Site, tmp_path: Path) -> None:
    await site.client.create_preset("big", {"steps": 30})
    words = (
        "--prompt",
        "a hill",
        "--prompt",
        "a lake",
        "--tries",
        "2",
        "--seed",
        "5",
        "--preset",
        "big",
        "--label",
        "x",
        "--max-wait",
        "300",
    )
    ran = await site.command("batch", "add", written(tmp_path, PROMPT_GRAPH), *words, "--json")
    assert ran.code == 0, ran.err
    assert "No machine runs it yet" in ran.err
    batch = json.loads(ran.out)
    assert (batch["total"], batch["label"]) == (4, "x")
    jobs = [job async for job in site.client.jobs(batch_id=batch["id"])]
    assert {job.max_wait_seconds for job in jobs} == {300}
    assert sorted(job.label or "" for job in jobs) == [
        "a hill · try 1",
        "a hill · try 2",
        "a lake · try 1",
        "a lake · try 2",
    ]
    texts = [json.dumps(graph) for graph in await graphs_of(site, 4)]
    assert [("a hill" in text, f'"seed": {5 + n}' in text) for n, text in enumerate(texts)] == [
        (True, True),
        (True, True),
        (False, True),
        (False, True),
    ]


async def test_sweeps_and_wildcards_are_expanded_for_a_server_as_on_a_desk(site: Site, tmp_path: Path) -> None:
    words = ("--prompt", "a {hill|lake}", "--wildcards", "all", "--sweep", "steps=10..20:10", "--json")
    ran = await site.command("batch", "add", written(tmp_path, PROMPT_GRAPH), *words)
    assert ran.code == 0, ran.err
    jobs = [job async for job in site.client.jobs(batch_id=json.loads(ran.out)["id"])]
    assert [job.label for job in sorted(jobs, key=lambda job: job.item_no)] == [
        "a hill · Steps 10",
        "a hill · Steps 20",
        "a lake · Steps 10",
        "a lake · Steps 20",
    ]
    ran = await site.command("batch", "add", written(tmp_path, PROMPT_GRAPH), "--sweep", "steps=fast")
    assert (ran.code, "steps: 'fast' is not a number or a range" in " ".join(ran.err.split())) == (2, True)


async def test_each_file_of_a_folder_is_an_item(site: Site, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (4, 4)).save(tmp_path / "in" / f"{name}.png")
    graph = written(tmp_path, invert_file("cat.png"))
    ran = await site.command("batch", "add", graph, "--input", str(tmp_path / "in"), "--json")
    assert ran.code == 0, ran.err
    jobs = [job async for job in site.client.jobs(batch_id=json.loads(ran.out)["id"])]
    assert sorted((job.label, job.input_file_id is not None) for job in jobs) == [("a", True), ("b", True)]
    ran = await site.command("batch", "add", graph)
    assert (ran.code, "name one with --input" in ran.err) == (2, True)


@pytest.mark.parametrize("option", ["--input-subdir", "--output-folder", "--notify"])
async def test_desk_only_option_is_refused_with_a_sentence(site: Site, tmp_path: Path, option: str) -> None:
    ran = await site.command("batch", "add", written(tmp_path, PROMPT_GRAPH), option, "ntfy://x")
    assert ran.code == 2
    assert f"{option}: Only a desk" in ran.err
    assert site.url in ran.err.replace("\n", "")
    assert await site.client.workflows() == []


async def test_server_has_no_page_to_open(site: Site) -> None:
    ran = await site.command("open", "--no-browser")
    assert ran.code == 2
    assert "is a server, and only a desk creates such links" in ran.err


@pytest.mark.parametrize("words", [("run",), ("batch", "add")])
async def test_file_for_a_graph_without_inputs_is_refused(site: Site, tmp_path: Path, words: tuple[str, ...]) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "cat.png")
    ran = await site.command(*words, written(tmp_path, PROMPT_GRAPH), "--input", str(tmp_path / "cat.png"))
    assert ran.code == 2
    assert "Omit --input" in ran.err


async def test_unreadable_editor_file_names_the_missing_part(site: Site, tmp_path: Path) -> None:
    saved = workflow([empty(), save(9, 1)], [(1, 1, 0, 9, 0)])
    ran = await site.command("run", written(tmp_path, saved), "--out", str(tmp_path))
    assert ran.code == 2
    assert "No worker has reported its nodes" in ran.err.replace("\n", " ")


async def test_workflows_are_listed_renamed_replaced_and_removed(site: Site) -> None:
    slug = (await site.client.add_graph(PROMPT_GRAPH, name="first")).data.slug
    assert (await site.client.rename_workflow(slug, "second")).data.name == "second"
    other = {**PROMPT_GRAPH, "5": {**PROMPT_GRAPH["5"], "inputs": {**PROMPT_GRAPH["5"]["inputs"], "steps": 7}}}
    replaced = await site.client.replace_workflow(slug, other)
    assert replaced.message.startswith("Replaced.")
    assert 7 in [property_.default_value for property_ in replaced.data.properties]
    assert [(workflow.slug, workflow.name) for workflow in await site.client.workflows()] == [(slug, "second")]
    job = await site.client.submit(workflow_slug=slug)
    with pytest.raises(Conflict, match="unfinished jobs"):
        await site.client.remove_workflow(slug)
    await site.client.cancel("job", job.id)
    assert (await site.client.remove_workflow(slug)).message == "Deleted."
    assert await site.client.workflows() == []
    assert (await site.client.job(job.id)).status == "canceled"
    for verb in (site.client.remove_workflow(slug), site.client.rename_workflow(slug, "x")):
        with pytest.raises(NotFound):
            await verb


async def test_run_removes_only_the_workflow_that_it_added(site: Site, tmp_path: Path) -> None:
    path = written(tmp_path, PROMPT_GRAPH)
    async with remove_added(site.client, path) as added:
        await find_target(site.client, path, [], added)
        other = (await site.client.add_graph(invert_file("cat.png"), name="graph")).data.slug
    assert [workflow.slug for workflow in await site.client.workflows()] == [other]


async def test_batch_with_reuse_is_answered_by_a_completed_job(site: Site, tmp_path: Path) -> None:
    graph = written(tmp_path, PROMPT_GRAPH)
    words = ("batch", "add", graph, "--prompt", "a hill", "--seed", "5", "--seed-mode", "fixed", "--json")
    first = json.loads((await site.command(*words)).out)
    [workflow] = await site.client.workflows()
    await site.api.engine.workers.fleets.create(slug="own", workflow_slugs=[workflow.slug])
    worker = await site.api.worker("gpu-own", fleet="own")
    await complete(site.api, worker, await lease(worker, "gpu-own"))
    ran = await site.command(*words, "--reuse")
    assert ran.code == 0, ran.err
    [job] = [job async for job in site.client.jobs(batch_id=json.loads(ran.out)["id"])]
    [done] = [job async for job in site.client.jobs(batch_id=first["id"])]
    assert (job.status, job.reused_from) == ("completed", done.id)
    assert done.id in (await site.command("show", job.id)).out
