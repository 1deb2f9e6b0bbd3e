"""The gallery in a real browser: outputs appear, and are found, rated, compared, collected, downloaded and deleted."""

import io
import json
import re
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from PIL import Image
from playwright.async_api import Browser, FloatRect, Locator, Page, expect

from tests.support.chromium import PageDriver, open_page, until
from tests.support.desk import make_desk
from tests.support.graphs import five_images
from tests.support.world import PATIENCE_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = "<img src=x onerror=\"window.hit=1\"><script>window.hit=1</script> & 'quoted'"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gallery_desk(tmp_path_factory: pytest.TempPathFactory, built_app: Path) -> AsyncIterator[str]:
    """Share one desk among these tests; each test uses its own batch."""
    folder = tmp_path_factory.mktemp("gallery")
    async with make_desk(folder / "data", shutdown_seconds=0).open() as (_worker, ready):
        yield ready.url


@pytest_asyncio.fixture(loop_scope="session")
async def driver(gallery_desk: str, chromium: Browser) -> AsyncIterator[PageDriver]:
    async with open_page(chromium, gallery_desk) as driver:
        yield driver


def tiles(page: Page) -> Locator:
    return page.get_by_role("list", name="Outputs").get_by_role("listitem")


def tile(page: Page, name: str) -> Locator:
    return tiles(page).filter(has=page.get_by_role("button", name=re.compile(f"^{re.escape(name)}, ")))


def opener(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=re.compile(f"^{re.escape(name)}, "))


async def run_batch(driver: PageDriver, *labels: str, effect: str = "Invert an image") -> str:
    """Run a batch, wait for its outputs and return its id."""
    effects = {effect["name"]: effect["id"] for effect in (await driver.call("GET", "/api/effects?limit=50"))["items"]}
    file_id = await driver.upload()
    items = [{"input_file_id": file_id, "label": label} for label in labels]
    body = {"effect_id": effects[effect], "label": f"batch {uuid4()}", "items": items}
    batch = str((await driver.call("POST", "/api/batches", body))["id"])
    page = driver.page
    await page.goto(f"/gallery?batch={batch}")
    # the first jobs wait for the worker to start
    await expect(tiles(page)).to_have_count(len(labels), timeout=PATIENCE_SECONDS * 1000)
    await expect(opener(page, labels[-1])).to_be_visible()
    return batch


async def listed(driver: PageDriver, batch: str, **query: Any) -> list[Any]:
    page = await driver.http.get("/api/gallery", params={"batch": batch, "limit": 200, **query})
    return list(page.raise_for_status().json()["data"]["items"])


async def select(page: Page, *names: str) -> None:
    for name in names:
        await page.get_by_role("checkbox", name=f"Select {name}", exact=True).click()


_IS_LOADED = """[...document.querySelectorAll("[role=dialog] :is(img, video)")]
  .every((media) => media.tagName === "IMG" ? media.complete && media.naturalWidth > 0 : media.readyState >= 2)"""


async def box(element: Locator) -> FloatRect:
    found = await element.bounding_box()
    assert found is not None
    return found


async def colors(element: Locator) -> int:
    """Return the number of colors on the screen where the element is."""
    with Image.open(io.BytesIO(await element.screenshot())) as picture:
        return len(picture.convert("RGB").getcolors(picture.width * picture.height) or [])


@pytest.mark.journey
async def test_new_outputs_appear_without_moving_the_current_one(driver: PageDriver) -> None:
    page = driver.page
    await run_batch(driver, *(f"first {number}" for number in range(8)))
    await page.set_viewport_size({"width": 390, "height": 500})
    await page.goto("/gallery")
    await expect(tiles(page).first).to_be_visible()
    scroller = page.locator("[data-gallery]")
    await scroller.evaluate("element => { element.scrollTop = 150; }")
    seen = tiles(page).filter(visible=True).nth(3)
    name = await seen.get_attribute("data-id")
    before = await page.locator(f"[data-id='{name}']").bounding_box()
    await driver.submit("second")
    new = page.get_by_role("button", name=re.compile(r"^1 new"))
    await expect(new).to_be_visible()
    after = await page.locator(f"[data-id='{name}']").bounding_box()
    assert before
    assert after
    assert abs(before["y"] - after["y"]) <= 260  # the row may have reflowed, but it is visible
    await new.click()
    await expect(opener(page, "second")).to_be_in_viewport()


