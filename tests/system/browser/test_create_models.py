"""The Create page has a model browser with pictures, recently used models and trigger words."""

import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from PIL import Image
from playwright.async_api import Browser, Locator, expect

from comfyrelay.simulator import Simulator
from tests.support.chromium import PageDriver, open_page
from tests.support.desk import make_desk
from tests.support.model_folder import INK, LORA_GRAPH, LORAS, MODELS, write_models

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]


@pytest_asyncio.fixture(loop_scope="session")
async def driver(tmp_path: Path, chromium: Browser) -> AsyncIterator[PageDriver]:
    """Open the Create page of a desk whose ComfyUI has LoRAs."""
    write_models(tmp_path / "comfyui")
    async with (
        Simulator(folder=tmp_path / "comfyui", models=MODELS) as simulator,
        make_desk(tmp_path / "data", comfyui_url=simulator.url, shutdown_seconds=0).open() as (_worker, ready),
        open_page(chromium, ready.url) as driver,
    ):
        await driver.call("POST", "/api/workflows", {"graph": LORA_GRAPH, "name": "inked"})
        yield driver


async def open_models(driver: PageDriver) -> tuple[Locator, Locator]:
    """Open the models of the form; return the form and the LoRA field."""
    form = await driver.choose("inked")
    await form.get_by_text("Models", exact=True).click()
    return form, form.locator("[data-field*=lora]")


@pytest.mark.journey
async def test_model_is_chosen_by_its_picture_and_listed_first_afterwards(driver: PageDriver) -> None:
    _form, field = await open_models(driver)
    await field.get_by_role("combobox").click()
    dialog = driver.page.get_by_role("dialog")
    await expect(dialog.get_by_role("option")).to_have_count(len(LORAS))
    await expect(dialog.get_by_text("people", exact=True)).to_be_visible()
    picture = dialog.get_by_role("option", name=LORAS[0]).locator("img")
    await expect(picture).to_have_js_property("complete", value=True)
    shown = Image.open(io.BytesIO(await picture.screenshot())).convert("RGB")
    assert shown.getpixel((shown.width // 2, shown.height // 2)) == tuple(bytes.fromhex(INK[1:]))
    # a model without a picture has an icon
    await expect(dialog.get_by_role("option", name=LORAS[1]).locator("img")).to_have_count(0)
    await driver.page.keyboard.type("ANNA")
    await expect(dialog.get_by_role("option")).to_have_count(1)
    await driver.page.keyboard.press("Enter")
    await expect(dialog).to_have_count(0)
    await expect(field.get_by_role("combobox")).to_have_text(LORAS[1])
    await driver.page.reload()
    _form, field = await open_models(driver)
    await field.get_by_role("combobox").click()
    await expect(dialog.get_by_text("Recently used")).to_be_visible()
    await expect(dialog.get_by_role("option").first).to_have_accessible_name(LORAS[1])


async def test_trigger_words_of_the_chosen_lora_are_added_to_the_prompt(driver: PageDriver) -> None:
    form, field = await open_models(driver)
    words = field.get_by_role("group", name="Trigger words of")
    await expect(words).to_contain_text("inkwash")
    await words.get_by_role("button", name="inkwash").click()
    await expect(form.get_by_role("textbox", name="Prompt", exact=True)).to_have_value("a lake, inkwash")
    await expect(words.get_by_role("button", name="inkwash")).to_be_disabled()
    await field.get_by_role("combobox").click()
    await driver.page.get_by_role("option", name=LORAS[1]).click()
    await expect(words).to_contain_text("anna person")
    await expect(words).not_to_contain_text("inkwash")


async def test_list_of_models_fits_a_phone(driver: PageDriver) -> None:
    await driver.page.set_viewport_size({"width": 390, "height": 844})
    _form, field = await open_models(driver)
    await field.get_by_role("combobox").click()
    dialog = driver.page.get_by_role("dialog")
    for name in LORAS:
        box = await dialog.get_by_role("option", name=name).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
