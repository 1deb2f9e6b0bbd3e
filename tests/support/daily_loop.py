"""Walk through the pages of a desk as a creator does every day, with any ComfyUI."""

import asyncio
import io
import json
import os
import re
import signal
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from PIL import Image
from playwright.async_api import Browser, FloatRect, Locator, Page, ViewportSize, expect

from comfyrelay.client import Client
from comfyrelay.desk.password import set_password
from comfyrelay.errors import ControlPlaneUnreachable
from comfyrelay.system.commands.detached import descendants
from tests.support.chromium import ANY_AREA, PageDriver, open_page, until
from tests.support.desk_owner import owner_http
from tests.support.editor_files import invert, node, save, workflow
from tests.support.processes import Service
from tests.support.server_processes import free_port
from tests.support.world import PATIENCE_SECONDS

__all__ = ["JourneyDesk", "walk_daily_loop"]

NAME = "Lake upscale"
FILES_PER_JOB = 5
# Large pictures take long enough that their job can be interrupted.
WIDTHS = (1000, 1100, 1200)
HEIGHTS = (700, 800)
PHONE = ViewportSize(width=390, height=844)
PASSWORD = "a lake & a hill = 2"

_IS_LOADED = """[...document.querySelectorAll("[role=dialog] img")].every((media) => media.naturalWidth > 0)"""