async def test_filters_and_search_are_in_the_url_and_survive_reload(driver: PageDriver) -> None:
    page = driver.page
    batch = await run_batch(driver, "red boat", "blue boat", "red script_desk")
    await page.get_by_role("searchbox").fill("boat red")
    await expect(tiles(page)).to_have_count(1)
    await expect(page).to_have_url(re.compile(r"q=boat\+red"))
    await page.reload()
    await expect(opener(page, "red boat")).to_be_visible()
    await expect(tiles(page)).to_have_count(1)
    await expect(page.get_by_role("searchbox")).to_have_value("boat red")
    await page.get_by_role("button", name="Videos").click()
    await expect(page.get_by_role("heading", name="No matching outputs")).to_be_visible()
    await page.go_back()
    await expect(tiles(page)).to_have_count(1)
    await page.goto(f"/gallery?batch={batch}&by=workflow")
    await expect(page.get_by_role("heading", name="Invert an image · 3 outputs")).to_be_visible()


async def test_filters_do_not_squeeze_the_search_on_a_tablet(driver: PageDriver) -> None:
    page = driver.page
    batch = await run_batch(driver, "one")
    for width, path in ((1024, "/gallery"), (1024, f"/gallery?batch={batch}"), (1440, f"/gallery?batch={batch}")):
        await page.set_viewport_size({"width": width, "height": 800})
        await page.goto(path)
        await expect(tiles(page).first).to_be_visible()
        search, first = await box(page.get_by_role("searchbox")), await box(page.get_by_role("button", name="All"))
        assert search["width"] >= 300
        assert search["y"] + search["height"] <= first["y"]


async def test_keys_star_and_reject_in_grid_and_lightbox(driver: PageDriver) -> None:
    page = driver.page
    batch = await run_batch(driver, "one", "two", "three")
    # newest first
    await page.keyboard.press("j")
    await page.keyboard.press("s")
    await expect(opener(page, "three")).to_have_accessible_name("three, image, starred")
    await page.keyboard.press("j")
    await page.keyboard.press("d")
    await expect(opener(page, "two")).to_have_accessible_name("two, image, rejected")
    await page.keyboard.press("Enter")
    lightbox = page.get_by_role("dialog", name="Output two")
    await expect(lightbox.get_by_role("button", name="Remove rejection")).to_be_visible()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("s")
    await expect(
        page.get_by_role("dialog", name="Output one").get_by_role("button", name="Remove star")
    ).to_be_visible()
    await page.keyboard.press("i")
    note = page.get_by_label("Note", exact=True)
    await note.fill("for the poster")
    await note.press("Escape")
    await expect(page.get_by_text("Note saved", exact=True).first).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    marks = {file["label"]: (file["starred"], file["rejected"], file["note"]) for file in await listed(driver, batch)}
    assert marks == {
        "one": (True, False, "for the poster"),
        "two": (False, True, None),
        "three": (True, False, None),
    }
    await page.get_by_role("button", name="Starred", exact=True).click()
    await expect(tiles(page)).to_have_count(2)


async def test_lightbox_and_comparison_share_grid_keys_and_fit_a_phone(driver: PageDriver) -> None:
    page = driver.page
    batch = await run_batch(driver, "a", "b", "c", "d")
    ids = [file["id"] for file in await listed(driver, batch)]
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(f"/gallery?batch={batch}&compare={','.join(ids)}")
    compare = page.get_by_role("dialog", name="Compare")
    await expect(compare.get_by_role("button", name="Remove D")).to_be_visible()
    outside = """() => [...document.querySelectorAll("[role=dialog] button")]
      .map((element) => element.getBoundingClientRect()).filter((box) => box.right > innerWidth).length"""
    assert await page.evaluate(outside) == 0
    await page.keyboard.press("d")
    await page.keyboard.press("2")
    await expect(compare.get_by_role("button", name="Remove rejection: B")).to_be_visible()
    await page.set_viewport_size({"width": 1440, "height": 900})
    await page.goto(f"/gallery?batch={batch}&open={ids[0]}")
    await expect(page.get_by_role("button", name="Change and run")).to_be_visible()
    await page.keyboard.press("Delete")
    question = page.get_by_role("dialog", name="Delete 1 output?")
    await question.get_by_role("button", name="Cancel").click()
    await expect(question).to_have_count(0)
    await page.keyboard.press("r")
    await expect(page).to_have_url(re.compile("/create"))


