"""Commands run as processes with a desk, and print the right output with the right exit code."""

import asyncio
import json
import os
import re
import shlex
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any, cast

import pytest
from PIL import Image

from comfyrelay import __version__
from comfyrelay.client import Client
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.simulator import Simulator, Slow
from tests.integration.desk.test_pace import wait_for_status
from tests.integration.desk.test_script_jobs import SAVES, open_script_desk
from tests.support import commands, graphs
from tests.support.api_calls import png
from tests.support.chromium import PROMPT_GRAPH
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.desk_owner import owner_http
from tests.support.editor_files import empty, invert, node, save, workflow
from tests.support.form_graphs import WAN_22
from tests.support.paths import ROOT
from tests.support.server_processes import free_port

TIMEOUT_SECONDS = 120.0
# The labels of the lines that `up` prints.
LABEL = re.compile(r"^  (\w+) +[/h]", re.M)
THREE: dict[str, Any] = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 3, "color": 7}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
}
# A graph that saves a first and a last frame unchanged.
TWO: dict[str, Any] = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "first.png"}},
    "4": {"class_type": "LoadImage", "inputs": {"image": "last.png"}, "_meta": {"title": "Last frame"}},
    "5": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    "6": {"class_type": "SaveImage", "inputs": {"images": ["4", 0], "filename_prefix": "y"}},
}
STAND_IN = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "simulator.safetensors"}}
SAME = {**TWO, "4": TWO["1"]}


async def command(url: str, *words: str) -> tuple[int, str, str]:
    ran = await (await start(url, *words)).ended()
    return ran.code, ran.out, ran.err


async def start(url: str, *words: str, **more: str) -> commands.RunningCommand:
    return await commands.start(*words, env={**os.environ, "COMFYRELAY_URL": url, "COLUMNS": "200", **more})


async def test_show_lists_common_and_changed_values(desk: OpenDesk) -> None:
    workflow = await desk.client.add_graph(PROMPT_GRAPH, name="portrait")
    payload = {"prompt": "a hill", "steps": 7}
    job = await desk.client.submit(workflow_slug=workflow.data.slug, input_payload=payload)
    await desk.ended(job.id)
    code, out, _ = await command(desk.ready.url, "show", job.id[-8:])
    assert code == 0
    words = [line.split() for line in out.splitlines()]
    assert ["Prompt", "a", "hill"] in words
    assert ["Seed", str(job.seed)] in words
    assert ["Steps", "7"] in words
    assert "CFG" not in out
    assert "more with the workflow's values: --all" in out
    code, out, _ = await command(desk.ready.url, "show", job.id, "--all")
    assert ["CFG", "7.0"] in [line.split() for line in out.splitlines()]
    assert "--all" not in out


@pytest.mark.journey
async def test_run_accepts_editor_files_and_comfyui_outputs(desk: OpenDesk, tmp_path: Path) -> None:
    saved = workflow([empty(), invert(2, 1), save(3, 2)], [(1, 1, 0, 2, 0), (2, 2, 0, 3, 0)])
    (tmp_path / "editor.json").write_text(json.dumps(saved))
    words = ("run", str(tmp_path / "editor.json"), "--set", "1.width=40", "--out", str(tmp_path), "--json")
    code, out, _ = await command(desk.ready.url, *words)
    assert code == 0
    (picture,) = json.loads(out)["saved"]
    assert Image.open(picture).size == (40, 48)
    # the picture contains the graph that created it, with its values
    code, out, _ = await command(desk.ready.url, "run", picture, "--out", str(tmp_path / "again"), "--json")
    assert code == 0
    (again,) = json.loads(out)["saved"]
    assert Image.open(again).size == (40, 48)


