"""Sweeps, wildcards and prompt files are counted before they are added, and their outputs are shown as a grid."""

import re
from collections.abc import AsyncIterator
from io import BytesIO

import pytest
import pytest_asyncio
from PIL import Image
from playwright.async_api import Browser, expect

from tests.support.chromium import PageDriver, open_page
from tests.support.web_app import UI
from tests.system.browser.test_every_page import violations

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]

PAINTER = "Make an image from a prompt"


@pytest_asyncio.fixture(loop_scope="session")
async def driver(shared_desk: str, chromium: Browser) -> AsyncIterator[PageDriver]:
    async with open_page(chromium, shared_desk) as driver:
        yield driver
        await driver.tidy()


async def ended_batch(driver: PageDriver) -> str:
    """Return the id of the only batch, once its jobs have ended."""
    [batch] = (await driver.call("GET", "/api/batches"))["items"]
    for job in (await driver.call("GET", f"/api/ai-jobs?batch_id={batch['id']}&limit=200"))["items"]:
        await driver.ended(job["id"])
    return str(batch["id"])


@pytest.mark.journey
async def test_swept_fields_are_counted_and_become_a_grid_that_is_saved_as_a_picture(driver: PageDriver) -> None:
    form = await driver.choose(PAINTER)
    await form.get_by_role("button", name="Sweep Steps").click()
    await expect(form.get_by_role("textbox", name="Steps")).to_be_focused()
    await form.get_by_role("textbox", name="Steps").fill("2..4")
    await form.get_by_role("button", name="Sweep Width").click()
    await form.get_by_role("textbox", name="Width").fill("64, 128")
    await expect(driver.plan).to_contain_text("Steps (3) × Width (2) = 6 jobs")
    # a separate line shows how they are combined, so that the fields keep their positions
    combine = await form.get_by_label("Combine", exact=True).bounding_box()
    field = await form.get_by_role("textbox", name="Steps").bounding_box()
    assert combine is not None
    assert field is not None
    assert combine["width"] > 1.8 * field["width"]
    await expect(driver.plan.get_by_label("First jobs")).to_contain_text("Steps 2 · Width 64")
    await driver.add("Add 6 jobs", count=6)
    batch = await ended_batch(driver)
    await driver.page.goto(f"/gallery?batch={batch}")
    await driver.page.get_by_role("button", name="Grid", exact=True).click()
    table = driver.page.get_by_role("table", name="Grid of the batch")
    await expect(table.get_by_role("columnheader")).to_have_text(["Steps", "Width 64", "Width 128"])
    await expect(table.get_by_role("rowheader")).to_have_text(["2", "3", "4"])
    await expect(table.locator("img")).to_have_count(6)
    # each output is in the column and row of its values
    shown = {item["id"]: item for item in (await driver.call("GET", f"/api/gallery?batch={batch}"))["items"]}
    for row in (1, 2, 3):
        tiles = await table.get_by_role("row").nth(row).locator("[data-id]").all()
        found = [shown[str(await tile.get_attribute("data-id"))] for tile in tiles]
        assert [(item["width"], item["label"]) for item in found] == [
            (width, f"Steps {row + 1} · Width {width}") for width in (64, 128)
        ]
        left, right = [await tile.bounding_box() for tile in tiles]
        assert left is not None
        assert right is not None
        assert left["y"] == right["y"]
        assert left["x"] + left["width"] <= right["x"]
    async with driver.page.expect_download() as downloading:
        await driver.page.get_by_role("button", name="Save as picture").click()
    path = await (await downloading.value).path()
    with Image.open(BytesIO(path.read_bytes())) as picture:
        assert picture.format == "PNG"
        assert picture.width > 2 * 48
        # the labels are dark on white, and the pictures have colours
        assert picture.convert("RGB").getpixel((picture.width - 1, 2)) == (255, 255, 255)
        assert len(picture.convert("RGB").getcolors(2**24) or ()) > 50
        # nothing overlaps the picture in the next column
        gap = picture.convert("RGB").crop((180 + 384 + 1, 0, 180 + 384 + 7, picture.height))
        below_labels = gap.crop((0, 3 * 28, gap.width, gap.height))
        assert below_labels.getcolors() == [(below_labels.width * below_labels.height, (255, 255, 255))]
    await driver.page.reload()
    await expect(table.locator("img")).to_have_count(6)
    axe = (UI / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")
    assert await violations(driver.page, axe) == ""


async def test_invalid_sweep_is_explained_at_its_field(driver: PageDriver) -> None:
    form = await driver.choose(PAINTER)
    await form.get_by_role("button", name="Sweep Steps").click()
    steps = form.get_by_role("textbox", name="Steps")
    await steps.fill("fast")
    await expect(form.get_by_role("alert")).to_contain_text("'fast' is not a number or a range")
    await steps.fill("1..150")
    await form.get_by_role("button", name="Sweep Width").click()
    await form.get_by_role("textbox", name="Width").fill("16..116")
    await expect(driver.plan.get_by_role("alert")).to_contain_text("15,150 items")
    await form.get_by_role("button", name="Use one value for Width").click()
    await expect(driver.plan).to_contain_text("150 jobs")
    await form.get_by_role("button", name="Use one value for Steps").click()
    await expect(steps).to_have_value("20")


async def test_wildcards_are_switched_on_and_recall_gives_the_chosen_prompt(driver: PageDriver) -> None:
    form = await driver.choose(PAINTER)
    prompt = form.get_by_role("textbox", name="Prompt", exact=True)
    await expect(form.get_by_label("Wildcards", exact=True)).to_have_count(0)
    await prompt.fill("a {red|blue} fox")
    modes = form.get_by_label("Wildcards", exact=True)
    await modes.get_by_role("radio", name="All combinations").click()
    await expect(driver.plan).to_contain_text("Prompt (2) = 2 jobs")
    await modes.get_by_role("radio", name="Random").click()
    await driver.add("Add job")
    results = driver.page.get_by_label("Results", exact=True)
    card = results.locator("[data-result]").first
    await expect(card).to_contain_text(re.compile("a (red|blue) fox"))
    await card.get_by_role("button", name="Change and run").click()
    await expect(prompt).to_have_value(re.compile("^a (red|blue) fox$"))


async def test_dropped_text_file_gives_one_prompt_per_line(driver: PageDriver) -> None:
    form = await driver.choose(PAINTER)
    await driver.drop(("scenes.txt", "text/plain", b"a fox\r\n\r\na heron\na lake {at|in} dawn\n"))
    await expect(driver.page.get_by_text("Loaded 3 prompts from scenes.txt.").first).to_be_visible()
    await expect(form.get_by_role("button", name="one per line · 3")).to_be_visible()
    await expect(driver.plan).to_contain_text("3 prompts = 3 jobs")
    await driver.drop(("broken.txt", "text/plain", b"a\xff\xfeb"))
    await expect(driver.page.get_by_text("“broken.txt” is not a UTF-8 text file").first).to_be_visible()
    await expect(driver.plan).to_contain_text("3 prompts = 3 jobs")
