"""A desk with a user's batch script and a simulated ComfyUI."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Locator

from comfyrelay.client import AboutJob, Client
from comfyrelay.simulator import Simulator, Slow, Stuck
from tests.support.api_calls import png
from tests.support.chromium import PageDriver
from tests.support.desk import OpenDesk, make_desk
from tests.support.desk_owner import owner_http
from tests.support.graphs import invert

SCRIPT = Path(__file__).with_name("batch_script.py")
PATIENCE_SECONDS = 60
# A graph from an image to a clip, without models. Tests slow down or break its node `ImageInvert`.
TEMPLATE: dict[str, Any] = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "cat.png"}},
    "2": {"class_type": "ImageAddNoise", "inputs": {"image": ["1", 0], "seed": 40, "strength": 0.5}},
    "3": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
    "4": {
        "class_type": "ImageScale",
        "inputs": {"image": ["3", 0], "upscale_method": "bilinear", "width": 64, "height": 64, "crop": "center"},
    },
    "5": {"class_type": "CreateVideo", "inputs": {"images": ["4", 0], "fps": 8.0}},
    "6": {
        "class_type": "SaveVideo",
        "inputs": {"video": ["5", 0], "filename_prefix": "clip", "format": "mp4", "codec": "h264"},
    },
}
# ComfyUI refuses this graph, because node 3 has no image.
BROKEN = {**TEMPLATE, "3": {"class_type": "ImageInvert", "inputs": {}}}
# A node that takes ten minutes and can be interrupted, and a node that waits until it is released.
SLOW = Slow(class_type="ImageInvert", seconds=600, steps=6000)
HELD = Stuck(class_type="ImageInvert")


@dataclass
class ScriptDesk(OpenDesk):
    simulator: Simulator
    # ComfyUI's folder, which contains `input` and `output`
    comfyui: Path
    http: httpx.AsyncClient
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    # adding

    async def script(self, **values: Any) -> str:
        """Add a job that runs the script with a new seed, because ComfyUI caches equal runs."""
        seed = f"--seed {next(self.numbers)}"
        payload = {"positive": "a cat", "input_subdir": "cats", "extra_args": seed, **values}
        return str((await self.client.submit(workflow_slug="script", input_payload=payload)).id)

    async def graph(self, label: str = "a graph", **more: Any) -> str:
        """Add a job that runs a graph with `ImageInvert` on a new color."""
        return str((await self.client.submit(**await self.new_graph(), label=label, **more)).id)

    async def graphs(self, count: int, **more: Any) -> tuple[str, list[str]]:
        """Add a batch of such jobs; return its id and the ids of its items in order."""
        jobs = [await self.new_graph() for _ in range(count)]
        items = [{"input_payload": item["input_payload"]} for item in jobs]
        batch = await self.client.submit_batch(items, workflow_slug=jobs[0]["workflow_slug"], **more)
        return batch.id, await self.items(batch.id)

    async def new_graph(self) -> dict[str, Any]:
        workflow = await self.client.add_graph(invert(), name="mine")
        [colour] = [key for key, places in workflow.data.positions.items() if places == ["1.color"]]
        return {"workflow_slug": workflow.data.slug, "input_payload": {colour: next(self.numbers)}}

    # reading

    async def items(self, batch_id: str) -> list[str]:
        """Return the jobs of a batch, in order."""
        found = [job async for job in self.client.jobs(batch_id=batch_id)]
        return [item.id for item in sorted(found, key=lambda job: job.item_no)]

    async def status(self, job_id: str) -> str:
        return str((await self.client.job(job_id)).status)

    async def until_running(self, job_id: str) -> None:
        """Wait until a job reports progress; before that, it may only be prefetched."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in self.client.events(job_id):
                if event.type == "progress":
                    return

    async def until_fetched(self, job_id: str) -> None:
        """Wait until the inputs of a job are downloaded, so that it runs next."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in self.client.events(job_id):
                if event.type == "job:started":
                    return

    async def assert_run_order(self, jobs: Iterable[str]) -> None:
        """Release jobs that ComfyUI holds (`HELD`) one by one, and check that each is running."""
        for job in jobs:
            await self.until_running(job)
            self.simulator.behave()
            self.simulator.misbehave(HELD)
        self.simulator.behave()

    async def until_paused(self, job_id: str) -> None:
        """Wait until a job is paused; a leased job is paused once the worker has returned it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in self.client.events(job_id):
                if event.type == "job:paused":
                    return

    async def wait_for_log(self, job_id: str, words: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for log in self.client.logs(job_id, is_followed=True):
                if words in log.line:
                    return
        raise AssertionError(f"It ended without saying {words!r}.")

    async def log(self, job_id: str) -> list[str]:
        return [log.line async for log in self.client.logs(job_id)]

    async def about(self, job_id: str) -> AboutJob:
        found = await self.client.about(job_id)
        assert found is not None
        return found

    async def last_attempt(self, job_id: str) -> Mapping[str, Any]:
        """Return the record of a script's last run: `argv`, `exit_code`, `outputs`, `seed` and `log`."""
        [*_, attempt] = (await self.about(job_id)).attempts
        return attempt.about or {}

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Poll a condition, because other processes send no signal."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def submit_form(self, page: PageDriver) -> str:
        """Submit the filled script form after its command is shown; return the job's id."""
        await page.add("Run job")
        [job] = [job async for job in self.client.jobs()]
        return str(job.id)

    async def reset(self) -> None:
        """Reset ComfyUI, stop all jobs, and clear and resume the queue."""
        self.simulator.behave()
        await self._all("cancel")
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for job in self.client.jobs():
                if not job.has_ended:
                    await self.ended(job.id)
        await self._all("delete")
        await self.client.resume_queue()

    async def _all(self, action: str) -> None:
        (await self.http.post("/api/ai-jobs/bulk", json={"action": action, "filter": {}})).raise_for_status()


async def choose_script(page: PageDriver) -> Locator:
    """Open the form for the script."""
    return await page.choose(f"Script: {SCRIPT.name}")


async def choose_option(form: Locator, field: str, choice: str) -> None:
    """Choose a value in a list field."""
    await form.get_by_role("combobox", name=field).click()
    await form.page.get_by_role("option", name=choice, exact=True).click()


@asynccontextmanager
async def open_script_desk(folder: Path, **desk: Any) -> AsyncIterator[ScriptDesk]:
    async with (
        Simulator(folder=folder / "comfyui") as simulator,
        open_desk_at(folder, simulator, **desk) as script_desk,
    ):
        yield script_desk


@asynccontextmanager
async def open_desk_at(
    folder: Path, simulator: Simulator, *others: Simulator, **desk: Any
) -> AsyncIterator[ScriptDesk]:
    """Open a desk with one or more ComfyUI servers, in a folder that an earlier desk may have used."""
    comfyui = folder / "comfyui"
    urls = [comfyui.url for comfyui in (simulator, *others)]
    settings = make_desk(folder / "desk", comfyui_url=urls, input_folder=comfyui / "input", **desk)
    settings.script = write_script_files(folder)
    async with (
        settings.open() as (_worker, ready),
        Client(ready.url) as client,
        owner_http(ready.url, timeout=PATIENCE_SECONDS) as http,
    ):
        yield ScriptDesk(client=client, ready=ready, desk=settings, simulator=simulator, comfyui=comfyui, http=http)


def write_script_files(folder: Path) -> dict[str, Any]:
    """Create two folders of pictures and two templates; return the `[desk.script]` settings for them."""
    comfyui, templates = folder / "comfyui", folder / "templates"
    templates.mkdir(parents=True, exist_ok=True)
    for name, graph in (("clip.json", TEMPLATE), ("refused.json", BROKEN)):
        (templates / name).write_text(json.dumps(graph))
    for place, colour in (("cats", "#445566"), ("dogs", "#665544")):
        (comfyui / "input" / place).mkdir(parents=True, exist_ok=True)
        (comfyui / "input" / place / f"{place[:-1]}.png").write_bytes(png(colour))
    return {
        "script": str(SCRIPT),
        "template_folder": str(templates),
        "output_folder": str(comfyui / "output"),
        "environment": {"COMFYUI_HOME": str(comfyui)},
        "extra_options": {"--seed": "[0-9]{1,9}", "--timeout": "[0-9]+"},
        "grace_seconds": 5,
    }


def config_in(folder: Path) -> Path:
    """Return the same settings as a configuration file."""
    path = folder / "comfyrelay.toml"
    path.write_text(
        "[desk.script]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in write_script_files(folder).items())
    )
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {json.dumps(entry)}" for key, entry in value.items()) + " }"
    return json.dumps(value)
