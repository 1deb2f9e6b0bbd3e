"""Desk jobs that run the user's script are queued, shown, run, canceled and stored like any other job."""

import asyncio
import json
import os
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from comfyrelay.client import AboutJob
from comfyrelay.desk.scripts.config import load_script_table
from comfyrelay.desk.settings import load_desk_settings
from comfyrelay.errors import ComfyRelayError, ConfigurationError
from comfyrelay.simulator import Simulator, Slow
from tests.support.api_calls import png
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.desk_owner import owner_http
from tests.support.graphs import MP4, invert
from tests.support.script_runs import is_alive, until
from tests.support.world import PATIENCE_SECONDS
from tests.system.desk.test_batch_i2v_script import NOISE

SAVES = """
    import pathlib, sys
    print("seed: 41")
    print("[1/2] 50%")
    for number in (1, 2):
        path = pathlib.Path(f"made {number}.png").absolute()
        path.write_bytes(bytes.fromhex(sys.argv[sys.argv.index("--hex") + 1]) if "--hex" in sys.argv else PICTURE)
        print("saved:", path)
"""
WAITS = """
    import os, pathlib, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}")
    print("seed: 18446744073709551615")
    print("waiting", flush=True)
    time.sleep(600)
"""
# A script written without knowledge of ComfyRelay: it waits for its prompt, and ignores interruptions.
UNCHANGED = """
    import json, os, time, urllib.request
    base = os.environ["COMFYUI_BASE_URL"]
    graph = json.loads(GRAPH)
    body = json.dumps({"prompt": graph}).encode()
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(base + "/prompt", body, headers)).read()
    print("queued", flush=True)
    time.sleep(600)
"""


@asynccontextmanager
async def open_script_desk(
    folder: Path, source: str | None = None, *, desk: Mapping[str, Any] | None = None, **script: Any
) -> AsyncIterator[OpenDesk]:
    """Open a desk whose script has this source, or by default with the shipped script."""
    table: dict[str, Any] = {"output_extension": "png", "grace_seconds": 5, **script}
    (folder / "templates").mkdir(parents=True, exist_ok=True)
    (folder / "templates" / "wan.json").write_text(json.dumps(NOISE))
    table["template_folder"] = str(folder / "templates")
    if source is not None:
        (folder / "mine.py").write_text(f"PICTURE = {png('#112233')!r}\n{textwrap.dedent(source)}", "utf-8")
        table["script"] = str(folder / "mine.py")
    closed_desk = make_desk(folder / "desk", **(desk or {}))
    closed_desk.script = table
    cats = closed_desk.input_folder / "cats"
    cats.mkdir(parents=True, exist_ok=True)
    (cats / "cat.png").write_bytes(png("#445566"))
    async with open_desk(closed_desk) as opened:
        yield opened


async def submit(desk: OpenDesk, **values: Any) -> str:
    payload = {"positive": "a cat", "input_subdir": "cats", **values}
    return str((await desk.client.submit(workflow_slug="script", input_payload=payload)).id)


async def about_job(desk: OpenDesk, job_id: str) -> AboutJob:
    found = await desk.client.about(job_id)
    assert found is not None
    return found


async def log_lines(desk: OpenDesk, job_id: str) -> list[str]:
    return [log.line async for log in desk.client.logs(job_id)]


