"""The console pages for workflows, effects, accounts and operations work, and change what other users see."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, FilePayload, Page, Route, expect

from comfyrelay.simulator import Fail
from tests.support.api import PASSWORD
from tests.support.api_calls import png
from tests.support.chromium import _DROP, PROMPT_GRAPH
from tests.support.editor_files import empty, invert, node, save, workflow
from tests.support.web_app import PHONE, PageLog, settled
from tests.support.webhook_receiver import open_receiver
from tests.support.whole_system import FLEET, System
from tests.support.world import PATIENCE_SECONDS, PostgresBackend, execute, memory_folder
from tests.system.browser.server import open_as, open_server, open_visitor, url_of
from tests.system.browser.test_every_page import MARKUP, assert_nothing_injected, axe, is_accessible, violations

__all__ = ["axe"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

# A graph as the editor saves it, which creates and inverts an image.
SAVED = workflow([empty(), invert(2, 1), save(3, 2)], [(1, 1, 0, 2, 0), (2, 2, 0, 3, 0)])
PAGES = {
    "workflows": "/console/workflows",
    "form of a workflow": "/console/workflows/hostile",
    "workers of a workflow": "/console/workflows/hostile?tab=workers",
    "settings of a workflow": "/console/workflows/hostile?tab=settings",
    "versions of a workflow": "/console/workflows/hostile?tab=versions",
    "effects": "/console/effects",
    "new effect": "/console/effects?open=new",
    "effect": "/console/effects/hostile",
    "tenants": "/console/tenants",
    "new account": "/console/tenants?open=new",
    "tenant": "/console/tenants/{tenant}",
    "webhooks": "/console/webhooks?status=all",
    "reconcile": "/console/reconcile",
    "settings": "/console/settings",
    "where nothing matches": "/console/workflows?q=%3Cimg+src%3Dx+onerror%3Dwindow.injected%3D1%3E",
}
_WIDER = """() => [document.documentElement, document.querySelector("main")]
  .filter((element) => element.scrollWidth > element.clientWidth)
  .map((element) => `${element.tagName} is ${element.scrollWidth} wide in ${element.clientWidth}`)"""

_PUSHED_ASIDE = """(found) => found.map((element) => element.parentElement)
  .filter((element) => element.scrollWidth > element.clientWidth)
  .map((element) => `${element.getAttribute("aria-label")} is ${element.scrollWidth} wide in ${element.clientWidth}`)"""


@dataclass(frozen=True, slots=True)
class Site:
    """Yield a server with two workers and content on every console page, with markup in the names."""

    system: System
    tenant: str

    def path(self, name: str) -> str:
        return PAGES[name].format(tenant=self.tenant)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(real_postgres_backend: PostgresBackend, s3_server: str, built_app: None) -> AsyncIterator[Site]:
    settings = {"WEBHOOK_ALLOW_PRIVATE": "true"}
    with memory_folder() as folder:
        async with open_server(folder, real_postgres_backend, s3_server, settings=settings) as system:
            name = f"name {MARKUP}"[:200]
            properties = [
                {
                    "key": "color",
                    "type": "number",
                    "placeholder": "{{COLOR}}",
                    "default_value": 7,
                    "minimum": 0,
                    "maximum": 99,
                    "user_configurable": True,
                    "label": name,
                    "group": name,
                }
            ]
            graph = {
                "1": {
                    "class_type": "EmptyImage",
                    "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": "{{COLOR}}"},
                    "_meta": {"title": name},
                },
                "3": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": MARKUP}},
            }
            await system.effect("hostile", graph, properties=properties, name=name)
            await system.admin("PATCH", "/effects/hostile", {"name": name})
            first = await system.started("gpu-1", simulators=system.simulators[:1], data_dir=str(folder / "worker-1"))
            # editor files need node definitions
            await first.wait_for_log("worker.definitions_sent")
            await system.started("gpu-2", simulators=system.simulators[1:], data_dir=str(folder / "worker-2"))
            me = await system.user("GET", "/me")
            credits = {"amount": 10, "reference": MARKUP.replace(":", ""), "description": MARKUP}
            await system.admin("POST", f"/tenants/{me['tenant_id']}/credits", credits)
            yield Site(system, me["tenant_id"])


@pytest_asyncio.fixture(loop_scope="session")
async def admin(chromium: Browser, site: Site) -> AsyncIterator[tuple[Page, PageLog]]:
    async with open_as("admin", chromium, site.system) as (page, page_log):
        yield page, page_log


async def drop(page: Page, name: str, content: bytes, mime: str = "application/json") -> None:
    await page.evaluate(_DROP, [[name, mime, base64.b64encode(content).decode()]])


async def opened(page: Page, page_log: PageLog, path: str) -> None:
    await page.goto(path)
    await settled(page, page_log)


async def more(page: Page, verb: str) -> None:
    await page.get_by_role("main").get_by_role("button", name="More", exact=True).click()
    await page.get_by_role("menuitem", name=verb).click()


async def build_form(page: Page, system: System) -> None:
    """Choose the values that users may set, with their labels and ranges."""
    preview = page.get_by_role("form", name="Negative film")
    await expect(preview.get_by_label("Width")).to_be_visible()
    await page.get_by_role("button", name=re.compile("^Width")).click()
    await page.get_by_label("Label", exact=True).fill("How wide")
    await page.get_by_label("Maximum", exact=True).fill("256")
    await page.get_by_role("switch", name="Let users change Batch size").click()
    await expect(preview.get_by_label("How wide")).to_be_visible()
    await expect(preview.get_by_text("Batch size")).to_have_count(0)
    # a default outside its range is reported before the form is sent
    await page.get_by_label("Default", exact=True).fill("300")
    await expect(page.get_by_text("Must not exceed the maximum.")).to_be_visible()
    await expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    await page.get_by_label("Default", exact=True).fill("64")
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_text("Saved.", exact=True).first).to_be_visible()
    workflow = await system.admin("GET", "/workflows/negative-film")
    width = next(field for field in workflow["properties"] if field["label"] == "How wide")
    assert (width["maximum"], width["default_value"]) == (256, 64)
    assert [field["label"] for field in workflow["properties"] if not field["user_configurable"]] == ["Batch size"]


async def run_on_second_worker(page: Page, system: System) -> None:
    """Run a job of the administrator on the chosen worker, once the fleet can run it."""
    await page.get_by_role("tab", name="Workers").click()
    await page.get_by_role("switch", name=f"Run on {FLEET}").click()
    await expect(page.get_by_role("row").filter(has_text="gpu-2")).to_contain_text("Yes")
    await page.get_by_role("tab", name="Form").click()
    await page.get_by_role("form", name="Negative film").get_by_label("How wide").fill("96")
    run = page.get_by_role("region", name="Test run")
    await expect(run).to_contain_text("Runs on the first free worker of gpu-1 and gpu-2.")
    await run.get_by_label("Worker").click()
    await page.get_by_role("option", name="gpu-2").click()
    await expect(run).to_contain_text("Runs on gpu-2 as soon as it is free.")
    async with page.expect_response(lambda response: response.url.endswith("/test-run")) as requested:
        await run.get_by_role("button", name="Run", exact=True).click()
    job_id = (await (await requested.value).json())["data"]["job_id"]
    result = run.get_by_role("img", name="Test run result")
    await expect(result).to_be_visible()
    assert await result.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 96
    await expect(run).to_contain_text("on gpu-2.")
    [dispatch] = (await system.admin("GET", f"/dispatches?search={job_id}"))["items"]
    assert dispatch["last_worker_id"] == "gpu-2"


async def publish(page: Page, system: System) -> None:
    """Publish the workflow as an effect with a name, a price, a picture and a preset value."""
    await more(page, "Create effect")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("Film negative")
    await dialog.get_by_label("Price in tokens").fill("3")
    await dialog.get_by_role("button", name="Create effect").click()
    await page.wait_for_url(re.compile("/console/effects/film-negative$"))
    assert await offered(system, "film-negative") is None
    picture = page.get_by_role("region", name="Example")
    cover: FilePayload = {"name": "cover.png", "mimeType": "image/png", "buffer": png("#22aa66")}
    await picture.locator("input[type=file]").first.set_input_files([cover])
    await expect(picture.get_by_role("img", name="Example")).to_be_visible()
    await page.get_by_role("switch", name="Override Height").click()
    await page.get_by_role("region", name="Values").get_by_label("Height", exact=True).fill("48")
    # this is the form of the studio, which has no headings for nodes
    preview = page.get_by_role("region", name="Studio preview").get_by_role("region", name="Settings")
    await expect(preview.get_by_label("How wide")).to_have_value("64")
    await expect(preview.get_by_label("Height", exact=True)).to_have_value("48")
    await expect(preview.get_by_text("Batch size")).to_have_count(0)
    await expect(preview.get_by_text("EmptyImage")).to_have_count(0)
    longest = page.get_by_label("Longest run in seconds")
    await expect(longest).to_have_value("1800")
    await longest.fill("120")
    await page.get_by_role("button", name="Save and publish").click()
    await expect(page.get_by_role("button", name="Unpublish")).to_be_visible()
    assert (await system.admin("GET", "/effects/film-negative"))["max_run_seconds"] == 120


async def offered(system: System, slug: str) -> Any:
    """Return the effect as users see it, or None."""
    found = (await system.user("GET", "/effects"))["items"]
    return next((effect for effect in found if effect["slug"] == slug), None)


async def run_in_studio(page: Page, page_log: PageLog) -> bytes:
    """Run the effect as a user, from the gallery to the file and its cost."""
    await opened(page, page_log, "/studio")
    card = page.get_by_role("list", name="Effects").get_by_role("link", name=re.compile("Film negative"))
    await expect(card).to_contain_text("3 tokens")
    cover = card.locator("img")
    await expect(cover).to_be_visible()
    async with httpx.AsyncClient() as http:
        shown = await http.get(await cover.get_attribute("src") or "")
    assert shown.content == png("#22aa66")
    await card.click()
    # labels come from the administrator, values from the effect; hidden values have no field
    await page.get_by_label("How wide").fill("100")
    await expect(page.get_by_label("Height", exact=True)).to_have_value("48")
    await expect(page.get_by_role("main").get_by_text("Batch size")).to_have_count(0)
    await page.get_by_role("button", name="Start for 3 tokens").click()
    await page.wait_for_url(re.compile("/studio/videos/[^/?]+$"))
    state = page.get_by_role("complementary", name="Progress")
    await expect(state.get_by_text("3 tokens used")).to_be_visible()
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Download").click()
    return Path(await (await download.value).path()).read_bytes()


@pytest.mark.journey
async def test_editor_file_becomes_an_effect_that_users_can_run(
    admin: tuple[Page, PageLog], site: Site, chromium: Browser
) -> None:
    page, page_log = admin
    system = site.system
    await opened(page, page_log, "/console/workflows")
    await drop(page, "Negative film.json", json.dumps(SAVED).encode())
    await page.wait_for_url(re.compile("/console/workflows/negative-film$"))
    await build_form(page, system)
    await run_on_second_worker(page, system)
    await publish(page, system)
    assert page_log.complaints == []

    before = (await system.user("GET", "/wallet"))["balance"]
    async with open_as("user", chromium, system) as (studio, studio_log):
        video = await run_in_studio(studio, studio_log)
        assert studio_log.complaints == []
    assert (int.from_bytes(video[16:20]), int.from_bytes(video[20:24])) == (100, 48)
    assert (await system.user("GET", "/wallet"))["balance"] == before - 3

    # ComfyUI's output contains its workflow
    await opened(page, page_log, "/console/workflows")
    await drop(page, "found.png", video, "image/png")
    await page.wait_for_url(re.compile("/console/workflows/found$"))
    await expect(page.get_by_role("form", name="found")).to_be_visible()

    # an unpublished effect is not offered
    await opened(page, page_log, "/console/effects/film-negative")
    await page.get_by_role("button", name="Unpublish").click()
    await expect(page.get_by_role("button", name="Publish", exact=True)).to_be_visible()
    assert await offered(system, "film-negative") is None


async def test_invalid_workflow_and_missing_nodes_are_explained(admin: tuple[Page, PageLog], site: Site) -> None:
    page, page_log = admin
    await opened(page, page_log, "/console/workflows")
    lacking = workflow([empty(), node(2, "Foo"), node(3, "Bar", title="The bar")])
    cases: list[tuple[str, bytes, str, list[str]]] = [
        ("w.json", b"{", "application/json", ["Could not add w.json", "is not valid JSON"]),
        ("w.json", b'{"a": 1}', "application/json", ["is not a workflow"]),
        ("photo.png", png("#112233"), "image/png", ["The file contains no workflow."]),
        ("w.json", json.dumps(lacking).encode(), "application/json", ["Foo", "Bar", "on no worker"]),
    ]
    for name, content, mime, words in cases:
        await drop(page, name, content, mime)
        dialog = page.get_by_role("dialog")
        for word in words:
            await expect(dialog).to_contain_text(word)
        await dialog.get_by_role("button", name="Close").last.click()
        await expect(dialog).to_have_count(0)


async def test_missing_requirements_are_listed_per_worker(admin: tuple[Page, PageLog], site: Site) -> None:
    page, page_log = admin
    await opened(page, page_log, "/console/workflows")
    graph = json.loads(json.dumps(PROMPT_GRAPH))
    graph["1"]["inputs"]["ckpt_name"] = "nowhere.safetensors"
    await drop(page, "painter.json", json.dumps(graph).encode())
    await page.wait_for_url(re.compile("/console/workflows/painter$"))
    await page.get_by_role("tab", name="Workers").click()
    switch = page.get_by_role("switch", name=f"Run on {FLEET}")
    await switch.click()
    dialog = page.get_by_role("dialog", name="Missing requirements")
    await expect(dialog).to_contain_text("nowhere.safetensors")
    await dialog.get_by_role("button", name="Assign anyway").click()
    for worker in ("gpu-1", "gpu-2"):
        row = page.get_by_role("row").filter(has_text=worker)
        await expect(row).to_contain_text("No")
        await expect(row).to_contain_text("nowhere.safetensors")
    await switch.click()
    await expect(page.get_by_role("row")).to_have_count(0)
    await more(page, "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await page.wait_for_url(re.compile("/console/workflows$"))
    await expect(page.get_by_role("link", name="painter")).to_have_count(0)


async def test_failed_test_run_shows_node_and_reason(admin: tuple[Page, PageLog], site: Site) -> None:
    page, page_log = admin
    for simulator in site.system.simulators:
        simulator.misbehave(Fail(class_type="EmptyImage", message="the tensors do not fit"))
    try:
        await opened(page, page_log, "/console/workflows/hostile")
        run = page.get_by_role("region", name="Test run")
        await run.get_by_role("button", name="Run", exact=True).click()
        alert = run.get_by_role("alert")
        await expect(alert).to_contain_text(re.compile("Test run failed on gpu-[12]"))
        await expect(alert).to_contain_text("the tensors do not fit")
        await expect(alert.get_by_role("link", name="Open job")).to_be_visible()
    finally:
        for simulator in site.system.simulators:
            simulator.behave()


async def test_earlier_version_can_be_restored(admin: tuple[Page, PageLog], site: Site) -> None:
    page, page_log = admin
    await site.system.admin("POST", "/workflows", {"slug": "twice", "graph": PROMPT_GRAPH})
    await opened(page, page_log, "/console/workflows/twice")
    await page.get_by_role("switch", name="Let users change Steps").click()
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_text("Saved.", exact=True).first).to_be_visible()
    await page.get_by_role("tab", name="Versions").click()
    await page.get_by_role("button", name="Restore version 1").click()
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_text("Version 3")).to_be_visible()
    workflow = await site.system.admin("GET", "/workflows/twice")
    assert all(field["user_configurable"] for field in workflow["properties"])


async def lose_the_answer(route: Route) -> None:
    await route.fetch()
    await route.abort()


async def test_granted_tokens_are_visible_to_admin_and_user(admin: tuple[Page, PageLog], site: Site) -> None:
    page, page_log = admin
    before = (await site.system.user("GET", "/wallet"))["balance"]
    await opened(page, page_log, "/console/tenants")
    await page.get_by_placeholder("Search by email").fill("ada@")
    await page.wait_for_url("**/console/tenants?q=ada%40")
    await settled(page, page_log)
    await page.get_by_role("link", name="ada@example.com").click()
    await page.get_by_role("button", name="Add tokens").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Amount").fill("2500")
    await dialog.get_by_label("Reference").fill("invoice: 7")
    await expect(dialog.get_by_text("Remove the colon.")).to_be_visible()
    await dialog.get_by_label("Reference").fill("invoice 7")
    await dialog.get_by_label("Description").fill("For the film")
    await dialog.get_by_role("button", name="Add 2,500 tokens").click()
    await expect(page.get_by_role("region", name="Tokens")).to_contain_text(f"{before + 2500:,}")
    row = page.get_by_role("row").filter(has_text="invoice 7")
    await expect(row).to_contain_text("For the film")
    await expect(row).to_contain_text("+2,500")
    assert (await site.system.user("GET", "/wallet"))["balance"] == before + 2500
    # The tokens are granted but the answer is lost. Granting again in the same form grants once.
    await page.route("**/credits", lose_the_answer)
    for _ in range(2):
        await page.get_by_role("button", name="Add tokens").click()
        await expect(dialog.get_by_label("Reference")).to_have_value(re.compile("^console .* root@example.com$"))
        await dialog.get_by_label("Amount").fill("30")
        await dialog.get_by_role("button", name="Add 30 tokens").click()
        await expect(dialog.get_by_text("ComfyRelay is not responding.", exact=False)).to_be_visible()
        await dialog.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_role("region", name="Tokens")).to_contain_text(f"{before + 2530:,}")
    await page.unroute("**/credits")
    await page.get_by_role("button", name="Add tokens").click()
    await dialog.get_by_label("Amount").fill("30")
    await dialog.get_by_role("button", name="Add 30 tokens").click()
    await expect(dialog).to_be_hidden()
    assert (await site.system.user("GET", "/wallet"))["balance"] == before + 2530


async def test_new_account_link_works_once(admin: tuple[Page, PageLog], site: Site, chromium: Browser) -> None:
    page, page_log = admin
    email = f"{uuid4()}@example.com"
    await opened(page, page_log, "/console/tenants")
    await page.get_by_role("button", name="New account").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Email").fill(email)
    await dialog.get_by_label("Name").fill("Grace")
    await dialog.get_by_role("button", name="Create account").click()
    dialog = page.get_by_role("dialog", name=f"Account created for {email}")
    link = await dialog.locator("code").inner_text()
    await dialog.get_by_role("button", name="Close").last.click()
    await page.reload()
    await expect(page.get_by_role("link", name=email)).to_be_visible()
    assert link not in await page.content()

    async with open_visitor(chromium, site.system) as context:
        visitor = await context.new_page()
        await visitor.goto(link)
        await visitor.get_by_label("New password").fill(PASSWORD)
        await visitor.get_by_role("button", name="Set password and sign in").click()
        await visitor.wait_for_url(re.compile("/studio$"))

        # a disabled user is signed out at once and can sign in again when enabled
        await page.get_by_role("link", name=email).click()
        for verb in ("Disable", "Enable"):
            await page.get_by_role("button", name=f"Actions for {email}").click()
            await page.get_by_role("menuitem", name=verb).click()
            if verb == "Disable":
                await page.get_by_role("dialog").get_by_role("button", name="Disable").click()
                await expect(page.get_by_role("row").filter(has_text=email)).to_contain_text("Disabled")
                assert (await context.request.get("/api/me")).status == 401
        await expect(page.get_by_role("row").filter(has_text=email)).to_contain_text("Active")

    async with open_visitor(chromium, site.system) as context:
        visitor = await context.new_page()
        await visitor.goto(link)
        await expect(visitor.get_by_role("heading", name="This link does not work")).to_be_visible()


async def test_limits_of_a_tenant_are_set(admin: tuple[Page, PageLog], site: Site) -> None:
    page, page_log = admin
    await opened(page, page_log, f"/console/tenants/{site.tenant}")
    limits = page.get_by_role("region", name="Limits")
    await limits.get_by_label("Maximum active jobs").fill("150")
    await limits.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("Saved.", exact=True).first).to_be_visible()
    assert (await site.system.admin("GET", f"/tenants/{site.tenant}"))["limits"]["max_active_jobs"] == 150


async def test_leaving_a_page_with_unsaved_changes_asks_first(admin: tuple[Page, PageLog], site: Site) -> None:
    page, page_log = admin
    await site.system.admin("POST", "/workflows", {"slug": "guarded", "graph": PROMPT_GRAPH})
    body = {"slug": "guarded", "name": "Guarded", "workflow_slug": "guarded", "credits_cost": 1}
    await site.system.admin("POST", "/effects", body)
    for kind, back in (("workflows/guarded", "Workflows"), ("effects/guarded", "Effects")):
        await opened(page, page_log, f"/console/{back.lower()}")
        await page.locator(f"a[href='/console/{kind}']").first.click()
        if back == "Workflows":
            await page.get_by_role("tab", name="Settings").click()
        name = page.get_by_role("main").get_by_label("Name", exact=True)
        await name.fill("Renamed")
        leave = page.locator("header").get_by_role("link", name=back)
        dialog = page.get_by_role("dialog", name="Discard unsaved changes?")
        await leave.click()
        await dialog.get_by_role("button", name="Keep editing").click()
        await expect(name).to_have_value("Renamed")
        if back == "Workflows":
            # unsaved input carries over to the other tabs
            await page.get_by_role("tab", name="Form").click()
            await page.get_by_role("tab", name="Settings").click()
            await expect(name).to_have_value("Renamed")
        await page.evaluate("history.back()")
        await dialog.get_by_role("button", name="Keep editing").click()
        await expect(name).to_have_value("Renamed")
        await leave.click()
        await dialog.get_by_role("button", name="Discard changes").click()
        await page.wait_for_url(re.compile(f"/console/{back.lower()}$"))
        # no question after saving
        await opened(page, page_log, f"/console/{kind}?tab=settings")
        await name.fill("Guarded twice")
        await page.get_by_role("button", name="Save", exact=True).click()
        await expect(page.get_by_text("Saved.", exact=True).first).to_be_visible()
        await leave.click()
        await page.wait_for_url(re.compile(f"/console/{back.lower()}$"))
    # a deleted item cannot be saved
    await opened(page, page_log, "/console/effects/guarded")
    await page.get_by_role("main").get_by_label("Name", exact=True).fill("Gone")
    await more(page, "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await page.wait_for_url(re.compile("/console/effects$"))
    assert page_log.complaints == []


async def test_failed_delivery_appears_on_an_open_page_and_can_be_resent(
    admin: tuple[Page, PageLog], site: Site, chromium: Browser
) -> None:
    page, page_log = admin
    system = site.system
    async with open_receiver() as receiver:
        receiver.statuses = [500, 500]
        effect = await system.admin("GET", "/effects/hostile")
        job = await system.submit(effect["id"], webhook_url=receiver.url)
        await system.until(job, "completed")
        await receiver.wait_for(1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            # the answer is recorded after it has been sent
            while not (await system.admin("GET", "/webhooks/deliveries?status=failing"))["items"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await opened(page, page_log, "/console/webhooks")
        row = page.get_by_role("row").filter(has_text=receiver.url)
        await expect(row).to_have_count(0)
        async with open_as("admin", chromium, system) as (overview, _):
            await overview.goto("/console")
            attention = overview.get_by_role("region", name="Needs attention")
            async with system._engine() as engine:
                shard = engine.databases.shard("main")
                # simulate a delivery that failed after days of retries
                words = "UPDATE webhook_deliveries SET attempts = 99, due_at = now() WHERE url = :url"
                await execute(shard, words, url=receiver.url)
            await receiver.wait_for(2)
            await expect(row).to_contain_text("Dead")
            await expect(row.get_by_role("link", name="ada@example.com")).to_be_visible()
            await expect(attention).to_contain_text("1 webhook delivery abandoned")
            await row.get_by_role("button", name="Resend").click()
            await receiver.wait_for(3)
            await expect(row).to_have_count(0)
            await expect(attention.get_by_text("abandoned")).to_have_count(0)
        await page.get_by_role("button", name="Delivered").click()
        await expect(row).to_contain_text("Delivered")


async def test_full_check_shows_results_and_time(admin: tuple[Page, PageLog], site: Site) -> None:
    page, page_log = admin
    await opened(page, page_log, "/console/reconcile")
    await page.get_by_role("button", name="Run check").click()
    await expect(page.get_by_role("heading", name="No mismatches")).to_be_visible()
    await expect(page.get_by_text("Last check")).to_be_visible()


async def test_settings_are_searchable_and_secrets_are_hidden(admin: tuple[Page, PageLog], site: Site) -> None:
    page, page_log = admin
    await opened(page, page_log, "/console/settings")
    for name, value in site.system.settings.items():
        if "SECRET" in name or "DATABASE" in name:
            assert value not in await page.content()
    await page.get_by_placeholder("Search settings").fill("allow_private")
    row = page.get_by_role("row").filter(has_text="COMFYRELAY_WEBHOOK_ALLOW_PRIVATE")
    await expect(row).to_contain_text("true")
    await expect(row).to_contain_text("environment")
    await expect(page.get_by_role("row")).to_have_count(2)


@pytest.mark.parametrize("path", ["/console/nowhere", "/nowhere", "/studio/nowhere/at-all"])
async def test_unknown_page_links_back(path: str, admin: tuple[Page, PageLog]) -> None:
    page, page_log = admin
    await opened(page, page_log, "/console/effects")
    # navigate as a link inside the app would
    await page.evaluate(
        "(path) => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')) }", path
    )
    await expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
    await expect(page.get_by_role("link", name="Go to the console")).to_be_visible()
    await page.get_by_role("button", name="Go back").click()
    await page.wait_for_url(re.compile("/console/effects$"))
    await expect(page.get_by_role("heading", name="Effects")).to_be_visible()


async def test_console_is_not_accessible_to_other_users(chromium: Browser, site: Site) -> None:
    async with open_as("user", chromium, site.system) as (page, page_log):
        for name in PAGES:
            await page.goto(site.path(name))
            await expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
        await page.get_by_role("link", name="Go to the studio").click()
        await page.wait_for_url(re.compile("/studio$"))
        assert [address for address in page_log.addresses if "/api/admin" in address] == []
        for path in ("workflows", "effects", "tenants", "webhooks/deliveries", "reconcile/findings", "settings"):
            assert (await page.request.get(f"/api/admin/{path}")).status == 403


@pytest.mark.parametrize("name", PAGES)
async def test_page_is_accessible_and_shows_markup_as_text(
    name: str, admin: tuple[Page, PageLog], site: Site, axe: str
) -> None:
    page, page_log = admin
    await opened(page, page_log, site.path(name))
    await is_accessible(page, page_log, axe)
    await assert_nothing_injected(page)
    assert page_log.complaints == []
    # pictures come from the object storage
    own = (url_of(site.system), site.system.files.url)
    assert [address for address in page_log.addresses if not address.startswith((*own, "blob:"))] == []


@pytest.mark.parametrize("name", PAGES)
async def test_page_fits_a_phone(name: str, chromium: Browser, site: Site, axe: str) -> None:
    async with open_as("admin", chromium, site.system, screen=PHONE) as (page, page_log):
        await opened(page, page_log, site.path(name))
        assert await page.evaluate(_WIDER) == []
        assert await page.locator("table").evaluate_all(_PUSHED_ASIDE) == []
        await expect(page.locator("nav a[aria-current]").first).to_be_in_viewport(ratio=0.9)
        assert await violations(page, axe) == ""
