"""The shipped script `comfyrelay batch-i2v` works with a simulator, as a command and under the script runner."""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from comfyrelay.comfyui import Graph
from comfyrelay.simulator import Fail, Simulator, Slow
from tests.support import commands
from tests.support.paths import RECORDINGS
from tests.support.script_runs import ScriptRun, job, settings_in, until

NOISE: Graph = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "example.png"}},
    "2": {"class_type": "ImageAddNoise", "inputs": {"image": ["1", 0], "seed": 40, "strength": 0.5}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "noise"}},
}
SAMPLED: Graph = {
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "simulator.safetensors"}},
    "2": {"class_type": "LoadImage", "inputs": {"image": "example.png"}},
    "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "a dog", "clip": ["1", 1]}},
    "4": {"class_type": "CLIPTextEncode", "inputs": {"text": "ugly", "clip": ["1", 1]}},
    "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
    "6": {
        "class_type": "KSampler",
        "inputs": {
            **{"model": ["1", 0], "seed": 5, "steps": 20, "cfg": 8.0, "sampler_name": "euler", "scheduler": "normal"},
            **{"positive": ["3", 0], "negative": ["4", 0], "latent_image": ["5", 0], "denoise": 1.0},
        },
        "_meta": {"title": "The sampler"},
    },
    "7": {"class_type": "VAEDecode", "inputs": {"samples": ["6", 0], "vae": ["1", 2]}},
    "8": {"class_type": "SaveImage", "inputs": {"images": ["7", 0], "filename_prefix": "x"}},
    "9": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
    "10": {"class_type": "SaveImage", "inputs": {"images": ["9", 0], "filename_prefix": "y"}},
}


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        yield simulator


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a template, `input/cats` with two pictures, and `work`."""
    settings_in(tmp_path)
    for name in ("cat 1.png", "cat 2.png"):
        (tmp_path / "input" / "cats" / name).write_bytes((RECORDINGS / "rec.png").read_bytes())
    (tmp_path / "input" / "cats" / "notes.txt").write_text("not an image")
    write(tmp_path, NOISE)
    return tmp_path


def write(folder: Path, graph: Graph) -> None:
    (folder / "templates" / "wan.json").write_text(json.dumps(graph))


async def start(folder: Path, simulator: Simulator, *options: str) -> commands.RunningCommand:
    with contextlib.chdir(folder / "work"):
        return await commands.start(
            *("batch-i2v", "--wait", "--server", simulator.url),
            *("--template-api", str(folder / "templates" / "wan.json"), "--input-root", str(folder / "input")),
            *("--input-subdir", "cats", "--positive", "a cat", *options),
            env=os.environ,
        )


async def run(folder: Path, simulator: Simulator, *options: str) -> tuple[int, list[str]]:
    ran = await (await start(folder, simulator, *options)).ended()
    return ran.code, [*ran.out.splitlines(), *ran.err.splitlines()]


async def graphs(simulator: Simulator) -> list[Graph]:
    """Return the graphs that ran, in order."""
    async with httpx.AsyncClient() as http:
        history: dict[str, Any] = (await http.get(f"{simulator.url}/history")).json()
    return [entry["prompt"][2] for entry in sorted(history.values(), key=lambda entry: entry["prompt"][0])]


def saved(lines: list[str]) -> list[Path]:
    return [Path(line.partition(" saved: ")[2]) for line in lines if " saved: " in line]


async def test_each_attempt_at_an_input_has_its_own_seed(folder: Path, simulator: Simulator) -> None:
    code, lines = await run(folder, simulator, "--tries", "2", "--seed", "7")
    assert code == 0
    assert [graph["2"]["inputs"]["seed"] for graph in await graphs(simulator)] == [7, 8, 9, 10]
    names = [path.name for path in saved(lines)]
    assert [re.sub(r"_.*_", " ", name) for name in names] == [f"000{n} seed{n + 6}.png" for n in (1, 2, 3, 4)]
    assert all(path.parent == folder / "work" / "output" and path.stat().st_size for path in saved(lines))
    assert "Note: the template has no prompt, so the given prompt is not used." in lines


async def test_template_seed_is_incremented_unless_another_is_given(folder: Path, simulator: Simulator) -> None:
    await run(folder, simulator)
    await run(folder, simulator, "--randomize-seed")
    seeds = [graph["2"]["inputs"]["seed"] for graph in await graphs(simulator)]
    assert seeds[:2] == [40, 41]
    assert len(set(seeds)) == 4


async def test_existing_files_are_not_overwritten(folder: Path, simulator: Simulator) -> None:
    runs = [saved((await run(folder, simulator))[1]) for _ in range(2)]
    assert len({path for paths in runs for path in paths}) == 4


async def test_prompts_profile_and_overrides_are_applied(folder: Path, simulator: Simulator) -> None:
    write(folder, SAMPLED)
    text = 'a "cat"\n🐈'
    options = ["--positive", text, "--negative", "-", "--profile", "look-dev", "--set", "The sampler.cfg=2.5"]
    await run(folder, simulator, *options, "--set", "5.width=128")
    graph = (await graphs(simulator))[0]
    assert (graph["3"]["inputs"]["text"], graph["4"]["inputs"]["text"]) == (text, "-")
    assert (graph["6"]["inputs"]["steps"], graph["6"]["inputs"]["cfg"], graph["5"]["inputs"]["width"]) == (8, 2.5, 128)
    assert graph["2"]["inputs"]["image"].startswith("comfyrelay/")


async def test_command_without_wait_only_queues(folder: Path, simulator: Simulator) -> None:
    options = ("--template-api", str(folder / "templates" / "wan.json"), "--input-subdir", "cats", "--positive", "x")
    with contextlib.chdir(folder / "input"):
        ran = await commands.run("batch-i2v", "--server", simulator.url, *options, env=os.environ)
    assert ran.code == 0
    assert ran.out.count("queued: ") == simulator.log.prompts_queued == 2


async def test_failed_input_is_reported_and_the_rest_runs(folder: Path, simulator: Simulator) -> None:
    simulator.misbehave(Fail(class_type="ImageAddNoise", message="no noise today", times=1))
    code, lines = await run(folder, simulator)
    assert code == 1
    assert "[1/2] Error: ImageAddNoise (2): no noise today" in lines
    assert len(saved(lines)) == 1


async def test_refused_graph_is_not_retried(folder: Path, simulator: Simulator) -> None:
    write(folder, NOISE | {"2": {"class_type": "ImageAddNoise", "inputs": {"image": ["1", 0], "seed": 1}}})
    code, lines = await run(folder, simulator)
    assert code == 1
    assert lines[-1] == "[1/2] Error: ImageAddNoise (2): input 'strength' is not connected"
    assert simulator.log.count("POST", "/prompt") == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--input-subdir", ".."], "without '..'"),
        (["--input-subdir", "/etc"], "not allowed"),
        (["--input-subdir", "."], "There is no image in '.'"),
        (["--template-api", "gone.json"], "cannot be read"),
        (["--profile", "lavish"], "There is no profile 'lavish'"),
        (["--set", "cfg"], "Write NODE.INPUT=VALUE"),
        (["--set", "99.cfg=1"], 'no node with the id or title "99"'),
        (["--server", "http://127.0.0.1:9"], "Is ComfyUI running there?"),
        (["--tries", "0"], "--tries"),
    ],
)
async def test_invalid_option_is_reported_and_nothing_runs(
    folder: Path, simulator: Simulator, options: list[str], reason: str
) -> None:
    code, lines = await run(folder, simulator, *options)
    assert code == 2
    assert reason in "\n".join(lines)
    assert simulator.log.prompts_queued == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stopping_the_script_stops_its_run_in_comfyui(
    folder: Path, simulator: Simulator, number: signal.Signals
) -> None:
    simulator.misbehave(Slow(class_type="ImageAddNoise", seconds=600, steps=60_000))
    running = await start(folder, simulator)
    async for piece in running.out:
        if b"cat" in piece:
            break
    await until(lambda: simulator.log.prompts_queued == 1)
    running.process.send_signal(number)
    assert (await running.ended()).code == 128 + number
    async with httpx.AsyncClient() as http:
        queue = (await http.get(f"{simulator.url}/queue")).json()
    assert not queue["queue_running"]
    assert not queue["queue_pending"]


async def test_redirected_output_has_no_terminal_codes(folder: Path, simulator: Simulator) -> None:
    simulator.misbehave(Slow(class_type="ImageAddNoise", seconds=0.5, steps=100))
    ran = await (await start(folder, simulator)).ended()
    assert "\r" not in ran.out + ran.err
    assert "\x1b" not in ran.out + ran.err
    tenths = [int(match[1]) // 10 for match in re.finditer(r"^\[1/2\] (\d+)%", ran.out, re.M)]
    assert len(tenths) > 3
    assert tenths == sorted(set(tenths))


@pytest.mark.journey
async def test_runner_runs_the_script_and_parses_its_output(folder: Path, simulator: Simulator) -> None:
    simulator.misbehave(Slow(class_type="ImageAddNoise", seconds=0.5, steps=10))
    heard = ScriptRun(settings_in(folder, script=None), folder / "log.txt", COMFYUI_BASE_URL=simulator.url)
    write(folder, NOISE)
    result = await heard.run(job(tries=2, extra_args=("--seed", "11")))
    assert (result.exit_code, result.error, result.seed) == (0, None, 14)
    assert result.outputs == sorted((folder / "work" / "output").iterdir())
    assert len(result.outputs) == 4
    reported = [(report.item, report.fraction) for report in heard.progress]
    assert {item for item, _ in reported} == {1, 2, 3, 4}
    assert reported == sorted(reported)
    assert any(0 < fraction < 0.25 for _, fraction in reported)
    assert reported[-1] == (4, 1.0)
    # there is one line per tenth, not per step
    assert len([line for line in heard.lines if "%" in line]) <= 4 * 11


async def test_runner_reports_the_script_error(folder: Path, simulator: Simulator) -> None:
    heard = ScriptRun(settings_in(folder, script=None), folder / "log.txt", COMFYUI_BASE_URL=simulator.url)
    write(folder, NOISE | {"2": {"class_type": "ImageAddNoise", "inputs": {"image": ["1", 0], "seed": 1}}})
    result = await heard.run()
    assert result.exit_code == 1
    assert result.error == "The script ended with exit code 1: ImageAddNoise (2): input 'strength' is not connected"


async def test_canceling_the_runner_stops_its_run_in_comfyui(folder: Path, simulator: Simulator) -> None:
    simulator.misbehave(Slow(class_type="ImageAddNoise", seconds=600, steps=60_000))
    heard = ScriptRun(settings_in(folder, script=None), folder / "log.txt", COMFYUI_BASE_URL=simulator.url)
    write(folder, NOISE)
    running = asyncio.create_task(heard.run())
    await until(lambda: simulator.log.prompts_queued == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with httpx.AsyncClient() as http:
        queue = (await http.get(f"{simulator.url}/queue")).json()
    assert not queue["queue_running"]
