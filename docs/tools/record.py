"""Record the web app: a batch is added, runs, and ends in the gallery.

python -m docs.tools.record docs/images/desk.webp

Uses the sample desk of the screenshots, in Chromium. The result is an animated WebP, which browsers and code hosts show
without a player. It has at most 2 MB.
"""

import asyncio
import io
import itertools
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import structlog
from PIL import Image
from playwright.async_api import Page, expect

from comfyrelay.simulator import Simulator, Slow
from tests.support.chromium import open_chromium
from tests.support.desk import make_desk
from tests.support.web_app import Screen, build_app, open_context
from tests.system.browser.sample_desk import Filling
from tests.system.browser.screenshots import NAMES, SCENES, SHAPES

SCREEN = Screen("recording", 1200, 750)
SIZE = (960, 600)
MAX_BYTES = 2_000_000
# A slow machine takes only one screenshot per second; viewers should not have to wait for it.
MAX_FRAME_MS = 600
PROMPTS = ("a lighthouse in the fog, soft morning light", "a lighthouse in a storm, tall waves")
Frame = tuple[float, bytes]


async def fill(filling: Filling) -> None:
    """Run earlier jobs for the gallery."""
    stills = [
        {"label": name, "input_payload": {"prompt": scene, "seed": number, "width": width, "height": height}}
        for number, (name, scene) in enumerate(zip(NAMES, SCENES, strict=True))
        for width, height in SHAPES
    ]
    await filling.batch_ended(await filling.submit_batch("text-to-image", "Storyboard", stills))


async def play(page: Page) -> None:
    """Play the recorded scenes. The pauses are for viewers."""
    await page.goto("/create?workflow=text-to-image")
    prompt = page.get_by_label("Prompt", exact=True)
    await prompt.fill("")
    await prompt.press_sequentially("\n".join(PROMPTS), delay=25)
    await page.get_by_role("textbox", name="Variations").fill("3")
    await asyncio.sleep(1.5)
    await page.get_by_label("Summary").get_by_role("button", name=re.compile("^Add ")).click()
    await asyncio.sleep(3)
    areas = page.get_by_role("navigation", name="Areas")
    await areas.get_by_role("link", name="Queue").click()
    await asyncio.sleep(6)
    await areas.get_by_role("link", name="Gallery").click()
    await asyncio.sleep(2.5)
    await page.get_by_role("list", name="Outputs").get_by_role("listitem").nth(1).get_by_role("button").first.click()
    await asyncio.sleep(2.5)


async def watch(page: Page, frames: list[Frame]) -> None:
    """Take screenshots until canceled."""
    while True:
        frames.append((time.monotonic(), await page.screenshot(type="png", scale="css")))


async def record() -> Sequence[Frame]:
    frames: list[Frame] = []
    with tempfile.TemporaryDirectory(prefix="comfyrelay-recording-") as place:
        # Do not touch other desks on this machine.
        os.environ["XDG_STATE_HOME"] = f"{place}/state"
        async with Simulator() as simulator, open_chromium() as chromium:
            desk = make_desk(Path(place) / "data", shutdown_seconds=0, comfyui_url=[simulator.url])
            async with desk.open() as (_worker, ready), Filling.of(ready.url) as filling:
                await fill(filling)
                simulator.misbehave(Slow(class_type="KSampler", seconds=1.5, steps=15, previews=True))
                async with open_context(chromium, ready.url, theme="dark", screen=SCREEN) as context:
                    page = await context.new_page()
                    await page.goto("/create?workflow=text-to-image")
                    await expect(page.get_by_label("Prompt", exact=True)).to_be_visible()
                    watching = asyncio.create_task(watch(page, frames))
                    await play(page)
                    watching.cancel()
                    with suppress(asyncio.CancelledError):
                        await watching
                simulator.behave()
    frames.append((time.monotonic(), frames[-1][1]))
    return frames


def save(frames: Sequence[Frame], path: Path) -> None:
    """Write the animation. An unchanged frame extends the previous one."""
    pictures: list[Image.Image] = []
    milliseconds: list[int] = []
    shown: bytes | None = None
    for (start, content), (end, _) in itertools.pairwise(frames):
        duration = min(round(1000 * (end - start)), MAX_FRAME_MS)
        if content == shown:
            milliseconds[-1] += duration
            continue
        shown = content
        pictures.append(Image.open(io.BytesIO(content)).convert("RGB").resize(SIZE, Image.Resampling.LANCZOS))
        milliseconds.append(duration)
    first, *others = pictures
    first.save(path, save_all=True, append_images=others, duration=milliseconds, loop=0, quality=50, method=4)
    size = path.stat().st_size
    print(f"{path}: {len(pictures)} frames, {sum(milliseconds) / 1000:.0f} s, {size:,} bytes")
    if size > MAX_BYTES:
        raise SystemExit(f"The recording must have at most {MAX_BYTES:,} bytes.")


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    build_app()
    save(asyncio.run(record()), Path(sys.argv[1]))