async def test_back_undoes_a_search_and_effects_filter_outputs(driver: PageDriver) -> None:
    page = driver.page
    batch = await run_batch(driver, "one", "two")
    await page.goto(f"/gallery?batch={batch}")
    search = page.get_by_role("searchbox")
    for typed in ("o", "on", "one"):
        await search.fill(typed)
        await expect(page).to_have_url(re.compile(f"q={typed}$"))
    await page.go_back()
    await expect(page).to_have_url(re.compile(f"batch={batch}$"))
    await page.get_by_role("button", name="Workflow", exact=True).click()
    await page.get_by_role("menuitem", name="Invert an image").click()
    await expect(page).to_have_url(re.compile("workflow="))
    await expect(tiles(page)).to_have_count(2)


async def test_ratings_and_collections_sync_between_tabs(driver: PageDriver) -> None:
    page = driver.page
    batch = await run_batch(driver, "both")
    async with page.expect_popup() as opened:
        await page.evaluate("(address) => void window.open(address)", f"/gallery?batch={batch}")
    other = await opened.value
    await page.goto(f"/gallery?batch={batch}")
    for tab in (page, other):
        await expect(tiles(tab)).to_have_count(1)
    await opener(page, "both").focus()
    await page.keyboard.press("s")
    await expect(opener(other, "both")).to_have_accessible_name(re.compile("starred"))
    await driver.page.get_by_role("button", name="Collections").click()
    await page.get_by_role("button", name="New collection").click()
    await page.get_by_role("dialog").get_by_label("Name").fill("of both")
    await page.get_by_role("dialog").get_by_role("button", name="Create").click()
    await other.get_by_role("button", name="Collections").click()
    await expect(other.get_by_role("button", name=re.compile("^of both"))).to_be_visible()
    await other.close()


async def test_two_compared_clips_play_in_sync(driver: PageDriver) -> None:
    page = driver.page
    await run_batch(driver, "left clip", "right clip", effect="Make a short clip from an image")
    await select(page, "left clip", "right clip")
    await page.get_by_role("button", name="Compare").click()
    videos = page.get_by_role("dialog", name="Compare").locator("video")
    await expect(videos).to_have_count(2)
    await until(page, "[...document.querySelectorAll('video')].every(video => video.readyState >= 2)")
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    times = "[...document.querySelectorAll('[role=dialog] video')].map(video => video.currentTime)"
    first, second = await page.evaluate(times)
    assert first == second
    await page.get_by_label("Playback position").fill("0.2")
    assert await page.evaluate(times) == [0.2, 0.2]
    assert await page.evaluate("[...document.querySelectorAll('[role=dialog] video')].every(video => video.paused)")
    # zoom applies to both clips
    widths = "[...document.querySelectorAll('[role=dialog] video')].map(video => video.getBoundingClientRect().width)"
    # the list of differences loads later and takes some of the height
    await expect(page.get_by_role("region", name="Differences")).to_be_visible()
    fitting, _ = await page.evaluate(widths)
    await page.locator("[data-pane=A] video").hover()
    await page.mouse.wheel(0, -400)
    await until(page, f"{widths}.every((width, _at, all) => width > {fitting} * 1.2 && Math.abs(width - all[0]) < 1)")
    await page.get_by_role("radio", name="Slider").click()
    await expect(page.get_by_role("slider", name=re.compile("Divider"))).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("effect", ["Invert an image", "Make a short clip from an image"])
