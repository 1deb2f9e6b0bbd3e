"""The queue page works in a real browser."""

import re
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from comfyrelay.simulator import Fail, Simulator
from tests.support.chromium import PageDriver, open_page
from tests.support.desk import make_desk
from tests.support.server_processes import free_port

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]

SLOW = {"class_type": "ImageInvert", "seconds": 600, "steps": 600}


@pytest_asyncio.fixture(loop_scope="session")
async def queue(shared: PageDriver) -> PageDriver:
    await shared.open_queue()
    return shared


def units(driver: PageDriver) -> Locator:
    return driver.page.locator("[data-entry]")


def unit(driver: PageDriver, label: str) -> Locator:
    return units(driver).filter(has=driver.page.get_by_role("button", name=label, exact=True))


def names(driver: PageDriver) -> Locator:
    return units(driver).locator("button[title]")


async def act(driver: PageDriver, label: str, verb: str) -> None:
    await driver.page.get_by_role("button", name=f"Actions for {label}").click()
    await driver.page.get_by_role("menuitem", name=verb, exact=True).click()


async def waiting(driver: PageDriver, *labels: str) -> list[str]:
    """Add jobs that wait behind two jobs that never finish: one is running, one is prefetched."""
    await driver.misbehave("Slow", **SLOW)
    ids = await driver.submit("runs", "fetched", *labels)
    await expect(unit(driver, "runs")).to_have_attribute("data-status", "running")
    return ids[2:]


async def order(driver: PageDriver, *labels: str) -> None:
    """Check that waiting jobs have this order on the page and on the server."""
    await expect(names(driver)).to_have_text(["runs", "fetched", *labels])
    found = (await driver.call("GET", "/api/queue"))["items"]
    assert [job["label"] for job in found] == ["runs", "fetched", *labels]


async def test_empty_queue_shows_the_next_step(queue: PageDriver) -> None:
    await expect(queue.page.get_by_role("heading", name="Nothing in the queue")).to_be_visible()
    await expect(queue.page.locator("main").get_by_role("link", name="Create").last).to_have_attribute(
        "href", "/create"
    )


@pytest.mark.journey
async def test_job_is_paused_and_resumed(queue: PageDriver) -> None:
    await waiting(queue, "one")
    await act(queue, "one", "Pause")
    await expect(unit(queue, "one")).to_have_attribute("data-status", "paused")
    await act(queue, "one", "Resume")
    await expect(unit(queue, "one")).to_have_attribute("data-status", "waiting")


@pytest.mark.journey
async def test_waiting_jobs_are_reordered_by_dragging_and_by_keys(queue: PageDriver) -> None:
    await waiting(queue, "one", "two", "three")
    await order(queue, "one", "two", "three")
    await unit(queue, "three").drag_to(unit(queue, "one"), target_position={"x": 200, "y": 8})
    await expect(names(queue)).to_have_text(["runs", "fetched", "three", "one", "two"])
    await unit(queue, "two").get_by_role("button", name="two", exact=True).click()
    async with queue.page.expect_response(re.compile("/move$")):
        await queue.page.keyboard.press("Shift+K")
    await expect(names(queue)).to_have_text(["runs", "fetched", "three", "two", "one"])
    async with queue.page.expect_response(re.compile("/move$")):
        await queue.page.keyboard.press("t")
    await order(queue, "two", "three", "one")


@pytest.mark.journey
async def test_batch_is_canceled_after_a_question_and_retried(queue: PageDriver) -> None:
    page = queue.page
    await queue.misbehave("Slow", **SLOW)
    await queue.submit_batch("lakes", ["one", "two", "three"])
    await expect(unit(queue, "lakes")).to_have_attribute("data-status", "running")
    await act(queue, "lakes", "Cancel")
    await page.get_by_role("dialog").get_by_role("button", name="Cancel jobs").click()
    await expect(unit(queue, "lakes")).to_have_attribute("data-status", "canceled")
    await queue.behave()
    await act(queue, "lakes", "Retry 3 canceled")
    await expect(unit(queue, "lakes")).to_have_attribute("data-status", "completed")


