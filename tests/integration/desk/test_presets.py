"""Presets: a new desk has three, and each works with workflows that have only some of its keys."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from comfyrelay.cli.main import app
from comfyrelay.client import Client
from comfyrelay.desk.examples import write_sample
from comfyrelay.domain.properties import Property, PropertyType, Role, apply_preset
from tests.support.desk import OpenDesk, copy_initial_data, make_desk
from tests.support.server_processes import free_port


def number(key: str, **more: Any) -> Property:
    return Property(key=key, type=PropertyType.NUMBER, placeholder=key, **{"user_configurable": True, **more})


def steps(key: str, **more: Any) -> Property:
    return number(key, role=Role.STEPS, **more)


# The rule


def test_key_applies_to_all_properties_with_this_role() -> None:
    found = [steps("steps"), steps("refiner"), number("footsteps"), number("ksampler_steps")]
    applied = apply_preset({"steps": 8}, found)
    assert (applied.values, applied.ignored) == ({"steps": 8, "refiner": 8}, [])


def test_key_is_meant_for_the_property_of_that_name() -> None:
    assert apply_preset({"ksampler_cfg": 2}, [number("ksampler_cfg"), number("cfg")]).values == {"ksampler_cfg": 2}


def test_property_name_wins_over_the_role() -> None:
    for preset in ({"steps": 8, "low": 4}, {"low": 4, "steps": 8}):
        assert apply_preset(preset, [steps("high"), steps("low")]).values == {"high": 8, "low": 4}


@pytest.mark.parametrize(
    "prop",
    [
        steps("sampler_steps", maximum=4),
        steps("steps", maximum=4),
        steps("sampler_steps", user_configurable=False),
        Property(key="sampler_steps", type=PropertyType.TEXT, role=Role.STEPS, placeholder="p", user_configurable=True),
        Property(key="steps", type=PropertyType.IMAGE, role=Role.STEPS, placeholder="p", user_configurable=True),
    ],
    ids=["out of range", "its own out of range", "fixed", "a text", "a file"],
)
def test_property_that_cannot_take_the_value_is_ignored(prop: Property) -> None:
    applied = apply_preset({"steps": 8}, [prop])
    assert (applied.values, applied.ignored) == ({}, ["steps"])
    assert applied.remark == "Not used by this workflow: steps."


# The desk


async def test_new_desk_has_three_presets_and_a_second_start_leaves_them_alone(tmp_path: Path) -> None:
    async with make_desk(tmp_path, is_new=True).open() as (_, ready), Client(ready.url) as client:
        assert [preset.name for preset in await client.presets()] == ["look-dev", "medium", "production"]
        await client.remove_preset((await client.preset("medium")).id)
    async with make_desk(tmp_path).open() as (_, ready), Client(ready.url) as client:
        assert [preset.name for preset in await client.presets()] == ["look-dev", "production"]


async def test_batch_uses_matching_preset_keys_and_lists_ignored_ones(desk: OpenDesk) -> None:
    wish = {"effect_slug": "image-to-clip", "input_subdir": "examples", "preset": "look-dev"}
    added = await desk.client.add_batch_with_message(wish)
    assert added.message == "Submitted. Not used by this workflow: steps, megapixels, profile."
    [job] = [each async for each in desk.client.jobs(batch_id=added.data.id)]
    assert (await desk.ended(job.id)).status == "completed"
    about = await desk.client.about(job.id)
    assert about is not None
    assert {input_.key: input_.value for input_ in about.inputs}["frames"] == 33


def test_explicit_value_wins_over_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(tmp_path / "desk"))
    monkeypatch.setenv("COMFYRELAY_PORT", str(free_port()))
    copy_initial_data(tmp_path / "desk")
    picture = write_sample(tmp_path / "desk" / "inputs")
    runner = CliRunner()
    for more in ([], ["--set", "frames=2"]):
        command = ["run", "image-to-clip", "--input", str(picture), "--preset", "look-dev", "--out", str(tmp_path)]
        ran = runner.invoke(app, [*command, *more, "--json"])
        assert ran.exit_code == 0, ran.output
        assert "Not used by this workflow: steps, megapixels, profile" in ran.stderr
    assert len(list(tmp_path.glob("*.mp4"))) == 2
    sizes = sorted(each.stat().st_size for each in tmp_path.glob("*.mp4"))
    assert sizes[0] < sizes[1]
