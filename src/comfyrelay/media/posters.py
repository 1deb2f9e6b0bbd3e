"""Draw the poster of an image or video, and a short silent preview. Runs in a probe process."""

import io
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import BinaryIO, Final

import av
from av.container import OutputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image, ImageOps, ImageStat

from comfyrelay.media.containers import open_container, rotated, video_stream
from comfyrelay.media.images import FORMATS
from comfyrelay.media.info import MediaRefused, ProbeLimits, Rendition, check_pixels
from comfyrelay.media_types import MediaKind

POSTER_SIDE, POSTER_BYTES = 480, 60_000
# Sides and qualities to try until the poster is small enough.
POSTER_FORMATS: Final = ((POSTER_SIDE, 80), (POSTER_SIDE, 60), (POSTER_SIDE, 30), (POSTER_SIDE // 2, 30))
PREVIEW_SIDE, PREVIEW_SECONDS, PREVIEW_RATE = 360, 3.0, 24
# Many videos start black, so the poster is the first frame with this average brightness (0 to 255) within this time.
POSTER_SECONDS, BRIGHT = 1.0, 24.0
# Browsers show a frame without a duration this long.
UNTIMED_SECONDS = 0.1
# Encoders in order of preference, with their options, container and its options. An MP4 reserves space for its index
# at the start, so that browsers can play before the end of the download.
ENCODERS: tuple[tuple[str, dict[str, str], str, dict[str, str]], ...] = (
    ("libx264", {"preset": "veryfast", "crf": "30"}, "mp4", {"moov_size": "8192"}),
    ("libopenh264", {"b": "400000"}, "mp4", {"moov_size": "8192"}),
    ("libvpx", {"deadline": "realtime", "cpu-used": "8", "crf": "30", "b": "400000"}, "webm", {}),
)
TICKS = 1000

# Called with each rendition as soon as it is ready, so that the poster survives a timeout of the preview.
OnRendition = Callable[[Rendition], None]
# Seconds since the first frame, and the image.
Frames = Iterator[tuple[float, Image.Image]]


def draw(file: BinaryIO, kind: MediaKind, limits: ProbeLimits, give: OnRendition) -> None:
    """Draw the poster and the preview. Raises the libraries' errors or `MediaRefused`."""
    # The other half of the time is for renditions already in progress.
    until = time.monotonic() + limits.drawing_seconds / 2
    if kind == "image":
        _draw_image(file, limits, give, until)
    elif kind == "video":
        with open_container(file, "video", limits) as container:
            stream = video_stream(container, limits)
            _draw_frames(_video_frames(container.decode(stream), limits), give, until)


def _draw_image(file: BinaryIO, limits: ProbeLimits, give: OnRendition, until: float) -> None:
    with Image.open(file, formats=FORMATS) as image:
        check_pixels(image.width, image.height, limits)
        # The pages of a TIFF are not an animation.
        if image.format != "TIFF" and getattr(image, "is_animated", False):
            _draw_frames(_image_frames(image), give, until)
            return
        # The draft makes JPEG decode at a smaller size.
        image.draft(None, (POSTER_SIDE * 2, POSTER_SIDE * 2))
        _give_poster(ImageOps.exif_transpose(_small(image)), give)


def _draw_frames(frames: Frames, give: OnRendition, until: float) -> None:
    """Encode the preview. The poster is the first bright frame of the first second, or else its brightest frame."""
    best: tuple[float, Image.Image] | None = None
    has_poster = False
    preview: _PreviewEncoder | None = None
    for at, image in frames:
        if not has_poster:
            brightness = ImageStat.Stat(image.convert("L")).mean[0]
            if best is None or brightness > best[0]:
                best = (brightness, image)
            if best[0] >= BRIGHT or at >= POSTER_SECONDS:
                _give_poster(best[1], give)
                has_poster = True
        preview = preview or _PreviewEncoder(image.size)
        preview.add(at, image)
        if time.monotonic() > until:
            break
    if best is None or preview is None:
        raise MediaRefused("unreadable")
    if not has_poster:
        _give_poster(best[1], give)
    if preview.frames > 1:
        give(preview.finish())


def _video_frames(decoded: Iterator[object], limits: ProbeLimits) -> Frames:
    """Yield a limited number of small, rotated frames per second."""
    began_at, due = None, 0.0
    for frame in decoded:
        if not isinstance(frame, VideoFrame):
            continue
        check_pixels(frame.width, frame.height, limits)
        shown_at = frame.time or 0.0
        began_at = shown_at if began_at is None else began_at
        at = shown_at - began_at
        if at >= PREVIEW_SECONDS:
            return
        if at < due:
            continue
        due = _next_due(at)
        width, height = _fit((frame.width, frame.height), POSTER_SIDE)
        image = frame.reformat(width=width, height=height, format="rgb24").to_image()  # type: ignore[no-untyped-call]
        yield at, rotated(image, frame.rotation)


def _image_frames(image: Image.Image) -> Frames:
    at, due, number = 0.0, 0.0, 0
    while at < PREVIEW_SECONDS:
        try:
            image.seek(number)
        except EOFError:
            return
        image.load()
        if at >= due:
            due = _next_due(at)
            yield at, _small(image)
        at += (image.info.get("duration") or 0) / 1000 or UNTIMED_SECONDS
        number += 1


def _next_due(at: float) -> float:
    # Timestamps are rounded, so accept a frame that is slightly early.
    return at + 1 / PREVIEW_RATE - 0.005


def _small(image: Image.Image) -> Image.Image:
    """Return a copy of the image in poster size, in a colour mode that every format supports."""
    if image.mode.startswith(("I", "F")):
        # Only the upper 8 of the 16 bits per sample are visible.
        image = image.convert("F").point(lambda value: value * (1 / 256)).convert("L")
    small = image.convert("RGBA" if image.has_transparency_data else "RGB")
    small.thumbnail((POSTER_SIDE, POSTER_SIDE), Image.Resampling.LANCZOS)
    if exif := image.getexif():
        small.getexif().update(exif)
    return small


def _give_poster(image: Image.Image, give: OnRendition) -> None:
    for side, quality in POSTER_FORMATS:
        file = io.BytesIO()
        image.thumbnail((side, side))
        image.save(file, "WEBP", quality=quality, method=4, exif=b"")
        if file.tell() <= POSTER_BYTES:
            give(Rendition(name="poster", extension="webp", data=file.getvalue()))
            return


def _fit(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Scale a size to fit. The encoders need even sides."""
    scale = min(1.0, side / max(size))
    width, height = (max(2, round(length * scale / 2) * 2) for length in size)
    return width, height


class _PreviewEncoder:
    def __init__(self, size: tuple[int, int]) -> None:
        self.frames = 0
        self._size = _fit(size, PREVIEW_SIDE)
        codec, options, self._extension, container_options = next(
            encoder for encoder in ENCODERS if encoder[0] in av.codecs_available
        )
        self._file = io.BytesIO()
        self._container: OutputContainer = av.open(
            self._file, "w", format=self._extension, container_options=container_options
        )
        stream = self._container.add_stream(codec, rate=PREVIEW_RATE, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = self._size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, TICKS)
        # With one thread per core, the threads would need more memory than the frames.
        stream.codec_context.thread_count = 1
        self._stream = stream

    def add(self, at: float, image: Image.Image) -> None:
        shown = image.resize(self._size)
        if shown.mode == "RGBA":
            shown = Image.alpha_composite(Image.new("RGBA", shown.size, "black"), shown)
        frame = VideoFrame.from_image(shown.convert("RGB"))  # type: ignore[no-untyped-call]
        frame.pts, frame.time_base = round(at * TICKS), Fraction(1, TICKS)
        self._container.mux(self._stream.encode(frame))
        self.frames += 1

    def finish(self) -> Rendition:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return Rendition(name="preview", extension=self._extension, data=self._file.getvalue())
