"""The console pages for workers, fleets and the queue work and update live."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, Route, expect

from comfyrelay.simulator import Slow
from tests.support.chromium import PROMPT_GRAPH
from tests.support.web_app import DESKTOP, PHONE, PageLog, Screen, settled
from tests.support.whole_system import System
from tests.support.world import PATIENCE_SECONDS
from tests.system.browser.server import open_as, start_workers, started_by
from tests.system.browser.test_every_page import axe, fits, is_accessible, violations

__all__ = ["axe"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

NO_ITEMS: dict[str, Any] = {"items": [], "next_cursor": None}
SLOW = Slow(class_type="ImageInvert", seconds=3600, steps=3600)
PAGES = {
    "overview": "/console",
    "workers": "/console/workers",
    "worker": "/console/workers/gpu-1",
    "add a worker": "/console/workers?open=add",
    "fleets": "/console/fleets",
    "make a fleet": "/console/fleets?open=new",
    "fleet": "/console/fleets/production/home",
    "fleet scaling": "/console/fleets/production/cloud?tab=autoscaling",
    "fleet workflows": "/console/fleets/production/home?tab=workflows",
    "fleet decisions": "/console/fleets/production/cloud?tab=decisions",
    "fleet machines": "/console/fleets/production/cloud?tab=machines",
    "fleet costs": "/console/fleets/production/home?tab=costs",
    "dispatches": "/console/dispatches",
    "dispatch": "/console/dispatches?open={done}",
    "payments": "/console/payments",
    "audit": "/console/audit",
}


class Server:
    """Yield a server with two workers, an effect, and a fleet that no autoscaler manages yet."""

    def __init__(self, system: System, effect: int, done: int) -> None:
        self.system = system
        self.effect = effect
        self.done = done

    @asynccontextmanager
    async def busy(self, jobs: int) -> AsyncIterator[list[str]]:
        """Submit this many jobs that never finish: two run, two are prefetched, and the others wait."""
        for simulator in self.system.simulators:
            simulator.misbehave(SLOW)
        found = [await self.system.plain(self.effect) for _ in range(jobs)]
        try:
            yield found
        finally:
            for job_id in found:
                dispatch = await self.system.lease_of(job_id)
                if dispatch["status"] in ("queued", "leased"):
                    await self.system.admin("POST", f"/dispatches/{dispatch['id']}/cancel")
            for simulator in self.system.simulators:
                simulator.behave()
            for job_id in found:
                await self.system.until(job_id, "canceled")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(shared_server: System) -> Server:
    system = shared_server
    effect = await system.plain_effect("portrait")
    await system.admin(
        "POST",
        "/fleets",
        {"slug": "cloud", "workflow_slugs": ["portrait"], "machines": {"provider": "local"}, "force": True},
    )
    await start_workers(system)
    job = await system.plain(effect)
    await system.completed(job)
    return Server(system, effect, (await system.lease_of(job))["id"])


@pytest_asyncio.fixture(loop_scope="session")
async def admin(server: Server, chromium: Browser) -> AsyncIterator[Page]:
    """Yield an administrator's page; any browser error on it fails the test."""
    async with open_as("admin", chromium, server.system) as (page, page_log):
        yield page
        assert page_log.complaints == []


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


async def confirm(page: Page, action: str, *, says: str) -> None:
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text(says)
    await dialog.get_by_role("button", name=action, exact=True).click()
    await expect(dialog.get_by_text(says)).to_have_count(0)


@pytest.mark.journey
async def test_worker_appears_dies_and_returns_on_an_open_page(admin: Page, server: Server) -> None:
    await admin.goto("/console/workers")
    await expect(row(admin, "gpu-2")).to_contain_text("Idle")
    await expect(row(admin, "gpu-9")).to_have_count(0)
    system = server.system
    worker = await system.started("gpu-9", simulators=[system.simulator], data_dir=str(system.folder / "gpu-9"))
    await expect(row(admin, "gpu-9")).to_contain_text("Idle")
    await worker.kill()
    silent = asyncio.create_task(wait_until_silent(system, "gpu-9"))
    await expect(row(admin, "gpu-9")).to_contain_text("Offline")
    silent.cancel()
    await asyncio.gather(silent, return_exceptions=True)
    await expect(row(admin, "gpu-9")).to_contain_text("no contact for")
    await worker.start()
    await expect(row(admin, "gpu-9")).to_contain_text("Idle")
    await worker.kill()


