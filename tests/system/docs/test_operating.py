"""An administrator follows the guide "Operate a fleet" in a browser."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from comfyrelay.simulator import Fail
from tests.support.paths import ROOT
from tests.support.whole_system import System
from tests.support.world import PostgresBackend, memory_folder
from tests.system.browser.server import open_as, open_server, started_by

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]

TEXT = " ".join((ROOT / "docs" / "howto" / "operate-a-fleet.md").read_text("utf-8").split())
ERROR = "the tensors do not fit"


def guide_says(*sentences: str) -> None:
    """Check that the guide contains these sentences."""
    for sentence in sentences:
        assert sentence in TEXT


def button(where: Page | Locator, name: str) -> Locator:
    """Return a button that the guide names."""
    guide_says(f"**{name}**")
    return where.get_by_role("button", name=name, exact=True)


@pytest_asyncio.fixture(loop_scope="session")
async def system(real_postgres_backend: PostgresBackend, s3_server: str) -> AsyncIterator[System]:
    """Yield a server with a fleet and an effect, but no worker yet."""
    with memory_folder() as folder:
        async with open_server(folder, real_postgres_backend, s3_server, simulators=1) as system:
            yield system


async def test_guide_matches_the_console(system: System, chromium: Browser) -> None:
    effect = await system.plain_effect("portrait")
    async with open_as("admin", chromium, system) as (page, page_log):
        first = await system.plain(effect)
        await view_overview(page)
        worker_id = await add_worker(page, system)
        await system.completed(first)
        await view_worker(page, worker_id)
        await remove_worker(page, system, worker_id, effect)
        await find_waiting_and_failed_jobs(page, system, effect)
        await change_fleet(page, system)
        assert page_log.complaints == []


async def view_overview(page: Page) -> None:
    guide_says("open **Console** (`g` then `o`)", "jobs waiting, no worker online | add a worker")
    await page.goto("/")
    await expect(page.get_by_role("navigation", name="Areas")).to_be_visible()
    await page.keyboard.press("g")
    await page.keyboard.press("o")
    await page.wait_for_url(re.compile("/console$"))
    attention = page.get_by_role("region", name="Needs attention")
    await expect(attention).to_contain_text("1 job waiting, no worker online")


async def add_worker(page: Page, system: System) -> str:
    guide_says("**Workers → Add worker**, choose the fleet, and run both commands", "hidden until you press the eye")
    await page.get_by_role("link", name="Workers", exact=True).first.click()
    await page.get_by_role("button", name="Add worker").first.click()
    dialog = page.get_by_role("dialog")
    install = (
        await dialog.get_by_role("group", name="Install once, in a Python environment").locator("code").inner_text()
    )
    guide_says(f"`{install}`")
    command = dialog.get_by_role("group", name="Start the worker next to ComfyUI")
    await command.get_by_role("button", name="Show secret").click()
    guide_says("The dialog shows the worker when it registers, with any missing nodes and models")
    await expect(dialog.get_by_text("Waiting for the worker…")).to_be_visible()
    await started_by(await command.locator("code").inner_text(), system).start()
    await expect(dialog.get_by_text(" connected")).to_be_visible()
    await expect(dialog.get_by_text("All requirements of its workflows are installed.")).to_be_visible()
    await dialog.get_by_role("link", name="Open worker").click()
    await page.wait_for_url(re.compile("/console/workers/.+"))
    [found] = (await system.admin("GET", "/workers"))["items"]
    return str(found["worker_id"])


async def view_worker(page: Page, worker_id: str) -> None:
    guide_says("| Idle | it waits for a job |", "A worker's page lists its problems", "who approved or revoked it")
    await page.goto(f"/console/workers/{worker_id}")
    await expect(page.get_by_text("No problems.")).to_be_visible()
    await expect(page.get_by_role("main").get_by_text("Idle", exact=True).first).to_be_visible()
    guide_says("**Show log** fetches the last lines from the worker")
    await page.get_by_role("button", name="Show log").click()
    await expect(page.get_by_role("log", name="Last log lines")).to_contain_text("worker.")


async def remove_worker(page: Page, system: System, worker_id: str, effect: int) -> None:
    guide_says("**Drain** (`d`)", "Stop it once its page says that it has no jobs left.")
    await page.goto(f"/console/workers/{worker_id}")
    await expect(button(page, "Drain")).to_be_visible()
    await page.keyboard.press("d")
    await expect(page.get_by_text("Drained: no jobs left.")).to_be_visible()
    await button(page, "Resume").click()
    await expect(page.get_by_text("No problems.")).to_be_visible()

    guide_says("The new token is shown once. A worker that has the fleet's secret registers again automatically.")
    await button(page, "New token").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Create token").click()
    await dialog.get_by_role("button", name="I have copied it").click()
    await system.completed(await system.plain(effect))

    guide_says("its reports are refused until you approve it.", "revoked | if that was a mistake, approve it there")
    await button(page, "Revoke").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
    await expect(page.get_by_text("Revoked: gets no jobs")).to_be_visible()
    await page.goto("/console")
    attention = page.get_by_role("region", name="Needs attention")
    await expect(attention).to_contain_text("is revoked")
    await attention.get_by_role("button", name="Approve").click()
    await expect(attention.get_by_text("is revoked")).to_have_count(0)
    await system.completed(await system.plain(effect))


async def find_waiting_and_failed_jobs(page: Page, system: System, effect: int) -> None:
    guide_says("Open **Dispatches**, filter by *Queued*, and open a job. Its page shows why it waits")
    [worker] = (await system.admin("GET", "/workers"))["items"]
    await system.admin("POST", f"/workers/{worker['worker_id']}/drain")
    waiting = await system.plain(effect)
    number = (await system.lease_of(waiting))["id"]
    await page.get_by_role("link", name="Dispatches", exact=True).first.click()
    await page.get_by_role("button", name="Queued", exact=True).click()
    await page.locator("[data-row]").get_by_role("button", name=str(number)).click()
    panel = page.get_by_role("complementary", name=f"Dispatch {number}")
    await expect(panel.get_by_role("status")).to_contain_text("can run it")
    guide_says("A higher **priority** puts one job before the others.")
    await panel.get_by_label("Priority").fill("7")
    await panel.get_by_role("button", name="Set", exact=True).click()
    await expect(page.get_by_text("Priority changed.").first).to_be_visible()

    guide_says("**Dispatches**, *Failed*. Each has a one-sentence error", "**Retry** creates a new job")
    system.simulator.misbehave(Fail(class_type="ImageInvert", message=ERROR))
    await system.admin("POST", f"/workers/{worker['worker_id']}/undrain")
    await system.until(waiting, "failed")
    system.simulator.behave()
    await page.goto("/console/dispatches")
    await page.get_by_role("button", name="Failed", exact=True).click()
    await page.locator("[data-row]").get_by_role("button", name=str(number)).click()
    await expect(panel).to_contain_text(ERROR)
    await panel.get_by_role("button", name="Retry").click()
    await expect(page.get_by_text("Retried as job").first).to_be_visible()


async def change_fleet(page: Page, system: System) -> None:
    guide_says("**Fleets → your fleet**")
    await page.goto("/console")
    await page.get_by_role("link", name="Fleets", exact=True).first.click()
    await page.get_by_role("table").get_by_role("link", name="home", exact=True).click()
    await page.wait_for_url(re.compile("/console/fleets/production/home$"))
    for name, tab in (
        ("Workflows", "workflows"),
        ("Autoscaling", "autoscaling"),
        ("Decisions", "decisions"),
        ("Costs", "costs"),
    ):
        guide_says(f"- **{name}**")
        await page.get_by_role("tab", name=name, exact=True).click()
        await page.wait_for_url(re.compile(f"tab={tab}"))
    guide_says(
        "- **Pause** stops launching and terminating", "a fleet is paused | nothing is launched or terminated until"
    )
    scaled = {"slug": "cloud", "workflow_slugs": ["portrait"], "machines": {"provider": "local"}, "force": True}
    await system.admin("POST", "/fleets", scaled)
    await page.goto("/console/fleets/production/cloud")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    await page.goto("/console")
    await expect(page.get_by_role("region", name="Needs attention")).to_contain_text("cloud is paused")
