"""Jobs and batches offer actions, carry them out, and show server errors."""

import re
from typing import Any

import pytest
from playwright.async_api import Locator, expect

from tests.support.chromium import PROMPT_GRAPH, PageDriver

pytestmark = pytest.mark.asyncio(loop_scope="session")

SLOW = {"class_type": "ImageInvert", "seconds": 600, "steps": 600}


async def open_batch(driver: PageDriver, batch_id: str) -> Locator:
    """Open a batch in the side panel of the queue."""
    await driver.page.goto(f"/queue?batch={batch_id}")
    panel = driver.page.get_by_role("complementary")
    await expect(panel.get_by_role("progressbar", name="Batch progress")).to_be_visible()
    return panel


async def offered(driver: PageDriver, label: str, *verbs: str) -> None:
    """Check that the menu of a queue entry offers exactly these actions."""
    await driver.page.get_by_role("button", name=f"Actions for {label}", exact=True).click()
    await expect(driver.page.get_by_role("menuitem")).to_have_text(list(verbs))
    await driver.page.keyboard.press("Escape")
    await expect(driver.page.get_by_role("menuitem")).to_have_count(0)


async def items(driver: PageDriver, batch_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await driver.call("GET", f"/api/ai-jobs?batch_id={batch_id}"))["items"]
    return found


async def test_running_job_is_canceled_and_retried_by_keys(shared: PageDriver) -> None:
    await shared.misbehave("Slow", **SLOW)
    await shared.submit("long one")
    await shared.open_queue()
    slot = shared.page.get_by_role("article")
    await expect(slot).to_contain_text(re.compile(r"ImageInvert.*step \d+ of 600"))
    await expect(shared.unit("long one")).to_have_attribute("data-status", "running")
    await shared.page.keyboard.press("j")
    await shared.page.keyboard.press("Delete")
    await expect(shared.unit("long one")).to_have_attribute("data-status", "canceled")
    await expect(slot).to_contain_text("Idle")
    await shared.behave()
    await shared.page.keyboard.press("r")
    await expect(shared.units.first).to_have_attribute("data-status", "completed")
    await expect(shared.units.last).to_have_attribute("data-status", "canceled")


async def test_paused_queue_holds_all_jobs_until_it_is_resumed(shared: PageDriver) -> None:
    await shared.misbehave("Slow", **SLOW)
    await shared.submit("running", "fetched", "waiting")
    await shared.open_queue()
    await expect(shared.unit("running")).to_have_attribute("data-status", "running")
    await shared.page.get_by_role("button", name="Queue actions").click()
    await shared.page.get_by_role("menuitem", name="Pause now").click()
    notice = shared.page.get_by_role("status", name="The queue is paused")
    await expect(notice).to_contain_text("The queue is paused. It holds 3 jobs.")
    await expect(shared.unit("running")).to_contain_text("Queue paused")
    await shared.behave()
    # the notice, the title of the tab and the count follow on every page
    await shared.page.goto("/gallery")
    await shared.submit("added later")
    await expect(notice).to_contain_text("It holds 4 jobs.")
    await expect(shared.page).to_have_title(re.compile(r"^⏸ \(4\) "))
    await notice.get_by_role("button", name="Resume queue").click()
    await expect(notice).to_be_empty()
    await shared.open_queue()
    await expect(shared.chip("Done", 4)).to_be_visible()


async def test_partly_canceled_batch_resumes_in_order(shared: PageDriver) -> None:
    await shared.misbehave("Slow", **SLOW)
    batch_id = await shared.submit_batch("lakes", ["one", "two", "three", "four"])
    await shared.call("POST", f"/api/batches/{batch_id}/cancel")
    await shared.open_queue()
    await expect(shared.unit("lakes")).to_have_attribute("data-status", "canceled")
    await shared.behave()
    [second] = [item for item in await items(shared, batch_id) if item["label"] == "two"]
    again = await shared.call("POST", f"/api/ai-jobs/{second['id']}/retry")
    await shared.ended(again["id"])
    await expect(shared.unit("lakes")).to_contain_text("1 of 4 done")
    await expect(shared.unit("lakes")).to_have_attribute("data-status", "canceled")
    await offered(shared, "lakes", "Retry 3 canceled", "Run all again", "Delete")
    await shared.do("lakes", "Retry 3 canceled")
    await expect(shared.page.get_by_text("3 jobs retried.", exact=True).first).to_be_visible()
    await expect(shared.unit("lakes")).to_have_attribute("data-status", "completed")
    # newest first
    retried = [item["label"] for item in await items(shared, batch_id) if item["retry_of"]]
    assert retried == ["four", "three", "one", "two"]