async def wait_until_silent(system: System, worker_id: str) -> None:
    """Wait for the last request, because requests sent before the kill may still be answered after it."""
    while True:
        await system.silence(worker_id)
        await asyncio.sleep(1)


async def test_workers_are_filtered_in_the_url_and_opened_by_keys(admin: Page, server: Server) -> None:
    await admin.goto("/console/workers?status=idle&q=gpu-1")
    await expect(row(admin, "gpu-1")).to_be_visible()
    await expect(row(admin, "gpu-2")).to_have_count(0)
    await admin.get_by_role("search").get_by_role("searchbox").fill("gpu-2")
    await expect(row(admin, "gpu-2")).to_be_visible()
    await admin.wait_for_url(re.compile(r"q=gpu-2"))
    await admin.get_by_role("heading", name="Workers", exact=True).click()
    await admin.keyboard.press("j")
    await expect(admin.locator("[aria-current=true][role=row]")).to_contain_text("gpu-2")
    await admin.keyboard.press("Enter")
    await admin.wait_for_url(re.compile(r"/console/workers/gpu-2$"))


async def test_drained_worker_can_be_resumed(admin: Page, server: Server) -> None:
    await admin.goto("/console/workers/gpu-2")
    await expect(admin.get_by_text("No problems.")).to_be_visible()
    await admin.get_by_role("button", name="Drain", exact=True).click()
    await expect(admin.get_by_text("Drained: no jobs left. You can stop the worker.")).to_be_visible()
    assert (await server.system.admin("GET", "/workers/gpu-2"))["is_draining"]
    await admin.get_by_role("button", name="Resume", exact=True).click()
    await expect(admin.get_by_text("No problems.")).to_be_visible()
    log = admin.get_by_role("region", name="Audit log")
    await expect(log).to_contain_text("Resumed")


async def test_new_token_is_shown_once_and_its_worker_registers_again(admin: Page, server: Server) -> None:
    system = server.system
    worker = next(worker for worker in system.workers if worker.name == "gpu-2")
    registered = len(worker.logged("worker.registered"))
    await admin.goto("/console/workers/gpu-2")
    await admin.get_by_role("button", name="New token").click()
    await confirm(admin, "Create token", says="stops working within 5 seconds")
    token = await admin.get_by_role("group", name="Token").locator("code").inner_text()
    assert len(token) >= 20
    # a click outside the dialog does not close it
    await admin.keyboard.press("Escape")
    await expect(admin.get_by_role("group", name="Token")).to_be_visible()
    await admin.get_by_role("button", name="I have copied it").click()
    await expect(admin.get_by_role("dialog")).to_have_count(0)
    assert token not in await admin.content()
    await admin.reload()
    await expect(admin.get_by_role("region", name="Audit log")).to_contain_text("Got a new token")
    assert token not in await admin.content()
    # the worker knows the fleet's secret and recovers
    await worker.wait_for_log("worker.registered", count=registered + 1)
    await system.admin("POST", "/workers/gpu-1/drain")
    job = await system.plain(server.effect)
    await system.completed(job)
    assert (await system.lease_of(job))["last_worker_id"] == "gpu-2"
    await system.admin("POST", "/workers/gpu-1/undrain")