async def wait_for_log(desk: OpenDesk, job_id: str, line: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for log in desk.client.logs(job_id, is_followed=True):
            if log.line == line:
                return


def pids(desk: OpenDesk) -> list[int]:
    return [int(pid) for pid in (desk.ready.data_dir / "script" / "pids").read_text().split()]


async def test_script_job_keeps_command_files_seed_exit_code_and_log(tmp_path: Path) -> None:
    async with open_script_desk(tmp_path, SAVES) as desk:
        prompt = 'a "cat", it\'s 50% 🐈\n../../etc/passwd /etc/x.png'
        job_id = await submit(desk, positive=prompt, negative="dogs", tries=3, randomize_seed=True)
        found = await desk.ended(job_id)
        assert (found.status, found.error) == ("completed", None)
        saved = await desk.client.download_outputs(job_id, tmp_path)
        assert [path.read_bytes() for path in saved] == [png("#112233")] * 2
        about = await about_job(desk, job_id)
        details = about.output_metadata or {}
        work = desk.ready.data_dir / "script"
        assert details["argv"][1:] == [
            *(str(tmp_path / "mine.py"), "--wait", "--profile", "look-dev"),
            *("--template-api", str(tmp_path / "templates" / "wan.json"), "--input-subdir", "cats"),
            *("--positive", prompt, "--negative", "dogs", "--tries", "3", "--randomize-seed"),
        ]
        assert [file.path for file in about.files] == [str(work / "made 1.png"), str(work / "made 2.png")]
        assert (details["exit_code"], details["outputs"]) == (0, [str(work / "made 1.png"), str(work / "made 2.png")])
        [attempt] = about.attempts
        assert attempt.seed == 41
        assert all(
            (attempt.about or {})[key] == details[key] for key in ("argv", "exit_code", "outputs", "seed", "log")
        )
        lines = await log_lines(desk, job_id)
        assert [line for line in lines if line.startswith("$ ")]
        assert f"saved: {work / 'made 2.png'}" in lines
        assert f"saved: {work / 'made 2.png'}" in Path(details["log"]).read_text("utf-8").splitlines()
        # files saved by the script belong to the user and are kept
        assert (work / "made 1.png").is_file()


async def test_every_video_of_a_script_is_an_output(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(MP4)
    source = f"""
        import pathlib, shutil
        for number in range(1, 5):
            path = pathlib.Path(f"made {{number}}.mp4").absolute()
            shutil.copy({str(tmp_path / "clip.mp4")!r}, path)
            print("saved:", path)
    """
    async with open_script_desk(tmp_path, source, output_extension="mp4") as desk:
        found = await desk.ended(await submit(desk))
        assert [(output.number, output.mime_type) for output in found.outputs] == [
            (number, "video/mp4") for number in (1, 2, 3, 4)
        ]
        assert all(output.poster_url and output.seconds for output in found.outputs)
        assert [file.output_number for file in (await about_job(desk, found.id)).files] == [1, 2, 3, 4]
        async with owner_http(desk.ready.url) as http:
            items = (await http.get("/api/gallery", params={"kind": "video"})).json()["data"]["items"]
        assert {item["id"] for item in items} == {output.file_id for output in found.outputs}


async def test_script_progress_is_reported(tmp_path: Path) -> None:
    source = "print('[1/4] 50%', flush=True)\nimport time\ntime.sleep(600)"
    async with open_script_desk(tmp_path, source, desk={"shutdown_seconds": 0}) as desk:
        job_id = await submit(desk)
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in desk.client.events(job_id):
                if event.type == "progress" and event.data["value"] > 0:
                    assert (event.data["value"], event.data["step"], event.data["steps"]) == (0.125, 1.0, 4.0)
                    break
        await desk.client.cancel("job", job_id)
        assert (await desk.ended(job_id)).status == "canceled"


async def test_shipped_script_runs_against_the_comfyui_of_the_desk(tmp_path: Path) -> None:
    async with open_script_desk(tmp_path) as desk:
        job_id = await submit(desk, profile="production", extra_args="--seed 7")
        found = await desk.ended(job_id)
        assert (found.status, found.error) == ("completed", None)
        about = await about_job(desk, job_id)
        assert [attempt.seed for attempt in about.attempts] == [7]
        assert await desk.client.download_outputs(job_id, tmp_path)


async def test_failed_script_reports_its_error_and_runs_again_only_on_request(tmp_path: Path) -> None:
    source = """
    import pathlib
    if not pathlib.Path("fixed").exists():
        print("seed: 9")
        raise SystemExit("Error: the template has no prompt")
    """
    async with open_script_desk(tmp_path, source + SAVES) as desk:
        job_id = await submit(desk)
        job = await desk.ended(job_id)
        assert (job.status, job.attempts) == ("failed", 1)
        assert job.error == "The script ended with exit code 1: the template has no prompt"
        about = await about_job(desk, job_id)
        raw = json.loads(json.loads(about.error_detail or "")["raw"])
        assert (raw["exit_code"], raw["seed"], raw["argv"][1]) == (1, 9, str(tmp_path / "mine.py"))
        [attempt] = about.attempts
        assert (attempt.seed, attempt.about) == (9, raw)
        (desk.ready.data_dir / "script" / "fixed").touch()
        retried = (await desk.client.retry("job", job_id)).data
        assert (await desk.ended(retried.id)).status == "completed"


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        ({"class_type": "ImageInvert", "inputs": {}}, "ImageInvert (1): Required input is missing: image"),
        ({"class_type": "Gone", "inputs": {}}, "Gone (1): this node is not installed on the server"),
    ],
)
async def test_refused_graph_error_names_the_node_if_the_script_does_not(
    tmp_path: Path, node: dict[str, Any], sentence: str
) -> None:
    graph = {"1": node, "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}}}
    async with open_script_desk(tmp_path, UNCHANGED.replace("GRAPH", repr(json.dumps(graph)))) as desk:
        ended = await desk.ended(await submit(desk))
        assert (ended.status, ended.error) == ("failed", sentence)


async def test_script_without_outputs_fails_with_a_hint(tmp_path: Path) -> None:
    async with open_script_desk(tmp_path, "print('done')") as desk:
        found = await desk.ended(await submit(desk))
        assert found.status == "failed"
        assert "printed no path of a file that it saved" in str(found.error)


async def test_unannounced_script_outputs_are_found_in_its_output_folder(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "old.png").write_bytes(b"of last week")
    os.utime(made / "old.png", (1, 1))
    source = f"import pathlib\npathlib.Path({str(made)!r}, 'new.png').write_bytes(PICTURE)"
    async with open_script_desk(tmp_path, source, output_folder=str(made)) as desk:
        job_id = await submit(desk)
        assert (await desk.ended(job_id)).status == "completed"
        assert ((await about_job(desk, job_id)).output_metadata or {})["outputs"] == [str(made / "new.png")]


@pytest.mark.parametrize("action", ["cancel", "pause"])
async def test_stopped_script_ends_with_its_processes_and_keeps_command_exit_code_and_seed(
    action: str, tmp_path: Path
) -> None:
    async with open_script_desk(tmp_path, WAITS) as desk:
        job_id = await submit(desk, positive='it\'s "so"\n🐈', tries=2)
        await wait_for_log(desk, job_id, "waiting")
        running = pids(desk)
        assert [is_alive(pid) for pid in running] == [True, True]
        if action == "cancel":
            await desk.client.cancel("job", job_id)
            assert (await desk.ended(job_id)).status == "canceled"
        else:
            await desk.client.pause("job", job_id, now=True)
            async with asyncio.timeout(PATIENCE_SECONDS):
                async for event in desk.client.events(job_id):
                    if event.type == "job:paused":
                        break
        await until(lambda: not any(map(is_alive, running)))
        [attempt] = (await about_job(desk, job_id)).attempts
        assert attempt.outcome == ("canceled" if action == "cancel" else "requeued")
        details = attempt.about or {}
        assert details["argv"][1:] == [
            *(str(tmp_path / "mine.py"), "--wait", "--profile", "look-dev"),
            *("--template-api", str(tmp_path / "templates" / "wan.json"), "--input-subdir", "cats"),
            *("--positive", 'it\'s "so"\n🐈', "--tries", "2"),
        ]
        # terminated by SIGTERM
        assert details["exit_code"] == 128 + 15
        assert attempt.seed == details["seed"] == 2**64 - 1
        assert "waiting" in Path(details["log"]).read_text("utf-8").splitlines()


async def test_closing_desk_ends_the_script_and_its_processes(tmp_path: Path) -> None:
    async with open_script_desk(tmp_path, WAITS, desk={"shutdown_seconds": 0}) as desk:
        await wait_for_log(desk, await submit(desk), "waiting")
        running = pids(desk)
        assert [is_alive(pid) for pid in running] == [True, True]
    assert [is_alive(pid) for pid in running] == [False, False]


async def test_only_comfyui_runs_of_the_stopped_script_are_interrupted(tmp_path: Path) -> None:
    async with Simulator() as simulator, httpx.AsyncClient(base_url=simulator.url) as http:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=600))
        source = UNCHANGED.replace("GRAPH", repr(json.dumps(invert())))
        async with open_script_desk(tmp_path, source, desk={"comfyui_url": [simulator.url]}) as desk:
            before = await queue_prompt(http, {"prompt": invert()})
            job_id = await submit(desk)
            await wait_for_log(desk, job_id, "queued")
            from_editor = await queue_prompt(
                http, {"prompt": invert(), "extra_data": {"extra_pnginfo": {"workflow": {}}}}
            )
            assert len(await queued_prompts(http)) == 3
            await desk.client.cancel("job", job_id)
            assert (await desk.ended(job_id)).status == "canceled"
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(await queued_prompts(http)) > 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert await queued_prompts(http) == {before, from_editor}
        simulator.behave()


