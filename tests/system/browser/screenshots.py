"""Take screenshots of every page, on desktop, tablet and phone, in both themes.

python -m tests.system.browser.screenshots FOLDER desk|many|server [parts of page names]

The desk has varied media, batches, failures, and running and waiting jobs; `many` adds 4,000 waiting jobs. The server
has effects, a user's videos, machines and their statistics. A second server is used for the setup pages.
"""

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import structlog
from playwright.async_api import Browser, BrowserContext, Page

from comfyrelay.simulator import Fail, Simulator, Slow
from tests.support.chromium import open_chromium
from tests.support.desk import make_desk
from tests.support.web_app import DESKTOP, PHONE, TABLET, THEMES, build_app, open_context, record_page, settled
from tests.support.whole_system import open_system
from tests.system.browser import sample_server
from tests.system.browser.sample_desk import Filling, picture
from tests.system.browser.server import open_visitor, sign_in, started_by
from tests.system.browser.server_setup import PRINTED, set_up

SHAPES = ((1024, 576), (576, 1024), (768, 768))
SCENES = (
    "a lighthouse in the fog, slow dolly in, soft morning light",
    "a paper boat on a rainy street, macro, shallow depth of field",
    "an old tram climbs a hill at dusk, warm windows, film grain",
    "a fox crosses a frozen lake, wide shot, low sun",
    "neon market at night, handheld, reflections on wet stone",
    "a greenhouse full of ferns, dust in the light, 35 mm",
    "a kite over dunes, strong wind, long shadows",
    "portrait of a glassblower, sparks, dark background",
)
NAMES = ("lighthouse", "paper boat", "tram", "fox", "market", "greenhouse", "kite", "glassblower")
ERROR = "mat1 and mat2 shapes cannot be multiplied (77x2048 and 768x320)"


async def fill(filling: Filling, simulator: Simulator) -> dict[str, str]:
    """Add a day of work and return the addresses of the detail pages."""
    files = [
        await filling.upload(f"{name}.png", picture(number, *SHAPES[number % len(SHAPES)]))
        for number, name in enumerate(NAMES)
    ]
    stills = [
        {
            "label": f"{name}, try {attempt + 1}",
            "input_payload": {"prompt": scene, "seed": 1000 * number + attempt, "width": width, "height": height},
        }
        for number, (name, scene) in enumerate(zip(NAMES, SCENES, strict=True))
        for attempt, (width, height) in enumerate(SHAPES)
    ]
    boards = await filling.submit_batch("text-to-image", "Storyboard: the long way home", stills)
    clips = [{"input_file_id": file_id, "label": name} for file_id, name in zip(files, NAMES, strict=True)]
    moving = await filling.submit_batch("image-to-clip", "Clips of the storyboard", clips)
    single = await filling.submit("text-to-image", "Title card", input_payload={"prompt": SCENES[4], "seed": 7})
    await filling.batch_ended(boards)
    await filling.batch_ended(moving)
    await filling.ended(single)
    simulator.misbehave(Fail(class_type="ImageInvert", message=ERROR, times=1))
    graded = await filling.submit_batch("invert-image", "Negative of the stills", clips)
    await filling.batch_ended(graded)
    failed = await filling.submit("invert-image", "Poster", input_file_id=files[0])
    await filling.ended(failed)
    simulator.misbehave(Fail(class_type="ImageInvert", message=ERROR))
    failed = await filling.submit("invert-image", "Poster in print size", input_file_id=files[1])
    await filling.ended(failed)
    simulator.behave()
    jobs = (await filling.call("GET", "/api/gallery?limit=60"))["items"]
    await filling.call("POST", "/api/gallery/marks", {"ids": [job["id"] for job in jobs[::5]], "starred": True})
    await filling.call("POST", "/api/presets", {"name": "Widescreen", "values": {"workflow_slug": "text-to-image"}})
    # this batch is still in progress
    simulator.misbehave(Slow(class_type="KSampler", seconds=3600, steps=30, previews=True))
    await filling.submit_batch("text-to-image", "Night scenes, second pass", stills[:12])
    await filling.submit("image-to-clip", "Closing shot", input_file_id=files[3])
    clip = (await filling.call("GET", f"/api/ai-jobs?batch_id={moving}"))["items"][0]["id"]
    return {
        "create": "/create",
        "create-form": "/create?workflow=text-to-image",
        "create-again": f"/create?from={single}",
        "queue": "/queue",
        "queue-batch": f"/queue?batch={graded}",
        "queue-failed": "/queue?status=failed",
        "gallery": "/gallery",
        "gallery-open": f"/gallery?open={jobs[0]['id']}",
        "gallery-starred": "/gallery?mark=starred",
        "job-picture": f"/jobs/{single}",
        "job-clip": f"/jobs/{clip}",
        "job-failed": f"/jobs/{failed}",
        "kit": "/kit",
    }


