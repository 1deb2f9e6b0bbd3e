"""The estimate of a batch is shown before the batch is added, and adds nothing."""

from pathlib import Path
from typing import Any

import pytest

from comfyrelay.domain.image_shapes import Shape, name_shape, shape_warnings
from comfyrelay.domain.queue.wait_reasons import DurationEstimate, forecast, pace_of
from tests.support.api_calls import png
from tests.support.chromium import PROMPT_GRAPH
from tests.support.desk import OpenDesk
from tests.support.desk_owner import owner_http


async def asked(desk: OpenDesk, status: int = 200, **wish: Any) -> dict[str, Any]:
    async with owner_http(desk.ready.url) as http:
        answer = await http.post("/api/desk/batches/estimate", json=wish)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body["data"] if status == 200 else body


def pictures(desk: OpenDesk, count: int) -> None:
    place = desk.desk.input_folder / "mine"
    place.mkdir(parents=True)
    for number in range(count):
        (place / f"a{number}.png").write_bytes(png(f"#{number:02x}2233"))


async def test_folder_is_counted_without_a_job_or_a_copy(desk: OpenDesk) -> None:
    pictures(desk, 3)
    found = await asked(desk, effect_slug="invert-image", input_subdir="mine", tries=4)
    assert (found["jobs"], found["input_count"], found["inputs"]) == (12, 3, ["a0.png", "a1.png", "a2.png"])
    assert (found["tokens"], found["missing"], found["warnings"]) == (0, None, [])
    assert [job async for job in desk.client.jobs()] == []
    uploads = [each for each in desk.ready.data_dir.rglob("*.png") if "uploads" in each.parts]
    assert uploads == []


async def test_duration_is_known_after_the_first_job(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("#112233"))
    file_id = await desk.client.upload(tmp_path / "a.png")
    wish: dict[str, Any] = {"effect_slug": "invert-image", "input_file_ids": [file_id]}
    assert (await asked(desk, **wish))["expected_seconds"] is None
    await desk.ended((await desk.client.submit(effect_id=1, input_file_id=file_id)).id)
    one, many = await asked(desk, **wish), await asked(desk, **wish, tries=100)
    assert 0 < one["fastest_seconds"] <= one["expected_seconds"] <= one["slowest_seconds"]
    assert many["expected_seconds"] == pytest.approx(100 * one["expected_seconds"])
    assert many["done_at"] > one["done_at"]


async def test_estimate_reports_missing_requirements_and_errors(desk: OpenDesk) -> None:
    graph = {**PROMPT_GRAPH, "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "no.safetensors"}}}
    slug = (await desk.client.add_graph(graph, name="lacking")).data.slug
    found = await asked(desk, workflow_slug=slug, prompts=["a", "b"])
    assert found["jobs"] == 2
    assert [(each["kind"], each["name"]) for each in found["missing"]["items"]] == [("model", "no.safetensors")]
    refused = await asked(desk, 422, workflow_slug=slug, values={"steps": -1})
    assert list(refused["errors"]) == ["steps"]


async def test_workflow_shows_its_latest_output(desk: OpenDesk) -> None:
    async with owner_http(desk.ready.url) as http:
        before = (await http.get("/api/effects")).json()["data"]["items"]
        assert {each["cover_url"] for each in before} == {None}
        file_id = await desk.client.upload(_a_picture(desk))
        await desk.ended((await desk.client.submit(effect_id=1, input_file_id=file_id)).id)
        after = {each["id"]: each["cover_url"] for each in (await http.get("/api/effects")).json()["data"]["items"]}
        assert (await http.get(after[1])).headers["content-type"].startswith("image/")
        assert [url for id_, url in after.items() if id_ != 1] == [None] * (len(after) - 1)
        seen = (await http.get(f"/api/videos/uploads/{file_id}")).json()["data"]
        assert (seen["original_filename"], (await http.get(seen["url"])).content) == ("a.png", png("#112233"))
        assert (await http.get("/api/videos/uploads/nothing")).status_code == 404


def _a_picture(desk: OpenDesk) -> Path:
    place = desk.ready.data_dir / "a.png"
    place.write_bytes(png("#112233"))
    return place


async def test_files_of_an_earlier_job_can_be_used_again(desk: OpenDesk) -> None:
    file_id = await desk.client.upload(_a_picture(desk))
    job = await desk.client.submit(effect_id=1, input_file_id=file_id)
    async with owner_http(desk.ready.url) as http:
        about = (await http.get(f"/api/desk/jobs/{job.id}")).json()["data"]
    assert [each["file_id"] for each in about["inputs"] if each["url"]] == [file_id]


@pytest.mark.parametrize(
    ("width", "height", "words"),
    [(832, 480, "16:9"), (480, 832, "9:16"), (640, 480, "4:3"), (512, 512, "1:1"), (1000, 100, "1000 × 100")],
)
def test_common_aspect_ratios_have_names(width: int, height: int, words: str) -> None:
    assert name_shape(width, height) == words


def test_images_with_another_aspect_ratio_are_warned_about() -> None:
    usual = [Shape(name=f"{number}.png", width=832, height=480) for number in range(3)]
    other = Shape(name="photo.png", width=640, height=480)
    assert shape_warnings(usual, wanted=None) == []
    [found] = shape_warnings([*usual, other], wanted=None)
    assert found.text == "photo.png is 4:3. Most of the others are 16:9."
    [found] = shape_warnings([*usual, other], wanted=(832, 480))
    assert found.text == "photo.png is 4:3. The result is 832 × 480, so it may be cropped or stretched."
    [found] = shape_warnings([other] * 4, wanted=(832, 480))
    assert found.text.startswith("photo.png and 3 more have another shape.")
    # half and half: there is no exception to report
    assert shape_warnings([usual[0], other], wanted=None) == []


def test_pace_leaves_out_the_run_that_loaded_the_models() -> None:
    assert pace_of([]) is None
    assert pace_of([5.0]) == DurationEstimate(5.0, 5.0, 5.0)
    assert pace_of([5.0, 6.0, 4.0, 60.0]) == DurationEstimate(5.0, 4.0, 6.0)


def test_end_counts_what_is_ahead_and_how_many_run_at_once() -> None:
    pace = DurationEstimate(10.0, 8.0, 12.0)
    assert forecast(3, pace, slots=1, ahead=0, seconds_ahead=None) == (30.0, 24.0, 36.0)
    assert forecast(3, pace, slots=2, ahead=4, seconds_ahead=5.0) == (30.0, 26.0, 34.0)
