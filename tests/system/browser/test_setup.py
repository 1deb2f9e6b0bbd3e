"""A browser and one command in a terminal lead from an empty server to a finished job."""

import hashlib
import hmac
import json
import re
import time

import pytest
from playwright.async_api import Browser, FilePayload, Page, expect

from tests.support.api import PASSWORD
from tests.support.api_calls import png
from tests.support.web_app import DESKTOP, PHONE, PageLog, Screen, record_page, settled
from tests.support.whole_system import System
from tests.support.world import PostgresBackend, memory_folder
from tests.system.browser.server import open_server, open_visitor, started_by, url_of
from tests.system.browser.server_setup import PRINTED, set_up
from tests.system.browser.test_every_page import _WIDER, axe, is_accessible, violations

__all__ = ["axe"]

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]


PAYMENT_SECRET = "secret-of-the-payment-provider"
BUYER = "buyer@example.com"


async def pay(system: System, amount: int) -> None:
    """Report a payment as the payment provider does."""
    event = {"type": "payment.succeeded", "event_id": "pay-1", "email": BUYER, "amount": amount, "currency": "EUR"}
    body, at = json.dumps(event).encode(), int(time.time())
    signed = hmac.new(PAYMENT_SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    answer = await system.http.post(
        "/api/webhooks/payments", content=body, headers={"X-Signature": f"t={at},v1={signed}"}
    )
    assert answer.is_success, answer.text


async def buy_a_result(page: Page, system: System) -> int:
    """As a visitor, find the effect of the setup assistant, sign up, pay and run it; return its price."""
    await page.goto("/catalogue")
    card = page.get_by_role("main").get_by_role("link", name=re.compile("tokens?"))
    await expect(card).to_have_count(1)
    price = int((re.search(r"(\d+) token", await card.inner_text()) or ["", ""])[1])
    await page.goto("/sign-up")
    await page.get_by_label("Email").fill(BUYER)
    await page.get_by_label("Password", exact=True).fill(PASSWORD)
    await page.get_by_role("button", name="Sign up").click()
    await page.wait_for_url(re.compile("/studio$"))
    await page.get_by_role("list", name="Effects").get_by_role("link").click()
    # without tokens, nothing starts
    await expect(page.get_by_role("button", name=f"Start for {price} token")).to_be_disabled()
    await pay(system, 10 * price)
    await page.reload()
    photo: FilePayload = {"name": "photo.png", "mimeType": "image/png", "buffer": png("#22aa66")}
    await page.locator("input[type=file]").set_input_files([photo])
    await page.get_by_role("button", name=f"Start for {price} token").click()
    await page.wait_for_url(re.compile("/studio/videos/[^/?]+$"))
    await expect(page.get_by_role("complementary", name="Progress")).to_contain_text(f"{price} token")
    await expect(page.get_by_role("link", name="Download")).to_be_visible()
    await expect(page.get_by_role("link", name=f"Your balance: {9 * price} tokens")).to_be_visible()
    return price


async def shown_on(page: Page, screen: Screen) -> None:
    await page.set_viewport_size({"width": screen.width, "height": screen.height})


async def check_accessibility(page: Page, page_log: PageLog, axe: str) -> None:
    """Check the current step in both themes on desktop, and on a phone."""
    await page.emulate_media(color_scheme="dark")
    await settled(page, page_log)
    await is_accessible(page, page_log, axe)
    await shown_on(page, PHONE)
    await settled(page, page_log)
    assert await violations(page, axe) == ""
    assert await page.evaluate(_WIDER) == []
    await shown_on(page, DESKTOP)


@pytest.mark.journey
async def test_setup_of_an_empty_server_leads_to_a_finished_job_and_a_paying_customer(
    chromium: Browser, real_postgres_backend: PostgresBackend, s3_server: str, axe: str
) -> None:
    settings = {"PAYMENT_WEBHOOK_SECRET": PAYMENT_SECRET}
    with memory_folder() as folder:
        async with (
            open_server(
                folder, real_postgres_backend, s3_server, simulators=1, is_empty=True, settings=settings
            ) as system,
            open_visitor(chromium, system) as context,
            open_visitor(chromium, system) as own_context,
        ):
            page = await context.new_page()
            page_log = record_page(page)
            await page.goto("/")
            await page.wait_for_url(re.compile("/setup$"))
            # the first visitor does not become administrator without the code
            await page.get_by_label("Setup code").fill("AAAAA-AAAAA-AAAAA-AAAAA")
            await page.get_by_label("Email").fill("eve@example.com")
            await page.get_by_label("Password", exact=True).fill(PASSWORD)
            await page.get_by_role("button", name="Create administrator").click()
            await expect(page.get_by_role("alert")).to_contain_text("not the code")
            page_log.complaints.clear()

            printed = PRINTED.search(system.server.text())
            assert printed is not None, system.server.text()
            await page.get_by_label("Setup code").fill(printed[2])
            await set_up(
                page,
                lambda command: started_by(command, system).start(),
                lambda _step: check_accessibility(page, page_log, axe),
            )
            await check_accessibility(page, page_log, axe)
            await page.get_by_role("link", name="Open console").click()
            await page.wait_for_url(re.compile("/console$"))
            # every other request goes to the storage
            assert page_log.complaints == []
            others = page_log.elsewhere(url_of(system))
            assert others
            assert all(other.startswith(system.files.url) for other in others)

            customer = await own_context.new_page()
            price = await buy_a_result(customer, system)
            await page.goto("/console/payments")
            await expect(page.get_by_role("row").filter(has_text=BUYER)).to_contain_text(str(10 * price))
            await page.goto("/console/audit")
            await expect(page.get_by_role("row").filter(has_text="set up")).to_contain_text("root@example.com")
            assert page_log.complaints == []
