"""The page of the desk in a real browser: from an empty desk to a picture, and everything one does with jobs."""

import json
import re

import pytest
from playwright.async_api import expect

from comfyrelay.desk.examples import sample_picture
from tests.comfy.editor.files import empty, node, save, workflow
from tests.forms.graphs import WAN_22
from tests.web.looking import PROMPT_GRAPH, Looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

SLOW = {"class_type": "ImageInvert", "seconds": 600, "steps": 600}
GRAPH = ("portrait.json", "application/json", json.dumps(PROMPT_GRAPH).encode())
PICTURE = ("cat.png", "image/png", sample_picture())
HOSTILE = "<img src=x onerror=\"window.hit=1\"><script>window.hit=1</script> & 'quoted'"


async def test_the_first_job_is_one_click_away_and_ends_with_a_picture(looking: Looking) -> None:
    page = looking.page
    await expect(page.locator("#stand-in")).to_contain_text("--comfyui-url")
    await expect(page.locator("#machine-text")).to_have_text("Ready · stand-in")
    await page.get_by_role("button", name="Invert an image (sample image)").click()
    await looking.status_is("succeeded")
    picture = looking.pane.locator(".output img")
    await expect(picture).to_be_visible()
    assert await picture.evaluate("each => each.decode().then(() => each.naturalWidth)") == 512
    await expect(looking.rows).to_have_count(1)
    await expect(looking.rows.locator(".badge")).to_have_text("succeeded")
    await expect(looking.pane.locator(".inputs").first).to_contain_text("sample.png")
    await expect(looking.pane.locator(".log")).to_contain_text("ImageInvert")
    async with page.expect_download() as downloading:
        await looking.pane.get_by_role("link", name="Download").click()
    assert re.fullmatch(r"sample-\w+\.png", (await downloading.value).suggested_filename)


