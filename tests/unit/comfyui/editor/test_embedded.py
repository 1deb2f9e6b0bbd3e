"""Workflows embedded by ComfyUI are found in every kind of file."""

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from comfyrelay.comfyui.editor import embedded
from comfyrelay.comfyui.editor.embedded import Embedded, read_embedded
from comfyrelay.comfyui.editor.loading import load_workflow
from comfyrelay.comfyui.graphs.graph import MAX_BYTES
from comfyrelay.errors import GraphError
from tests.support.editor_files import empty, save, workflow

GRAPH: dict[str, Any] = {"1": {"class_type": "EmptyImage", "inputs": {"width": 64, "note": "für Élise 猫"}}}
WORKFLOW = workflow([empty(), save(2, 1)], [(1, 1, 0, 2, 0)])
BOTH = Embedded(graph=GRAPH, workflow=WORKFLOW)
PROMPT_TEXT, WORKFLOW_TEXT = json.dumps(GRAPH), json.dumps(WORKFLOW)
# The format of video savers: JSON texts within a JSON text.
COMMENT = json.dumps({"prompt": PROMPT_TEXT, "workflow": WORKFLOW})


def picture() -> Image.Image:
    return Image.new("RGB", (8, 8), "red")


def png(path: Path) -> None:
    info = PngInfo()
    info.add_text("prompt", PROMPT_TEXT)
    info.add_text("workflow", WORKFLOW_TEXT)
    picture().save(path, pnginfo=info)


def png_compressed(path: Path) -> None:
    info = PngInfo()
    info.add_text("prompt", PROMPT_TEXT, zip=True)
    info.add_itxt("workflow", WORKFLOW_TEXT, zip=True)
    picture().save(path, pnginfo=info)


def png_animated(path: Path) -> None:
    info = PngInfo()
    info.add(b"comf", b"prompt\0" + PROMPT_TEXT.encode(), after_idat=True)
    info.add(b"comf", b"workflow\0" + WORKFLOW_TEXT.encode(), after_idat=True)
    picture().save(path, pnginfo=info, save_all=True, append_images=[picture()])


def exif() -> Image.Exif:
    tags = Image.Exif()
    tags[0x0110] = f"prompt:{PROMPT_TEXT}"
    tags[0x010F] = f"workflow:{WORKFLOW_TEXT}"
    return tags


def webp(path: Path) -> None:
    picture().save(path, exif=exif())


def jpeg(path: Path) -> None:
    picture().save(path, exif=exif())


def jpeg_comment(path: Path) -> None:
    picture().save(path, comment=COMMENT)


def gif(path: Path) -> None:
    picture().save(path, comment=COMMENT, save_all=True, append_images=[Image.new("RGB", (8, 8), "blue")])


def video(path: Path, **metadata: str) -> None:
    options = {"movflags": "use_metadata_tags"} if path.suffix == ".mp4" else {}
    with av.open(str(path), "w", options=options) as container:
        container.metadata.update(metadata)
        stream = container.add_stream("libvpx-vp9" if path.suffix in (".webm", ".mkv") else "libx264", rate=8)
        stream.width = stream.height = 16
        stream.pix_fmt = "yuv420p"
        for packet in stream.encode(av.VideoFrame(16, 16, "yuv420p")):
            container.mux(packet)
        container.mux(stream.encode(None))


def video_tags(path: Path) -> None:
    video(path, prompt=PROMPT_TEXT, workflow=WORKFLOW_TEXT)


def video_comment(path: Path) -> None:
    video(path, comment=COMMENT)


def sound(path: Path) -> None:
    codec = {".flac": "flac", ".mp3": "libmp3lame", ".opus": "libopus"}[path.suffix]
    with av.open(str(path), "w") as container:
        container.metadata.update({"prompt": PROMPT_TEXT, "workflow": WORKFLOW_TEXT})
        stream = container.add_stream(codec, rate=48000, layout="mono")
        assert isinstance(stream, av.AudioStream)
        frame = av.AudioFrame(format="s16", layout="mono", samples=1152)
        # Write silence: a new frame has random content, and short noise may be detected as another format.
        frame.planes[0].update(bytes(frame.planes[0].buffer_size))
        frame.sample_rate = 48000
        for resampled in av.AudioResampler(stream.format.name, "mono", 48000).resample(frame):
            container.mux(stream.encode(resampled))
        container.mux(stream.encode(None))


def safetensors(path: Path) -> None:
    tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    metadata = {"prompt": PROMPT_TEXT, "workflow": WORKFLOW_TEXT}
    header = json.dumps({"__metadata__": metadata, "latent_tensor": tensor}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))


def svg(path: Path) -> None:
    carried = json.dumps({"prompt": GRAPH, "workflow": WORKFLOW}, indent=4)
    text = f"<?xml version='1.0'?>\n<svg>\n  <metadata>\n<![CDATA[\n{carried}\n]]>\n  </metadata><path/></svg>"
    path.write_text(text, "utf-8")


