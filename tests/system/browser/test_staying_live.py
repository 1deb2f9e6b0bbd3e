"""After any connection failure, an open page shows each job once, and no deleted jobs."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, Request, expect

from comfyrelay.desk.desk import Desk
from comfyrelay.server.http import auth
from comfyrelay.server.user import live
from comfyrelay.simulator import Simulator, Stuck
from tests.support.desk import make_desk
from tests.support.desk_owner import owner_http
from tests.support.web_app import open_context, record_page, settled
from tests.system.browser.sample_desk import Filling, picture

pytestmark = pytest.mark.asyncio(loop_scope="session")

OFFLINE = "You are offline"
LOST = "Connection lost"
# A dead stream that neither side notices, as after sleep: it receives nothing while `isDeaf` is set.
_DEAF = """{
  const listen = EventSource.prototype.addEventListener;
  EventSource.prototype.addEventListener = function (kind, listener, ...rest) {
    const born = window.epoch ?? 0;
    return listen.call(this, kind, (event) => (window.deafUpTo ?? -1) >= born || listener(event), ...rest);
  };
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def simulator() -> AsyncIterator[Simulator]:
    """The first job never finishes, so all other jobs wait and only the test changes anything."""
    async with Simulator() as simulator:
        simulator.misbehave(Stuck(class_type="ImageInvert"))
        yield simulator
        simulator.behave()


@pytest.fixture
def desk(tmp_path: Path, simulator: Simulator, built_app: None) -> Desk:
    return make_desk(tmp_path / "data", comfyui_url=[simulator.url], shutdown_seconds=0, prefetch=0)


async def add(filling: Filling, *labels: str) -> list[str]:
    file_id = await filling.upload("sample.png", picture(1, 64, 64))
    return [await filling.submit("invert-image", label, input_file_id=file_id) for label in labels]


async def open_queue(context: BrowserContext, shown: Sequence[str]) -> Page:
    page = await context.new_page()
    page_log = record_page(page)
    await page.goto("/queue")
    await settled(page, page_log)
    await shows(page, shown)
    return page


async def shows(page: Page, labels: Sequence[str], gone: Sequence[str] = ()) -> None:
    """Check that each of these labels appears once."""
    main = page.get_by_role("main")
    for label in labels:
        await expect(main.get_by_text(label, exact=True)).to_have_count(1)
    for label in gone:
        await expect(main.get_by_text(label, exact=True)).to_have_count(0)


async def says(page: Page, text: str) -> None:
    await expect(page.get_by_role("status").get_by_text(text)).to_be_visible()


async def is_silent(page: Page) -> None:
    for text in (OFFLINE, LOST):
        await expect(page.get_by_role("status").get_by_text(text)).to_have_count(0)


async def delete(filling: Filling, job_id: str) -> None:
    await filling.call("POST", f"/api/ai-jobs/{job_id}/cancel")
    await filling.call("DELETE", f"/api/ai-jobs/{job_id}")


async def test_changes_are_shown_in_both_tabs(desk: Desk, chromium: Browser) -> None:
    async with (
        desk.open() as (_worker, ready),
        Filling.of(ready.url) as filling,
        open_context(chromium, ready.url) as context,
    ):
        [_running, first] = await add(filling, "runs", "first")
        tabs = [await open_queue(context, ["first"]) for _ in range(2)]
        await add(filling, "second", "third")
        for tab in tabs:
            await shows(tab, ["first", "second", "third"])
        await delete(filling, first)
        for tab in tabs:
            await shows(tab, ["second", "third"], gone=["first"])
            await expect(tab).to_have_title("(3) Queue · ComfyRelay")


async def test_tabs_share_one_stream_that_survives_its_tab(desk: Desk, chromium: Browser) -> None:
    """A browser allows six connections to a host. With one stream per tab, the seventh tab would show nothing."""
    async with (
        desk.open() as (_worker, ready),
        Filling.of(ready.url) as filling,
        open_context(chromium, ready.url) as context,
    ):
        [running, first] = await add(filling, "runs", "first")
        streams: list[str] = []
        context.on(
            "request", lambda request: streams.append(request.url) if request.resource_type == "eventsource" else None
        )
        tabs = [await open_queue(context, ["first"])]
        for job_id in [running, first] * 3:
            tab = await context.new_page()
            await tab.goto(f"/jobs/{job_id}")
            await expect(tab.get_by_text("Added to the queue")).to_be_visible()
            tabs.append(tab)
        assert len(streams) == 1
        await tabs[0].close()
        await filling.call("POST", f"/api/ai-jobs/{first}/cancel")
        for tab in tabs[2::2]:
            await expect(tab.get_by_role("listitem").filter(has_text="Canceled")).to_be_visible()
        assert len(streams) == 2


async def test_page_reports_a_network_cut_and_catches_up(desk: Desk, chromium: Browser) -> None:
    async with (
        desk.open() as (_worker, ready),
        Filling.of(ready.url) as filling,
        open_context(chromium, ready.url) as context,
    ):
        [_running, first, _second] = await add(filling, "runs", "first", "second")
        page = await open_queue(context, ["first", "second"])
        await context.set_offline(True)
        await says(page, OFFLINE)
        await add(filling, "third", "fourth")
        await delete(filling, first)
        # the content is kept
        await shows(page, ["first", "second"])
        await context.set_offline(False)
        await shows(page, ["second", "third", "fourth"], gone=["first"])
        await is_silent(page)
        # the page is live again
        await add(filling, "fifth")
        await shows(page, ["second", "third", "fourth", "fifth"])


@pytest.mark.journey
async def test_page_reconnects_when_its_desk_returns(desk: Desk, chromium: Browser) -> None:
    async with desk.open() as (_worker, ready):
        url = ready.url
        async with Filling.of(url) as filling:
            [_running, first, _second] = await add(filling, "runs", "first", "second")
        opened = open_context(chromium, url)
        context = await opened.__aenter__()
        page = await open_queue(context, ["first", "second"])
        requests: list[Request] = []
        page.on("request", lambda request: requests.append(request))  # noqa: PLW0108 - Playwright marks the function it is given
    await says(page, LOST)
    await shows(page, ["first", "second"])
    async with desk.open() as (_worker, ready), Filling.of(url) as filling:
        assert ready.url == url
        await delete(filling, first)
        await add(filling, "third")
        await shows(page, ["second", "third"], gone=["first"])
        await is_silent(page)
        streams = [request for request in requests if request.url.endswith("/api/events")]
        assert "last-event-id" in await streams[-1].all_headers()
        await add(filling, "fourth")
        await shows(page, ["second", "third", "fourth"])
        await opened.__aexit__(None, None, None)


_LOOK = "(element) => ['color', 'backgroundImage'].map((name) => getComputedStyle(element)[name])"
_ON_TOP = """(element) => {
  const { x, y, width, height } = element.getBoundingClientRect();
  return element.contains(document.elementFromPoint(x + width / 2, y + height / 2));
}"""


async def test_lost_connection_is_shown_in_one_place_and_one_color(desk: Desk, chromium: Browser) -> None:
    async with desk.open() as (_worker, ready):
        opened = open_context(chromium, ready.url)
        context = await opened.__aenter__()
        pages = [await context.new_page() for _ in range(3)]
        for page, path in zip(pages, ("/create", "/queue", "/gallery"), strict=True):
            page_log = record_page(page)
            await page.goto(path)
            await settled(page, page_log)
    looks = []
    for page in pages:
        notice = page.get_by_role("status").filter(has_text=LOST).locator("div")
        await expect(notice).to_have_count(1)
        await expect(page.get_by_text(LOST)).to_have_count(1)
        looks.append((await notice.bounding_box(), await notice.evaluate(_LOOK)))
        # nothing else on the page is above the notice
        assert await notice.evaluate(_ON_TOP)
    assert looks[0][0] is not None
    assert looks == [looks[0]] * 3
    await opened.__aexit__(None, None, None)


async def test_page_that_failed_while_its_desk_was_down_loads_when_it_returns(desk: Desk, chromium: Browser) -> None:
    async with desk.open() as (_worker, ready):
        url = ready.url
        async with Filling.of(url) as filling:
            await add(filling, "runs", "first")
        opened = open_context(chromium, url)
        context = await opened.__aenter__()
        unloaded = await open_queue(context, ["first"])
    await says(unloaded, LOST)
    # the scripts of this page were never loaded
    await unloaded.get_by_role("link", name="Gallery", exact=True).click()
    await expect(unloaded.get_by_text("Could not load this part of the page", exact=True)).to_be_visible()
    async with desk.open() as (_worker, ready):
        assert ready.url == url
        await expect(unloaded.get_by_role("heading", name="Gallery", exact=True)).to_be_visible()
        await is_silent(unloaded)
        await opened.__aexit__(None, None, None)


async def test_data_that_failed_while_the_desk_was_down_loads_when_it_returns(desk: Desk, chromium: Browser) -> None:
    async with desk.open() as (_worker, ready):
        url = ready.url
        opened = open_context(chromium, url)
        context = await opened.__aenter__()
        page = await context.new_page()
        page_log = record_page(page)
        await page.goto("/gallery")
        await settled(page, page_log)
    await says(page, LOST)
    # this requests another list
    await page.get_by_role("button", name="Videos").click()
    await expect(page.get_by_role("main").get_by_role("alert")).to_be_visible()
    async with desk.open():
        await expect(page.get_by_role("heading", name="No matching outputs")).to_be_visible()
        await expect(page.get_by_role("main").get_by_role("alert")).to_have_count(0)
        await opened.__aexit__(None, None, None)


async def test_delete_is_completed_when_its_tab_is_closed(desk: Desk, chromium: Browser) -> None:
    async with (
        desk.open() as (_worker, ready),
        Filling.of(ready.url) as filling,
        open_context(chromium, ready.url) as context,
    ):
        [_running, first, second] = await add(filling, "runs", "first", "second")
        for job_id in (first, second):
            await filling.call("POST", f"/api/ai-jobs/{job_id}/cancel")
        watching = await open_queue(context, ["first", "second"])
        page = await open_queue(context, ["first", "second"])
        for label in ("first", "second"):
            await page.get_by_role("checkbox", name=f"Select {label}", exact=True).click()
        await page.get_by_role("toolbar").get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("listitem").filter(has_text="will be deleted")).to_be_visible()
        await shows(watching, ["first", "second"])
        async with page.expect_event("close"):
            await page.close(run_before_unload=True)
        await shows(watching, [], gone=["first", "second"])


