"""A file that ComfyUI made can be dropped or named: its workflow runs again, or it becomes an input."""

from pathlib import Path

from tests.support.api_calls import png
from tests.support.desk import OpenDesk
from tests.support.desk_owner import owner_http
from tests.support.graphs import invert


async def run_and_download(desk: OpenDesk, folder: Path) -> Path:
    slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
    job = await desk.client.submit(workflow_slug=slug)
    assert (await desk.ended(job.id)).status == "completed"
    [saved] = await desk.client.download_outputs(job.id, folder)
    return saved


async def test_workflow_of_an_uploaded_output_is_found(desk: OpenDesk, tmp_path: Path) -> None:
    picture = await run_and_download(desk, tmp_path)
    (tmp_path / "plain.png").write_bytes(png("#112233"))
    own, plain = [await desk.client.upload(path) for path in (picture, tmp_path / "plain.png")]
    async with owner_http(desk.ready.url) as http:
        graph = (await http.get(f"/api/desk/files/{own}/workflow")).json()["data"]["graph"]
        assert {node["class_type"] for node in graph.values()} == {node["class_type"] for node in invert().values()}
        assert (await http.get(f"/api/desk/files/{plain}/workflow")).json()["data"] == {"graph": None}
        assert (await http.get("/api/desk/files/nothing/workflow")).status_code == 404
