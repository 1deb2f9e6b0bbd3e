"""Batches of the desk: from folders and lists to jobs, and from jobs to files with readable names."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.client import Client, Job
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.errors import ComfyRelayError, Conflict
from comfyrelay.services.jobs.submission.reuse import Reuse
from comfyrelay.simulator import Simulator, Stuck
from tests.support.api_calls import png
from tests.support.chromium import PROMPT_GRAPH
from tests.support.desk import OpenDesk, make_desk
from tests.support.desk_owner import owner_http
from tests.support.world import PATIENCE_SECONDS

SEEDED: Graph = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 7}},
    "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}},
}


def pictures(desk: OpenDesk, *names: str, folder: str = "mine") -> None:
    place = desk.desk.input_folder / folder
    place.mkdir(parents=True)
    for number, name in enumerate(names):
        (place / name).write_bytes(png(f"#{number:02x}2233"))


async def finished(desk: OpenDesk, batch_id: str) -> list[Job]:
    """Return the jobs of a batch in order, once all have ended."""
    jobs = [each async for each in desk.client.jobs(batch_id=batch_id)]
    for each in jobs:
        await desk.ended(each.id)
    found = [each async for each in desk.client.jobs(batch_id=batch_id)]
    return sorted(found, key=lambda job: job.item_no)


async def files_of(desk: OpenDesk, job: Job) -> list[Path]:
    about = await desk.client.about(job.id)
    assert about is not None
    return [Path(file.path) for file in about.files]


def outputs(desk: OpenDesk, folder: str) -> list[str]:
    return sorted(each.name for each in (desk.desk.output_folder / folder).iterdir())


def all_outputs(desk: OpenDesk) -> list[Path]:
    return [each for each in desk.desk.output_folder.rglob("*") if each.is_file()]


async def test_folder_of_inputs_becomes_one_job_each_in_the_order_people_count(desk: OpenDesk) -> None:
    pictures(desk, "a10.png", "a2.png", "notes.txt")
    batch = await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "mine", "label": "first"})
    jobs = await finished(desk, batch.id)
    assert [(job.label, job.status) for job in jobs] == [("a2", "completed"), ("a10", "completed")]
    assert outputs(desk, f"first {batch.id[-8:]}") == ["0001_a2.png", "0002_a10.png"]


async def test_files_that_were_uploaded_are_called_by_their_names(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "my cat.png").write_bytes(png("#112233"))
    file_id = await desk.client.upload(tmp_path / "my cat.png")
    batch = await desk.client.add_batch({"effect_slug": "invert-image", "input_file_ids": [file_id], "tries": 2})
    assert [each.label for each in await finished(desk, batch.id)] == ["my cat · try 1", "my cat · try 2"]


async def test_all_files_of_a_run_are_copied_and_listed(desk: OpenDesk, tmp_path: Path) -> None:
    graph = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 3, "color": 7}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    }
    made = await desk.client.add_graph(graph, name="three")
    batch = await desk.client.submit_batch([{"label": "three"}], workflow_slug=made.data.slug, label="all")
    [job] = await finished(desk, batch.id)
    folder = f"all {batch.id[-8:]}"
    names = ["0001_three.png", "0001_three_2.png", "0001_three_3.png"]
    assert outputs(desk, folder) == names
    about = await desk.client.about(job.id)
    assert about is not None
    assert [file.path for file in about.files] == [str(desk.desk.output_folder / folder / name) for name in names]
    assert [file.is_output for file in about.files] == [True, False, False]
    saved = await desk.client.download_outputs(job.id, tmp_path)
    assert [each.name for each in saved] == [f"job-{job.id[-8:]}{end}.png" for end in ("", "_2", "_3")]
    assert [each.read_bytes() for each in saved] == [
        (desk.desk.output_folder / folder / name).read_bytes() for name in names
    ]


async def test_deleted_file_is_reported_as_missing(desk: OpenDesk) -> None:
    pictures(desk, "a.png")
    batch = await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "mine"})
    [job] = await finished(desk, batch.id)
    async with owner_http(desk.ready.url) as http:
        url = f"/api/desk/jobs/{job.id}/files/1"
        answer = await http.get(url, headers={"Range": "bytes=0-3"})
        assert (answer.status_code, answer.content) == (206, b"\x89PNG")
        assert (answer.headers["content-type"], "sandbox" in answer.headers["content-security-policy"]) == (
            "image/png",
            True,
        )
        about = await desk.client.about(job.id)
        assert about is not None
        Path(about.files[0].path).unlink()
        for number in ("1", "2", "0", "x", "..%2f1"):
            assert (await http.get(f"/api/desk/jobs/{job.id}/files/{number}")).status_code in (404, 422)
    about = await desk.client.about(job.id)
    assert about is not None
    assert (about.files[0].size, about.files[0].url) == (None, None)


async def test_batch_has_the_output_folder_that_was_named(desk: OpenDesk) -> None:
    pictures(desk, "a.png")
    batch = await desk.client.add_batch(
        {"effect_slug": "invert-image", "input_subdir": "mine", "output_folder": "film/scene 1", "tries": 2}
    )
    await finished(desk, batch.id)
    assert outputs(desk, "film/scene 1") == ["0001_a-try-1.png", "0002_a-try-2.png"]


async def test_two_batches_in_one_output_folder_keep_all_their_files(desk: OpenDesk) -> None:
    for name in ("one", "two"):
        pictures(desk, "a.png", folder=name)
    (desk.desk.input_folder / "two" / "a.png").write_bytes(png("#556677"))
    wish = {"effect_slug": "invert-image", "output_folder": "final"}
    made = [await desk.client.add_batch({**wish, "input_subdir": each}) for each in ("one", "two")]
    jobs = [job for each in made for job in await finished(desk, each.id)]
    places = [(await files_of(desk, each))[0] for each in jobs]
    assert [each.name for each in places] == ["0001_a.png", f"0001_a {jobs[1].id[-8:]}.png"]
    for job, place in zip(jobs, places, strict=True):
        [output, *_] = (await desk.client.job(job.id)).outputs
        assert hashlib.sha256(place.read_bytes()).hexdigest() == output.content_hash


async def test_jobs_with_equal_outputs_have_a_file_each(desk: OpenDesk) -> None:
    # an image names its run, a text does not
    graph: Graph = {"1": {"class_type": "PreviewAny", "inputs": {"source": "hello"}}}
    slug = (await desk.client.add_graph(graph, name="text")).data.slug
    wish = {"workflow_slug": slug, "label": "same", "output_folder": "final", "tries": 1}
    made = [await desk.client.add_batch(wish) for _ in range(2)]
    [first, second] = [job for each in made for job in await finished(desk, each.id)]
    [[gone], [kept]] = [await files_of(desk, each) for each in (first, second)]
    assert gone.read_bytes() == kept.read_bytes()
    await desk.client.delete_job(first.id)
    assert outputs(desk, "final") == [kept.name]


async def test_failed_output_copy_is_logged(desk: OpenDesk) -> None:
    pictures(desk, "a.png")
    (desk.desk.output_folder).mkdir(parents=True, exist_ok=True)
    (desk.desk.output_folder / "blocked").touch()
    wish = {"effect_slug": "invert-image", "input_subdir": "mine", "output_folder": "blocked"}
    [job] = await finished(desk, (await desk.client.add_batch(wish)).id)
    assert job.status == "completed"
    lines = [log.line async for log in desk.client.logs(job.id)]
    assert [line for line in lines if line.startswith("The output could not be copied to the output folder")]


@pytest.mark.parametrize("more", [{"input_subdir": "mine"}, {"input_subdir": "mine", "tries": 2, "prompts": ["a"]}])
async def test_batch_that_is_sent_again_with_its_key_is_the_same_batch(desk: OpenDesk, more: dict[str, Any]) -> None:
    pictures(desk, "a.png", "b.png")
    made = await desk.client.add_graph(PROMPT_GRAPH, name="prompted") if "prompts" in more else None
    what = {"workflow_slug": made.data.slug} if made else {"effect_slug": "invert-image"}
    wish = {**what, **(more if made is None else {"prompts": ["a"], "tries": 2}), "idempotency_key": "once"}
    first = await desk.client.add_batch(wish)
    assert (await desk.client.add_batch(wish)).id == first.id
    assert len([job async for job in desk.client.jobs()]) == first.total == 2
    with pytest.raises(Conflict):
        await desk.client.add_batch({**wish, "label": "another"})


async def test_batch_without_jobs_is_not_run_again(desk: OpenDesk) -> None:
    pictures(desk, "a.png")
    batch = await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "mine"})
    await finished(desk, batch.id)
    async with owner_http(desk.ready.url) as http:
        gone = {"filter": {"batch_id": batch.id}, "action": "delete"}
        (await http.post("/api/ai-jobs/bulk", json=gone)).raise_for_status()
        refusals = {"again": "This batch has no jobs left to run again.", "move": "No item of this batch is waiting."}
        for verb, body in {"again": {}, "move": {"to": "top"}}.items():
            answer = await http.post(f"/api/batches/{batch.id}/{verb}", json=body)
            assert (answer.status_code, answer.json()["detail"]) == (409, refusals[verb])


async def test_seed_of_a_preset_is_that_of_all_items(desk: OpenDesk) -> None:
    made = await desk.client.add_graph(PROMPT_GRAPH, name="prompted")
    await desk.client.create_preset("the one", {"seed": 42})
    wish = {"workflow_slug": made.data.slug, "prompts": ["a", "b"], "preset": "the one"}
    batch = await desk.client.add_batch(wish)
    jobs = [job async for job in desk.client.jobs(batch_id=batch.id)]
    found = [await desk.client.about(job.id) for job in jobs]
    seeds = [{one.key: one.value for one in each.inputs}["seed"] for each in found if each is not None]
    assert seeds == [42, 42]


@pytest.mark.parametrize("wish", [{"output_folder": each} for each in ("../up", "/etc", "~/x", "C:\\x", "a/../../b")])
async def test_output_folder_elsewhere_is_refused(desk: OpenDesk, wish: dict[str, str]) -> None:
    pictures(desk, "a.png")
    with pytest.raises(ComfyRelayError, match="inside the output folder"):
        await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "mine", **wish})


@pytest.mark.parametrize("subdir", ["..", "../..", "/etc", "mine/../../x", "link"])
async def test_input_folder_elsewhere_is_refused(desk: OpenDesk, subdir: str, tmp_path: Path) -> None:
    (desk.desk.input_folder / "link").symlink_to(tmp_path)
    with pytest.raises(ComfyRelayError, match=r"input folder|cannot be read"):
        await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": subdir})


async def test_folder_without_media_is_refused_with_a_reason(desk: OpenDesk) -> None:
    (desk.desk.input_folder / "empty").mkdir()
    with pytest.raises(ComfyRelayError, match="no images, videos or audio files"):
        await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "empty"})


async def test_later_change_of_an_input_does_not_affect_the_job(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        held = simulator.misbehave(Stuck(class_type="ImageInvert"))
        made = make_desk(tmp_path / "desk", comfyui_url=[simulator.url], prefetch=0)
        async with made.open() as (_worker, ready), Client(ready.url) as client:
            desk = OpenDesk(client=client, ready=ready, desk=made)
            pictures(desk, "a.png")
            await client.add_batch({"effect_slug": "invert-image", "input_subdir": "examples"})
            batch = await client.add_batch({"effect_slug": "invert-image", "input_subdir": "mine"})
            (made.input_folder / "mine" / "a.png").write_bytes(b"no picture any more")
            held.end()
            [job] = await finished(desk, batch.id)
            assert job.status == "completed"


async def test_preset_applies_to_all_items_and_item_values_win(desk: OpenDesk) -> None:
    pictures(desk, "a.png")
    await desk.client.create_preset("short", {"frames": 2})
    wish = {"effect_slug": "image-to-clip", "input_subdir": "mine", "preset": "short"}
    batch = await desk.client.add_batch(wish)
    [job] = await finished(desk, batch.id)
    about = await desk.client.about(job.id)
    assert about is not None
    assert {input_.key: input_.value for input_ in about.inputs}["frames"] == 2
    batch = await desk.client.add_batch({**wish, "values": {"frames": 3}})
    [job] = await finished(desk, batch.id)
    about = await desk.client.about(job.id)
    assert about is not None
    assert {input_.key: input_.value for input_ in about.inputs}["frames"] == 3


async def test_unknown_preset_is_said_to_be(desk: OpenDesk) -> None:
    with pytest.raises(ComfyRelayError, match="no preset 'none'"):
        await desk.client.add_batch({"effect_slug": "invert-image", "preset": "none"})


async def test_ten_thousand_items_with_a_prompt_in_each_are_no_too_large_body(desk: OpenDesk) -> None:
    values = {f"value_{number}": number for number in range(20)}
    items = [{"input_payload": {"prompt": "a cat " * 300, **values}}] * 10_000
    async with owner_http(desk.ready.url) as http:
        answer = await http.post("/api/batches", json={"workflow_slug": "nowhere", "items": items})
    assert answer.status_code == 404, answer.text


async def test_reused_items_are_copied_into_the_batch_folder(desk: OpenDesk) -> None:
    pictures(desk, "a.png", "b.png")
    wish = {"effect_slug": "invert-image", "input_subdir": "mine", "label": "first"}
    first = await finished(desk, (await desk.client.add_batch(wish)).id)
    again = await desk.client.add_batch({**wish, "label": "again", "reuse": True})
    assert again.done == again.total == 2
    jobs = await finished(desk, again.id)
    assert [job.reused_from for job in jobs] == [each.id for each in first]
    assert outputs(desk, f"again {again.id[-8:]}") == ["0001_a.png", "0002_b.png"]
    [file] = await files_of(desk, jobs[0])
    [original] = await files_of(desk, first[0])
    assert file.read_bytes() == original.read_bytes()
    # its file is deleted with it, and the other stays
    await desk.client.delete_job(jobs[0].id)
    assert (file.exists(), original.exists()) == (False, True)


@pytest.mark.parametrize("is_batch", [False, True], ids=["jobs", "batches"])
async def test_duplicate_concurrent_request_leaves_no_file(
    desk: OpenDesk, monkeypatch: pytest.MonkeyPatch, *, is_batch: bool
) -> None:
    slug = (await desk.client.create_workflow(SEEDED, name="same", output_node_id="3")).slug
    await desk.ended((await desk.client.submit(workflow_slug=slug)).id)
    before = all_outputs(desk)
    both_have_copied = asyncio.Barrier(2)
    copies = Reuse.copy_outputs

    async def together(self: Reuse, *given: Any, **named: Any) -> Any:
        found = await copies(self, *given, **named)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await both_have_copied.wait()
        assert len(all_outputs(desk)) == len(before) + 2
        return found

    monkeypatch.setattr(Reuse, "copy_outputs", together)
    wish: dict[str, Any] = {"workflow_slug": slug, "idempotency_key": "once", "reuse": True}

    async def sent() -> str:
        return (await desk.client.add_batch(wish) if is_batch else await desk.client.submit(**wish)).id

    one, two = await asyncio.gather(sent(), sent())
    assert one == two
    assert len(all_outputs(desk)) == len(before) + 1
