"""A changed workflow that is dropped again replaces the first or is kept next to it; versions can be restored."""

import copy
import json
from typing import Any
from urllib.parse import urljoin

import pytest
from playwright.async_api import expect

from tests.support.chromium import PROMPT_GRAPH, PageDriver

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]


def with_steps(steps: int) -> dict[str, Any]:
    graph = copy.deepcopy(PROMPT_GRAPH)
    graph["5"]["inputs"]["steps"] = steps
    return graph


def scaled(width: int) -> dict[str, Any]:
    """Return a graph that scales a picture without a model."""
    size = {"upscale_method": "lanczos", "width": width, "height": 32, "crop": "disabled"}
    return {
        "1": {"class_type": "LoadImage", "inputs": {"image": "none.png"}},
        "2": {"class_type": "ImageScale", "inputs": {"image": ["1", 0], **size}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "scaled"}},
    }


async def drop(driver: PageDriver, graph: dict[str, Any]) -> None:
    await driver.drop(("mine.json", "application/json", json.dumps(graph).encode()))


async def own_workflows(driver: PageDriver) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await driver.call("GET", "/api/workflows"))["items"]
    return sorted(found, key=lambda workflow: str(workflow["name"]))


@pytest.mark.journey
async def test_changed_workflow_is_replaced_and_an_earlier_version_restored(shared: PageDriver) -> None:
    page = shared.page
    await page.goto(urljoin(page.url, "/create"))
    await expect(page.get_by_role("form")).to_be_visible()
    await drop(shared, with_steps(7))
    await expect(page.get_by_role("form", name="mine")).to_be_visible()
    await drop(shared, with_steps(7))
    await expect(page.get_by_text("You have this workflow already").first).to_be_visible()
    await drop(shared, with_steps(9))
    dialog = page.get_by_role("dialog", name="You already have a workflow “mine”")
    await dialog.get_by_role("button", name="Replace (keeps jobs and presets)").click()
    await expect(dialog).to_be_hidden()
    [replaced] = await own_workflows(shared)
    assert 9 in [prop["default_value"] for prop in replaced["properties"]]
    await page.get_by_role("button", name="Workflow actions").click()
    await page.get_by_role("menuitem", name="Versions…").click()
    versions = page.get_by_role("dialog", name="Versions of “mine”")
    await expect(versions.get_by_role("listitem")).to_have_count(2)
    await expect(versions.get_by_role("listitem").first).to_contain_text("steps (7, now 9)")
    await expect(versions.get_by_role("listitem").first).to_contain_text("Current")
    await versions.get_by_role("button", name="Restore version 1").click()
    await expect(versions).to_be_hidden()
    await expect(page.get_by_text("Version 1 is back.").first).to_be_visible()
    [brought] = await own_workflows(shared)
    assert brought["slug"] == replaced["slug"]
    assert 7 in [prop["default_value"] for prop in brought["properties"]]


async def test_changed_workflow_is_kept_next_to_the_first(shared: PageDriver) -> None:
    page = shared.page
    await page.goto(urljoin(page.url, "/create"))
    await expect(page.get_by_role("form")).to_be_visible()
    await drop(shared, with_steps(7))
    await expect(page.get_by_role("form", name="mine")).to_be_visible()
    await drop(shared, with_steps(9))
    dialog = page.get_by_role("dialog", name="You already have a workflow “mine”")
    await dialog.get_by_role("button", name="Keep both").click()
    await expect(page.get_by_role("form", name="mine (2)")).to_be_visible()
    assert [workflow["name"] for workflow in await own_workflows(shared)] == ["mine", "mine (2)"]


async def test_output_is_recalled_after_its_workflow_was_removed(shared: PageDriver) -> None:
    page, name = shared.page, "from the command line"
    added = await shared.call("POST", "/api/workflows", {"graph": scaled(64), "name": name})
    body = {
        "workflow_slug": added["slug"],
        "idempotency_key": "recall",
        "input_file_id": await shared.upload("lake.png"),
        "input_payload": {key: 48 for key, places in added["positions"].items() if "2.width" in places},
    }
    job = await shared.call("POST", "/api/ai-jobs", body)
    assert (await shared.ended(job["id"]))["status"] == "completed"
    await shared.call("DELETE", f"/api/workflows/{added['slug']}?unless_needed=true")
    [output] = (await shared.call("GET", "/api/gallery"))["items"]
    await page.goto(f"/gallery?open={output['id']}")
    await page.get_by_role("dialog").get_by_role("button", name="Change and run").click()
    await expect(page.get_by_text("The workflow of this job was removed")).to_be_visible()
    await page.get_by_role("button", name="Add workflow again").click()
    form = page.get_by_role("form", name=name)
    await expect(form.get_by_role("textbox", name="Width")).to_have_value("48")
    await expect(form.get_by_role("button", name="Remove lake.png")).to_be_attached()
    await expect(page.get_by_text("No values changed.")).to_be_visible()
