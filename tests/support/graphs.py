"""Graphs that run without models, and small inputs for them."""

from comfyrelay.comfyui.graphs.graph import Graph
from tests.support.paths import RECORDINGS

PNG = (RECORDINGS / "rec.png").read_bytes()
MP4 = (RECORDINGS / "clip.mp4").read_bytes()


def invert(color: int = 7, *, prefix: str = "ComfyUI") -> Graph:
    """Return a graph that inverts and saves a plain image; another colour gives another result of the same workflow."""
    return {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": color}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": prefix}},
    }


def five_images() -> Graph:
    """Return a graph that saves a batch of four images (node 3) and one more image (node 5)."""
    graph = invert()
    graph["1"]["inputs"]["batch_size"] = 4
    graph["4"] = {"class_type": "EmptyImage", "inputs": {"width": 32, "height": 16, "batch_size": 1, "color": 255}}
    graph["5"] = {"class_type": "SaveImage", "inputs": {"images": ["4", 0], "filename_prefix": "second"}}
    return graph


def invert_file(name: str = "none.png") -> Graph:
    return invert() | {"1": {"class_type": "LoadImage", "inputs": {"image": name}, "_meta": {"title": "Input"}}}


def clip(width: int = 32, *, frames: int = 4) -> Graph:
    """Return a graph that saves an image as an mp4 (node 5) and a webm (node 6)."""
    return {
        "1": {"class_type": "EmptyImage", "inputs": {"width": width, "height": 32, "batch_size": frames, "color": 255}},
        "4": {"class_type": "CreateVideo", "inputs": {"images": ["1", 0], "fps": 8.0}},
        "5": {
            "class_type": "SaveVideo",
            "inputs": {"video": ["4", 0], "filename_prefix": "clip", "format": "mp4", "codec": "h264"},
        },
        "6": {
            "class_type": "SaveWEBM",
            "inputs": {"images": ["1", 0], "filename_prefix": "web", "codec": "vp9", "fps": 8.0, "crf": 32.0},
        },
    }


def invert_video(name: str = "none.mp4") -> Graph:
    return {
        "1": {"class_type": "LoadVideo", "inputs": {"file": name}},
        "2": {"class_type": "GetVideoComponents", "inputs": {"video": ["1", 0]}},
        "3": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
        "4": {"class_type": "CreateVideo", "inputs": {"images": ["3", 0], "fps": ["2", 2], "audio": ["2", 1]}},
        "5": {
            "class_type": "SaveVideo",
            "inputs": {"video": ["4", 0], "filename_prefix": "inv", "format": "mp4", "codec": "h264"},
        },
    }


def saved_text(file_format: str = "txt") -> Graph:
    inputs = {"text": ["1", 0], "filename_prefix": "note", "format": file_format}
    return {
        "1": {"class_type": "PrimitiveString", "inputs": {"value": "a note"}},
        "2": {"class_type": "SaveText", "inputs": inputs},
    }


def words(text: str = "hello") -> Graph:
    return {"1": {"class_type": "PreviewAny", "inputs": {"source": text}}}