async def test_rejected_worker_is_listed_first_and_can_be_approved(admin: Page, server: Server) -> None:
    await admin.goto("/console/workers/gpu-2")
    await admin.get_by_role("button", name="Revoke", exact=True).click()
    await confirm(admin, "Revoke", says="its reports are rejected")
    await expect(admin.get_by_text("Revoked: gets no jobs")).to_be_visible()
    assert not (await server.system.admin("GET", "/workers/gpu-2"))["is_approved"]
    await admin.goto("/console")
    attention = admin.get_by_role("region", name="Needs attention")
    await expect(attention).to_contain_text("gpu-2 is revoked")
    await attention.get_by_role("button", name="Approve").click()
    await expect(attention.get_by_text("gpu-2 is revoked")).to_have_count(0)
    assert (await server.system.admin("GET", "/workers/gpu-2"))["is_approved"]


async def test_worker_log_is_fetched_on_request(admin: Page, server: Server) -> None:
    await admin.goto("/console/workers/gpu-1")
    await admin.get_by_role("button", name="Show log").click()
    await expect(admin.get_by_role("log", name="Last log lines")).to_contain_text("worker.")


async def test_displayed_command_starts_a_worker_that_appears(admin: Page, server: Server) -> None:
    await admin.goto("/console/workers")
    await admin.get_by_role("button", name="Add worker").click()
    dialog = admin.get_by_role("dialog")
    shown = dialog.get_by_role("group", name="Start the worker next to ComfyUI")
    secret = (await server.system.admin("GET", "/fleets/production/home/join-command"))["variables"]["FLEET_SECRET"]
    await expect(shown).to_contain_text("FLEET_SLUG=home")
    await expect(shown).not_to_contain_text(secret)
    await shown.get_by_role("button", name="Show secret").click()
    await expect(shown).to_contain_text(secret)
    await expect(dialog.get_by_text("Waiting for the worker…")).to_be_visible()
    added = started_by(await shown.locator("code").inner_text(), server.system, "added")
    await added.start()
    await expect(dialog.get_by_text(" connected")).to_be_visible()
    await expect(dialog.get_by_text("All requirements of its workflows are installed.")).to_be_visible()
    await added.kill()
    for worker in (await server.system.admin("GET", "/workers"))["items"]:
        if worker["worker_id"] not in ("gpu-1", "gpu-2"):
            await server.system.silence(worker["worker_id"])


async def test_overview_shows_running_and_waiting_jobs(admin: Page, server: Server) -> None:
    await admin.goto("/console")
    await expect(admin.get_by_text("No running jobs.")).to_be_visible()
    tiles = admin.get_by_role("region", name="Now", exact=True)
    await expect(tiles.get_by_role("link").filter(has_text="Waiting")).to_contain_text("queue is empty")
    async with server.busy(5):
        running = admin.get_by_role("region", name="Running now")
        await expect(running.get_by_role("listitem")).to_have_count(2)
        await expect(running).to_contain_text("portrait")
        await expect(tiles.get_by_role("link").filter(has_text="Slots busy")).to_contain_text("2 of ")
        await expect(tiles.get_by_role("link").filter(has_text="Waiting")).to_contain_text(re.compile("^Waiting1"))
        await admin.get_by_role("radio", name="Week").click()
        await admin.wait_for_url(re.compile("range=week"))
    await expect(admin.get_by_text("No running jobs.")).to_be_visible()


@pytest.mark.journey
async def test_waiting_dispatch_can_be_prioritized_canceled_and_rerun(admin: Page, server: Server) -> None:
    async with server.busy(5) as jobs:
        await server.system.until_running(server.system.simulators[0])
        waiting = await waiting_of(server.system, jobs)
        await admin.goto("/console/dispatches")
        await admin.get_by_role("button", name="Queued", exact=True).click()
        await admin.wait_for_url(re.compile("status=queued"))
        rows = admin.locator("[data-row]")
        await expect(rows).to_have_count(1)
        await rows.get_by_role("button", name=str(waiting)).click()
        panel = admin.get_by_role("complementary", name=f"Dispatch {waiting}")
        await expect(panel.get_by_role("status")).to_contain_text("can run it")
        await panel.get_by_label("Priority").fill("7")
        await panel.get_by_role("button", name="Set", exact=True).click()
        await expect(admin.get_by_text("Priority changed.").first).to_be_visible()
        assert (await server.system.admin("GET", f"/dispatches/{waiting}"))["priority"] == 7
        await panel.get_by_role("button", name="Cancel", exact=True).click()
        await confirm(admin, "Cancel job", says="user gets the tokens back")
        await expect(panel).to_contain_text("Canceled")
        # the job no longer matches the filter
        await expect(rows).to_have_count(0)
        await panel.get_by_role("button", name="Retry").click()
        await expect(rows).to_have_count(1)
        again = (await server.system.admin("GET", "/dispatches?status=queued"))["items"]
        await server.system.admin("POST", f"/dispatches/{again[0]['id']}/cancel")


