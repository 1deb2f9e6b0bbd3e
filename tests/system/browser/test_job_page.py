"""The job page shows outputs, inputs and logs, and updates live while the job runs."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.integration.desk.test_script_jobs import open_script_desk
from tests.support.chromium import PROMPT_GRAPH, PageDriver, open_page
from tests.support.daily_loop import box
from tests.support.graphs import five_images
from tests.system.browser.sample_desk import Filling, picture

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = "<img src=x onerror=\"window.hit=1\"><script>window.hit=1</script> & 'quoted'"
SAVES_TWO = """
    import pathlib
    print("seed: 18446744073709551615")
    for number in (1, 2):
        path = pathlib.Path(f"made {number}.png").absolute()
        path.write_bytes(PICTURE)
        print("saved:", path)
"""


async def test_text_output_is_shown_verbatim_and_copied(shared: PageDriver) -> None:
    page = shared.page
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    graph = {"1": {"class_type": "PreviewAny", "inputs": {"source": HOSTILE}}}
    workflow = await shared.call("POST", "/api/workflows", {"graph": graph, "name": "words"})
    job = await shared.call("POST", "/api/ai-jobs", {"workflow_slug": workflow["slug"], "idempotency_key": "text"})
    await shared.open_job(job["id"])
    await shared.status_is("Done")
    await expect(page.locator("pre").filter(has_text=HOSTILE).first).to_have_text(HOSTILE)
    await page.get_by_role("button", name="Copy text").click()
    await expect(page.get_by_text("Copied", exact=True).first).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == HOSTILE
    assert await page.evaluate("window.hit") is None


async def test_download_has_a_descriptive_file_name(shared: PageDriver) -> None:
    (job_id,) = await shared.submit("a lake")
    await shared.open_job(job_id)
    await shared.status_is("Done")
    async with shared.page.expect_download() as downloading:
        await shared.actions.get_by_role("link", name="Download").click()
    assert re.fullmatch(r"sample-\w+\.png", (await downloading.value).suggested_filename)


@pytest.mark.journey
async def test_running_job_updates_live(shared: PageDriver) -> None:
    await shared.misbehave("Slow", class_type="ImageInvert", seconds=600, steps=600)
    (job_id,) = await shared.submit("long one")
    await shared.open_job(job_id)
    far = shared.page.get_by_role("status").filter(has=shared.page.get_by_role("progressbar", name="Progress"))
    await expect(far).to_contain_text(re.compile(r"ImageInvert · step \d+ of 600"))
    await expect(shared.page.get_by_role("log")).to_contain_text("ImageInvert (2)")
    happened = shared.page.locator("section", has=shared.page.get_by_role("heading", name="Timeline"))
    await expect(happened).to_contain_text("Started")
    await shared.actions.get_by_role("button", name="Cancel").click()
    await shared.status_is("Canceled")
    await expect(happened).to_contain_text("Canceled")


async def test_all_files_of_a_job_are_shown(shared: PageDriver) -> None:
    page = shared.page
    slug = (await shared.call("POST", "/api/workflows", {"graph": five_images(), "name": "five"}))["slug"]
    job = await shared.call("POST", "/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "five"})
    await shared.open_job(job["id"])
    await shared.status_is("Done")
    outputs = page.get_by_role("list", name="Outputs").get_by_role("button")
    await expect(outputs).to_have_count(5)
    shown = page.locator("main img").first
    # the cover is square, and the image of the second save node is twice as wide
    await expect(shown).to_have_js_property("naturalWidth", 16)
    await outputs.last.click()
    await expect(outputs.last).to_have_attribute("aria-pressed", "true")
    await expect(shown).to_have_js_property("naturalWidth", 32)
    async with page.expect_download() as downloading:
        await shared.actions.get_by_role("link", name="Download").click()
    assert (await downloading.value).suggested_filename.endswith("-5.png")
    facts = page.locator("section", has=page.get_by_role("heading", name="Details"))
    await expect(facts).to_contain_text("Outputs5")
    # another window deletes the cover
    cover = (await shared.call("GET", f"/api/ai-jobs/{job['id']}"))["outputs"][0]["file_id"]
    await shared.call("POST", "/api/gallery/delete", {"ids": [cover]})
    await expect(outputs).to_have_count(4)


async def test_64_bit_seeds_keep_all_digits(shared: PageDriver) -> None:
    slug = (await shared.call("POST", "/api/workflows", {"graph": PROMPT_GRAPH, "name": "portrait"}))["slug"]
    wish = {"workflow_slug": slug, "input_payload": {"seed": 18446744073709551613}, "idempotency_key": "seed"}
    job = await shared.call("POST", "/api/ai-jobs", wish)
    await shared.open_job(job["id"])
    values = shared.page.locator("section", has=shared.page.get_by_role("heading", name="Values"))
    await expect(values).to_contain_text("18446744073709551613")


async def test_script_outputs_are_listed_with_the_command(tmp_path: Path, chromium: Browser, built_app: None) -> None:
    async with open_script_desk(tmp_path, SAVES_TWO) as desk, open_page(chromium, desk.ready.url) as driver:
        page = driver.page
        values = {"positive": 'it\'s a "cat" <b>', "input_subdir": "cats"}
        wish = {"workflow_slug": "script", "input_payload": values, "idempotency_key": "script"}
        job = await driver.call("POST", "/api/ai-jobs", wish)
        await driver.open_job(job["id"])
        await driver.status_is("Done")
        attempts = page.locator("section", has=page.get_by_role("heading", name="Attempts"))
        await expect(attempts).to_contain_text("seed 18446744073709551615 · exit code 0")
        await attempts.get_by_text("Command", exact=True).click()
        await expect(attempts.locator("pre")).to_contain_text("""--positive 'it'\\''s a "cat" <b>'""")
        await expect(attempts).to_contain_text("Full output: ")
        for name in ("made 1.png", "made 2.png"):
            link = page.get_by_role("link", name=name, exact=True)
            answer = await page.request.get(str(await link.get_attribute("href")))
            assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
        others = page.get_by_role("list", name="Outputs").get_by_role("button")
        await expect(others).to_have_count(2)
        await others.last.click()
        await expect(page.get_by_role("img", name=re.compile(r"-2\.png$"))).to_have_js_property("naturalWidth", 8)