class JourneyDesk:
    """A new desk in a process that the walk kills and starts again at the same address."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.data_dir = folder / "data"
        # so that a phone may open the page
        set_password(self.data_dir, PASSWORD)
        environment = {
            "COMFYRELAY_HOST": "0.0.0.0",
            "COMFYRELAY_DATA_DIR": str(self.data_dir),
            "COMFYRELAY_PORT": str(free_port()),
            **{f"COMFYRELAY_DESK_{name.upper()}": value for name, value in settings.items()},
        }
        self.url = f"http://127.0.0.1:{environment['COMFYRELAY_PORT']}"
        self._service = Service("desk", "up", environment=environment, log=folder / "desk.log")

    async def start(self) -> None:
        """Start the desk, and wait until it answers."""
        await self._service.start()
        async with Client(self.url) as client, asyncio.timeout(PATIENCE_SECONDS):
            while True:
                assert self._service.is_running, self._service.text()[-4000:]
                try:
                    await client.desk()
                except ControlPlaneUnreachable:
                    # there is no signal for an opened port
                    await asyncio.sleep(0.05)
                else:
                    return

    async def kill(self) -> None:
        """Kill the desk and all processes that it started, so none can clean up."""
        for pid in [*descendants(self._service.process.pid), self._service.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._service.ended()


def lake_workflow() -> dict[str, Any]:
    """Return an editor file that saves a scaled picture four times and once inverted."""
    nodes = [
        node(1, "LoadImage", [], [("IMAGE", "IMAGE"), ("MASK", "MASK")], ["lake.png", "image"], pos=[40, 80]),
        node(2, "ImageScale", [("image", "IMAGE", 1)], values=["lanczos", 512, 384, "disabled"], pos=[340, 80]),
        node(3, "RepeatImageBatch", [("image", "IMAGE", 2)], values=[4], pos=[640, 80]),
        save(4, 3, pos=[940, 80]),
        invert(5, 4, pos=[640, 380]),
        save(6, 5, pos=[940, 380]),
    ]
    links = [[1, 1, 0, 2, 0], [2, 2, 0, 3, 0], [3, 3, 0, 4, 0], [4, 2, 0, 5, 0], [5, 5, 0, 6, 0]]
    return workflow(nodes, links)


def lake_picture() -> bytes:
    """Return a picture with many colours whose left and right halves differ."""
    channels = [Image.linear_gradient("L").rotate(angle) for angle in (0, 90, 180)]
    buffer = io.BytesIO()
    Image.merge("RGB", channels).resize((320, 240)).save(buffer, "PNG")
    return buffer.getvalue()


async def walk_daily_loop(desk: JourneyDesk, chromium: Browser) -> None:
    """Walk the loop on a new desk; one page stays open throughout, even while the desk is down."""
    try:
        await desk.start()
        async with open_page(chromium, desk.url) as driver:
            await _DailyLoop(driver, desk).walk()
    finally:
        await desk.kill()


class _DailyLoop:
    def __init__(self, driver: PageDriver, desk: JourneyDesk) -> None:
        self.driver = driver
        self.page: Page = driver.page
        self.desk = desk

    async def walk(self) -> None:
        await self.drop_workflow()
        await self.run_twice_and_compare()
        await self.star_compare_and_recall()
        await self.use_result_as_input()
        batch = await self.sweep_despite_a_kill()
        await self.look_at_grid(batch)
        await self.open_embedded_workflow(batch)
        await self.change_a_setting()
        await self.pause_and_resume()
        await self.open_on_a_phone()

    @property
    def form(self) -> Locator:
        return self.page.get_by_role("form", name=NAME)

    @property
    def cards(self) -> Locator:
        return self.page.get_by_label("Results", exact=True).locator("[data-result]")

    def field(self, name: str) -> Locator:
        return self.form.get_by_role("textbox", name=name)

    async def outputs(self, query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.driver.call("GET", f"/api/gallery?limit=200{query}"))["items"]
        return found

    async def drop_workflow(self) -> None:
        """Drop the file on the page of the first start, which ComfyUI may not have reached yet."""
        await self.page.goto("/create")
        await expect(self.page.get_by_role("form")).to_be_visible()
        await self.driver.drop((f"{NAME}.json", "application/json", json.dumps(lake_workflow()).encode()))
        anyway = self.page.get_by_role("button", name="Add anyway")
        await expect(self.field("Width").or_(anyway)).to_be_visible()
        if await anyway.is_visible():
            await anyway.click()
        await expect(self.field("Width")).to_have_value("512")

    async def run_twice_and_compare(self) -> None:
        """Run with two widths; every file appears next to the form with its values, newest first."""
        await self.driver.drop(("lake.png", "image/png", lake_picture()))
        await expect(self.form.get_by_role("button", name="Remove lake.png")).to_be_attached()
        for count, width in enumerate((320, 480), 1):
            await self.field("Width").fill(str(width))
            await self.page.keyboard.press("Control+Enter")
            await expect(self.cards).to_have_count(FILES_PER_JOB * count)
            for number in range(FILES_PER_JOB):
                await expect(self.cards.nth(number)).to_contain_text(f"Width {width}")
                await expect(self.cards.nth(number).locator("img")).to_have_js_property("complete", value=True)
        form, card = await box(self.form), await box(self.cards.first)
        assert form["x"] + form["width"] <= card["x"]
        assert await colors(self.cards.first) > 16

    async def star_compare_and_recall(self) -> None:
        """Work with only the keyboard."""
        keyboard = self.page.keyboard
        await keyboard.press("Escape")
        await expect(self.cards.first.locator("[data-open]")).to_be_focused()
        await keyboard.press("s")
        await expect(self.cards.first.get_by_role("button", name="Remove star")).to_be_visible()
        await keyboard.press("v")
        compare = self.page.get_by_role("dialog", name="Compare")
        panes = [compare.locator(f"[data-pane={letter}] img") for letter in "AB"]
        await expect(panes[1]).to_be_visible()
        await until(self.page, _IS_LOADED)
        left, right = [await box(pane) for pane in panes]
        assert left["x"] + left["width"] <= right["x"]
        assert min(left["width"], right["width"]) > 200
        assert [await colors(pane) > 16 for pane in panes] == [True, True]
        await keyboard.press("Escape")
        await expect(compare).to_have_count(0)
        for _ in range(FILES_PER_JOB):
            await keyboard.press("ArrowRight")
        await keyboard.press("r")
        await expect(self.field("Width")).to_have_value("320")
        assert [output["starred"] for output in await self.outputs()].count(True) == 1

    async def use_result_as_input(self) -> None:
        await self.cards.first.locator("[data-open]").focus()
        await self.page.keyboard.press("u")
        await expect(self.form.get_by_role("button", name=re.compile(r"^Remove lake-.*-5\.png"))).to_be_attached()

    async def sweep_despite_a_kill(self) -> str:
        """Add a sweep and kill everything after its first job; check that each job ends once. Return the batch id."""
        await self.page.goto("/create")
        await self.form.get_by_role("button", name="Start over").click()
        await self.driver.drop(("lake.png", "image/png", lake_picture()))
        for name, values in (("Width", WIDTHS), ("Height", HEIGHTS)):
            await self.form.get_by_role("button", name=f"Sweep {name}").click()
            await self.field(name).fill(", ".join(map(str, values)))
        total = len(WIDTHS) * len(HEIGHTS)
        await expect(self.driver.plan).to_contain_text(f"Width (3) × Height (2) = {total} jobs")
        # let nothing run before the queue page is open
        await self.driver.call("POST", "/api/queue/pause", {})
        await self.driver.plan.get_by_role("button", name=f"Add {total} jobs").click()
        await self.batch_when(lambda _found: True)
        await self.page.goto("/queue")
        row = self.driver.unit(NAME)
        await expect(row).to_be_visible()
        await self.driver.call("POST", "/api/queue/resume", {})
        batch = await self.batch_when(lambda found: found["done"] > 0)
        assert batch["done"] < total
        await self.desk.kill()
        await expect(self.page.get_by_text("Connection lost. Reconnecting…")).to_be_visible()
        await self.desk.start()
        # the page remains signed in; programs of the owner get a new secret
        self.driver.http.headers.update(owner_http(self.desk.url).headers)
        await expect(row).to_have_attribute("data-status", "completed")
        jobs = (await self.driver.call("GET", f"/api/ai-jobs?batch_id={batch['id']}&limit=200"))["items"]
        assert [job["status"] for job in jobs] == ["completed"] * total
        found = await self.outputs(f"&batch={batch['id']}")
        assert len({(output["item_no"], output["number"]) for output in found}) == len(found) == total * FILES_PER_JOB
        # earlier outputs are still there
        assert len(await self.outputs()) == (total + 2) * FILES_PER_JOB
        return str(batch["id"])

    async def batch_when(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the only batch is in a state; the page shows the state later."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                found: list[dict[str, Any]] = (await self.driver.call("GET", "/api/batches"))["items"]
                if found and holds(found[0]):
                    return found[0]
                await asyncio.sleep(0.02)

    async def look_at_grid(self, batch: str) -> None:
        """Show the sweep as a labelled grid and save the grid as one picture."""
        await self.page.goto(f"/gallery?batch={batch}")
        await self.page.get_by_role("button", name="Grid", exact=True).click()
        table = self.page.get_by_role("table", name="Grid of the batch")
        await expect(table.get_by_role("columnheader")).to_have_text(["Width", "Height 700", "Height 800"])
        await expect(table.get_by_role("rowheader")).to_have_text([str(width) for width in WIDTHS])
        await expect(table.locator("img")).to_have_count(len(WIDTHS) * len(HEIGHTS))
        async with self.page.expect_download() as downloading:
            await self.page.get_by_role("button", name="Save as picture").click()
        path = await (await downloading.value).path()
        with Image.open(path) as picture:
            assert picture.format == "PNG"
            assert len(picture.convert("RGB").getcolors(2**24) or ()) > 50

    async def open_embedded_workflow(self, batch: str) -> None:
        """Download an output and drop it: its workflow opens with the original layout and the values of its run."""
        outputs = await self.outputs(f"&batch={batch}")
        first = next(output for output in outputs if (output["item_no"], output["number"]) == (0, 1))
        content = (await self.driver.http.get(first["url"])).raise_for_status().content
        with Image.open(io.BytesIO(content)) as picture:
            embedded = json.loads(picture.info["workflow"])
        values = {entry["id"]: entry["widgets_values"] for entry in embedded["nodes"] if entry.get("widgets_values")}
        assert values[1][0] == "lake.png"
        assert values[2][1:3] == [WIDTHS[0], HEIGHTS[0]]
        assert {entry["id"]: entry["pos"] for entry in embedded["nodes"]} == {
            entry["id"]: entry["pos"] for entry in lake_workflow()["nodes"]
        }
        await self.page.goto(f"/gallery?batch={batch}&open={first['id']}")
        more = self.page.get_by_role("dialog").get_by_role("button", name="More", exact=True)
        await more.click()
        async with self.page.expect_download() as downloading:
            await self.page.get_by_role("menuitem", name="Download workflow").click()
        assert json.loads((await (await downloading.value).path()).read_text("utf-8")) == embedded
        await more.click()
        async with self.page.context.expect_page() as opened:
            await self.page.get_by_role("menuitem", name="Open in ComfyUI").click()
        editor = await opened.value
        assert editor.url.startswith(tuple((await self.driver.call("GET", "/api/desk"))["comfyui"]))
        await editor.close()
        await self.page.goto("/create")
        await expect(self.form).to_be_visible()
        await self.driver.drop((first["filename"], "image/png", content))
        await self.page.get_by_role("dialog").get_by_role("button", name="Run again").click()
        carried = self.page.get_by_role("form", name=re.compile("Width 1000"))
        await expect(carried.get_by_role("textbox", name="Width")).to_have_value(str(WIDTHS[0]))

    async def change_a_setting(self) -> None:
        menu = await self.open_menu(self.page)
        await menu.get_by_role("button", name="Settings", exact=True).click()
        sheet = self.page.get_by_role("dialog", name="Settings")
        await sheet.get_by_label("Names of outputs").fill("{label}_{number}")
        await sheet.get_by_role("button", name="Save").click()
        await expect(self.page.get_by_text("Saved.").first).to_be_visible()
        saved = tomllib.loads((self.desk.data_dir / "comfyrelay.toml").read_text("utf-8"))
        assert saved == {"desk": {"output_names": "{label}_{number}"}}

    async def pause_and_resume(self) -> None:
        """Check that a paused queue shows and holds a new job, and runs it after a resume."""
        await self.page.goto("/queue")
        await self.page.get_by_role("button", name="Pause after current jobs").click()
        notice = self.page.get_by_text("The queue is paused. It holds no jobs yet.")
        await expect(notice.first).to_be_visible()
        await self.page.get_by_role("link", name="Create").first.click()
        listed = self.page.get_by_role("navigation", name="Workflows").get_by_role("link")
        await listed.filter(has_text=re.compile(f"^{NAME}image")).click()
        # the form still sweeps the heights
        await self.field("Width").fill("640")
        await self.page.keyboard.press("Control+Enter")
        await expect(self.page.get_by_text("The queue is paused. It holds 2 jobs.").first).to_be_visible()
        await self.page.get_by_role("button", name="Resume queue").click()
        await expect(self.page.get_by_role("button", name="Resume queue")).to_have_count(0)
        count = (2 + len(WIDTHS) * len(HEIGHTS) + len(HEIGHTS)) * FILES_PER_JOB
        await self.page.goto("/gallery")
        await expect(self.page.get_by_text(f"{count} outputs")).to_be_visible()

    async def open_on_a_phone(self) -> None:
        """Open the link of the QR code on a phone, which is signed in until it signs out."""
        menu = await self.open_menu(self.page)
        await menu.get_by_role("button", name="Open on a phone").click()
        sheet = self.page.get_by_role("dialog", name="Open on a phone")
        await expect(sheet.get_by_role("img", name="QR code that opens this desk")).to_be_visible()
        link = await sheet.get_by_label("Open on a phone").input_value()
        assert self.page.context.browser is not None
        phone = await self.page.context.browser.new_context(viewport=PHONE, is_mobile=True, has_touch=True)
        page = await phone.new_page()
        await page.goto(link)
        await page.wait_for_url(ANY_AREA)
        [newest, *_] = await self.outputs()
        origin = urlsplit(link)
        for path in ("/create", "/queue", "/gallery", f"/jobs/{newest['job_id']}"):
            await page.goto(f"{origin.scheme}://{origin.netloc}{path}")
            await expect(page.locator("main img").first).to_be_attached()
            assert await page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"]
        await (await self.open_menu(page)).get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("Password")).to_be_visible()
        await phone.close()

    async def open_menu(self, page: Page) -> Locator:
        await page.get_by_role("navigation", name="Areas").get_by_role("button", name="Settings").click()
        return page.get_by_role("dialog", name="Settings")


async def box(element: Locator) -> FloatRect:
    found = await element.bounding_box()
    assert found is not None
    return found


async def colors(element: Locator) -> int:
    """Return the number of colours on the screen at the position of an element."""
    with Image.open(io.BytesIO(await element.screenshot())) as picture:
        return len(picture.convert("RGB").getcolors(picture.width * picture.height) or [])