async def test_batch_with_one_failed_item_is_not_shown_as_failed(queue: PageDriver) -> None:
    await queue.misbehave("Fail", class_type="ImageInvert", times=1)
    await queue.submit_batch("lakes", ["one", "two", "three"])
    await expect(unit(queue, "lakes")).to_contain_text("1 failed")
    await expect(unit(queue, "lakes")).to_contain_text("2 of 3 done")
    await act(queue, "lakes", "Retry 1 failed")
    await expect(unit(queue, "lakes")).to_have_attribute("data-status", "completed")


async def test_error_card_shows_cause_remedy_and_folded_details(queue: PageDriver) -> None:
    page = queue.page
    await queue.misbehave("OutOfMemory", class_type="ImageInvert")
    (job_id,) = await queue.submit("too large <b>bold</b>")
    await expect(units(queue)).to_have_attribute("data-status", "failed")
    await page.goto(f"/jobs/{job_id}")
    card = page.get_by_role("alert")
    await expect(card).to_contain_text("memory")
    await expect(card).to_contain_text("Reduce the resolution")
    await expect(card.locator("pre")).to_be_hidden()
    await card.get_by_text("Details").click()
    await expect(card.locator("pre")).to_be_visible()
    # markup is shown as text
    await expect(page.get_by_role("heading", level=1)).to_have_text("too large <b>bold</b>")


async def test_search_and_filters_are_in_the_url_and_in_saved_views(queue: PageDriver) -> None:
    page = queue.page
    await queue.submit("a red lighthouse", "a green boat")
    await expect(units(queue)).to_have_count(2)
    await page.keyboard.press("/")
    await page.keyboard.type("LIGHTHOUSE")
    await expect(names(queue)).to_have_text(["a red lighthouse"])
    assert "q=LIGHTHOUSE" in page.url
    await page.reload()
    await expect(names(queue)).to_have_text(["a red lighthouse"])
    await page.get_by_role("button", name="Filters").click()
    await page.get_by_role("menuitem", name="Save view…").click()
    await page.get_by_label("Name", exact=True).fill("lights")
    await page.get_by_role("button", name="Save", exact=True).click()
    await page.get_by_role("button", name="Clear").click()
    await expect(units(queue)).to_have_count(2)
    # saved views are not tied to the browser
    await page.evaluate("localStorage.clear()")
    await page.reload()
    await page.get_by_role("button", name="lights").click()
    await expect(names(queue)).to_have_text(["a red lighthouse"])


async def test_bulk_action_applies_to_all_counted_matches(queue: PageDriver) -> None:
    page = queue.page
    await waiting(queue, "lake one", "lake two", "hill")
    await page.get_by_role("searchbox").fill("lake")
    await expect(units(queue)).to_have_count(2)
    await page.get_by_role("checkbox", name="Select lake one").click()
    await page.get_by_role("button", name="Select all 2 matching jobs").click()
    await expect(page.get_by_role("toolbar")).to_contain_text("All 2 matching jobs")
    await page.get_by_role("toolbar").get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("dialog")).to_contain_text("Cancel 2 jobs?")
    # jobs that arrive while the question is open are not included
    await queue.submit("lake three")
    await page.get_by_role("dialog").get_by_role("button", name="Cancel jobs").click()
    await expect(unit(queue, "lake one")).to_have_attribute("data-status", "canceled")
    await expect(unit(queue, "lake two")).to_have_attribute("data-status", "canceled")
    jobs = (await queue.call("GET", "/api/ai-jobs"))["items"]
    assert {job["label"] for job in jobs if job["status"] == "canceled"} == {"lake one", "lake two"}


