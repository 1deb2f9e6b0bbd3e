"""The page in a real browser, and the terminal."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from comfyrelay.simulator import Fail, SlowHttp
from tests.support.chromium import PageDriver, open_page
from tests.support.desk import make_desk
from tests.support.processes import run_command
from tests.support.server_processes import free_port
from tests.system.acceptance.script_desk import HELD, SLOW, ScriptDesk, choose_script

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_form_has_defaults(desk: ScriptDesk, page: PageDriver) -> None:
    """A job needs one prompt and one folder; everything else has a default.

    Where: [the form](../howto/desk.md#add-jobs)
    """
    form = await choose_script(page)
    await expect(form.get_by_role("combobox", name="Template")).to_have_text("clip.json")
    await expect(form.get_by_role("combobox", name="Profile")).to_have_text("look-dev")
    await form.get_by_label("Positive").fill("a cat")
    await form.get_by_role("textbox", name="Input subdir").fill("cats")
    assert (await desk.ended(await desk.submit_form(page))).status == "completed"


async def test_list_is_filtered_by_status(desk: ScriptDesk, page: PageDriver) -> None:
    """One click shows only waiting, running, completed, failed, canceled or paused jobs.

    Where: `jobs --status`
    """
    await desk.ended(await desk.graph("good"))
    desk.simulator.misbehave(Fail(class_type="ImageInvert", times=1))
    await desk.ended(await desk.graph("bad"))
    desk.simulator.misbehave(SLOW)
    await desk.until_running(await desk.graph("busy"))
    jobs = {name: await desk.graph(name) for name in ("next", "waiting", "held", "gone")}
    await desk.client.pause("job", jobs["held"])
    await desk.client.cancel("job", jobs["gone"])
    shown = {
        "Done": ["good"],
        "Failed": ["bad"],
        "Running": ["busy"],
        "Waiting": ["next", "waiting"],
        "Paused": ["held"],
        "Canceled": ["gone"],
    }
    await page.open_queue()
    for status, names in shown.items():
        await page.chip(status).click()
        await expect(page.names).to_have_text(names)


async def test_list_is_searchable(desk: ScriptDesk, page: PageDriver) -> None:
    """Terms of a label or an error find a job, in upper or lower case.

    Where: `jobs --search`
    """
    await desk.ended(await desk.graph("A red lighthouse"))
    desk.simulator.misbehave(Fail(class_type="ImageInvert", message="The sides differ.", times=1))
    await desk.ended(await desk.graph("A green boat"))
    await page.open_queue()
    search = page.page.get_by_role("searchbox")
    for words, found in (("LIGHT", "A red lighthouse"), ("sides diff", "A green boat")):
        await search.fill(words)
        await expect(page.names).to_have_text([found])


async def test_log_of_a_running_job_is_live(desk: ScriptDesk, page: PageDriver) -> None:
    """The page shows the script's output while the script runs.

    Where: `logs -f`
    """
    desk.simulator.misbehave(HELD)
    job_id = await desk.script(extra_args="--seed 123")
    await page.open_job(job_id)
    log = page.page.get_by_role("log")
    await expect(log).to_contain_text("seed: 123")
    await page.status_is("Running")
    await expect(log).not_to_contain_text("Saved video")
    desk.simulator.behave()
    await expect(log).to_contain_text("Saved video")
    await page.status_is("Done")


async def test_comfyui_refusal_is_shown_as_one_sentence(desk: ScriptDesk, page: PageDriver) -> None:
    """If ComfyUI refuses a graph with HTTP 400, the error names the faulty node rather than a status code.

    Where: `desk/scripts/errors.py`, `comfyui/graphs/explain.py`
    """
    job_id = await desk.script(template="refused.json")
    await page.open_job(job_id)
    await page.status_is("Failed")
    sentence = "ImageInvert (3): input 'image' is not connected"
    await expect(page.error.get_by_text(sentence, exact=True)).to_be_visible()


async def test_failed_node_is_named(desk: ScriptDesk, page: PageDriver) -> None:
    """If a node fails during the run, its name and message are shown first.

    Where: `comfyui/failures.py`
    """
    desk.simulator.misbehave(Fail(class_type="ImageInvert", message="The sides differ.", times=1))
    await page.open_job(await desk.graph("unlucky"))
    await page.status_is("Failed")
    await expect(page.error).to_have_text(re.compile("^ImageInvert.*The sides differ"))


async def test_timeout_is_named(desk: ScriptDesk, page: PageDriver) -> None:
    """A timeout of ComfyUI is distinguished from a refusal.

    Where: `desk/scripts/errors.py`
    """
    desk.simulator.misbehave(SlowHttp(path="/prompt", seconds=600))
    job_id = await desk.script(extra_args="--timeout 1")
    await page.open_job(job_id)
    await page.status_is("Failed")
    await expect(page.error).to_have_text(re.compile("^Timed out"))


async def test_unreachable_comfyui_is_shown_first(tmp_path: Path, chromium: Browser, built_app: None) -> None:
    """A job that waits for an unreachable server says so.

    Where: `waiting` of a job; `domain/queue/wait_reasons.py`
    """
    nobody = f"http://127.0.0.1:{free_port()}"
    settings = make_desk(tmp_path, comfyui_url=[nobody])
    async with settings.open() as (_worker, ready), open_page(chromium, ready.url) as page:
        why = f"No server listens at {nobody}. Is ComfyUI running there?"
        await expect(page.page.get_by_role("status", name="ComfyUI")).to_contain_text(why)
        (job_id,) = await page.submit("waits")
        await page.open_queue()
        await expect(page.unit("waits")).to_contain_text(why)
        await page.open_job(job_id)
        await expect(page.page.get_by_role("status").filter(has_text=why)).to_have_count(2)


async def test_script_command_is_shown_before_it_runs(desk: ScriptDesk, page: PageDriver) -> None:
    """The user sees the command and its errors before a job is added.

    Where: `ui/src/areas/create/command.ts`; `POST /api/desk/script/preview`
    """
    form = await choose_script(page)
    await form.get_by_label("Positive").fill("it's a cat")
    await form.get_by_role("textbox", name="Input subdir").fill("../elsewhere")
    command = page.page.get_by_role("region", name="Command")
    await expect(command).to_contain_text("is not allowed")
    await form.get_by_role("textbox", name="Input subdir").fill("cats")
    shown = command.get_by_role("list", name="Arguments")
    await expect(shown.locator("code").last).to_have_text("it's a cat")
    argv = await shown.locator("code").all_inner_texts()
    job_id = await desk.submit_form(page)
    assert (await desk.ended(job_id)).status == "completed"
    assert (await desk.last_attempt(job_id))["argv"] == argv


async def test_job_page_has_log_parameters_and_output(desk: ScriptDesk, page: PageDriver) -> None:
    """Everything about one job is on one page with its own address.

    Where: `/jobs/…`, `show`
    """
    job_id = await desk.script(positive="a cat yawns", profile="medium")
    await desk.ended(job_id)
    await page.open_job(job_id)
    await expect(page.page.get_by_role("log")).to_contain_text("[1/1] cat.png")
    values = page.page.locator("section", has=page.page.get_by_role("heading", name="Values"))
    for text in ("a cat yawns", "medium", "clip.json", "cats"):
        await expect(values).to_contain_text(text)
    await expect(page.page.locator("main video").first).to_be_visible()


async def test_queue_is_managed_in_a_terminal(desk: ScriptDesk) -> None:
    """Over SSH and without a browser, a command shows the queue and cancels a job.

    Where: `top`
    """
    desk.simulator.misbehave(SLOW)
    await desk.until_running(await desk.graph("busy"))
    await desk.until_fetched(waiting := await desk.graph("waiting one"))
    environment = {"COMFYRELAY_URL": desk.ready.url, "COLUMNS": "160"}
    log = desk.ready.data_dir / "commands.log"
    code, output = await run_command("top", "--once", environment=environment, log=log)
    assert code == 0, output
    for text in ("busy", "waiting one", "ImageInvert"):
        assert text in output
    assert (await run_command("cancel", waiting, environment=environment, log=log))[0] == 0
    assert (await desk.ended(waiting)).status == "canceled"
