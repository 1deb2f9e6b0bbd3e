"""The rows of the queue page show failures, truncated texts and headings correctly."""

import io
import re
from itertools import combinations, pairwise

import pytest
import pytest_asyncio
from PIL import Image
from playwright.async_api import FloatRect, Locator, expect

from tests.support.chromium import PageDriver

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]

SIZES = ((1440, 900), (1024, 768), (390, 844))
ERROR = "mat1 and mat2 shapes cannot be multiplied (77x2048 and 768x320) " + "in the third block of the decoder " * 4
LONG = "portrait_of_a_glassblower_with_sparks-final-version_0042.take-3" * 3
# Texts that are wider than their box, which hides the rest without an ellipsis.
_CUT_WITHOUT_ELLIPSIS = """() => {
  const found = [];
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    const text = range.getBoundingClientRect();
    if (!text.width) continue;
    for (let box = texts.currentNode.parentElement; box.tagName !== "MAIN"; box = box.parentElement) {
      const style = getComputedStyle(box);
      if (style.textOverflow === "ellipsis" || style.webkitLineClamp !== "none") break;
      const { left, right } = box.getBoundingClientRect();
      if (["hidden", "clip"].includes(style.overflowX) && (text.right > right + 1 || text.left < left - 1)) {
        found.push(texts.currentNode.textContent);
        break;
      }
    }
  }
  return found;
}"""
_CUT = """() => [...document.querySelectorAll("main *")].filter((box) => {
  const style = getComputedStyle(box);
  return box.textContent && (style.webkitLineClamp !== "none" ? box.scrollHeight > box.clientHeight
    : style.textOverflow === "ellipsis" && box.scrollWidth > box.clientWidth);
}).map((box, index) => { box.dataset.cut = index; return box.textContent; })"""


@pytest_asyncio.fixture(loop_scope="session")
async def queue(shared: PageDriver) -> PageDriver:
    await shared.open_queue()
    return shared


async def box(element: Locator) -> FloatRect:
    found = await element.bounding_box()
    assert found is not None
    return found


async def test_failed_tile_has_an_icon_and_its_reason_on_hover(queue: PageDriver) -> None:
    page = queue.page
    await queue.misbehave("Fail", class_type="ImageInvert", message=ERROR, times=1)
    await queue.submit_batch("lakes", ["one", "two", "three"])
    row = queue.unit("lakes")
    await expect(row).to_contain_text("1 failed")
    reason = (await queue.call("GET", "/api/queue"))["items"][0]["error"]
    for width, height in reversed(SIZES):
        await page.set_viewport_size({"width": width, "height": height})
        await expects_failed_tile(queue, row, reason)
    await row.get_by_role("button", name="lakes", exact=True).click()
    await expects_failed_tile(queue, page.get_by_role("complementary"), reason)


async def expects_failed_tile(queue: PageDriver, place: Locator, reason: str) -> None:
    page = queue.page
    tile = place.get_by_role("button", name=f"Item 1, Failed: {reason}")
    outer, icon = await box(tile), await box(tile.locator("svg"))
    assert 14 <= icon["width"] < outer["width"]
    middle = [icon["x"] + icon["width"] / 2, icon["y"] + icon["height"] / 2]
    hovered = "([x, y]) => document.elementFromPoint(x, y)?.closest('[title]')?.title"
    assert await page.evaluate(hovered, middle) == reason
    # the tile is not one flat color: it has an icon, a ring, a background and the input
    with Image.open(io.BytesIO(await tile.screenshot())) as picture:
        assert len(picture.convert("RGB").getcolors(picture.width * picture.height) or []) > 16


async def test_failed_batch_shows_the_reason_in_its_row(queue: PageDriver) -> None:
    await queue.misbehave("Fail", class_type="ImageInvert", message="the decoder has no weights", times=1)
    await queue.submit_batch("lakes", ["one", "two"])
    row = queue.unit("lakes")
    why = row.get_by_text("the decoder has no weights")
    await expect(why).to_contain_text("1 of 2 done")
    for width, height in SIZES:
        await queue.page.set_viewport_size({"width": width, "height": height})
        outer, inner = await box(row), await box(why)
        assert inner["height"] >= 10
        assert outer["x"] <= inner["x"]
        assert inner["x"] + inner["width"] <= outer["x"] + outer["width"]