async def test_batch_items_open_individually(shared: PageDriver) -> None:
    batch_id = await shared.submit_batch("lakes", ["cat.png", "dog.png", "owl.png"])
    panel = await open_batch(shared, batch_id)
    await expect(panel).to_contain_text("3 of 3")
    await panel.get_by_role("button", name="Item 2, Done").click()
    await panel.get_by_role("link", name="Open page").click()
    await expect(shared.page.get_by_role("heading", level=1)).to_have_text("dog.png")
    await shared.page.keyboard.press("j")
    await expect(shared.page.get_by_role("heading", level=1)).to_have_text("owl.png")
    await shared.page.get_by_role("link", name="lakes · 3 of 3").click()
    await expect(shared.page).to_have_url(re.compile(f"batch={batch_id}"))


async def test_prefetched_job_cannot_be_moved(shared: PageDriver) -> None:
    await shared.misbehave("Slow", **SLOW)
    (before,) = await shared.submit("before")
    await shared.until_running(before)
    batch_id = await shared.submit_batch("lakes", ["running", "fetched"])
    running, fetched = sorted(await items(shared, batch_id), key=lambda item: int(item["item_no"]))
    # the job whose inputs arrive first starts first; the other is prefetched
    await shared.call("POST", f"/api/ai-jobs/{fetched['id']}/pause", {})
    await shared.call("POST", f"/api/ai-jobs/{before}/cancel")
    await shared.until_running(running["id"])
    await shared.call("POST", f"/api/ai-jobs/{fetched['id']}/resume")
    panel = await open_batch(shared, batch_id)
    await expect(shared.unit("lakes")).to_have_attribute("data-status", "running")
    await expect(panel.get_by_role("button", name="Pause after the current job")).to_be_visible()
    await panel.get_by_role("button", name="Item 2").click()
    await expect(panel.get_by_role("status").filter(has_text="Runs next. Inputs are ready.")).to_be_visible()
    for verb in ("Run next", "Move up", "Move down"):
        await expect(panel.get_by_role("button", name=verb)).to_have_count(0)
    await expect(shared.actions.get_by_role("button", name="Run next")).to_have_count(0)


async def test_waiting_job_shows_its_position(shared: PageDriver) -> None:
    await shared.misbehave("Slow", **SLOW)
    # the prefetched job has position 1
    *_others, last = await shared.submit("running", "fetched", "first", "second", "third")
    await shared.open_job(last)
    await expect(shared.page.get_by_text("Number 4 in the queue.")).to_be_visible()
    await shared.actions.get_by_role("button", name="Run next").click()
    await expect(shared.page.get_by_text("Number 2 in the queue.")).to_be_visible()


async def test_new_seeds_are_offered_if_the_job_has_a_seed(shared: PageDriver) -> None:
    slug = (await shared.call("POST", "/api/workflows", {"graph": PROMPT_GRAPH, "name": "portrait"}))["slug"]
    wish = {"workflow_slug": slug, "label": "seeded", "items": [{}, {}]}
    batch_id = (await shared.call("POST", "/api/batches", wish))["id"]
    panel = await open_batch(shared, batch_id)
    for verb in ("Retry 2 failed", "Retry with a new seed", "Run all again with new seeds"):
        await expect(panel.get_by_role("button", name=verb, exact=True)).to_be_visible()
    await shared.misbehave("Fail", class_type="ImageInvert", message="The sides differ.")
    panel = await open_batch(shared, await shared.submit_batch("no seed", ["one", "two"]))
    await expect(panel.get_by_role("button", name="Retry 2 failed")).to_be_visible()
    await expect(panel.get_by_role("button", name=re.compile("new seed"))).to_have_count(0)
    await shared.behave()
    await panel.get_by_role("button", name="Run all again", exact=True).click()
    await expect(panel.get_by_role("button", name="Item 2, Done")).to_be_visible()


async def test_failed_job_shows_its_reason_and_is_retried_once(shared: PageDriver) -> None:
    await shared.misbehave("Fail", class_type="ImageInvert", message="The sides differ.", times=1)
    (first,) = await shared.submit("unlucky")
    await shared.open_job(first)
    await shared.status_is("Failed")
    await expect(shared.error).to_contain_text("The sides differ.")
    await expect(shared.error.locator("pre")).to_be_hidden()
    await shared.error.get_by_text("Details").click()
    await expect(shared.error.locator("pre")).to_contain_text("execution.py")
    await shared.actions.get_by_role("button", name="Retry", exact=True).click()
    await shared.status_is("Done")
    job_url = shared.page.url
    # the retry and the original job link to each other; Retry is offered once, Again any number of times
    await shared.page.get_by_role("link", name=first[-8:]).click()
    await shared.status_is("Failed")
    await expect(shared.actions.get_by_role("button", name="Run again", exact=True)).to_be_visible()
    await expect(shared.actions.get_by_role("button", name="Retry", exact=True)).to_have_count(0)
    await shared.page.get_by_role("link", name=job_url[-8:]).click()
    await expect(shared.page).to_have_url(job_url)
    assert len((await shared.call("GET", "/api/ai-jobs"))["items"]) == 2