async def test_player_fits_a_phone(shared: PageDriver) -> None:
    page = shared.page
    async with Filling.of(str(shared.http.base_url)) as filling:
        file_id = await filling.upload("hills.png", picture(3))
        job_id = await filling.submit("image-to-clip", "hills", input_file_id=file_id)
        await filling.ended(job_id)
    await page.set_viewport_size({"width": 390, "height": 844})
    await shared.open_job(job_id)
    seek = page.get_by_role("main").locator("input[type=range]")
    await expect(seek).to_be_visible()
    # the seek bar has its own row: next to the buttons, it would be too short
    row, buttons = await box(seek), [await box(each) for each in await seek.locator("..").get_by_role("button").all()]
    assert row["width"] > 300
    assert len(buttons) >= 5
    assert all(each["y"] >= row["y"] + row["height"] for each in buttons), (row, buttons)
    assert all(each["width"] >= 28 and each["x"] + each["width"] <= 390 for each in buttons), buttons


async def test_clip_is_compared_with_its_input_and_escape_leads_back(shared: PageDriver) -> None:
    """The queue keeps its filters when the user returns."""
    page = shared.page
    async with Filling.of(str(shared.http.base_url)) as filling:
        file_id = await filling.upload("hills.png", picture(3))
        first = await filling.submit("image-to-clip", "hills", input_file_id=file_id)
        await filling.ended(first)
    await page.goto("/queue?q=hills&sort=newest")
    # the clip also plays on hover in the list
    film = shared.unit("hills").locator("[data-preview]")
    await film.hover()
    await expect(film.locator("video")).to_have_count(1)
    await page.get_by_role("button", name="hills", exact=True).click()
    await page.get_by_role("link", name="Open page").click()
    await page.wait_for_url(f"**/jobs/{first}")
    video = page.get_by_role("main").locator("video").first
    await expect(video).to_have_js_property("readyState", 4)
    await page.locator("body").focus()
    await page.keyboard.press(".")
    await expect(video).to_have_js_property("paused", True)
    assert 0.03 < float(await video.evaluate("video => video.currentTime")) < 0.06
    await page.keyboard.press("m")
    await expect(video).to_have_js_property("muted", False)
    await page.get_by_role("radio", name="Compare").click()
    slider = page.get_by_role("slider", name="Divider between input and output").locator("..")
    frame, shown = await slider.bounding_box(), await slider.locator("video").bounding_box()
    assert frame is not None
    assert shown is not None
    assert (shown["width"], shown["height"]) == (frame["width"], frame["height"])
    await page.keyboard.press("Escape")
    await page.wait_for_url("**/queue?q=hills&sort=newest**")
    # the queue can also be reached through the rail from any page
    await page.get_by_role("link", name="Gallery").first.click()
    await page.wait_for_url("**/gallery")
    await page.get_by_role("navigation", name="Areas").get_by_role("link", name="Queue").click()
    await page.wait_for_url("**/queue?q=hills&sort=newest")
