"""Forms are built from graphs, with field order, accepted values and linked values."""

import json
from typing import Any

import pytest
from playwright.async_api import Locator, expect

from tests.support.chromium import PROMPT_GRAPH, PageDriver
from tests.support.editor_files import node, save, workflow
from tests.support.form_graphs import WAN_22

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def dropped(driver: PageDriver, name: str, graph: object) -> Locator:
    await driver.page.goto("/create")
    await expect(driver.page.get_by_role("form")).to_be_visible()
    await driver.drop((f"{name}.json", "application/json", json.dumps(graph).encode()))
    form = driver.page.get_by_role("form", name=name, exact=True)
    await expect(form).to_be_visible()
    return form


async def test_dropped_graph_becomes_a_form_with_node_ranges_and_choices(shared: PageDriver) -> None:
    form = await dropped(shared, "portrait", PROMPT_GRAPH)
    await expect(form.get_by_label("Prompt", exact=True)).to_have_value("a lake")
    await expect(form.get_by_label("Negative prompt")).to_have_value("blurry")
    # by default each run gets a new seed
    await expect(form.get_by_role("textbox", name="Seed")).to_have_value("")
    shown = form.locator("[data-field]:not(details *)")
    keys = await shown.evaluate_all("all => all.map(element => element.dataset.field)")
    assert {*keys} >= {"prompt", "negative_prompt", "seed", "width", "height", "steps", "tries"}
    assert keys[:2] == ["prompt", "negative_prompt"]
    steps = form.get_by_role("textbox", name="Steps")
    for wrong, why in (
        ("many", "Enter a number."),
        ("1.5", "Enter a whole number."),
        ("0", "Must be at least 1."),
        ("10001", "Must be at most 10000."),
    ):
        await steps.fill(wrong)
        await shared.plan.get_by_role("button", name="Add job").click()
        await expect(form.get_by_role("alert")).to_have_text(why)
    await steps.fill("8")
    await steps.press("ArrowUp")
    await expect(steps).to_have_value("9")
    await form.locator("summary", has_text="Sampler").click()
    await form.get_by_role("combobox", name="Sampler", exact=True).click()
    await expect(shared.page.get_by_role("option", name="euler", exact=True)).to_be_visible()


def with_app_view() -> dict[str, Any]:
    """Return the same graph as the editor saves it, with four inputs for the app view."""
    loader = PROMPT_GRAPH["1"]["inputs"]["ckpt_name"]
    sampler = [("model", "MODEL", 1), ("positive", "CONDITIONING", 4), ("negative", "CONDITIONING", 5)]
    renamed = {"name": "height", "type": "INT", "link": None, "widget": {"name": "height"}, "label": "How high"}
    nodes = [
        node(4, "CheckpointLoaderSimple", values=[loader]),
        node(6, "CLIPTextEncode", [("clip", "CLIP", 2)], values=["a lake"]),
        node(7, "CLIPTextEncode", [("clip", "CLIP", 3)], values=["blurry"]),
        node(5, "EmptyLatentImage", values=[64, 64, 1]) | {"inputs": [renamed]},
        node(
            3,
            "KSampler",
            [*sampler, ("latent_image", "LATENT", 6)],
            values=[7, "fixed", 4, 8, "euler", "normal", 1],
        ),
        node(8, "VAEDecode", [("samples", "LATENT", 7), ("vae", "VAE", 8)]),
        save(9, 9),
    ]
    links = [(1, 4, 0, 3, 0), (2, 4, 1, 6, 0), (3, 4, 1, 7, 0), (4, 6, 0, 3, 1), (5, 7, 0, 3, 2), (6, 5, 0, 3, 3)]
    links += [(7, 3, 0, 8, 0), (8, 4, 2, 8, 1), (9, 8, 0, 9, 0)]
    inputs = [[5, "height"], [3, "cfg"], [6, "text"], [3, "steps"]]
    return workflow(nodes, links, extra={"linearData": {"inputs": inputs, "outputs": [9]}})


async def test_app_view_of_an_author_is_the_form_from_top_to_bottom(shared: PageDriver) -> None:
    form = await dropped(shared, "app", with_app_view())
    labels = ["How high", "cfg", "text", "steps"]
    boxes = [await form.get_by_role("textbox", name=label, exact=True).bounding_box() for label in labels]
    places = [(box["y"], box["x"]) for box in boxes if box is not None]
    assert len(places) == 4
    assert places == sorted(places)
    keys = await form.locator("[data-field]").evaluate_all("all => all.map(element => element.dataset.field)")
    assert keys == ["height", keys[1], "prompt", "steps", "tries"]
    await form.get_by_role("textbox", name="Variations").fill("2")
    await shared.add("Add 2 jobs", count=2)


async def test_prompt_lines_and_attempts_multiply_and_name_their_jobs(shared: PageDriver) -> None:
    form = await dropped(shared, "portrait", PROMPT_GRAPH)
    await form.get_by_label("Prompt", exact=True).fill("a lake\n\n  a hill \n")
    await form.get_by_role("textbox", name="Variations").fill("2")
    await expect(shared.plan).to_contain_text("2 prompts × 2 variations = 4 jobs")
    await shared.add("Add 4 jobs", count=4)
    jobs = (await shared.call("GET", "/api/ai-jobs"))["items"]
    assert {job["label"] for job in jobs} == {f"{words} · try {n}" for words in ("a lake", "a hill") for n in (1, 2)}


async def test_preset_keeps_all_digits_of_a_seed(shared: PageDriver) -> None:
    form = await dropped(shared, "portrait", PROMPT_GRAPH)
    seed = form.get_by_role("textbox", name="Seed")
    await seed.fill("18446744073709551615")
    await form.get_by_role("button", name="Save values as preset…").click()
    dialog = shared.page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("my look")
    await shared.page.keyboard.press("Enter")
    await expect(dialog).to_be_hidden()
    await seed.fill("1")
    await form.get_by_role("button", name="my look", exact=True).click()
    await expect(seed).to_have_value("18446744073709551615")


async def test_sampler_boundary_follows_the_steps_until_it_is_set(shared: PageDriver) -> None:
    form = await dropped(shared, "wan", WAN_22)
    border = form.get_by_label("Switch to low-noise sampler at step", exact=True)
    await expect(border).to_have_value("10")
    await form.get_by_role("button", name="look-dev", exact=True).click()
    steps = form.get_by_role("textbox", name="Steps", exact=True)
    await expect(steps).to_have_value("8")
    await expect(border).to_have_value("4")
    await form.locator("summary", has_text="switch to low-noise sampler").click()
    await border.fill("3")
    await steps.fill("30")
    await expect(border).to_have_value("3")
