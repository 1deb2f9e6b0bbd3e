"""Gallery outputs are copied into a chosen folder; deleting an output may delete its copies."""

import io
import zipfile
from pathlib import Path
from typing import Any

import httpx

from comfyrelay.system.owner_secret import load_secret
from tests.support.api import problem_of
from tests.support.desk import OpenDesk
from tests.support.graphs import five_images, invert


async def call(desk: OpenDesk, method: str, path: str, body: Any = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {load_secret(desk.ready.data_dir)}"}
    async with httpx.AsyncClient(base_url=desk.ready.url, headers=headers) as http:
        return await http.request(method, path, json=body)


async def create_outputs(desk: OpenDesk, *labels: str) -> dict[str, str]:
    """Run one job per label; return the output ids by label."""
    slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
    for label in labels:
        job = await desk.client.submit(workflow_slug=slug, label=label)
        assert (await desk.ended(job.id)).status == "completed"
    items = (await call(desk, "GET", "/api/gallery")).json()["data"]["items"]
    assert all(item["has_graph"] for item in items)
    return {item["label"]: item["id"] for item in items}


async def test_copied_outputs_stay_in_the_folder_after_deletion(desk: OpenDesk) -> None:
    ids = await create_outputs(desk, "a cat", "a dog")
    answer = await call(
        desk, "POST", "/api/desk/gallery/copy", {"ids": [*ids.values(), "nothing"], "folder": "best/of"}
    )
    copied = answer.json()["data"]
    folder = desk.desk.output_folder / "best" / "of"
    assert copied["folder"] == str(folder)
    assert sorted(copied["copied"]) == [str(folder / "a cat.png"), str(folder / "a dog.png")]
    assert copied["not_copied"] == [{"id": "nothing", "detail": "The output does not exist."}]
    assert sorted(path.name for path in folder.iterdir()) == ["a cat.png", "a dog.png"]
    # copying again adds no file for the cat, and leaves the edited copies of the dog alone
    for count in (3, 4, 5):
        for path in folder.glob("a dog*"):
            path.write_bytes(b"edited")
        await call(desk, "POST", "/api/desk/gallery/copy", {"ids": list(ids.values()), "folder": "best/of"})
        assert len(list(folder.iterdir())) == count
        assert [path.read_bytes() == b"edited" for path in folder.glob("a dog*")].count(False) == 1
    before = (folder / "a cat.png").read_bytes()
    deleted = (await call(desk, "POST", "/api/gallery/delete", {"ids": [ids["a cat"]]})).json()
    assert (deleted["data"]["deleted"], deleted["data"]["files"]) == ([ids["a cat"]], 1)
    assert deleted["message"] == "Deleted 1 output, with 1 job and 1 file in the output folder."
    assert (folder / "a cat.png").read_bytes() == before


async def test_every_file_of_a_graph_is_listed_zipped_copied_and_deleted(desk: OpenDesk) -> None:
    slug = (await desk.client.add_graph(five_images(), name="five")).data.slug
    job = await desk.ended((await desk.client.submit(workflow_slug=slug, label="cat")).id)
    assert [(output.number, output.width) for output in job.outputs] == [(1, 16), (2, 16), (3, 16), (4, 16), (5, 32)]
    items = (await call(desk, "GET", "/api/gallery?sort=oldest")).json()["data"]["items"]
    names = ["cat.png", "cat-2.png", "cat-3.png", "cat-4.png", "cat-5.png"]
    assert [item["filename"] for item in items] == names
    assert [item["id"] for item in items] == [output.file_id for output in job.outputs]
    ids = [item["id"] for item in items]
    zipped = await call(desk, "POST", "/api/gallery/zip", {"ids": ids})
    content = (await call(desk, "GET", zipped.json()["data"]["url"])).content
    assert zipfile.ZipFile(io.BytesIO(content)).namelist() == names
    root = desk.desk.output_folder
    copies = sorted(path.name for path in root.iterdir())
    assert len(copies) == 5
    for _ in range(2):
        # a second copy changes nothing, although four images are equal
        await call(desk, "POST", "/api/desk/gallery/copy", {"ids": ids, "folder": "best"})
        assert sorted(path.name for path in (root / "best").iterdir()) == sorted(names)
    deleted = (await call(desk, "POST", "/api/gallery/delete", {"ids": [ids[0], ids[4]]})).json()
    assert deleted["message"] == "Deleted 2 outputs and 2 files in the output folder."
    left = {path.name for path in root.iterdir()} - {"best"}
    assert left == set(copies[1:4])
    about = await desk.client.about(job.id)
    assert about is not None
    assert {Path(file.path).name for file in about.files} == left
    # the name of a deleted copy is free for the user
    (root / copies[0]).write_bytes(b"mine")
    await desk.client.delete_job(job.id)
    assert {path.name for path in root.iterdir()} == {"best", copies[0]}


async def test_copy_of_a_deleted_output_can_be_kept(desk: OpenDesk) -> None:
    slug = (await desk.client.add_graph(five_images(), name="five")).data.slug
    job = await desk.ended((await desk.client.submit(workflow_slug=slug)).id)
    chosen = [output.file_id for output in job.outputs[:2]]
    deleted = (await call(desk, "POST", "/api/gallery/delete", {"ids": chosen, "keep_files": True})).json()
    assert (deleted["data"]["deleted"], deleted["data"]["files"]) == (sorted(chosen), 0)
    assert len(list(desk.desk.output_folder.iterdir())) == 5


async def test_folder_outside_the_output_folder_is_refused(desk: OpenDesk, tmp_path: Path) -> None:
    ids = list((await create_outputs(desk, "a cat")).values())
    outside = tmp_path / "outside"
    outside.mkdir()
    (desk.desk.output_folder / "link").symlink_to(outside)
    for folder in ("..", "/tmp/x", "a/../../b", "~/x", "C:\\x", " ", "link", "link/below"):
        answer = await call(desk, "POST", "/api/desk/gallery/copy", {"ids": ids, "folder": folder})
        assert problem_of(answer, 422)["errors"].keys() == {"folder"}, folder
    assert list(outside.iterdir()) == []
