"""Costs on the pages of the console and in the commands."""

import pytest
from playwright.async_api import Browser, Page, expect

from tests.support import commands
from tests.support.whole_system import System
from tests.system.browser.server import open_as

pytestmark = pytest.mark.asyncio(loop_scope="session")

PRICED = {"instance_types": [{"name": "g5.xlarge", "price_per_hour": 3.6}]}


async def run_fleet(system: System, *words: str) -> list[list[str]]:
    """Return the rows of the table that a command prints."""
    printed = await commands.run("fleet", *words, env={**system.server.environment, "COLUMNS": "200"})
    assert printed.code == 0, printed.err
    return [line.split() for line in printed.out.split("\n\n")[0].splitlines()[1:]]


async def table(page: Page, name: str) -> list[list[str]]:
    rows = page.get_by_role("table", name=name).locator("tbody").get_by_role("row")
    await expect(rows.first).to_be_visible()
    return [await row.get_by_role("cell").all_inner_texts() for row in await rows.all()]


async def test_costs_agree_between_pages_and_commands(chromium: Browser, shared_server: System) -> None:
    system = shared_server
    await system.admin("PATCH", "/fleets/production/home", {"machines": PRICED})
    priced = await system.plain_effect("priced")
    await system.started(instance_type="g5.xlarge")
    for _ in range(2):
        await system.completed(await system.plain(priced))
    async with system._engine() as engine:
        await engine.autoscaling.usage.run_once()
    async with open_as("admin", chromium, system) as (page, page_log):
        for by in ("effect", "tenant", "day"):
            await page.goto(f"/console/payments?tab={by}")
            shown = await table(page, "Revenue and GPU cost")
            printed = await run_fleet(system, "revenue", "--by", by)
            assert [(row[0], row[1], row[2], row[3], row[5]) for row in shown] == [
                (row[0], row[1], row[2], row[3], row[5]) for row in printed
            ]
            assert [row[1] for row in shown] == ["2"]
            assert float(shown[0][5].removeprefix("<")) > 0
        await page.goto("/console/fleets/production/home?tab=costs")
        [fleet] = await run_fleet(system, "costs")
        figures = page.locator("dl").filter(has_text="Jobs").locator("dd")
        await expect(figures).to_have_count(4)
        jobs, total, cost, _ = await figures.all_inner_texts()
        assert (jobs, cost, total) == (fleet[1], *fleet[-2:])
        shown = await table(page, "By workflow, all fleets")
        printed = await run_fleet(system, "costs", "--by", "workflow")
        assert [(row[0], row[1], row[4]) for row in shown] == [(row[0], row[1], row[4]) for row in printed]
        assert page_log.complaints == []