async def test_prefetched_job_has_one_status_on_the_command_line_and_the_page(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=600))
        async with open_desk(make_desk(tmp_path / "desk", comfyui_url=[simulator.url], shutdown_seconds=0)) as desk:
            workflow = (await desk.client.add_graph(graphs.invert(), name="mine")).data
            for label in ("runs", "prefetched"):
                await desk.client.submit(workflow_slug=workflow.slug, label=label)
            await wait_for_status(desk.client, lambda now: bool(now.fetched) and now.counts[JobStatus.PROCESSING] == 1)
            code, out, err = await command(desk.ready.url, "jobs", "--json")
            assert code == 0, err
            async with owner_http(desk.ready.url) as http:
                entries = (await http.get("/api/queue")).json()["data"]["items"]
    listed = {job["label"]: job["status"] for job in json.loads(out)}
    assert listed == {"runs": "processing", "prefetched": "queued"}
    # the page uses the same names
    assert {entry["label"]: entry["status"] for entry in entries} == {"runs": "running", "prefetched": "waiting"}


async def test_completed_run_of_a_file_leaves_its_job_but_no_workflow(desk: OpenDesk, tmp_path: Path) -> None:
    kept = (await desk.client.add_graph(graphs.invert(color=9), name="mine")).data.slug
    (tmp_path / "mine.json").write_text(json.dumps(graphs.invert()))
    words = ["run", str(tmp_path / "mine.json"), "--out", str(tmp_path / "made"), "--json"]
    code, out, err = await command(desk.ready.url, *words)
    assert [workflow.slug for workflow in await desk.client.workflows()] == [kept]
    assert code == 0, err
    job = await desk.client.job(json.loads(out)["id"])
    assert (job.status, job.workflow_name) == ("completed", "mine")
    # The workflow of another command is kept, even if it has the same file.
    (tmp_path / "mine.json").write_text(json.dumps(graphs.invert(color=9)))
    assert (await command(desk.ready.url, *words))[0] == 0
    assert [workflow.slug for workflow in await desk.client.workflows()] == [kept]


async def test_failed_run_of_a_file_keeps_its_workflow_for_a_retry(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(THREE | {"1": {"class_type": "ImageInvert", "inputs": {}}}))
    code, out, err = await command(desk.ready.url, "run", str(tmp_path / "mine.json"), "--json")
    [kept] = await desk.client.workflows()
    assert code == 1
    assert f"`comfyrelay workflows remove {kept.slug}` removes it." in " ".join(err.split())
    job_id = json.loads(out)["id"]
    assert (await command(desk.ready.url, "retry", job_id))[0] == 0


async def test_run_uses_a_new_seed_unless_it_is_given_or_reproduced(desk: OpenDesk, tmp_path: Path) -> None:
    noisy = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}},
        "2": {"class_type": "ImageAddNoise", "inputs": {"image": ["1", 0], "seed": 40, "strength": 0.5}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}},
    }
    (tmp_path / "noisy.json").write_text(json.dumps(noisy))

    async def run(what: object, *more: str) -> dict[str, Any]:
        code, out, err = await command(desk.ready.url, "run", str(what), *more, "--out", str(tmp_path), "--json")
        assert code == 0, err
        batch: dict[str, Any] = json.loads(out)
        about = await desk.client.about(batch["id"])
        assert about is not None
        assert [attempt.seed for attempt in about.attempts] == [batch["seed"]]
        return batch

    one, other = [await run(tmp_path / "noisy.json") for _ in range(2)]
    assert len({one["seed"], other["seed"], 40}) == 3
    assert (await run(tmp_path / "noisy.json", "--set", "2.seed=40"))["seed"] == 40
    assert (await run(tmp_path / "noisy.json", "--set", "seed=41"))["seed"] == 41
    (picture,) = one["saved"]
    assert (await run(picture))["seed"] == one["seed"]
    for more, is_same in (((), True), (("--tries", "2"), False)):
        code, out, err = await command(desk.ready.url, "batch", "add", picture, *more, "--json")
        assert code == 0, err
        seeds = {job.seed async for job in desk.client.jobs(batch_id=json.loads(out)["id"])}
        assert (one["seed"] in seeds) is is_same
    _, out, _ = await command(desk.ready.url, "jobs")
    assert f"noisy · seed {other['seed']}" in out


