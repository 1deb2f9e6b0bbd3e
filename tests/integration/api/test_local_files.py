"""Local files: a signed URL allows exactly its own operation."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import httpx
import pytest
from starlette.requests import ClientDisconnect

from comfyrelay.services.operations import readiness
from comfyrelay.services.operations.outages import OutageKind
from comfyrelay.storage.objects import LocalObjects
from tests.support.api import Api, open_api, problem_of
from tests.support.world import SqliteBackend

DATA = bytes(range(256)) * 40
PATH = "tenants/t/ai-jobs/j/cat.png"


@pytest.fixture
async def api(sqlite_backend: SqliteBackend, tmp_path: Path) -> AsyncIterator[Api]:
    """File routes use no database, so one backend is enough."""
    async with open_api(sqlite_backend, tmp_path, allowed_origins=["https://app.test"]) as api:
        yield api


@pytest.fixture
def objects(api: Api) -> LocalObjects:
    assert isinstance(api.engine.objects, LocalObjects)
    return api.engine.objects


@pytest.fixture
def http(api: Api) -> httpx.AsyncClient:
    return api.anonymous.http


@pytest.fixture
async def url(objects: LocalObjects) -> str:
    """Return a URL that serves `DATA`."""
    await objects.put(PATH, DATA)
    return await objects.sign_download(PATH, ttl_seconds=60, filename="My cat.png", content_type="image/png")


def changed(url: str, **query: str) -> str:
    """Return the URL with other query values."""
    parts = urlsplit(url)
    fields = {key: values[0] for key, values in parse_qs(parts.query).items()} | query
    return parts._replace(query=urlencode(fields)).geturl()


class TestDownloads:
    async def test_file_is_served_with_its_name_and_length(self, http: httpx.AsyncClient, url: str) -> None:
        response = await http.get(url)
        assert (response.status_code, response.content) == (200, DATA)
        assert response.headers["Content-Type"] == "image/png"
        assert response.headers["Content-Length"] == str(len(DATA))
        assert response.headers["Content-Disposition"] == 'attachment; filename="My cat.png"'
        assert response.headers["Accept-Ranges"] == "bytes"

    async def test_served_file_is_never_executed(self, http: httpx.AsyncClient, objects: LocalObjects) -> None:
        await objects.put("evil.html", b"<script>alert(1)</script>")
        response = await http.get(await objects.sign_download("evil.html", ttl_seconds=60))
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]

    async def test_range_is_served(self, http: httpx.AsyncClient, url: str) -> None:
        cases: list[tuple[str, int, int | None]] = [
            ("bytes=0-9", 0, 10),
            ("bytes=100-", 100, None),
            ("bytes=-5", -5, None),
            ("bytes=0-999999", 0, None),
            ("bytes=-999999", 0, None),
            (f"bytes={len(DATA) - 1}-", len(DATA) - 1, None),
        ]
        for range_, start, stop in cases:
            response = await http.get(url, headers={"Range": range_})
            part = DATA[start:stop]
            first = start % len(DATA)
            assert (response.status_code, response.content) == (206, part)
            assert response.headers["Content-Range"] == f"bytes {first}-{first + len(part) - 1}/{len(DATA)}"
            assert response.headers["Content-Length"] == str(len(part))

    async def test_unsatisfiable_range_is_416(self, http: httpx.AsyncClient, url: str) -> None:
        for range_ in (f"bytes={len(DATA)}-", "bytes=-0", "bytes=999999-1000000"):
            response = await http.get(url, headers={"Range": range_})
            assert response.status_code == 416
            assert response.headers["Content-Range"] == f"bytes */{len(DATA)}"

    async def test_invalid_range_returns_the_whole_file(self, http: httpx.AsyncClient, url: str) -> None:
        for range_ in ("bytes=0-1,5-6", "bytes=5-2", "bytes=x-", "rows=0-1", "bytes=-", "bytes"):
            response = await http.get(url, headers={"Range": range_})
            assert (response.status_code, response.content) == (200, DATA)

    async def test_empty_file_is_served(self, http: httpx.AsyncClient, objects: LocalObjects) -> None:
        await objects.put("empty.png", b"")
        url = await objects.sign_download("empty.png", ttl_seconds=60)
        assert (await http.get(url)).content == b""
        assert (await http.get(url, headers={"Range": "bytes=0-"})).status_code == 416

    async def test_unchanged_file_is_not_modified(self, http: httpx.AsyncClient, url: str) -> None:
        headers = (await http.get(url)).headers
        for condition in (
            {"If-None-Match": headers["ETag"]},
            {"If-None-Match": f'"other", W/{headers["ETag"]}'},
            {"If-Modified-Since": headers["Last-Modified"]},
        ):
            response = await http.get(url, headers=condition)
            assert (response.status_code, response.content) == (304, b"")
        assert (await http.get(url, headers={"If-None-Match": '"other"'})).status_code == 200

    async def test_range_of_a_changed_file_returns_the_whole_file(self, http: httpx.AsyncClient, url: str) -> None:
        tag = (await http.get(url)).headers["ETag"]
        part = {"Range": "bytes=0-9"}
        assert (await http.get(url, headers={**part, "If-Range": tag})).status_code == 206
        assert (await http.get(url, headers={**part, "If-Range": '"old"'})).status_code == 200

    async def test_head_returns_the_headers_of_get(self, http: httpx.AsyncClient, url: str) -> None:
        response = await http.head(url)
        assert (response.status_code, response.content) == (200, b"")
        same = {name: response.headers[name] for name in ("Content-Length", "ETag", "Content-Type")}
        got = await http.get(url)
        assert same == {name: got.headers[name] for name in same}

    async def test_missing_file_is_404(self, http: httpx.AsyncClient, objects: LocalObjects, url: str) -> None:
        await objects.remove(PATH)
        problem_of(await http.get(url), 404)
        assert (await http.head(url)).status_code == 404


class TestPermission:
    async def test_url_without_a_signature_is_refused(self, http: httpx.AsyncClient, url: str) -> None:
        bare = url.split("?", maxsplit=1)[0]
        for method in ("GET", "HEAD", "PUT"):
            assert (await http.request(method, bare)).status_code == 403

    async def test_signature_covers_path_method_and_query(
        self, http: httpx.AsyncClient, objects: LocalObjects, url: str
    ) -> None:
        await objects.put("tenants/t/uploads/dog.png", b"dog")
        for wrong in (
            url.replace("cat.png?", "dog.png?"),
            changed(url, expires="99999999999"),
            changed(url, name="setup.exe"),
            changed(url, type="text/html"),
            changed(url, signature="0" * 64),
        ):
            problem_of(await http.get(wrong), 403)
        problem_of(await http.put(url, content=b"x"), 403)

    async def test_signed_url_expires(self, http: httpx.AsyncClient, objects: LocalObjects) -> None:
        await objects.put(PATH, DATA)
        response = await http.get(await objects.sign_download(PATH, ttl_seconds=-1))
        assert problem_of(response, 403)["detail"] == "This URL has expired."

    async def test_path_traversal_is_refused(self, http: httpx.AsyncClient) -> None:
        for path in ("../secret", "a/../../secret", "a//b", "a/%2e%2e/b", "a\\b", "a\x00b", ".put-x"):
            for method in ("GET", "PUT"):
                response = await http.request(method, f"/files/{quote(path)}?expires=99999999999&signature=x")
                assert response.status_code in (403, 404, 405)


class TestUploads:
    async def test_uploaded_file_is_stored(self, http: httpx.AsyncClient, objects: LocalObjects) -> None:
        upload = await objects.sign_upload(PATH, content_type="image/png", size=len(DATA), ttl_seconds=60)
        response = await http.put(upload.url, content=DATA, headers=upload.headers)
        assert response.status_code == 200
        assert response.headers["ETag"]
        assert await objects.get(PATH) == DATA

    async def test_upload_of_another_type_or_length_is_refused(
        self, http: httpx.AsyncClient, objects: LocalObjects
    ) -> None:
        upload = await objects.sign_upload(PATH, content_type="image/png", size=3, ttl_seconds=60)
        problem_of(await http.put(upload.url, content=b"abcd", headers=upload.headers), 403)
        problem_of(await http.put(upload.url, content=b"abc", headers={"Content-Type": "text/html"}), 403)
        problem_of(await http.put(upload.url, content=b"abc"), 403)
        problem_of(await http.get(upload.url), 403)
        upload = await objects.sign_upload(PATH, content_type="image/png", max_size=10, ttl_seconds=60)
        response = await http.put(upload.url, content=b"x" * 11, headers=upload.headers)
        assert response.status_code in (413, 422)
        assert not await objects.exists(PATH)

    async def test_upload_without_length_is_counted(self, http: httpx.AsyncClient, objects: LocalObjects) -> None:
        async def pieces(*all_: bytes) -> AsyncIterator[bytes]:
            for chunk in all_:
                yield chunk

        upload = await objects.sign_upload(PATH, content_type="image/png", size=4, ttl_seconds=60)
        for sent in ((b"ab",), (b"ab", b"cd", b"e")):
            response = await http.put(upload.url, content=pieces(*sent), headers=upload.headers)
            problem_of(response, 422)
            assert not await objects.exists(PATH)
        response = await http.put(upload.url, content=pieces(b"ab", b"cd"), headers=upload.headers)
        assert response.status_code == 200

    async def test_interrupted_upload_leaves_no_file(
        self, http: httpx.AsyncClient, objects: LocalObjects, tmp_path: Path
    ) -> None:
        async def torn() -> AsyncIterator[bytes]:
            yield b"ab"
            raise ClientDisconnect  # an interruption, as the application sees it

        upload = await objects.sign_upload(PATH, content_type="image/png", size=4, ttl_seconds=60)
        problem_of(await http.put(upload.url, content=torn(), headers=upload.headers), 422)
        assert not await objects.exists(PATH)
        assert [path for path in tmp_path.rglob("*") if path.name.startswith(".put-")] == []


@pytest.mark.parametrize("is_replaced", [False, True], ids=["missing", "replaced by a file"])
async def test_unavailable_folder_is_503(
    http: httpx.AsyncClient, objects: LocalObjects, url: str, tmp_path: Path, is_replaced: bool
) -> None:
    root = tmp_path / "objects"
    root.rename(tmp_path / "away")
    if is_replaced:
        root.write_bytes(b"")
    problem_of(await http.get(url), 503)
    sent = await objects.sign_upload(PATH, content_type="image/png", ttl_seconds=60)
    problem_of(await http.put(sent.url, content=DATA, headers=sent.headers), 503)
    assert not root.is_dir()


async def test_missing_folder_is_shown_as_an_outage_and_not_recreated(
    api: Api, objects: LocalObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "CACHE_SECONDS", 0.0)
    await api.stop_loops()
    await objects.put(PATH, DATA)
    outages = api.engine.operations.outages
    root = tmp_path / "objects"
    root.rename(tmp_path / "away")
    for _ in range(2):
        await outages.run_once()
        assert OutageKind.STORAGE in {outage.kind for outage in outages.current}
    assert not root.exists()
    (tmp_path / "away").rename(root)
    await outages.run_once()
    assert OutageKind.STORAGE not in {outage.kind for outage in outages.current}


class TestOtherOrigins:
    async def test_any_origin_can_upload(self, http: httpx.AsyncClient, objects: LocalObjects) -> None:
        upload = await objects.sign_upload(PATH, content_type="image/png", ttl_seconds=60)
        asking = {
            "Origin": "https://anywhere.test",
            "Access-Control-Request-Method": "PUT",
            "Access-Control-Request-Headers": "content-type",
        }
        response = await http.options(upload.url, headers=asking)
        assert response.status_code == 200
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert "PUT" in response.headers["Access-Control-Allow-Methods"]
        assert "content-type" in response.headers["Access-Control-Allow-Headers"]
        sent = await http.put(upload.url, content=b"x", headers={**upload.headers, "Origin": "https://anywhere.test"})
        assert (sent.status_code, sent.headers["Access-Control-Allow-Origin"]) == (200, "*")

    async def test_cross_origin_page_can_read_errors(self, http: httpx.AsyncClient, url: str) -> None:
        response = await http.get(url.split("?", maxsplit=1)[0], headers={"Origin": "https://anywhere.test"})
        assert (response.status_code, response.headers["Access-Control-Allow-Origin"]) == (403, "*")

    async def test_api_allows_configured_origins_only(self, http: httpx.AsyncClient) -> None:
        cases: list[tuple[str, bool]] = [("https://app.test", True), ("https://anywhere.test", False)]
        for origin, allowed in cases:
            asking = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            response = await http.options("/api/ai-jobs", headers=asking)
            assert (response.headers.get("Access-Control-Allow-Origin") == origin) is allowed


async def test_no_local_urls_with_remote_storage(
    sqlite_backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    async with open_api(sqlite_backend, tmp_path, storage_url="s3://bucket/prefix") as api:
        problem_of(await api.anonymous.http.get("/files/x"), 404)
