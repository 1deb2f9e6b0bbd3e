"""The dialogs of the page: where one begins to type, what is asked first, and messages that are above them."""

import json
import re

import pytest
from playwright.async_api import expect

from tests.web.looking import PROMPT_GRAPH, Looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

IS_ABOVE = """each => {
  const { x, y, width, height } = each.getBoundingClientRect();
  return each.contains(document.elementFromPoint(x + width / 2, y + height / 2));
}"""
# What a message lies on, of what there is.
COVERED = """(each, wanted) => {
  const own = each.getBoundingClientRect();
  const isCovered = ({ left, right, top, bottom }) =>
    left < own.right && right > own.left && top < own.bottom && bottom > own.top;
  const found = [...document.querySelectorAll(wanted)].filter((one) => isCovered(one.getBoundingClientRect()));
  return found.map((one) => one.id);
}"""
GRAPH = ("portrait.json", "application/json", json.dumps(PROMPT_GRAPH).encode())


async def test_one_begins_with_what_to_run_or_with_the_inputs_of_a_graph(looking: Looking) -> None:
    await looking.page.get_by_role("button", name="Add a job").click()
    await expect(looking.page.get_by_label("Workflow or effect")).to_be_focused()
    await looking.drop(GRAPH)
    await expect(looking.page.get_by_label("Prompt", exact=True)).to_be_focused()


async def test_messages_are_above_a_dialog_and_outlive_it(looking: Looking) -> None:
    page = looking.page
    await page.set_viewport_size({"width": 390, "height": 800})
    await expect(page.locator("#machine-text")).to_have_text("Ready · stand-in")
    await page.get_by_role("button", name="Add a job").click()
    await expect(page.locator("#adding")).to_be_visible()
    await page.route("**/api/**", lambda route: route.abort())
    told = page.locator(".toast.error").get_by_role("button", name="Close")
    await expect(told).to_be_visible()
    assert await told.evaluate(IS_ABOVE)
    assert await page.locator("#adding-submit").evaluate(IS_ABOVE)
    await page.locator("#adding-close").click()
    await expect(page.locator("#adding")).to_be_hidden()
    await told.click()
    await expect(page.locator(".toast")).to_have_count(0)


@pytest.mark.parametrize(("width", "height"), [(1400, 500), (1280, 800), (1000, 700), (390, 800)])
async def test_a_message_does_not_lie_on_an_error_or_a_button(looking: Looking, width: int, height: int) -> None:
    page = looking.page
    await page.set_viewport_size({"width": width, "height": height})
    rare = {**PROMPT_GRAPH["1"], "inputs": {"ckpt_name": "rare.safetensors"}}
    await looking.drop(("rare.json", "application/json", json.dumps({**PROMPT_GRAPH, "1": rare}).encode()))
    told = page.locator(".toast")
    await expect(told).to_have_text(re.compile("was added to your workflows"))
    await expect(page.locator("#adding-error")).to_contain_text("You can add jobs anyway")
    assert await told.get_by_role("button", name="Close").evaluate(IS_ABOVE)
    assert await told.evaluate(COVERED, "#adding-error, #adding-submit, #adding-close, #adding-what") == []
    if width > 1200:
        assert await told.evaluate(COVERED, "#adding") == []


async def test_a_preset_is_deleted_only_after_a_question(looking: Looking) -> None:
    await looking.drop(GRAPH)
    dialog = looking.page.locator("#adding")
    preset = dialog.get_by_role("button", name="look-dev", exact=True)
    await expect(preset).to_be_visible()
    await dialog.get_by_role("button", name="Delete preset look-dev").click()
    asking = looking.page.locator("#asking")
    await expect(asking).to_contain_text("Delete the preset “look-dev”?")
    await asking.get_by_role("button", name="Keep").click()
    await expect(preset).to_be_visible()
    await dialog.get_by_role("button", name="Delete preset look-dev").click()
    await asking.get_by_role("button", name="Delete").click()
    await expect(preset).to_have_count(0)
    await expect(dialog).to_be_visible()