async def test_shared_sampler_steps_are_set_by_name_and_move_the_boundary(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "wan.json").write_text(json.dumps(WAN_22))
    words = ("batch", "add", str(tmp_path / "wan.json"), "--set")
    # the simulator does not have these nodes
    code, out, err = await command(desk.ready.url, *words, "steps=8", "--anyway", "--json")
    assert code == 0, err
    [job] = [job async for job in desk.client.jobs(batch_id=json.loads(out)["id"])]
    about = await desk.client.about(job.id)
    assert about is not None
    values = {input_.label: input_.value for input_ in about.inputs}
    assert (values["Steps"], values["Switch to low-noise sampler at step"]) == (8, 4)
    code, _, err = await command(desk.ready.url, *words, "steps=1.5")
    assert (code, "steps: This must be a whole number." in err) == (2, True)
    code, _, err = await command(desk.ready.url, *words, "stepps=8")
    assert (code, "There is no input 'stepps'. Did you mean steps?" in err) == (2, True)


async def test_swept_values_are_combined_or_paired(desk: OpenDesk) -> None:
    words = ("batch", "add", "text-to-image", "--sweep", "steps=2,3", "--sweep", "width=64..128:64", "--json")
    for more, labels in (
        ((), ["Steps 2 · Width 64", "Steps 2 · Width 128", "Steps 3 · Width 64", "Steps 3 · Width 128"]),
        (("--pairwise",), ["Steps 2 · Width 64", "Steps 3 · Width 128"]),
    ):
        code, out, err = await command(desk.ready.url, *words, *more)
        assert code == 0, err
        jobs = [job async for job in desk.client.jobs(batch_id=json.loads(out)["id"])]
        assert [job.label for job in sorted(jobs, key=lambda job: job.item_no)] == labels
    code, _, err = await command(desk.ready.url, *words[:3], "--sweep", "steps=0..5")
    assert (code, "steps: 0: " in err) == (2, True)
    code, _, err = await command(desk.ready.url, *words[:3], "--sweep", "steps=1", "--sweep", "steps=2")
    assert (code, "Give all values of a field in one option" in " ".join(err.split())) == (2, True)


async def test_value_is_set_by_an_unambiguous_key_suffix(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "portrait.json").write_text(json.dumps({**PROMPT_GRAPH, "1": STAND_IN}))
    words = ("run", str(tmp_path / "portrait.json"), "--out", str(tmp_path))
    code, out, err = await command(desk.ready.url, *words, "--json", "--set", "sampler_name=ddim")
    assert code == 0, err
    about = await desk.client.about(json.loads(out)["id"])
    assert about is not None
    assert "ddim" in [input_.value for input_ in about.inputs]
    added = (await desk.client.add_graph({**PROMPT_GRAPH, "1": STAND_IN}, name="portrait")).data
    for what in (str(tmp_path / "portrait.json"), added.slug, "text-to-image"):
        code, _, err = await command(desk.ready.url, "run", what, "--out", str(tmp_path), "--set", "promt=a hill")
        assert (code, "There is no input 'promt'. Did you mean prompt?" in err) == (2, True)


async def test_run_with_reuse_returns_the_output_of_an_identical_job(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "three.json").write_text(json.dumps(THREE))

    async def run(*more: str) -> dict[str, Any]:
        words = ("run", str(tmp_path / "three.json"), "--out", str(tmp_path), "--json", *more)
        code, out, err = await command(desk.ready.url, *words)
        assert code == 0, err
        result: dict[str, Any] = json.loads(out)
        return result

    first, again = await run(), await run("--reuse")
    assert again["reused_from"] == first["id"]
    assert Path(again["saved"][0]).read_bytes() == Path(first["saved"][0]).read_bytes()
    assert (await run())["reused_from"] is None


async def test_batch_without_a_label_is_named_after_its_workflow(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "three.json").write_text(json.dumps(THREE))
    for more, name in (((), "three"), (("--label", "mine"), "mine")):
        arguments = ("batch", "add", str(tmp_path / "three.json"), *more, "--json")
        assert json.loads((await command(desk.ready.url, *arguments))[1])["label"] == name


