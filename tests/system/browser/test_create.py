"""The Create page in a real browser: from first start to first output, batches, drafts and rejected input."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from playwright.async_api import Browser, FilePayload, Locator, expect

from comfyrelay.desk.examples import sample_image
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from tests.integration.desk.test_script_jobs import open_script_desk
from tests.support.api_calls import png
from tests.support.chromium import PROMPT_GRAPH, PageDriver, open_page
from tests.support.daily_loop import box
from tests.support.desk import make_desk
from tests.support.editor_files import empty, node, save, workflow
from tests.support.graphs import invert, invert_file

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]

SCRIPT = """
    import pathlib
    path = pathlib.Path("made.png").absolute()
    path.write_bytes(PICTURE)
    print("saved:", path)
"""


@pytest_asyncio.fixture(loop_scope="session")
async def driver(shared_desk: str, chromium: Browser) -> AsyncIterator[PageDriver]:
    async with open_page(chromium, shared_desk, lands=re.compile("/create")) as driver:
        # files that are dropped before the page is ready are lost
        await expect(driver.page.get_by_role("form")).to_be_visible()
        yield driver
        await driver.tidy()


def picture(name: str, colour: str = "#112233") -> FilePayload:
    return {"name": name, "mimeType": "image/png", "buffer": png(colour)}


async def choose(driver: PageDriver, name: str) -> Locator:
    await driver.page.get_by_role("navigation", name="Workflows").get_by_role("link", name=name).click()
    form = driver.page.get_by_role("form", name=name)
    await expect(form).to_be_visible()
    return form


async def give(driver: PageDriver, *files: FilePayload) -> None:
    """Add files to the main input, which uploads them at once."""
    await driver.page.get_by_label("Add images").first.set_input_files(files=list(files))
    await expect(driver.page.get_by_role("button", name=re.compile("^Remove photo|^Remove ")).first).to_be_attached()
    await expect(driver.page.get_by_role("progressbar")).to_have_count(0)


def add(driver: PageDriver, name: str | re.Pattern[str] = re.compile("^Add (job|[0-9]+ jobs)")) -> Locator:
    return driver.page.get_by_label("Summary").get_by_role("button", name=name)


async def jobs_of(driver: PageDriver) -> list[dict[str, Any]]:
    found = await driver.call("GET", "/api/ai-jobs?limit=200")
    items: list[dict[str, Any]] = found["items"]
    return items


async def ended(driver: PageDriver, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(120):
        while True:
            found = await jobs_of(driver)
            if len(found) == count and all(job["status"] in ("completed", "failed") for job in found):
                return found
            await asyncio.sleep(0.1)


@pytest.mark.journey
async def test_first_start_leads_to_a_first_output(driver: PageDriver) -> None:
    await choose(driver, "Invert an image")
    await driver.page.get_by_role("button", name="Use sample image").click()
    await expect(driver.page.get_by_role("button", name="Remove sample.png")).to_be_attached()
    await add(driver, re.compile("Add job")).click()
    await expect(driver.page.get_by_text("Added 1 job.", exact=True).first).to_be_visible()
    # the form is still open
    await expect(driver.page.get_by_role("button", name="Remove sample.png")).to_be_attached()
    [job] = await ended(driver, 1)
    assert job["status"] == "completed"
    assert job["outputs"]
    # the output becomes the picture of the workflow
    async with asyncio.timeout(60):
        while not (await driver.call("GET", "/api/effects"))["items"][0]["cover_url"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await driver.page.reload()
    cover = driver.page.get_by_role("link", name="Invert an image").locator("img")
    await expect(cover).to_have_js_property("complete", value=True)


@pytest.mark.journey
async def test_twelve_images_with_three_attempts_are_one_batch(driver: PageDriver) -> None:
    await choose(driver, "Invert an image")
    await give(driver, *(picture(f"photo-{number:02}.png", f"#{number:02x}2233") for number in range(1, 13)))
    await driver.page.get_by_role("textbox", name="Variations").fill("3")
    plan = driver.page.get_by_label("Summary")
    await expect(plan).to_contain_text("12 images × 3 variations = 36 jobs")
    await expect(plan.get_by_label("First jobs").locator("img")).to_have_count(36)
    await plan.get_by_text("Name, folder, priority").click()
    await plan.get_by_label("Name", exact=True).fill("storm")
    await plan.get_by_label("Folder", exact=True).fill("lighthouse")
    await expect(add(driver)).to_be_enabled()
    await driver.page.keyboard.press("Control+Enter")
    await expect(driver.page.get_by_text("Added 36 jobs.", exact=True).first).to_be_visible()
    [batch] = (await driver.call("GET", "/api/batches"))["items"]
    assert (batch["label"], batch["total"]) == ("storm", 36)
    assert {job["label"] for job in await jobs_of(driver)} >= {"photo-01 · try 1", "photo-12 · try 3"}


async def test_dropped_editor_workflow_can_be_run(driver: PageDriver) -> None:
    saved = workflow([empty(), save(2, 1)], [(1, 1, 0, 2, 0)])
    await driver.drop(("mine.json", "application/json", json.dumps(saved).encode()))
    form = driver.page.get_by_role("form", name="mine")
    await expect(form).to_be_visible()
    await expect(driver.page).to_have_url(re.compile("workflow=mine"))
    await add(driver).click()
    [job] = await ended(driver, 1)
    assert job["status"] == "completed"


async def test_invalid_workflow_is_explained_and_the_form_is_kept(driver: PageDriver) -> None:
    await choose(driver, "Invert an image")
    for content, message in ((b"{", "is empty or not valid JSON"), (b'{"nodes": [], "links": []}', "has no nodes")):
        await driver.drop(("w.json", "application/json", content))
        dialog = driver.page.get_by_role("dialog")
        await expect(dialog).to_contain_text(message)
        await dialog.get_by_text("Close", exact=True).click()
    await expect(driver.page.get_by_role("form", name="Invert an image")).to_be_visible()


async def test_images_dropped_with_workflows_become_inputs(driver: PageDriver) -> None:
    await choose(driver, "Invert an image")
    saved = json.dumps(workflow([empty(), save(2, 1)], [(1, 1, 0, 2, 0)])).encode()
    api = json.dumps(PROMPT_GRAPH).encode()
    await driver.drop(
        ("a.png", "image/png", png("#112233")),
        ("a.json", "application/json", b'{"camera": "none"}'),
        ("saved.json", "application/json", saved),
        ("painter.json", "application/json", api),
    )
    await expect(driver.page.get_by_text("Skipped (not a workflow or media file): a.json.").first).to_be_visible()
    names = driver.page.get_by_role("navigation", name="Workflows")
    for name in ("saved", "painter"):
        await expect(names.get_by_role("link", name=name)).to_be_visible()
    await expect(driver.page.get_by_role("form", name="Invert an image")).to_be_visible()
    await expect(driver.page.get_by_role("button", name="Remove a.png")).to_be_attached()


async def test_dropped_empty_file_is_explained_next_to_it(driver: PageDriver) -> None:
    form = await choose(driver, "Invert an image")
    await driver.drop(("empty.png", "image/png", b""))
    problem = driver.page.get_by_text("This file is empty. Choose another one.").first
    await expect(problem).to_be_visible()
    await expect(form).to_be_visible()


async def test_text_named_as_an_image_is_refused_by_its_name(driver: PageDriver) -> None:
    notes = ("notes.png", "image/png", b"<html>404 Not Found</html>")
    text = "notes.png is a text file, not an image. It may be a saved error page."
    await driver.drop(notes)
    await expect(driver.page.get_by_text(text).first).to_be_visible()
    # together with another file, the error is shown at the field
    await driver.drop(notes, ("photo.png", "image/png", png("#112233")))
    await expect(driver.page.get_by_role("region", name="Images").get_by_role("alert")).to_have_text(text)
    await add(driver).click()
    [job] = await ended(driver, 1)
    assert job["status"] == "completed"


async def test_output_folder_of_a_batch_is_chosen_or_typed(driver: PageDriver) -> None:
    outputs = Path((await driver.call("GET", "/api/desk"))["output_folder"])
    (outputs / "portraits").mkdir(parents=True, exist_ok=True)
    await choose(driver, "Invert an image")
    await driver.plan.get_by_text("Name, folder, priority").click()
    folder = driver.plan.get_by_role("textbox", name="Folder")
    await driver.plan.get_by_role("button", name="Choose Folder").click()
    dialog = driver.page.get_by_role("dialog", name="Choose a folder")
    await expect(dialog.get_by_role("button", name="Up", exact=True)).to_be_disabled()
    await dialog.get_by_role("button", name="portraits", exact=True).click()
    await dialog.get_by_role("button", name="Use this folder").click()
    await expect(folder).to_have_value("portraits")
    await folder.fill("portraits/new")
    await expect(folder).to_have_value("portraits/new")


async def test_folder_is_chosen_and_the_search_is_in_the_url(driver: PageDriver, tmp_path: Path) -> None:
    folder = tmp_path / "shots"
    (folder / "day 1").mkdir(parents=True)
    for name in ("a2.png", "a10.png", "day 1/b.png", "notes.txt"):
        (folder / name).write_bytes(png("#112233"))
    await choose(driver, "Invert an image")
    await driver.page.get_by_label("Choose folder", exact=True).first.set_input_files(folder)
    removes = driver.page.get_by_role("button", name=re.compile("^Remove .*png"))
    await expect(removes).to_have_count(3)
    names = [await remove.get_attribute("aria-label") for remove in await removes.all()]
    assert names == ["Remove a2.png", "Remove a10.png", "Remove b.png"]
    await driver.page.get_by_role("searchbox").fill("clip")
    await expect(driver.page).to_have_url(re.compile("q=clip"))
    await driver.page.reload()
    links = driver.page.get_by_role("navigation", name="Workflows").get_by_role("link")
    await expect(links).to_have_count(1)
    await links.click()
    await expect(driver.page).to_have_url(re.compile("q=clip"))


async def test_unlocked_seed_is_remembered(driver: PageDriver) -> None:
    form = await choose(driver, "Make an image from a prompt")
    seed = form.get_by_role("textbox", name="Seed")
    await seed.fill("42")
    await form.get_by_role("button", name="Use a new seed for each job").click()
    await expect(seed).to_have_value("")
    await expect(seed).to_have_attribute("placeholder", "42")
    await form.get_by_role("button", name="Lock seed").click()
    await expect(seed).to_have_value("42")


async def test_rolling_the_dice_locks_the_shown_seed(driver: PageDriver) -> None:
    form = await choose(driver, "Make an image from a prompt")
    seed = form.get_by_role("textbox", name="Seed")
    await expect(seed).to_have_value("")
    await form.get_by_role("button", name="New random seed").click()
    await expect(seed).to_have_value(re.compile(r"^\d+$"))
    await expect(form.get_by_role("button", name="Use a new seed for each job")).to_be_visible()


async def test_missing_nodes_are_named_and_the_workflow_is_added_anyway(driver: PageDriver) -> None:
    rare = workflow([empty(), node(2, "RareLoader"), save(4, 1)], [(1, 1, 0, 4, 0)])
    await driver.drop(("rare.json", "application/json", json.dumps(rare).encode()))
    dialog = driver.page.get_by_role("dialog")
    await expect(dialog).to_contain_text("RareLoader")
    await dialog.get_by_role("button", name="Add anyway").click()
    await expect(driver.page.get_by_role("form", name="rare")).to_contain_text(
        "Waiting for nodes that no worker has: RareLoader"
    )
    await expect(add(driver)).to_be_disabled()


async def test_missing_model_is_shown_and_the_job_can_be_added(driver: PageDriver) -> None:
    graph = json.loads(json.dumps(PROMPT_GRAPH))
    graph["1"]["inputs"]["ckpt_name"] = "nowhere.safetensors"
    await driver.call("POST", "/api/workflows", {"graph": graph, "name": "lacking"})
    await driver.page.reload()
    # the list marks the workflow before it is chosen, but not workflows whose requirements are met
    listed = driver.page.get_by_role("navigation", name="Workflows")
    await expect(listed.get_by_role("link", name="lacking")).to_contain_text("Missing: 1 model")
    await expect(listed.get_by_text("Missing:")).to_have_count(1)
    form = await choose(driver, "lacking")
    tries = form.get_by_role("textbox", name="Variations")
    await tries.fill("many")
    await driver.page.reload()
    # this is also shown while the form is incomplete
    await expect(tries).to_have_value("many")
    await expect(driver.page.get_by_label("Summary")).to_contain_text("nowhere.safetensors")
    await tries.fill("1")
    await add(driver, "Add anyway").click()
    await expect(driver.page.get_by_text("Added 1 job.", exact=True).first).to_be_visible()
    [job] = await jobs_of(driver)
    assert job["status"] == "queued"


async def made_picture(driver: PageDriver, graph: dict[str, Any], **wish: Any) -> tuple[str, str, bytes]:
    slug = (await driver.call("POST", "/api/workflows", {"graph": graph, "name": "mine"}))["slug"]
    await driver.call("POST", "/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": str(uuid4()), **wish})
    [job] = await ended(driver, 1)
    return "made.png", "image/png", (await driver.http.get(job["outputs"][0]["url"])).content


async def test_dropped_output_is_run_again_or_used_as_input(driver: PageDriver) -> None:
    dropped = await made_picture(driver, invert())
    dialog = driver.page.get_by_role("dialog")
    await driver.drop(dropped)
    await expect(dialog).to_contain_text("contains its workflow")
    await dialog.get_by_role("button", name="Use as input").click()
    await expect(driver.page.get_by_role("button", name="Remove made.png")).to_be_attached()
    await driver.drop(dropped)
    await dialog.get_by_role("button", name="Run again").click()
    await expect(driver.page).to_have_url(re.compile("workflow=made"))
    await add(driver).click()
    assert [job["status"] for job in await ended(driver, 2)] == ["completed", "completed"]


async def test_rerun_of_an_image_to_image_output_asks_for_its_input(driver: PageDriver) -> None:
    dropped = await made_picture(driver, invert_file("gone.png"), input_file_id=await driver.upload())
    await driver.drop(dropped)
    await driver.page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    message = driver.page.get_by_text("“made.png” does not contain its input file. Choose the file.")
    await expect(message).to_be_visible()
    await give(driver, {"name": "dog.png", "mimeType": "image/png", "buffer": sample_image()})
    await expect(message).to_be_hidden()


async def test_deleted_input_is_named_and_chosen_again(tmp_path: Path, chromium: Browser) -> None:
    data_dir = tmp_path / "data"
    async with (
        make_desk(data_dir, shutdown_seconds=0).open() as (_worker, ready),
        open_page(chromium, ready.url, lands=re.compile("/create")) as driver,
    ):
        page = driver.page
        await choose(driver, "Invert an image")
        await give(driver, picture("fox.png"))
        async with Engine(Settings(data_dir=data_dir)) as engine:
            retention = engine.operations.retention
            retention.configure(retention_days=None, unused_upload_hours=0)
            await retention.run_once()
        # the desk tells the open page, and an earlier draft learns it when it is opened
        await add(driver).click()
        notice = page.get_by_role("alert").filter(has_text="The file “fox.png” was deleted")
        await expect(notice).to_be_visible()
        await page.reload()
        await expect(notice).to_be_visible()
        assert await jobs_of(driver) == []
        async with page.expect_file_chooser() as chooser:
            await notice.get_by_role("button", name="Choose again").click()
        await (await chooser.value).set_files(files=[picture("fox.png")])
        await expect(notice).to_be_hidden()
        await add(driver).click()
        assert [job["status"] for job in await ended(driver, 1)] == ["completed"]


async def test_typed_input_survives_escape_navigation_and_reload(driver: PageDriver) -> None:
    await driver.call("POST", "/api/workflows", {"graph": PROMPT_GRAPH, "name": "painter"})
    await driver.page.reload()
    await choose(driver, "painter")
    prompt = driver.page.get_by_label("Prompt", exact=True)
    await prompt.fill("a storm\na calm")
    await driver.page.get_by_role("textbox", name="Steps").fill("many")
    await driver.page.keyboard.press("Escape")
    await choose(driver, "Invert an image")
    await give(driver, picture("photo-1.png"))
    await driver.page.get_by_role("link", name="Gallery").click()
    await expect(driver.page).to_have_url(re.compile("/gallery"))
    await driver.page.go_back()
    await driver.page.reload()
    await expect(driver.page.get_by_role("button", name="Remove photo-1.png")).to_be_attached()
    shown = driver.page.get_by_label("Images · 1").locator("img")
    await expect(shown).to_have_js_property("complete", value=True)
    await choose(driver, "painter")
    await expect(prompt).to_have_value("a storm\na calm")
    # invalid values are kept as well
    await expect(driver.page.get_by_role("textbox", name="Steps")).to_have_value("many")


async def test_error_is_shown_at_its_field_even_if_the_section_is_folded(driver: PageDriver) -> None:
    await driver.call("POST", "/api/workflows", {"graph": PROMPT_GRAPH, "name": "painter"})
    await driver.page.reload()
    form = await choose(driver, "painter")
    await form.locator("summary", has_text="Sampler").click()
    await form.get_by_role("textbox", name="Cfg").fill("1000")
    await form.locator("summary", has_text="Sampler").click()
    await add(driver).click()
    await expect(form.get_by_text("Must be at most 100.")).to_be_visible()
    await expect(form.get_by_role("textbox", name="Cfg")).to_be_focused()
    await form.get_by_role("textbox", name="Cfg").fill("5")
    await expect(form.get_by_text("Must be at most 100.")).to_be_hidden()
    await choose(driver, "Invert an image")
    await driver.plan.get_by_role("button", name="Choose an image").click()
    await expect(driver.page.get_by_text("Required.")).to_be_visible()
    assert await jobs_of(driver) == []


async def test_64_bit_seeds_keep_all_digits_and_count_up(driver: PageDriver) -> None:
    await driver.call("POST", "/api/workflows", {"graph": PROMPT_GRAPH, "name": "painter"})
    await driver.page.reload()
    form = await choose(driver, "painter")
    await form.get_by_role("textbox", name="Seed").fill("18446744073709551614")
    await form.get_by_role("textbox", name="Variations").fill("2")
    await add(driver, "Add 2 jobs").click()
    await expect(driver.page.get_by_text("Added 2 jobs.", exact=True).first).to_be_visible()
    assert {job["seed"] for job in await jobs_of(driver)} == {18446744073709551614, 18446744073709551615}


async def test_missing_preset_shows_how_to_save_one(driver: PageDriver) -> None:
    none = {"data": {"items": [], "next_cursor": None}, "message": "OK"}
    await driver.page.route("**/api/presets?*", lambda route: route.fulfill(json=none))
    await driver.call("POST", "/api/workflows", {"graph": PROMPT_GRAPH, "name": "painter"})
    await driver.page.reload()
    form = await choose(driver, "painter")
    await expect(form.get_by_label("Presets")).to_contain_text("Change some values and save them")
    await driver.page.unroute("**/api/presets?*")


async def test_presets_are_applied_saved_and_deleted(driver: PageDriver) -> None:
    await driver.call("POST", "/api/workflows", {"graph": PROMPT_GRAPH, "name": "painter"})
    await driver.page.reload()
    form = await choose(driver, "painter")
    presets = form.get_by_label("Presets")
    await presets.get_by_role("button", name="look-dev", exact=True).click()
    await expect(form.get_by_role("textbox", name="Steps")).to_have_value("8")
    await driver.page.get_by_role("button", name="Undo").click()
    await expect(form.get_by_role("textbox", name="Steps")).to_have_value("20")
    await presets.get_by_role("button", name="Save values as preset…").click()
    dialog = driver.page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("eleven <b>")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_contain_text("Change a value first")
    await dialog.get_by_role("button", name="Cancel").click()
    await form.get_by_role("textbox", name="Steps").fill("11")
    await presets.get_by_role("button", name="Save values as preset…").click()
    # page shortcuts do not apply to a dialog
    await driver.page.keyboard.press("Control+Enter")
    await dialog.get_by_label("Name").fill("eleven <b>")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_have_count(0)
    assert await jobs_of(driver) == []
    await form.get_by_role("textbox", name="Steps").fill("3")
    await presets.get_by_role("button", name="eleven <b>", exact=True).click()
    await expect(form.get_by_role("textbox", name="Steps")).to_have_value("11")
    await presets.get_by_role("button", name="Delete preset eleven <b>").click()
    await driver.page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    await expect(presets.get_by_role("button", name="eleven <b>", exact=True)).to_have_count(0)


async def test_edited_rerun_shows_the_changes(driver: PageDriver) -> None:
    slug = (await driver.call("POST", "/api/workflows", {"graph": PROMPT_GRAPH, "name": "painter"}))["slug"]
    payload = {"prompt": "a lake\nat night", "seed": 18446744073709551615}
    wish = {"workflow_slug": slug, "input_payload": payload, "idempotency_key": str(uuid4())}
    job = await driver.call("POST", "/api/ai-jobs", wish)
    await driver.page.goto(f"/create?workflow={slug}")
    form = driver.page.get_by_role("form", name="painter")
    await form.get_by_label("Prompt", exact=True).fill("an hour of work")
    await driver.page.goto(f"/create?from={job['id']}")
    await expect(form.get_by_label("Prompt", exact=True)).to_have_value("a lake\nat night")
    await driver.page.get_by_role("button", name="Undo").click()
    await expect(form.get_by_label("Prompt", exact=True)).to_have_value("an hour of work")
    await expect(driver.page).to_have_url(re.compile(f"workflow={slug}$"))
    await driver.page.goto(f"/create?from={job['id']}")
    await expect(form.get_by_label("Prompt", exact=True)).to_have_value("a lake\nat night")
    await expect(form.get_by_role("textbox", name="Seed")).to_have_value("18446744073709551615")
    await expect(form).to_contain_text("No values changed.")
    await form.get_by_role("textbox", name="Steps").fill("7")
    await expect(form).to_contain_text("was 20")
    await expect(form).to_contain_text("1 value changed.")
    # the "was" note of a prompt does not hide its mode
    await form.get_by_label("Prompt", exact=True).fill("a lake\nat noon")
    await form.get_by_role("button", name="one prompt").click()
    await expect(form.get_by_role("button", name="one per line · 2")).to_be_visible()
    await form.get_by_role("button", name="Reset Prompt").click()
    await form.get_by_role("button", name="one per line · 2").click()
    await driver.page.reload()
    await expect(form.get_by_role("textbox", name="Steps")).to_have_value("7")
    await add(driver, re.compile("Add job")).click()
    await expect(driver.page.get_by_text("Added 1 job.", exact=True).first).to_be_visible()
    newest = (await jobs_of(driver))[0]
    about = await driver.call("GET", f"/api/desk/jobs/{newest['id']}")
    values = {item["key"]: item["value"] for item in about["inputs"]}
    assert (values["prompt"], newest["seed"]) == ("a lake\nat night", 18446744073709551615)
    assert 7 in values.values()
    # the form no longer refers to the original job
    await expect(form.get_by_text("Change and run: ")).to_have_count(0)
    await expect(driver.page).to_have_url(re.compile(f"workflow={slug}$"))


async def test_recall_banner_keeps_its_text_readable_on_a_phone(driver: PageDriver) -> None:
    page = driver.page
    [job_id] = await driver.submit("a paper boat on a rainy street")
    await driver.ended(job_id)
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(f"/create?from={job_id}")
    banner = page.get_by_role("status").filter(has_text="Change and run")
    text, link, end = banner.locator("p"), banner.get_by_role("link"), banner.get_by_role("button")
    await expect(end).to_be_visible()
    around, text_box, link_box, end_box = [await box(each) for each in (banner, text, link, end)]
    assert text_box["width"] > 0.7 * around["width"]
    assert end_box["x"] >= text_box["x"] + text_box["width"]
    assert link_box["y"] >= text_box["y"] + text_box["height"]


async def test_server_folder_is_counted_and_added(tmp_path: Path, chromium: Browser) -> None:
    desk = make_desk(tmp_path / "data", shutdown_seconds=0)
    place = desk.input_folder / "mine"
    place.mkdir(parents=True)
    for number in range(3):
        (place / f"a{number}.png").write_bytes(png(f"#{number:02x}2233"))
    async with desk.open() as (_worker, ready), open_page(chromium, ready.url, lands=re.compile("/create")) as driver:
        form = await choose(driver, "Invert an image")
        await form.get_by_role("button", name="Use a folder on this machine").click()
        await form.get_by_role("button", name="Choose Folder").click()
        dialog = driver.page.get_by_role("dialog", name="Choose a folder")
        await dialog.get_by_role("button", name="mine").click()
        await expect(dialog.get_by_label("This folder")).to_have_text(str(place))
        await dialog.get_by_role("button", name="Use this folder").click()
        await expect(add(driver)).to_have_text(re.compile("Add 3 jobs"))
        # all files are listed, regardless of the number of jobs
        await form.get_by_role("textbox", name="Variations").fill("2")
        plan = driver.page.get_by_label("Summary")
        await expect(plan).to_contain_text("3 images × 2 variations = 6 jobs")
        await expect(plan.get_by_label("First jobs").get_by_role("listitem")).to_have_count(3)
        await expect(plan.get_by_text(re.compile(r"and \d+ more"))).to_have_count(0)
        await form.get_by_role("textbox", name="Variations").fill("1")
        await add(driver).click()
        await expect(driver.page.get_by_text("Added 3 jobs.", exact=True).first).to_be_visible()
        await form.get_by_role("button", name="The whole input folder").click()
        await expect(driver.plan.locator("[data-add]")).to_be_disabled()


async def test_script_command_is_shown_before_it_runs(tmp_path: Path, chromium: Browser) -> None:
    async with (
        open_script_desk(tmp_path, SCRIPT) as desk,
        open_page(chromium, desk.ready.url, lands=re.compile("/create")) as driver,
    ):
        form = await choose(driver, "Script: mine.py")
        prompt = 'it\'s a "cat" <b>& more</b>'
        await form.get_by_label("Positive", exact=True).fill(prompt)
        await form.get_by_role("textbox", name="Input subdir").fill("nowhere")
        command = driver.page.get_by_label("Command", exact=True)
        await expect(command).to_contain_text("The folder 'nowhere' cannot be read")
        # only a command that was shown can run, and errors appear at their field
        await driver.page.get_by_role("button", name="Show command").click()
        await expect(form.get_by_role("alert")).to_contain_text("cannot be read")
        assert await jobs_of(driver) == []
        await form.get_by_role("textbox", name="Input subdir").fill("cats")
        await expect(driver.page.get_by_role("button", name="Run job")).to_be_visible()
        shown = await command.locator("code").all_inner_texts()
        assert shown[1:] == [
            *(str(tmp_path / "mine.py"), "--wait", "--profile", "look-dev"),
            *("--template-api", str(tmp_path / "templates" / "wan.json"), "--input-subdir", "cats"),
            *("--positive", prompt),
        ]
        await driver.page.get_by_role("button", name="Run job").click()
        [job] = await ended(driver, 1)
        about = await driver.call("GET", f"/api/desk/jobs/{job['id']}")
        assert about["attempts"][0]["about"]["argv"] == shown
        await form.get_by_label("Positive", exact=True).fill("a cat\na dog\na fox")
        await expect(command).to_contain_text("And 2 more, one per prompt.")
        await driver.page.get_by_role("button", name="Run 3 jobs").click()
        await expect(driver.page.get_by_text("Added 3 jobs.", exact=True).first).to_be_visible()


async def test_create_page_fits_a_phone(driver: PageDriver) -> None:
    await driver.page.set_viewport_size({"width": 390, "height": 844})
    await choose(driver, "Make an image from a prompt")
    await expect(add(driver)).to_be_attached()
    wide = "document.querySelector('main').scrollWidth - document.querySelector('main').clientWidth"
    assert await driver.page.evaluate(wide) == 0
