"""A desk with a batch script of one's own and a ComfyUI that does as it is told."""

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
# From an image to a clip, without models. `ImageInvert` is the node that tests slow down or break.
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
# ComfyUI refuses it: node 3 has no image.
BROKEN = {**TEMPLATE, "3": {"class_type": "ImageInvert", "inputs": {}}}
# A node that takes ten minutes and can be interrupted; and one that waits until it is let go.
SLOW = Slow(class_type="ImageInvert", seconds=600, steps=6000)
HELD = Stuck(class_type="ImageInvert")


@dataclass
class ScriptDesk(OpenDesk):
    simulator: Simulator
    # that of ComfyUI, with its `input` and `output`
    comfyui: Path
    http: httpx.AsyncClient
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    # adding

    async def script(self, **values: Any) -> str:
        """A job that runs the script, with a seed of its own: ComfyUI runs nothing twice."""
        seed = f"--seed {next(self.numbers)}"
        payload = {"positive": "a cat", "input_subdir": "cats", "extra_args": seed, **values}
        return str((await self.client.submit(workflow_slug="script", input_payload=payload)).id)

    async def graph(self, label: str = "a graph", **more: Any) -> str:
        """A job that runs a graph with `ImageInvert`, on a colour of its own."""
        return str((await self.client.submit(**await self.a_graph(), label=label, **more)).id)

    async def graphs(self, count: int, **more: Any) -> tuple[str, list[str]]:
        """A batch of such jobs; its id, and those of its items in their order."""
        made = [await self.a_graph() for _ in range(count)]
        items = [{"input_payload": each["input_payload"]} for each in made]
        batch = await self.client.submit_batch(items, workflow_slug=made[0]["workflow_slug"], **more)
        return batch.id, await self.items(batch.id)

    async def a_graph(self) -> dict[str, Any]:
        made = await self.client.add_graph(invert(), name="mine")
        [colour] = [key for key, places in made.positions.items() if places == ["1.color"]]
        return {"workflow_slug": made.workflow.slug, "input_payload": {colour: next(self.numbers)}}

    # reading

    async def items(self, batch_id: str) -> list[str]:
        """The jobs of a batch, in their order."""
        found = [each async for each in self.client.jobs(batch_id=batch_id)]
        return [each.id for each in sorted(found, key=lambda job: job.item_no)]

    async def status(self, job_id: str) -> str:
        return str((await self.client.job(job_id)).status)

    async def until_running(self, job_id: str) -> None:
        """Until it has told of its progress: until then it may only have been fetched."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in self.client.events(job_id):
                if event.type == "progress":
                    return

    async def until_fetched(self, job_id: str) -> None:
        """Until its inputs are here, so that it runs next."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in self.client.events(job_id):
                if event.type == "job:started":
                    return

    async def run_in_this_order(self, jobs: Iterable[str]) -> None:
        """Let jobs go that ComfyUI holds (`HELD`), one after the other: each must be the one that runs."""
        for each in jobs:
            await self.until_running(each)
            self.simulator.behave()
            self.simulator.misbehave(HELD)
        self.simulator.behave()

    async def until_paused(self, job_id: str) -> None:
        """What a worker holds is paused when it has given it back."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in self.client.events(job_id):
                if event.type == "job:paused":
                    return

    async def until_said(self, job_id: str, words: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for each in self.client.logs(job_id, is_followed=True):
                if words in each.line:
                    return
        raise AssertionError(f"It ended without saying {words!r}.")

    async def log(self, job_id: str) -> list[str]:
        return [each.line async for each in self.client.logs(job_id)]

    async def about(self, job_id: str) -> AboutJob:
        found = await self.client.about(job_id)
        assert found is not None
        return found

    async def kept(self, job_id: str) -> Mapping[str, Any]:
        """What is kept of a script's last run: `argv`, `exit_code`, `outputs`, `seed` and `log`."""
        [*_, attempt] = (await self.about(job_id)).attempts
        return attempt.about or {}

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Other processes cannot tell us, so they are looked at."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def run_it(self, page: PageDriver) -> str:
        """By a form for the script that is filled in: what is run was seen before. The id of its job."""
        await page.add("Run job")
        [job] = [each async for each in self.client.jobs()]
        return str(job.id)

    async def tidy(self) -> None:
        """ComfyUI is well, nothing runs any more, and the list is empty."""
        self.simulator.behave()
        await self._all("cancel")
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for each in self.client.jobs():
                if not each.has_ended:
                    await self.ended(each.id)
        await self._all("delete")

    async def _all(self, action: str) -> None:
        (await self.http.post("/api/ai-jobs/bulk", json={"action": action, "filter": {}})).raise_for_status()


async def choose_script(page: PageDriver) -> Locator:
    """The form for the script."""
    return await page.choose(f"Script: {SCRIPT.name}")


async def pick(form: Locator, field: str, choice: str) -> None:
    """Of a field with a list."""
    await form.get_by_role("combobox", name=field).click()
    await form.page.get_by_role("option", name=choice, exact=True).click()


@asynccontextmanager
async def open_house(folder: Path, **desk: Any) -> AsyncIterator[ScriptDesk]:
    async with Simulator(folder=folder / "comfyui") as simulator, house_at(folder, simulator, **desk) as script_desk:
        yield script_desk


@asynccontextmanager
async def house_at(folder: Path, simulator: Simulator, *others: Simulator, **desk: Any) -> AsyncIterator[ScriptDesk]:
    """A desk at a ComfyUI, or at several, that may have been used by another one before."""
    comfyui = folder / "comfyui"
    urls = [each.url for each in (simulator, *others)]
    made = make_desk(folder / "desk", comfyui_url=urls, input_folder=comfyui / "input", **desk)
    made.script = furnish(folder)
    async with (
        made.open() as (_worker, ready),
        Client(ready.url) as client,
        owner_http(ready.url, timeout=PATIENCE_SECONDS) as http,
    ):
        yield ScriptDesk(client=client, ready=ready, desk=made, simulator=simulator, comfyui=comfyui, http=http)


def furnish(folder: Path) -> dict[str, Any]:
    """Two folders of pictures and two templates; `[desk.script]` for them."""
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
    """The same, as a configuration file."""
    path = folder / "comfyrelay.toml"
    path.write_text("[desk.script]\n" + "".join(f"{key} = {_toml(each)}\n" for key, each in furnish(folder).items()))
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {json.dumps(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)