async def test_each_attempt_has_its_own_number(shared: PageDriver) -> None:
    await shared.misbehave("Slow", **SLOW)
    (job_id,) = await shared.submit("paused")
    await shared.open_job(job_id)
    await expect(shared.page.get_by_role("log")).to_contain_text("ImageInvert")
    await shared.actions.get_by_role("button", name="Pause now").click()
    await shared.status_is("Paused")
    await shared.behave()
    await shared.actions.get_by_role("button", name="Resume").click()
    await shared.status_is("Done")
    attempts = shared.page.locator("section", has=shared.page.get_by_role("heading", name="Attempts"))
    await expect(attempts.locator("strong")).to_have_text(["Attempt 1", "Attempt 2"])


async def test_cancel_question_counts_the_remaining_jobs(shared: PageDriver) -> None:
    await shared.misbehave("Slow", **SLOW)
    batch_id = await shared.submit_batch("lakes", ["one", "two", "three", "four"])
    panel = await open_batch(shared, batch_id)
    [last, *_others] = await items(shared, batch_id)
    await shared.call("POST", f"/api/ai-jobs/{last['id']}/cancel")
    await expect(panel).to_contain_text("1 canceled")
    await panel.get_by_role("button", name="Cancel", exact=True).click()
    await expect(shared.page.get_by_role("dialog")).to_contain_text("Cancel 3 jobs?")


async def test_deletion_asks_first_and_names_the_files(shared: PageDriver) -> None:
    (job_id,) = await shared.submit("old")
    await shared.ended(job_id)
    await shared.open_queue()
    await shared.do("old", "Delete")
    dialog = shared.page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Also deletes these files:")
    await expect(dialog.get_by_role("listitem")).to_have_count(1)
    await dialog.get_by_role("button", name="Keep them").click()
    await expect(shared.unit("old")).to_be_visible()
    await shared.do("old", "Delete")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(shared.page.get_by_role("heading", name="Nothing in the queue")).to_be_visible()
    await shared.page.get_by_role("button", name="Undo").click()
    await expect(shared.unit("old")).to_be_visible()
    await shared.do("old", "Delete")
    await dialog.get_by_role("button", name="Delete").click()
    async with shared.page.expect_response(lambda answer: answer.request.method == "DELETE"):
        await shared.close_undo_message()
    await expect(shared.page.get_by_role("heading", name="Nothing in the queue")).to_be_visible()
    assert (await shared.http.get(f"/api/ai-jobs/{job_id}")).status_code == 404


async def test_server_error_is_shown_as_a_sentence(shared: PageDriver) -> None:
    (job_id,) = await shared.submit("soon gone")
    await shared.ended(job_id)
    await shared.open_queue()
    await shared.do("soon gone", "Delete")
    await expect(shared.page.get_by_role("dialog")).to_be_visible()
    # another user deletes the job
    await shared.call("DELETE", f"/api/ai-jobs/{job_id}")
    await shared.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await shared.close_undo_message()
    await expect(shared.page.get_by_text(re.compile("^There is no job")).first).to_be_visible()


async def test_long_queue_loads_more_at_its_end(shared: PageDriver) -> None:
    await shared.misbehave("Slow", **SLOW)
    await shared.submit("oldest")
    await shared.submit_batch("large", (f"item {number}" for number in range(3)))
    await shared.submit(*(f"job {number}" for number in range(55)))
    await shared.call("POST", "/api/ai-jobs/bulk", {"action": "cancel", "filter": {}})
    await shared.open_queue()
    await expect(shared.chip("Canceled", 59)).to_be_visible()
    await expect(shared.unit("job 54")).to_be_visible()
    listed = shared.page.get_by_role("list", name="Batches and jobs")
    async with shared.page.expect_response(re.compile(r"/api/queue\?.*cursor=")):
        await listed.evaluate("element => element.scrollTo(0, element.scrollHeight)")
    while not await shared.unit("oldest").count():
        await listed.evaluate("element => element.scrollTo(0, element.scrollHeight)")
        await shared.page.evaluate("() => new Promise(requestAnimationFrame)")
    await expect(shared.names.last).to_have_text("oldest")
    await expect(shared.unit("large")).to_have_count(1)


async def test_batches_are_found_by_their_labels_and_their_items(shared: PageDriver) -> None:
    await shared.submit("a hill")
    await shared.submit_batch("many lakes", ["first shore", "second shore"])
    await shared.open_queue()
    for words, found in (("LAKES", ["many lakes"]), ("second shore", ["many lakes"]), ("hill", ["a hill"])):
        await shared.page.get_by_role("searchbox").fill(words)
        await expect(shared.names).to_have_text(found)
    await shared.page.get_by_role("searchbox").fill("nowhere")
    await expect(shared.page.get_by_role("heading", name="No matching jobs")).to_be_visible()
