"""`[desk.script]` of the configuration file, with the folders that a desk has by itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from comfyrelay.desk.scripts.command import ScriptSettings, check_settings
from comfyrelay.errors import ConfigurationError
from comfyrelay.settings import load_table

_PATHS = ("python", "script", "working_folder", "input_folder", "template_folder", "output_folder")
_TEMPLATE = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "sample.png"}},
    "2": {
        "class_type": "ImageScale",
        # H.264 needs even sides
        "inputs": {"image": ["1", 0], "upscale_method": "bilinear", "width": 512, "height": 512, "crop": "center"},
    },
    "3": {"class_type": "RepeatImageBatch", "inputs": {"image": ["2", 0], "amount": 24}},
    "4": {"class_type": "CreateVideo", "inputs": {"images": ["3", 0], "fps": 12.0}},
    "5": {
        "class_type": "SaveVideo",
        "inputs": {"video": ["4", 0], "filename_prefix": "video", "format": "mp4", "codec": "h264"},
    },
}


def load_script_table() -> dict[str, Any] | None:
    """From the file only: it says which programs are run here."""
    return load_table("desk", "script")


def script_settings(table: Mapping[str, Any], *, data_dir: Path, input_folder: Path) -> ScriptSettings:
    """The settings with every folder in its place: relative paths begin at the data folder."""
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
        (settings.template_folder / "image-to-clip.json").write_text(json.dumps(_TEMPLATE, indent=2))
    check_settings(settings)
    return settings


def _placed(value: Any, data_dir: Path) -> Any:
    return data_dir / Path(value).expanduser() if isinstance(value, str) else value