async def test_unchanged_script_reaches_the_built_in_simulator(tmp_path: Path) -> None:
    """The simulator has a secret, which the address in the environment contains."""
    async with open_script_desk(tmp_path, UNCHANGED.replace("GRAPH", repr(json.dumps(invert())))) as desk:
        job_id = await submit(desk)
        await wait_for_log(desk, job_id, "queued")
        await desk.client.cancel("job", job_id)
        assert (await desk.ended(job_id)).status == "canceled"


async def queue_prompt(http: httpx.AsyncClient, body: Mapping[str, Any]) -> str:
    return str((await http.post("/prompt", json=body)).raise_for_status().json()["prompt_id"])


async def queued_prompts(http: httpx.AsyncClient) -> set[str]:
    queue = (await http.get("/queue")).json()
    return {item[1] for item in (*queue["queue_running"], *queue["queue_pending"])}


async def test_script_and_a_graph_do_not_run_at_the_same_time(tmp_path: Path) -> None:
    async with open_script_desk(tmp_path, WAITS, desk={"shutdown_seconds": 0}) as desk:
        script = await submit(desk)
        await wait_for_log(desk, script, "waiting")
        slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
        graph = (await desk.client.submit(workflow_slug=slug)).id
        # the job is leased to prefetch its inputs, and waits for the GPU
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in desk.client.events(graph):
                if event.type == "job:started":
                    break
        assert [line for line in await log_lines(desk, graph) if line.startswith("Running on")] == []
        await desk.client.cancel("job", script)
        assert (await desk.ended(graph)).status == "completed"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def refusing_desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenDesk]:
    """Share one desk among all refused submissions, because they change nothing."""
    folder = tmp_path_factory.mktemp("refusing")
    async with open_script_desk(folder, SAVES) as desk:
        (desk.desk.input_folder / "link").symlink_to(folder)
        (folder / "secret.json").write_text("{}")
        yield desk


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"input_subdir": ".."}, "input_subdir"),
        ({"input_subdir": "/etc"}, "input_subdir"),
        ({"input_subdir": "cats/../.."}, "input_subdir"),
        ({"input_subdir": "link"}, "input_subdir"),
        ({"template": "../secret.json"}, "template"),
        ({"template": "/etc/passwd"}, "template"),
        ({"profile": "../x"}, "profile"),
        ({"extra_args": "--template-api /etc/passwd"}, "extra_args"),
        ({"extra_args": "--seed 'x"}, "extra_args"),
        ({"extra_args": "--seed ../x"}, "extra_args"),
        ({"tries": 0}, "tries"),
        ({"tries": 1.5}, "tries"),
        ({"positive": "x" * 200_000}, "positive"),
        ({"python": "/bin/sh"}, "python"),
        ({"script": "/tmp/x.py"}, "script"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_path_outside_the_allowed_folders_is_refused_on_submission(
    values: dict[str, Any], field: str, refusing_desk: OpenDesk
) -> None:
    with pytest.raises(ComfyRelayError) as refused:
        await submit(refusing_desk, **values)
    assert field in getattr(refused.value, "errors", {})
    assert [job async for job in refusing_desk.client.jobs()] == []


async def test_batch_of_scripts_uses_prompts_and_preset(tmp_path: Path) -> None:
    async with open_script_desk(tmp_path, SAVES) as desk:
        await desk.client.create_preset("best", {"profile": "production"})
        batch = await desk.client.add_batch(
            {"workflow_slug": "script", "input_subdir": "cats", "prompts": ["one", "two"], "preset": "best"}
        )
        assert batch.total == 2
        jobs = [job async for job in desk.client.jobs(batch_id=batch.id)]
        for job in sorted(jobs, key=lambda job: job.item_no):
            assert (await desk.ended(job.id)).status == "completed"
            argv = ((await about_job(desk, job.id)).output_metadata or {})["argv"]
            assert [argv[argv.index(name) + 1] for name in ("--profile", "--input-subdir")] == ["production", "cats"]
            assert argv[argv.index("--positive") + 1] == ("one", "two")[job.item_no]


async def test_configuration_and_command_are_shown_before_a_run(tmp_path: Path) -> None:
    async with (
        open_script_desk(tmp_path, SAVES, environment={"KEY": "secret"}) as desk,
        owner_http(desk.ready.url) as http,
    ):
        url = "/api/desk/script"
        answer = await http.get(url)
        shown = answer.json()["data"]
        assert (shown["script"], shown["templates"]) == (str(tmp_path / "mine.py"), ["wan.json"])
        assert (shown["profiles"][0], shown["default_profile"]) == ("look-dev", "look-dev")
        assert shown["environment"] == ["KEY"]
        assert "secret" not in answer.text
        wish = {"template": "wan.json", "input_subdir": "cats", "positive": "it's a cat"}
        preview = (await http.post(f"{url}/preview", json=wish)).json()["data"]
        assert preview["argv"][-2:] == ["--positive", "it's a cat"]
        assert preview["command"].endswith("""--positive 'it'"'"'s a cat'""")
        for wrong in ({"input_subdir": "../x"}, {"template": "../x.json"}, {"python": "/bin/sh"}):
            assert (await http.post(f"{url}/preview", json={**wish, **wrong})).status_code == 422
        foreign = {"Origin": "https://evil.example"}
        assert (await http.post(f"{url}/preview", json=wish, headers=foreign)).status_code == 403
        assert [job async for job in desk.client.jobs()] == []


async def test_script_is_disabled_until_it_is_configured(tmp_path: Path) -> None:
    async with open_script_desk(tmp_path, SAVES) as desk:
        assert [workflow.slug for workflow in await desk.client.workflows()] == ["script"]
        assert (await desk.ended(await submit(desk))).status == "completed"
    async with open_desk(make_desk(tmp_path / "desk")) as desk, owner_http(desk.ready.url) as http:
        with pytest.raises(ComfyRelayError, match="disabled"):
            await desk.client.submit(workflow_slug="script", input_payload={"positive": "a cat"})
        assert (await http.get("/api/desk/script")).status_code == 404
    (tmp_path / "templates" / "another.json").write_text(json.dumps(NOISE))
    async with open_script_desk(tmp_path, SAVES) as desk:
        assert (await desk.ended(await submit(desk, template="another.json"))).status == "completed"


# Settings


def test_script_is_configured_in_the_file_and_never_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFYRELAY_DESK_SCRIPT", '{"script": "/tmp/evil.py"}')
    monkeypatch.setenv("COMFYRELAY_DESK_SCRIPT__SCRIPT", "/tmp/evil.py")
    monkeypatch.setenv("COMFYRELAY_CONFIG", str(tmp_path / "comfyrelay.toml"))
    (tmp_path / "comfyrelay.toml").write_text("[desk]\nprefetch = 2\n")
    assert load_script_table() is None
    assert load_desk_settings().prefetch == 2
    (tmp_path / "comfyrelay.toml").write_text("[desk]\nprefetch = 3\n[desk.script]\nscript = 'mine.py'\n")
    assert load_script_table() == {"script": "mine.py"}
    assert load_desk_settings().prefetch == 3
    (tmp_path / "comfyrelay.toml").write_text("[desk]\nscript = 'mine.py'\n")
    with pytest.raises(ConfigurationError, match=r"\[desk.script\] must be a table"):
        load_script_table()


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"script": "nowhere.py"}, "script: .*/desk/nowhere.py is not a file"),
        ({"python": "/nowhere/python"}, "python: .* is not a program"),
        ({"pyton": "x"}, "pyton"),
        ({"profiles": []}, "at least one is required"),
    ],
)
async def test_desk_with_an_invalid_script_does_not_start(table: dict[str, Any], why: str, tmp_path: Path) -> None:
    desk = make_desk(tmp_path / "desk")
    desk.script = table
    with pytest.raises(ConfigurationError, match=why):
        async with desk.open():
            pass