async def test_truncated_texts_end_in_an_ellipsis_and_are_complete_on_hover(queue: PageDriver) -> None:
    page = queue.page
    await queue.misbehave("Fail", class_type="ImageInvert", message=ERROR, times=1)
    await queue.submit_batch(LONG, [f"first {LONG}", "two"])
    row = queue.unit(LONG)
    await expect(row).to_contain_text("1 failed")
    await expect(row).to_contain_text("1 of 2 done")
    await queue.behave()
    await queue.misbehave("Slow", class_type="ImageInvert", seconds=600, steps=600)
    await queue.submit(f"runs {LONG}")
    await expect(queue.unit(f"runs {LONG}")).to_have_attribute("data-status", "running")
    for width, height in SIZES:
        await page.set_viewport_size({"width": width, "height": height})
        assert await page.evaluate(_CUT_WITHOUT_ELLIPSIS) == []
        cut = await page.evaluate(_CUT)
        assert len([text for text in cut if LONG in text]) >= 3
        for index, text in enumerate(cut):
            element = page.locator(f"[data-cut='{index}']")
            await element.hover()
            assert text in str(await element.get_attribute("title"))
            await element.evaluate("element => delete element.dataset.cut")


async def test_ellipsis_of_a_long_reason_is_inside_its_row(queue: PageDriver) -> None:
    page = queue.page
    await queue.misbehave("Fail", class_type="ImageInvert", message=ERROR, times=1)
    await queue.submit_batch("lakes", ["one", "two"])
    row = queue.unit("lakes")
    why = row.get_by_text("1 of 2 done")
    await expect(why).to_be_visible()
    await page.mouse.move(0, 0)
    # the part of an ellipsis that its box would cut appears next to the box
    await why.evaluate("element => { element.style.overflow = 'visible'; }")
    for width in range(1200, 1441, 40):
        await page.set_viewport_size({"width": width, "height": 900})
        found = await box(why)
        side: FloatRect = {"x": found["x"] + found["width"], "y": found["y"], "width": 8, "height": found["height"]}
        with Image.open(io.BytesIO(await page.screenshot(clip=side))) as picture:
            assert len(picture.convert("RGB").getcolors() or []) == 1, width


async def test_name_of_a_failed_row_is_next_to_its_checkbox_on_a_phone(queue: PageDriver) -> None:
    await queue.misbehave("Fail", class_type="ImageInvert", message=ERROR, times=1)
    await queue.submit("poster")
    row = queue.unit("poster")
    await expect(row.get_by_role("button", name="Retry")).to_be_visible()
    await queue.page.set_viewport_size({"width": 390, "height": 844})
    checkbox, name = (
        await box(row.get_by_role("checkbox")),
        await box(row.get_by_role("button", name="poster", exact=True)),
    )
    assert 0 < name["x"] - checkbox["x"] - checkbox["width"] <= 16


async def test_chosen_filter_is_visible_on_a_phone(queue: PageDriver) -> None:
    await queue.submit("done before")
    await expect(queue.unit("done before")).to_contain_text("took")
    await queue.misbehave("Slow", class_type="ImageInvert", seconds=600, steps=600)
    await queue.submit("runs")
    await queue.submit("waits")
    await queue.page.set_viewport_size({"width": 300, "height": 600})
    await queue.page.goto("/queue?status=completed")
    chip = queue.page.get_by_role("button", name="Done", pressed=True)
    await expect(chip).to_have_text("Done1")
    await expect(chip).to_be_in_viewport(ratio=1)


async def test_running_batch_is_under_now_and_done_rows_say_how_long_they_took(queue: PageDriver) -> None:
    page = queue.page
    await queue.submit("done before")
    await expect(queue.unit("done before")).to_contain_text("took")
    await queue.misbehave("Slow", class_type="ImageInvert", seconds=600, steps=600)
    await queue.submit_batch("lakes", ["one", "two", "three"])
    await queue.submit("waits")
    await expect(queue.unit("lakes")).to_have_attribute("data-status", "running")
    # the batch is above the heading Next, and one heading Now is above both
    now, following = (page.get_by_role("heading", name=name, exact=True) for name in ("Now", "Next"))
    await expect(now).to_have_count(1)
    batch, waits = await box(queue.unit("lakes")), await box(queue.unit("waits"))
    below = await box(following)
    assert (await box(now))["y"] < batch["y"] < below["y"] < waits["y"]