async def test_missing_model_is_reported_with_the_option_to_wait(desk: OpenDesk, tmp_path: Path) -> None:
    rare = {**STAND_IN, "inputs": {"ckpt_name": "rare.safetensors"}}
    (tmp_path / "rare.json").write_text(json.dumps({**PROMPT_GRAPH, "1": rare}))
    words = ("run", str(tmp_path / "rare.json"), "--out", str(tmp_path))
    code, _, err = await command(desk.ready.url, *words)
    assert code == 2
    assert err.endswith("Install what is missing, or add it with --anyway: then it waits until a worker has it.\n")
    running = await start(desk.ready.url, *words, "--anyway")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        message = (await running.err.readline()).decode()
    await running.kill()
    assert message.startswith("Waiting for a worker with the model rare.safetensors. Ctrl-C cancels the job;")


async def test_invalid_port_is_explained(tmp_path: Path) -> None:
    for port, message in (("70000", "must be at most 65535"), ("0", "must be at least 1")):
        code, out, err = await command("", "up", "--port", port, "--data-dir", str(tmp_path / "desk"))
        assert (code, out) == (2, "")
        assert message in err


async def test_run_prints_text_and_saves_all_other_outputs(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "words.json").write_text(json.dumps(graphs.words("two\nlines [red]")))
    code, out, _ = await command(desk.ready.url, "run", str(tmp_path / "words.json"), "--out", str(tmp_path))
    assert code == 0
    *lines, path = out.splitlines()
    assert lines == ["two", "lines [red]"]
    assert (Path(path).suffix, Path(path).read_text()) == (".txt", "two\nlines [red]")
    socket = {"class_type": "SaveImageWebsocket", "inputs": {"images": ["1", 0]}}
    graph = {**THREE, "2": socket, "3": graphs.words("a caption")["1"]}
    (tmp_path / "both.json").write_text(json.dumps(graph))
    arguments = ("run", str(tmp_path / "both.json"), "--out", str(tmp_path), "--json")
    code, out, _ = await command(desk.ready.url, *arguments)
    assert code == 0
    *pictures, text = map(Path, json.loads(out)["saved"])
    assert [picture.read_bytes()[:4] for picture in pictures] == [b"\x89PNG"] * 3
    assert text.read_text() == "a caption"


async def test_picture_without_a_workflow_is_explained(desk: OpenDesk, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "plain.png")
    code, _, err = await command(desk.ready.url, "run", str(tmp_path / "plain.png"))
    assert code == 2
    assert "contains no workflow" in err


@pytest.mark.journey
async def test_run_saves_every_file_and_show_prints_its_path(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "three.json").write_text(json.dumps(THREE))
    code, out, _ = await command(
        desk.ready.url, "run", str(tmp_path / "three.json"), "--out", str(tmp_path / "made"), "--json"
    )
    assert code == 0
    ran = json.loads(out)
    assert [Path(path).read_bytes()[:4] for path in ran["saved"]] == [b"\x89PNG"] * 3
    code, out, _ = await command(desk.ready.url, "show", ran["id"])
    paths = [line.rpartition("  ")[0] for line in out.splitlines() if line.startswith(str(desk.desk.output_folder))]
    assert len(paths) == 3
    assert all(Path(path).is_file() for path in paths)


async def test_run_prints_a_script_command_before_it_runs(tmp_path: Path) -> None:
    async with open_script_desk(tmp_path, SAVES) as desk:
        values = ("--set", "positive=it's so", "--set", "input_subdir=cats", "--set", "extra_args=--seed 7")
        code, out, err = await command(desk.ready.url, "run", "script", *values, "--out", str(tmp_path / "made"))
        assert code == 0
        [line] = [splitline for splitline in err.splitlines() if splitline.startswith("$ ")]
        [job] = [job async for job in desk.client.jobs()]
        about = await desk.client.about(job.id)
        assert about is not None
        assert shlex.split(line[2:]) == (about.attempts[0].about or {})["argv"]
        assert len(out.splitlines()) == 2
        # an invalid command is not submitted as a job
        code, _, err = await command(desk.ready.url, "run", "script", "--set", "input_subdir=../up")
        assert (code, "name a folder inside the input folder" in err) == (2, True)
        assert len([job async for job in desk.client.jobs()]) == 1


