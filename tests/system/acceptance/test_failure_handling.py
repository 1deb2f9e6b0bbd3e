"""Failures, and how the user recovers from them."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from comfyrelay.simulator import ErrorBeforeQueueing, Fail, OutOfMemory, Simulator, SlowHttp
from tests.support.chromium import PageDriver, open_page
from tests.support.graphs import invert
from tests.system.acceptance.script_desk import SLOW, ScriptDesk, config_in
from tests.system.desk.test_killed import desk_process

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_refused_graph_fails_the_job_and_names_the_node(desk: ScriptDesk) -> None:
    """HTTP 400 is recognized in the script's output; the job fails and names the faulty node and the reason.

    Where: `desk/scripts/errors.py`
    """
    job_id = await desk.script(template="refused.json")
    found = await desk.ended(job_id)
    assert (found.status, found.error) == ("failed", "ImageInvert (3): input 'image' is not connected")
    assert (await desk.last_attempt(job_id))["exit_code"] == 1
    # a retry would fail in the same way
    assert found.attempts == 1


async def test_refused_graph_has_the_same_error_without_a_script(desk: ScriptDesk) -> None:
    """The error is the same whether a script or the queue sent the graph.

    Where: `comfyui/graphs/explain.py`
    """
    wrong = {**invert(), "2": {"class_type": "ImageInvert", "inputs": {}}}
    workflow = await desk.client.add_graph(wrong, name="wrong")
    found = await desk.ended((await desk.client.submit(workflow_slug=workflow.data.slug)).id)
    assert (found.status, found.error) == ("failed", "ImageInvert (2): input 'image' is not connected")


async def test_nonzero_exit_code_fails_the_job_with_a_summary(desk: ScriptDesk) -> None:
    """The exit code decides, and the reason is a sentence from the output.

    Where: `desk/scripts/runner.py`, `desk/scripts/errors.py`
    """
    desk.simulator.misbehave(Fail(class_type="ImageInvert", message="The sides differ.", times=1))
    job_id = await desk.script()
    found = await desk.ended(job_id)
    assert found.status == "failed"
    assert "ImageInvert failed: The sides differ." in str(found.error)
    assert (await desk.last_attempt(job_id))["exit_code"] == 1


async def test_timeout_while_queueing_keeps_all_output_and_offers_a_retry(desk: ScriptDesk, page: PageDriver) -> None:
    """All output until the timeout is kept, and one click runs the job again.

    Where: `desk/scripts/log.py`
    """
    slow = desk.simulator.misbehave(SlowHttp(path="/prompt", seconds=600))
    # long enough for the retry to succeed on a busy machine
    job_id = await desk.script(extra_args="--timeout 5")
    found = await desk.ended(job_id)
    assert (found.status, str(found.error)[:9]) == ("failed", "Timed out")
    for log in (await desk.log(job_id), Path((await desk.last_attempt(job_id))["log"]).read_text().splitlines()):
        assert "[1/1] cat.png" in log
        assert [line for line in log if "Traceback" in line]
    slow.end()
    await page.open_job(job_id)
    await page.actions.get_by_role("button", name="Retry", exact=True).click()
    await page.status_is("Done")


@pytest.mark.parametrize("trouble", [ErrorBeforeQueueing(times=1), OutOfMemory(class_type="ImageInvert", times=1)])
async def test_temporary_error_is_retried(desk: ScriptDesk, trouble: ErrorBeforeQueueing | OutOfMemory) -> None:
    """A temporary error is retried automatically.

    Where: `domain/queue/blocks.py`, `domain/queue/lifecycle.py`
    """
    desk.simulator.misbehave(trouble)
    assert (await desk.ended(await desk.graph())).status == "completed"


async def test_retries_of_a_permanent_error_are_limited(desk: ScriptDesk) -> None:
    """Retries are limited, and each attempt is recorded.

    Where: `max_attempts`
    """
    desk.simulator.misbehave(Fail(class_type="ImageInvert", message="No space left on device"))
    job_id = await desk.graph()
    found = await desk.ended(job_id)
    assert (found.status, found.attempts) == ("failed", found.max_attempts)
    assert len((await desk.about(job_id)).attempts) == found.max_attempts


@pytest.mark.journey
async def test_interrupted_job_is_retried_with_one_click(tmp_path: Path, chromium: Browser, built_app: None) -> None:
    """After kill -9, no job remains running: if configured, a script job fails, and Retry finishes it.

    Where: `worker/state.py`; `interrupted_jobs`
    """
    config = config_in(tmp_path)
    async with Simulator(folder=tmp_path / "comfyui") as simulator:
        simulator.misbehave(SLOW)
        settings = {"input_folder": str(tmp_path / "comfyui" / "input"), "interrupted_jobs": "fail"}
        async with desk_process(tmp_path, simulator, config=config, **settings) as desk:
            payload = {"positive": "a cat", "input_subdir": "cats"}
            job = await desk.client.submit(workflow_slug="script", input_payload=payload, label="unlucky")
            async for line in desk.client.logs(job.id, is_followed=True):
                if line.line.startswith("seed:"):
                    break
            await desk.service.kill()
            simulator.behave()
            await desk.start()
            async with open_page(chromium, desk.client.url) as page:
                await page.open_job(job.id)
                await page.status_is("Failed")
                await expect(page.error).to_contain_text("killed")
                await page.actions.get_by_role("button", name="Retry", exact=True).click()
                await page.status_is("Done")
