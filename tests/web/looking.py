"""What tests of the page do again and again: look for something, drop files, and let the stand-in misbehave."""

import base64
import os
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest
from playwright.async_api import Browser, ConsoleMessage, Locator, Page, async_playwright, expect

from comfyrelay.desk.examples import sample_picture
from tests.desk.owner import owner_http

__all__ = ["PROMPT_GRAPH", "Looking", "open_chromium", "open_page"]

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 20_000

# A prompt, a seed and a size; its checkpoint cannot be loaded, so it fails when it runs.
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
    const bytes = Uint8Array.from(atob(content), (each) => each.charCodeAt(0));
    transfer.items.add(new File([bytes], name, { type }));
  }
  for (const kind of ["dragenter", "dragover", "drop"]) {
    document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
  }
}"""

# The page looks every second: no test need wait that long.
_OFTEN = "{ const every = window.setInterval; window.setInterval = (work, ms) => every(work, ms / 5); }"


@dataclass(frozen=True, kw_only=True, slots=True)
class Looking:
    page: Page
    http: httpx.AsyncClient
    comfyui: str

    @classmethod
    @asynccontextmanager
    async def at(cls, page: Page, url: str) -> AsyncIterator["Looking"]:
        async with owner_http(url) as http:
            found = (await http.get("/api/desk")).json()["data"]
            yield cls(page=page, http=http, comfyui=found["comfyui"][0])

    @property
    def rows(self) -> Locator:
        return self.page.locator("#rows > .row")

    @property
    def pane(self) -> Locator:
        return self.page.locator("#pane")

    async def status_is(self, word: str) -> None:
        """Of what is open."""
        await expect(self.pane.locator(".sheet-head .badge")).to_have_text(word)

    async def names(self) -> list[str]:
        return await self.rows.locator(".name").all_inner_texts()

    async def misbehave(self, name: str, **fields: Any) -> None:
        """Let the stand-in do so, by its own control route."""
        answer = await self.http.post(f"{self.comfyui}/sim/misbehave", json={"name": name, **fields})
        answer.raise_for_status()

    async def behave(self) -> None:
        (await self.http.delete(f"{self.comfyui}/sim/misbehave")).raise_for_status()

    async def drop(self, *files: tuple[str, str, bytes]) -> None:
        """Drop files, each with its name, type and content, on the page."""
        await self.page.evaluate(_DROP, [[name, type_, base64.b64encode(each).decode()] for name, type_, each in files])

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.http.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json()["data"]

    async def upload(self, name: str = "sample.png") -> str:
        content = sample_picture()
        about = {"mime_type": "image/png", "size": len(content), "original_filename": name}
        made = await self.call("POST", "/api/videos/uploads", about)
        (await self.http.put(made["upload_url"], content=content, headers=made["upload_headers"])).raise_for_status()
        return str(made["file"]["id"])

    async def submit(self, *labels: str) -> list[str]:
        """Jobs that invert the sample, with these labels, in this order; their ids."""
        file_id = await self.upload()
        return [(await self.call("POST", "/api/ai-jobs", _job(file_id, each)))["id"] for each in labels]

    async def submit_batch(self, label: str, items: Iterable[str]) -> str:
        file_id = await self.upload()
        bodies = [{"input_file_id": file_id, "label": each} for each in items]
        made = await self.call("POST", "/api/batches", {"effect_id": 1, "label": label, "items": bodies})
        return str(made["id"])


def _job(file_id: str, label: str) -> dict[str, Any]:
    return {"effect_id": 1, "input_file_id": file_id, "label": label, "idempotency_key": str(uuid4())}


@asynccontextmanager
async def open_chromium() -> AsyncIterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(
            f"None of {', '.join(NAMES)} is installed: `apt-get install chromium`, then the page is tested, too."
        )
    # Chromium's sandbox does not work for root
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    # a busy machine is slow, and no test is about that
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        await browser.close()


@asynccontextmanager
async def open_page(chromium: Browser, url: str) -> AsyncIterator[Looking]:
    """The page, just opened. Whatever it complains of in the console fails the test."""
    page = await chromium.new_page(viewport={"width": 1280, "height": 800}, base_url=url)
    page.set_default_timeout(PATIENCE_MS)
    await page.add_init_script(_OFTEN)
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # the browser itself reports answers such as 404 and 422, which a test may be about
        if message.type == "error" and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    page.on("console", heard)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    async with Looking.at(page, url) as looking:
        # as people do: by a link, which leads to the page
        await page.goto((await looking.call("POST", "/api/desk/links"))["url"])
        await page.wait_for_url("/")
        yield looking
    assert complaints == []
    await page.close()
