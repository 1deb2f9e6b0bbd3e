"""The page of a desk with a script of the user's own: its command is seen before it is run, and kept afterwards."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.desk.test_desk_script import open_desk
from tests.web.looking import Looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAVES_TWO = """
    import pathlib
    print("seed: 18446744073709551615")
    for number in (1, 2):
        path = pathlib.Path(f"made {number}.png").absolute()
        path.write_bytes(PICTURE)
        print("saved:", path)
"""


@pytest_asyncio.fixture(loop_scope="session")
async def desk_url(tmp_path: Path) -> AsyncIterator[str]:
    async with open_desk(tmp_path, SAVES_TWO) as desk:
        yield desk.ready.url


async def test_the_command_is_shown_before_it_is_run_and_what_came_of_it_is_listed(
    looking: Looking, tmp_path: Path
) -> None:
    page = looking.page
    prompt = 'it\'s a "cat" <b>& more</b>'
    await page.keyboard.press("n")
    await page.select_option("#adding-what", label="Script: mine.py")
    await page.get_by_label("Positive", exact=True).fill(prompt)
    await page.get_by_label("Input subdir").fill("nowhere")
    command = page.locator("#adding .command")
    await expect(command).to_contain_text("The folder 'nowhere' cannot be read")
    # nothing is run that was not shown, and what is wrong is said where it is
    await page.get_by_role("button", name="Show command").click()
    await expect(page.locator("[data-key=input_subdir] .field-error")).to_contain_text("cannot be read")
    assert await looking.rows.count() == 0
    await page.get_by_label("Input subdir").fill("cats")
    await page.get_by_role("button", name="Show command").click()
    await expect(page.locator("#adding-submit")).to_have_text("Run job")
    shown = await command.locator("code").all_inner_texts()
    assert shown[1:] == [
        *(str(tmp_path / "mine.py"), "--wait", "--profile", "look-dev"),
        *("--template-api", str(tmp_path / "templates" / "wan.json"), "--input-subdir", "cats"),
        *("--positive", prompt),
    ]
    await expect(command.get_by_label("Arguments").locator("li").last).to_be_in_viewport()
    await page.get_by_role("button", name="Run job").click()
    await looking.status_is("succeeded")
    attempt = looking.pane.locator(".attempts > li")
    await expect(attempt).to_contain_text("seed 18446744073709551615 · exit code 0")
    await attempt.get_by_text("Command", exact=True).click()
    assert await attempt.locator("code").all_inner_texts() == shown
    files = looking.pane.locator(".made a")
    assert await files.all_inner_texts() == ["made 1.png", "made 2.png"]
    for each in await files.all():
        answer = await page.request.get(str(await each.get_attribute("href")))
        assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
    await expect(looking.pane.locator(".others img")).to_have_js_property("naturalWidth", 8)


async def test_several_prompts_are_one_command_and_as_many_jobs(looking: Looking) -> None:
    page = looking.page
    await page.keyboard.press("n")
    await page.select_option("#adding-what", label="Script: mine.py")
    await page.get_by_label("Positive", exact=True).fill("a cat\na dog\na fox")
    await page.get_by_label("One prompt per line").check()
    await page.get_by_role("button", name="Show command").click()
    command = page.locator("#adding .command")
    await expect(command).to_contain_text("Plus 2 more")
    await expect(command.locator("code").last).to_have_text("a cat")
    await page.get_by_role("button", name="Run 3 jobs").click()
    await expect(looking.pane.locator(".item")).to_have_count(3)