async def test_missing_options_are_named_as_command_options(desk: OpenDesk, tmp_path: Path) -> None:
    """Errors name options rather than API fields and list available names, and no desk is started needlessly."""
    (tmp_path / "rare.json").write_text(json.dumps(workflow([node(2, "Rare"), node(3, "Rarer")])))
    for words, message in (
        (("run", "invert-image"), "The workflow needs a file: name one with --input."),
        (("batch", "add", "invert-image"), "The workflow needs a file: name one with --input."),
        (("run", "image-to-clip", "--set", "frames=-5"), "frames: This must be at least 1."),
        (("run", "no-such"), "There are: invert-image, image-to-clip, invert-video, text-to-image."),
        (("run", str(tmp_path / "none.json")), "cannot be read"),
        (("run", str(tmp_path / "rare.json")), "These nodes are not installed: Rare (node 2), Rarer (node 3)."),
        (("run", str(tmp_path / "rare.json"), "--anyway"), 'save it with "Export (API)" in a ComfyUI that has it'),
        (("batch", "add", "invert-image", "--input-subdir", "../up"), "without '..'."),
        (("batch", "add", "invert-image", "--seed-mode", "random", "--seed", "1"), "--seed is for"),
    ):
        code, out, err = await command(desk.ready.url, *words)
        assert (code, out) == (2, "")
        # the error is one sentence and is printed once
        assert err.startswith("Error: ")
        assert err.count(message) == 1
        assert "input_file_id" not in err


def pictures(folder: Path) -> tuple[str, str]:
    """Return a red and a blue picture."""
    for colour in ("red", "blue"):
        (folder / f"{colour}.png").write_bytes(png(colour))
    return str(folder / "red.png"), str(folder / "blue.png")


def colour_of(path: str | Path) -> str:
    with Image.open(path) as picture:
        [(_, pixel)] = picture.convert("RGB").getcolors() or []
    return {(255, 0, 0): "red", (0, 0, 255): "blue"}[cast(tuple[int, int, int], pixel)]


@pytest.mark.parametrize(
    ("graph", "arguments"),
    [
        (TWO, ("--input", "{red}", "--set", "4.image={blue}")),
        (TWO, ("--set", "1.image={red}", "--set", "Last frame.image={blue}")),
        # there is one input if the graph names one file, and two if the command names two
        (SAME, ("--set", "1.image={red}", "--set", "4.image={blue}")),
    ],
    ids=["one-of-them", "both", "both-of-a-graph-that-names-one"],
)
async def test_graph_with_two_inputs_runs_with_both(
    desk: OpenDesk, tmp_path: Path, graph: dict[str, Any], arguments: tuple[str, ...]
) -> None:
    red, blue = pictures(tmp_path)
    (tmp_path / "two.json").write_text(json.dumps(graph))
    words = [word.format(red=red, blue=blue) for word in arguments]
    code, out, err = await command(
        desk.ready.url, "run", str(tmp_path / "two.json"), *words, "--out", str(tmp_path / "made"), "--json"
    )
    assert (code, err) == (0, "")
    assert sorted(colour_of(load) for load in json.loads(out)["saved"]) == ["blue", "red"]


async def test_second_input_is_part_of_every_batch_item(desk: OpenDesk, tmp_path: Path) -> None:
    red, blue = pictures(tmp_path)
    (tmp_path / "two.JSON").write_text(json.dumps(TWO))
    arguments = ("--input", red, "--input", blue, "--set", f"4.image={blue}", "--json")
    code, out, err = await command(desk.ready.url, "batch", "add", str(tmp_path / "two.JSON"), *arguments)
    assert (code, err) == (0, "")
    outputs = []
    for job in [job async for job in desk.client.jobs(batch_id=json.loads(out)["id"])]:
        await desk.ended(job.id)
        saved = await desk.client.download_outputs(job.id, tmp_path / job.id)
        outputs.append(sorted(map(colour_of, saved)))
    assert sorted(outputs) == [["blue", "blue"], ["blue", "red"]]


