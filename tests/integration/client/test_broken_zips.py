"""An interrupted download is visibly broken, so that no user mistakes it for a complete one."""

import io
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from comfyrelay.errors import StorageUnavailable
from comfyrelay.storage.local import LocalObjects
from tests.support.api_calls import complete, lease
from tests.support.client_site import Site


async def create_outputs(site: Site, count: int) -> list[str]:
    """Complete this many jobs; return their outputs."""
    ids = []
    for _ in range(count):
        job = await site.submit()
        await complete(site.api, site.worker, await lease(site.worker))
        ids.append((await site.user.get(f"/api/ai-jobs/{job['id']}"))["outputs"][0]["file_id"])
    return ids


async def download(site: Site, ids: list[str]) -> tuple[bytes, Exception | None]:
    """Return the bytes received over the socket, and the error that ended the download, if any."""
    url = (await site.user.post("/api/gallery/zip", {"ids": ids}))["url"]
    found = b""
    async with (
        httpx.AsyncClient(base_url=site.url, headers=site.user.headers) as http,
        http.stream("GET", url) as answer,
    ):
        assert answer.status_code == 200
        try:
            async for piece in answer.aiter_raw():
                found += piece
        except httpx.HTTPError as error:
            return found, error
    return found, None


@pytest.fixture
async def outputs(site: Site) -> list[str]:
    return await create_outputs(site, 2)


async def test_zip_is_complete(site: Site, outputs: list[str]) -> None:
    found, error = await download(site, outputs)
    assert error is None
    assert len(zipfile.ZipFile(io.BytesIO(found)).namelist()) == 2


@pytest.mark.parametrize("how", ["the storage fails", "the file is shorter than it was"])
async def test_storage_failure_breaks_the_download(
    site: Site, outputs: list[str], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LocalObjects.stream
    streamed: list[str] = []

    async def broken(self: LocalObjects, path: str, **options: Any) -> AsyncIterator[bytes]:
        streamed.append(path)
        async for piece in whole(self, path, **options):
            if len(streamed) == 1:
                yield piece
                continue
            yield piece[: len(piece) // 2]
            if how == "the storage fails":
                raise StorageUnavailable("The disk is gone.")

    monkeypatch.setattr(LocalObjects, "stream", broken)
    found, error = await download(site, outputs)
    assert len(streamed) == 2
    assert isinstance(error, httpx.RemoteProtocolError)
    assert found
    assert not zipfile.is_zipfile(io.BytesIO(found))