async def test_delete_in_the_gallery_is_completed_when_its_tab_is_closed(desk: Desk, chromium: Browser) -> None:
    async with (
        desk.open() as (_worker, ready),
        Filling.of(ready.url) as filling,
        open_context(chromium, ready.url) as context,
    ):
        await filling.ended(await filling.submit("text-to-image", "goes", input_payload={"prompt": "a fox"}))
        watching, page = [await open_gallery(context) for _ in range(2)]
        await page.get_by_role("checkbox", name="Select goes", exact=True).click()
        await page.keyboard.press("Delete")
        await page.get_by_role("dialog").get_by_role("button", name="Delete 1 output").click()
        await expect(page.get_by_role("listitem").filter(has_text="will be deleted")).to_be_visible()
        await expect(watching.get_by_role("checkbox", name="Select goes")).to_be_attached()
        async with page.expect_event("close"):
            await page.close(run_before_unload=True)
        await expect(watching.get_by_role("checkbox", name="Select goes")).to_have_count(0)
        assert (await filling.call("GET", "/api/gallery"))["items"] == []


async def open_gallery(context: BrowserContext) -> Page:
    page = await context.new_page()
    page_log = record_page(page)
    await page.goto("/gallery")
    await settled(page, page_log)
    return page


async def test_page_fetches_missed_changes_after_sleep(desk: Desk, chromium: Browser) -> None:
    async with (
        desk.open() as (_worker, ready),
        Filling.of(ready.url) as filling,
        open_context(chromium, ready.url) as context,
    ):
        [_running, first] = await add(filling, "runs", "first")
        await context.add_init_script(_DEAF)
        page = await context.new_page()
        await page.clock.install()
        page_log = record_page(page)
        await page.goto("/queue")
        await settled(page, page_log)
        await shows(page, ["first"])
        await page.evaluate("window.deafUpTo = 0; window.epoch = 1")
        await add(filling, "second")
        await delete(filling, first)
        # after a laptop lid was closed, all due timers fire once
        await page.clock.fast_forward("30:00")
        await shows(page, ["second"], gone=["first"])
        await add(filling, "third")
        await shows(page, ["second", "third"])


