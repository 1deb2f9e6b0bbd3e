"""A batch can be estimated before it is added, and an estimate adds nothing."""

from pathlib import Path
from typing import Any

import pytest

from comfyrelay.domain.image_shapes import Shape, name_shape, shape_warnings
from comfyrelay.domain.queue.wait_reasons import DurationEstimate, forecast, pace_of
from tests.support.api_calls import png
from tests.support.chromium import PROMPT_GRAPH
from tests.support.desk import OpenDesk
from tests.support.desk_owner import owner_http


async def estimate(desk: OpenDesk, status: int = 200, **request: Any) -> dict[str, Any]:
    async with owner_http(desk.ready.url) as http:
        answer = await http.post("/api/desk/batches/estimate", json=request)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body["data"] if status == 200 else body


def write_images(desk: OpenDesk, count: int) -> None:
    folder = desk.desk.input_folder / "mine"
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"a{number}.png").write_bytes(png(f"#{number:02x}2233"))


async def test_estimate_of_a_folder_adds_no_job_and_no_upload(desk: OpenDesk) -> None:
    write_images(desk, 3)
    result = await estimate(desk, effect_slug="invert-image", input_subdir="mine", tries=4)
    assert (result["jobs"], result["input_count"], result["inputs"]) == (12, 3, ["a0.png", "a1.png", "a2.png"])
    assert (result["tokens"], result["missing"], result["warnings"]) == (0, None, [])
    assert [job async for job in desk.client.jobs()] == []
    uploads = [path for path in desk.ready.data_dir.rglob("*.png") if "uploads" in path.parts]
    assert uploads == []


async def test_duration_is_estimated_after_the_first_job(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("#112233"))
    file_id = await desk.client.upload(tmp_path / "a.png")
    request: dict[str, Any] = {"effect_slug": "invert-image", "input_file_ids": [file_id]}
    assert (await estimate(desk, **request))["expected_seconds"] is None
    await desk.ended((await desk.client.submit(effect_id=1, input_file_id=file_id)).id)
    one, many = await estimate(desk, **request), await estimate(desk, **request, tries=100)
    assert 0 < one["fastest_seconds"] <= one["expected_seconds"] <= one["slowest_seconds"]
    assert many["expected_seconds"] == pytest.approx(100 * one["expected_seconds"])
    assert many["done_at"] > one["done_at"]


async def test_estimate_reports_missing_requirements_and_errors(desk: OpenDesk) -> None:
    graph = {**PROMPT_GRAPH, "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "no.safetensors"}}}
    slug = (await desk.client.add_graph(graph, name="lacking")).data.slug
    result = await estimate(desk, workflow_slug=slug, prompts=["a", "b"])
    assert result["jobs"] == 2
    assert [(item["kind"], item["name"]) for item in result["missing"]["items"]] == [("model", "no.safetensors")]
    refused = await estimate(desk, 422, workflow_slug=slug, values={"steps": -1})
    assert list(refused["errors"]) == ["steps"]


async def test_workflow_shows_its_latest_output(desk: OpenDesk) -> None:
    async with owner_http(desk.ready.url) as http:
        before = (await http.get("/api/effects")).json()["data"]["items"]
        assert {effect["cover_url"] for effect in before} == {None}
        file_id = await desk.client.upload(write_image(desk))
        await desk.ended((await desk.client.submit(effect_id=1, input_file_id=file_id)).id)
        after = {
            effect["id"]: effect["cover_url"] for effect in (await http.get("/api/effects")).json()["data"]["items"]
        }
        assert (await http.get(after[1])).headers["content-type"].startswith("image/")
        assert [url for id_, url in after.items() if id_ != 1] == [None] * (len(after) - 1)
        seen = (await http.get(f"/api/videos/uploads/{file_id}")).json()["data"]
        assert (seen["original_filename"], (await http.get(seen["url"])).content) == ("a.png", png("#112233"))
        assert (await http.get("/api/videos/uploads/nothing")).status_code == 404


def write_image(desk: OpenDesk) -> Path:
    path = desk.ready.data_dir / "a.png"
    path.write_bytes(png("#112233"))
    return path


async def test_job_lists_the_ids_of_its_input_files(desk: OpenDesk) -> None:
    file_id = await desk.client.upload(write_image(desk))
    job = await desk.client.submit(effect_id=1, input_file_id=file_id)
    async with owner_http(desk.ready.url) as http:
        about = (await http.get(f"/api/desk/jobs/{job.id}")).json()["data"]
    assert [field["file_id"] for field in about["inputs"] if field["url"]] == [file_id]


@pytest.mark.parametrize(
    ("width", "height", "words"),
    [(832, 480, "16:9"), (480, 832, "9:16"), (640, 480, "4:3"), (512, 512, "1:1"), (1000, 100, "1000 × 100")],
)
def test_common_aspect_ratios_have_names(width: int, height: int, words: str) -> None:
    assert name_shape(width, height) == words


def test_images_with_another_aspect_ratio_cause_a_warning() -> None:
    usual = [Shape(name=f"{number}.png", width=832, height=480) for number in range(3)]
    other = Shape(name="photo.png", width=640, height=480)
    assert shape_warnings(usual, wanted=None) == []
    [warning] = shape_warnings([*usual, other], wanted=None)
    assert warning.text == "photo.png is 4:3. Most of the others are 16:9."
    [warning] = shape_warnings([*usual, other], wanted=(832, 480))
    assert warning.text == "photo.png is 4:3. The result is 832 × 480, so it may be cropped or stretched."
    [warning] = shape_warnings([other] * 4, wanted=(832, 480))
    assert warning.text.startswith("photo.png and 3 more have another shape.")
    # without a majority, no image is unusual
    assert shape_warnings([usual[0], other], wanted=None) == []


def test_pace_ignores_the_run_that_loaded_the_models() -> None:
    assert pace_of([]) is None
    assert pace_of([5.0]) == DurationEstimate(5.0, 5.0, 5.0)
    assert pace_of([5.0, 6.0, 4.0, 60.0]) == DurationEstimate(5.0, 4.0, 6.0)


def test_forecast_counts_jobs_ahead_and_slots() -> None:
    pace = DurationEstimate(10.0, 8.0, 12.0)
    assert forecast(3, pace, slots=1, start=0.0) == (30.0, 24.0, 36.0)
    assert forecast(3, pace, slots=2, start=10.0) == (30.0, 26.0, 34.0)
