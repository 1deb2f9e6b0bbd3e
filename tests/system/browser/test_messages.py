"""Messages do not cover controls, and hidden tabs are silent."""

import pytest
from playwright.async_api import Locator, expect

from tests.support.chromium import PageDriver

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def lies_on(one: Locator, other: Locator) -> bool:
    first, second = await one.bounding_box(), await other.bounding_box()
    assert first is not None
    assert second is not None
    is_apart = first["x"] >= second["x"] + second["width"] or second["x"] >= first["x"] + first["width"]
    above = first["y"] >= second["y"] + second["height"] or second["y"] >= first["y"] + first["height"]
    return not (is_apart or above)


async def test_message_does_not_cover_its_button(shared: PageDriver) -> None:
    page = shared.page
    await shared.choose("Make an image from a prompt")
    await shared.add()
    message = page.get_by_role("region", name="Notifications").get_by_role("listitem").last
    # the message remains while it has the focus or the pointer
    await message.get_by_role("button", name="Close").focus()
    for width, height in ((1400, 500), (1280, 800), (1000, 700), (390, 844)):
        await page.set_viewport_size({"width": width, "height": height})
        button = shared.plan.get_by_role("button", name="Add job")
        await button.scroll_into_view_if_needed()
        assert not await lies_on(message, button), (width, height)
    await message.get_by_role("button", name="Close").click()
    await expect(message).to_have_count(0)


async def test_hidden_tab_sends_no_requests(shared: PageDriver) -> None:
    page = shared.page
    await page.clock.install()
    await shared.open_queue()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    # the periodic requests of a page
    while not requests:
        # a pending request is not repeated
        await page.clock.run_for(6000)
    await page.evaluate(
        """() => {
          Object.defineProperty(document, "hidden", { value: true, configurable: true });
          Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
          dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    assert requests
    # a refresh that was due when the tab was hidden still happens
    for _ in range(3):
        await page.clock.run_for(2000)
    requests.clear()
    await page.clock.run_for(15_000)
    assert requests == []
