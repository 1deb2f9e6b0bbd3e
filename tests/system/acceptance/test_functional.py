"""Jobs have parameters, a lifecycle, actions and results."""

import sys
from pathlib import Path

import pytest
from playwright.async_api import expect

from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.simulator import Fail
from tests.support.chromium import PageDriver
from tests.system.acceptance.script_desk import HELD, SCRIPT, SLOW, ScriptDesk, choose_option, choose_script

pytestmark = pytest.mark.asyncio(loop_scope="session")


# A job and its parameters


async def test_job_is_created_on_the_page_with_its_own_parameters(desk: ScriptDesk, page: PageDriver) -> None:
    """A form takes folder, prompt, negative prompt, profile, template, tries and seed for this job only.

    Where: [the form](../howto/desk.md#add-jobs); `desk/scripts/workflow.py`
    """
    form = await choose_script(page)
    await form.get_by_label("Positive").fill('a "cat" 🐈')
    await form.get_by_label("Negative").fill("blurry")
    await form.get_by_role("textbox", name="Input subdir").fill("dogs")
    await choose_option(form, "Template", "clip.json")
    await choose_option(form, "Profile", "production")
    await form.get_by_role("textbox", name="Tries").fill("2")
    await form.get_by_role("switch", name="Randomize seed").click()
    job_id = await desk.submit_form(page)
    assert (await desk.ended(job_id)).status == "completed"
    assert (await desk.last_attempt(job_id))["argv"] == [
        *(sys.executable, str(SCRIPT), "--wait", "--profile", "production"),
        *("--template-api", str(desk.comfyui.parent / "templates" / "clip.json"), "--input-subdir", "dogs"),
        *("--positive", 'a "cat" 🐈', "--negative", "blurry", "--tries", "2", "--randomize-seed"),
    ]


async def test_negative_prompt_is_optional(desk: ScriptDesk) -> None:
    """A job without a negative prompt runs, and its command does not contain one.

    Where: `desk/scripts/command.py`
    """
    job_id = await desk.script()
    assert (await desk.ended(job_id)).status == "completed"
    assert "--negative" not in (await desk.last_attempt(job_id))["argv"]


async def test_job_sets_its_number_of_tries(desk: ScriptDesk) -> None:
    """Every input runs as often as the job specifies, and each try creates a file.

    Where: `desk/scripts/command.py`, `desk/batches/expand.py`
    """
    job_id = await desk.script(tries=3, randomize_seed=True)
    assert (await desk.ended(job_id)).status == "completed"
    assert len((await desk.last_attempt(job_id))["outputs"]) == 3


async def test_seed_is_fixed_incremented_or_random(desk: ScriptDesk) -> None:
    """The job chooses how the runs of one input get their seeds.

    Where: `seeds` of a batch, `--seed-mode`; `desk/batches/expand.py`
    """
    seeded = await desk.client.add_graph(
        {
            "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 7}},
            "2": {"class_type": "ImageAddNoise", "inputs": {"image": ["1", 0], "seed": 1, "strength": 0.5}},
            "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}},
        },
        name="seeded",
    )

    async def seeds(mode: str) -> list[int | None]:
        wish = {"workflow_slug": seeded.data.slug, "tries": 3, "seeds": {"mode": mode, "start": 7}}
        batch = await desk.client.add_batch(wish)
        jobs = await desk.items(batch.id)
        assert [(await desk.ended(job)).status for job in jobs] == ["completed"] * 3
        return [(await desk.about(job)).attempts[0].seed for job in jobs]

    assert await seeds("fixed") == [7, 7, 7]
    assert await seeds("increment") == [7, 8, 9]
    assert len(set(await seeds("random"))) == 3


async def test_job_completes_only_after_its_run(desk: ScriptDesk) -> None:
    """The script waits for ComfyUI, so a completed job has created its files.

    Where: `desk/scripts/command.py`, `desk/scripts/server.py`
    """
    desk.simulator.misbehave(HELD)
    job_id = await desk.script()
    await desk.wait_for_log(job_id, "seed: ")
    await desk.until(lambda: desk.simulator.log.count("POST", "/prompt") > 0)
    assert await desk.status(job_id) == "processing"
    desk.simulator.behave()
    assert (await desk.ended(job_id)).status == "completed"
    attempt = await desk.last_attempt(job_id)
    assert attempt["argv"][2] == "--wait"
    assert Path(attempt["outputs"][0]).is_file()


# Lifecycle