@pytest.mark.parametrize("count", [2, 3])
async def test_compared_outputs_fill_the_page_and_nothing_covers_them(
    driver: PageDriver, count: int, effect: str
) -> None:
    page = driver.page
    names = [f"take {number}" for number in range(count)]
    batch = await run_batch(driver, *names, effect=effect)
    ids = [file["id"] for file in await listed(driver, batch)]
    for width, height in ((1440, 900), (390, 844)):
        await page.set_viewport_size({"width": width, "height": height})
        await page.goto(f"/gallery?batch={batch}&compare={','.join(ids)}")
        compare = page.get_by_role("dialog", name="Compare")
        differences = compare.get_by_role("region", name="Differences")
        await expect(differences).to_be_visible()
        await until(page, _IS_LOADED)
        bar = await box(compare.get_by_role("button", name="Close"))
        table = await box(differences)
        assert (table["x"], table["width"]) == (0, width)
        assert table["y"] + table["height"] <= height
        pictures = [compare.locator(f"[data-pane={letter}]").locator("img, video") for letter in "ABCD"[:count]]
        boxes = [await box(picture) for picture in pictures]
        for picture, found in zip(pictures, boxes, strict=True):
            assert found["width"] >= width / count - 2
            assert found["height"] >= 0.4 * height / count
            assert bar["y"] + bar["height"] <= found["y"]
            assert found["y"] + found["height"] <= table["y"]
            assert await colors(picture) > 16
        assert len({(found["x"], found["y"]) for found in boxes}) == count
        if count == 2:
            await page.get_by_role("radio", name="Slider").click()
            slider = page.get_by_role("slider", name=re.compile("Divider"))
            found = await box(slider)
            assert found["width"] == width
            assert bar["y"] + bar["height"] <= found["y"]
            assert found["y"] + found["height"] <= table["y"]
            await until(page, _IS_LOADED)
            assert await colors(slider) > 16


async def test_zip_contains_the_selection(driver: PageDriver) -> None:
    page = driver.page
    await run_batch(driver, "zip a", "zip b", "zip c")
    await select(page, "zip a")
    await page.get_by_role("checkbox", name="Select zip c", exact=True).click(modifiers=["Shift"])
    await expect(page.get_by_text("3 selected")).to_be_visible()
    await select(page, "zip b")
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Download as zip").click()
    path = await (await downloading.value).path()
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        names = sorted(name.rpartition("/")[2] for name in archive.namelist())
        assert archive.testzip() is None
    assert [name[:5] for name in names] == ["zip a", "zip c"]


async def test_collection_is_created_filled_renamed_and_deleted(driver: PageDriver) -> None:
    page = driver.page
    batch = await run_batch(driver, "in it", "not in it")
    name = f"for {batch}"
    await select(page, "in it")
    await page.get_by_role("button", name="Add to collection").click()
    await page.get_by_role("menuitem", name="New collection").click()
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_role("button", name="Create", exact=True).click()
    await expect(page.get_by_text(f"1 output added to {name}", exact=True).first).to_be_visible()
    await page.get_by_role("button", name="Collections").click()
    await page.get_by_role("button", name=re.compile(rf"^{name}\s*1 output")).click()
    await expect(tiles(page)).to_have_count(1)
    await expect(opener(page, "in it")).to_be_visible()
    await page.get_by_role("button", name="Collections").click()
    await page.get_by_role("button", name=f"Actions for {name}").click()
    await page.get_by_role("menuitem", name="Rename").click()
    await page.get_by_label("Name", exact=True).fill(f"{name} again")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("button", name="Collections")).to_have_text(f"{name} again")
    await page.get_by_role("button", name="Collections").click()
    await page.get_by_role("button", name=f"Actions for {name} again").click()
    await page.get_by_role("menuitem", name="Delete collection").click()
    await page.get_by_role("button", name="Delete collection").click()
    await expect(page.get_by_role("button", name="Collections")).to_have_text("Collections")
    assert len(await listed(driver, batch)) == 2


