"""A preset also applies to workflows that have only some of its keys."""

from pathlib import Path
from typing import Any

import av
import pytest
from typer.testing import CliRunner

from comfyrelay.cli.main import app
from comfyrelay.desk.examples import write_sample
from comfyrelay.domain.properties import Property, PropertyType, Role, apply_preset
from tests.support.desk import OpenDesk, copy_initial_data
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


def test_key_applies_to_the_property_with_this_name() -> None:
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
    ids=["out of range", "own value out of range", "fixed", "text", "file"],
)
def test_property_that_does_not_accept_the_value_is_ignored(prop: Property) -> None:
    applied = apply_preset({"steps": 8}, [prop])
    assert (applied.values, applied.ignored) == ({}, ["steps"])
    assert applied.remark == "Not used by this workflow: steps."


# The desk


async def test_batch_uses_matching_preset_keys_and_lists_ignored_ones(desk: OpenDesk) -> None:
    request = {"effect_slug": "image-to-clip", "input_subdir": "examples", "preset": "look-dev"}
    added = await desk.client.add_batch_with_message(request)
    assert added.message == "Submitted. Not used by this workflow: steps, megapixels, profile."
    [job] = [job async for job in desk.client.jobs(batch_id=added.data.id)]
    assert (await desk.ended(job.id)).status == "completed"
    about = await desk.client.about(job.id)
    assert about is not None
    assert {input_.key: input_.value for input_ in about.inputs}["frames"] == 33


def test_explicit_value_wins_over_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(tmp_path / "desk"))
    monkeypatch.setenv("COMFYRELAY_PORT", str(free_port()))
    copy_initial_data(tmp_path / "desk")
    image = write_sample(tmp_path / "desk" / "inputs")
    command = ["run", "image-to-clip", "--input", str(image), "--preset", "look-dev", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, [*command, "--set", "frames=2", "--json"])
    assert result.exit_code == 0, result.output
    assert "Not used by this workflow: steps, megapixels, profile" in result.stderr
    [clip] = tmp_path.glob("*.mp4")
    with av.open(clip) as video:
        assert len(list(video.decode(video=0))) == 2