async def test_job_is_pending_then_running_then_succeeded(desk: ScriptDesk, page: PageDriver) -> None:
    """Waiting, running and succeeded jobs are shown as such.

    Where: [state machine](state-machine.md)
    """
    desk.simulator.misbehave(HELD)
    first = await desk.graph("first")
    await desk.until_running(first)
    second = await desk.graph("second")
    await page.open_queue()
    await page.chip("Running", 1).click()
    await expect(page.names).to_have_text(["first"])
    await page.chip("Waiting", 1).click()
    await expect(page.names).to_have_text(["second"])
    desk.simulator.behave()
    assert [(await desk.ended(job_id)).status for job_id in (first, second)] == ["completed", "completed"]
    await page.chip("Done", 2).click()
    await expect(page.names).to_have_text(["second", "first"])
    await expect(page.unit("second")).to_contain_text("Done")


async def test_failing_job_is_failed(desk: ScriptDesk) -> None:
    """A job whose run cannot finish ends as failed.

    Where: [state machine](state-machine.md)
    """
    desk.simulator.misbehave(Fail(class_type="ImageInvert", message="The sides differ."))
    assert (await desk.ended(await desk.graph())).status == "failed"


async def test_stopped_job_is_canceled(desk: ScriptDesk) -> None:
    """A job that the user stops ends neither as failed nor as completed.

    Where: [state machine](state-machine.md)
    """
    desk.simulator.misbehave(SLOW)
    job_id = await desk.graph()
    await desk.until_running(job_id)
    await desk.client.cancel("job", job_id)
    assert (await desk.ended(job_id)).status == "canceled"


async def test_paused_job_does_not_run(desk: ScriptDesk) -> None:
    """A paused job keeps its place and does not run, even if nothing else runs.

    Where: [state machine](state-machine.md)
    """
    desk.simulator.misbehave(HELD)
    first, held = await desk.graph("first"), await desk.graph("held")
    await desk.until_running(first)
    await desk.client.pause("job", held, now=True)
    await desk.until_paused(held)
    desk.simulator.behave()
    await desk.ended(first)
    await desk.ended(await desk.graph("another"))
    assert await desk.status(held) == "paused"


# Actions


async def test_job_is_enqueued(desk: ScriptDesk) -> None:
    """A job is accepted while another runs, and gets a place in the queue.

    Where: `services/jobs/submission/submit.py`
    """
    desk.simulator.misbehave(SLOW)
    await desk.until_running(await desk.graph("running"))
    await desk.until_fetched(fetched := await desk.graph("fetched"))
    # a prefetched job waits like other jobs and is first in the queue
    waiting = [fetched, *[await desk.graph(f"job {number}") for number in range(3)]]
    places = [(await desk.client.job(job_id)).waiting for job_id in waiting]
    assert [place and place.position for place in places] == [1, 2, 3, 4]


async def test_canceled_waiting_job_never_runs(desk: ScriptDesk) -> None:
    """Canceling a waiting job removes it from the queue at once.

    Where: `cancel`; `services/queue/control.py`
    """
    desk.simulator.misbehave(HELD)
    await desk.until_running(await desk.graph("running"))
    job_id = await desk.graph("never")
    await desk.client.cancel("job", job_id)
    desk.simulator.behave()
    found = await desk.ended(job_id)
    assert (found.status, found.outputs) == ("canceled", [])
    assert not [line for line in await desk.log(job_id) if line.startswith("Running on")]


async def test_canceled_running_job_stops_its_run(desk: ScriptDesk) -> None:
    """Canceling a running job stops the script and its runs in ComfyUI.

    Where: `cancel`; `system/commands/process_group.py`, `desk/scripts/server.py`
    """
    desk.simulator.misbehave(SLOW)
    job_id = await desk.script()
    await desk.wait_for_log(job_id, "seed: ")
    await desk.client.cancel("job", job_id)
    assert (await desk.ended(job_id)).status == "canceled"
    # the GPU is free for the next job although the slow node would take ten minutes
    desk.simulator.behave()
    assert (await desk.ended(await desk.graph())).status == "completed"


async def test_paused_job_is_resumed(desk: ScriptDesk) -> None:
    """A paused job runs after it is resumed.

    Where: `resume`; `services/queue/control.py`
    """
    desk.simulator.misbehave(SLOW)
    await desk.until_running(first := await desk.graph("first"))
    held = await desk.graph("held")
    await desk.client.pause("job", held, now=True)
    await desk.until_paused(held)
    await desk.client.cancel("job", first)
    desk.simulator.behave()
    await desk.ended(first)
    await desk.client.resume("job", held)
    assert (await desk.ended(held)).status == "completed"