async def test_a_text_is_shown_as_it_is_and_copied(looking: Looking) -> None:
    page = looking.page
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    graph = {"1": {"class_type": "PreviewAny", "inputs": {"source": HOSTILE}}}
    made = await looking.call("POST", "/api/workflows", {"graph": graph, "name": "words"})
    job = await looking.call("POST", "/api/ai-jobs", {"workflow_slug": made["slug"], "idempotency_key": "text"})
    await page.goto(f"{page.url.partition('#')[0]}#job/{job['id']}")
    await looking.status_is("succeeded")
    await expect(looking.pane.locator(".output pre")).to_have_text(HOSTILE)
    await looking.pane.get_by_role("button", name="Copy", exact=True).click()
    await expect(looking.pane.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == HOSTILE
    assert await page.evaluate("window.hit") is None


async def test_a_job_is_added_by_form_and_its_clip_is_shown(looking: Looking) -> None:
    page = looking.page
    await page.get_by_role("button", name="Add a job").click()
    await page.get_by_label("Workflow or effect").select_option(label="Make a short clip of an image")
    await page.get_by_role("button", name="Add job").click()
    await expect(page.locator(".field[data-key=image] .field-error")).to_have_text("This is required.")
    await page.locator(".field[data-key=image] input").set_input_files(
        {"name": "cat.png", "mimeType": "image/png", "buffer": PICTURE[2]}
    )
    await page.get_by_label("Frames").fill("many")
    await page.get_by_role("button", name="Add job").click()
    await expect(page.locator(".field[data-key=frames] .field-error")).to_have_text("This must be a number.")
    await page.get_by_label("Frames").fill("6")
    await page.get_by_role("button", name="Add job").click()
    await looking.status_is("succeeded")
    video = looking.pane.locator(".output video")
    await expect(video).to_be_visible()
    await expect(video).to_have_js_property("videoWidth", 512)
    await expect(looking.pane.locator(".inputs").first).to_contain_text(re.compile("Frames\\s*6"))


async def test_a_running_job_shows_its_node_and_step_and_is_canceled_by_key(looking: Looking) -> None:
    await looking.misbehave("Slow", **SLOW)
    await looking.submit("long one")
    row = looking.rows.filter(has_text="long one")
    await expect(row.locator(".badge")).to_have_text("running")
    await expect(row.locator(".words")).to_contain_text(re.compile(r"ImageInvert · step \d+ of 600"))
    assert 0 < float(await row.locator("progress").evaluate("each => each.value")) < 1
    await looking.page.keyboard.press("j")
    await looking.page.keyboard.press("x")
    await expect(row.locator(".badge")).to_have_text("canceled")
    await expect(looking.page.locator("#machine-text")).to_have_text("Ready · stand-in")
    await looking.behave()
    await looking.page.keyboard.press("r")
    await looking.status_is("succeeded")
    await expect(looking.rows.locator(".badge")).to_have_text(["succeeded", "canceled"])


async def test_an_open_job_is_live_by_its_events(looking: Looking) -> None:
    await looking.misbehave("Slow", **SLOW)
    await looking.submit("long one")
    async with looking.page.expect_request(re.compile("/events$")):
        await looking.rows.get_by_role("link", name="long one").click()
    await expect(looking.pane.locator(".words").first).to_contain_text(re.compile(r"step \d+ of 600"))
    await expect(looking.pane.locator(".log")).to_contain_text("ImageInvert (2)")
    await looking.pane.get_by_role("button", name="Cancel").click()
    await looking.status_is("canceled")


async def test_a_failed_job_says_why_and_is_retried(looking: Looking) -> None:
    await looking.misbehave("Fail", class_type="ImageInvert", message="The sides differ.", times=1)
    await looking.submit("unlucky")
    await looking.rows.get_by_role("link", name="unlucky").click()
    await looking.status_is("failed")
    await expect(looking.pane.locator(".error")).to_contain_text("The sides differ.")
    raw = looking.pane.locator("pre.raw")
    await expect(raw).to_be_hidden()
    await looking.pane.get_by_text("Show full error").click()
    await expect(raw).to_contain_text("execution.py")
    await expect(looking.pane.locator(".attempts li")).to_have_count(1)
    await looking.pane.get_by_role("button", name="Retry", exact=True).click()
    await looking.status_is("succeeded")
    await expect(looking.pane.locator(".facts")).to_contain_text("Retry of")
    await expect(looking.rows).to_have_count(2)


async def test_a_dropped_graph_becomes_a_form(looking: Looking) -> None:
    page = looking.page
    await looking.drop(GRAPH)
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_label("Workflow or effect").locator("option:checked")).to_have_text("portrait")
    await expect(dialog.get_by_label("Prompt", exact=True)).to_have_value("a lake")
    await expect(dialog.get_by_label("Negative prompt")).to_have_value("blurry")
    # without a word each run gets a new one
    await expect(dialog.get_by_label("Seed")).to_have_value("")
    shown = await page.locator("#adding-fields > .field").evaluate_all("all => all.map(each => each.dataset.key)")
    assert shown[:6] == ["prompt", "negative_prompt", "seed", "width", "height", "steps"]
    await dialog.get_by_text("more setting").click()
    await expect(dialog.get_by_role("heading", name="Sampler", exact=True)).to_be_visible()
    steps = page.locator(".field[data-key=steps]")
    await expect(steps).to_contain_text("1 to 10000")
    await steps.locator("input").fill("1.5")
    await dialog.get_by_role("button", name="Add job").click()
    await expect(steps.locator(".field-error")).to_have_text("This must be a whole number.")
    await steps.locator("input").fill("8")
    await steps.locator("input").press("ArrowUp")
    await expect(steps.locator("input")).to_have_value("9")
    await steps.locator("input").fill("0")
    await dialog.get_by_role("button", name="Add job").click()
    await expect(steps.locator(".field-error")).to_have_text("This must be at least 1.")
    await expect(page.locator(".field[data-key$=_sampler_name] option").first).to_be_attached()
    await steps.locator("input").fill("30")
    # more digits than JavaScript's numbers have
    await dialog.get_by_label("Seed").fill("18446744073709551614")
    await dialog.get_by_role("button", name="Add job").click()
    await expect(looking.pane.locator(".inputs").first).to_contain_text("18446744073709551614")
    await expect(looking.pane.locator(".inputs").first).to_contain_text("a lake")


