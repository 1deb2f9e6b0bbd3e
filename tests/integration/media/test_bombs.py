"""Small files that need much memory or time to read: refused with a message, without delaying other files."""

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from comfyrelay.errors import InvalidInput
from comfyrelay.media import probe_process
from comfyrelay.media.image_headers import ImageHeader, read_image_header
from comfyrelay.media.info import MediaRefused
from comfyrelay.media.inspection import MediaInfo, ProbeLimits, Probes
from comfyrelay.media.probe_process import ProbeProcess
from comfyrelay.services.catalogue.embedded_workflow import EmbeddedWorkflows
from comfyrelay.settings import Settings
from comfyrelay.storage.local import LocalObjects
from tests.support import media_samples
from tests.support.windows import WITHOUT_POSIX

MANY = 600_000


@pytest.fixture
def objects(root: Path) -> LocalObjects:
    return LocalObjects(root)


async def refusal(objects: LocalObjects, data: bytes, mime_type: str, limits: ProbeLimits | None = None) -> str:
    await objects.put("output", data)
    with pytest.raises(InvalidInput) as refused:
        await Probes(limits).probe(objects, "output", mime_type=mime_type)
    return refused.value.detail


def reader_of(data: bytes) -> Callable[[int, int], bytes]:
    return lambda start, length: data[start : start + length]


def probe_image(data: bytes, limits: ProbeLimits) -> MediaInfo:
    return probe_process.probe("image", size=len(data), limits=limits, read=reader_of(data))


async def test_oversized_header_is_refused_before_decoding(
    objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        probe_process, "probe", lambda *_args, **_more: pytest.fail("the file was decoded: refuse it by its header")
    )
    webp = media_samples.webp_that_claims(16_000, 11_000)
    assert len(webp) == 34
    text = "The output is too large: it has 16000 × 11000 pixels, and at most 100,000,000 are allowed "
    text += "(COMFYRELAY_PROBE_MAX_PIXELS)."
    assert await refusal(objects, webp, "image/webp") == text
    assert "50000 × 50000" in await refusal(objects, media_samples.png_that_claims(50_000, 50_000), "image/png")
    moving = media_samples.image("PNG", frames=3)
    assert "2 frames at most" in await refusal(objects, moving, "image/png", ProbeLimits(max_frames=2))


async def test_animation_is_refused_at_the_first_excess_frame(objects: LocalObjects) -> None:
    asked: list[int] = []
    data = media_samples.gif_of(MANY)

    def read(start: int, length: int) -> bytes:
        asked.append(start + length)
        return data[start : start + length]

    with pytest.raises(MediaRefused) as refused:
        probe_process.probe("image", size=len(data), limits=ProbeLimits(), read=read)
    assert refused.value.why == "frames"
    # the rest was not read
    assert max(asked) < len(data) / 4
    text = "The output is too long: an image may have 10,000 frames at most (COMFYRELAY_PROBE_MAX_FRAMES)."
    assert await refusal(objects, data, "image/gif") == text


async def test_tiff_with_too_many_pages_is_refused(objects: LocalObjects) -> None:
    data = media_samples.image("TIFF", frames=4)
    assert "3 frames" in await refusal(objects, data, "image/tiff", ProbeLimits(max_frames=3))


async def test_decompression_bomb_in_png_text_is_refused(objects: LocalObjects) -> None:
    data = media_samples.png_with_text(100_000_000)
    assert len(data) < 200_000
    assert await refusal(objects, data, "image/png") == "The output is not a readable image."


async def test_truncated_video_is_refused(objects: LocalObjects) -> None:
    assert await refusal(objects, media_samples.video()[:-500], "video/mp4") == "The output is not a readable video."


async def test_frames_are_measured_when_the_header_hides_their_size(objects: LocalObjects) -> None:
    data, limits = media_samples.video_with_hidden_size(), ProbeLimits(max_pixels=64 * 48 - 1)
    text = "The output is too large: it has 64 × 48 pixels, and at most 3,071 are allowed "
    text += "(COMFYRELAY_PROBE_MAX_PIXELS)."
    assert await refusal(objects, data, "video/x-msvideo", limits) == text
    with pytest.raises(InvalidInput, match="64 × 48 pixels"):
        await Probes(limits).draw(objects, "output", mime_type="video/x-msvideo", size=len(data))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not limit the memory of a process")
async def test_image_that_exceeds_the_memory_limit_is_refused(objects: LocalObjects) -> None:
    file = io.BytesIO()
    Image.new("P", (9000, 9000)).save(file, "GIF")
    text = "The output needs more than 32 MiB of memory to be read (COMFYRELAY_PROBE_MEMORY_BYTES)."
    assert await refusal(objects, file.getvalue(), "image/gif", ProbeLimits(max_memory_bytes=32 * 1024**2)) == text
    # without the limit, the image is accepted
    assert probe_image(file.getvalue(), ProbeLimits()).width == 9000


