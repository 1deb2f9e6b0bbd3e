"""The documentation of scripts matches the code."""

import re
import tomllib

import pytest

from comfyrelay.desk.scripts.batch_i2v import PROFILES
from comfyrelay.desk.scripts.command import ScriptSettings
from comfyrelay.protocol.desk import ScriptJob
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "howto" / "scripts.md").read_text("utf-8")


@pytest.mark.parametrize("name", [*ScriptSettings.model_fields, *ScriptJob.model_fields])
def test_every_setting_and_field_is_documented(name: str) -> None:
    assert re.search(rf"^\|[^|]*`{name}`", PAGE, re.M)


@pytest.mark.parametrize("name", ["grace_seconds", "max_log_bytes"])
def test_defaults_are_documented(name: str) -> None:
    assert f"| `{name}` | `{ScriptSettings.model_fields[name].default}` |" in PAGE


def test_configuration_on_the_page_is_valid() -> None:
    [example] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)
    settings = ScriptSettings(**tomllib.loads(example)["desk"]["script"])
    assert settings.profile == "look-dev"
    assert settings.extra_options == {"--seed": "[0-9]+", "--upscale": ""}


def test_shipped_script_has_the_default_profiles() -> None:
    assert list(PROFILES) == ScriptSettings().profiles