async def test_file_error_names_the_file_as_typed(desk: OpenDesk, tmp_path: Path) -> None:
    red, blue = pictures(tmp_path)
    two, folder = str(tmp_path / "two.json"), tmp_path / "texts"
    Path(two).write_text(json.dumps(TWO))
    folder.mkdir()
    (folder / "notes.txt").write_text("no picture")
    (tmp_path / "clip.mp4").write_bytes(b"no real one")
    clip = str(tmp_path / "clip.mp4")
    for words, message in (
        (("run", two, "--input", red), "The workflow needs one more file: name it with --set 4.image=FILE."),
        (("batch", "add", two, "--input", red), "The workflow needs one more file: name it with --set 4.image=FILE."),
        (("run", two, "--input", red, "--set", "4.image=last.png"), "4.image: There is no file 'last.png' here."),
        (("run", two, "--input", red, "--set", "Last frame.image=x.png"), "Last frame.image: There is no file 'x.png'"),
        (("run", two, "--input", red, "--set", f"4.image={clip}"), "4.image: This must be an image, but the file is"),
        (("run", two, "--input", clip, "--set", f"4.image={red}"), "--input: This must be an image, but the file is"),
        (("run", two, "--input", red, "--set", f"1.image={blue}"), "--input and --set 1.image are the same input"),
        (("run", "invert-image", "--set", "image=x.png"), "image: There is no file 'x.png' here."),
        (("run", "invert-image", "--input", str(folder)), "Use `comfyrelay batch add` to run the workflow on"),
        (("batch", "add", "invert-image", "--input", str(folder)), "There are no images, videos or audio files in"),
    ):
        code, out, err = await command(desk.ready.url, *words)
        assert (code, out) == (2, "")
        assert err.startswith("Error: ")
        assert message in err
        assert "name one with --input" not in err
    assert [job async for job in desk.client.jobs()] == []


async def test_rerun_of_an_image_to_image_output_asks_for_its_input(desk: OpenDesk, tmp_path: Path) -> None:
    red, _ = pictures(tmp_path)
    (tmp_path / "loads.json").write_text(json.dumps(graphs.invert_file("gone.png")))
    out_option = ("--out", str(tmp_path / "made"))
    words = ("run", str(tmp_path / "loads.json"), "--input", red, *out_option, "--json")
    (picture,) = json.loads((await command(desk.ready.url, *words))[1])["saved"]
    code, out, err = await command(desk.ready.url, "run", picture, *out_option)
    assert (code, out) == (2, "")
    assert "but not its input: name it with --input." in err
    assert "runs again with the same values" not in err
    code, out, err = await command(desk.ready.url, "run", picture, "--input", red, *out_option)
    assert (code, "runs again with the same values" in err) == (0, True)


async def test_refused_run_leaves_no_workflow_behind(desk: OpenDesk, tmp_path: Path) -> None:
    red, _ = pictures(tmp_path)
    (tmp_path / "loads.json").write_text(json.dumps(graphs.invert_file("gone.png")))
    editor = workflow(
        [node(1, "LoadImage", values=["gone.png", "image"]), invert(2, 1), save(3, 2)],
        [(1, 1, 0, 2, 0), (2, 2, 0, 3, 0)],
    )
    (tmp_path / "editor.json").write_text(json.dumps(editor))
    (tmp_path / "three.json").write_text(json.dumps(THREE))
    for words in (
        ("run", "loads.json"),
        ("run", "editor.json"),
        ("batch", "add", "editor.json"),
        ("run", "three.json", "--set", "no.such=1"),
        ("run", "three.json", "--input", red),
    ):
        arguments = [str(tmp_path / word) if word.endswith(".json") else word for word in words]
        code, _, err = await command(desk.ready.url, *arguments)
        assert code == 2, err
        assert await desk.client.workflows() == []
    # existing workflows are kept
    slug = (await desk.client.add_graph(THREE, name="three")).data.slug
    assert (await command(desk.ready.url, "run", str(tmp_path / "three.json"), "--input", red))[0] == 2
    assert [workflow.slug for workflow in await desk.client.workflows()] == [slug]