async def test_columns_of_rows_are_aligned(queue: PageDriver) -> None:
    page = queue.page
    await queue.misbehave("Fail", class_type="ImageInvert", message=ERROR, times=1)
    for label in ("a bad one", "a good one"):
        for job_id in await queue.submit(label):
            await queue.ended(job_id)
    rows = [queue.unit("a bad one"), queue.unit("a good one")]
    await expect(rows[0]).to_contain_text("Failed")
    await expect(rows[1]).to_contain_text("Done")
    for width, height in SIZES:
        await page.set_viewport_size({"width": width, "height": height})
        names = [await box(row.get_by_role("button", name=re.compile("^a (bad|good) one$"))) for row in rows]
        words = [await box(row.get_by_text(re.compile("^(Failed|Done)$"))) for row in rows]
        menus = [await box(row.get_by_role("button", name=re.compile("^Actions for"))) for row in rows]
        assert abs(names[0]["x"] - names[1]["x"]) < 1
        assert abs(menus[0]["x"] - menus[1]["x"]) < 1
        reason = await box(rows[0].get_by_text(ERROR))
        assert {round(each["x"] - words[0]["x"]) for each in (*words, reason)} == {0}
        if width == min(size[0] for size in SIZES):
            assert round(words[0]["x"] - names[0]["x"]) == 0


async def test_wide_rows_use_their_full_width(queue: PageDriver) -> None:
    page = queue.page
    await queue.misbehave("Slow", class_type="ImageInvert", seconds=600, steps=600)
    await queue.submit_batch("lakes", [f"lake {number}" for number in range(40)])
    row = queue.unit("lakes")
    await expect(row).to_contain_text("40 jobs")
    for width in (1024, 1440, 1920):
        await page.set_viewport_size({"width": width, "height": 900})
        around = await box(row)
        parts = sorted([await box(part) for part in await row.locator(":scope > *").all()], key=lambda part: part["x"])
        gaps = [after["x"] - before["x"] - before["width"] for before, after in pairwise(parts)]
        assert max(gaps) < 0.2 * around["width"], (width, gaps)
        assert around["x"] + around["width"] > width - 100


async def test_panel_of_a_batch_outside_the_list_has_its_name(queue: PageDriver) -> None:
    batch_id = await queue.submit_batch("lakes", ["lake 1"])
    await queue.page.goto(f"/queue?batch={batch_id}&status=paused")
    await expect(queue.page.get_by_role("complementary").get_by_role("heading", name="lakes")).to_be_visible()
    await expect(queue.unit("lakes")).to_have_count(0)


async def test_rows_do_not_overlap_next_to_an_open_panel(queue: PageDriver) -> None:
    page = queue.page
    await queue.misbehave("Fail", class_type="ImageInvert", message=ERROR, times=1)
    await queue.submit_batch("lakes", [f"lake {number}" for number in range(8)])
    row = queue.unit("lakes")
    await expect(row.get_by_role("button", name="Retry 1 failed")).to_be_visible()
    await row.get_by_role("button", name="lakes", exact=True).click()
    await expect(page.get_by_role("complementary")).to_be_visible()
    for width in (1440, 1024):
        await page.set_viewport_size({"width": width, "height": 768})
        parts = [await box(part) for part in await row.locator(":scope > *:visible").all()]
        for first, second in combinations(parts, 2):
            assert not overlap(first, second), (width, first, second)
        search = await box(page.get_by_role("searchbox"))
        assert search["width"] > 200, width


def overlap(first: FloatRect, second: FloatRect) -> bool:
    """Return whether two boxes overlap by more than a rounding error."""
    width = min(first["x"] + first["width"], second["x"] + second["width"]) - max(first["x"], second["x"])
    height = min(first["y"] + first["height"], second["y"] + second["height"]) - max(first["y"], second["y"])
    return width > 1 and height > 1


async def test_long_names_break_at_separators(queue: PageDriver) -> None:
    """This also holds for page titles, which are truncated after two lines."""
    name = "_".join(f"portrait{number:02}" for number in range(12))
    [job_id] = await queue.submit(name)
    await queue.ended(job_id)
    await queue.open_job(job_id)
    title = queue.page.get_by_role("heading", level=1)
    for width, height in SIZES:
        await queue.page.set_viewport_size({"width": width, "height": height})
        assert await title.evaluate(_BROKEN_AT) == []


# The characters before line breaks in an element that are not separators.
_BROKEN_AT = """(element) => {
  const range = document.createRange();
  const texts = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
  let bottom = null, last = "_", found = [];
  for (const text of texts)
    for (let at = 0; at < text.length; at++) {
      range.setStart(text, at);
      range.setEnd(text, at + 1);
      const { top, height } = range.getBoundingClientRect();
      if (bottom !== null && top > bottom - height / 2 && !"_-./".includes(last)) found.push(last);
      bottom = top + height;
      last = text.data[at];
    }
  return found;
}"""