async def test_empty_table_enables_the_shipped_script(tmp_path: Path) -> None:
    closed_desk = make_desk(tmp_path)
    closed_desk.script = {}
    async with open_desk(closed_desk) as desk:
        job_id = await submit(desk, input_subdir="examples")
        job = await desk.ended(job_id)
        assert (job.status, job.error) == ("completed", None)
        [saved] = await desk.client.download_outputs(job_id, tmp_path)
        assert saved.suffix == ".mp4"


# A script that prints its arguments and the files that it finds.
READS = """
    import json, pathlib, sys
    words = dict(zip(sys.argv, sys.argv[1:]))
    inputs = pathlib.Path(INPUTS) / words["--input-subdir"]
    print("colours", sorted(path.read_bytes().hex()[:8] + path.name for path in inputs.iterdir()))
    print("template", json.loads(pathlib.Path(words["--template-api"]).read_text()))
    print("arguments", [word for word in sys.argv if word.startswith(("--mine", "--seed", "--randomize"))])
    made = pathlib.Path("made.png").absolute()
    made.write_bytes(PICTURE)
    print("saved:", made)
"""


async def test_script_job_uses_the_script_and_inputs_from_its_submission(tmp_path: Path) -> None:
    inputs = tmp_path / "desk" / "inputs" / "cats"
    source = READS.replace("INPUTS", repr(str(inputs.parent)))
    async with open_script_desk(tmp_path, source, arguments=["--mine=1"]) as desk:
        first = await desk.ended(await submit(desk))
        assert first.status == "completed", first.error
        before = [line for line in await log_lines(desk, first.id) if line.startswith(("colours", "template", "argum"))]
        waiting = await submit(desk)
        await desk.client.pause("job", waiting, now=True)
    (inputs / "cat.png").write_bytes(b"another picture")
    (inputs / "dog.png").write_bytes(b"one more")
    async with open_script_desk(tmp_path, source, arguments=["--mine=2"]) as desk:
        (inputs / "cat.png").write_bytes(b"another picture")
        (tmp_path / "templates" / "wan.json").write_text("{}")
        again = [(await desk.client.rerun_job(first.id)).data.id]
        if (await desk.client.job(waiting)).status == "paused":
            # otherwise the job ended before the pause
            again.append((await desk.client.resume("job", waiting)).data.id)
        for job_id in again:
            assert (await desk.ended(job_id)).status == "completed"
            lines = await log_lines(desk, job_id)
            found = [line for line in lines if line.startswith(("colours", "template", "argum"))]
            # a job that had started before the pause has already printed some of these lines
            earlier = found[: -len(before)]
            assert found[len(earlier) :] == before
            assert earlier == (before[: len(earlier)] if job_id == waiting else [])
            assert any("have changed" in line for line in lines)
        now = await desk.ended(await submit(desk))
        lines = await log_lines(desk, now.id)
        assert "template {}" in lines
        assert "arguments ['--mine=2']" in lines
        assert not any("have changed" in line for line in lines)


