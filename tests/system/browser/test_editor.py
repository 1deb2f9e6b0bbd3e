"""ComfyUI's unmodified editor draws, runs, cancels, lists and saves on a server with two workers."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from comfyrelay.comfyui.editor.layout import lay_out
from comfyrelay.comfyui.versions import TRIED
from comfyrelay.simulator.misbehaviour import Slow
from tests.support.chromium import PATIENCE_MS, PROMPT_GRAPH, open_page, until
from tests.support.comfyui_site import MODELS, ComfyuiSite, open_site, painted
from tests.support.desk import make_desk
from tests.support.server_processes import free_port
from tests.support.storage import BUCKET
from tests.support.world import PostgresBackend, SqliteBackend

pytestmark = pytest.mark.asyncio(loop_scope="session")
SEED = 4242
# The second worker has fewer nodes.
VERSIONS = (TRIED[-1], "0.7.0")
# The names of the pictures that nodes show.
PICTURES = "window.app.graph.nodes.flatMap((node) => node.imgs ?? []).filter((image) => image.naturalWidth > 0).length"


@asynccontextmanager
async def opened(chromium: Browser, site: ComfyuiSite, **target: str) -> AsyncIterator[Page]:
    """Open the editor through a link, and expect the nodes of the target."""
    assert site.client.user is not None
    link = await site.client.user.post("/api/editor/links", target)
    context = await chromium.new_context(viewport={"width": 1400, "height": 900}, locale="en-US")
    page = await context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    await page.goto(link["url"])
    await has_nodes(page)
    yield page
    await context.close()


async def has_nodes(page: Page) -> None:
    await until(page, f"window.app?.graph?.nodes?.length === {len(painted(MODELS[0]))}")


async def add_workflow(site: ComfyuiSite, model: str) -> str:
    assert site.client.user is not None
    added = await site.client.user.post("/api/workflows", {"graph": painted(model), "name": "Cat"})
    return str(added["slug"])


async def run(page: Page) -> None:
    await page.get_by_test_id("queue-button").click()


async def change_seed(page: Page, seed: int) -> None:
    await page.evaluate(
        "(seed) => { window.app.graph.getNodeById(4).widgets.find(({ name }) => name === 'seed').value = seed; }", seed
    )


async def prompts(site: ComfyuiSite) -> list[dict[str, Any]]:
    return [entry["prompt"][2] for entry in (await site.client.get("/history")).values()]


@pytest.mark.parametrize("database", [pytest.param("sqlite", marks=pytest.mark.journey), "postgresql"])
async def test_editor_draws_runs_cancels_and_saves(
    tmp_path: Path, chromium: Browser, database: str, request: pytest.FixtureRequest
) -> None:
    """The server uses SQLite, or PostgreSQL and S3."""
    storage_url = None
    if database == "postgresql":
        request.getfixturevalue("aws")
        storage_url = f"s3://{BUCKET}/draws"
    backend = request.getfixturevalue("sqlite_backend" if database == "sqlite" else "real_postgres_backend")
    async with open_site(backend, storage_url, tmp_path, versions=VERSIONS) as site:
        slug = await add_workflow(site, MODELS[0])
        async with opened(chromium, site, workflow=slug) as page:
            await change_seed(page, SEED)
            await run(page)
            await until(page, f"{PICTURES} === 1")
            assert [graph["4"]["inputs"]["seed"] for graph in await prompts(site)] == [SEED]
            await cancels(page, site)
            await saves(page, site)
            await page.reload()
            await has_nodes(page)
            await is_in_history(page)
            await loads(page)


async def cancels(page: Page, site: ComfyuiSite) -> None:
    for simulator in site.simulators:
        simulator.misbehave(Slow(class_type="KSampler", seconds=60, steps=600, previews=True))
    await change_seed(page, SEED + 1)
    await run(page)
    await site.client.until_running(1)
    # A preview of the running job.
    await until(page, "Object.values(window.app.nodePreviewImages).flat().length > 0")
    await page.get_by_role("button", name="Cancel current run").click()
    await site.client.until_running(0)
    assert len(await prompts(site)) == 2


async def saves(page: Page, site: ComfyuiSite) -> None:
    await page.keyboard.press("Control+s")
    await page.get_by_role("dialog").get_by_role("textbox").fill("my cat")
    async with page.expect_response(re.compile("/api/userdata/workflows")):
        await page.get_by_role("button", name="Confirm").click()
    assert site.client.user is not None
    [saved] = (await site.client.user.get("/api/editor/workflows"))["items"]
    assert saved["path"] == "my cat.json"
    file = await site.client.user.get("/api/editor/workflows/my cat.json")
    added = await site.client.user.post("/api/workflows", {"graph": file["graph"], "name": "My cat"})
    assert "seed" in {prop["key"] for prop in added["properties"]}


async def is_in_history(page: Page) -> None:
    await page.get_by_test_id("queue-overlay-toggle").click()
    await expect(page.get_by_text("ComfyUI_00001_.png")).to_be_visible()


async def loads(page: Page) -> None:
    await page.get_by_role("button", name="Create a new blank workflow").click()
    await until(page, "window.app.graph.nodes.length === 0")
    await page.keyboard.press("w")
    await page.get_by_role("treeitem", name="my cat").click()
    await has_nodes(page)


async def test_editor_opens_and_runs_a_job_on_postgresql_and_s3(
    tmp_path: Path, chromium: Browser, real_postgres_backend: PostgresBackend, aws: None
) -> None:
    async with open_site(real_postgres_backend, f"s3://{BUCKET}/editor", tmp_path, versions=VERSIONS) as site:
        first = await site.client.prompt(painted(MODELS[1], seed=SEED))
        await site.client.ended(first)
        assert site.client.user is not None
        [job] = (await site.client.user.get("/api/ai-jobs"))["items"]
        async with opened(chromium, site, job_id=job["id"]) as page:
            # Only the second worker has this model.
            await change_seed(page, SEED + 1)
            await run(page)
            await until(page, f"{PICTURES} === 1")
            seeds = {graph["4"]["inputs"]["seed"] for graph in await prompts(site)}
            assert seeds == {SEED, SEED + 1}


async def test_first_start_shows_a_graph_instead_of_an_empty_list_of_templates(
    tmp_path: Path, chromium: Browser
) -> None:
    async with open_site(SqliteBackend(tmp_path / "db"), None, tmp_path, models=MODELS[:1]) as site:
        assert site.client.user is not None
        link = await site.client.user.post("/api/editor/links", {})
        page = await chromium.new_page(locale="en-US")
        await page.goto(link["url"])
        await until(page, "window.app?.graph?.nodes?.length > 1")
        # The list opens after the graph has been loaded.
        await until(page, "window.app.extensionManager.setting.get('Comfy.TutorialCompleted') === true")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.close()


async def test_missing_nodes_are_marked_before_the_run(tmp_path: Path, chromium: Browser) -> None:
    async with open_site(SqliteBackend(tmp_path / "db"), None, tmp_path, models=MODELS[:1]) as site:
        file = lay_out({"1": {"class_type": "NoSuchNode", "inputs": {}}}, {})
        body = {"graph": file, "name": "Unknown", "wait_for_missing": True}
        assert site.client.user is not None
        added = await site.client.user.post("/api/workflows", body)
        link = await site.client.user.post("/api/editor/links", {"workflow": added["slug"]})
        page = await chromium.new_page(locale="en-US")
        await page.goto(link["url"])
        await expect(page.get_by_text("Missing node: NoSuchNode").first).to_be_visible()
        await page.close()


@pytest.mark.parametrize("modern", [False, True], ids=["canvas", "nodes 2.0"])
async def test_nodes_without_their_script_are_marked(tmp_path: Path, chromium: Browser, modern: bool) -> None:
    packs = {"rgthree-comfy": ["KSampler"]}
    async with open_site(SqliteBackend(tmp_path / "db"), None, tmp_path, models=MODELS[:1], packs=packs) as site:
        await site.client.post("/settings", {"Comfy.VueNodes.Enabled": modern})
        slug = await add_workflow(site, MODELS[0])
        async with opened(chromium, site, workflow=slug) as page:
            marks = "window.app.graph.nodes.flatMap(({ type, badges }) => badges.map(({ text }) => [type, text]))"
            assert await page.evaluate(marks) == [["KSampler", "Script of rgthree-comfy not allowed"]]
            if modern:
                await expect(page.get_by_text("Script of rgthree-comfy not allowed")).to_be_visible()


@pytest.mark.usefixtures("built_app")
async def test_page_opens_workflows_in_the_editor_and_makes_forms_of_saved_ones(
    tmp_path: Path, chromium: Browser
) -> None:
    desk = make_desk(tmp_path / "data", shutdown_seconds=0)
    port = free_port()
    desk.settings = desk.settings.model_copy(update={"comfyui_api_port": port})
    async with desk.open() as (_worker, ready), open_page(chromium, ready.url) as driver:
        await driver.call("POST", "/api/workflows", {"graph": PROMPT_GRAPH, "name": "Lake"})
        await driver.choose("Lake")
        await driver.page.get_by_role("button", name="Workflow actions").click()
        async with driver.page.expect_popup() as popup:
            await driver.page.get_by_role("menuitem", name="Open in the editor").click()
        editor = await popup.value
        await editor.wait_for_url(f"http://127.0.0.1:{port}/**", wait_until="commit")
        await editor.close()
        pond = {**PROMPT_GRAPH, "7": {"class_type": "PreviewImage", "inputs": {"images": ["6", 0]}}}
        file = f"http://127.0.0.1:{port}/userdata/workflows%2FPond.json"
        assert (await driver.http.post(file, json=pond)).status_code == 200
        await driver.page.reload()
        await driver.page.get_by_role("button", name="Editor", exact=True).click()
        await driver.page.get_by_role("menuitem", name="Pond").click()
        await expect(driver.page.get_by_role("form", name="Pond")).to_be_visible()