async def test_completed_job_is_shown_refunded_and_run_again_for_free(admin: Page, server: Server) -> None:
    system = server.system
    await admin.goto("/console/dispatches?status=completed")
    await admin.get_by_label("Customer's email").fill("nobody@example.com")
    await admin.keyboard.press("Enter")
    await expect(admin.get_by_text("No matching dispatches")).to_be_visible()
    await admin.goto(f"/console/dispatches?status=completed&effect=portrait&open={server.done}")
    panel = admin.get_by_role("complementary", name=f"Dispatch {server.done}")
    seen = panel.get_by_role("region", name="Customer's view")
    await expect(seen.get_by_role("img").first).to_be_visible()
    await seen.get_by_role("button", name=re.compile("^Refund")).click()
    await confirm(admin, await refund_of(system, server.done), says="gets back the cost of this job")
    await expect(admin.get_by_text(re.compile(r"^Refunded \d+ token")).first).to_be_visible()
    await expect(seen.get_by_role("button", name=re.compile("^Refund"))).to_have_count(0)
    await seen.get_by_role("button", name="Run again for free").click()
    await confirm(admin, "Run again for free", says="pays nothing")
    await expect(admin.get_by_text("Runs again as job").first).to_be_visible()
    [newest] = (await system.admin("GET", "/dispatches?limit=1"))["items"]
    await system.completed(newest["job_id"])
    assert (await system.user("GET", f"/ai-jobs/{newest['job_id']}"))["charged_tokens"] == 0


async def refund_of(system: System, dispatch: int) -> str:
    tokens = (await system.admin("GET", f"/dispatches/{dispatch}/job"))["job"]["charged_tokens"]
    return f"Refund {tokens} tokens"


async def test_selected_dispatches_are_canceled_together(admin: Page, server: Server) -> None:
    async with server.busy(6):
        await server.system.until_running(server.system.simulators[0])
        await admin.goto("/console/dispatches?status=queued")
        rows = admin.locator("[data-row]")
        await expect(rows).to_have_count(2)
        for each in await rows.get_by_role("checkbox").all():
            await each.check()
        await admin.get_by_role("toolbar", name="2 selected").get_by_role("button", name="Cancel").click()
        await confirm(admin, "Cancel", says="Cancel: 2 jobs?")
        await expect(admin.get_by_text("Changed 2 of 2 jobs.").first).to_be_visible()
        await expect(rows).to_have_count(0)


async def test_job_canceled_by_its_user_updates_on_an_open_page(admin: Page, server: Server) -> None:
    async with server.busy(5) as jobs:
        waiting = await waiting_of(server.system, jobs)
        await admin.goto(f"/console/dispatches?status=queued&open={waiting}")
        rows = admin.locator("[data-row]")
        await expect(rows).to_have_count(1)
        panel = admin.get_by_role("complementary", name=f"Dispatch {waiting}")
        await expect(panel).to_contain_text("Queued")
        job = (await server.system.admin("GET", f"/dispatches/{waiting}"))["job_id"]
        await server.system.user("POST", f"/ai-jobs/{job}/cancel")
        await expect(rows).to_have_count(0)
        await expect(panel).to_contain_text("Canceled")