async def test_unused_frozen_inputs_are_deleted(tmp_path: Path) -> None:
    async with open_script_desk(tmp_path, SAVES) as desk:
        old, new = await desk.ended(await submit(desk)), desk.desk.input_folder / "cats" / "new.png"
        new.write_bytes(png("#000000"))
        await desk.ended(await submit(desk))
        await desk.client.delete_job(old.id)
        frozen = desk.desk.input_folder / ".comfyrelay"
        assert len(list(frozen.iterdir())) == 2
        for folder in frozen.iterdir():
            os.utime(folder, (0, 0))
    async with open_script_desk(tmp_path, SAVES) as desk, asyncio.timeout(PATIENCE_SECONDS):
        while len(list(frozen.iterdir())) != 1:  # noqa: ASYNC110  (files send no event)
            await asyncio.sleep(0.05)
        [[cats]] = [list(folder.iterdir()) for folder in frozen.iterdir()]
        assert sorted(path.name for path in cats.iterdir()) == ["cat.png", "new.png"]


async def test_rerun_with_new_seeds_lets_the_script_draw_them(tmp_path: Path) -> None:
    async with open_script_desk(tmp_path, READS.replace("INPUTS", repr(str(tmp_path / "desk" / "inputs")))) as desk:
        first = await desk.ended(await submit(desk, extra_args="--seed 7"))
        assert "arguments ['--seed']" in await log_lines(desk, first.id)
        again = await desk.ended((await desk.client.rerun_job(first.id, new_seeds=True)).data.id)
        assert "arguments ['--randomize-seed']" in await log_lines(desk, again.id)