def test_slow_probe_process_is_killed_and_replaced() -> None:
    process = ProbeProcess()
    data = media_samples.gif_of(MANY)
    limits = ProbeLimits(max_frames=MANY, timeout_seconds=0.01)
    with pytest.raises(MediaRefused) as refused:
        process.probe("image", size=len(data), limits=limits, read=reader_of(data))
    assert refused.value.why == "time"
    assert not process.is_idle
    process.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert probe_image(media_samples.image("PNG"), ProbeLimits()).frames == 1


def test_file_that_crashes_the_process_is_refused() -> None:
    process = ProbeProcess()

    def read(_start: int, _length: int) -> bytes:
        os.kill(process.pid, 9)
        return b""

    with pytest.raises(MediaRefused):
        process.probe("image", size=100, limits=ProbeLimits(), read=read)
    assert not process.is_idle
    process.kill()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to read the environment of a process")
def test_process_environment_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("COMFYRELAY_SIGNING_SECRETS", "hush")
    # Python on Windows needs these to start and to find its packages
    needed = ("SYSTEMROOT", "APPDATA", "USERPROFILE", "TEMP")
    for name in needed:
        monkeypatch.setenv(name, "/tmp")
    process = ProbeProcess()
    environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    process.kill()
    assert b"hush" not in environment
    assert [name for name in needed if f"{name}=".encode() not in environment] == []


@pytest.mark.skipif(sys.platform != "linux", reason="simulates another system on Linux")
def test_server_limits_the_memory_of_a_process_without_rlimits(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    Image.effect_noise((4000, 4000), 50).save(file, "TIFF")
    data = file.getvalue()
    monkeypatch.setenv("PYTHONPATH", str(WITHOUT_POSIX))
    monkeypatch.setattr(probe_process, "LIMITS_MEMORY", False)
    process = ProbeProcess()
    assert process.probe("image", size=len(data), limits=ProbeLimits(), read=reader_of(data)).width == 4000
    with pytest.raises(MediaRefused) as refused:
        process.probe("image", size=len(data), limits=ProbeLimits(max_memory_bytes=8 * 1024**2), read=reader_of(data))
    assert refused.value.why == "memory"
    process.kill()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("GIF", {}), ("BMP", {}), ("WEBP", {})),
        *(("WEBP", {"lossless": True}), ("WEBP", {"exif": b"Exif\0\0"})),
    ],
)
def test_image_header_matches_pillow(kind: str, options: dict[str, object]) -> None:
    file = io.BytesIO()
    Image.new("RGB", (300, 200), "red").save(file, kind, **options)
    frames = None if kind == "GIF" else 1
    assert read_image_header(file.getvalue()) == ImageHeader(width=300, height=200, frames=frames)


def test_header_of_an_animated_png_has_its_frames() -> None:
    assert read_image_header(media_samples.image("PNG", frames=3)) == ImageHeader(width=64, height=48, frames=3)


def test_default_image_outside_the_animation_is_counted() -> None:
    data = media_samples.png_with_default_image()
    with Image.open(io.BytesIO(data)) as image:
        assert getattr(image, "n_frames") == 2  # noqa: B009
    assert read_image_header(data) == ImageHeader(width=64, height=48, frames=2)


def test_largest_size_of_a_png_is_checked() -> None:
    data = media_samples.png_with_two_sizes((16, 16), (64, 48))
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (64, 48)
    assert read_image_header(data) == ImageHeader(width=64, height=48)


def test_header_of_a_gif_contains_a_first_frame_that_exceeds_the_screen() -> None:
    data = media_samples.gif_with_frames((300, 200), (1, 1))
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (300, 200)
    assert read_image_header(data) == ImageHeader(width=300, height=200, frames=None)
    for length in range(11, len(data)):
        assert read_image_header(data[:length]) is not None


async def test_every_frame_of_a_gif_is_limited(objects: LocalObjects) -> None:
    for sizes in ((20_000, 20_000), (1, 1)), ((1, 1), (20_000, 20_000)):
        data = media_samples.gif_with_frames(*sizes)
        assert "20000 × 20000 pixels" in await refusal(objects, data, "image/gif")
    info = probe_image(media_samples.gif_with_frames((1, 1), (3, 1), (1, 2)), ProbeLimits())
    assert (info.width, info.height, info.frames) == (3, 2, 3)


def test_header_without_the_frame_count_does_not_claim_one_frame() -> None:
    hidden = media_samples.image("PNG", frames=3)
    hidden = hidden[:33] + b"\x00\x00\xff\xffteXt" + bytes(0xFFFF + 4) + hidden[33:]
    for data in (hidden[: 64 * 1024], media_samples.image("WEBP", frames=3)):
        assert read_image_header(data) == ImageHeader(width=64, height=48, frames=None)


class Counted(bytes):
    """Bytes that count accesses."""

    reads = 0

    def __getitem__(self, where: Any) -> Any:
        self.reads += 1
        return super().__getitem__(where)


