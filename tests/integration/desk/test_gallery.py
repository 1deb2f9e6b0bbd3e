"""Gallery outputs copied into a chosen folder, and the files that are deleted with them."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from comfyrelay.system.owner_secret import load_secret
from tests.support.api import problem_of
from tests.support.desk import OpenDesk
from tests.support.graphs import invert


async def call(desk: OpenDesk, method: str, path: str, body: Any = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {load_secret(desk.ready.data_dir)}"}
    async with httpx.AsyncClient(base_url=desk.ready.url, headers=headers) as http:
        return await http.request(method, path, json=body)


async def made(desk: OpenDesk, *labels: str) -> dict[str, str]:
    """Outputs by the labels of their jobs."""
    slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
    for label in labels:
        job = await desk.client.submit(workflow_slug=slug, label=label)
        assert (await desk.ended(job.id)).status == "completed"
    items = (await call(desk, "GET", "/api/gallery")).json()["data"]["items"]
    return {item["label"]: item["id"] for item in items}


async def test_copied_outputs_stay_in_the_folder_after_deletion(desk: OpenDesk) -> None:
    ids = await made(desk, "a cat", "a dog")
    answer = await call(
        desk, "POST", "/api/desk/gallery/copy", {"ids": [*ids.values(), "nothing"], "folder": "best/of"}
    )
    done = answer.json()["data"]
    place = desk.desk.output_folder / "best" / "of"
    assert done["folder"] == str(place)
    assert sorted(done["copied"]) == [str(place / "a cat.png"), str(place / "a dog.png")]
    assert done["not_copied"] == [{"id": "nothing", "detail": "The output does not exist."}]
    assert sorted(each.name for each in place.iterdir()) == ["a cat.png", "a dog.png"]
    # a repetition changes nothing, and an edited copy is left alone: it is no second name of the output
    for n in (3, 4, 5):
        for each in place.glob("a dog*"):
            each.write_bytes(b"a person's own")
        await call(desk, "POST", "/api/desk/gallery/copy", {"ids": list(ids.values()), "folder": "best/of"})
        assert len(list(place.iterdir())) == n
        assert [each.read_bytes() == b"a person's own" for each in place.glob("a dog*")].count(False) == 1
    before = (place / "a cat.png").read_bytes()
    deleted = (await call(desk, "POST", "/api/gallery/delete", {"ids": [ids["a cat"]]})).json()
    assert (deleted["data"]["deleted"], deleted["data"]["files"]) == ([ids["a cat"]], 1)
    assert deleted["message"] == "Deleted 1 outputs, with 1 jobs and 1 files in the output folder."
    assert (place / "a cat.png").read_bytes() == before


@pytest.mark.parametrize("folder", ["..", "/tmp/x", "a/../../b", "~/x", "C:\\x", " "])
async def test_folder_elsewhere_is_refused(desk: OpenDesk, folder: str) -> None:
    problem = problem_of(await call(desk, "POST", "/api/desk/gallery/copy", {"ids": ["x"], "folder": folder}), 422)
    assert problem["errors"].keys() == {"folder"}


async def test_link_that_leads_out_of_the_output_folder_is_refused(desk: OpenDesk, tmp_path: Path) -> None:
    ids = await made(desk, "a cat")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (desk.desk.output_folder / "link").symlink_to(elsewhere)
    for folder in ("link", "link/below"):
        body = {"ids": list(ids.values()), "folder": folder}
        problem_of(await call(desk, "POST", "/api/desk/gallery/copy", body), 422)
    assert list(elsewhere.iterdir()) == []
