"""Posters and previews of images and videos are drawn as safely as files are inspected."""

import io
from fractions import Fraction

import av
import pytest
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image

from comfyrelay.errors import InvalidInput
from comfyrelay.media import posters, probe_process
from comfyrelay.media.info import MediaRefused, Rendition
from comfyrelay.media.inspection import ProbeLimits, Probes, Renditions
from comfyrelay.media.probe_process import ProbeProcess
from comfyrelay.storage.objects import ObjectStore
from tests.support import media_samples
from tests.support.world import PATIENCE_SECONDS

PATIENT = ProbeLimits(drawing_seconds=PATIENCE_SECONDS)


def draw(data: bytes, kind: str = "image") -> dict[str, Rendition]:
    """Draw in this process."""
    pieces: list[Rendition] = []
    posters.draw(io.BytesIO(data), kind, PATIENT, pieces.append)  # type: ignore[arg-type]
    return {piece.name: piece for piece in pieces}


def picture(piece: Rendition) -> Image.Image:
    assert piece.extension == "webp"
    return Image.open(io.BytesIO(piece.data), formats=["WEBP"])


def encode_video(colours: list[str], *, size: tuple[int, int] = (64, 48), rate: int = 10) -> bytes:
    """Return a video with one colour per frame."""
    file = io.BytesIO()
    with av.open(file, mode="w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=rate)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for colour in colours:
            frame = VideoFrame.from_image(Image.new("RGB", size, colour))  # type: ignore[no-untyped-call]
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


def encode(image: Image.Image, kind: str, **more: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


async def test_images_and_videos_have_posters_and_videos_have_previews(store: ObjectStore) -> None:
    probes = Probes(PATIENT)

    async def of(data: bytes, mime_type: str) -> Renditions | None:
        await store.put("output", data)
        return await probes.draw(store, "output", mime_type=mime_type, size=len(data))

    still = await of(media_samples.image("PNG"), "image/png")
    assert still is not None
    assert (still.poster is not None, still.preview) == (True, None)
    for data, mime_type in (
        (media_samples.video(sound=True), "video/mp4"),
        (media_samples.image("GIF", frames=4), "image/gif"),
    ):
        moving = await of(data, mime_type)
        assert moving is not None
        assert moving.poster is not None
        assert moving.preview is not None
    assert await of(media_samples.wav(), "audio/wav") is None
    assert await of(b"hello", "text/plain") is None
    with pytest.raises(InvalidInput, match=r"^No poster was made: the file is not a readable image\.$"):
        await of(b"junk", "image/png")


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ((1600, 800), (480, 240)),
        ((300, 3000), (48, 480)),
        ((10, 5), (10, 5)),
        ((1, 1), (1, 1)),
        # thinner than a pixel
        ((8000, 2), (480, 1)),
        ((2, 8000), (1, 480)),
    ],
)
def test_poster_fits_into_480_pixels_and_is_not_enlarged(size: tuple[int, int], shown: tuple[int, int]) -> None:
    pieces = draw(media_samples.image("PNG", size))
    assert [*pieces] == ["poster"]
    assert picture(pieces["poster"]).size == shown


def test_poster_of_noise_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = encode(Image.effect_noise((900, 900), 200), "PNG")
    monkeypatch.setattr(posters, "POSTER_FORMATS", ((480, 100),))
    assert draw(noise) == {}
    monkeypatch.undo()
    assert len(draw(noise)["poster"].data) <= posters.POSTER_BYTES


@pytest.mark.parametrize("kind", ["AVIF", "BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP"])
def test_every_image_format_has_a_poster(kind: str) -> None:
    red = Image.new("RGB", (600, 300), "red")
    poster = picture(draw(encode(red, kind))["poster"]).convert("RGB")
    assert poster.size == (480, 240)
    assert poster.getpixel((240, 120))[0] > 200  # type: ignore[index]


@pytest.mark.parametrize(
    ("mode", "kind"), [("CMYK", "JPEG"), ("CMYK", "TIFF"), ("L", "JPEG"), ("1", "PNG"), ("P", "GIF")]
)
def test_poster_of_unusual_colour_modes_is_rgb(mode: str, kind: str) -> None:
    data = encode(Image.new("RGB", (60, 30), "white").convert(mode), kind)
    poster = picture(draw(data)["poster"])
    assert poster.mode in ("RGB", "RGBA")
    assert poster.convert("RGB").getpixel((30, 15)) == pytest.approx((255, 255, 255), abs=6)


def test_animated_webp_has_a_still_poster_and_a_preview() -> None:
    frames = [Image.new("RGB", (64, 48), colour) for colour in ("red", "green", "blue", "white")]
    pieces = draw(encode(frames[0], "WEBP", save_all=True, append_images=frames[1:], duration=100, lossless=True))
    assert pieces.keys() == {"poster", "preview"}
    assert getattr(picture(pieces["poster"]), "n_frames", 1) == 1