async def test_whole_numbers_of_any_length_are_read_and_written_as_they_are(looking: Looking) -> None:
    texts = [
        '{"seed":18446744073709551615,"low":-9223372036854775808,"safe":9007199254740991}',
        '[18446744073709551615,1.2345678901234567,"18446744073709551615 and \\"17446744073709551615\\"",0.5,-1]',
        '{"1":[{"a":"\\\\","b":12345678901234567890}],"text":": 12345678901234567890,"}',
    ]
    same = """async (text) => {
      const { parse, written } = await import("/static/api.js");
      return written(parse(text));
    }"""
    assert [await looking.page.evaluate(same, each) for each in texts] == texts


async def test_a_workflow_as_the_editor_saves_it_becomes_a_form(looking: Looking) -> None:
    saved = workflow([empty(), save(2, 1)], [(1, 1, 0, 2, 0)])
    await looking.drop(("mine.json", "application/json", json.dumps(saved).encode()))
    await expect(looking.page.get_by_role("dialog").get_by_label("batch size")).to_have_value("1")


async def test_a_workflow_without_nodes_is_explained(looking: Looking) -> None:
    await looking.drop(("w.json", "application/json", b'{"nodes": [], "links": []}'))
    await expect(looking.page.locator("#asking")).to_contain_text("The workflow has no nodes.")


async def test_a_file_that_is_no_json_is_explained(looking: Looking) -> None:
    await looking.drop(("w.json", "application/json", b"{"))
    await expect(looking.page.locator("#asking")).to_contain_text("w.json is not a JSON file")


async def test_what_cannot_be_added_opens_no_form_of_something_else(looking: Looking) -> None:
    lacking = workflow([empty(), node(2, "RareLoader"), node(3, "RareSampler"), save(4, 1)], [(1, 1, 0, 4, 0)])
    await looking.drop(("flux.json", "application/json", json.dumps(lacking).encode()))
    said = looking.page.locator("#asking")
    await expect(said).to_contain_text(
        "“flux.json” was not added. These nodes are not installed: RareLoader (node 2), RareSampler (node 3)."
    )
    await expect(looking.page.locator("#adding")).to_be_hidden()
    assert await said.get_by_role("button").all_inner_texts() == ["Close"]
    await said.get_by_role("button", name="Close").click()
    # from within a form: that stays as it was
    await looking.page.get_by_role("button", name="Add a job").click()
    chosen = looking.page.get_by_label("Workflow or effect").locator("option:checked")
    before = await chosen.inner_text()
    await looking.page.locator("#adding-graph").set_input_files(
        files={"name": "flux.json", "mimeType": "application/json", "buffer": json.dumps(lacking).encode()}
    )
    await expect(said).to_contain_text("was not added")
    await said.get_by_role("button", name="Close").click()
    await expect(chosen).to_have_text(before)
    await expect(looking.page.locator("#adding-error")).to_be_hidden()


async def test_a_dropped_picture_is_put_into_the_form(looking: Looking) -> None:
    await looking.drop(PICTURE)
    dialog = looking.page.get_by_role("dialog")
    await expect(dialog.locator(".files")).to_contain_text("cat.png")
    await dialog.get_by_role("button", name="Add job").click()
    await looking.status_is("succeeded")


