"""Studio and wallet lead from sign-up to a result, even when the network or the job fails."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, FilePayload, Locator, Page, Route, expect
from standardwebhooks.webhooks import Webhook

from comfyrelay.simulator import Fail, OutOfMemory, Stuck
from tests.support.api import PASSWORD
from tests.support.graphs import invert_file
from tests.support.network_proxy import Proxy
from tests.support.web_app import DESKTOP, PHONE, PageLog, Screen, record_page, settled
from tests.support.webhook_receiver import open_receiver
from tests.support.whole_system import COST, INPUT, System
from tests.support.world import PostgresBackend, execute, memory_folder
from tests.system.browser.sample_desk import picture
from tests.system.browser.server import open_server, open_visitor, sign_in, start_workers, url_of
from tests.system.browser.test_every_page import (
    _SMALL,
    _WIDER,
    HOSTILE,
    MARKUP,
    assert_nothing_injected,
    axe,
    is_accessible,
    violations,
)

__all__ = ["axe"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

CAT = FilePayload(name="cat.png", mimeType="image/png", buffer=picture(3, 320, 240))
ERROR = "the tensors do not fit"
MASK = {"key": "mask", "label": "Mask", "type": "image", "placeholder": "{{MASK}}", "user_configurable": True}
NAMES = {"negative": "Negative", "plain": "Plain colour", "masked": "With a mask", "hostile": f"Hostile {MARKUP}"}


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """A user with a new account, and the browser context in which they are signed in."""

    system: System
    context: BrowserContext
    page: Page
    page_log: PageLog
    email: str
    token: str
    tenant_id: str

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = await self.system.http.request(method, f"/api{path}", json=body, headers=headers)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return answer.json()["data"] if answer.content else None

    async def credit(self, amount: int) -> None:
        body = {"amount": amount, "reference": str(uuid4()), "description": "Welcome"}
        await self.system.admin("POST", f"/tenants/{self.tenant_id}/credits", body)

    async def uploaded(self, name: str = "cat.png") -> str:
        content = CAT["buffer"]
        about = {"mime_type": "image/png", "size": len(content), "original_filename": name}
        begun = await self.call("POST", "/videos/uploads", about)
        async with httpx.AsyncClient() as http:
            sent = await http.put(begun["upload_url"], content=content, headers=begun["upload_headers"])
        assert sent.is_success, sent.text
        return str(begun["file"]["id"])

    async def submitted(self, effect: str = "negative", *, file: str = "cat.png", **more: Any) -> str:
        """Submit a job through the API, not the page."""
        found = await self.call("GET", f"/effects/{effect}")
        if effect == "negative" and "video_id" not in more:
            more["input_file_id"] = await self.uploaded(file)
        body = {"effect_id": found["id"], "idempotency_key": str(uuid4()), **more}
        return str((await self.call("POST", "/ai-jobs", body))["id"])

    async def ended(self, job_id: str, status: str = "completed") -> None:
        async with self.system.http.stream(
            "GET", f"/api/ai-jobs/{job_id}/events", headers={"Authorization": f"Bearer {self.token}"}
        ) as events:
            async for _line in events.aiter_lines():
                # the stream ends after the job's last event
                pass
        assert (await self.call("GET", f"/ai-jobs/{job_id}"))["status"] == status

    async def choose(self, effect: str) -> None:
        await self.page.goto("/studio")
        await self.page.get_by_role("list", name="Effects").get_by_role("link", name=re.compile(effect)).click()
        await expect(self.page.get_by_role("heading", name=effect, exact=True)).to_be_visible()

    async def give(self, file: Any = CAT) -> None:
        await self.page.locator("input[type=file]").set_input_files(file)

    async def start(self) -> None:
        await self.page.get_by_role("button", name="Start for").click()

    async def job_in_address(self) -> str:
        await self.page.wait_for_url(re.compile("/studio/videos/[^/?]+$"))
        return self.page.url.rpartition("/")[2]

    @property
    def state(self) -> Locator:
        return self.page.get_by_role("complementary", name="Progress")

    @property
    def transactions(self) -> Locator:
        return self.page.get_by_role("list", name="Transactions").get_by_role("listitem")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(real_postgres_backend: PostgresBackend, s3_server: str, built_app: None) -> AsyncIterator[System]:
    """Yield a system with two workers, an effect that takes a picture, and an effect that takes only a number."""
    with memory_folder() as folder:
        settings = {"WEBHOOK_ALLOW_PRIVATE": "true"}
        async with open_server(folder, real_postgres_backend, s3_server, settings=settings) as system:
            await system.effect("negative", properties=[INPUT])
            await system.plain_effect("plain")
            graph = {**invert_file("{{INPUT}}"), "9": {"class_type": "LoadImage", "inputs": {"image": "{{MASK}}"}}}
            await system.effect("masked", graph, properties=[INPUT, MASK])
            await system.plain_effect("hostile")
            for slug, name in NAMES.items():
                await system.admin("PATCH", f"/effects/{slug}", {"name": name})
            await start_workers(system)
            yield system


@asynccontextmanager
async def signed_in(
    chromium: Browser, system: System, *, tokens: int = 100, screen: Screen = DESKTOP
) -> AsyncIterator[User]:
    email = f"{uuid4()}@example.com"
    answer = await system.http.post("/api/register", json={"email": email, "password": PASSWORD})
    system.http.cookies.clear()
    upload = answer.json()["data"]
    async with open_visitor(chromium, system, screen=screen) as context:
        await sign_in(context, system, upload["token"])
        page = await context.new_page()
        user = User(
            system=system,
            context=context,
            page=page,
            page_log=record_page(page),
            email=email,
            token=upload["token"],
            tenant_id=upload["user"]["tenant_id"],
        )
        if tokens:
            await user.credit(tokens)
        yield user


@pytest_asyncio.fixture(loop_scope="session")
async def user(chromium: Browser, system: System) -> AsyncIterator[User]:
    async with signed_in(chromium, system) as user:
        yield user
        for simulator in system.simulators:
            simulator.behave()


async def decoded(image: Locator) -> int:
    """Return the width of a loaded picture."""
    await expect(image).to_be_visible()
    return int(await image.evaluate("(image) => image.decode().then(() => image.naturalWidth)"))


class TestCreating:
    @pytest.mark.journey
    async def test_sign_up_leads_to_a_result_with_its_cost(self, chromium: Browser, system: System) -> None:
        async with open_visitor(chromium, system) as context:
            page = await context.new_page()
            email = f"{uuid4()}@example.com"
            await page.goto("/sign-up")
            await page.get_by_label("Email").fill(email)
            await page.get_by_label("Password", exact=True).fill(PASSWORD)
            await page.get_by_role("button", name="Sign up").click()
            await page.wait_for_url(re.compile("/studio$"))
            me = (await (await context.request.get("/api/me")).json())["data"]
            credit = {"amount": 20, "reference": str(uuid4())}
            await system.admin("POST", f"/tenants/{me['tenant_id']}/credits", credit)

            await page.get_by_role("searchbox", name="Search effects").fill("nega")
            cards = page.get_by_role("list", name="Effects").get_by_role("link")
            await expect(cards).to_have_count(1)
            await expect(cards).to_contain_text(f"{COST} tokens")
            await cards.click()
            await expect(page.get_by_label("Cost")).to_contain_text("20 tokens")
            await page.locator("input[type=file]").set_input_files(CAT)
            await expect(page.get_by_text("Uploaded", exact=True)).to_be_visible()
            await page.get_by_role("button", name=f"Start for {COST} tokens").click()
            await page.wait_for_url(re.compile("/studio/videos/[^/?]+$"))
            state = page.get_by_role("complementary", name="Progress")
            await expect(state.get_by_text(f"{COST} tokens used")).to_be_visible()
            assert await decoded(page.get_by_role("main").get_by_role("img", name=re.compile("cat-"))) == 320
            # the pictures before and after are compared with a divider
            await expect(page.get_by_role("slider", name="Divider between input and output")).to_be_visible()
            async with page.expect_download() as download:
                await page.get_by_role("link", name="Download").click()
            assert (await download.value).suggested_filename.endswith(".png")
            await expect(page.get_by_role("link", name="Your balance: 13 tokens")).to_be_visible()

            await page.get_by_role("navigation", name="Areas").get_by_role("link", name="Wallet").click()
            await expect(page.get_by_label("Balance", exact=True).get_by_text("13 tokens")).to_be_visible()
            rows = page.get_by_role("list", name="Transactions").get_by_role("listitem")
            await expect(rows).to_have_count(2)
            await expect(rows.nth(0)).to_contain_text(re.compile("Spent.*cat.*\u22127"))
            await expect(rows.nth(1)).to_contain_text(re.compile(r"Topped up.*\+20"))
            await rows.nth(0).get_by_role("link").click()
            await page.get_by_role("link", name="Upload another file").click()
            await page.wait_for_url(re.compile("/studio/effects/negative$"))

    async def test_interrupted_upload_restarts(self, user: User) -> None:
        await user.choose("Negative")
        files = user.system.files
        files.hold(b"PUT /")
        try:
            await user.give()
            await files.until_held()
            await expect(user.page.get_by_role("progressbar", name="Uploading cat.png")).to_be_visible()
            # the job starts as soon as the upload is done
            await user.start()
            await expect(user.page.get_by_role("button", name="Starts after the upload")).to_be_visible()
            await user.context.set_offline(True)
            await files.cut()
            await expect(user.page.get_by_text("Connection lost.")).to_be_visible()
        finally:
            await files.restore()
        await user.context.set_offline(False)
        job_id = await user.job_in_address()
        await expect(user.state.get_by_text("Done", exact=True).last).to_be_visible()
        # exactly once
        assert [job["id"] for job in (await user.call("GET", "/ai-jobs"))["items"]] == [job_id]
        assert (await user.call("GET", "/wallet"))["balance"] == 100 - COST

    async def test_upload_cut_off_by_the_storage_restarts(self, user: User) -> None:
        await user.choose("Negative")
        files = user.system.files
        files.hold(b"PUT /")
        try:
            await user.give()
            await files.until_held()
            await files.cut()
            await expect(user.page.get_by_text("Connection lost.")).to_be_visible()
        finally:
            await files.restore()
        await expect(user.page.get_by_text("Uploaded", exact=True)).to_be_visible()

    async def test_job_starts_only_after_every_upload(self, user: User) -> None:
        page = user.page
        await user.choose("With a mask")
        await page.locator("input[type=file]").first.set_input_files(CAT)
        await expect(page.get_by_text("Uploaded", exact=True)).to_be_visible()
        files = user.system.files
        files.hold(b"PUT /")
        try:
            await page.get_by_role("region", name="Mask").locator("input[type=file]").set_input_files(CAT)
            await files.until_held()
            await user.start()
            await expect(page.get_by_role("button", name="Starts after the upload")).to_be_visible()
            assert (await user.call("GET", "/ai-jobs"))["items"] == []
            async with page.expect_request(
                lambda request: request.method == "POST" and request.url.endswith("/ai-jobs")
            ) as sent:
                files.release()
        finally:
            files.release()
        body = json.loads((await sent.value).post_data or "")
        assert body["input_payload"]["mask"]
        await user.job_in_address()

    async def test_invalid_number_is_reported_before_submission(self, user: User) -> None:
        await user.choose("Plain colour")
        field = user.page.get_by_role("region", name="Settings").locator("input").first
        await field.fill("blue")
        await field.blur()
        await expect(user.page.get_by_text("Enter a number.")).to_be_visible()
        await field.fill("7")
        await expect(user.page.get_by_text("Enter a number.")).to_have_count(0)
        await user.page.locator("[data-field] [aria-hidden] button").last.click()
        await expect(field).to_have_value("8")

    async def test_raised_price_is_shown_and_not_charged(self, user: User) -> None:
        page = user.page
        await user.choose("Plain colour")
        button = page.get_by_role("button", name="Start for 7 tokens")
        await expect(button).to_be_enabled()
        await user.system.admin("PATCH", "/effects/plain", {"credits_cost": 9})
        try:
            await button.click()
            await expect(page.get_by_text("The price is now 9 tokens, not 7.")).to_be_visible()
            assert (await user.call("GET", "/wallet"))["balance"] == 100
            await page.get_by_role("button", name="Start for 9 tokens").click()
            await user.job_in_address()
            await expect(user.state.get_by_text("9 tokens used")).to_be_visible()
        finally:
            await user.system.admin("PATCH", "/effects/plain", {"credits_cost": COST})

    async def test_expired_result_url_is_replaced(self, user: User) -> None:
        job_id = await user.submitted("plain", input_payload={"color": 77})
        await user.ended(job_id)
        requests = 0

        async def old(route: Route) -> None:
            """This happens on a page that has been open for a long time."""
            nonlocal requests
            requests += 1
            answer = await route.fetch()
            body = await answer.json()
            if requests == 1:
                [output] = body["data"]["outputs"]
                output["url"] = f"{output['url'].partition('?')[0]}?stale"
            await route.fulfill(response=answer, json=body)

        await user.page.route(f"**/api/ai-jobs/{job_id}", old)
        await user.page.route("**?stale", lambda route: route.fulfill(status=403))
        await user.page.goto(f"/studio/videos/{job_id}")
        image = user.page.get_by_role("main").get_by_role("img", name=re.compile("plain-"))
        assert await decoded(image) > 0
        await expect(user.page.get_by_role("link", name="Download")).not_to_have_attribute("href", re.compile("stale"))
        # a pending request would fail with the page
        await user.page.unroute_all(behavior="wait")

    async def test_upload_is_canceled_and_replaced_by_another_file(self, user: User) -> None:
        await user.choose("Negative")
        await user.give({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no picture"})
        await expect(user.page.get_by_text("notes.txt is not an image. Choose another file.")).to_be_visible()
        files = user.system.files
        files.hold(b"PUT /")
        try:
            await user.give()
            await files.until_held()
            await user.page.get_by_role("button", name="Cancel upload").click()
            await expect(user.page.get_by_role("button", name=re.compile("Drop an image here"))).to_be_enabled()
        finally:
            await files.restore()
        await user.start()
        await expect(user.page.get_by_text("Choose a file first.").first).to_be_visible()
        assert (await user.call("GET", "/ai-jobs"))["items"] == []

    async def test_running_job_continues_while_the_page_is_offline(self, user: User) -> None:
        for simulator in user.system.simulators:
            simulator.misbehave(Stuck(class_type="SaveImage"))
        async with Proxy(url_of(user.system)) as network:
            await user.page.goto(f"{network.url}/studio/effects/negative")
            await user.give()
            await user.start()
            job_id = await user.job_in_address()
            await expect(user.state.get_by_role("progressbar", name="Processing")).to_be_visible()
            await expect(user.state.get_by_text(re.compile(r"^[1-9]\d? %$"))).to_be_visible()
            await user.context.set_offline(True)
            # otherwise open connections would remain open
            await network.cut()
            await expect(user.page.get_by_text("You are offline. Your jobs continue")).to_be_visible()
            for simulator in user.system.simulators:
                simulator.behave()
            await user.ended(job_id)
            await expect(user.page.get_by_text("You are offline. Your jobs continue")).to_be_visible()
            await network.restore()
            await user.context.set_offline(False)
            await expect(user.state.get_by_text(f"{COST} tokens used")).to_be_visible()
            await expect(user.page.get_by_text("You are offline. Your jobs continue")).to_be_hidden()
            assert await decoded(user.page.get_by_role("main").get_by_role("img", name=re.compile("cat-"))) == 320

    async def test_waiting_user_sees_their_position_and_can_cancel(self, user: User) -> None:
        # the estimate needs one finished job
        await user.ended(await user.submitted())
        for simulator in user.system.simulators:
            simulator.misbehave(Stuck(class_type="SaveImage"))
        # each worker has one running and one prefetched job
        jobs = [await user.submitted() for _ in range(2 * len(user.system.simulators) + 2)]
        await user.page.goto(f"/studio/videos/{jobs[-1]}")
        await expect(user.state.get_by_text(re.compile(r"^Number \d+ in the queue$"))).to_be_visible()
        estimate = re.compile(r"^Starts in (a moment|about .+)\. Takes .+\.$")
        await expect(user.state.get_by_text(estimate)).to_be_visible()
        fetched = [job["id"] for job in (await user.call("GET", "/ai-jobs"))["items"] if job["is_prefetched"]]
        assert len(fetched) == len(user.system.simulators)
        await user.page.goto(f"/studio/videos/{fetched[0]}")
        await expect(user.state.get_by_text("You are next")).to_be_visible()
        await expect(user.state.get_by_text(estimate)).to_be_visible()
        await expect(user.state.locator("[aria-current=step]")).to_have_text("Queued")
        await user.page.goto("/studio/videos?status=running")
        cards = user.page.get_by_role("list", name="Your videos").get_by_role("listitem")
        await expect(cards).to_have_count(len(user.system.simulators))
        await user.page.get_by_role("button", name="Waiting", exact=True).click()
        await expect(cards).to_have_count(len(jobs) - len(user.system.simulators))
        await user.page.goto(f"/studio/videos/{jobs[-1]}")
        await user.state.get_by_role("button", name="Cancel").click()
        await expect(user.state.get_by_text("Canceled by you")).to_be_visible()
        await expect(user.state.get_by_text(f"{COST} tokens refunded.")).to_be_visible()
        for simulator in user.system.simulators:
            simulator.behave()
        for job in jobs[:-1]:
            await user.ended(job)

    async def test_out_of_memory_job_shows_advice(self, user: User) -> None:
        for simulator in user.system.simulators:
            simulator.misbehave(OutOfMemory(class_type="ImageInvert"))
        job_id = await user.submitted()
        await user.ended(job_id, "failed")
        await user.page.goto(f"/studio/videos/{job_id}")
        alert = user.state.get_by_role("alert")
        await expect(alert).to_contain_text("Not enough memory")
        await expect(alert).to_contain_text("Try a smaller image, a shorter video or lower settings.")
        await expect(alert.get_by_text("ImageInvert")).to_be_hidden()

    @pytest.mark.journey
    async def test_failed_job_shows_its_reason_and_refunds_the_tokens(self, user: User) -> None:
        for simulator in user.system.simulators:
            simulator.misbehave(Fail(class_type="ImageInvert", message=ERROR))
        await user.choose("Negative")
        await user.give()
        await user.start()
        await user.job_in_address()
        alert = user.state.get_by_role("alert")
        await expect(alert).to_contain_text("Your result could not be made.")
        await expect(alert).to_contain_text("Try again with another file or other settings.")
        # ComfyUI's message is meant for operators
        await expect(alert).not_to_contain_text(ERROR)
        await expect(user.state.get_by_text(f"{COST} tokens refunded.")).to_be_visible()
        await user.page.goto("/wallet")
        await expect(user.transactions).to_have_count(3)
        await expect(user.transactions.nth(0)).to_contain_text(re.compile(r"Refunded.*\+7"))
        await expect(user.transactions.nth(1)).to_contain_text(re.compile("Reserved.*\u22127"))
        await expect(user.page.get_by_label("Balance", exact=True).get_by_text("100 tokens")).to_be_visible()
        # a retry succeeds
        for simulator in user.system.simulators:
            simulator.behave()
        await user.transactions.nth(0).get_by_role("link").click()
        await user.state.get_by_role("button", name=f"Try again for {COST} tokens").click()
        await expect(user.state.get_by_text(f"{COST} tokens used")).to_be_visible()

    async def test_too_few_tokens_are_reported_before_the_upload(self, chromium: Browser, system: System) -> None:
        async with signed_in(chromium, system, tokens=3) as user:
            await user.choose("Negative")
            card = user.page.get_by_role("status").filter(has_text="You need 7 tokens and have 3")
            await expect(card).to_contain_text("This effect needs 4 more tokens.")
            await expect(card).to_contain_text("Ask your administrator")
            await expect(user.page.get_by_role("button", name=re.compile("Drop an image here"))).to_be_disabled()
            await expect(user.page.get_by_role("button", name="Start for 7 tokens")).to_be_disabled()
            await user.credit(4)
            await expect(user.page.get_by_role("button", name=re.compile("Drop an image here"))).to_be_enabled()
            assert [address for address in user.page_log.addresses if address.endswith("/uploads")] == []

    async def test_rerun_needs_enough_tokens(self, chromium: Browser, system: System) -> None:
        async with signed_in(chromium, system, tokens=COST) as user:
            job_id = await user.submitted("plain", input_payload={"color": 5})
            await user.ended(job_id)
            await user.page.goto(f"/studio/videos/{job_id}")
            again = user.state.get_by_role("button", name=f"Run again for {COST} tokens")
            await expect(user.state.get_by_text("You need 7 tokens and have 0.")).to_be_visible()
            await expect(again).to_be_disabled()
            await user.credit(COST)
            await expect(again).to_be_enabled()

    async def test_second_file_is_refused_if_tokens_are_too_few(self, chromium: Browser, system: System) -> None:
        async with signed_in(chromium, system, tokens=3) as user:
            await user.choose("With a mask")
            await expect(user.page.get_by_text("You need 7 tokens and have 3")).to_be_visible()
            mask = user.page.get_by_role("region", name="Mask")
            await expect(mask.get_by_role("button", name="Drop an image here")).to_be_disabled()
            await expect(mask.locator("input[type=file]")).to_be_disabled()

    async def test_job_canceled_by_an_administrator_shows_it(self, user: User) -> None:
        for simulator in user.system.simulators:
            simulator.misbehave(Stuck(class_type="SaveImage"))
        job_id = await user.submitted()
        await user.page.goto(f"/studio/videos/{job_id}")
        await expect(user.state.get_by_text(re.compile(r"^[1-9]\d? %$"))).to_be_visible()
        found = await user.system.admin("GET", f"/dispatches?q={job_id}")
        workers = user.system.api
        workers.hold(b"POST /api/worker/")
        try:
            await user.system.admin("POST", f"/dispatches/{found['items'][0]['id']}/cancel")
            await expect(user.state.get_by_text("Canceling…")).to_be_visible()
            await expect(user.state.get_by_role("button", name="Cancel")).to_be_disabled()
        finally:
            workers.release()
        await expect(user.state.get_by_text("Canceled by an administrator")).to_be_visible()
        await user.page.goto("/studio/videos?status=canceled")
        await expect(user.page.get_by_role("list", name="Your videos").get_by_role("listitem")).to_have_count(1)

    async def test_effect_without_a_file_has_only_its_settings(self, user: User) -> None:
        await user.choose("Plain colour")
        await user.page.get_by_label("Color").fill("12345")
        await user.start()
        job_id = await user.job_in_address()
        await expect(user.state.get_by_text(f"{COST} tokens used")).to_be_visible()
        await user.state.get_by_role("button", name=f"Run again for {COST} tokens").click()
        await user.page.wait_for_url(lambda url: not url.endswith(job_id))
        await expect(user.state.get_by_text(f"{COST} tokens used")).to_be_visible()
        await user.page.get_by_role("link", name="My videos").first.click()
        await expect(user.page.get_by_role("list", name="Your videos").get_by_role("listitem")).to_have_count(2)

    async def test_expired_result_is_labeled(self, user: User) -> None:
        video = await user.call("POST", "/videos", {"original_file_id": await user.uploaded()})
        await user.ended(await user.submitted(video_id=video["id"]))
        async with user.system._engine() as engine:
            shard = engine.databases.shards["main"]
            await execute(shard, "UPDATE videos SET updated_at = relay_now(-4000000) WHERE id = :id", id=video["id"])
            retention = engine.operations.retention
            retention._video_seconds = 30 * 86400
            assert (await retention._expire(shard, ""))[0] == 1
        other = await user.call("POST", "/videos", {"original_file_id": await user.uploaded()})
        deleted = await user.submitted(video_id=other["id"])
        await user.ended(deleted)
        await user.call("DELETE", f"/videos/{other['id']}")
        await user.page.goto(f"/studio/videos/{deleted}")
        await expect(user.page.get_by_role("heading", name="Result deleted")).to_be_visible()
        await user.page.goto("/studio/videos")
        await user.page.get_by_role("button", name="Expired", exact=True).click()
        card = user.page.get_by_role("list", name="Your videos").get_by_role("link")
        await expect(card).to_have_count(1)
        await expect(card).to_contain_text("Expired")
        await card.click()
        await expect(user.page.get_by_role("heading", name="Result expired")).to_be_visible()
        await expect(user.page.get_by_role("link", name="Upload another file")).to_be_visible()
        await expect(user.page.get_by_role("link", name="Download")).to_be_hidden()


class TestWallet:
    async def test_api_token_is_shown_once_and_revoked(self, user: User) -> None:
        page = user.page
        await page.goto("/wallet")
        await page.get_by_role("tab", name="API tokens").click()
        await page.wait_for_url(re.compile(r"/wallet\?tab=tokens$"))
        await page.get_by_role("button", name="New token").click()
        dialog = page.get_by_role("dialog", name="New token")
        await dialog.get_by_role("button", name="New token").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("Enter a name")
        await dialog.get_by_label("Name").fill("render <b>script</b>")
        await page.keyboard.press("Enter")
        secret = await page.get_by_role("dialog", name="Your new token").get_by_label("Token").input_value()
        headers = {"Authorization": f"Bearer {secret}"}
        assert (await user.system.http.get("/api/me", headers=headers)).json()["data"]["email"] == user.email
        await page.get_by_role("button", name="I have copied it").click()
        row = page.get_by_role("list", name="API tokens").get_by_role("listitem")
        await expect(row).to_contain_text("render <b>script</b>")
        await page.reload()
        await expect(row).to_contain_text("render <b>script</b>")
        assert secret not in await page.content()
        await row.get_by_role("button", name="Revoke").click()
        await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        await expect(page.get_by_role("heading", name="No API tokens")).to_be_visible()
        assert (await user.system.http.get("/api/me", headers=headers)).status_code == 401
        # the browser that revoked the token remains signed in
        await expect(page.get_by_role("list", name="Signed-in browsers")).to_contain_text("this one")

    async def test_webhook_is_added_tested_delivered_and_redelivered(self, user: User) -> None:
        page = user.page
        async with open_receiver() as receiver:
            await page.goto("/wallet?tab=webhooks")
            await page.get_by_label("URL").fill("ftp://example.com")
            await page.get_by_role("button", name="Add webhook").click()
            await expect(page.get_by_role("alert")).to_contain_text("https://")
            await page.get_by_label("URL").fill(receiver.url)
            await page.get_by_role("button", name="Add webhook").click()
            shown = page.get_by_role("dialog", name="Webhook secret")
            secret = await shown.get_by_label("Secret").input_value()
            await shown.get_by_role("button", name="I have copied it").click()
            await page.reload()
            await expect(page.get_by_label("URL")).to_have_value(receiver.url)
            assert secret not in await page.content()

            receiver.statuses = [500]
            await page.get_by_role("button", name="Send test").click()
            await expect(page.get_by_text("Test failed. The response was 500.")).to_be_visible()
            await page.get_by_role("button", name="Send test").click()
            await expect(page.get_by_text("Test delivered: your server responded with 204")).to_be_visible()
            headers, body = receiver.received[1]
            assert Webhook(secret).verify(body, headers)["type"] == "webhook.test"

            job_id = await user.submitted("plain", input_payload={"color": 3})
            await user.ended(job_id)
            await receiver.wait_for(3)
            await page.reload()
            row = page.get_by_role("list", name="Deliveries").get_by_role("listitem")
            await expect(row).to_contain_text(re.compile("Delivered.*responded 204"))
            await row.get_by_role("button", name=re.compile("Resend delivery of job")).click()
            await receiver.wait_for(4)
            await expect(row).to_contain_text(re.compile("Delivered.*responded 204"))
            (first, received), (second, again) = receiver.received[2:]
            assert (first["webhook-id"], received) == (second["webhook-id"], again)
            assert json.loads(received)["data"]["job_id"] == job_id

            await page.get_by_role("button", name="Remove").click()
            await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
            await expect(page.get_by_role("button", name="Add webhook")).to_be_visible()
            assert (await user.call("GET", "/webhook"))["url"] is None


@pytest.mark.journey
async def test_tenant_sees_no_data_of_another_tenant(chromium: Browser, system: System, user: User) -> None:
    async with open_receiver() as receiver:
        await user.call("PUT", "/webhook", {"url": receiver.url})
        await user.call("POST", "/tokens", {"name": "secret laptop"})
        job_id = await user.submitted()
        await user.ended(job_id)
        await receiver.wait_for(1)
    job = await user.call("GET", f"/ai-jobs/{job_id}")
    [output] = job["outputs"]
    secrets = [job_id, job_id[-8:], job["label"], user.email, "secret laptop", receiver.url]
    async with signed_in(chromium, system, tokens=0) as other:
        for path in (
            *("/studio", "/studio/effects/negative", "/studio/videos", f"/studio/videos/{job_id}"),
            *("/wallet", "/wallet?tab=tokens", "/wallet?tab=webhooks"),
            *("/queue", f"/queue?job={job_id}", f"/queue?q={job_id[-8:]}", "/queue?q=cat"),
            *("/gallery", "/gallery?q=cat", f"/gallery?q={job_id}", f"/gallery?open={output['file_id']}"),
            *(f"/jobs/{job_id}", "/create", f"/create?from={job_id}"),
        ):
            await other.page.goto(path)
            await settled(other.page, other.page_log)
            # check dialogs as well
            text = await other.page.locator("body").inner_text()
            pictures = await other.page.locator("body :is(img, video)").count()
            # the page may echo the tenant's own search text
            assert [secret for secret in secrets if secret in text and secret not in path] == [], path
            assert pictures == 0, path
        await other.page.goto(f"/studio/videos/{job_id}")
        await expect(other.page.get_by_role("heading", name="Video not found")).to_be_visible()
        await assert_isolated(other, user, job_id, output)


async def assert_isolated(other: User, user: User, job_id: str, output: dict[str, Any]) -> None:
    """Check that the stream has no events of other tenants and that their pictures are not accessible."""
    await other.page.goto("/queue")
    await other.page.evaluate(
        """() => {
          window.received = [];
          const stream = new EventSource("/api/events");
          for (const name of ["changed", "queue", "progress", "gallery", "wallet"]) {
            stream.addEventListener(name, ({ data }) => window.received.push(`${name} ${data}`));
          }
          return new Promise((open) => stream.addEventListener("queue", open, { once: true }));
        }"""
    )
    second = await user.submitted("plain", input_payload={"color": 8})
    await user.ended(second)
    await user.credit(1)
    # the tenant's own event follows
    await other.credit(1)
    # do not use `wait_for_function`, because the content security policy blocks its second evaluation
    await other.page.evaluate(
        """() => new Promise((resolve) => {
          const look = () => (window.received.some((it) => it.startsWith("wallet")) ? resolve() : setTimeout(look, 20));
          look();
        })"""
    )
    received = "\n".join(await other.page.evaluate("window.received"))
    assert [text for text in (second, job_id, user.email, user.tenant_id) if text in received] == []
    assert received.count("wallet") == 1
    for path in (
        f"/api/ai-jobs/{job_id}",
        f"/api/ai-jobs/{job_id}/preview",
        f"/api/videos/uploads/{output['file_id']}",
    ):
        assert (await other.context.request.get(path)).status == 404, path
    as_input = f"/api/ai-jobs/{job_id}/outputs/1/as-input"
    assert (await other.context.request.post(as_input, headers={"Origin": url_of(other.system)})).status == 404
    shown = {address.partition("?")[0] for address in other.page_log.addresses}
    assert output["url"].partition("?")[0] not in shown


PAGES = {
    "effects": "/studio",
    "effects that are none": "/studio?q=nothing-is-called-that",
    "effect": "/studio/effects/negative",
    "effect with settings": "/studio/effects/plain",
    "effect with a name like markup": "/studio/effects/hostile",
    "no effect": "/studio/effects/nothing",
    "videos": "/studio/videos",
    "videos that failed": "/studio/videos?status=failed",
    "result": "/studio/videos/{done}",
    "failure": "/studio/videos/{failed}",
    "no video": "/studio/videos/01900000-0000-7000-8000-000000000000",
    "wallet": "/wallet",
    "tokens": "/wallet?tab=tokens",
    "webhooks": "/wallet?tab=webhooks",
}


@dataclass(frozen=True, slots=True)
class Filled:
    desktop: User
    phone: User
    ids: dict[str, str]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def filled(chromium: Browser, system: System) -> AsyncIterator[Filled]:
    """Yield pages of a user with content, on desktop and on a phone."""
    async with signed_in(chromium, system) as user, open_receiver() as receiver:
        await user.call("PUT", "/webhook", {"url": receiver.url})
        await user.call("POST", "/tokens", {"name": f"laptop {MARKUP}", "expires_in_days": 90})
        done = await user.submitted(file=HOSTILE.file, label=HOSTILE.labels[0])
        await user.ended(done)
        for simulator in system.simulators:
            simulator.misbehave(Fail(class_type="ImageInvert", message=HOSTILE.error))
        failed = await user.submitted(file=HOSTILE.file, label=HOSTILE.labels[1])
        await user.ended(failed, "failed")
        for simulator in system.simulators:
            simulator.behave()
        await receiver.wait_for(2)
        async with open_visitor(chromium, system, screen=PHONE) as context:
            await sign_in(context, system, user.token)
            page = await context.new_page()
            phone = User(
                system=system,
                context=context,
                page=page,
                page_log=record_page(page),
                email=user.email,
                token=user.token,
                tenant_id=user.tenant_id,
            )
            yield Filled(user, phone, {"done": done, "failed": failed})


async def opened(user: User, path: str) -> None:
    user.page_log.complaints.clear()
    await user.page.goto(path)
    await settled(user.page, user.page_log)


def unexpected(user: User) -> list[str]:
    """Return browser complaints, except about pages that return 404."""
    return [complaint for complaint in user.page_log.complaints if "status of 404" not in complaint]


@pytest.mark.parametrize("route", PAGES)
async def test_page_is_clean(route: str, filled: Filled, axe: str) -> None:
    """axe finds nothing in either theme, and the policy blocks nothing."""
    user = filled.desktop
    await user.page.emulate_media(color_scheme="dark")
    await opened(user, PAGES[route].format(**filled.ids))
    await is_accessible(user.page, user.page_log, axe)
    await assert_nothing_injected(user.page)
    assert unexpected(user) == []


@pytest.mark.parametrize("route", PAGES)
async def test_page_fits_a_phone(route: str, filled: Filled, axe: str) -> None:
    user = filled.phone
    await opened(user, PAGES[route].format(**filled.ids))
    assert await user.page.evaluate(_WIDER) == []
    assert await user.page.evaluate(_SMALL) == []
    assert await violations(user.page, axe) == ""
    assert unexpected(user) == []
