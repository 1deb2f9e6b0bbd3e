"""What the page offers to do with jobs and batches, and only that, in a real browser."""

import json

import pytest
from playwright.async_api import expect

from tests.web.looking import PROMPT_GRAPH, Looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

SLOW = {"class_type": "ImageInvert", "seconds": 600, "steps": 600}


async def retried(looking: Looking, batch_id: str, number: int) -> None:
    """One item of a batch, again."""
    items = (await looking.call("GET", f"/api/ai-jobs?batch_id={batch_id}"))["items"]
    (item,) = (each for each in items if each["item_no"] == number and each["retry_of"] is None)
    await looking.call("POST", f"/api/ai-jobs/{item['id']}/retry")


async def test_a_batch_that_was_canceled_in_part_says_so_and_goes_on_with_what_was_canceled(looking: Looking) -> None:
    page = looking.page
    await looking.misbehave("Slow", **SLOW)
    batch_id = await looking.submit_batch("lakes", ["one", "two", "three", "four"])
    await looking.call("POST", f"/api/batches/{batch_id}/cancel")
    badge = looking.rows.locator(".badge")
    await expect(looking.rows.locator(".words")).to_have_text("4 of 4 · 4 canceled")
    await expect(badge).to_have_text("canceled")
    await looking.behave()
    await retried(looking, batch_id, 1)
    await expect(looking.rows.locator(".words")).to_have_text("4 of 4 · 3 canceled")
    await expect(badge).to_have_text("canceled")
    await looking.rows.get_by_role("link", name="lakes").click()
    await looking.status_is("canceled")
    await expect(looking.pane.locator(".actions button")).to_have_text(["Retry 3 canceled", "Run all again", "Delete"])
    await looking.pane.get_by_role("button", name="Retry 3 canceled").click()
    await expect(page.locator(".toast")).to_contain_text("3 jobs retried.")
    await looking.status_is("succeeded")
    await expect(looking.pane.locator(".items .item a")).to_have_text(["one", "two", "three", "four"])
    jobs = (await looking.call("GET", f"/api/ai-jobs?batch_id={batch_id}"))["items"]
    # the newest first: one retry by hand, then the others in their order
    assert [each["label"] for each in jobs if each["retry_of"]] == ["four", "three", "one", "two"]


async def test_what_is_left_of_a_batch_can_be_read_to_its_end(looking: Looking) -> None:
    await looking.page.set_viewport_size({"width": 1400, "height": 800})
    await looking.misbehave("Slow", **SLOW)
    batch_id = await looking.submit_batch("lakes", ["one", "two", "three"])
    await looking.call("POST", f"/api/batches/{batch_id}/cancel")
    words = looking.rows.locator(".words")
    await expect(words).to_have_text("3 of 3 · 3 canceled")
    await looking.behave()
    await retried(looking, batch_id, 0)
    await expect(words).to_have_text("3 of 3 · 2 canceled")
    await looking.misbehave("Slow", **SLOW)
    await retried(looking, batch_id, 1)
    await expect(words).to_contain_text("2 of 3 · 1 running · 1 canceled · about")
    assert await words.evaluate(
        "each => each.scrollWidth <= each.clientWidth && each.scrollHeight <= each.clientHeight"
    )


async def test_what_the_worker_has_fetched_cannot_be_moved(looking: Looking) -> None:
    await looking.misbehave("Slow", **SLOW)
    batch_id = await looking.submit_batch("lakes", ["running", "fetched"])
    await looking.page.goto(f"/#batch/{batch_id}")
    await expect(looking.pane.locator(".part .words").first).to_have_text("0 of 2 · 1 pending · 1 running")
    buttons = looking.pane.locator(".actions button")
    await expect(buttons).to_have_text(["Pause after the current job", "Pause now", "Cancel"])
    await looking.pane.get_by_role("link", name="fetched").click()
    await expect(looking.pane.locator(".words").first).to_have_text("Runs next; its inputs are ready.")
    await expect(buttons).to_have_text(["Pause", "Cancel"])


