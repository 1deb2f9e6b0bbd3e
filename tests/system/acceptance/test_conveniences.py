"""Presets, batches, file links and notifications."""

import json
from pathlib import Path

import pytest
from playwright.async_api import expect

from comfyrelay.desk.notifications.notifier import why_unusable
from comfyrelay.simulator import Fail
from tests.support.chromium import PageDriver
from tests.support.webhook_receiver import open_receiver
from tests.system.acceptance.script_desk import ScriptDesk, choose_script, open_script_desk

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("name", ["look-dev", "medium", "production"])
async def test_presets_are_applied_with_one_click(desk: ScriptDesk, page: PageDriver, name: str) -> None:
    """There are presets for a quick look, for the final film, and one in between.

    Where: [presets](../howto/desk.md#presets); `desk/startup/first_start.py`
    """
    form = await choose_script(page)
    await form.get_by_label("Positive").fill("a cat")
    await form.get_by_role("textbox", name="Input subdir").fill("cats")
    await form.get_by_role("button", name=name, exact=True).click()
    await expect(form.get_by_role("combobox", name="Profile")).to_have_text(name)
    job_id = await desk.submit_form(page)
    assert (await desk.ended(job_id)).status == "completed"
    argv = (await desk.last_attempt(job_id))["argv"]
    assert argv[argv.index("--profile") + 1] == name


async def test_saved_preset_is_kept(desk: ScriptDesk) -> None:
    """Frequently used values are saved under a name and applied to every job that names it.

    Where: `presets add`, `--preset`
    """
    preset = await desk.client.create_preset("night", {"profile": "production", "tries": 2})
    wish = {"workflow_slug": "script", "input_subdir": "cats", "prompts": ["a cat"], "preset": "night"}
    [job_id] = await desk.items((await desk.client.add_batch(wish)).id)
    await desk.ended(job_id)
    argv = (await desk.last_attempt(job_id))["argv"]
    assert [argv[argv.index(option) + 1] for option in ("--profile", "--tries")] == ["production", "2"]
    await desk.client.remove_preset(preset.id)


async def test_folders_and_prompts_are_combined_into_jobs(desk: ScriptDesk) -> None:
    """Every folder is combined with every prompt: a script gets one job for each pair, a graph one for each file.

    Where: `batch add`, `POST /api/desk/batches`; `desk/batches/expand.py`
    """
    wish = {"input_subdir": ["cats", "dogs"], "prompts": ["by day", "by night"], "seeds": None}
    batch = await desk.client.add_batch({"workflow_slug": "script", **wish, "values": {"randomize_seed": True}})
    assert batch.total == 4
    seen = []
    for job_id in await desk.items(batch.id):
        assert (await desk.ended(job_id)).status == "completed"
        argv = (await desk.last_attempt(job_id))["argv"]
        seen.append(tuple(argv[argv.index(option) + 1] for option in ("--input-subdir", "--positive")))
    assert seen == [("cats", "by day"), ("cats", "by night"), ("dogs", "by day"), ("dogs", "by night")]
    batch = await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": ["cats", "dogs"]})
    assert [(await desk.ended(item)).label for item in await desk.items(batch.id)] == ["cat", "dog"]


async def test_job_can_have_its_own_output_folder(desk: ScriptDesk) -> None:
    """Outputs go to a chosen place inside the output folder, with readable names.

    Where: `output_folder`, `--output-folder`; `desk/batches/output_copies.py`
    """
    wish = {"effect_slug": "invert-image", "input_subdir": "cats", "output_folder": "film/scene 1"}
    [job_id] = await desk.items((await desk.client.add_batch(wish)).id)
    await desk.ended(job_id)
    assert [path.name for path in (desk.desk.output_folder / "film" / "scene 1").iterdir()] == ["0001_cat.png"]


async def test_generated_files_are_linked_directly(desk: ScriptDesk, page: PageDriver) -> None:
    """Each file of a run has a link on the page and a known path on disk.

    Where: `desk/batches/run_files.py`
    """
    job_id = await desk.script(tries=2, randomize_seed=True)
    await desk.ended(job_id)
    files = (await desk.about(job_id)).files
    assert len(files) == 2
    for file in files:
        assert (await desk.http.get(file.url or "")).content == Path(file.path).read_bytes()
    await page.open_job(job_id)
    for file in files:
        link = page.page.get_by_role("link", name=file.name)
        await expect(link).to_have_attribute("download", file.name)
        answer = await page.page.request.get(str(await link.get_attribute("href")))
        assert await answer.body() == Path(file.path).read_bytes()
    await expect(page.page.get_by_text(f"in {Path(files[0].path).parent}", exact=True)).to_be_visible()


async def test_completion_and_failure_are_notified(tmp_path: Path) -> None:
    """A webhook reports completion and failure as text.

    Where: [notifications](../howto/notifications.md); `desk/notifications/sender.py`
    """
    async with open_receiver() as receiver:
        url = receiver.url.replace("http://", "json://")
        async with open_script_desk(tmp_path, notify_urls=[url], notify_on=["completed", "failed"]) as script_desk:
            await script_desk.ended(await script_desk.graph("cat"))
            await receiver.wait_for(1)
            script_desk.simulator.misbehave(Fail(class_type="ImageInvert", message="The sides differ."))
            await script_desk.ended(await script_desk.graph("dog"))
            await receiver.wait_for(2)
    assert [json.loads(body)["title"] for _, body in receiver.received] == ["cat is done", "dog failed"]
    assert "The sides differ." in json.loads(receiver.received[1][1])["message"]


@pytest.mark.parametrize(
    ("url", "but"),
    [
        # a machine without a screen has no desktop notifications
        ("desktop://", "cannot be used on this machine"),
        ("tgram://123456789:AbCdEfGhIjKlMnOpQrStUvWxYz1234567890/987654321", ""),
        ("jsons://example.org/hook", ""),
    ],
    ids=["desktop", "telegram", "webhook"],
)
async def test_desktop_telegram_and_webhook_are_supported(url: str, but: str) -> None:
    """Desktop, Telegram and webhook services can be set for the desk or for a batch.

    Where: `desk/notifications/notifier.py`
    """
    why = why_unusable(url)
    assert why is None or (but and but in why)