async def test_outputs_are_copied_to_a_folder(driver: PageDriver) -> None:
    page = driver.page
    await run_batch(driver, "copy me")
    await select(page, "copy me")
    await page.get_by_role("button", name="Copy to folder").click()
    await page.get_by_label("Folder", exact=True).fill("../out")
    await page.get_by_role("button", name="Copy", exact=True).click()
    await expect(page.get_by_role("alert")).to_be_visible()
    await page.get_by_role("button", name="Choose Folder").click()
    folders = page.get_by_role("dialog", name="Choose a folder")
    await expect(folders.get_by_role("button", name="Up", exact=True)).to_be_disabled()
    await folders.get_by_role("button", name="New folder").click()
    await page.keyboard.type("best of")
    await page.keyboard.press("Enter")
    await expect(folders.get_by_label("This folder")).to_have_text(re.compile("best of$"))
    await folders.get_by_role("button", name="Use this folder").click()
    await expect(page.get_by_label("Folder", exact=True)).to_have_value("best of")
    await page.get_by_role("button", name="Copy", exact=True).click()
    await expect(page.get_by_text(re.compile("1 output copied to .*best of")).first).to_be_visible()
    root = Path((await driver.call("GET", "/api/desk"))["output_folder"])
    assert [path.name[:7] for path in (root / "best of").iterdir()] == ["copy me"]


@pytest.mark.journey
async def test_deletion_names_its_outputs_and_removes_them(driver: PageDriver) -> None:
    page = driver.page
    batch = await run_batch(driver, "stays", "goes")
    await opener(page, "goes").focus()
    await page.keyboard.press("x")
    await page.keyboard.press("Delete")
    dialog = page.get_by_role("dialog", name="Delete 1 output?")
    await expect(dialog).to_contain_text("A job without remaining outputs is deleted with its log and values.")
    await dialog.get_by_role("button", name="Delete 1 output").click()
    await expect(tiles(page)).to_have_count(1)
    await expect(opener(page, "stays")).to_be_visible()
    # Deletion can be undone for a few seconds; leaving the page in that time completes it.
    await page.get_by_role("button", name="Undo").click()
    await expect(tiles(page)).to_have_count(2)
    await opener(page, "goes").focus()
    await page.keyboard.press("Delete")
    await dialog.get_by_role("button", name="Delete 1 output").click()
    await expect(tiles(page)).to_have_count(1)
    await page.reload()
    await expect(tiles(page)).to_have_count(1)
    await expect(opener(page, "stays")).to_be_visible()
    assert [file["label"] for file in await listed(driver, batch)] == ["stays"]


async def test_every_file_of_a_job_is_a_tile(driver: PageDriver) -> None:
    """The files of four images and a second save node are starred, zipped, recalled and deleted one by one."""
    page = driver.page
    slug = (await driver.call("POST", "/api/workflows", {"graph": five_images(), "name": "five"}))["slug"]
    body = {"workflow_slug": slug, "label": f"batch {uuid4()}", "items": [{"label": "five"}]}
    batch = str((await driver.call("POST", "/api/batches", body))["id"])
    await page.goto(f"/gallery?batch={batch}")
    await expect(tiles(page)).to_have_count(5, timeout=PATIENCE_SECONDS * 1000)
    names = [await tiles(page).nth(place).locator("[data-open]").get_attribute("aria-label") for place in range(5)]
    assert names == [*(f"five, image, output {number}" for number in (5, 4, 3, 2)), "five, image"]
    # the last one is twice as wide
    shapes = [await box(tiles(page).nth(place)) for place in range(2)]
    assert shapes[0]["width"] > 1.5 * shapes[1]["width"]
    third = page.get_by_role("button", name="five, image, output 3", exact=True)
    await third.focus()
    await page.keyboard.press("s")
    await expect(page.get_by_role("button", name="five, image, output 3, starred")).to_be_visible()
    assert {item["number"] for item in await listed(driver, batch) if item["starred"]} == {3}
    await page.get_by_role("checkbox").first.click()
    await page.keyboard.press("Control+a")
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Zip").click()
    with zipfile.ZipFile(await (await downloading.value).path()) as zipped:
        assert len({Path(name).name for name in zipped.namelist()}) == 5
    await page.keyboard.press("Escape")
    # the cover is deleted, and the other files are kept
    await page.get_by_role("button", name="five, image", exact=True).focus()
    await page.keyboard.press("Delete")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Other outputs of the same job are kept.")
    await expect(dialog.get_by_role("listitem")).to_have_text([re.compile(r"0001_five\.png$")])
    await dialog.get_by_role("button", name="Delete 1 output").click()
    await expect(tiles(page)).to_have_count(4)
    await expect(page.get_by_text("1 output deleted", exact=True)).to_be_visible(timeout=PATIENCE_SECONDS * 1000)
    assert sorted(item["number"] for item in await listed(driver, batch)) == [2, 3, 4, 5]
    await page.get_by_role("button", name="five, image, output 5", exact=True).click()
    await page.get_by_role("dialog").get_by_role("button", name="Change and run").click()
    [job_id] = {item["job_id"] for item in await listed(driver, batch)}
    await expect(page).to_have_url(re.compile(f"/create\\?.*from={job_id}"))