async def test_new_seeds_are_offered_where_there_is_a_seed(looking: Looking) -> None:
    await looking.drop(("portrait.json", "application/json", json.dumps(PROMPT_GRAPH).encode()))
    dialog = looking.page.get_by_role("dialog")
    await dialog.get_by_label("Tries").fill("2")
    await dialog.get_by_role("button", name="Add 2 jobs").click()
    await looking.status_is("failed")
    buttons = looking.pane.locator(".actions button")
    seeded = ["Retry 2 failed", "Retry failed with new seeds", "Run all again with new seeds", "Delete"]
    await expect(buttons).to_have_text(seeded)
    await looking.misbehave("Fail", class_type="ImageInvert", message="The sides differ.")
    batch_id = await looking.submit_batch("no seed", ["one", "two"])
    await looking.page.goto(f"/#batch/{batch_id}")
    await looking.status_is("failed")
    await expect(buttons).to_have_text(["Retry 2 failed", "Run all again", "Delete"])
    await looking.behave()
    await looking.pane.get_by_role("button", name="Run all again").click()
    await looking.status_is("succeeded")
    await expect(buttons).to_have_text(["Run all again", "Delete"])


async def test_each_attempt_has_a_number_of_its_own(looking: Looking) -> None:
    await looking.misbehave("Slow", **SLOW)
    await looking.submit("paused")
    await looking.rows.get_by_role("link", name="paused").click()
    await looking.status_is("running")
    await expect(looking.pane.locator(".log")).to_contain_text("ImageInvert")
    await looking.pane.get_by_role("button", name="Pause now").click()
    await looking.status_is("paused")
    await looking.behave()
    await looking.pane.get_by_role("button", name="Resume").click()
    await looking.status_is("succeeded")
    attempts = looking.pane.locator(".attempts > li")
    await expect(attempts).to_have_count(2)
    # their place is their number, unless they have another one
    assert await attempts.evaluate_all("all => all.filter(each => each.hasAttribute('value')).length") == 0


async def test_a_job_is_retried_only_once_and_says_as_what(looking: Looking) -> None:
    await looking.misbehave("Fail", class_type="ImageInvert", message="The sides differ.", times=1)
    (first,) = await looking.submit("unlucky")
    await looking.rows.get_by_role("link", name="unlucky").click()
    await looking.status_is("failed")
    await looking.pane.get_by_role("button", name="Retry", exact=True).click()
    await looking.status_is("succeeded")
    await looking.pane.locator(".facts a").click()
    await looking.status_is("failed")
    buttons = looking.pane.locator(".actions button")
    await expect(buttons).to_have_text(["Delete"])
    row = looking.page.locator(f".row[data-id='{first}']")
    await expect(row.locator(".act")).to_be_hidden()
    await looking.page.keyboard.press("r")
    await expect(looking.page.locator(".toast")).to_contain_text(["Already retried."])
    await looking.pane.locator(".facts").get_by_role("link").click()
    await looking.status_is("succeeded")
    # without that one, it can be retried again
    await looking.pane.get_by_role("button", name="Delete").click()
    await looking.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(row.locator(".act")).to_have_text("Retry")


async def test_the_question_before_a_cancel_counts_what_is_left_now(looking: Looking) -> None:
    await looking.misbehave("Slow", **SLOW)
    batch_id = await looking.submit_batch("lakes", ["one", "two", "three", "four"])
    await looking.page.goto(f"/#batch/{batch_id}")
    await expect(looking.pane.locator(".part .words").first).to_have_text("0 of 4 · 3 pending · 1 running")
    last = (await looking.call("GET", f"/api/ai-jobs?batch_id={batch_id}&limit=1"))["items"][0]
    await looking.call("POST", f"/api/ai-jobs/{last['id']}/cancel")
    await expect(looking.pane.locator(".part .words").first).to_contain_text("1 canceled")
    await looking.pane.get_by_role("button", name="Cancel").click()
    await expect(looking.page.locator("#asking")).to_contain_text("Cancel 3 unfinished jobs of this batch")
