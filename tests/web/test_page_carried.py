"""A picture that carries the workflow that made it, dropped on the page; and what it says while things are tried."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from comfyrelay.desk.examples import sample_picture
from comfyrelay.sim import Sim
from tests.api.processes import free_port
from tests.comfy.graphs import invert, invert_file
from tests.desk.conftest import soon_back
from tests.desk.test_desk_trying_out import usual_place
from tests.web.looking import Looking, open_page

__all__ = ["soon_back"]

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def a_picture(looking: Looking) -> tuple[str, str, bytes]:
    """One that a job made, as it is downloaded."""
    slug = (await looking.call("POST", "/api/workflows", {"graph": invert(), "name": "mine"}))["slug"]
    return await made_by(looking, {"workflow_slug": slug, "idempotency_key": "made"})


async def made_by(looking: Looking, wish: dict[str, Any]) -> tuple[str, str, bytes]:
    job = await looking.call("POST", "/api/ai-jobs", wish)
    async with asyncio.timeout(60):
        while not (found := await looking.call("GET", f"/api/ai-jobs/{job['id']}"))["outputs"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return "made.png", "image/png", (await looking.http.get(found["outputs"][0]["url"])).content


async def test_a_dropped_picture_is_run_again_as_it_was_or_used_as_input(looking: Looking) -> None:
    picture = await a_picture(looking)
    asking, adding = looking.page.locator("#asking"), looking.page.locator("#adding")
    await looking.drop(picture)
    await expect(asking).to_contain_text("“made.png” carries the workflow that made it.")
    await asking.get_by_role("button", name="Use as input").click()
    await expect(adding).to_contain_text("made.png")
    await adding.get_by_label("Close").click()
    await looking.drop(picture)
    await asking.get_by_role("button", name="Run this again").click()
    await expect(adding.get_by_label("Workflow or effect")).to_have_value(re.compile("^workflow:made"))
    await adding.get_by_role("button", name="Add job").click()
    await looking.status_is("succeeded")
    buttons = looking.pane.locator(".actions button")
    await expect(buttons).to_have_text(["Run again", "Delete"])
    await looking.pane.get_by_role("button", name="Delete").click()
    await expect(asking).to_contain_text("Also deleted: ")
    await asking.get_by_role("button", name="Delete").click()
    await expect(looking.rows).to_have_count(1)


async def test_a_picture_made_of_a_picture_asks_for_that_when_it_is_run_again(looking: Looking) -> None:
    slug = (await looking.call("POST", "/api/workflows", {"graph": invert_file("gone.png"), "name": "mine"}))["slug"]
    wish = {"workflow_slug": slug, "input_file_id": await looking.upload(), "idempotency_key": "made"}
    await looking.drop(await made_by(looking, wish))
    await looking.page.locator("#asking").get_by_role("button", name="Run this again").click()
    adding = looking.page.locator("#adding")
    file = adding.locator(".field.image")
    await expect(file).to_contain_text("The file that it worked on is not in “made.png”: choose it.")
    await file.locator("input").set_input_files(
        files={"name": "dog.png", "mimeType": "image/png", "buffer": sample_picture()}
    )
    await expect(file.locator(".field-error")).to_be_hidden()
    await adding.get_by_role("button", name="Add job").click()
    await looking.status_is("succeeded")


async def test_the_page_says_what_is_tried_out_until_a_comfyui_comes(
    chromium: Browser, tmp_path: Path, soon_back: None
) -> None:
    port = free_port()
    async with usual_place(tmp_path, port).open() as (_worker, ready), open_page(chromium, ready.url) as looking:
        await expect(looking.page.locator("#stand-in")).to_contain_text("The examples run on a built-in stand-in")
        await expect(looking.page.locator("#machine-text")).to_contain_text("examples run on the stand-in")
        async with Sim(port=port):
            await expect(looking.page.locator("#stand-in")).to_be_hidden()
            await expect(looking.page.locator("#machine-text")).to_have_text(f"Ready · ComfyUI at 127.0.0.1:{port}")
            assert json.loads((await looking.http.get("/api/desk")).text)["data"]["trying_out"] == "nothing"
