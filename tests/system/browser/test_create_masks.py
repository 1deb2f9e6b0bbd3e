"""The mask editor of Create uploads a PNG that keeps the colors and is transparent where it is masked."""

import io
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from PIL import Image
from playwright.async_api import Browser, FilePayload, Locator, expect

from tests.support.chromium import PageDriver, open_page

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]

WIDTH, HEIGHT = 320, 200
CENTER = (WIDTH // 2, HEIGHT // 2)
MASKED, KEPT = 0, 255


def gradient() -> Image.Image:
    image = Image.new("RGB", (WIDTH, HEIGHT))
    image.putdata([(x % 256, y, (x * y) % 256) for y in range(HEIGHT) for x in range(WIDTH)])
    return image


@pytest_asyncio.fixture(loop_scope="session")
async def driver(shared_desk: str, chromium: Browser) -> AsyncIterator[PageDriver]:
    async with open_page(chromium, shared_desk, lands=re.compile("/create")) as driver:
        await driver.choose("Invert an image")
        content = io.BytesIO()
        gradient().save(content, "PNG")
        photo = FilePayload(name="photo.png", mimeType="image/png", buffer=content.getvalue())
        await driver.page.get_by_label("Add images").first.set_input_files(photo)
        yield driver
        await driver.tidy()


async def open_editor(driver: PageDriver, name: str = "photo.png") -> Locator:
    """Open the mask of a picture; return the canvas."""
    button = driver.page.get_by_role("button", name=f"Mask {name}")
    await expect(button).to_be_enabled()
    await button.click(force=True)
    canvas = driver.page.get_by_label("Picture to draw on")
    await expect(canvas).to_be_visible()
    return canvas


async def position(canvas: Locator, x: float, y: float) -> tuple[float, float]:
    """Return the screen position of a pixel of the picture."""
    box = await canvas.bounding_box()
    assert box is not None
    return box["x"] + x * box["width"] / WIDTH, box["y"] + y * box["height"] / HEIGHT


async def draw(driver: PageDriver, canvas: Locator, *points: tuple[float, float]) -> None:
    mouse = driver.page.mouse
    await mouse.move(*await position(canvas, *points[0]))
    await mouse.down()
    for point in points:
        await mouse.move(*await position(canvas, *point))
    await mouse.up()


async def use_mask(driver: PageDriver) -> Image.Image:
    """Save the mask; return the uploaded picture."""
    async with driver.page.expect_response(re.compile("/api/videos/uploads$")) as answer:
        await driver.page.get_by_role("button", name="Use mask").click()
    file_id = (await (await answer.value).json())["data"]["file"]["id"]
    await expect(driver.page.get_by_role("dialog")).to_have_count(0)
    await expect(driver.page.get_by_role("button", name="Mask photo (masked).png")).to_be_enabled()
    stored = await driver.call("GET", f"/api/videos/uploads/{file_id}")
    download = await driver.http.get(stored["url"], headers={"Authorization": ""})
    assert download.is_success, download.text
    image = Image.open(io.BytesIO(download.content))
    image.load()
    assert (image.format, image.mode, image.size) == ("PNG", "RGBA", (WIDTH, HEIGHT))
    # ComfyUI also reads the colors below the mask.
    assert image.convert("RGB").tobytes() == gradient().tobytes()
    return image


def alpha(image: Image.Image, *points: tuple[int, int]) -> list[object]:
    return [image.getchannel("A").getpixel(point) for point in points]


@pytest.mark.journey
async def test_drawn_part_is_transparent_and_keeps_its_colors(driver: PageDriver) -> None:
    canvas = await open_editor(driver)
    await draw(driver, canvas, (100, 100), (220, 100))
    image = await use_mask(driver)
    assert alpha(image, (100, 100), CENTER, (220, 100)) == [MASKED] * 3
    assert alpha(image, (0, 0), (CENTER[0], 20), (319, 199)) == [KEPT] * 3
    await driver.add()
    [job] = (await driver.call("GET", "/api/ai-jobs"))["items"]
    [given] = [field for field in (await driver.call("GET", f"/api/desk/jobs/{job['id']}"))["inputs"] if field["url"]]
    stored = Image.open(io.BytesIO((await driver.http.get(given["url"])).content))
    assert stored.tobytes() == image.tobytes()


async def test_mask_can_be_changed_and_removed_later(driver: PageDriver) -> None:
    canvas = await open_editor(driver)
    await draw(driver, canvas, CENTER)
    await use_mask(driver)
    # The draft survives a reload.
    await driver.page.reload()
    canvas = await open_editor(driver, "photo (masked).png")
    await driver.page.get_by_role("radio", name="Eraser").click()
    await draw(driver, canvas, CENTER)
    await driver.page.get_by_role("radio", name="Brush").click()
    await draw(driver, canvas, (40, 40))
    image = await use_mask(driver)
    assert alpha(image, CENTER, (40, 40)) == [KEPT, MASKED]
    await open_editor(driver, "photo (masked).png")
    await driver.page.get_by_role("button", name="Clear", exact=True).click()
    await driver.page.get_by_role("button", name="Use mask").click()
    await expect(driver.page.get_by_role("button", name="Remove photo.png")).to_be_attached()


async def test_invert_and_undo_change_the_mask(driver: PageDriver) -> None:
    canvas = await open_editor(driver)
    await draw(driver, canvas, CENTER)
    await driver.page.get_by_role("button", name="Invert").click()
    await draw(driver, canvas, CENTER)
    await driver.page.get_by_role("button", name="Undo").click()
    image = await use_mask(driver)
    assert alpha(image, CENTER, (0, 0), (319, 199)) == [KEPT, MASKED, MASKED]


async def test_keys_draw_a_mask(driver: PageDriver) -> None:
    canvas = await open_editor(driver)
    await canvas.focus()
    keyboard = driver.page.keyboard
    await keyboard.down("Space")
    for _step in range(8):
        await keyboard.press("Shift+ArrowRight")
    await keyboard.up("Space")
    # The pen is lifted.
    for _step in range(3):
        await keyboard.press("Shift+ArrowUp")
    image = await use_mask(driver)
    assert alpha(image, CENTER, (310, CENTER[1])) == [MASKED, MASKED]
    assert alpha(image, (0, 0), (319, CENTER[1] - 40)) == [KEPT, KEPT]


async def test_touch_draws_a_mask_on_a_phone(driver: PageDriver) -> None:
    await driver.page.set_viewport_size({"width": 390, "height": 844})
    canvas = await open_editor(driver)
    session = await driver.page.context.new_cdp_session(driver.page)
    for kind, point in (("touchStart", (60, 60)), ("touchMove", (60, 150)), ("touchEnd", None)):
        x, y = await position(canvas, *point) if point else (0, 0)
        points = [{"x": x, "y": y}] if point else []
        await session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    for name in ("Brush", "Eraser", "Undo", "Invert", "Clear", "Use mask"):
        box = await driver.page.get_by_text(name, exact=True).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390
    await expect(driver.page.get_by_role("button", name="Undo")).to_be_enabled()
    image = await use_mask(driver)
    assert alpha(image, (60, 60), (60, 105), (60, 150)) == [MASKED] * 3
    assert alpha(image, CENTER) == [KEPT]