async def test_finished_jobs_are_cleared(queue: PageDriver) -> None:
    page = queue.page
    await queue.submit("one", "two")
    await expect(units(queue).and_(page.locator('[data-status="completed"]'))).to_have_count(2)
    await page.get_by_role("button", name="Queue actions").click()
    await page.get_by_role("menuitem", name="Clear finished…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Clear 2 jobs").click()
    await expect(page.get_by_role("heading", name="Nothing in the queue")).to_be_visible()
    # the gallery keeps the outputs unless the user chooses otherwise
    assert len((await queue.call("GET", "/api/gallery"))["items"]) == 2
    await queue.submit("three")
    await expect(units(queue).and_(page.locator('[data-status="completed"]'))).to_have_count(1)
    await page.get_by_role("button", name="Queue actions").click()
    await page.get_by_role("menuitem", name="Clear finished…").click()
    await page.get_by_role("checkbox", name=re.compile("^Also delete the jobs")).click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete 1 job").click()
    await expect(page.get_by_role("heading", name="Nothing in the queue")).to_be_visible()
    assert len((await queue.call("GET", "/api/gallery"))["items"]) == 2


async def test_clear_finished_counts_the_same_jobs_as_the_filters(queue: PageDriver) -> None:
    page = queue.page
    await queue.misbehave("Fail", class_type="ImageInvert", times=1)
    await queue.submit_batch("lakes", ["one", "two", "three"])
    await expect(unit(queue, "lakes")).to_contain_text("2 of 3 done")
    await expect(queue.chip("Done", 2)).to_be_visible()
    await expect(queue.chip("Failed", 1)).to_be_visible()
    await page.get_by_role("button", name="Queue actions").click()
    await page.get_by_role("menuitem", name="Clear finished…").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("checkbox", name="Done (2)")).to_be_visible()
    await dialog.get_by_role("checkbox", name="Failed (1)").click()
    # the batch also has a failed job
    await expect(dialog.get_by_role("button", name="Clear 0 jobs")).to_be_disabled()
    await dialog.get_by_role("checkbox", name="Failed (1)").click()
    await dialog.get_by_role("button", name="Clear 3 jobs").click()
    await expect(page.get_by_role("heading", name="Nothing in the queue")).to_be_visible()


async def test_finished_job_is_rerun_edited_or_used_as_input(queue: PageDriver) -> None:
    page = queue.page
    (job_id,) = await queue.submit("one")
    await expect(units(queue)).to_have_attribute("data-status", "completed")
    await page.goto(f"/jobs/{job_id}")
    actions = page.get_by_role("group", name="Job", exact=True)
    await expect(page.get_by_role("slider", name="Divider between input and output")).to_be_visible()
    await actions.get_by_role("button", name="Use as input").click()
    await expect(page).to_have_url(re.compile("/create[?]workflow="))
    await expect(page.get_by_role("button", name=re.compile("^Remove "))).to_have_count(1)
    await page.goto(f"/jobs/{job_id}")
    await actions.get_by_role("button", name="Change and run").click()
    await page.wait_for_url(f"**/create?workflow=*&from={job_id}")
    await page.goto(f"/jobs/{job_id}")
    await actions.get_by_role("button", name="Run again").click()
    await page.wait_for_url(lambda url: "/jobs/" in url and job_id not in url)
    job: dict[str, Any] = await queue.call("GET", f"/api/ai-jobs/{page.url.rsplit('/', 1)[1]}")
    first = await queue.call("GET", f"/api/ai-jobs/{job_id}")
    assert [job[key] for key in ("label", "input_file_id", "seed")] == ["one", first["input_file_id"], first["seed"]]


async def test_running_job_shows_its_preview_in_queue_and_on_its_page(queue: PageDriver) -> None:
    page = queue.page
    await queue.misbehave("Slow", class_type="ImageInvert", seconds=600, steps=3000, previews=True)
    (job_id,) = await queue.submit("one")
    await expect(page.locator("img[data-live]")).to_be_visible()
    await page.goto(f"/jobs/{job_id}")
    picture = page.get_by_role("img", name="Live preview of one")
    await expect(picture).to_be_visible()
    assert await picture.evaluate("image => image.decode().then(() => image.naturalWidth > 0)")


