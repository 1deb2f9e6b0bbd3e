"""Check that a stored object is the media that it claims to be."""

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from av.error import FFmpegError

from comfyrelay.errors import ConfigurationError, InvalidInput, NotFound, StorageUnavailable
from comfyrelay.media import containers
from comfyrelay.media.containers import read_container
from comfyrelay.media.info import MediaRefused
from comfyrelay.media.inspection import MediaInfo, ProbeLimits, Probes
from comfyrelay.media_types import media_kind
from comfyrelay.storage.local import LocalObjects
from comfyrelay.storage.objects import ObjectStore
from tests.support import media_samples
from tests.support.world import PATIENCE_SECONDS

IMAGES = ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"]


class Watched(LocalObjects):
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
def objects(root: Path) -> Watched:
    return Watched(root)


async def probe(
    store: ObjectStore, path: str, *, mime_type: str, subject: str = "output", limits: ProbeLimits | None = None
) -> MediaInfo:
    return await Probes(limits).probe(store, path, mime_type=mime_type, subject=subject)


async def look(store: ObjectStore, data: bytes, mime_type: str, limits: ProbeLimits | None = None) -> MediaInfo:
    await store.put("output", data)
    return await probe(store, "output", mime_type=mime_type, limits=limits)


async def test_missing_media_libraries_skip_inspection_and_name_the_install_command(
    objects: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comfyrelay.extras.find_spec", lambda _name: None)
    assert await look(objects, b"PK", "application/zip") == MediaInfo(kind="file")
    with pytest.raises(ConfigurationError, match=r"pip install 'comfyrelay\[media\]'"):
        await look(objects, media_samples.image("PNG"), "image/png")


async def test_media_in_every_store(store: ObjectStore) -> None:
    png, mp4, sound = media_samples.image("PNG"), media_samples.video(sound=True), media_samples.wav()
    assert await look(store, png, "image/png") == MediaInfo(kind="image", width=64, height=48, frames=1)
    assert await look(store, mp4, "video/mp4") == MediaInfo(
        kind="video", width=64, height=48, duration_seconds=1.0, frames=25
    )
    assert await look(store, sound, "audio/wav") == MediaInfo(kind="audio", duration_seconds=1.0)
    assert await look(store, b"PK", "application/zip") == MediaInfo(kind="file")
    for data, mime_type in ((png[:-20], "image/png"), (mp4[:-500], "video/mp4"), (b"junk" * 9999, "audio/mpeg")):
        with pytest.raises(InvalidInput):
            await look(store, data, mime_type)


async def test_missing_file_is_not_found(store: ObjectStore) -> None:
    for mime_type in ("image/png", "video/mp4", "application/zip"):
        with pytest.raises(NotFound):
            await probe(store, "nothing", mime_type=mime_type)


@pytest.mark.parametrize("mime_type", ["image/png", "video/mp4", "audio/mpeg", "application/zip", ""])
async def test_empty_file_is_refused(objects: Watched, mime_type: str) -> None:
    with pytest.raises(InvalidInput, match=r"^The output is empty\.$"):
        await look(objects, b"", mime_type)


@pytest.mark.parametrize("kind", IMAGES)
async def test_images(objects: Watched, kind: str) -> None:
    data = media_samples.image(kind, (400, 300))
    info = await look(objects, data, f"image/{kind.lower()}")
    assert (info.kind, info.width, info.height) == ("image", 400, 300)
    for broken in (data[: len(data) // 2], data[:20], b"x" * 20 + data, b"not an image"):
        with pytest.raises(InvalidInput, match=r"^The output is not a readable image\.$"):
            await look(objects, broken, f"image/{kind.lower()}")


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
async def test_moving_images(objects: Watched, kind: str) -> None:
    assert (await look(objects, media_samples.image(kind, frames=3), "image/webp")).frames == 3


async def test_flipped_bit_in_a_png(objects: Watched) -> None:
    data = bytearray(media_samples.image("PNG"))
    data[len(data) // 2] ^= 1
    with pytest.raises(InvalidInput):
        await look(objects, bytes(data), "image/png")


async def test_picture_that_unpacks_to_gigabytes(objects: Watched) -> None:
    for width, height, why in (
        (50_000, 50_000, "50000 × 50000 pixels, and at most 100,000,000"),
        (2**31 - 1, 2**31 - 1, "too large"),
        (0, 10, "not a readable image"),
    ):
        with pytest.raises(InvalidInput, match=why):
            await look(objects, media_samples.png_that_claims(width, height), "image/png")


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
async def test_videos(objects: Watched, container: str, codec: str, mime_type: str) -> None:
    data = media_samples.video(container, codec)
    info = await look(objects, data, mime_type)
    assert (info.kind, info.width, info.height) == ("video", 64, 48)
    assert info.duration_seconds == pytest.approx(1, abs=0.1)
    for broken in (data[:100], bytes(len(data)), b"x" * 4000):
        with pytest.raises(InvalidInput, match=r"^The output is not a readable video\.$"):
            await look(objects, broken, mime_type)


async def test_video_without_its_end(objects: Watched) -> None:
    with pytest.raises(InvalidInput):
        await look(objects, media_samples.video()[:-500], "video/mp4")
    # if the first frames are complete, only the size shows that the rest is missing
    data = media_samples.video("webm", "libvpx-vp9")
    assert (await look(objects, data[: len(data) // 2], "video/webm")).kind == "video"


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
async def test_audio(objects: Watched, container: str, codec: str) -> None:
    data = media_samples.audio(container, codec)
    info = await look(objects, data, "audio/mpeg")
    assert (info.kind, info.width) == ("audio", None)
    for broken in (data[:30], b"x" * 4000):
        with pytest.raises(InvalidInput, match=r"^The output is not readable audio\.$"):
            await look(objects, broken, "audio/mpeg")


async def test_media_kind_must_match_the_content(objects: Watched) -> None:
    files = {
        "image": media_samples.image("PNG"),
        "video": media_samples.video(),
        "audio": media_samples.audio("mp4", "aac", cover=True),
    }
    for claimed in files:
        for kind, data in files.items():
            if claimed == kind:
                assert (await look(objects, data, f"{claimed}/x")).kind == kind
                continue
            with pytest.raises(InvalidInput):
                await look(objects, data, f"{claimed}/x")


async def test_tags_in_another_encoding_do_no_harm(objects: Watched) -> None:
    await look(objects, media_samples.wav(tags="Motörhead!".encode("latin-1")), "audio/wav")


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


@pytest.mark.parametrize("allowed", [False, True], ids=["by format", "by what may be opened"])
async def test_playlist_opens_nothing(
    objects: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, allowed: bool
) -> None:
    # the second check must work without the first
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
                        await look(objects, data, mime_type)
                elif mime_type != "image/png":
                    kind: Literal["audio", "video"] = "audio" if mime_type == "audio/mpeg" else "video"
                    with pytest.raises((FFmpegError, MediaRefused)):
                        # here the first check is disabled
                        await asyncio.to_thread(read_container, io.BytesIO(data), kind, ProbeLimits())
            assert seen == [], name


async def test_only_the_needed_parts_of_a_large_video_are_read(objects: Watched, root: Path) -> None:
    data = media_samples.video()
    index = data.index(b"moov") - 4
    await objects.put("large", data)
    # 500 MB of padding between the frames and the index, as a sparse file
    with (root / "large").open("r+b") as file:
        file.seek(index)
        file.write((500_000_000).to_bytes(4) + b"free")
        file.seek(index + 500_000_000)
        file.write(data[index:])
    assert (await probe(objects, "large", mime_type="video/mp4")).frames == 25
    assert objects.read_bytes < 10_000_000


async def test_no_more_is_read_than_allowed(objects: Watched) -> None:
    await objects.put("large", media_samples.image("BMP", (2000, 1000)))
    limits = ProbeLimits(max_bytes=2_500_000)
    with pytest.raises(InvalidInput):
        await probe(objects, "large", mime_type="image/bmp", limits=limits)
    assert objects.read_bytes <= 2_500_000


@pytest.mark.parametrize("mime_type", ["image/png", "video/mp4"])
async def test_no_more_is_decoded_than_allowed(objects: Watched, mime_type: str) -> None:
    data = media_samples.image("PNG") if mime_type == "image/png" else media_samples.video()
    await look(objects, data, mime_type, ProbeLimits(max_pixels=64 * 48))
    with pytest.raises(InvalidInput):
        await look(objects, data, mime_type, ProbeLimits(max_pixels=64 * 48 - 1))


@pytest.mark.parametrize("mime_type", ["image/png", "video/mp4", "audio/wav"])
async def test_store_that_fails_is_not_the_fault_of_the_file(objects: Watched, mime_type: str) -> None:
    objects.fails_after = 0
    data = media_samples.image("PNG") if mime_type == "image/png" else media_samples.video(sound=True)
    with pytest.raises(StorageUnavailable, match="on fire"):
        await look(objects, data, mime_type)


@pytest.mark.parametrize("mime_type", ["image/png", "video/mp4"])
async def test_slow_store_is_not_waited_for_long(objects: Watched, mime_type: str) -> None:
    objects.delay_seconds = 30
    with pytest.raises(StorageUnavailable, match="in time"):
        await asyncio.wait_for(look(objects, media_samples.video(), mime_type, ProbeLimits(timeout_seconds=0.2)), 25)


async def test_concurrent_inspections_run_in_parallel(objects: Watched) -> None:
    await objects.put("a", media_samples.video())
    probes = Probes()
    infos = await asyncio.wait_for(
        asyncio.gather(*(probes.probe(objects, "a", mime_type="video/mp4") for _ in range(50))),
        timeout=PATIENCE_SECONDS,
    )
    assert {info.frames for info in infos} == {25}


async def test_error_message_names_the_file(objects: Watched) -> None:
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
def test_kind_of_a_type(mime_type: str, kind: str) -> None:
    assert media_kind(mime_type) == kind
