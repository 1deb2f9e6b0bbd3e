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

from comfyrelay.media.containers import open_container, turned, video_stream
from comfyrelay.media.images import FORMATS
from comfyrelay.media.info import MediaRefused, Piece, ProbeLimits, check_pixels
from comfyrelay.media_types import MediaKind

POSTER_SIDE, POSTER_BYTES = 480, 60_000
# Sizes and qualities, tried until the poster is small enough.
TRIES: Final = ((POSTER_SIDE, 80), (POSTER_SIDE, 60), (POSTER_SIDE, 30), (POSTER_SIDE // 2, 30))
PREVIEW_SIDE, PREVIEW_SECONDS, PREVIEW_RATE = 360, 3.0, 24
# Many videos start black: how long to search for a poster frame, and the average brightness (0 to 255) that ends the
# search.
POSTER_SECONDS, BRIGHT = 1.0, 24.0
# Browsers' default for frames without a duration.
UNTIMED_SECONDS = 0.1
# The first available encoder, its options and container. An MP4 reserves space for its index at the start, so that
# browsers can play before the end of the download.
ENCODERS: tuple[tuple[str, dict[str, str], str, dict[str, str]], ...] = (
    ("libx264", {"preset": "veryfast", "crf": "30"}, "mp4", {"moov_size": "8192"}),
    ("libopenh264", {"b": "400000"}, "mp4", {"moov_size": "8192"}),
    ("libvpx", {"deadline": "realtime", "cpu-used": "8", "crf": "30", "b": "400000"}, "webm", {}),
)
TICKS = 1000

# Called with each piece when it is ready, so that it survives a timeout of the next.
Give = Callable[[Piece], None]
Frames = Iterator[tuple[float, Image.Image]]


def draw(file: BinaryIO, kind: MediaKind, limits: ProbeLimits, give: Give) -> None:
    """Raises the libraries' errors or `MediaRefused`."""
    # the rest of the time is for pieces already begun
    until = time.monotonic() + limits.drawing_seconds / 2
    if kind == "image":
        _draw_image(file, limits, give, until)
    elif kind == "video":
        with open_container(file, "video", limits) as container:
            stream = video_stream(container, limits)
            _draw_frames(_of_video(container.decode(stream)), give, until)


def _draw_image(file: BinaryIO, limits: ProbeLimits, give: Give, until: float) -> None:
    with Image.open(file, formats=FORMATS) as image:
        check_pixels(image.width, image.height, limits)
        # TIFF pages are not an animation
        moves = image.format != "TIFF" and getattr(image, "is_animated", False)
        if moves:
            _draw_frames(_of_image(image), give, until)
            return
        # lets JPEG decode at a smaller size
        image.draft(None, (POSTER_SIDE * 2, POSTER_SIDE * 2))
        _give_poster(ImageOps.exif_transpose(_small(image)), give)


def _draw_frames(frames: Frames, give: Give, until: float) -> None:
    """Return the first frame of the first second that is not dark, or the brightest, and add all frames to the
    preview."""
    best: tuple[float, Image.Image] | None = None
    is_given = False
    film: _Film | None = None
    for at, image in frames:
        if not is_given:
            light = ImageStat.Stat(image.convert("L")).mean[0]
            if best is None or light > best[0]:
                best = (light, image)
            if best[0] >= BRIGHT or at >= POSTER_SECONDS:
                _give_poster(best[1], give)
                is_given = True
        film = film or _Film(image.size)
        film.add(at, image)
        if time.monotonic() > until:
            break
    if best is None or film is None:
        raise MediaRefused("unreadable")
    if not is_given:
        _give_poster(best[1], give)
    if film.frames > 1:
        give(film.end())


def _of_video(decoded: Iterator[object]) -> Frames:
    """Yield a limited number of small, rotated frames per second."""
    began, due = None, 0.0
    for frame in decoded:
        if not isinstance(frame, VideoFrame):
            continue
        time_ = frame.time or 0.0
        began = time_ if began is None else began
        at = time_ - began
        if at >= PREVIEW_SECONDS:
            return
        if at < due:
            continue
        due = _next(at)
        width, height = _fitting((frame.width, frame.height), POSTER_SIDE)
        image = frame.reformat(width=width, height=height, format="rgb24").to_image()  # type: ignore[no-untyped-call]
        yield at, turned(image, frame.rotation)


def _of_image(image: Image.Image) -> Frames:
    at, due, number = 0.0, 0.0, 0
    while at < PREVIEW_SECONDS:
        try:
            image.seek(number)
        except EOFError:
            return
        image.load()
        if at >= due:
            due = _next(at)
            yield at, _small(image)
        at += (image.info.get("duration") or 0) / 1000 or UNTIMED_SECONDS
        number += 1


def _next(at: float) -> float:
    # timestamps are rounded, so accept a frame that is slightly early
    return at + 1 / PREVIEW_RATE - 0.005


def _small(image: Image.Image) -> Image.Image:
    """A copy that fits, in a colour mode that every format supports."""
    if image.mode.startswith(("I", "F")):
        # 16 bits per sample; only the upper 8 are visible
        image = image.convert("F").point(lambda value: value * (1 / 256)).convert("L")
    is_clear = image.has_transparency_data
    found = image.convert("RGBA" if is_clear else "RGB")
    found.thumbnail((POSTER_SIDE, POSTER_SIDE), Image.Resampling.LANCZOS)
    exif = image.getexif()
    if exif:
        found.getexif().update(exif)
    return found


def _give_poster(image: Image.Image, give: Give) -> None:
    for side, quality in TRIES:
        made = io.BytesIO()
        image.thumbnail((side, side))
        image.save(made, "WEBP", quality=quality, method=4, exif=b"")
        if made.tell() <= POSTER_BYTES:
            give(Piece(name="poster", extension="webp", data=made.getvalue()))
            return


def _fitting(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Scale to fit, with even sides for the encoders."""
    scale = min(1.0, side / max(size))
    width, height = (max(2, round(each * scale / 2) * 2) for each in size)
    return width, height


class _Film:
    def __init__(self, size: tuple[int, int]) -> None:
        self.frames = 0
        self._size = _fitting(size, PREVIEW_SIDE)
        name, options, self._extension, wrapping = next(each for each in ENCODERS if each[0] in av.codecs_available)
        self._file = io.BytesIO()
        self._container: OutputContainer = av.open(self._file, "w", format=self._extension, container_options=wrapping)
        stream = self._container.add_stream(name, rate=PREVIEW_RATE, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = self._size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, TICKS)
        # a thread per core needs more memory than the frames
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

    def end(self) -> Piece:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return Piece(name="preview", extension=self._extension, data=self._file.getvalue())
