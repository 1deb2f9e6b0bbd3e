"""Batches of the desk: from folders and lists to jobs, and from jobs to files under readable names."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from comfyrelay.comfy.graph import Graph
from comfyrelay.errors import ComfyRelayError
from tests.api.studio import png
from tests.desk.conftest import OpenDesk

SEEDED: Graph = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 7}},
    "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}},
}


def pictures(desk: OpenDesk, *names: str) -> None:
    folder = desk.desk.input_folder / "mine"
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        (folder / name).write_bytes(png(f"#{number:02x}2233"))


async def finished(desk: OpenDesk, batch_id: str) -> list[dict[str, Any]]:
    """The jobs of a batch, in their order, once all have ended."""
    jobs = [each async for each in desk.client.jobs(batch_id=batch_id)]
    for each in jobs:
        await desk.ended(each["id"])
    found = [dict(each) async for each in desk.client.jobs(batch_id=batch_id)]
    return sorted(found, key=lambda job: job["item_no"])


def outputs(desk: OpenDesk, folder: str) -> list[str]:
    return sorted(each.name for each in (desk.desk.output_folder / folder).iterdir())


async def test_a_folder_of_inputs_becomes_one_job_each_in_the_order_people_count(desk: OpenDesk) -> None:
    pictures(desk, "a10.png", "a2.png", "notes.txt")
    batch = await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "mine", "label": "first"})
    jobs = await finished(desk, batch["id"])
    assert [(each["label"], each["status"]) for each in jobs] == [("a2", "completed"), ("a10", "completed")]
    assert outputs(desk, f"first {batch['id'][-8:]}") == ["0001_a2.png", "0002_a10.png"]


async def test_files_that_were_uploaded_are_called_by_their_names(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "my cat.png").write_bytes(png("#112233"))
    file_id = await desk.client.upload(tmp_path / "my cat.png")
    batch = await desk.client.add_batch({"effect_slug": "invert-image", "input_file_ids": [file_id], "tries": 2})
    assert [each["label"] for each in await finished(desk, batch["id"])] == ["my cat · try 1", "my cat · try 2"]


async def test_all_files_of_a_run_are_copied_and_listed(desk: OpenDesk, tmp_path: Path) -> None:
    graph = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 3, "color": 7}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    }
    made = await desk.client.add_graph(graph, name="three")
    batch = await desk.client.submit_batch([{"label": "three"}], workflow_slug=made["workflow"]["slug"], label="all")
    [job] = await finished(desk, batch["id"])
    folder = f"all {batch['id'][-8:]}"
    names = ["0001_three.png", "0001_three_2.png", "0001_three_3.png"]
    assert outputs(desk, folder) == names
    about = await desk.client.about(job["id"])
    assert about is not None
    assert [each["path"] for each in about["files"]] == [str(desk.desk.output_folder / folder / each) for each in names]
    assert [each["is_output"] for each in about["files"]] == [True, False, False]
    saved = await desk.client.download_outputs(job["id"], tmp_path)
    assert [each.name for each in saved] == [f"job-{job['id'][-8:]}{end}.png" for end in ("", "_2", "_3")]
    assert [each.read_bytes() for each in saved] == [
        (desk.desk.output_folder / folder / each).read_bytes() for each in names
    ]


async def test_a_file_that_somebody_removed_is_told_as_gone(desk: OpenDesk) -> None:
    pictures(desk, "a.png")
    batch = await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "mine"})
    [job] = await finished(desk, batch["id"])
    async with httpx.AsyncClient(base_url=desk.ready.url) as http:
        url = f"/api/desk/jobs/{job['id']}/files/1"
        answer = await http.get(url, headers={"Range": "bytes=0-3"})
        assert (answer.status_code, answer.content) == (206, b"\x89PNG")
        assert (answer.headers["content-type"], "sandbox" in answer.headers["content-security-policy"]) == (
            "image/png",
            True,
        )
        about = await desk.client.about(job["id"])
        assert about is not None
        Path(about["files"][0]["path"]).unlink()
        for number in ("1", "2", "0", "x", "..%2f1"):
            assert (await http.get(f"/api/desk/jobs/{job['id']}/files/{number}")).status_code in (404, 422)
    about = await desk.client.about(job["id"])
    assert about is not None
    assert (about["files"][0]["size"], about["files"][0]["url"]) == (None, None)


async def test_a_batch_has_the_output_folder_that_was_named(desk: OpenDesk) -> None:
    pictures(desk, "a.png")
    batch = await desk.client.add_batch(
        {"effect_slug": "invert-image", "input_subdir": "mine", "output_folder": "film/scene 1", "tries": 2}
    )
    await finished(desk, batch["id"])
    assert outputs(desk, "film/scene 1") == ["0001_a-try-1.png", "0002_a-try-2.png"]


@pytest.mark.parametrize("wish", [{"output_folder": each} for each in ("../up", "/etc", "~/x", "C:\\x", "a/../../b")])
async def test_an_output_folder_elsewhere_is_refused(desk: OpenDesk, wish: dict[str, str]) -> None:
    pictures(desk, "a.png")
    with pytest.raises(ComfyRelayError, match="inside the output folder"):
        await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "mine", **wish})


@pytest.mark.parametrize("subdir", ["..", "../..", "/etc", "mine/../../x", "link"])
async def test_an_input_folder_elsewhere_is_refused(desk: OpenDesk, subdir: str, tmp_path: Path) -> None:
    (desk.desk.input_folder / "link").symlink_to(tmp_path)
    with pytest.raises(ComfyRelayError, match=r"input folder|cannot be read"):
        await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": subdir})


async def test_a_folder_without_media_says_so(desk: OpenDesk) -> None:
    (desk.desk.input_folder / "empty").mkdir()
    with pytest.raises(ComfyRelayError, match="no images, videos or sounds"):
        await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "empty"})


async def test_an_input_that_is_changed_later_runs_as_it_was(desk: OpenDesk, tmp_path: Path) -> None:
    pictures(desk, "a.png")
    await desk.client.pause("batch", (await _blocker(desk))["id"])
    batch = await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "mine"})
    (desk.desk.input_folder / "mine" / "a.png").write_bytes(b"no picture any more")
    [job] = await finished(desk, batch["id"])
    assert job["status"] == "completed"


async def test_a_preset_gives_values_to_all_items_and_a_value_of_their_own_beats_it(desk: OpenDesk) -> None:
    pictures(desk, "a.png")
    await desk.client.create_preset("short", {"frames": 2})
    wish = {"effect_slug": "image-to-clip", "input_subdir": "mine", "preset": "short"}
    batch = await desk.client.add_batch(wish)
    [job] = await finished(desk, batch["id"])
    about = await desk.client.about(job["id"])
    assert about is not None
    assert {each["key"]: each["value"] for each in about["inputs"]}["frames"] == 2
    batch = await desk.client.add_batch({**wish, "values": {"frames": 3}})
    [job] = await finished(desk, batch["id"])
    about = await desk.client.about(job["id"])
    assert about is not None
    assert {each["key"]: each["value"] for each in about["inputs"]}["frames"] == 3


async def test_an_unknown_preset_is_said_to_be(desk: OpenDesk) -> None:
    with pytest.raises(ComfyRelayError, match="no preset 'none'"):
        await desk.client.add_batch({"effect_slug": "invert-image", "preset": "none"})


async def _blocker(desk: OpenDesk) -> dict[str, Any]:
    pictures_folder = desk.desk.input_folder / "examples"
    assert pictures_folder.is_dir()
    return dict(await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "examples"}))