async def test_input_files_are_checked_before_a_desk_starts(tmp_path: Path) -> None:
    env = {"COMFYRELAY_DATA_DIR": str(tmp_path / "desk"), "COMFYRELAY_PORT": str(free_port())}
    missing = str(tmp_path / "gone.png")
    for words in (("invert-image", "--input", missing), (missing,), (missing, "--as-input", "invert-image")):
        ran = await (await start("", "run", *words, "--out", str(tmp_path / "made"), **env)).ended()
        assert (ran.code, ran.out) == (2, "")
        assert f"There is no file {missing!r} here." in ran.err
    assert not (tmp_path / "desk").exists()


async def test_desk_started_for_a_job_prints_only_the_outputs(tmp_path: Path) -> None:
    (tmp_path / "three.json").write_text(json.dumps(THREE))
    silent = f"http://127.0.0.1:{free_port()}"
    async with Simulator() as simulator:
        env = {
            "COMFYRELAY_DATA_DIR": str(tmp_path / "desk"),
            "COMFYRELAY_PORT": str(free_port()),
            "COMFYRELAY_DESK_COMFYUI_URL": f"{simulator.url},{silent}",
        }
        running = await start("", "run", str(tmp_path / "three.json"), "--out", str(tmp_path / "made"), **env)
        ran = await running.ended()
    assert ran.code == 0, ran.err
    assert [Path(splitline).suffix for splitline in ran.out.splitlines()] == [".png"] * 3


async def test_ambiguous_workflow_name_is_refused_with_the_slugs(desk: OpenDesk, tmp_path: Path) -> None:
    other = {**THREE, "2": {**THREE["2"], "inputs": {"images": ["1", 0], "filename_prefix": "hello"}}}
    older, newer = [(await desk.client.add_graph(graph, name="three")).data.slug for graph in (THREE, other)]
    code, out, err = await command(desk.ready.url, "run", "three")
    assert (code, out) == (2, "")
    assert f"2 workflows are called 'three'. Use a slug instead, newest first: {newer}, {older}." in err
    code, out, err = await command(desk.ready.url, "run", "no-such")
    assert f"text-to-image, {newer}, {older}." in err
    code, out, err = await command(desk.ready.url, "run", older, "--out", str(tmp_path / "made"))
    assert (code, len(out.splitlines())) == (0, 3)


async def test_unwritable_folder_is_reported_before_submission(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "three.json").write_text(json.dumps(THREE))
    (tmp_path / "taken.txt").touch()
    for folder, message in (
        (tmp_path / "taken.txt", f"{tmp_path / 'taken.txt'} is a file, not a folder."),
        (Path("/proc/nope"), "--out: /proc/nope is not writable"),
    ):
        code, _, err = await command(desk.ready.url, "run", str(tmp_path / "three.json"), "--out", str(folder))
        assert (code, message in err) == (2, True)
    assert [job async for job in desk.client.jobs()] == []


async def test_failed_save_names_the_job_and_the_kept_file(tmp_path: Path, fast_reconnect: None) -> None:
    settings = make_desk(tmp_path / "desk", comfyui_url=[f"http://127.0.0.1:{(port := free_port())}"])
    (tmp_path / "three.json").write_text(json.dumps(THREE))
    folder = tmp_path / "made"
    async with settings.open() as (_, ready), Client(ready.url) as client, asyncio.timeout(TIMEOUT_SECONDS):
        running = await start(ready.url, "run", str(tmp_path / "three.json"), "--out", str(folder))
        # the output folder disappears while the job waits for ComfyUI
        assert str(port) in (await running.err.readline()).decode()
        folder.rmdir()
        folder.touch()
        async with Simulator(port=port):
            ran = await running.ended()
        [job] = [job async for job in client.jobs()]
        assert ran.code == 2
        assert f"Job {job.id} completed, but its output was not saved" in ran.err
        assert f"It is at {settings.output_folder}" in ran.err


async def test_first_seed_alone_increments_the_others(desk: OpenDesk, tmp_path: Path) -> None:
    (tmp_path / "portrait.json").write_text(json.dumps(PROMPT_GRAPH))
    arguments = ("--prompt", "a hill", "--tries", "2", "--seed", str(2**64 - 1), "--json")
    code, out, _ = await command(desk.ready.url, "batch", "add", str(tmp_path / "portrait.json"), *arguments)
    assert code == 0
    jobs = [job async for job in desk.client.jobs(batch_id=json.loads(out)["id"])]
    seeds = []
    for item in sorted(jobs, key=lambda job: job.item_no):
        about = await desk.client.about(item.id)
        assert about is not None
        seeds += [value.value for value in about.inputs if value.key == "seed"]
    assert seeds == [2**64 - 1, 0]


