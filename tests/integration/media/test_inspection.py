"""Check that a stored object is the media that it claims to be."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Literal

import av
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from av.error import FFmpegError

from comfyrelay.errors import ConfigurationError, InvalidInput, NotFound, StorageUnavailable
from comfyrelay.media import containers
from comfyrelay.media.containers import measure_container, read_container
from comfyrelay.media.info import MediaRefused
from comfyrelay.media.inspection import MediaInfo, ProbeLimits, Probes
from comfyrelay.media_types import media_kind
from comfyrelay.storage.local import LocalObjects
from comfyrelay.storage.objects import ObjectStore
from tests.support import media_samples
from tests.support.world import PATIENCE_SECONDS

IMAGES = ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"]


class WatchedObjects(LocalObjects):
    """A local store that counts reads, and is slow or fails on request."""

    read_bytes = 0
    delay_seconds = 0.0
    fails_after = 10**12

    async def stream(self, path: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        await asyncio.sleep(self.delay_seconds)
        async for piece in super().stream(path, start=start, length=length):
            self.read_bytes += len(piece)
            if self.read_bytes > self.fails_after:
                raise StorageUnavailable("The disk is on fire.")
            yield piece


@pytest.fixture
def objects(root: Path) -> WatchedObjects:
    return WatchedObjects(root)


async def probe(
    store: ObjectStore, path: str, *, mime_type: str, subject: str = "output", limits: ProbeLimits | None = None
) -> MediaInfo:
    return await Probes(limits).probe(store, path, mime_type=mime_type, subject=subject)


async def store_and_probe(
    store: ObjectStore, data: bytes, mime_type: str, limits: ProbeLimits | None = None
) -> MediaInfo:
    await store.put("output", data)
    return await probe(store, "output", mime_type=mime_type, limits=limits)


async def test_missing_media_libraries_skip_inspection_and_name_the_install_command(
    objects: WatchedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comfyrelay.extras.find_spec", lambda _name: None)
    assert await store_and_probe(objects, b"PK", "application/zip") == MediaInfo(kind="file")
    with pytest.raises(ConfigurationError, match=r"pip install 'comfyrelay\[media\]'"):
        await store_and_probe(objects, media_samples.image("PNG"), "image/png")


async def test_media_is_inspected_in_every_store(store: ObjectStore) -> None:
    png, mp4, sound = media_samples.image("PNG"), media_samples.video(sound=True), media_samples.wav()
    assert await store_and_probe(store, png, "image/png") == MediaInfo(kind="image", width=64, height=48, frames=1)
    assert await store_and_probe(store, mp4, "video/mp4") == MediaInfo(
        kind="video", width=64, height=48, duration_seconds=1.0, frames=25
    )
    assert await store_and_probe(store, sound, "audio/wav") == MediaInfo(kind="audio", duration_seconds=1.0)
    assert await store_and_probe(store, b"PK", "application/zip") == MediaInfo(kind="file")
    for data, mime_type in ((png[:-20], "image/png"), (mp4[:-500], "video/mp4"), (b"junk" * 9999, "audio/mpeg")):
        with pytest.raises(InvalidInput):
            await store_and_probe(store, data, mime_type)


async def test_missing_file_is_not_found(store: ObjectStore) -> None:
    for mime_type in ("image/png", "video/mp4", "application/zip"):
        with pytest.raises(NotFound):
            await probe(store, "nothing", mime_type=mime_type)


@pytest.mark.parametrize("mime_type", ["image/png", "video/mp4", "audio/mpeg", "application/zip", ""])
async def test_empty_file_is_refused(objects: WatchedObjects, mime_type: str) -> None:
    with pytest.raises(InvalidInput, match=r"^The output is empty\.$"):
        await store_and_probe(objects, b"", mime_type)


@pytest.mark.parametrize("kind", IMAGES)
async def test_image_format_is_read_and_broken_files_are_refused(objects: WatchedObjects, kind: str) -> None:
    data = media_samples.image(kind, (400, 300))
    info = await store_and_probe(objects, data, f"image/{kind.lower()}")
    assert (info.kind, info.width, info.height) == ("image", 400, 300)
    for broken in (data[: len(data) // 2], data[:20], b"x" * 20 + data, b"not an image"):
        with pytest.raises(InvalidInput, match=r"^The output is not a readable image\.$"):
            await store_and_probe(objects, broken, f"image/{kind.lower()}")


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
async def test_frames_of_an_animation_are_counted(objects: WatchedObjects, kind: str) -> None:
    assert (await store_and_probe(objects, media_samples.image(kind, frames=3), "image/webp")).frames == 3


async def test_photo_with_additional_pictures_has_one_frame(objects: WatchedObjects) -> None:
    assert (await store_and_probe(objects, media_samples.image("MPO", frames=2), "image/jpeg")).frames == 1


async def test_png_with_a_flipped_bit_is_refused(objects: WatchedObjects) -> None:
    data = bytearray(media_samples.image("PNG"))
    data[len(data) // 2] ^= 1
    with pytest.raises(InvalidInput):
        await store_and_probe(objects, bytes(data), "image/png")


async def test_image_with_impossible_dimensions_is_refused(objects: WatchedObjects) -> None:
    for width, height, why in (
        (50_000, 50_000, "50000 × 50000 pixels, and at most 100,000,000"),
        (2**31 - 1, 2**31 - 1, "too large"),
        (0, 10, "not a readable image"),
    ):
        with pytest.raises(InvalidInput, match=why):
            await store_and_probe(objects, media_samples.png_that_claims(width, height), "image/png")


@pytest.mark.parametrize(
    ("container", "codec", "mime_type"),
    [
        *(("mp4", "libx264", "video/mp4"), ("mov", "mpeg4", "video/quicktime"), ("webm", "libvpx-vp9", "video/webm")),
        *(
            ("matroska", "libx264", "video/x-matroska"),
            ("avi", "mpeg4", "video/avi"),
            ("mpegts", "libx264", "video/ts"),
        ),
    ],
)
async def test_video_container_is_read_and_broken_files_are_refused(
    objects: WatchedObjects, container: str, codec: str, mime_type: str
) -> None:
    data = media_samples.video(container, codec)
    info = await store_and_probe(objects, data, mime_type)
    assert (info.kind, info.width, info.height) == ("video", 64, 48)
    assert info.duration_seconds == pytest.approx(1, abs=0.1)
    for broken in (data[:100], bytes(len(data)), b"x" * 4000):
        with pytest.raises(InvalidInput, match=r"^The output is not a readable video\.$"):
            await store_and_probe(objects, broken, mime_type)


async def test_truncated_webm_with_complete_first_frames_is_accepted(objects: WatchedObjects) -> None:
    # if the first frames are complete, only the size shows that the rest is missing
    data = media_samples.video("webm", "libvpx-vp9")
    assert (await store_and_probe(objects, data[: len(data) // 2], "video/webm")).kind == "video"


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mp3", "libmp3lame"),
        ("flac", "flac"),
        ("ogg", "libopus"),
        ("ipod", "aac"),
        ("adts", "aac"),
        ("wav", "pcm_s16le"),
    ],
)
async def test_audio_container_is_read_and_broken_files_are_refused(
    objects: WatchedObjects, container: str, codec: str
) -> None:
    data = media_samples.audio(container, codec)
    info = await store_and_probe(objects, data, "audio/mpeg")
    assert (info.kind, info.width) == ("audio", None)
    for broken in (data[:30], b"x" * 4000):
        with pytest.raises(InvalidInput, match=r"^The output is not readable audio\.$"):
            await store_and_probe(objects, broken, "audio/mpeg")


async def test_media_kind_must_match_the_content(objects: WatchedObjects) -> None:
    files = {
        "image": media_samples.image("PNG"),
        "video": media_samples.video(),
        "audio": media_samples.audio("mp4", "aac", cover=True),
    }
    for claimed in files:
        for kind, data in files.items():
            if claimed == kind:
                assert (await store_and_probe(objects, data, f"{claimed}/x")).kind == kind
                continue
            with pytest.raises(InvalidInput):
                await store_and_probe(objects, data, f"{claimed}/x")


async def test_tags_in_another_encoding_are_accepted(objects: WatchedObjects) -> None:
    await store_and_probe(objects, media_samples.wav(tags="Motörhead!".encode("latin-1")), "audio/wav")


def playlists(address: str, file: str) -> dict[str, bytes]:
    segments = f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{address}\n#EXTINF:5,\n{file}\n"
    return {
        "m3u8": f"{segments}#EXT-X-ENDLIST\n".encode(),
        # a relative name, because FFmpeg itself treats absolute ones as unsafe
        "concat": f"ffconcat version 1.0\nfile {Path(file).name}\n".encode(),
        "dash": (
            '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
            'mediaPresentationDuration="PT5S" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011"><Period>'
            '<AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1" width="64" height="48">'
            f"<BaseURL>{address}</BaseURL></Representation></AdaptationSet></Period></MPD>"
        ).encode(),
        "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
        b"a=rtpmap:96 H264/90000\n",
        "svg": f'<svg xmlns="http://www.w3.org/2000/svg"><image href="{address}"/></svg>'.encode(),
    }


@pytest.mark.parametrize("allowed", [False, True], ids=["refused format", "refused access"])
async def test_playlist_opens_no_address_and_no_file(
    objects: WatchedObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, allowed: bool
) -> None:
    # disable the check of formats in this process: the check of accesses must work without it
    monkeypatch.setattr(containers, "FORMATS", dict.fromkeys(["audio", "video"], "hls,concat,dash,sdp,mov"))
    seen = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response(body=media_samples.video("mpegts"))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    (tmp_path / "secret.mp4").write_bytes(media_samples.video())
    monkeypatch.chdir(tmp_path)
    async with TestServer(app) as server:
        for name, data in playlists(str(server.make_url("/a.ts")), str(tmp_path / "secret.mp4")).items():
            for mime_type in ("video/mp4", "audio/mpeg", "video/vnd.apple.mpegurl", "image/png"):
                if not allowed:
                    with pytest.raises(InvalidInput):
                        await store_and_probe(objects, data, mime_type)
                elif mime_type != "image/png":
                    kind: Literal["audio", "video"] = "audio" if mime_type == "audio/mpeg" else "video"
                    with pytest.raises((FFmpegError, MediaRefused)):
                        # in this process, only accesses are checked
                        await asyncio.to_thread(read_container, io.BytesIO(data), kind, ProbeLimits())
            assert seen == [], name


@pytest.mark.parametrize(
    "make",
    [
        *(partial(media_samples.video, container) for container in ("mp4", "mov", "matroska", "avi", "mpegts", "flv")),
        partial(media_samples.video, "webm", "libvpx-vp9"),
        lambda: media_samples.in_fragments(media_samples.video()),
        lambda: media_samples.mkv_that_claims(0.1, media_samples.video("matroska")),
        partial(media_samples.video, "mp4", "libvpx-vp9"),
        partial(media_samples.video, "webm", "libsvtav1"),
        partial(media_samples.video, "avi", "mpeg4"),
        partial(media_samples.video, "avi", "huffyuv", pixels="yuv422p"),
    ],
    ids=[
        "mp4",
        "mov",
        "matroska",
        "avi",
        "mpegts",
        "flv",
        "webm",
        "fragments",
        "claim",
        "vp9",
        "av1",
        "mpeg4",
        "decoded",
    ],
)
def test_frames_and_duration_of_a_video_are_measured(make: Callable[[], bytes]) -> None:
    info = measure_container(io.BytesIO(make()), "video", ProbeLimits())
    assert info.frames == 25
    assert info.duration_seconds == pytest.approx(1, abs=0.1)


def test_cover_does_not_prevent_the_use_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting all packets reads the whole file."""
    data = media_samples.video(cover=True)
    monkeypatch.delattr(containers, "_count_packets")
    assert measure_container(io.BytesIO(data), "video", ProbeLimits()).frames == 25


