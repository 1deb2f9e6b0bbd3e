"""Read `[desk.script]` of the configuration file, and create the default folders."""

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
from comfyrelay.system import atomic
from comfyrelay.system.commands.contained import check_system

_PATHS = ("python", "script", "working_folder", "input_folder", "template_folder", "output_folder")
# Default template and input: an example effect on the sample image.
_TEMPLATE = "image-to-clip"
_VALUES = {"{{INPUT}}": SAMPLE_NAME, "{{FRAMES}}": 24}


def load_script_table(data_dir: Path | None = None) -> dict[str, Any] | None:
    """Read the table from the file only, because it names programs to run."""
    return load_table("desk", "script", data_dir=data_dir)


def script_settings(table: Mapping[str, Any], *, data_dir: Path, input_folder: Path) -> ScriptSettings:
    """Return the settings with absolute folders. Relative paths start at the data folder."""
    check_system()
    given = dict(table)
    for name in _PATHS:
        if isinstance(path := given.get(name), str):
            given[name] = data_dir / Path(path).expanduser()
    defaults = {"working_folder": data_dir / "script", "template_folder": data_dir / "script" / "templates"}
    try:
        settings = ScriptSettings(**{**defaults, "input_folder": input_folder, **given})
    except ValidationError as invalid:
        problems = [f"[desk.script] {'.'.join(map(str, error['loc']))}: {error['msg']}." for error in invalid.errors()]
        raise ConfigurationError("\n".join(problems)) from None
    for name, folder in defaults.items():
        if name not in given:
            folder.mkdir(parents=True, exist_ok=True)
    if "template_folder" not in given and not any(settings.template_folder.glob("[!.]*")):
        atomic.remove_parts(settings.template_folder)
        [example] = [example for example in EXAMPLES if example.slug == _TEMPLATE]
        graph = json.dumps(replace_placeholders(example.graph, _VALUES), indent=2)
        atomic.write(settings.template_folder / f"{_TEMPLATE}.json", graph.encode())
    check_settings(settings)
    return settings