def glb(path: Path) -> None:
    scene = {"asset": {"version": "2.0", "extras": {"prompt": PROMPT_TEXT, "workflow": WORKFLOW_TEXT}}}
    chunk = json.dumps(scene).encode()
    chunk += b" " * (-len(chunk) % 4)
    path.write_bytes(struct.pack("<4sIII4s", b"glTF", 2, 20 + len(chunk), len(chunk), b"JSON") + chunk)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.png", png),
        ("compressed.png", png_compressed),
        ("animated.png", png_animated),
        ("a.webp", webp),
        ("a.jpg", jpeg),
        ("comment.jpg", jpeg_comment),
        ("a.gif", gif),
        ("a.tiff", jpeg),
        ("a.avif", jpeg),
        ("a.svg", svg),
        ("a.glb", glb),
        ("a.latent", safetensors),
        ("a.safetensors", safetensors),
        ("a.mp4", video_tags),
        ("comment.mp4", video_comment),
        ("a.webm", video_tags),
        ("a.mkv", video_comment),
        ("a.flac", sound),
        ("a.mp3", sound),
        ("a.opus", sound),
    ],
)
def test_graph_and_workflow_are_read_from_a_file(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path / name)
    assert read_embedded(tmp_path / name) == BOTH


@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.jpg", "a.gif", "a.tiff", "a.avif"])
def test_image_without_a_workflow_has_no_embedded_data(tmp_path: Path, name: str) -> None:
    picture().save(tmp_path / name)
    assert read_embedded(tmp_path / name) is None


def test_nan_in_embedded_json_becomes_null(tmp_path: Path) -> None:
    info = PngInfo()
    info.add_text("prompt", PROMPT_TEXT[:-2] + ', "is_changed": [NaN]}}')
    picture().save(tmp_path / "a.png", pnginfo=info)
    assert read_embedded(tmp_path / "a.png") == Embedded(graph={"1": GRAPH["1"] | {"is_changed": [None]}})


def test_oversized_png_text_is_not_read(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", 2**31 - 1, b"tEXt") + b"prompt\0{")
    assert read_embedded(bomb) is None


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("a.safetensors", struct.pack("<Q", 2**63) + b"{"),
        ("a.latent", struct.pack("<Q", 2**31) + b"{"),
        ("a.glb", struct.pack("<4sIII4s", b"glTF", 2, 2**31, 2**31, b"JSON") + b"{"),
        ("a.tiff", b"II*\0" + struct.pack("<IHHHII", 8, 1, 0x010F, 2, 2**31, 0)),
        ("a.svg", b"<svg><metadata><![CDATA[{"),
        ("deep.latent", struct.pack("<Q", 100_000) + b'{"a":' * 20_000),
    ],
)
def test_oversized_header_is_not_read(tmp_path: Path, name: str, head: bytes) -> None:
    (tmp_path / name).write_bytes(head)
    # The file is sparse, but reading it would still return all of its data.
    os.truncate(tmp_path / name, 64 * MAX_BYTES)
    tracemalloc.start()
    try:
        assert read_embedded(tmp_path / name) is None
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.bmp", "workflows cannot be read from this file type"),
        ("a.png", "it contains no workflow. ComfyUI did not make it, or the metadata was removed"),
    ],
)
def test_unsupported_file_is_not_reported_as_empty(tmp_path: Path, name: str, message: str) -> None:
    picture().save(tmp_path / name)
    with pytest.raises(GraphError, match=message):
        load_workflow(tmp_path / name)


def test_workflow_is_read_from_a_saved_model(tmp_path: Path) -> None:
    safetensors(tmp_path / "lora.safetensors")
    assert load_workflow(tmp_path / "lora.safetensors") == GRAPH


def png_of_entries(sizes: list[int], blob: bytes) -> bytes:
    """Return an image whose EXIF has an entry for each of these sizes, all of the same text."""
    place = 8 + 2 + 12 * len(sizes)
    entries = b"".join(struct.pack("<HHII", 0x010F, 2, size, place) for size in sizes)
    data = b"II*\0" + struct.pack("<IH", 8, len(sizes)) + entries + blob
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", len(data), b"eXIf") + data + bytes(4)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([200_000] * 60_000, 1), (list(range(200_000, 140_000, -1)), 64), ([2_000_000 - at for at in range(60)], 16)],
    ids=["one text", "its parts", "large parts"],
)
def test_only_a_few_embedded_texts_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], expected: int
) -> None:
    read: list[str] = []
    monkeypatch.setattr(embedded, "_parse", read.append)
    file = tmp_path / "many.png"
    file.write_bytes(png_of_entries(sizes, b"{" + b"[]," * 700_000))
    assert read_embedded(file) is None
    assert len(read) == expected


WRITERS = {
    "png": png,
    "webp": webp,
    "jpg": jpeg,
    "gif": gif,
    "tiff": jpeg,
    "glb": glb,
    "latent": safetensors,
    "svg": svg,
}


@given(head=st.sampled_from(sorted(WRITERS)), cut=st.integers(0, 3000), noise=st.binary(max_size=40))
def test_broken_file_never_crashes_the_reader(
    tmp_path_factory: pytest.TempPathFactory, head: str, cut: int, noise: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / f"broken.{head}"
    WRITERS[head](path)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut] + noise + whole[cut + len(noise) :])
    read_embedded(path)