def test_all_frames_of_a_packet_are_counted() -> None:
    data = media_samples.in_superframes(media_samples.video("webm", "libvpx-vp9", frames=48), frames=8)
    with av.open(io.BytesIO(data), mode="r") as container:
        decoded = len(list(container.decode(video=0)))
    info = measure_container(io.BytesIO(data), "video", ProbeLimits())
    assert info.frames == decoded > 6


@pytest.mark.parametrize(
    "data",
    [media_samples.with_two_tracks(1, 30), media_samples.as_chapter_pictures(media_samples.with_two_tracks(30, 1))],
    ids=["second track", "chapter pictures"],
)
def test_video_with_another_track_of_several_frames_is_refused(data: bytes) -> None:
    """Programs choose different tracks, so a file would cost less than what they load."""
    with pytest.raises(MediaRefused, match="tracks"):
        measure_container(io.BytesIO(data), "video", ProbeLimits())


@pytest.mark.parametrize(
    "data",
    [
        media_samples.mkv_that_claims(0.1, media_samples.audio("matroska", "aac")),
        media_samples.audio("mp3", "mp3"),
        media_samples.audio("mp4", "aac"),
    ],
    ids=["claim", "mp3", "m4a"],
)
def test_duration_of_audio_is_measured(data: bytes) -> None:
    info = measure_container(io.BytesIO(data), "audio", ProbeLimits())
    assert info.duration_seconds == pytest.approx(40 * 1024 / media_samples.RATE, abs=0.1)


