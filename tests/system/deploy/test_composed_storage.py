"""A browser uploads to the storage of the compose file, and plays a video whose index is at the end."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from playwright.async_api import Browser

from comfyrelay.errors import ConfigurationError
from comfyrelay.storage.s3 import S3Objects
from tests.support.media_samples import video
from tests.support.storage import ACCESS_KEY, BUCKET, SECRET_KEY, serve_composed_s3
from tests.support.world import PATIENCE_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="session")

PLAY = """
(url) => new Promise((resolve, reject) => {
  const video = Object.assign(document.createElement("video"), {muted: true, src: url});
  video.onerror = () => reject(new Error(video.error.message));
  video.onseeked = () => resolve([video.videoWidth, video.duration, video.currentTime]);
  video.onloadeddata = () => { video.currentTime = 3; };
  document.body.append(video);
})
"""


@pytest_asyncio.fixture(loop_scope="session")
async def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S3Objects]:
    with serve_composed_s3(tmp_path / "s3") as url:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
        store = S3Objects(BUCKET, endpoint_url=url)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await _bucket_exists(store)
        yield store


async def _bucket_exists(store: S3Objects) -> None:
    """Return whether the bucket exists, because the storage answers before it has created the bucket."""
    while True:
        try:
            return await store.check()
        except ConfigurationError:
            await asyncio.sleep(0.05)


async def test_chromium_plays_a_video_with_its_index_at_the_end(chromium: Browser, storage: S3Objects) -> None:
    # Chromium without licensed codecs decodes VP9.
    content = video("mp4", "libvpx-vp9", frames=100, size=(320, 240))
    assert content.index(b"mdat") < content.index(b"moov")
    await storage.put("film.mp4", content)
    url = await storage.sign_download("film.mp4", ttl_seconds=600, content_type="video/mp4")
    async with httpx.AsyncClient() as http:
        part = await http.get(url, headers={"Range": "bytes=100-199"})
        rest = await http.get(url, headers={"Range": f"bytes={len(content) - 50}-"})
    assert (part.status_code, part.content) == (206, content[100:200])
    assert part.headers["content-range"] == f"bytes 100-199/{len(content)}"
    assert (rest.status_code, rest.content) == (206, content[-50:])
    page = await chromium.new_page()
    try:
        width, duration, now = await page.evaluate(PLAY, url)
    finally:
        await page.close()
    assert (width, duration, now) == (320, 4, 3)


async def test_page_of_the_server_may_upload_once_cors_is_set(chromium: Browser, storage: S3Objects) -> None:
    async with TestServer(web.Application()) as server:
        origin = str(server.make_url("/")).rstrip("/")
        await storage.ensure_cors([origin])
        signed = await storage.sign_upload("a.txt", ttl_seconds=600, content_type="text/plain", size=5)
        page = await chromium.new_page()
        try:
            await page.goto(origin)
            send = "([url, headers]) => fetch(url, {method: 'PUT', headers, body: 'hello'}).then((a) => a.status)"
            assert await page.evaluate(send, [signed.url, signed.headers]) == 200
        finally:
            await page.close()
    assert await storage.get("a.txt") == b"hello"


async def test_upload_url_cannot_replace_an_object(storage: S3Objects) -> None:
    signed = await storage.sign_upload("a.txt", ttl_seconds=600, content_type="text/plain", size=5, once=True)
    async with httpx.AsyncClient() as http:
        answers = [await http.put(signed.url, content=text, headers=signed.headers) for text in (b"small", b"large")]
    assert [answer.status_code for answer in answers] == [200, 412]
    assert await storage.get("a.txt") == b"small"