@pytest.mark.parametrize(
    "head",
    [
        b"\xff\xd8" + b"\xff" * 1_000_000,
        b"\xff\xd8" + b"\xff\xe0\0\2" * 250_000,
        media_samples.image("PNG")[:33] + b"\0\0\0\0teXt\0\0\0\0" * 90_000,
        b"GIF89a\x08\0\x08\0\0\0\0" + b"\x21\xfe" + b"\1a" * 300_000,
        b"GIF89a\x08\0\x08\0\0\0\0" + b"\x21\xfe\0" * 300_000,
    ],
    ids=["fill bytes", "markers", "chunks", "blocks", "extensions"],
)
def test_header_is_read_in_bounded_steps(head: bytes) -> None:
    """Headers are read on the event loop, which must not be blocked."""
    counted = Counted(head)
    read_image_header(counted)
    assert counted.reads < 10_000


def test_fill_bytes_before_a_marker_are_skipped() -> None:
    data = media_samples.image("JPEG")
    assert read_image_header(data[:2] + b"\xff" * 1000 + data[2:]) == read_image_header(data) != None  # noqa: E711


@pytest.mark.parametrize("blocks", [b"\x21\xfe" + b"\1a" * 300_000, b"\x21\xfe\0" * 300_000], ids=["blocks", "parts"])
async def test_gif_with_too_many_blocks_is_refused(objects: LocalObjects, blocks: bytes) -> None:
    data = b"GIF89a\x08\0\x08\0\0\0\0" + blocks
    text = "The output is made of too many small blocks to be read: save it again with another program."
    assert await refusal(objects, data, "image/gif") == text


@given(
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"RIFFxxxxWEBPVP8X", b"RIFFxxxxWEBPVP8 ", b"GIF8", b"BM"]),
    st.binary(max_size=80),
)
def test_any_bytes_can_be_read_as_a_header(start: bytes, rest: bytes) -> None:
    read_image_header(start + rest)


def test_gif_frame_count_matches_pillow() -> None:
    for frames in (1, 2, 7):
        data = media_samples.gif_of(frames)
        with Image.open(io.BytesIO(data)) as image:
            assert probe_image(data, ProbeLimits()).frames == getattr(image, "n_frames") == frames  # noqa: B009
    assert probe_image(media_samples.image("GIF", frames=5), ProbeLimits()).frames == 5


async def workflow_refusal(objects: LocalObjects, data: bytes, limits: ProbeLimits) -> str:
    await objects.put("upload", data)
    with pytest.raises(InvalidInput) as refused:
        await Probes(limits).read_workflow(objects, "upload")
    return refused.value.detail


async def test_embedded_workflow_is_read_within_the_memory_limit(objects: LocalObjects) -> None:
    # Each of these empty objects has three bytes in the file, and 64 in memory.
    data = media_samples.png_with_compressed(b"prompt", b"[" + b"{}," * 3_000_000 + b"{}]")
    text = "The file needs more than 100 MiB of memory to be read."
    assert await workflow_refusal(objects, data, ProbeLimits(max_memory_bytes=100 * 1024**2)) == text
    # With enough memory, the same text is read, but it is not a graph.
    assert await Probes().read_workflow(objects, "upload") is None


def test_embedded_workflow_is_read_within_the_time_limit() -> None:
    process = ProbeProcess()
    data = media_samples.png_with_compressed(b"prompt", b"{}")
    with pytest.raises(MediaRefused) as refused:
        process.read_workflow(size=len(data), limits=ProbeLimits(timeout_seconds=1e-9), read=reader_of(data))
    assert refused.value.why == "time"
    assert not process.is_idle
    process.kill()


@pytest.mark.parametrize("limits", [ProbeLimits(max_workflow_values=5), ProbeLimits(max_workflow_bytes=40)])
async def test_large_embedded_workflow_is_refused(objects: LocalObjects, limits: ProbeLimits) -> None:
    graph = {str(number): {"class_type": "EmptyImage", "inputs": {}} for number in range(3)}
    data = media_samples.png_with_compressed(b"prompt", json.dumps(graph).encode())
    assert "contains a workflow that is too large" in await workflow_refusal(objects, data, limits)
    assert json.loads(await Probes().read_workflow(objects, "upload") or b"") == graph


def test_workflow_longer_than_allowed_is_not_received(monkeypatch: pytest.MonkeyPatch) -> None:
    process = ProbeProcess()
    monkeypatch.setattr(process, "_receive", lambda *_args, **_more: {"workflow": 10**9})
    with pytest.raises(MediaRefused):
        process.read_workflow(size=1, limits=ProbeLimits(), read=reader_of(b"x"))
    assert not process.is_idle
    process.kill()


async def test_workflow_of_a_probe_process_is_checked_again(
    objects: LocalObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_workflow(*_: object) -> bytes:
        return json.dumps({str(number): {} for number in range(2000)}).encode()

    monkeypatch.setattr(Probes, "read_workflow", read_workflow)
    workflows = EmbeddedWorkflows(objects, Settings(data_dir=tmp_path, max_body_values=1000))
    with pytest.raises(InvalidInput, match="too many values"):
        await workflows.read("upload")