@pytest.mark.parametrize(
    "button", ["Pause after the current job", "Pause after current jobs"], ids=["of a batch", "of everything"]
)
async def test_pause_lets_the_running_item_finish(desk: ScriptDesk, page: PageDriver, button: str) -> None:
    """A pause stops the items after the running item, which loses no work.

    Where: `pause`; `domain/queue/lifecycle.py`
    """
    desk.simulator.misbehave(HELD)
    batch_id, [first, *_] = await desk.graphs(3)
    await desk.until_running(first)
    if button == "Pause after the current job":
        await page.page.goto(f"/queue?batch={batch_id}")
    else:
        await page.open_queue()
    await page.page.get_by_role("button", name=button).click()
    if button == "Pause after the current job":
        held = JobStatus.PAUSED
        await expect(page.chip("Paused", 2)).to_be_visible()
    else:
        held = JobStatus.QUEUED
        await expect(page.page.get_by_role("status", name="The queue is paused")).to_contain_text("It holds 2 jobs.")
    desk.simulator.behave()
    assert (await desk.ended(first)).status == "completed"
    counts = (await desk.client.batch(batch_id)).counts
    assert (counts[JobStatus.COMPLETED], counts[held]) == (1, 2)


async def test_immediate_pause_requeues_the_running_item(desk: ScriptDesk) -> None:
    """A pause with `now` frees the GPU; the item keeps its place, uses no attempt and runs after the resume.

    Where: `pause --now`; `worker/jobs/job.py`
    """
    desk.simulator.misbehave(SLOW)
    batch_id, [first, _] = await desk.graphs(2)
    await desk.until_running(first)
    await desk.client.pause("batch", batch_id, now=True)
    await desk.until_paused(first)
    desk.simulator.behave()
    # no other job could run while the slow node occupies the only GPU
    assert (await desk.ended(await desk.graph("in between"))).status == "completed"
    assert await desk.status(first) == "paused"
    await desk.client.resume("batch", batch_id)
    found = await desk.ended(first)
    assert (found.status, found.attempts) == ("completed", 1)


async def test_failed_job_is_retried(desk: ScriptDesk) -> None:
    """A failed job can run again with the same parameters, as a new job that refers to the failed one.

    Where: `retry`; `services/jobs/submission/submit.py`
    """
    desk.simulator.misbehave(Fail(class_type="ImageInvert", times=1))
    job_id = await desk.script(positive="a red cat", extra_args="--seed 5")
    assert (await desk.ended(job_id)).status == "failed"
    again = (await desk.client.retry("job", job_id)).data
    found = await desk.ended(again.id)
    assert (found.status, found.retry_of) == ("completed", job_id)
    assert (await desk.last_attempt(again.id))["argv"] == (await desk.last_attempt(job_id))["argv"]


async def test_jobs_are_moved_up_and_down(desk: ScriptDesk, page: PageDriver) -> None:
    """The user can order the queue, and jobs run in that order.

    Where: `move`; `domain/queue/ordering.py`
    """
    desk.simulator.misbehave(HELD)
    jobs = {name: await desk.graph(name) for name in ("running", "fetched", "one", "two", "three")}
    await page.open_queue()
    await expect(page.names).to_have_text(["running", "fetched", "one", "two", "three"])
    await page.do("three", "Move up")
    await expect(page.names).to_have_text(["running", "fetched", "one", "three", "two"])
    await page.do("one", "Move down")
    await expect(page.names).to_have_text(["running", "fetched", "three", "one", "two"])
    await desk.assert_run_order(jobs[name] for name in ("running", "fetched", "three", "one", "two"))


# Results


async def test_script_output_is_in_a_log_file_of_its_job(desk: ScriptDesk) -> None:
    """Standard output and standard error are kept with the job and in a file with a known path.

    Where: `desk/scripts/log.py`
    """
    job_id = await desk.script(profile="medium")
    await desk.ended(job_id)
    text = Path((await desk.last_attempt(job_id))["log"]).read_text("utf-8").splitlines()
    # the script writes the first line to standard error and the second to standard output
    for line in ("profile medium, 1 images", "[1/1] cat.png"):
        assert line in text
        assert line in await desk.log(job_id)
    other = await desk.script()
    await desk.ended(other)
    assert (await desk.last_attempt(other))["log"] != (await desk.last_attempt(job_id))["log"]


async def test_videos_saved_by_a_script_are_found_and_shown(desk: ScriptDesk, page: PageDriver) -> None:
    """Paths of saved files are read from the log; the video can be watched and downloaded on the page.

    Where: `desk/scripts/output_parser.py`
    """
    job_id = await desk.script(tries=2, randomize_seed=True)
    await desk.ended(job_id)
    outputs = [Path(path) for path in (await desk.last_attempt(job_id))["outputs"]]
    assert [output.suffix for output in outputs] == [".mp4", ".mp4"]
    assert all(output.is_file() and output.is_relative_to(desk.comfyui / "output") for output in outputs)
    await page.open_job(job_id)
    await expect(page.page.get_by_role("list", name="Outputs").get_by_role("button")).to_have_count(2)
    await expect(page.page.locator("main video").first).to_have_js_property("videoWidth", 64)
    async with page.page.expect_download() as downloading:
        await page.actions.get_by_role("link", name="Download").click()
    assert (await (await downloading.value).path()).read_bytes() == outputs[0].read_bytes()