async def test_run_and_top_report_an_unreachable_comfyui(tmp_path: Path, fast_reconnect: None) -> None:
    port = free_port()
    settings = make_desk(tmp_path / "desk", comfyui_url=[f"http://127.0.0.1:{port}"])
    (tmp_path / "three.json").write_text(json.dumps(THREE))
    away = f"No server listens at http://127.0.0.1:{port}. Is ComfyUI running there?"
    async with settings.open() as (_, ready), Client(ready.url):
        running = await start(ready.url, "run", str(tmp_path / "three.json"), "--out", str(tmp_path / "made"))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while away not in (line := (await running.err.readline()).decode()):
                assert line, "it ended without a word about ComfyUI"
        code, out, _ = await command(ready.url, "top", "--once")
        assert (code, away in out) == (0, True)
        async with Simulator(port=port):
            ran = await running.ended()
        assert ran.code == 0
        assert len(ran.out.splitlines()) == 3


async def test_up_refuses_invalid_addresses_and_names_the_one_it_awaits(tmp_path: Path) -> None:
    code, out, err = await command("", "up", "--comfyui-url", "not a url", "--data-dir", str(tmp_path / "desk"))
    assert (code, out) == (2, "")
    assert err == "Error: --comfyui-url is not an address. Write it like http://127.0.0.1:8188.\n"
    assert not (tmp_path / "desk").exists()
    silent = f"http://127.0.0.1:{free_port()}"
    async with Simulator() as simulator:
        arguments = ("--comfyui-url", simulator.url, "--comfyui-url", silent, "--data-dir", str(tmp_path / "desk"))
        port = str(free_port())
        running = await start("", "up", *arguments, "--port", port, COMFYRELAY_PROT="1")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            output = (await running.out.readuntil(b"Press Ctrl-C to stop.")).decode()
            warning = (await running.err.readline()).decode()
            await running.kill()
    assert f"is up at http://127.0.0.1:{port}\n" in output
    assert warning == "Warning: the variable COMFYRELAY_PROT is ignored. Did you mean COMFYRELAY_PORT?\n"
    assert f"{silent} does not answer yet: jobs wait for it" in output
    assert f"{simulator.url} does not answer" not in output
    quickstart = (ROOT / "docs" / "tutorial" / "quickstart.md").read_text("utf-8")
    assert LABEL.findall(quickstart) == LABEL.findall(output) == ["data", "settings", "ComfyUI", "page"]


async def test_up_on_other_addresses_requires_a_password(tmp_path: Path) -> None:
    code, out, err = await command("", "up", "--host", "0.0.0.0", "--data-dir", str(tmp_path / "desk"))
    assert (code, out) == (2, "")
    assert err.endswith(f"Set one with: comfyrelay password --data-dir {tmp_path / 'desk'}\n")
    assert await command("", "--version") == (0, f"{__version__}\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals on Windows")
async def test_run_shows_the_elapsed_time_if_only_node_progress_is_reported(tmp_path: Path) -> None:
    (tmp_path / "three.json").write_text(json.dumps(THREE))
    words = ("run", str(tmp_path / "three.json"), "--out", str(tmp_path / "made"))
    ours, theirs = os.openpty()
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="SaveImage", seconds=3600.0))
        async with make_desk(tmp_path / "desk", comfyui_url=[simulator.url], shutdown_seconds=0).open() as (_, ready):
            env = {**os.environ, "COMFYRELAY_URL": ready.url, "COLUMNS": "200", "TERM": "xterm"}
            running = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "comfyrelay", *words), env=env, stdout=PIPE, stderr=theirs
            )
            os.close(theirs)
            output = b""
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while b" left" not in output:
                    output += await asyncio.to_thread(os.read, ours, 4096)
            running.kill()
            await running.wait()
    os.close(ours)
    assert b"SaveImage, about " in output
    assert b"-:--:--" not in output
