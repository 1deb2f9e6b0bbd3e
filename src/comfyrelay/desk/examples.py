"""Example effects of a new desk.

All but the text-to-image one need no models and run on any ComfyUI and the simulator.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.system import files

SAMPLE_NAME = "sample.png"


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    slug: str
    name: str
    graph: Graph
    properties: Sequence[Mapping[str, Any]]
    output_node_id: str
    output_extension: str
    output_mime_type: str


# Video examples scale to even sides, which H.264 needs.
EXAMPLES = tuple(Example(**load) for load in json.loads(Path(__file__).with_name("examples.json").read_text("utf-8")))


def sample_picture() -> bytes:
    """An image that shows clearly whether an effect changed it."""
    picture = Image.new("RGB", (512, 512), "#20304a")
    draw = ImageDraw.Draw(picture)
    for number, colour in enumerate(("#f2b134", "#ed553b", "#3caea3", "#f6f4e8")):
        draw.ellipse((60 + number * 80, 60 + number * 60, 220 + number * 80, 220 + number * 60), fill=colour)
    kept = io.BytesIO()
    picture.save(kept, "PNG")
    return kept.getvalue()


def write_sample(folder: Path) -> Path:
    """Put the sample into the input folder once; a user may have deleted it."""
    if not folder.exists():
        # the folder appears complete or not at all
        part = folder.with_name(f".{folder.name}.part")
        sample = part / "examples" / SAMPLE_NAME
        sample.parent.mkdir(parents=True, exist_ok=True)
        sample.write_bytes(sample_picture())
        files.move(part, folder)
    return folder / "examples" / SAMPLE_NAME