async def test_several_files_make_one_batch_in_one_row(looking: Looking) -> None:
    await looking.drop(PICTURE, ("dog.png", "image/png", PICTURE[2]), ("owl.png", "image/png", PICTURE[2]))
    dialog = looking.page.get_by_role("dialog")
    await expect(dialog.locator("#adding-sum")).to_have_text("Batch: 3 files = 3 jobs")
    await dialog.get_by_role("button", name="Add 3 jobs").click()
    await expect(looking.rows).to_have_count(1)
    await expect(looking.rows.locator(".words")).to_have_text("3 of 3")
    await expect(looking.rows.locator("progress")).to_have_js_property("value", 1)
    await looking.status_is("succeeded")
    items = looking.pane.locator(".items .item a")
    await expect(items).to_have_text(["cat.png", "dog.png", "owl.png"])
    await items.nth(1).click()
    await expect(looking.pane.locator("h2")).to_have_text("dog.png")
    await expect(looking.pane.locator(".output img")).to_be_visible()
    await looking.pane.get_by_role("link", name="item 2").click()
    await expect(items).to_have_count(3)


async def test_prompts_by_line_and_tries_multiply(looking: Looking) -> None:
    await looking.drop(GRAPH)
    dialog = looking.page.get_by_role("dialog")
    await dialog.get_by_label("Prompt", exact=True).fill("a lake\n\n  a hill \n")
    await dialog.get_by_label("One prompt per line").check()
    await dialog.get_by_label("Tries").fill("2")
    await expect(dialog.locator("#adding-sum")).to_have_text("Batch: 2 prompts × 2 tries = 4 jobs")
    await dialog.get_by_role("button", name="Add 4 jobs").click()
    items = looking.pane.locator(".items .item a")
    await expect(items).to_have_text([f"{words} · try {n}" for words in ("a lake", "a hill") for n in (1, 2)])


async def test_a_preset_keeps_values_and_puts_them_in_with_one_click(looking: Looking) -> None:
    await looking.drop(GRAPH)
    dialog = looking.page.get_by_role("dialog")
    await dialog.get_by_label("Prompt", exact=True).fill("by night")
    await dialog.get_by_label("Seed").fill("18446744073709551615")
    await dialog.get_by_role("button", name="Save preset").click()
    await dialog.get_by_label("Preset name").fill("my look")
    await looking.page.keyboard.press("Enter")
    await expect(dialog.get_by_role("button", name="my look", exact=True)).to_be_visible()
    await dialog.get_by_label("Prompt", exact=True).fill("something else")
    await dialog.get_by_role("button", name="my look", exact=True).click()
    await expect(dialog.get_by_label("Prompt", exact=True)).to_have_value("by night")
    await expect(dialog.get_by_label("Seed")).to_have_value("18446744073709551615")


async def test_the_border_of_two_samplers_moves_with_their_steps_until_it_is_set(looking: Looking) -> None:
    await looking.drop(("wan.json", "application/json", json.dumps(WAN_22).encode()))
    dialog = looking.page.get_by_role("dialog")
    border = dialog.get_by_label("Switch to low-noise sampler at step")
    await expect(border).to_have_value("10")
    await dialog.get_by_role("button", name="look-dev", exact=True).click()
    await expect(dialog.get_by_label("Steps", exact=True)).to_have_value("8")
    await expect(border).to_have_value("4")
    await dialog.get_by_text("more setting").click()
    await border.fill("3")
    await dialog.get_by_label("Steps", exact=True).fill("30")
    await expect(border).to_have_value("3")


async def test_what_users_write_stays_text(looking: Looking) -> None:
    page = looking.page
    await looking.misbehave("Fail", class_type="CheckpointLoaderSimple", message=HOSTILE)
    await looking.drop((f"{HOSTILE[:40]}.json", "application/json", GRAPH[2]))
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Prompt", exact=True).fill(HOSTILE)
    await dialog.get_by_role("button", name="Add job").click()
    await looking.status_is("failed")
    await expect(looking.rows.locator(".name")).to_contain_text(HOSTILE[:40])
    await expect(looking.pane.locator("h2")).to_contain_text(HOSTILE[:40])
    await expect(looking.pane.locator(".inputs").first).to_contain_text(HOSTILE)
    await expect(looking.pane.locator(".error")).to_contain_text("<img")
    await page.get_by_label("Search jobs").fill(HOSTILE[:60])
    await expect(looking.rows).to_have_count(1)
    assert await page.evaluate("window.hit") is None
    assert await page.locator("img[src=x]").count() == 0


