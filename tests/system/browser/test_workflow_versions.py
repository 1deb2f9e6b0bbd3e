"""A changed workflow that is dropped again: replace or keep both, the versions, and bringing one back."""

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


async def drop(driver: PageDriver, graph: dict[str, Any]) -> None:
    await driver.drop(("mine.json", "application/json", json.dumps(graph).encode()))


async def own_workflows(driver: PageDriver) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await driver.call("GET", "/api/workflows"))["items"]
    return sorted(found, key=lambda workflow: str(workflow["name"]))


@pytest.mark.journey
async def test_changed_workflow_is_replaced_and_an_earlier_version_comes_back(shared: PageDriver) -> None:
    page = shared.page
    await page.goto(urljoin(page.url, "/create"))
    await expect(page.get_by_role("form")).to_be_visible()
    await drop(shared, with_steps(7))
    await expect(page.get_by_role("form", name="mine")).to_be_visible()
    await drop(shared, with_steps(7))
    await expect(page.get_by_text("You have this workflow already").first).to_be_visible()
    await drop(shared, with_steps(9))
    dialog = page.get_by_role("dialog", name="You have a workflow “mine” already")
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
    await versions.get_by_role("button", name="Bring back version 1").click()
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
    dialog = page.get_by_role("dialog", name="You have a workflow “mine” already")
    await dialog.get_by_role("button", name="Keep both").click()
    await expect(page.get_by_role("form", name="mine (2)")).to_be_visible()
    assert [workflow["name"] for workflow in await own_workflows(shared)] == ["mine", "mine (2)"]