async def test_all_matches_can_be_selected_from_the_url(driver: PageDriver) -> None:
    page = driver.page
    await run_batch(driver, "all 1", "all 2", "all 3")
    await page.keyboard.press("Control+a")
    await expect(page.get_by_text("3 selected")).to_be_visible()
    await expect(page).to_have_url(re.compile("sel=all"))
    await page.reload()
    await expect(page.get_by_text("3 selected")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_text("3 selected")).to_have_count(0)


async def test_output_values_can_be_recalled(driver: PageDriver) -> None:
    page = driver.page
    batch = await run_batch(driver, "recalled")
    [item] = await listed(driver, batch)
    await page.goto(f"/gallery?batch={batch}&open={item['id']}")
    await page.get_by_role("dialog").get_by_role("button", name="Change and run").click()
    await expect(page).to_have_url(re.compile(f"/create\\?.*from={item['job_id']}"))


async def test_workflow_of_an_output_is_downloaded(driver: PageDriver) -> None:
    page = driver.page
    batch = await run_batch(driver, "with its graph")
    [item] = await listed(driver, batch)
    await page.goto(f"/gallery?batch={batch}&open={item['id']}")
    await page.get_by_role("dialog").get_by_role("button", name="More", exact=True).click()
    async with page.expect_download() as downloading:
        await page.get_by_role("menuitem", name="Download workflow").click()
    saved = await (await downloading.value).path()
    nodes = json.loads(saved.read_text("utf-8")).values()
    assert "ImageInvert" in {node["class_type"] for node in nodes}


async def test_output_is_used_as_an_input_without_upload(driver: PageDriver) -> None:
    page = driver.page
    batch = await run_batch(driver, "used")
    [item] = await listed(driver, batch)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    await page.goto(f"/gallery?batch={batch}&open={item['id']}")
    await page.get_by_role("dialog").get_by_role("button", name="More").click()
    await page.get_by_role("menuitem", name="Use as input").click()
    await expect(page).to_have_url(re.compile("/create\\?workflow="))
    await expect(page.get_by_role("button", name=re.compile("^Remove .*png$"))).to_be_attached()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert not [url for url in sent if "uploads" in url]


async def test_markup_in_names_notes_and_prompts_is_shown_as_text(driver: PageDriver) -> None:
    page = driver.page
    graph = {"1": {"class_type": "PreviewAny", "inputs": {"source": HOSTILE}}}
    workflow = await driver.call("POST", "/api/workflows", {"graph": graph, "name": HOSTILE})
    body = {"workflow_slug": workflow["slug"], "label": HOSTILE, "idempotency_key": str(uuid4())}
    await driver.call("POST", "/api/ai-jobs", body)
    await page.goto(f"/gallery?workflow={workflow['slug']}&by=workflow")
    await expect(tiles(page)).to_have_count(1)
    await expect(page.get_by_role("heading", name=f"{HOSTILE} · 1 output")).to_be_visible()
    await expect(tiles(page).locator("button").first).to_contain_text(HOSTILE)
    await tiles(page).locator("button").first.click()
    await expect(page.get_by_role("dialog").locator("pre")).to_have_text(HOSTILE)
    await page.keyboard.press("i")
    await expect(page.get_by_role("complementary", name="Info")).to_contain_text(HOSTILE)
    assert await page.evaluate("window.hit") is None


async def test_empty_gallery_shows_the_next_step(driver: PageDriver) -> None:
    page = driver.page
    await page.goto("/gallery?q=nobody-made-this")
    await expect(page.get_by_role("heading", name="No matching outputs")).to_be_visible()
    await page.get_by_role("button", name="Clear filters").click()
    await expect(page).to_have_url(re.compile(r"/gallery$"))
