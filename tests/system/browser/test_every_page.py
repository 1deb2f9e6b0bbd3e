"""Every page is accessible, self-hosted, and safe against markup in user input."""

import re
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Error, Page, Route, expect

from comfyrelay.comfyui.processes import state_files
from comfyrelay.comfyui.processes.log import NAME as LOG_NAME
from tests.support.chromium import PROMPT_GRAPH
from tests.support.desk import make_desk
from tests.support.desk_owner import owner_http
from tests.support.web_app import (
    DESKTOP,
    PHONE,
    TABLET,
    THEMES,
    UI,
    PageLog,
    Screen,
    open_context,
    record_page,
    settled,
)
from tests.system.browser.sample_desk import Filled, Filling, Texts, picture

pytestmark = pytest.mark.asyncio(loop_scope="session")

# If this is parsed as markup, an element exists; if it loads or runs something, the page reports an error.
MARKUP = '<b class="injected">bold</b><img class="injected" src="/injected.png" onerror="window.injected=1">'
HOSTILE = Texts(
    batch=f"batch {MARKUP}",
    labels=[f"label {number} {MARKUP}" for number in range(3)],
    prompts=[f"prompt {number} {MARKUP}" for number in range(3)],
    file="<img src=x onerror=window.injected=1>.png",
    workflow=f"workflow {MARKUP}",
    preset=f"preset {MARKUP}",
    error=f"error {MARKUP}",
)
ROUTES = {
    "start": "/",
    "create": "/create",
    "create a workflow": "/create?workflow={workflow}",
    "create from a job": "/create?from={done}",
    "queue": "/queue",
    "queue of what failed": "/queue?status=failed",
    "queue of a batch": "/queue?batch={batch}",
    "queue with a job": "/queue?job={failed}",
    "queue where nothing matches": "/queue?q=%3Cimg+src%3Dx+onerror%3Dwindow.injected%3D1%3E",
    "gallery": "/gallery",
    "gallery of videos": "/gallery?kind=video",
    "gallery where nothing matches": "/gallery?q=%3Cimg+src%3Dx+onerror%3Dwindow.injected%3D1%3E",
    "job that is done": "/jobs/{done}",
    "job that made a clip": "/jobs/{clip}",
    "job that failed": "/jobs/{failed}",
    "job that waits": "/jobs/{waiting}",
    "kit": "/kit",
}
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
# axe rules that depend on the theme
COLOURS = ["color-contrast", "link-in-text-block"]
_AXE = """async ([type, values]) => {
  const found = await axe.run(document, { runOnly: { type, values }, preload: false, resultTypes: ["violations"] });
  return found.violations.flatMap((rule) =>
    rule.nodes.map((node) => `${rule.id}: ${node.target.join(" ")} ${node.failureSummary.replaceAll("\\n", " ")}`));
}"""
# The main touch targets are the areas and the filled buttons.
_SMALL = """() => [...document.querySelectorAll("nav[aria-label=Areas] :is(a, button), main [class*=primary]")]
  .map((element) => [element.textContent, element.getBoundingClientRect()])
  .filter(([, { width, height }]) => width && height && (width < 44 || height < 44))
  .map(([text, { width, height }]) => `${text}: ${width} × ${height}`)"""
_WIDER = """() => [document.documentElement, document.querySelector("main")]
  .filter((element) => element.scrollWidth > element.clientWidth)
  .map((element) => `${element.tagName} is ${element.scrollWidth} wide in ${element.clientWidth}`)"""

# Elements that are clipped by their container.
_CUT = """(found) => found.filter((element) => {
  const [own, around] = [element.getBoundingClientRect(), element.parentElement.getBoundingClientRect()];
  return element.scrollWidth > element.clientWidth || own.left < around.left || own.right > around.right + 1;
}).map((element) => element.textContent)"""


