"""The results next to the form of Create can be used with only the keyboard."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from tests.support.chromium import PageDriver, open_page
from tests.support.web_app import PHONE, open_context

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]

PAINTER = "Make an image from a prompt"


@pytest_asyncio.fixture(loop_scope="session")
async def driver(shared_desk: str, chromium: Browser) -> AsyncIterator[PageDriver]:
    async with open_page(chromium, shared_desk) as driver:
        yield driver
        await driver.tidy()


def results(driver: PageDriver) -> Locator:
    return driver.page.get_by_label("Results", exact=True)


def cards(driver: PageDriver) -> Locator:
    return results(driver).locator("[data-result]")


async def submit(driver: PageDriver, prompt: str) -> None:
    """Type a prompt, submit the form from the prompt field, and wait for the picture."""
    await driver.page.get_by_role("textbox", name="Prompt", exact=True).fill(prompt)
    await driver.page.keyboard.press("Control+Enter")
    card = cards(driver).first
    await expect(card).to_contain_text(prompt)
    await expect(card.locator("img")).to_have_js_property("complete", value=True)


@pytest.mark.journey
async def test_prompt_look_change_and_again_need_no_mouse_and_no_other_page(driver: PageDriver) -> None:
    form = await driver.choose(PAINTER)
    keyboard = driver.page.keyboard
    await expect(results(driver)).to_contain_text("No results yet")
    await form.get_by_role("textbox", name="Steps").fill("12")
    await submit(driver, "a red fox")
    await expect(cards(driver).first).to_contain_text(re.compile(r"Seed \d+ · Steps 12"))
    await submit(driver, "a blue heron")
    await expect(cards(driver)).to_have_count(2)
    await expect(cards(driver).last).to_contain_text("a red fox")
    # Escape moves to the newest result, and the arrow keys move to the older one
    await keyboard.press("Escape")
    await expect(cards(driver).first.locator("[data-open]")).to_be_focused()
    await keyboard.press("ArrowRight")
    await expect(cards(driver).last.locator("[data-open]")).to_be_focused()
    await keyboard.press("s")
    await expect(cards(driver).last.get_by_role("button", name="Remove star")).to_be_visible()
    await keyboard.press("ArrowLeft")
    await keyboard.press("v")
    dialog = driver.page.get_by_role("dialog", name="Compare")
    await expect(dialog.locator("img")).to_have_count(2)
    await keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(cards(driver).first.locator("[data-open]")).to_be_focused()
    await keyboard.press("Enter")
    await expect(driver.page.get_by_role("dialog")).to_contain_text("1 of 2")
    await keyboard.press("Escape")
    await expect(driver.page.get_by_role("dialog")).to_have_count(0)
    # recall fills the form and returns to the prompt
    await keyboard.press("ArrowRight")
    await keyboard.press("r")
    prompt = driver.page.get_by_role("textbox", name="Prompt", exact=True)
    await expect(prompt).to_have_value("a red fox")
    await expect(prompt).to_be_focused()
    await keyboard.press("End")
    await keyboard.type(" at night")
    await keyboard.press("Control+Enter")
    await expect(cards(driver).first).to_contain_text("a red fox at night")
    await expect(driver.page).to_have_url(re.compile("/create"))


async def test_recalled_job_can_be_recalled_again_after_changes(driver: PageDriver) -> None:
    await driver.choose(PAINTER)
    await submit(driver, "a red fox")
    prompt = driver.page.get_by_role("textbox", name="Prompt", exact=True)
    recall = cards(driver).first.get_by_role("button", name="Change and run")
    await recall.click()
    await expect(driver.page.get_by_text("No values changed.")).to_be_visible()
    await prompt.fill("something else")
    await recall.click()
    await expect(prompt).to_have_value("a red fox")


async def test_result_becomes_an_input_with_a_key(driver: PageDriver) -> None:
    await driver.choose(PAINTER)
    await submit(driver, "a red fox")
    await driver.page.keyboard.press("Escape")
    await driver.page.keyboard.press("u")
    # the current workflow takes no image, so the first workflow that takes one opens
    await expect(driver.page.get_by_role("button", name=re.compile(r"^Remove .*\.png"))).to_be_attached()


async def test_running_job_shows_its_progress_and_waiting_jobs_are_counted(driver: PageDriver) -> None:
    await driver.misbehave("Slow", class_type="KSampler", seconds=600, steps=600, previews=True)
    await driver.choose(PAINTER)
    await driver.page.get_by_role("textbox", name="Prompt", exact=True).fill("one\ntwo\nthree")
    await driver.page.keyboard.press("Control+Enter")
    running = results(driver).locator("[data-running]")
    await expect(running).to_have_count(1)
    await expect(running.get_by_role("progressbar")).to_be_visible()
    await expect(running.locator("img[data-live]")).to_be_visible()
    await expect(results(driver).get_by_role("link", name="2 waiting")).to_be_visible()


async def test_results_are_right_of_the_form_and_behind_a_button_on_a_phone(
    driver: PageDriver, shared_desk: str, chromium: Browser
) -> None:
    form = await driver.choose(PAINTER)
    await submit(driver, "a red fox")
    left, right = await form.bounding_box(), await cards(driver).first.bounding_box()
    assert left is not None
    assert right is not None
    assert left["x"] + left["width"] <= right["x"]
    async with open_context(chromium, shared_desk, screen=PHONE) as context:
        page = await context.new_page()
        await page.goto("/create?workflow=text-to-image")
        card, add = page.locator("[data-result]"), page.get_by_role("button", name="Add job")
        await expect(card).to_have_count(1)
        await expect(card).to_be_hidden()
        await page.get_by_role("button", name="Results · 1").click()
        await expect(card).to_be_in_viewport()
        await expect(add).to_be_in_viewport()
        await expect(page.get_by_role("form")).to_be_hidden()
        await page.get_by_role("button", name="Form", exact=True).click()
        await expect(page.get_by_role("form")).to_be_visible()


async def test_shortcut_sheet_lists_the_keys_of_the_results(driver: PageDriver) -> None:
    await driver.choose(PAINTER)
    await submit(driver, "a red fox")
    await driver.page.keyboard.press("Escape")
    await driver.page.keyboard.press("?")
    sheet = driver.page.get_by_role("dialog")
    for name in ("Next result", "Change and run", "Star", "Compare", "Use as input", "Back to the prompt"):
        await expect(sheet.get_by_text(name, exact=True)).to_be_visible()


async def test_waiting_jobs_are_all_counted(driver: PageDriver) -> None:
    await driver.choose(PAINTER)
    await submit(driver, "a red fox")
    await driver.call("POST", "/api/queue/pause")
    try:
        [job] = (await driver.call("GET", "/api/ai-jobs"))["items"]
        for _ in range(25):
            await driver.call("POST", f"/api/ai-jobs/{job['id']}/again")
        await expect(results(driver)).to_contain_text("25 waiting")
    finally:
        await driver.call("POST", "/api/queue/resume")
