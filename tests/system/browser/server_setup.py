"""Set up an empty server in a browser."""

import re
from collections.abc import Awaitable, Callable

from playwright.async_api import Page, expect

from tests.support.api import PASSWORD

__all__ = ["PRINTED", "set_up"]

# The address that the server prints at startup, which contains the setup code.
PRINTED = re.compile(r"open (http://\S+/setup#([A-Z2-7-]+))")


async def _nothing(_step: str) -> None: ...


async def set_up(
    page: Page,
    start_worker: Callable[[str], Awaitable[None]],
    inspect_step: Callable[[str], Awaitable[None]] = _nothing,
    *,
    fleet: str = "attic",
) -> None:
    """Run the setup from the first step, with the code filled in, to the result of the first job.

    `start_worker` runs the command that the page shows; `inspect_step` inspects each step before it is filled in.
    """

    async def step_is(name: str) -> None:
        await expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
        await inspect_step(name.rpartition(" ")[2].lower())

    await step_is("Administrator")
    await page.get_by_label("Email").fill("root@example.com")
    await page.get_by_label("Password", exact=True).fill(PASSWORD)
    await page.get_by_role("button", name="Create administrator").click()

    await step_is("Storage")
    await expect(page.get_by_text("Upload and download work.")).to_be_visible()
    await page.get_by_role("button", name="Continue").click()

    await step_is("First fleet")
    await page.get_by_label("Name").fill(fleet)
    await page.get_by_role("button", name="Create fleet").click()

    await step_is("First worker")
    await expect(page.get_by_text("Waiting for the first worker…")).to_be_visible()
    # the secret is masked until it is requested, as in the console
    shown = page.locator("code", has_text="FLEET_SECRET")
    masked = await shown.inner_text()
    await page.get_by_role("button", name="Show secret").click()
    command = await shown.inner_text()
    assert f"FLEET_SLUG={fleet}" in command
    assert masked != command
    await start_worker(command)
    await expect(page.get_by_text(" connected")).to_be_visible()
    # a reopened setup continues at the same step
    await page.goto("/setup")
    await step_is("First effect")
    await page.get_by_role("button", name="Publish effect").click()

    await step_is("First job")
    await page.get_by_role("button", name="Run first job").click()
    await expect(page.get_by_role("heading", name="Setup complete")).to_be_visible()
    after = page.get_by_role("img", name="After")
    await expect(after).to_be_visible()
    assert await after.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 512
    # returning to the step does not run and charge a second job
    await page.goto("/setup")
    await expect(page.get_by_role("heading", name="Setup complete")).to_be_visible()
    await expect(page.get_by_role("button", name="Run first job")).to_have_count(0)