@dataclass(frozen=True, slots=True)
class Desk:
    url: str
    filled: Filled

    def path(self, route: str) -> str:
        ids = {name: getattr(self.filled, name) for name in Filled.__dataclass_fields__}
        return ROUTES[route].format(**ids)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk(tmp_path_factory: pytest.TempPathFactory, built_app: None) -> AsyncIterator[Desk]:
    folder = tmp_path_factory.mktemp("every-page")
    async with (
        make_desk(folder / "data", shutdown_seconds=0).open() as (_worker, ready),
        Filling.of(ready.url) as filling,
    ):
        yield Desk(ready.url, await filling.fill(HOSTILE, graph=PROMPT_GRAPH))
        # closing does not wait for jobs that never finish
        await filling.behave()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def contexts(desk: Desk, chromium: Browser) -> AsyncIterator[dict[Screen, BrowserContext]]:
    async with (
        open_context(chromium, desk.url) as desktop,
        open_context(chromium, desk.url, screen=TABLET) as tablet,
        open_context(chromium, desk.url, screen=PHONE) as phone,
    ):
        yield {DESKTOP: desktop, TABLET: tablet, PHONE: phone}


Contexts = dict[Screen, BrowserContext]


@pytest.fixture(scope="session")
def axe() -> str:
    return (UI / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


async def opened(context: BrowserContext, path: str) -> tuple[Page, PageLog]:
    page = await context.new_page()
    page_log = record_page(page)
    await page.goto(path)
    await settled(page, page_log)
    return page, page_log


def unexpected(page_log: PageLog) -> list[str]:
    """Return browser complaints, except about the missing file that the kit shows."""
    return [complaint for complaint in page_log.complaints if "/files/gone" not in complaint]


async def violations(page: Page, axe: str, *, rules: Sequence[str] = ()) -> str:
    """Return violations of these rules, or of all rules."""
    if not await page.evaluate("'axe' in window"):
        # do not add a page element, which the content security policy would block
        await page.evaluate(axe)
    return "\n".join(await page.evaluate(_AXE, ["rule", rules] if rules else ["tag", WCAG]))


async def is_accessible(page: Page, page_log: PageLog, axe: str) -> None:
    first, *others = THEMES
    assert await violations(page, axe) == "", first
    for theme in others:
        await page.emulate_media(color_scheme=theme)
        await settled(page, page_log)
        assert await violations(page, axe, rules=COLOURS) == "", theme


async def fits(page: Page) -> None:
    """Check that nothing is wider than the screen and that touch targets are large enough."""
    assert await page.evaluate(_WIDER) == []
    assert await page.evaluate(_SMALL) == []


async def assert_nothing_injected(page: Page) -> None:
    assert await page.locator(".injected").count() == 0
    assert await page.evaluate("window.injected") is None


@pytest.mark.parametrize(
    "route", [pytest.param("start", marks=pytest.mark.journey), *sorted(ROUTES.keys() - {"start"})]
)
async def test_page_is_clean(route: str, desk: Desk, contexts: Contexts, axe: str) -> None:
    """axe finds nothing in either theme, the console is empty, the policy blocks nothing, every request goes to the
    desk, and markup is shown as text."""
    page, page_log = await opened(contexts[DESKTOP], desk.path(route))
    await is_accessible(page, page_log, axe)
    await assert_nothing_injected(page)
    assert unexpected(page_log) == []
    assert page_log.elsewhere(desk.url) == []
    await page.close()


@pytest.mark.parametrize("route", ROUTES)
async def test_page_fits_a_phone(route: str, desk: Desk, contexts: Contexts, axe: str) -> None:
    page, page_log = await opened(contexts[PHONE], desk.path(route))
    await fits(page)
    assert await violations(page, axe) == ""
    assert unexpected(page_log) == []
    await page.close()


@pytest.mark.parametrize("route", ROUTES)
async def test_page_fits_a_tablet(route: str, desk: Desk, contexts: Contexts) -> None:
    page, page_log = await opened(contexts[TABLET], desk.path(route))
    assert await page.evaluate(_WIDER) == []
    for search in await page.get_by_role("main").get_by_role("searchbox").all():
        box = await search.bounding_box()
        assert box is not None
        assert box["width"] > 150, "too narrow for a word"
    assert unexpected(page_log) == []
    await page.close()


@pytest.mark.parametrize("width", [DESKTOP.width, TABLET.width])
async def test_gallery_filters_are_not_clipped(width: int, desk: Desk, contexts: Contexts) -> None:
    page, _heard = await opened(contexts[DESKTOP], "/gallery")
    await page.set_viewport_size({"width": width, "height": DESKTOP.height})
    chips = page.locator("header button[aria-pressed]")
    await expect(chips.filter(has_text="More")).to_be_visible()
    assert await chips.evaluate_all(_CUT) == []
    await chips.filter(has_text="More").click()
    await page.get_by_role("menuitem", name="Text").click()
    await page.wait_for_url("**/gallery?kind=text")
    await expect(chips.filter(has_text="Text")).to_have_attribute("aria-pressed", "true")
    await page.close()


@pytest.mark.parametrize("keys", ["Control+k", "?"], ids=["palette", "keys"])
async def test_dialog_is_clean(keys: str, desk: Desk, contexts: Contexts, axe: str) -> None:
    page, page_log = await opened(contexts[DESKTOP], "/queue")
    await page.keyboard.press(keys)
    await expect(page.get_by_role("dialog")).to_be_visible()
    await is_accessible(page, page_log, axe)
    assert page_log.complaints == []
    await page.close()


async def test_palette_opens_each_sheet_of_the_settings_menu(contexts: Contexts) -> None:
    page, _heard = await opened(contexts[DESKTOP], "/queue")
    for typed, name in (("phone", "Open on a phone"), ("comfyui", "ComfyUI and folders")):
        await page.keyboard.press("Control+k")
        await page.keyboard.type(typed)
        await page.get_by_role("option", name=name).click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.close()


async def test_side_panel_of_an_unknown_job_is_not_titled_batch(contexts: Contexts) -> None:
    page, _heard = await opened(contexts[DESKTOP], "/queue?job=unknown")
    panel = page.get_by_role("complementary")
    await expect(panel.get_by_text("Job not found")).to_be_visible()
    await expect(panel.get_by_role("heading", level=2).first).to_have_text("Job")
    await page.close()


async def test_right_to_left_label_does_not_reorder_its_surroundings(desk: Desk, contexts: Contexts) -> None:
    """This holds in the queue, in its side panel, and on the job page."""
    label = "\u05d2\u05d3\u05d9 (1)"
    async with Filling.of(desk.url) as filling:
        job = await filling.submit("invert-image", label, input_file_id=await filling.upload("a.png", picture(1)))
    page, _heard = await opened(contexts[DESKTOP], f"/queue?job={job}")
    name = page.get_by_role("main").get_by_role("button", name=label, exact=True)
    await expect(name).to_have_css("unicode-bidi", "isolate")
    panel_title = page.get_by_role("complementary").get_by_role("heading", level=2).first
    await expect(panel_title).to_have_css("direction", "rtl")
    await page.goto(f"/jobs/{job}")
    await expect(page.get_by_role("heading", level=1)).to_have_css("direction", "rtl")
    await expect(page).to_have_title(re.compile("\u2068\u05d2\u05d3\u05d9 .*\u2069 · ComfyRelay$"))
    await page.close()
    async with owner_http(desk.url) as http:
        await http.post(f"/api/ai-jobs/{job}/cancel")


async def test_desk_sheet_shows_the_doctor_results(desk: Desk, contexts: Contexts, axe: str) -> None:
    page, page_log = await opened(contexts[DESKTOP], "/queue")
    await page.get_by_role("navigation", name="Areas").get_by_role("button", name="Settings").click()
    await page.get_by_role("button", name="ComfyUI and folders").click()
    sheet = page.get_by_role("dialog", name="This desk")
    async with owner_http(desk.url) as http:
        about = (await http.get("/api/desk")).json()["data"]
        checks = (await http.get("/api/desk/checks")).json()["data"]["items"]
    await expect(sheet.get_by_role("listitem")).to_have_count(len(checks))
    for name in ("data_dir", "input_folder", "output_folder"):
        await expect(sheet.get_by_text(about[name], exact=True)).to_be_visible()
    await expect(sheet).to_contain_text("comfyrelay up --comfyui-url")
    await is_accessible(page, page_log, axe)
    await assert_nothing_injected(page)
    assert page_log.complaints == []
    await page.keyboard.press("Escape")
    await expect(sheet).to_have_count(0)
    await page.close()


async def test_desk_sheet_shows_the_last_comfyui_output(desk: Desk, contexts: Contexts, axe: str) -> None:
    async with owner_http(desk.url) as http:
        data_dir = Path((await http.get("/api/desk")).json()["data"]["data_dir"])
    place = data_dir / "worker" / "desk" / state_files.FOLDER / "comfyui-1"
    place.mkdir(parents=True)
    why = "ComfyUI exited during startup (exit code 1)."
    about: Any = {"name": "comfyui-1", "url": "http://127.0.0.1:1", "gpu": "Test 9000", "restarts": 2, "processes": {}}
    state_files.write(place, state_files.ProcessRecord(**about, state="given up", reason=why))
    (place / LOG_NAME).write_text(f"{MARKUP}\nModuleNotFoundError: No module named 'torchsde'\n")
    page, page_log = await opened(contexts[DESKTOP], "/queue")
    await page.get_by_role("navigation", name="Areas").get_by_role("button", name="Settings").click()
    await page.get_by_role("button", name="ComfyUI and folders").click()
    sheet = page.get_by_role("dialog", name="This desk")
    await expect(sheet.get_by_text(why)).to_be_visible()
    message = sheet.get_by_text("No module named 'torchsde'")
    await expect(message).to_be_hidden()
    await sheet.get_by_text("Show log").click()
    await expect(message).to_be_visible()
    await is_accessible(page, page_log, axe)
    await assert_nothing_injected(page)
    assert page_log.complaints == []
    await page.close()
    shutil.rmtree(data_dir / "worker" / "desk" / state_files.FOLDER)


async def test_settings_are_clean_and_choose_the_theme(desk: Desk, contexts: Contexts, axe: str) -> None:
    page, page_log = await opened(contexts[DESKTOP], "/queue")
    await page.get_by_role("navigation", name="Areas").get_by_role("button", name="Settings").click()
    await page.emulate_media(color_scheme="light")
    await page.get_by_role("dialog").get_by_text("Dark", exact=True).click()
    assert await violations(page, axe) == ""
    await page.reload()
    await settled(page, page_log)
    assert await page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    # the server writes the theme into the page, so the theme applies before any script runs
    answer = await page.context.request.get("/queue")
    assert '<html data-theme="dark"' in await answer.text()
    await page.context.clear_cookies(name="comfyrelay_theme")
    await page.evaluate("localStorage.clear()")
    assert page_log.complaints == []
    await page.close()


@pytest.mark.parametrize(
    ("route", "text"),
    [
        # errors are stripped of paths and text that looks like one
        ("job that failed", HOSTILE.error.split("</b>")[0]),
        ("job that failed", HOSTILE.labels[2]),
        ("queue", HOSTILE.labels[1]),
        ("queue of a batch", HOSTILE.batch),
        ("job that is done", HOSTILE.prompts[0]),
        ("create a workflow", HOSTILE.preset),
        ("create a workflow", HOSTILE.workflow),
    ],
)
async def test_markup_is_shown_as_text(route: str, text: str, desk: Desk, contexts: Contexts) -> None:
    page, _heard = await opened(contexts[DESKTOP], desk.path(route))
    await expect(page.get_by_role("main").get_by_text(text).first).to_be_visible()
    await assert_nothing_injected(page)
    await page.close()


@pytest.mark.parametrize("route", ["job that failed", "queue with a job"])
async def test_markup_in_a_log_is_shown_as_text(route: str, desk: Desk, contexts: Contexts) -> None:
    page = await contexts[DESKTOP].new_page()
    page_log = record_page(page)

    async def with_markup(route: Route) -> None:
        answer = await route.fetch()
        found = await answer.json()
        found["data"]["items"] += [{"line": f"log {MARKUP}", "created_at": "2026-01-01T00:00:00Z"}]
        await route.fulfill(response=answer, json=found)

    await page.route("**/api/ai-jobs/*/logs?*", with_markup)
    await page.goto(desk.path(route))
    await settled(page, page_log)
    await expect(page.get_by_role("log", name="Log", exact=True)).to_contain_text(f"log {MARKUP}")
    await assert_nothing_injected(page)
    # a pending request would fail with the page
    await page.unroute_all(behavior="wait")
    await page.close()


async def test_unknown_url_shows_a_not_found_page(desk: Desk, contexts: Contexts, axe: str) -> None:
    page, _heard = await opened(contexts[DESKTOP], "/jobs/01900000-0000-7000-8000-000000000000")
    assert await violations(page, axe) == ""
    await expect(page.get_by_role("navigation", name="Areas")).to_be_visible()
    await page.close()


async def test_api_documentation_loads_no_external_files(desk: Desk, contexts: Contexts) -> None:
    page = await contexts[DESKTOP].new_page()
    page_log = record_page(page)
    await page.goto("/docs")
    await expect(page.get_by_role("heading", name=re.compile("ComfyRelay"))).to_be_visible()
    await expect(page.get_by_text("/api/ai-jobs", exact=True).first).to_be_visible()
    assert page_log.elsewhere(desk.url) == []
    assert page_log.complaints == []
    await page.close()


@pytest.mark.parametrize("route", ["queue", "gallery", "create", "job that is done"])
async def test_response_forbids_inline_scripts(route: str, desk: Desk, contexts: Contexts) -> None:
    answer = await contexts[DESKTOP].request.get(desk.path(route))
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "data:" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-cache"


async def test_app_files_are_cached_and_api_responses_are_not(desk: Desk, contexts: Contexts) -> None:
    page, page_log = await opened(contexts[DESKTOP], "/queue")
    context = contexts[DESKTOP]
    assets = {address for address in page_log.addresses if "/assets/" in address}
    assert assets
    for asset in assets:
        headers = (await context.request.get(asset)).headers
        assert "immutable" in headers["cache-control"]
        assert headers["x-content-type-options"] == "nosniff"
    for path in ("/api/me", "/api/ai-jobs", "/api/queue", "/api/gallery"):
        answer = await context.request.get(path)
        assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    await page.close()


UPLOADS = {
    "svg": ("image/svg+xml", b'<svg xmlns="http://www.w3.org/2000/svg"><script>parent.injected=1</script></svg>'),
    "html as a picture": ("image/png", b"<!doctype html><script>parent.injected=1</script>"),
}


@pytest.mark.parametrize("kind", UPLOADS)
async def test_uploaded_file_is_never_run(kind: str, desk: Desk, contexts: Contexts) -> None:
    mime_type, content = UPLOADS[kind]
    async with Filling.of(desk.url) as filling:
        file_id = await filling.upload(f"{MARKUP[:60]}.svg", content, mime_type)
        video = await filling.call("POST", "/api/videos", {"original_file_id": file_id})
    page = await contexts[DESKTOP].new_page()
    async with page.expect_download() as download:
        with pytest.raises(Error, match="Download is starting"):
            await page.goto(video["original_file_url"])
    assert Path(await (await download.value).path()).read_bytes() == content
    headers = (await page.request.get(video["original_file_url"])).headers
    assert headers["content-disposition"].startswith("attachment;")
    assert headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-type"] == mime_type
    await page.close()


async def test_html_upload_is_refused(desk: Desk) -> None:
    async with owner_http(desk.url) as http:
        about = {"mime_type": "text/html", "size": 10, "original_filename": "page.html"}
        assert (await http.post("/api/videos/uploads", json=about)).status_code == 422


async def test_outputs_are_shown_or_saved_but_never_run(desk: Desk) -> None:
    async with owner_http(desk.url) as http:
        for job_id in (desk.filled.done, desk.filled.clip):
            [output] = (await http.get(f"/api/ai-jobs/{job_id}")).json()["data"]["outputs"]
            for name in ("url", "poster_url", "preview_url"):
                if output[name] is not None:
                    await _is_safe(http, output[name])


async def _is_safe(http: Any, url: str) -> None:
    headers = (await http.get(url)).headers
    assert headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-type"].split("/")[0] in ("image", "video")