async def test_job_lists_every_worker_that_leased_it(admin: Page, server: Server) -> None:
    system = server.system
    async with server.busy(1) as [job]:
        dispatch = await leased(system, job, by=("gpu-1", "gpu-2"))
        first = dispatch["worker_id"]
        [other] = {"gpu-1", "gpu-2"} - {first}
        await admin.goto(f"/console/dispatches?open={dispatch['id']}")
        attempts = admin.get_by_role("region", name="Attempts")
        await expect(attempts.get_by_role("listitem")).to_have_count(1)
        await expect(attempts).to_contain_text(f"{first}: running")
        try:
            await system.admin("POST", f"/workers/{first}/revoke")
            await leased(system, job, by=(other,))
            await expect(attempts.get_by_role("listitem")).to_have_count(2)
            await expect(attempts).to_contain_text(f"{first}: returned to the queue")
            await expect(attempts).to_contain_text(f"{other}: running")
            happened = admin.get_by_role("region", name="Timeline")
            for worker in (first, other):
                await expect(happened.get_by_role("link", name=worker).first).to_be_visible()
        finally:
            await system.admin("POST", f"/workers/{first}/approve")


async def leased(system: System, job: str, *, by: tuple[str, ...]) -> dict[str, Any]:
    """Return the job once one of these workers has leased it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found: dict[str, Any] = await system.lease_of(job)
            if found["worker_id"] in by:
                return found
            await asyncio.sleep(0.05)


async def waiting_of(system: System, jobs: list[str]) -> int:
    """Return the waiting dispatch once workers have leased the others."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = [await system.lease_of(job) for job in jobs]
            waiting: list[int] = [dispatch["id"] for dispatch in found if dispatch["status"] == "queued"]
            if len(waiting) == 1:
                return waiting[0]
            await asyncio.sleep(0.05)


