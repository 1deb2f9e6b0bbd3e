"""Effects that every desk begins with. They need no models, so they run on any ComfyUI, and on the stand-in."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from comfyrelay.comfy.graphs.graph import Graph

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


def _input(kind: str) -> dict[str, Any]:
    return {
        "key": kind,
        "type": kind,
        "placeholder": "{{INPUT}}",
        "required": True,
        "user_configurable": True,
        "is_primary_input": True,
    }


def _saved_video(source: str) -> dict[str, Any]:
    return {
        "class_type": "SaveVideo",
        "inputs": {"video": [source, 0], "filename_prefix": "video", "format": "mp4", "codec": "h264"},
    }


EXAMPLES = (
    Example(
        slug="invert-image",
        name="Invert an image",
        graph={
            "1": {"class_type": "LoadImage", "inputs": {"image": "{{INPUT}}"}},
            "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
            "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "inverted"}},
        },
        properties=[_input("image")],
        output_node_id="3",
        output_extension="png",
        output_mime_type="image/png",
    ),
    Example(
        slug="image-to-clip",
        name="Make a short clip of an image",
        graph={
            "1": {"class_type": "LoadImage", "inputs": {"image": "{{INPUT}}"}},
            "2": {
                "class_type": "ImageScale",
                "inputs": {
                    "image": ["1", 0],
                    "upscale_method": "bilinear",
                    # H.264 needs even sides
                    "width": 512,
                    "height": 512,
                    "crop": "center",
                },
            },
            "3": {"class_type": "RepeatImageBatch", "inputs": {"image": ["2", 0], "amount": "{{FRAMES}}"}},
            "4": {"class_type": "CreateVideo", "inputs": {"images": ["3", 0], "fps": 12.0}},
            "5": _saved_video("4"),
        },
        properties=[
            _input("image"),
            {
                "key": "frames",
                "type": "number",
                "placeholder": "{{FRAMES}}",
                "default_value": 24,
                "minimum": 1,
                "user_configurable": True,
            },
        ],
        output_node_id="5",
        output_extension="mp4",
        output_mime_type="video/mp4",
    ),
    Example(
        slug="invert-video",
        name="Invert a video",
        graph={
            "1": {"class_type": "LoadVideo", "inputs": {"file": "{{INPUT}}"}},
            "2": {"class_type": "GetVideoComponents", "inputs": {"video": ["1", 0]}},
            "3": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
            "4": {
                "class_type": "CreateVideo",
                "inputs": {"images": ["3", 0], "fps": ["2", 2], "audio": ["2", 1]},
            },
            "5": _saved_video("4"),
        },
        properties=[_input("video")],
        output_node_id="5",
        output_extension="mp4",
        output_mime_type="video/mp4",
    ),
)


def sample_picture() -> bytes:
    """A picture on which one sees whether something was done to it."""
    picture = Image.new("RGB", (512, 512), "#20304a")
    draw = ImageDraw.Draw(picture)
    for number, colour in enumerate(("#f2b134", "#ed553b", "#3caea3", "#f6f4e8")):
        draw.ellipse((60 + number * 80, 60 + number * 60, 220 + number * 80, 220 + number * 60), fill=colour)
    kept = io.BytesIO()
    picture.save(kept, "PNG")
    return kept.getvalue()


def write_sample(folder: Path) -> Path:
    """Put the sample where batches look for inputs, once; somebody may have removed it on purpose."""
    if not folder.exists():
        # the folder appears with what is in it, or not at all
        part = folder.with_name(f".{folder.name}.part")
        sample = part / "examples" / SAMPLE_NAME
        sample.parent.mkdir(parents=True, exist_ok=True)
        sample.write_bytes(sample_picture())
        part.rename(folder)
    return folder / "examples" / SAMPLE_NAME