async def test_the_queue_is_in_the_order_in_which_it_runs_and_can_be_changed(looking: Looking) -> None:
    await looking.misbehave("Slow", **SLOW)
    await looking.submit("running", "fetched", "first", "second", "third")
    await expect(looking.rows.locator(".name")).to_have_text(["running", "fetched", "first", "second", "third"])
    await expect(looking.rows.nth(1)).to_contain_text("next in queue")
    await expect(looking.rows.nth(4)).to_contain_text("position 4 in queue")
    await looking.rows.get_by_role("link", name="third").click()
    await expect(looking.pane).to_contain_text("Position 3")
    await looking.pane.get_by_role("button", name="Run next").click()
    await expect(looking.rows.locator(".name")).to_have_text(["running", "fetched", "third", "first", "second"])
    await looking.pane.get_by_role("button", name="Move down").click()
    await expect(looking.rows.locator(".name")).to_have_text(["running", "fetched", "first", "third", "second"])


async def test_all_are_paused_and_resumed(looking: Looking) -> None:
    await looking.misbehave("Slow", **SLOW)
    await looking.submit("running", "fetched", "waiting")
    await expect(looking.rows).to_have_count(3)
    await looking.page.get_by_text("Pause all").click()
    await looking.page.get_by_role("button", name="Now:").click()
    paused = looking.page.locator(".chip[data-status=paused] b")
    await expect(paused).to_have_text("3")
    await looking.behave()
    await looking.page.get_by_role("button", name="Resume all").click()
    await expect(looking.page.locator(".chip[data-status=completed] b")).to_have_text("3")


async def test_jobs_are_found_by_status_and_by_words(looking: Looking) -> None:
    page = looking.page
    await looking.submit("a lake", "a hill")
    await looking.submit_batch("many lakes", ["one", "two"])
    await expect(page.locator(".chip[data-status=completed] b")).to_have_text("4")
    await page.keyboard.press("/")
    await page.keyboard.type("LAKE")
    await expect(looking.rows.locator(".name")).to_have_text(["many lakes", "a lake"])
    await page.get_by_label("Search jobs").fill("two")
    await expect(looking.rows.locator(".name")).to_have_text(["two"])
    await page.get_by_label("Search jobs").fill("nowhere")
    await expect(page.locator("#nothing")).to_contain_text("nowhere")
    await page.get_by_label("Search jobs").fill("")
    await page.get_by_role("button", name="failed").click()
    await expect(page.locator("#nothing")).to_have_text("No failed jobs.")
    await page.get_by_role("button", name="succeeded").click()
    await expect(looking.rows.locator(".name")).to_have_text(["many lakes", "a hill", "a lake"])


async def test_a_long_list_goes_on_when_its_end_is_reached(looking: Looking) -> None:
    await looking.misbehave("Slow", **SLOW)
    # the items of a batch fill pages of their own, and are one row
    await looking.submit(*(f"old {number}" for number in range(3)))
    await looking.submit_batch("large", (f"item {number}" for number in range(205)))
    await looking.submit(*(f"job {number}" for number in range(55)))
    await looking.call("POST", "/api/ai-jobs/bulk", {"action": "cancel", "filter": {}})
    await expect(looking.page.locator(".chip[data-status=canceled] b")).to_have_text("263")
    await expect(looking.rows).to_have_count(59)
    await looking.page.reload()
    await expect(looking.rows).to_have_count(50)
    last = looking.rows.filter(has_text=re.compile("^canceledold 0"))
    async with looking.page.expect_response(re.compile(r"/api/ai-jobs\?.*cursor=")):
        await looking.page.mouse.move(300, 500)
        await looking.page.mouse.wheel(0, 100_000)
    while not await last.count():
        await looking.page.mouse.wheel(0, 100_000)
        await looking.page.evaluate("() => new Promise(requestAnimationFrame)")
    names = await looking.names()
    assert names == [*(f"job {number}" for number in reversed(range(55))), "large", "old 2", "old 1", "old 0"]


