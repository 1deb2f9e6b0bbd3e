"""Example effects of a new desk.

All except text-to-image need no models, so they run on any ComfyUI and the simulator.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


# The video examples scale to even sides, which H.264 requires.
EXAMPLES = tuple(
    Example(**fields) for fields in json.loads(Path(__file__).with_name("examples.json").read_text("utf-8"))
)


def sample_image() -> bytes:
    """Return a PNG that clearly shows whether an effect changed it."""
    from PIL import Image, ImageDraw  # noqa: PLC0415 - only a first start draws

    image = Image.new("RGB", (512, 512), "#20304a")
    draw = ImageDraw.Draw(image)
    for number, colour in enumerate(("#f2b134", "#ed553b", "#3caea3", "#f6f4e8")):
        draw.ellipse((60 + number * 80, 60 + number * 60, 220 + number * 80, 220 + number * 60), fill=colour)
    png = io.BytesIO()
    image.save(png, "PNG")
    return png.getvalue()


def write_sample(folder: Path) -> Path:
    """Create the input folder with the sample. In an existing folder, the user may have deleted the sample."""
    if not folder.exists():
        # The folder becomes visible only when it is complete.
        part = folder.with_name(f".{folder.name}.part")
        sample = part / "examples" / SAMPLE_NAME
        sample.parent.mkdir(parents=True, exist_ok=True)
        sample.write_bytes(sample_image())
        files.move(part, folder)
    return folder / "examples" / SAMPLE_NAME