async def test_two_tabs_show_the_same_queue(queue: PageDriver, shared_desk: str, chromium: Browser) -> None:
    await waiting(queue, "one", "two")
    async with open_page(chromium, shared_desk) as other:
        await other.page.goto("/queue")
        await expect(names(other)).to_have_text(["runs", "fetched", "one", "two"])
        await act(other, "two", "Run next")
        await expect(names(queue)).to_have_text(["runs", "fetched", "two", "one"])
        await act(queue, "two", "Pause")
        await expect(unit(other, "two")).to_have_attribute("data-status", "paused")


async def test_unusable_comfyui_is_explained_only_once(chromium: Browser, tmp_path: Path) -> None:
    async with (
        Simulator() as simulator,
        make_desk(tmp_path, comfyui_url=[simulator.url]).open() as (_worker, ready),
        open_page(chromium, ready.url) as driver,
    ):
        simulator.misbehave(
            Fail(class_type="ImageInvert", message="CUDA error: an illegal memory access was encountered")
        )
        await driver.submit(*(f"job {number}" for number in range(30)))
        await driver.page.goto("/queue")
        why = f"ComfyUI at {simulator.url} cannot be used"
        head = driver.page.get_by_role("status").filter(has_text=why)
        slot = driver.page.get_by_role("article").filter(has_text=why)
        # the header shows the error only while the slot shows a job that waits for this ComfyUI
        await expect(slot.or_(head)).to_have_count(1)
        await driver.page.get_by_role("article").first.hover()
        await driver.page.mouse.wheel(0, 1500)
        await expect(head).to_be_visible()
        await driver.page.goto("/queue?q=job")
        await expect(head).to_be_visible()


async def test_comfyui_that_never_answered_is_named_in_the_header(chromium: Browser, tmp_path: Path) -> None:
    missing_url = f"http://127.0.0.1:{free_port()}"
    async with (
        make_desk(tmp_path, comfyui_url=[missing_url]).open() as (_worker, ready),
        open_page(chromium, ready.url) as driver,
    ):
        await driver.page.goto("/queue")
        head = driver.page.get_by_role("status").filter(has_text=f"No server listens at {missing_url}")
        await expect(head).to_be_visible()


async def test_status_filter_agrees_with_its_count_and_keeps_running_jobs(
    queue: PageDriver,
) -> None:
    page = queue.page
    await queue.misbehave("Fail", class_type="ImageInvert", times=1)
    many = await queue.submit_batch("lakes", ["one", "two", "three"])
    await expect(unit(queue, "lakes")).to_contain_text("1 failed")
    await queue.behave()
    await waiting(queue, "next")
    await queue.chip("Failed", 1).click()
    await expect(units(queue)).to_have_count(1)
    await expect(unit(queue, "lakes")).to_contain_text("1 of 3 jobs")
    # running jobs take one line
    await expect(page.get_by_role("region", name="Now").get_by_role("button")).to_have_text(["runs"])
    box = page.get_by_role("checkbox", name="Select lakes")
    await box.click()
    await expect(box).to_have_attribute("aria-checked", "mixed")
    await page.get_by_role("toolbar").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("dialog")).to_contain_text("Delete 1 job?")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", name="No matching jobs")).to_be_visible()
    await queue.close_undo_message()
    await expect(page.get_by_text(re.compile("^1 job deleted")).first).to_be_visible()
    assert (await queue.call("GET", f"/api/batches/{many}"))["counts"]["completed"] == 2
    # waiting rows show their priority, and rows sorted differently cannot be moved
    await page.goto("/queue")
    await expect(unit(queue, "next")).to_have_attribute("draggable", "true")
    await act(queue, "next", "Priority: High")
    await expect(unit(queue, "next")).to_contain_text("Priority +10")
    await page.goto("/queue?sort=newest")
    await expect(unit(queue, "next")).to_have_attribute("draggable", "false")