@pytest.mark.parametrize("is_whole", [False, True])
async def test_only_the_needed_parts_of_a_large_video_are_read(
    objects: WatchedObjects, root: Path, is_whole: bool
) -> None:
    data = media_samples.video()
    index = data.index(b"moov") - 4
    await objects.put("large", data)
    # 500 MB of padding between the frames and the index, as a sparse file
    with (root / "large").open("r+b") as file:
        file.seek(index)
        file.write((500_000_000).to_bytes(4) + b"free")
        file.seek(index + 500_000_000)
        file.write(data[index:])
    assert (await Probes().probe(objects, "large", mime_type="video/mp4", is_whole=is_whole)).frames == 25
    assert objects.read_bytes < 10_000_000


async def test_bytes_read_are_limited(objects: WatchedObjects) -> None:
    await objects.put("large", media_samples.image("BMP", (2000, 1000)))
    limits = ProbeLimits(max_bytes=2_500_000)
    with pytest.raises(InvalidInput):
        await probe(objects, "large", mime_type="image/bmp", limits=limits)
    assert objects.read_bytes <= 2_500_000


@pytest.mark.parametrize("mime_type", ["image/png", "video/mp4"])
async def test_pixels_decoded_are_limited(objects: WatchedObjects, mime_type: str) -> None:
    data = media_samples.image("PNG") if mime_type == "image/png" else media_samples.video()
    await store_and_probe(objects, data, mime_type, ProbeLimits(max_pixels=64 * 48))
    with pytest.raises(InvalidInput):
        await store_and_probe(objects, data, mime_type, ProbeLimits(max_pixels=64 * 48 - 1))


