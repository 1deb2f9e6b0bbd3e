"""`[desk.script]` of the configuration file, with default folders."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from comfyrelay.comfyui.graphs.graph import replace_placeholders
from comfyrelay.configuration import load_table
from comfyrelay.desk.examples import EXAMPLES, SAMPLE_NAME
from comfyrelay.desk.scripts.command import ScriptSettings, check_settings
from comfyrelay.errors import ConfigurationError
from comfyrelay.system.commands.contained import check_system

_PATHS = ("python", "script", "working_folder", "input_folder", "template_folder", "output_folder")
# Default template and input: an example effect on the sample image.
_TEMPLATE = "image-to-clip"
_VALUES = {"{{INPUT}}": SAMPLE_NAME, "{{FRAMES}}": 24}


def load_script_table() -> dict[str, Any] | None:
    """Read from the file only, because it names programs to run."""
    return load_table("desk", "script")


def script_settings(table: Mapping[str, Any], *, data_dir: Path, input_folder: Path) -> ScriptSettings:
    """Return the settings with absolute folders; relative paths start at the data folder."""
    check_system()
    given = {key: _placed(value, data_dir) if key in _PATHS else value for key, value in table.items()}
    made = {"working_folder": data_dir / "script", "template_folder": data_dir / "script" / "templates"}
    try:
        settings = ScriptSettings(**{**made, "input_folder": input_folder, **given})
    except ValidationError as error:
        problems = [f"[desk.script] {'.'.join(map(str, each['loc']))}: {each['msg']}." for each in error.errors()]
        raise ConfigurationError("\n".join(problems)) from None
    for name, folder in made.items():
        if name not in given:
            folder.mkdir(parents=True, exist_ok=True)
    if "template_folder" not in given and not any(settings.template_folder.iterdir()):
        [graph] = [replace_placeholders(each.graph, _VALUES) for each in EXAMPLES if each.slug == _TEMPLATE]
        (settings.template_folder / f"{_TEMPLATE}.json").write_text(json.dumps(graph, indent=2), "utf-8")
    check_settings(settings)
    return settings


def _placed(value: Any, data_dir: Path) -> Any:
    return data_dir / Path(value).expanduser() if isinstance(value, str) else value