async def test_a_job_is_deleted_only_after_a_question(looking: Looking) -> None:
    await looking.submit("old")
    await looking.rows.get_by_role("link", name="old").click()
    await looking.status_is("succeeded")
    await looking.pane.get_by_role("button", name="Delete").click()
    await looking.page.get_by_role("button", name="Keep").click()
    await expect(looking.rows).to_have_count(1)
    await looking.pane.get_by_role("button", name="Delete").click()
    await looking.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(looking.rows).to_have_count(0)
    await expect(looking.page.locator("#empty")).to_be_visible()


async def test_an_error_of_the_server_is_said_in_words(looking: Looking) -> None:
    (job_id,) = await looking.submit("soon gone")
    await looking.rows.get_by_role("link", name="soon gone").click()
    await looking.status_is("succeeded")
    delete = looking.pane.get_by_role("button", name="Delete")
    await delete.click()
    await looking.call("DELETE", f"/api/ai-jobs/{job_id}")
    await looking.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(looking.page.locator(".toast.error")).to_contain_text("There is no job")


async def test_a_desk_that_does_not_answer_is_told_once_and_its_return_too(looking: Looking) -> None:
    page = looking.page
    await expect(page.locator("#machine-text")).to_have_text("Ready · stand-in")
    await page.route("**/api/**", lambda route: route.abort())
    await expect(page.locator("#machine-text")).to_contain_text("is not responding")
    await expect(page.locator(".toast.error")).to_have_count(1)
    await page.unroute("**/api/**")
    await expect(page.locator(".toast")).to_contain_text(["Is `comfyrelay up` still running?", "Reconnected."])
    await expect(page.locator("#machine-text")).to_have_text("Ready · stand-in")


async def test_the_page_is_usable_on_a_phone(looking: Looking) -> None:
    page = looking.page
    await page.set_viewport_size({"width": 360, "height": 640})

    async def fits() -> bool:
        return bool(await page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"))

    await expect(page.locator("#empty")).to_be_visible()
    assert await fits()
    await looking.misbehave("Fail", class_type="ImageInvert", message="w" * 300, times=1)
    await looking.submit("n" * 150)
    await looking.submit_batch("a batch", ["one", "two"])
    await expect(page.locator(".chip[data-status=completed] b")).to_have_text("2")
    assert await fits()
    await looking.rows.get_by_role("link", name="nnn").click()
    await looking.status_is("failed")
    await expect(looking.pane.locator("h2")).to_be_in_viewport()
    assert await fits()
    assert await looking.pane.evaluate("each => each.scrollWidth <= each.clientWidth")
    await looking.pane.get_by_role("link", name="Close").click()
    await page.get_by_role("button", name="Add a job").click()
    await expect(page.get_by_role("button", name="Add job")).to_be_in_viewport()
    dialog = page.locator("#adding")
    assert await dialog.evaluate("each => each.scrollWidth <= each.clientWidth && each.clientWidth <= innerWidth")


async def test_a_hidden_tab_asks_nothing(looking: Looking) -> None:
    page = looking.page
    await expect(page.locator("#empty")).to_be_visible()
    await page.clock.install()
    await page.reload()
    await expect(page.locator("#empty")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.clock.run_for(3000)
    await expect(page.locator("#machine-text")).to_have_text("Ready · stand-in")
    assert asked
    await page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    asked.clear()
    await page.clock.run_for(30_000)
    assert asked == []
