"""Jobs cannot harm the user's machine, and everything is recorded for later review."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from comfyrelay.errors import ComfyRelayError
from comfyrelay.simulator import Fail
from tests.support.graphs import invert_file
from tests.system.acceptance.script_desk import HELD, SCRIPT, SLOW, ScriptDesk

pytestmark = pytest.mark.asyncio(loop_scope="session")

# All ways in which a path can lead out of a folder.
WAYS_OUT = ("..", "../..", "cats/../..", "/etc", "~/x", "link", "..\\..", "C:\\Windows")


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def links_that_escape(desk: ScriptDesk) -> AsyncIterator[None]:
    """Create links in the input and template folders that lead out of them."""
    links = [desk.desk.input_folder / "link", desk.comfyui.parent / "templates" / "link.json"]
    for link in links:
        link.symlink_to("/etc")
    yield
    for link in links:
        link.unlink()


# Paths


@pytest.mark.parametrize("path", WAYS_OUT)
async def test_input_folder_cannot_lead_outside(desk: ScriptDesk, path: str) -> None:
    """`..`, absolute paths and links are refused for scripts and batches before anything is added.

    Where: `desk/batches/folders.py`
    """
    with pytest.raises(ComfyRelayError) as refused:
        await desk.script(input_subdir=path)
    assert "input_subdir" in getattr(refused.value, "errors", {})
    with pytest.raises(ComfyRelayError) as refused:
        await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": path})
    assert "input_subdir" in getattr(refused.value, "errors", {})
    assert [job async for job in desk.client.jobs()] == []


@pytest.mark.parametrize("path", [*WAYS_OUT, "../comfyui/input/cats/cat.png", "link.json"])
async def test_template_cannot_be_outside_its_folder(desk: ScriptDesk, path: str) -> None:
    """A job names one of the graphs in the template folder; any other graph is refused.

    Where: `desk/scripts/command.py`
    """
    with pytest.raises(ComfyRelayError) as refused:
        await desk.script(template=path)
    assert "template" in getattr(refused.value, "errors", {})


@pytest.mark.parametrize("field", ["profile", "extra_args"])
@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "--template-api=/etc/passwd", "--seed=../x"])
async def test_script_parameter_cannot_be_a_path(desk: ScriptDesk, field: str, path: str) -> None:
    """Profiles come from the configuration, which also lists the allowed values of other options.

    Where: `desk/scripts/command.py`
    """
    with pytest.raises(ComfyRelayError) as refused:
        await desk.script(**{field: path})
    assert field in getattr(refused.value, "errors", {})


@pytest.mark.parametrize("path", ["../up", "/etc", "~/x", "C:\\x", "a/../../b"])
async def test_output_folder_cannot_lead_outside(desk: ScriptDesk, path: str) -> None:
    """A batch may have its own folder inside the configured output folder.

    Where: `desk/batches/output_copies.py`
    """
    with pytest.raises(ComfyRelayError) as refused:
        await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "cats", "output_folder": path})
    assert "output_folder" in getattr(refused.value, "errors", {})


async def test_user_text_never_becomes_a_path(desk: ScriptDesk, tmp_path: Path) -> None:
    """Labels and names of uploaded files are sanitized before they become part of a file name.

    Where: `desk/batches/output_copies.py`, `desk/batches/folders.py`
    """
    before = {*desk.desk.output_folder.parent.iterdir()} | {desk.desk.output_folder}
    content = (desk.desk.input_folder / "cats" / "cat.png").read_bytes()
    about = {"mime_type": "image/png", "size": len(content), "original_filename": "../../../evil.png"}
    begun = (await desk.http.post("/api/videos/uploads", json=about)).json()["data"]
    await desk.http.put(begun["upload_url"], content=content, headers=begun["upload_headers"])
    wish = {"effect_slug": "invert-image", "input_file_ids": [begun["file"]["id"]], "label": "1: ../../evil"}
    [item] = await desk.items((await desk.client.add_batch(wish)).id)
    await desk.ended(item)
    await desk.ended(job_id := await desk.graph("../../../evil"))
    assert {*desk.desk.output_folder.parent.iterdir()} == before
    for output_job in (item, job_id):
        [saved] = await desk.client.download_outputs(output_job, tmp_path)
        assert saved.parent == tmp_path
        [copied] = (await desk.about(output_job)).files
        assert Path(copied.path).resolve().is_relative_to(desk.desk.output_folder)


@pytest.mark.parametrize("name", ["/etc/passwd", "../../../etc/passwd", "cat.png [output]"])
async def test_imported_graph_asks_for_its_files(desk: ScriptDesk, name: str) -> None:
    """An imported graph works on the files of its job: each file that it names becomes a file to choose.

    Where: `services/forms/inputs.py`
    """
    workflow = await desk.client.add_graph(invert_file(name), name="mine")
    with pytest.raises(ComfyRelayError) as missing:
        await desk.client.submit(workflow_slug=workflow.data.slug, input_payload={"image": name})
    assert "image" in getattr(missing.value, "errors", {})


# Commands


async def test_user_text_is_never_read_by_a_shell(desk: ScriptDesk) -> None:
    """Arguments are a list: quotes, newlines, wildcards and commands in a prompt arrive as typed.

    Where: `system/commands/process_group.py`
    """
    prompt = "a \"cat\" 'n' dog; $(touch pwned) `touch pwned` | > pwned & * ~ \\ %s\n\n\tsecond line 🐈‍⬛"
    job_id = await desk.script(positive=prompt, negative="-rf /; touch pwned")
    assert (await desk.ended(job_id)).status == "completed"
    argv = (await desk.last_attempt(job_id))["argv"]
    assert argv[argv.index("--positive") + 1] == prompt
    assert "--negative=-rf /; touch pwned" in argv
    assert not [*desk.ready.data_dir.rglob("pwned")]


async def test_program_comes_only_from_the_configuration(desk: ScriptDesk) -> None:
    """A job cannot choose program, script, folder or variables.

    Where: `[desk.script]`; `desk/scripts/config.py`
    """
    for field in ("python", "script", "working_folder", "environment", "arguments"):
        with pytest.raises(ComfyRelayError) as refused:
            await desk.script(**{field: "/bin/sh"})
        assert field in getattr(refused.value, "errors", {})


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "http://[bad"}]
)
async def test_pages_of_other_sites_cannot_reach_the_desk(desk: ScriptDesk, headers: dict[str, str]) -> None:
    """By default, the desk listens only on this machine, and pages of other sites are refused.

    Where: `desk/origin_check.py`
    """
    assert desk.ready.url.startswith("http://127.0.0.1:")
    body = {"workflow_slug": "script", "input_payload": {"positive": "a cat"}, "idempotency_key": "evil"}
    assert (await desk.http.post("/api/ai-jobs", json=body, headers=headers)).status_code == 403
    assert (await desk.http.get("/api/desk/script", headers=headers)).status_code == 403
    assert [job async for job in desk.client.jobs()] == []


# Records


@pytest.mark.parametrize("outcome", ["completed", "failed", "canceled"])
async def test_every_command_is_recorded(desk: ScriptDesk, outcome: str) -> None:
    """The exact arguments of a run are kept with its attempt for every outcome, and the log starts with them.

    Where: `about` of an attempt, `show`
    """
    if outcome != "completed":
        desk.simulator.misbehave(SLOW if outcome == "canceled" else Fail(class_type="ImageInvert"))
    job_id = await desk.script(positive='it\'s a "cat"')
    if outcome == "canceled":
        await desk.wait_for_log(job_id, "seed: ")
        await desk.client.cancel("job", job_id)
    assert (await desk.ended(job_id)).status == outcome
    attempt = await desk.last_attempt(job_id)
    assert attempt["argv"][1:3] == [str(SCRIPT), "--wait"]
    assert attempt["argv"][attempt["argv"].index("--positive") + 1] == 'it\'s a "cat"'
    command, *_ = Path(attempt["log"]).read_text("utf-8").splitlines()
    assert command.startswith("$ ")
    assert """--positive 'it'"'"'s a "cat"'""" in command


async def test_every_log_is_kept(desk: ScriptDesk) -> None:
    """The output of a stopped run is kept in the file and with the job.

    Where: `job_logs`, `script/logs`
    """
    desk.simulator.misbehave(SLOW)
    job_id = await desk.script()
    await desk.wait_for_log(job_id, "seed: ")
    await desk.client.cancel("job", job_id)
    await desk.ended(job_id)
    assert "[1/1] cat.png" in await desk.log(job_id)
    assert "[1/1] cat.png" in Path((await desk.last_attempt(job_id))["log"]).read_text("utf-8").splitlines()


async def test_job_history_is_kept_in_order(desk: ScriptDesk) -> None:
    """Every step of a job is an event with its time, and events never change.

    Where: `job_events`
    """
    desk.simulator.misbehave(HELD)
    await desk.until_running(await desk.graph("running"))
    await desk.graph("next")
    job_id = await desk.graph("followed")
    await desk.client.pause("job", job_id)
    await desk.client.resume("job", job_id)
    desk.simulator.behave()
    await desk.ended(job_id)
    seen = [event async for event in desk.client.events(job_id) if event.id is not None]
    assert [event.type for event in seen] == [
        *("job:queued", "job:paused", "job:resumed", "job:started", "job:completed"),
    ]
    assert [event.id for event in seen] == sorted(event.id or 0 for event in seen)
    assert all(event.data["at"] for event in seen)
    [database] = [path for path in desk.ready.data_dir.glob("*.db") if "job_events" in _tables(path)]
    with (
        contextlib.closing(sqlite3.connect(database)) as opened,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        opened.execute("UPDATE job_events SET type = 'job:completed' WHERE job_id = ?", (job_id,))


def _tables(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
