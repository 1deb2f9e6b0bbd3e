"""Pictures made from an editor file open in ComfyUI with its layout and the values of their run."""

import re
import shutil
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.editor.embedded import Embedded, read_embedded
from tests.support.desk import OpenDesk
from tests.support.desk_owner import owner_http
from tests.support.editor_files import invert, node, save, workflow
from tests.support.graphs import invert_file

LOAD = node(1, "LoadImage", values=["author.png", "image"], pos=[40, 60])
FILE = workflow([LOAD, invert(2, 1), save(9, 2)], [(1, 1, 0, 2, 0), (2, 2, 0, 9, 0)], groups=[{"title": "Inputs"}])


async def run(desk: OpenDesk, graph: dict[str, Any], folder: Path) -> Embedded:
    picture = folder / "my holiday.png"
    shutil.copy(desk.desk.input_folder / "examples" / "sample.png", picture)
    added = (await desk.client.add_graph(graph, name="mine")).data
    job = await desk.client.submit(workflow_slug=added.slug, input_file_id=await desk.client.upload(picture))
    ended = await desk.ended(job.id)
    assert ended.status == "completed"
    [saved] = await desk.client.download_outputs(job.id, folder / "outputs")
    found = read_embedded(saved)
    assert found is not None
    return found


async def test_picture_contains_the_editor_file_with_the_names_of_its_inputs(desk: OpenDesk, tmp_path: Path) -> None:
    embedded = await run(desk, FILE, tmp_path)
    assert embedded.graph is not None
    assert embedded.graph["1"]["class_type"] == "LoadImage"
    load = {**LOAD, "widgets_values": ["my holiday.png", "image"]}
    assert embedded.workflow == {**FILE, "nodes": [load, *FILE["nodes"][1:]]}


async def test_picture_of_an_api_graph_contains_only_the_graph(desk: OpenDesk, tmp_path: Path) -> None:
    embedded = await run(desk, invert_file(), tmp_path)
    assert embedded.graph is not None
    assert embedded.workflow is None


async def test_editor_file_too_large_to_embed_is_added_with_a_remark(desk: OpenDesk) -> None:
    large = {**FILE, "groups": [{"title": "x" * 2**20}]}
    remarks = {
        name: (await desk.client.add_graph(graph, name=name)).data.remarks
        for name, graph in (("large", large), ("small", FILE), ("api", invert_file()))
    }
    assert "more than 1.0 MB" in remarks["large"][0]
    assert remarks["small"] == remarks["api"] == []


async def test_equal_editor_files_are_one_workflow(desk: OpenDesk) -> None:
    views = [FILE | {"extra": {"ds": {"scale": scale}}} for scale in (1, 2)]
    slugs = [(await desk.client.add_graph(view, name="mine")).data.slug for view in views]
    assert slugs[0] == slugs[1]


async def test_texts_in_file_names_are_filled_in_when_the_job_runs(desk: OpenDesk, tmp_path: Path) -> None:
    named = save(9, 2) | {"widgets_values": ["%date:yyyy%_of_%LoadImage.upload%"]}
    embedded = await run(desk, FILE | {"nodes": [*FILE["nodes"][:2], named]}, tmp_path)
    assert embedded.graph is not None
    name = embedded.graph["9"]["inputs"]["filename_prefix"].rpartition("/")[2]
    assert re.fullmatch(r"20\d\d_of_%LoadImage\.upload%", name)


async def test_workflow_of_a_job_is_downloaded_with_its_values(desk: OpenDesk, tmp_path: Path) -> None:
    embedded = await run(desk, FILE, tmp_path)
    assert await downloaded_workflow(desk) == embedded.workflow
    await run(desk, invert_file(), tmp_path)
    assert (await downloaded_workflow(desk))["1"]["inputs"]["image"] == "my holiday.png"


async def downloaded_workflow(desk: OpenDesk) -> Any:
    """Return the workflow of the newest job."""
    async with owner_http(desk.ready.url) as http:
        job = (await http.get("/api/ai-jobs")).json()["data"]["items"][0]
        answer = (await http.get(f"/api/desk/jobs/{job['id']}/workflow")).raise_for_status()
        assert answer.headers["content-disposition"].startswith("attachment")
        return answer.json()