@pytest.mark.parametrize("mime_type", ["image/png", "video/mp4", "audio/wav"])
async def test_storage_failure_is_not_a_refusal_of_the_file(objects: WatchedObjects, mime_type: str) -> None:
    objects.fails_after = 0
    data = media_samples.image("PNG") if mime_type == "image/png" else media_samples.video(sound=True)
    with pytest.raises(StorageUnavailable, match="on fire"):
        await store_and_probe(objects, data, mime_type)


@pytest.mark.parametrize("mime_type", ["image/png", "video/mp4"])
async def test_slow_store_times_out(objects: WatchedObjects, mime_type: str) -> None:
    objects.delay_seconds = 30
    with pytest.raises(StorageUnavailable, match="in time"):
        await asyncio.wait_for(
            store_and_probe(objects, media_samples.video(), mime_type, ProbeLimits(timeout_seconds=0.2)), 25
        )


async def test_concurrent_inspections_run_in_parallel(objects: WatchedObjects) -> None:
    await objects.put("a", media_samples.video())
    probes = Probes()
    infos = await asyncio.wait_for(
        asyncio.gather(*(probes.probe(objects, "a", mime_type="video/mp4") for _ in range(50))),
        timeout=PATIENCE_SECONDS,
    )
    assert {info.frames for info in infos} == {25}


async def test_error_message_names_the_file(objects: WatchedObjects) -> None:
    await objects.put("a", b"junk")
    with pytest.raises(InvalidInput, match=r"^The input is not a readable video\.$"):
        await probe(objects, "a", mime_type="video/mp4", subject="input")


@pytest.mark.parametrize(
    ("mime_type", "kind"),
    [
        *(("image/png", "image"), ("IMAGE/PNG", "image"), ("video/mp4; codecs=x", "video"), ("audio/mpeg", "audio")),
        *(("image/svg+xml", "file"), ("text/plain", "file"), ("", "file"), ("video", "video"), ("imagery/png", "file")),
    ],
)
def test_media_kind_follows_the_mime_type(mime_type: str, kind: str) -> None:
    assert media_kind(mime_type) == kind
