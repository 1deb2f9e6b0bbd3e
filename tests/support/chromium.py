"""Drive the web app in Chromium."""

import asyncio
import base64
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest
from playwright.async_api import Browser, ConsoleMessage, Locator, Page, async_playwright, expect

from comfyrelay.desk.examples import sample_image
from tests.support.desk import callable_url
from tests.support.desk_owner import owner_http
from tests.support.world import PATIENCE_SECONDS

__all__ = ["ANY_AREA", "PROMPT_GRAPH", "PageDriver", "open_chromium", "open_page"]

# The headless shell takes half the time of the other builds.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = PATIENCE_SECONDS * 1000

# A graph with a prompt, a seed and a size. Its checkpoint does not exist, so its jobs fail.
PROMPT_GRAPH: dict[str, Any] = {
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "broken.safetensors"}},
    "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a lake", "clip": ["1", 1]}},
    "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurry", "clip": ["1", 1]}},
    "4": {"class_type": "EmptyLatentImage", "inputs": {"width": 512, "height": 512, "batch_size": 1}},
    "5": {
        "class_type": "KSampler",
        "inputs": {
            "model": ["1", 0],
            "positive": ["2", 0],
            "negative": ["3", 0],
            "latent_image": ["4", 0],
            "seed": 18446744073709551615,
            "steps": 20,
            "cfg": 7.0,
            "sampler_name": "euler",
            "scheduler": "normal",
            "denoise": 1.0,
        },
    },
    "6": {"class_type": "VAEDecode", "inputs": {"samples": ["5", 0], "vae": ["1", 2]}},
    "7": {"class_type": "SaveImage", "inputs": {"images": ["6", 0], "filename_prefix": "out"}},
}

_DROP = """(files) => {
  const transfer = new DataTransfer();
  for (const [name, type, content] of files) {
    const bytes = Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
    transfer.items.add(new File([bytes], name, { type }));
  }
  for (const kind of ["dragenter", "dragover", "drop"]) {
    document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
  }
}"""

# Poll faster than the page, which polls every second.
_OFTEN = "{ const every = window.setInterval; window.setInterval = (work, ms) => every(work, ms / 5); }"


