"""The settings page of a desk shows sources, saves changes, tests notifications and signs in a phone."""

import re
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from comfyrelay.desk.desk import Desk
from comfyrelay.desk.password import set_password
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.settings import Settings
from tests.support.chromium import PageDriver, open_page
from tests.support.desk import copy_initial_data, make_desk
from tests.support.server_processes import free_port

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]

PHONE = {"width": 390, "height": 844}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest_asyncio.fixture(loop_scope="session")
async def driver(data_dir: Path, chromium: Browser) -> AsyncIterator[PageDriver]:
    async with (
        make_desk(data_dir, shutdown_seconds=0).open() as (_worker, ready),
        open_page(chromium, ready.url) as driver,
    ):
        yield driver


async def open_sheet(driver: PageDriver, name: str) -> Locator:
    await driver.page.get_by_role("navigation").get_by_role("button", name="Settings").click()
    await driver.page.get_by_role("dialog", name="Settings").get_by_role("button", name=name, exact=True).click()
    sheet = driver.page.get_by_role("dialog", name=name)
    await expect(sheet).to_be_visible()
    return sheet


@pytest.mark.journey
async def test_setting_is_changed_in_the_file_and_applies_at_once(
    driver: PageDriver, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(data_dir.parent))
    for name in ("pictures", ".hidden"):
        (data_dir.parent / name).mkdir()
    sheet = await open_sheet(driver, "Settings")
    await expect(sheet.get_by_text(f"Changes are written to {data_dir / 'comfyrelay.toml'}")).to_be_visible()
    await sheet.get_by_role("checkbox", name="the queue is empty").click()
    await sheet.get_by_role("button", name="Choose Output folder").click()
    dialog = driver.page.get_by_role("dialog", name="Choose a folder")
    await expect(dialog.get_by_role("button", name=".hidden")).to_have_count(0)
    await dialog.get_by_role("button", name="data", exact=True).click()
    await dialog.get_by_role("button", name="Up", exact=True).click()
    await dialog.get_by_role("button", name="pictures", exact=True).click()
    await expect(dialog.get_by_label("This folder")).to_have_text(str(data_dir.parent / "pictures"))
    await dialog.get_by_role("button", name="Use this folder").click()
    await sheet.get_by_role("button", name="Save").click()
    # in tests, the port of a desk differs from the port in its file
    await expect(driver.page.get_by_text("Saved. Restart the desk to apply: Port.", exact=True)).to_be_visible()
    saved = tomllib.loads((data_dir / "comfyrelay.toml").read_text())
    assert saved == {"desk": {"notify_on": ["failed"], "output_folder": str(data_dir.parent / "pictures")}}
    assert (await driver.call("GET", "/api/desk"))["output_folder"] == str(data_dir.parent / "pictures")


async def test_invalid_setting_is_explained_at_its_field(driver: PageDriver, data_dir: Path) -> None:
    sheet = await open_sheet(driver, "Settings")
    await sheet.get_by_label("Names of outputs").fill("{what}")
    await sheet.get_by_role("button", name="Save").click()
    await expect(sheet.get_by_role("alert").filter(has_text="{what} is unknown")).to_be_visible()
    assert not (data_dir / "comfyrelay.toml").exists()


async def test_setting_from_the_environment_is_shown_and_locked(
    driver: PageDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFYRELAY_DESK_OUTPUT_NAMES", "{label}")
    sheet = await open_sheet(driver, "Settings")
    await expect(sheet.get_by_text("Set in the environment: COMFYRELAY_DESK_OUTPUT_NAMES")).to_be_visible()
    await expect(sheet.get_by_label("Names of outputs")).to_be_disabled()


async def test_notification_test_reports_each_address(driver: PageDriver) -> None:
    sheet = await open_sheet(driver, "Settings")
    section = sheet.get_by_role("region", name="Notifications")
    await expect(section.get_by_role("button", name="Test")).to_be_disabled()
    await section.get_by_label("Addresses").fill(f"json://127.0.0.1:{free_port()}/secret")
    await section.get_by_role("button", name="Test").click()
    result = section.get_by_role("status").get_by_role("listitem")
    await expect(result).to_contain_text("json://127.0.0.1")
    await expect(result).not_to_contain_text("secret")


async def test_desk_on_loopback_says_how_a_phone_can_reach_it(driver: PageDriver) -> None:
    sheet = await open_sheet(driver, "Open on a phone")
    await expect(sheet.get_by_text("Only this machine can reach the desk now.")).to_be_visible()
    await expect(sheet.get_by_role("img")).to_have_count(0)


async def test_code_signs_in_a_phone_until_it_signs_out(data_dir: Path, chromium: Browser) -> None:
    set_password(data_dir, "a cat & a hill = 2")
    copy_initial_data(data_dir)
    settings = Settings(data_dir=data_dir, host="0.0.0.0", port=free_port())
    desk = Desk(settings=settings, desk=DeskSettings(shutdown_seconds=0))
    async with desk.open() as (_worker, ready), open_page(chromium, ready.url) as driver:
        sheet = await open_sheet(driver, "Open on a phone")
        code = await sheet.get_by_role("img", name="QR code that opens this desk").bounding_box()
        assert code is not None
        assert abs(code["width"] - code["height"]) < 1
        assert code["width"] >= 200
        link = await sheet.get_by_label("Open on a phone").input_value()
        phone = await chromium.new_context(viewport=PHONE)  # type: ignore[arg-type]
        try:
            page = await phone.new_page()
            await page.goto(link)
            await page.wait_for_url(re.compile("/(create|queue)"))
            await page.get_by_role("navigation").get_by_role("button", name="Settings").click()
            await page.get_by_role("button", name="Sign out").click()
            await expect(page.get_by_label("Password")).to_be_visible()
            await page.goto(link)
            await expect(page.get_by_label("Password")).to_be_hidden()
            assert "/queue" not in page.url
        finally:
            await phone.close()