def test_poster_follows_the_camera_orientation() -> None:
    image = Image.new("RGB", (400, 200), "red")
    exif = image.getexif()
    exif[0x0112] = 6
    for kind in ("JPEG", "WEBP", "PNG"):
        found = picture(draw(encode(image, kind, exif=exif))["poster"])
        assert found.size == (200, 400)
        assert not found.getexif()


def test_transparency_and_deep_colours_are_kept() -> None:
    clear = picture(draw(encode(Image.new("RGBA", (40, 40), (255, 0, 0, 0)), "PNG"))["poster"])
    assert clear.convert("RGBA").getpixel((20, 20))[3] == 0  # type: ignore[index]
    deep = picture(draw(encode(Image.new("I;16", (40, 40), 0x8000), "PNG"))["poster"]).convert("L")
    assert deep.getpixel((20, 20)) == pytest.approx(128, abs=4)


def test_poster_of_a_video_is_its_first_bright_frame() -> None:
    late = draw(encode_video(["black"] * 5 + ["red"] * 10 + ["white"] * 10), "video")
    assert picture(late["poster"]).convert("RGB").getpixel((30, 20)) == pytest.approx((255, 0, 0), abs=40)
    # if the first second is dark, the brightest frame of that second
    dark = draw(encode_video(["black"] * 5 + ["#141414"] + ["black"] * 14 + ["white"] * 5), "video")
    assert picture(dark["poster"]).convert("L").getpixel((30, 20)) == pytest.approx(20, abs=8)


def test_preview_is_short_small_silent_and_streamable() -> None:
    size = (400, 200)
    data = encode_video(["red", "blue"] * 100, size=size, rate=40)
    preview = draw(data, "video")["preview"]
    assert preview.extension == "mp4"
    assert preview.data.index(b"moov") < preview.data.index(b"mdat")
    with av.open(io.BytesIO(preview.data), "r") as shown:
        assert (len(shown.streams.video), len(shown.streams)) == (1, 1)
        assert (shown.streams.video[0].width, shown.streams.video[0].height) == (360, 180)
        times = [frame.time or 0.0 for frame in shown.decode(video=0)]
    assert times[-1] < posters.PREVIEW_SECONDS
    assert len(times) <= posters.PREVIEW_RATE * posters.PREVIEW_SECONDS + 1
    # a video of one frame has no preview
    assert "preview" not in draw(encode_video(["red"]), "video")


def test_preview_of_an_animation_keeps_its_timing() -> None:
    frames = [Image.new("RGB", (64, 48), colour) for colour in ("red", "green", "blue")]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=500)
    with av.open(io.BytesIO(draw(data)["preview"].data), "r") as shown:
        assert [round(frame.time or 0, 2) for frame in shown.decode(video=0)] == [0, 0.5, 1]


def test_preview_without_an_h264_encoder_is_webm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("av.codecs_available", {"libvpx"})
    preview = draw(encode_video(["red", "blue"] * 5), "video")["preview"]
    assert preview.extension == "webm"
    with av.open(io.BytesIO(preview.data), "r") as shown:
        assert len(list(shown.decode(video=0))) == 10
        assert shown.streams.video[0].time_base == Fraction(1, 1000)


def test_poster_made_before_the_timeout_is_kept() -> None:
    """The process sends the poster and then stops answering."""
    answers = iter([{"piece": ["poster", "webp", 12]}])

    class Slow(ProbeProcess):
        def __init__(self) -> None:
            """Start no process."""

        def _request(self, *_args: object, **_more: object) -> None: ...

        def _answers(self, *_args: object) -> object:  # type: ignore[override]
            yield from answers
            raise MediaRefused("time")

        def _receive_bytes(self, *_args: object) -> bytes:
            return b"RIFF1234WEBP"

    found = Slow().draw("video", size=9, limits=PATIENT, read=lambda _start, _length: b"")
    assert found.poster is not None
    assert found.preview is None


def test_slow_drawing_process_is_killed_and_replaced() -> None:
    data = encode_video(["red", "blue"] * 5)

    def read(start: int, length: int) -> bytes:
        return data[start : start + length]

    with pytest.raises(MediaRefused, match="time"):
        probe_process.draw("video", size=len(data), limits=ProbeLimits(drawing_seconds=0), read=read)
    assert probe_process.draw("video", size=len(data), limits=PATIENT, read=read).preview is not None


@pytest.mark.parametrize(
    ("name", "extension", "data"),
    [
        ("poster", "webp", b"<script>alert(1)"),
        ("poster", "html", b"<html>"),
        ("preview", "mp4", b"RIFF1234WEBP"),
        ("../../x", "webp", b"RIFF1234WEBP"),
    ],
)
def test_invalid_rendition_is_refused(name: str, extension: str, data: bytes) -> None:
    with pytest.raises(MediaRefused):
        probe_process._add_rendition(Renditions(), name, extension, data)
    assert probe_process._add_rendition(Renditions(), "poster", "webp", b"RIFF1234WEBP").poster is not None