async def test_fleet_is_created_limited_and_paused(admin: Page, server: Server) -> None:
    await admin.goto("/console/fleets")
    await admin.get_by_role("button", name="New fleet").click()
    dialog = admin.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("studio-b")
    await dialog.get_by_role("checkbox", name="portrait").click()
    await dialog.get_by_role("button", name="Create fleet").click()
    await admin.wait_for_url(re.compile("/console/fleets/production/studio-b$"))
    assert (await server.system.admin("GET", "/fleets/production/studio-b"))["workflow_slugs"] == ["portrait"]

    await admin.get_by_role("tab", name="Autoscaling").click()
    await admin.get_by_label("Launched by").click()
    await admin.get_by_role("option", name="This server, on its own host").click()
    await admin.get_by_label("Jobs per machine").fill("2")
    await admin.get_by_role("button", name="Add type").click()
    kind = admin.get_by_role("group", name="Machine type 1")
    await expect(kind.get_by_text("Enter a name.")).to_be_visible()
    await kind.get_by_label("Name", exact=True).fill("this-host")
    await kind.get_by_label("Price per hour").fill("0.1")
    options = admin.get_by_label("Options of the provider")
    await options.fill("{")
    await expect(admin.get_by_text("Enter a JSON object, such as {}.")).to_be_visible()
    await options.fill('{"comfyui": "simulator"}')
    await admin.get_by_role("button", name="Save", exact=True).click()
    await expect(admin.get_by_text("Saved. Applies from the next decision.").first).to_be_visible()
    machines = (await server.system.admin("GET", "/fleets/production/studio-b"))["machines"]
    assert (machines["provider"], machines["slots"], machines["options"]) == ("local", 2, {"comfyui": "simulator"})
    assert machines["instance_types"] == [{"name": "this-host", "price_per_hour": 0.1, "speed": 1.0}]

    await admin.goto("/console/fleets/production/cloud")
    await admin.get_by_role("tab", name="Autoscaling").click()
    await admin.wait_for_url(re.compile("tab=autoscaling"))
    await admin.get_by_label("Minimum machines").fill("12")
    await expect(admin.get_by_text("Must not exceed the maximum.")).to_be_visible()
    await admin.get_by_label("Minimum machines").fill("1")
    await admin.get_by_label("Maximum machines").fill("4")
    await admin.get_by_role("button", name="Add schedule").click()
    await admin.get_by_role("button", name="Save", exact=True).click()
    await expect(admin.get_by_text("Saved. Applies from the next decision.").first).to_be_visible()
    scaling = (await server.system.admin("GET", "/fleets/production/cloud"))["autoscaling"]
    assert (scaling["min_machines"], scaling["max_machines"]) == (1, 4)
    assert scaling["schedules"][0]["begins"].startswith("08:00")
    await admin.get_by_role("button", name="Pause", exact=True).click()
    await expect(admin.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    assert (await server.system.admin("GET", "/fleets/production/cloud"))["autoscaling"]["is_paused"]
    await admin.get_by_role("button", name="Resume", exact=True).click()
    await expect(admin.get_by_role("button", name="Pause", exact=True)).to_be_visible()


async def test_unsaved_fleet_form_survives_another_save(admin: Page, server: Server) -> None:
    system = server.system
    await system.admin("POST", "/fleets", {"slug": "shared", "workflow_slugs": []})
    await admin.goto("/console/fleets/production/shared?tab=workflows")
    await admin.get_by_role("checkbox", name="portrait").click()
    await expect(admin.get_by_text("1 added", exact=True)).to_be_visible()
    await system.admin("POST", "/workflows", {"slug": "landscape", "graph": PROMPT_GRAPH})
    path = "/fleets/production/shared/workflows"
    await system.admin("PUT", path, {"workflow_slugs": ["landscape"], "force": True})
    await expect(admin.get_by_text("1 added, 1 removed")).to_be_visible()
    await expect(admin.get_by_role("checkbox", name="portrait")).to_be_checked()
    # leaving the page asks for confirmation first
    await admin.get_by_role("tab", name="Autoscaling").click()
    await admin.get_by_role("dialog").get_by_role("button", name="Keep editing").click()
    await expect(admin.get_by_role("checkbox", name="portrait")).to_be_checked()
    await admin.get_by_role("tab", name="Autoscaling").click()
    await admin.get_by_role("dialog").get_by_role("button", name="Discard changes").click()
    await admin.wait_for_url(re.compile("tab=autoscaling"))
    assert (await system.admin("GET", "/fleets/production/shared"))["workflow_slugs"] == ["landscape"]


async def test_fleet_metrics_are_separate_from_the_totals(admin: Page, server: Server) -> None:
    await admin.goto("/console/fleets/production/home")
    own = admin.get_by_role("region", name="This fleet")
    await expect(own).to_contain_text("Running")
    together = admin.get_by_role("region", name="Its workflows on all fleets (Production)")
    for label in ("Queued", "Done, last hour", "Failed, last hour", "Time per job"):
        await expect(together).to_contain_text(label)
        await expect(own).not_to_contain_text(label)


async def test_fleet_without_autoscaler_is_reported(admin: Page, server: Server) -> None:
    async def without_leader(route: Route) -> None:
        response = await route.fetch()
        body = await response.json()
        await route.fulfill(response=response, json={**body, "data": {**body["data"], "leader": None}})

    # otherwise this server would become the leader
    await admin.route("**/api/admin/fleets/production/cloud/autoscaling", without_leader)
    await admin.goto("/console")
    attention = admin.get_by_role("region", name="Needs attention")
    await expect(attention).to_contain_text("cloud has no autoscaler")
    await admin.unroute_all(behavior="wait")


async def test_unchecked_component_is_not_shown_as_healthy(chromium: Browser, server: Server) -> None:
    async with open_as("admin", chromium, server.system) as (page, _heard):
        # otherwise the page would always ask for action
        await page.route("**/api/admin/fleets*", lambda route: route.fulfill(json={"data": NO_ITEMS, "message": ""}))
        await page.route("**/api/admin/workers*", lambda route: route.fulfill(json={"data": NO_ITEMS, "message": ""}))
        await page.route("**/api/admin/webhooks/counts", lambda route: route.abort())
        await page.goto("/console")
        attention = page.get_by_role("region", name="Needs attention")
        await expect(attention).to_contain_text("Some checks failed")
        await expect(attention.get_by_text("Nothing needs attention.")).to_have_count(0)
        await page.unroute("**/api/admin/webhooks/counts")
        await page.reload()
        await expect(attention).to_contain_text("Nothing needs attention.")


async def test_console_opens_while_the_central_database_is_down(chromium: Browser, server: Server) -> None:
    outage = {
        **{"kind": "central", "name": "central", "detail": "The central database is unreachable."},
        **{"means": "Customers cannot sign in.", "advice": "Start it.", "is_severe": True},
        "since": "2026-05-01T12:00:00Z",
    }
    answers = {"/api/admin/outages": {"items": [outage], "checked_at": "2026-05-01T12:00:00Z"}}
    problem = {"status": 503, "title": "A database is unreachable", "detail": "The central database is unreachable."}

    async def answer(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if path in answers:
            await route.fulfill(json={"data": answers[path], "message": ""})
        elif path in {"/api/me", "/api/entry", "/api/desk"}:
            await route.continue_()
        else:
            await route.fulfill(status=503, json=problem, content_type="application/problem+json")

    async with open_as("admin", chromium, server.system) as (page, _heard):
        await page.route("**/api/**", answer)
        await page.goto("/console")
        attention = page.get_by_role("region", name="Needs attention")
        await expect(attention).to_contain_text("Customers cannot sign in. Start it.")
        await page.reload()
        await expect(attention).to_contain_text("Customers cannot sign in. Start it.")


async def test_command_is_copied_without_the_clipboard_api(chromium: Browser, server: Server) -> None:
    async with open_as("admin", chromium, server.system) as (page, page_log):
        # the clipboard API is missing over plain HTTP
        await page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        await page.goto("/console/workers?open=add")
        dialog = page.get_by_role("dialog")
        shown = dialog.get_by_role("group", name="Start the worker next to ComfyUI")
        await dialog.get_by_role("radio", name="Windows (PowerShell)").click()
        await shown.get_by_role("button", name="Copy").click()
        await expect(page.get_by_text("Copied", exact=True).first).to_be_visible()
        await dialog.get_by_role("button", name="Done").click()
        search = page.get_by_role("search").get_by_role("searchbox")
        await search.focus()
        await page.keyboard.press("ControlOrMeta+V")
        command = (await server.system.admin("GET", "/fleets/production/home/join-command"))["powershell"]
        # The field accepts as many characters as the API accepts in a filter.
        await expect(search).to_have_value(command[:200])
        assert page_log.complaints == []


@pytest.mark.parametrize("path", ["/console", "/console/workers", "/console/workers/gpu-1", "/console/dispatches"])
async def test_console_is_not_accessible_to_other_users(chromium: Browser, server: Server, path: str) -> None:
    async with open_as("user", chromium, server.system) as (page, page_log):
        await page.goto(path)
        await expect(page.get_by_text("Page not found")).to_be_visible()
        await settled(page, page_log)
        assert [address for address in page_log.addresses if "/api/admin/" in address] == []
        assert "gpu-1" not in await page.locator("main").inner_text()


@asynccontextmanager
async def opened(chromium: Browser, server: Server, name: str, screen: Screen) -> AsyncIterator[tuple[Page, PageLog]]:
    async with open_as("admin", chromium, server.system, screen=screen) as (page, page_log):
        await page.goto(PAGES[name].format(done=server.done))
        await settled(page, page_log)
        yield page, page_log
        assert page_log.complaints == []


@pytest.mark.parametrize("name", PAGES)
async def test_console_page_is_accessible(chromium: Browser, server: Server, name: str, axe: str) -> None:
    async with opened(chromium, server, name, DESKTOP) as (page, page_log):
        await is_accessible(page, page_log, axe)


@pytest.mark.parametrize("name", PAGES)
async def test_console_page_fits_a_phone(chromium: Browser, server: Server, name: str, axe: str) -> None:
    async with opened(chromium, server, name, PHONE) as (page, _heard):
        await fits(page)
        assert await violations(page, axe) == ""