async def test_page_retries_a_refused_stream(desk: Desk, chromium: Browser) -> None:
    async with (
        desk.open() as (_worker, ready),
        Filling.of(ready.url) as filling,
        open_context(chromium, ready.url) as context,
    ):
        await context.route("**/api/events", lambda route: route.fulfill(status=502))
        await add(filling, "runs", "first")
        page = await open_queue(context, ["first"])
        await add(filling, "second")
        await shows(page, ["first", "second"])


async def test_page_with_an_expired_session_shows_how_to_open_another(
    desk: Desk, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds for an idle page."""
    monkeypatch.setattr(live, "KEEP_ALIVE_SECONDS", 0.5)
    monkeypatch.setattr(auth, "CHECK_SECONDS", 0.5)
    async with desk.open() as (_worker, ready), open_context(chromium, ready.url) as context:
        page = await context.new_page()
        page_log = record_page(page)
        await page.goto("/gallery")
        await settled(page, page_log)
        async with owner_http(ready.url) as http:
            for session in (await http.get("/api/tokens")).json()["data"]["items"]:
                (await http.delete(f"/api/tokens/{session['id']}")).raise_for_status()
        await expect(page.get_by_text("comfyrelay open", exact=True)).to_be_visible()
        async with owner_http(ready.url) as http:
            await page.goto((await http.post("/api/desk/links")).json()["data"]["url"])
        await expect(page.get_by_role("navigation", name="Areas")).to_be_visible()
