"""Users sign in to a server, have sessions and sign out."""

import re
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.support.api import PASSWORD
from tests.support.web_app import PHONE, record_page, settled
from tests.support.whole_system import System
from tests.system.browser.server import open_as, open_visitor, url_of
from tests.system.browser.test_every_page import axe, is_accessible

__all__ = ["axe"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

_WIDER = "() => document.querySelector('main').scrollWidth > document.documentElement.clientWidth"


async def fill_in(page: Page, email: str, password: str) -> None:
    await page.get_by_label("Email").fill(email)
    await page.get_by_label("Password", exact=True).fill(password)
    await page.get_by_role("button", name="Sign in", exact=True).click()


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(chromium: Browser, shared_server: System) -> AsyncIterator[Page]:
    """Yield a page without a session."""
    async with open_visitor(chromium, shared_server) as context:
        yield await context.new_page()


async def invited(system: System) -> tuple[str, Any]:
    """Create an account as an administrator; return its email address and link."""
    email = f"{uuid4()}@example.com"
    return email, await system.admin("POST", "/users", {"email": email})


async def test_sign_in_leads_to_the_requested_page(chromium: Browser, shared_server: System) -> None:
    async with open_visitor(chromium, shared_server) as context:
        page = await context.new_page()
        await page.goto("/gallery?q=a%20lake")
        await expect(page.get_by_role("heading", name="Sign in", exact=True)).to_be_visible()
        await fill_in(page, "ada@example.com", "a wrong guess")
        await expect(page.get_by_role("alert")).to_have_text("The email or the password is wrong.")
        await fill_in(page, "ada@example.com", PASSWORD)
        await page.wait_for_url(re.compile(r"/gallery\?q=a\+lake$"))
        await expect(page.get_by_role("heading", name="Gallery", exact=True)).to_be_visible()


@pytest.mark.parametrize(
    ("who", "lands", "names"),
    [
        ("user", "/studio", ["Studio", "Create", "Queue", "Gallery", "Wallet"]),
        ("admin", "/console", ["Studio", "Create", "Queue", "Gallery", "Wallet", "Console"]),
    ],
)
async def test_user_sees_the_areas_of_their_role(
    chromium: Browser, shared_server: System, who: str, lands: str, names: list[str]
) -> None:
    async with open_as("admin" if who == "admin" else "user", chromium, shared_server) as (page, page_log):
        await page.goto("/")
        await page.wait_for_url(re.compile(f"{lands}$"))
        links = page.get_by_role("navigation", name="Areas").get_by_role("link")
        await expect(links).to_have_text(["", *names])
        for name in names:
            await links.filter(has_text=name).click()
            title = "Overview" if name == "Console" else name
            await expect(page.get_by_role("heading", name=title, exact=True).first).to_be_visible()
            await settled(page, page_log)
        assert page_log.complaints == []


async def test_unknown_url_is_a_page_of_the_app(chromium: Browser, shared_server: System) -> None:
    async with open_as("user", chromium, shared_server) as (page, page_log):
        answer = await page.goto("/nowhere/at/all")
        assert answer is not None
        assert answer.status == 404
        await expect(page.get_by_text("Page not found")).to_be_visible()
        assert [complaint for complaint in page_log.complaints if "status of 404" not in complaint] == []


async def test_signing_out_ends_the_session(chromium: Browser, shared_server: System) -> None:
    async with open_visitor(chromium, shared_server) as context:
        page = await context.new_page()
        await page.goto("/sign-in")
        await fill_in(page, "ada@example.com", PASSWORD)
        await page.wait_for_url(re.compile("/studio$"))
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("button", name="Sign out").click()
        await page.wait_for_url(re.compile("/sign-in$"))
        await page.goto("/queue")
        await expect(page.get_by_role("heading", name="Sign in", exact=True)).to_be_visible()


@pytest.mark.parametrize("to", ["https://evil.test/", "//evil.test/", "/\\evil.test/", "javascript:1", "/sign-in"])
async def test_sign_in_redirects_only_within_the_app(visitor: Page, shared_server: System, to: str) -> None:
    await visitor.goto("/sign-in")
    await visitor.evaluate("(to) => history.replaceState(null, '', '/sign-in?to=' + encodeURIComponent(to))", to)
    await visitor.reload()
    await fill_in(visitor, "ada@example.com", PASSWORD)
    await visitor.wait_for_url(f"{url_of(shared_server)}/studio")


async def test_new_user_can_sign_up(visitor: Page) -> None:
    email = f"{uuid4()}@example.com"
    await visitor.goto("/wallet")
    await visitor.get_by_role("link", name="Create an account").click()
    # the sign-up and sign-in pages both have these fields
    await expect(visitor.get_by_role("heading", name="Create an account")).to_be_visible()
    await visitor.get_by_label("Email").fill(email)
    await visitor.get_by_label("Password", exact=True).fill("short")
    await visitor.get_by_role("button", name="Sign up").click()
    await expect(visitor.get_by_text("This must have at least 8 characters.")).to_be_visible()
    await visitor.get_by_label("Password", exact=True).fill(PASSWORD)
    await visitor.get_by_role("button", name="Sign up").click()
    await visitor.wait_for_url(re.compile("/wallet$"))
    await visitor.get_by_role("button", name="Settings").click()
    await expect(visitor.get_by_text(email)).to_be_visible()


@pytest.mark.journey
async def test_expired_session_asks_to_sign_in_and_keeps_input(visitor: Page, shared_server: System) -> None:
    email, link = await invited(shared_server)
    await visitor.goto(link["url"])
    await visitor.get_by_label("New password").fill(PASSWORD)
    await visitor.get_by_role("button", name="Set password and sign in").click()
    await visitor.wait_for_url(re.compile("/studio$"))
    await visitor.goto("/gallery")
    search = visitor.get_by_role("search").get_by_role("searchbox")
    await expect(search).to_be_visible()
    # end every session of the account elsewhere
    again = await shared_server.admin("POST", f"/users/{link['user_id']}/reset-link")
    token = again["url"].partition("#")[2]
    answer = await shared_server.http.post("/api/reset", json={"token": token, "password": PASSWORD})
    assert answer.is_success
    shared_server.http.cookies.clear()
    # a new search reaches the server, which refuses it
    await search.fill("what i typed")
    dialog = visitor.get_by_role("dialog", name="Your session expired")
    await expect(dialog).to_be_visible()
    await expect(dialog.get_by_label("Email")).to_have_value(email)
    await visitor.keyboard.press("Escape")
    await expect(dialog).to_be_visible()
    await dialog.get_by_label("Password", exact=True).fill("a wrong guess")
    await dialog.get_by_role("button", name="Sign in", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_have_text("The email or the password is wrong.")
    async with visitor.expect_response(
        lambda response: "/api/gallery" in response.url and "what" in response.url and response.status == 200
    ):
        await dialog.get_by_label("Password", exact=True).fill(PASSWORD)
        await dialog.get_by_role("button", name="Sign in", exact=True).click()
    await expect(dialog).to_be_hidden()
    await expect(search).to_have_value("what i typed")
    await expect(visitor.get_by_role("heading", name="Gallery", exact=True)).to_be_visible()


async def test_password_link_works_once_and_reports_failure(visitor: Page, shared_server: System) -> None:
    email, link = await invited(shared_server)
    # a failed check is not blamed on the link
    await visitor.route("**/api/reset/check", lambda route: route.fulfill(status=503, json={"detail": "Not now."}))
    await visitor.goto(link["url"])
    await expect(visitor.get_by_text("Not now.")).to_be_visible()
    await expect(visitor.get_by_role("heading", name="Choose your password")).to_be_visible()
    await visitor.unroute("**/api/reset/check")
    await visitor.get_by_role("button", name="Try again").click()
    await expect(visitor.get_by_label("Email")).to_have_value(email)
    await visitor.get_by_label("New password").fill(PASSWORD)
    await visitor.get_by_role("button", name="Set password and sign in").click()
    await visitor.wait_for_url(re.compile("/studio$"))
    # the link's secret is in no log
    assert link["url"].partition("#")[2] not in shared_server.server.text()
    await visitor.goto("about:blank")
    await visitor.goto(link["url"])
    await expect(visitor.get_by_role("heading", name="This link does not work")).to_be_visible()
    await expect(
        visitor.get_by_text("The link was already used or has expired.", exact=False)
        .or_(visitor.get_by_text("This link was already used or has expired.", exact=False))
        .first
    ).to_be_visible()


@pytest.mark.parametrize("path", ["/sign-in", "/sign-up", "/reset#nothing", "/reset#{token}", "/setup"])
async def test_signed_out_page_is_clean(path: str, chromium: Browser, shared_server: System, axe: str) -> None:
    """axe finds nothing, the policy blocks nothing, requests go only to the server, and the page fits a phone."""
    _, link = await invited(shared_server)
    async with open_visitor(chromium, shared_server, screen=PHONE) as context:
        page = await context.new_page()
        page_log = record_page(page)
        await page.goto(path.format(token=link["url"].partition("#")[2]))
        await settled(page, page_log)
        await is_accessible(page, page_log, axe)
        assert not await page.evaluate(_WIDER)
        # an invalid link and a missing session cause these errors
        assert [complaint for complaint in page_log.complaints if "status of 40" not in complaint] == []
        assert page_log.elsewhere(url_of(shared_server)) == []