@dataclass(frozen=True, kw_only=True, slots=True)
class PageDriver:
    page: Page
    http: httpx.AsyncClient
    comfyui: str

    @classmethod
    @asynccontextmanager
    async def at(cls, page: Page, url: str) -> AsyncIterator["PageDriver"]:
        async with owner_http(url, timeout=PATIENCE_SECONDS) as http:
            found = (await http.get("/api/desk")).json()["data"]
            # a ComfyUI that the desk is still starting has no address
            yield cls(page=page, http=http, comfyui=callable_url(next(iter(found["comfyui"]), "")))

    @property
    def units(self) -> Locator:
        """Batches and single jobs in the queue."""
        return self.page.locator("[data-entry]")

    @property
    def names(self) -> Locator:
        return self.units.locator("button[title]")

    def unit(self, label: str) -> Locator:
        return self.units.filter(has=self.page.get_by_role("button", name=label, exact=True))

    @property
    def error(self) -> Locator:
        """The error card of a job."""
        return self.page.get_by_role("main").get_by_role("alert")

    @property
    def actions(self) -> Locator:
        """The actions of the open job."""
        return self.page.get_by_role("group", name="Job", exact=True)

    def chip(self, status: str, count: int | None = None) -> Locator:
        """Return the filter for a status, with its count."""
        number = r"[\d,]+" if count is None else f"{count:,}"
        return self.page.get_by_role("button", name=re.compile(f"^{status} ?{number}$"))

    async def open_queue(self) -> None:
        await self.page.goto("/queue")
        await expect(self.page.get_by_role("heading", name="Queue", exact=True)).to_be_visible()

    async def open_job(self, job_id: str) -> None:
        await self.page.goto(f"/jobs/{job_id}")
        await expect(self.page.get_by_role("link", name="Queue", exact=True).last).to_be_visible()

    async def status_is(self, word: str) -> None:
        """Expect the open job to have this status."""
        await expect(self.page.locator("main header").get_by_text(word, exact=True)).to_be_visible()

    async def do(self, label: str, verb: str) -> None:
        """Choose an item from the menu of a queue entry."""
        await self.page.get_by_role("button", name=f"Actions for {label}", exact=True).click()
        await self.page.get_by_role("menuitem", name=verb, exact=True).click()

    async def close_undo_message(self) -> None:
        """Close the undo message of a deletion."""
        message = self.page.get_by_role("listitem").filter(has_text="will be deleted")
        await message.get_by_role("button", name="Close").click()

    async def choose(self, workflow: str) -> Locator:
        """Open the form of a workflow in Create."""
        await self.page.goto("/create")
        listed = self.page.get_by_role("navigation", name="Workflows")
        await listed.get_by_role("link", name=workflow).click()
        form = self.page.get_by_role("form", name=workflow)
        await expect(form).to_be_visible()
        return form

    @property
    def plan(self) -> Locator:
        """The summary next to a form."""
        return self.page.get_by_label("Summary")

    async def add(self, button: str = "Add job", *, count: int = 1) -> None:
        """Submit the form and wait for the confirmation."""
        await self.plan.get_by_role("button", name=button).click()
        message = f"Added {count} job{'s' if count > 1 else ''}."
        await expect(self.page.get_by_text(message, exact=True).first).to_be_visible()

    async def misbehave(self, name: str, **fields: Any) -> None:
        """Inject a fault into the simulator through its control route."""
        answer = await self.http.post(f"{self.comfyui}/simulator/misbehave", json={"name": name, **fields})
        answer.raise_for_status()

    async def behave(self) -> None:
        (await self.http.delete(f"{self.comfyui}/simulator/misbehave")).raise_for_status()

    async def ended(self, job_id: str) -> Any:
        """Wait until the job has ended."""
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            self.http.stream("GET", f"/api/ai-jobs/{job_id}/events", timeout=None) as events,
        ):
            async for _line in events.aiter_lines():
                pass
        return await self.call("GET", f"/api/ai-jobs/{job_id}")

    async def until_running(self, job_id: str) -> None:
        """Wait for progress, because a job without progress may only be prefetched."""
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            self.http.stream("GET", f"/api/ai-jobs/{job_id}/events", timeout=None) as events,
        ):
            async for line in events.aiter_lines():
                if line == "event: progress":
                    return
        raise AssertionError("The job ended before it reported progress.")

    async def tidy(self) -> None:
        """Clear faults, jobs and added workflows."""
        await self.behave()
        await self.call("POST", "/api/ai-jobs/bulk", {"action": "cancel", "filter": {}})
        for status in ("processing", "queued"):
            for job in (await self.call("GET", f"/api/ai-jobs?status={status}&limit=200"))["items"]:
                await self.ended(job["id"])
        await self.call("POST", "/api/ai-jobs/bulk", {"action": "delete", "filter": {}})
        for workflow in (await self.call("GET", "/api/workflows?limit=200"))["items"]:
            await self.call("DELETE", f"/api/workflows/{workflow['slug']}")

    async def drop(self, *files: tuple[str, str, bytes]) -> None:
        """Drop files with name, type and content on the page."""
        await self.page.evaluate(
            _DROP, [[name, type_, base64.b64encode(content).decode()] for name, type_, content in files]
        )

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.http.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json()["data"]

    async def upload(self, name: str = "sample.png") -> str:
        content = sample_image()
        body = {"mime_type": "image/png", "size": len(content), "original_filename": name}
        created = await self.call("POST", "/api/videos/uploads", body)
        (
            await self.http.put(created["upload_url"], content=content, headers=created["upload_headers"])
        ).raise_for_status()
        return str(created["file"]["id"])

    async def submit(self, *labels: str) -> list[str]:
        """Submit jobs with these labels that invert the sample; return their ids."""
        file_id = await self.upload()
        return [(await self.call("POST", "/api/ai-jobs", _job(file_id, label)))["id"] for label in labels]

    async def submit_batch(self, label: str, items: Iterable[str]) -> str:
        file_id = await self.upload()
        bodies = [{"input_file_id": file_id, "label": item} for item in items]
        batch = await self.call("POST", "/api/batches", {"effect_id": 1, "label": label, "items": bodies})
        return str(batch["id"])


def _job(file_id: str, label: str) -> dict[str, Any]:
    return {"effect_id": 1, "input_file_id": file_id, "label": label, "idempotency_key": str(uuid4())}


@asynccontextmanager
async def open_chromium() -> AsyncIterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(
            f"None of {', '.join(NAMES)} is installed. Install one to test the page: `apt-get install chromium`."
        )
    # Chromium's sandbox does not work as root
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    # a test on a busy machine is slow, not wrong
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        await browser.close()


ANY_AREA = re.compile("/(queue|create)")


async def until(page: Page, expression: str) -> None:
    """Wait for a condition in the page, because the content security policy forbids Playwright's own wait."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await page.evaluate(expression):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@asynccontextmanager
async def open_page(chromium: Browser, url: str, *, lands: re.Pattern[str] = ANY_AREA) -> AsyncIterator[PageDriver]:
    """Open the page and expect to arrive at `lands`; an error in the console fails the test."""
    page = await chromium.new_page(viewport={"width": 1280, "height": 800}, base_url=url)
    page.set_default_timeout(PATIENCE_MS)
    await page.add_init_script(_OFTEN)
    errors: list[str] = []

    def record_error(message: ConsoleMessage) -> None:
        # the browser reports responses such as 404 and 422, which a test may expect
        if message.type == "error" and "Failed to load resource" not in message.text:
            errors.append(message.text)

    page.on("console", record_error)
    page.on("pageerror", lambda error: errors.append(str(error)))
    async with PageDriver.at(page, url) as driver:
        # open the page through a sign-in link, as users do
        await page.goto((await driver.call("POST", "/api/desk/links"))["url"])
        await page.wait_for_url(lands)
        yield driver
    assert errors == []
    await page.close()
