"""Batches of the desk turn folders and lists into jobs, and name the output files readably."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.client import AboutJob, Job
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.errors import ComfyRelayError, Conflict
from comfyrelay.services.jobs.submission.reuse import Reuse
from comfyrelay.simulator import Simulator, Stuck
from tests.support.api_calls import png
from tests.support.chromium import PROMPT_GRAPH
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.desk_owner import owner_http
from tests.support.world import PATIENCE_SECONDS

SEEDED: Graph = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 7}},
    "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}},
}


def write_images(desk: OpenDesk, *names: str, folder: str = "mine") -> None:
    target = desk.desk.input_folder / folder
    target.mkdir(parents=True)
    for number, name in enumerate(names):
        (target / name).write_bytes(png(f"#{number:02x}2233"))


async def ended_jobs(desk: OpenDesk, batch_id: str) -> list[Job]:
    """Return the jobs of a batch in order, once all have ended."""
    for job in [job async for job in desk.client.jobs(batch_id=batch_id)]:
        await desk.ended(job.id)
    return sorted([job async for job in desk.client.jobs(batch_id=batch_id)], key=lambda job: job.item_no)


async def about_job(desk: OpenDesk, job: Job) -> AboutJob:
    about = await desk.client.about(job.id)
    assert about is not None
    return about


async def input_values(desk: OpenDesk, job: Job) -> dict[str, Any]:
    return {field.key: field.value for field in (await about_job(desk, job)).inputs}


async def output_paths(desk: OpenDesk, job: Job) -> list[Path]:
    return [Path(file.path) for file in (await about_job(desk, job)).files]


def output_names(desk: OpenDesk, folder: str) -> list[str]:
    return sorted(path.name for path in (desk.desk.output_folder / folder).iterdir())


def all_outputs(desk: OpenDesk) -> list[Path]:
    return [path for path in desk.desk.output_folder.rglob("*") if path.is_file()]


async def test_outputs_are_named_after_their_inputs_in_natural_order(desk: OpenDesk, tmp_path: Path) -> None:
    write_images(desk, "a10.png", "a2.png", "notes.txt")
    batch = await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "mine", "label": "first"})
    jobs = await ended_jobs(desk, batch.id)
    assert [(job.label, job.status) for job in jobs] == [("a2", "completed"), ("a10", "completed")]
    assert output_names(desk, f"first {batch.id[-8:]}") == ["0001_a2.png", "0002_a10.png"]
    # uploaded files keep their names, and the user may name the output folder
    (tmp_path / "my cat.png").write_bytes(png("#112233"))
    request = {
        "effect_slug": "invert-image",
        "input_file_ids": [await desk.client.upload(tmp_path / "my cat.png")],
        "output_folder": "film/scene 1",
        "tries": 2,
    }
    jobs = await ended_jobs(desk, (await desk.client.add_batch(request)).id)
    assert [job.label for job in jobs] == ["my cat · try 1", "my cat · try 2"]
    assert output_names(desk, "film/scene 1") == ["0001_my-cat-try-1.png", "0002_my-cat-try-2.png"]


async def test_every_file_of_a_run_is_copied_and_listed(desk: OpenDesk, tmp_path: Path) -> None:
    graph = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 3, "color": 7}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    }
    workflow = (await desk.client.add_graph(graph, name="three")).data
    batch = await desk.client.submit_batch([{"label": "three"}], workflow_slug=workflow.slug, label="all")
    [job] = await ended_jobs(desk, batch.id)
    folder = f"all {batch.id[-8:]}"
    names = ["0001_three.png", "0001_three_2.png", "0001_three_3.png"]
    assert output_names(desk, folder) == names
    files = (await about_job(desk, job)).files
    assert [file.path for file in files] == [str(desk.desk.output_folder / folder / name) for name in names]
    assert [file.output_number for file in files] == [1, 2, 3]
    saved = await desk.client.download_outputs(job.id, tmp_path)
    assert [path.name for path in saved] == [f"job-{job.id[-8:]}{suffix}.png" for suffix in ("", "-2", "-3")]
    assert [path.read_bytes() for path in saved] == [
        (desk.desk.output_folder / folder / name).read_bytes() for name in names
    ]


async def test_deleted_file_is_reported_as_missing_and_an_emptied_batch_is_not_rerun(desk: OpenDesk) -> None:
    write_images(desk, "a.png")
    batch = await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "mine"})
    [job] = await ended_jobs(desk, batch.id)
    [path] = await output_paths(desk, job)
    async with owner_http(desk.ready.url) as http:
        answer = await http.get(f"/api/desk/jobs/{job.id}/files/1", headers={"Range": "bytes=0-3"})
        assert (answer.status_code, answer.content) == (206, b"\x89PNG")
        assert answer.headers["content-type"] == "image/png"
        assert "sandbox" in answer.headers["content-security-policy"]
        path.unlink()
        for number in ("1", "2", "0", "x", "..%2f1"):
            assert (await http.get(f"/api/desk/jobs/{job.id}/files/{number}")).status_code in (404, 422)
        [file] = (await about_job(desk, job)).files
        assert (file.size, file.url) == (None, None)

        deletion = {"filter": {"batch_id": batch.id}, "action": "delete"}
        (await http.post("/api/ai-jobs/bulk", json=deletion)).raise_for_status()
        refusals = {"again": "This batch has no jobs left to run again.", "move": "No item of this batch is waiting."}
        for verb, body in {"again": {}, "move": {"to": "top"}}.items():
            answer = await http.post(f"/api/batches/{batch.id}/{verb}", json=body)
            assert (answer.status_code, answer.json()["detail"]) == (409, refusals[verb])


async def test_deleting_a_batch_keeps_files_in_another_output_folder(desk: OpenDesk, tmp_path: Path) -> None:
    write_images(desk, "fox.png")
    request = {"effect_slug": "invert-image", "input_subdir": "mine", "output_folder": "cats"}
    [old] = await ended_jobs(desk, (await desk.client.add_batch(request)).id)
    async with owner_http(desk.ready.url) as http:
        values = {"desk.output_folder": str(tmp_path / "other")}
        (await http.put("/api/desk/settings", json={"values": values})).raise_for_status()
        new: list[Job] = []
        # the first job runs, the second reuses an output
        for folder, reuse in (("cats", False), ("dogs", True)):
            batch = await desk.client.add_batch({**request, "output_folder": folder, "reuse": reuse})
            new += await ended_jobs(desk, batch.id)
        new_files = [tmp_path / "other" / folder / "0001_fox.png" for folder in ("cats", "dogs")]
        old_file = desk.desk.output_folder / "cats" / "0001_fox.png"
        assert await output_paths(desk, old) == [old_file]
        assert [path for job in new for path in await output_paths(desk, job)] == new_files
        assert (await http.get(f"/api/desk/jobs/{old.id}/files/1")).content == old_file.read_bytes()
        assert (await about_job(desk, old)).deleted_with_it == []
        await desk.client.delete_job(old.id)
        assert [path.exists() for path in (old_file, *new_files)] == [True, True, True]
        for job in new:
            await desk.client.delete_job(job.id)
    assert [path.exists() for path in (old_file, *new_files)] == [True, False, False]


async def test_batches_with_one_output_folder_keep_all_their_files(desk: OpenDesk) -> None:
    for name in ("one", "two"):
        write_images(desk, "a.png", folder=name)
    (desk.desk.input_folder / "two" / "a.png").write_bytes(png("#556677"))
    request = {"effect_slug": "invert-image", "output_folder": "final"}
    batches = [await desk.client.add_batch({**request, "input_subdir": folder}) for folder in ("one", "two")]
    jobs = [job for batch in batches for job in await ended_jobs(desk, batch.id)]
    paths = [(await output_paths(desk, job))[0] for job in jobs]
    assert [path.name for path in paths] == ["0001_a.png", f"0001_a {jobs[1].id[-8:]}.png"]
    for job, path in zip(jobs, paths, strict=True):
        [output, *_] = (await desk.client.job(job.id)).outputs
        assert hashlib.sha256(path.read_bytes()).hexdigest() == output.content_hash


async def test_jobs_with_equal_outputs_have_separate_files(desk: OpenDesk) -> None:
    # images contain the id of their run; texts do not, so they are equal
    graph: Graph = {"1": {"class_type": "PreviewAny", "inputs": {"source": "hello"}}}
    slug = (await desk.client.add_graph(graph, name="text")).data.slug
    request = {"workflow_slug": slug, "label": "same", "output_folder": "final", "tries": 1}
    batches = [await desk.client.add_batch(request) for _ in range(2)]
    [first, second] = [job for batch in batches for job in await ended_jobs(desk, batch.id)]
    [[first_path], [second_path]] = [await output_paths(desk, job) for job in (first, second)]
    assert first_path.read_bytes() == second_path.read_bytes()
    await desk.client.delete_job(first.id)
    assert output_names(desk, "final") == [second_path.name]


async def test_failed_output_copy_is_logged(desk: OpenDesk) -> None:
    write_images(desk, "a.png")
    desk.desk.output_folder.mkdir(parents=True, exist_ok=True)
    (desk.desk.output_folder / "blocked").touch()
    request = {"effect_slug": "invert-image", "input_subdir": "mine", "output_folder": "blocked"}
    [job] = await ended_jobs(desk, (await desk.client.add_batch(request)).id)
    assert job.status == "completed"
    lines = [log.line async for log in desk.client.logs(job.id)]
    assert [line for line in lines if line.startswith("The output could not be copied to the output folder")]


async def test_batch_with_a_known_idempotency_key_is_not_added_again(desk: OpenDesk) -> None:
    write_images(desk, "a.png", "b.png")
    slug = (await desk.client.add_graph(PROMPT_GRAPH, name="prompted")).data.slug
    for request in (
        {"effect_slug": "invert-image", "input_subdir": "mine", "idempotency_key": "folder"},
        {"workflow_slug": slug, "prompts": ["a"], "tries": 2, "idempotency_key": "prompts"},
    ):
        batch = await desk.client.add_batch(request)
        assert (await desk.client.add_batch(request)).id == batch.id
        assert len([job async for job in desk.client.jobs(batch_id=batch.id)]) == batch.total == 2
        with pytest.raises(Conflict):
            await desk.client.add_batch({**request, "label": "another"})
    assert len([job async for job in desk.client.jobs()]) == 4


async def test_preset_applies_to_all_items_and_explicit_values_win(desk: OpenDesk) -> None:
    slug = (await desk.client.add_graph(PROMPT_GRAPH, name="prompted")).data.slug
    await desk.client.create_preset("fixed", {"seed": 42})
    batch = await desk.client.add_batch({"workflow_slug": slug, "prompts": ["a", "b"], "preset": "fixed"})
    jobs = [job async for job in desk.client.jobs(batch_id=batch.id)]
    assert [(await input_values(desk, job))["seed"] for job in jobs] == [42, 42]
    await desk.client.create_preset("short", {"frames": 2})
    request = {"effect_slug": "image-to-clip", "input_subdir": "examples", "preset": "short"}
    for values, frames in (({}, 2), ({"frames": 3}, 3)):
        batch = await desk.client.add_batch({**request, "values": values})
        [job] = [job async for job in desk.client.jobs(batch_id=batch.id)]
        assert (await input_values(desk, job))["frames"] == frames


async def test_invalid_batch_is_refused_with_a_reason(desk: OpenDesk, tmp_path: Path) -> None:
    (desk.desk.input_folder / "empty").mkdir()
    (desk.desk.input_folder / "link").symlink_to(tmp_path)
    refusals = [
        *(
            ({"output_folder": path}, "inside the output folder")
            for path in ("../up", "/etc", "~/x", "C:\\x", "a/../../b")
        ),
        *(({"input_subdir": path}, "input folder|cannot be read") for path in ("..", "/etc", "mine/../../x", "link")),
        ({"input_subdir": "empty"}, "no images, videos or audio files in 'empty'"),
        ({"input_subdir": ""}, "audio files in the input folder itself. Choose a folder in it."),
        ({"preset": "none"}, "no preset 'none'"),
    ]
    for fields, reason in refusals:
        with pytest.raises(ComfyRelayError, match=reason):
            await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "examples", **fields})
    assert [job async for job in desk.client.jobs()] == []
    # a body with ten thousand long prompts is not too large: the request fails only because its workflow is unknown
    values = {f"value_{number}": number for number in range(20)}
    items = [{"input_payload": {"prompt": "a cat " * 300, **values}}] * 10_000
    async with owner_http(desk.ready.url) as http:
        answer = await http.post("/api/batches", json={"workflow_slug": "nowhere", "items": items})
    assert answer.status_code == 404, answer.text


async def test_input_changed_after_submission_does_not_affect_the_job(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
        async with open_desk(make_desk(tmp_path / "desk", comfyui_url=[simulator.url], prefetch=0)) as desk:
            write_images(desk, "a.png")
            await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "examples"})
            batch = await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "mine"})
            (desk.desk.input_folder / "mine" / "a.png").write_bytes(b"not an image")
            stuck.end()
            [job] = await ended_jobs(desk, batch.id)
            assert job.status == "completed"


async def test_reused_items_are_copied_into_the_batch_folder(desk: OpenDesk) -> None:
    write_images(desk, "a.png", "b.png")
    request = {"effect_slug": "invert-image", "input_subdir": "mine", "label": "first"}
    originals = await ended_jobs(desk, (await desk.client.add_batch(request)).id)
    batch = await desk.client.add_batch({**request, "label": "again", "reuse": True})
    assert batch.done == batch.total == 2
    jobs = await ended_jobs(desk, batch.id)
    assert [job.reused_from for job in jobs] == [original.id for original in originals]
    assert output_names(desk, f"again {batch.id[-8:]}") == ["0001_a.png", "0002_b.png"]
    [copy] = await output_paths(desk, jobs[0])
    [original] = await output_paths(desk, originals[0])
    assert copy.read_bytes() == original.read_bytes()
    await desk.client.delete_job(jobs[0].id)
    assert (copy.exists(), original.exists()) == (False, True)


async def test_duplicate_concurrent_request_leaves_no_orphaned_file(
    desk: OpenDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    slug = (await desk.client.create_workflow(SEEDED, name="same", output_node_id="3")).slug
    await desk.ended((await desk.client.submit(workflow_slug=slug)).id)
    both_have_copied = asyncio.Barrier(2)
    copy_outputs = Reuse.copy_outputs

    async def copy_together(self: Reuse, *args: Any, **options: Any) -> Any:
        result = await copy_outputs(self, *args, **options)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await both_have_copied.wait()
        assert len(all_outputs(desk)) == count + 2
        return result

    async def send(*, is_batch: bool) -> str:
        request: dict[str, Any] = {"workflow_slug": slug, "idempotency_key": f"once {is_batch}", "reuse": True}
        return (await desk.client.add_batch(request) if is_batch else await desk.client.submit(**request)).id

    monkeypatch.setattr(Reuse, "copy_outputs", copy_together)
    for is_batch in (False, True):
        count = len(all_outputs(desk))
        first, second = await asyncio.gather(send(is_batch=is_batch), send(is_batch=is_batch))
        assert first == second
        assert len(all_outputs(desk)) == count + 1
