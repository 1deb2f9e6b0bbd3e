"""Messages of the app: where they are shown, and where not."""

import pytest
from playwright.async_api import Locator, expect

from tests.support.chromium import PageDriver

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def lies_on(one: Locator, other: Locator) -> bool:
    first, second = await one.bounding_box(), await other.bounding_box()
    assert first is not None
    assert second is not None
    beside = first["x"] >= second["x"] + second["width"] or second["x"] >= first["x"] + first["width"]
    above = first["y"] >= second["y"] + second["height"] or second["y"] >= first["y"] + first["height"]
    return not (beside or above)


async def test_message_does_not_lie_on_the_button_that_it_comes_from(shared: PageDriver) -> None:
    page = shared.page
    await shared.choose("Make a picture of a prompt")
    await shared.add()
    said = page.get_by_role("region", name="Notifications").get_by_role("listitem").last
    # it stays as long as one is at it, wherever it goes to
    await said.get_by_role("button", name="Close").focus()
    for width, height in ((1400, 500), (1280, 800), (1000, 700), (390, 844)):
        await page.set_viewport_size({"width": width, "height": height})
        button = shared.plan.get_by_role("button", name="Add job")
        await button.scroll_into_view_if_needed()
        assert not await lies_on(said, button), (width, height)
    await said.get_by_role("button", name="Close").click()
    await expect(said).to_have_count(0)


async def test_tab_that_nobody_sees_asks_for_nothing(shared: PageDriver) -> None:
    page = shared.page
    await page.clock.install()
    await shared.open_queue()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    # what a page looks for by itself, again and again
    while not asked:
        # one that is under way still is not asked for again
        await page.clock.run_for(6000)
    await page.evaluate(
        """() => {
          Object.defineProperty(document, "hidden", { value: true, configurable: true });
          Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
          dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    assert asked
    # what it was about to catch up with when it was hidden, it still does
    for _ in range(3):
        await page.clock.run_for(2000)
    asked.clear()
    await page.clock.run_for(15_000)
    assert asked == []