async def add_many(filling: Filling, jobs: int) -> None:
    """Add waiting jobs, half of them in batches and the others alone."""
    scenes: list[dict[str, Any]] = [
        {"label": f"scene {number + 1}", "input_payload": {"prompt": SCENES[number % 8]}} for number in range(100)
    ]
    for number in range(jobs // 200):
        await filling.submit_batch("text-to-image", f"Storyboard, version {number + 1}", scenes)
        for scene in scenes:
            await filling.submit("text-to-image", scene["label"], input_payload=scene["input_payload"])


@dataclass(frozen=True, slots=True)
class Camera:
    folder: Path
    words: Sequence[str]
    complaints: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    async def take(self, context: BrowserContext, pages: Mapping[str, str], kind: str) -> None:
        """Save a screenshot of each page in this folder."""
        for name, path in pages.items():
            if self.words and not any(word in name for word in self.words):
                continue
            page = await context.new_page()
            page_log = record_page(page)
            await page.goto(path)
            await settled(page, page_log)
            await self.save_screenshot(page, f"{name}-{kind}")
            self.complaints.extend(f"{name}, {kind}: {complaint}" for complaint in page_log.complaints)
            await page.close()

    async def save_screenshot(self, page: Page, name: str) -> None:
        await page.screenshot(path=self.folder / f"{name}.png")
        self.names.append(name)


KINDS = [(screen, theme) for screen in (DESKTOP, TABLET, PHONE) for theme in THEMES]


async def take_desk(camera: Camera, chromium: Browser, place: Path, *, jobs: int = 0) -> None:
    # Clients read the desk's address from this folder, so other desks on this machine are not affected.
    os.environ["XDG_STATE_HOME"] = f"{place}/state"
    async with Simulator() as simulator:
        desk = make_desk(place / "data", shutdown_seconds=0, comfyui_url=[simulator.url])
        async with desk.open() as (_worker, ready), Filling.of(ready.url) as filling:
            pages = await fill(filling, simulator)
            await add_many(filling, jobs)
            for screen, theme in KINDS:
                async with open_context(chromium, ready.url, theme=theme, screen=screen) as context:
                    await camera.take(context, pages, f"{screen.name}-{theme}")
            simulator.behave()


async def take_server(camera: Camera, chromium: Browser, place: Path) -> None:
    async with open_system(place, {}, settings=sample_server.SETTINGS, simulators=2, quiet=True) as system:
        found = await sample_server.fill(system)
        for_admins = {name: path for name, path in found.items() if path.startswith("/console")}
        for_users = {name: path for name, path in found.items() if name not in for_admins}
        for screen, theme in KINDS:
            for token, pages in (
                (system.admin_token, for_admins),
                (system.user_token, for_users),
                (None, {"entry": "/sign-in", "entry-sign-up": "/sign-up"}),
            ):
                async with open_visitor(chromium, system, theme=theme, screen=screen) as context:
                    if token is not None:
                        await sign_in(context, system, token)
                    await camera.take(context, pages, f"{screen.name}-{theme}")
        for simulator in system.simulators:
            simulator.behave()


async def take_setup(camera: Camera, chromium: Browser, place: Path) -> None:
    """Save a screenshot of each setup step for every screen and theme in turn."""
    if camera.words and "setup" not in camera.words:
        return
    for number, (screen, theme) in enumerate(KINDS):
        folder = place / str(number)
        folder.mkdir()
        async with open_system(folder, {}, quiet=True, is_empty=True) as system:
            address = PRINTED.search(system.server.text())
            assert address is not None
            async with open_visitor(chromium, system, theme=theme, screen=screen) as context:
                page = await context.new_page()
                page_log = record_page(page)
                await page.goto(f"/setup#{address[2]}")
                steps = count(1)

                async def inspect_step(step: str, page: Page = page, steps: Iterator[int] = steps) -> None:
                    await settled(page, page_log)  # noqa: B023 - called before the next iteration
                    await camera.save_screenshot(page, f"setup-{next(steps)}-{step}-{screen.name}-{theme}")  # noqa: B023

                await set_up(page, lambda command: started_by(command, system).start(), inspect_step)
                await camera.save_screenshot(page, f"setup-done-{screen.name}-{theme}")


Take = Callable[[Camera, Browser, Path], Awaitable[None]]
PARTS: dict[str, list[Take]] = {
    "desk": [take_desk],
    "many": [partial(take_desk, jobs=4000)],
    "server": [take_server, take_setup],
}


async def main(folder: Path, part: str, words: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    build_app()
    camera = Camera(folder, words)
    async with open_chromium() as chromium:
        for name in PARTS[part]:
            with tempfile.TemporaryDirectory(prefix="comfyrelay-screenshots-") as place:
                await name(camera, chromium, Path(place))
    for complaint in camera.complaints:
        print(complaint, file=sys.stderr)
    print(f"{len(camera.names)} pictures are in {folder}")


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[2] not in PARTS:
        sys.exit(__doc__)
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
