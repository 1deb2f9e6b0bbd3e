"""Pre-signed URLs of every store, called over HTTP as a browser or a worker calls them."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import httpx
import pytest
from botocore.exceptions import ClientError

from comfyrelay.errors import ConfigurationError, InvalidInput, StorageUnavailable
from comfyrelay.storage.local import LocalObjects
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.storage.paths import already_uploaded
from comfyrelay.storage.s3 import S3Objects
from tests.support.storage import Clock, paths_in

PATH = "tenants/7/ai-jobs/1/ü output.png"
PNG = {"Content-Type": "image/png"}
# rclone answers 400 to an expired URL, and AWS answers 403
REFUSED = (400, 403)


async def test_uploaded_object_can_be_downloaded(store: ObjectStore, http: httpx.AsyncClient) -> None:
    upload = await store.sign_upload(PATH, content_type="image/png", size=5, max_size=10, ttl_seconds=60)
    assert (upload.method, upload.headers) == ("PUT", PNG)
    answer = await http.request(upload.method, upload.url, headers=upload.headers, content=b"12345")
    assert answer.status_code == 200
    assert await store.get(PATH) == b"12345"
    stat = await store.stat(PATH)
    assert stat is not None
    assert stat.content_type == "image/png"

    answer = await http.get(await store.sign_download(PATH, ttl_seconds=60))
    assert (answer.status_code, answer.content) == (200, b"12345")
    assert answer.headers["Content-Type"] == "image/png"
    assert "Content-Disposition" not in answer.headers


async def test_large_and_empty_uploads_are_accepted(store: ObjectStore, http: httpx.AsyncClient) -> None:
    for data, size in ((bytes(range(256)) * 20_000, None), (b"", 0)):
        upload = await store.sign_upload(PATH, content_type="video/mp4", size=size, ttl_seconds=60)
        assert (await http.put(upload.url, headers=upload.headers, content=data)).status_code == 200
        assert await store.get(PATH) == data


async def test_upload_that_differs_from_the_signature_is_refused(store: ObjectStore, http: httpx.AsyncClient) -> None:
    upload = await store.sign_upload(PATH, content_type="image/png", size=5, ttl_seconds=60)
    other_type = {"Content-Type": "text/html"}
    for headers, content in (other_type, b"12345"), ({}, b"12345"), (PNG, b"1234"), (PNG, b"123456"), (PNG, b""):
        assert (await http.put(upload.url, headers=headers, content=content)).status_code == 403
    assert await paths_in(store) == []


async def test_chunked_upload_cannot_exceed_its_size(store: ObjectStore, http: httpx.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"123"
        yield b"456"

    upload = await store.sign_upload(PATH, content_type="image/png", size=5, ttl_seconds=60)
    assert (await http.put(upload.url, headers=PNG, content=pieces())).status_code in (403, 422)
    assert await paths_in(store) == []


async def test_oversized_upload_is_not_signed(store: ObjectStore) -> None:
    with pytest.raises(InvalidInput, match="at most 10 bytes"):
        await store.sign_upload(PATH, content_type="image/png", size=11, max_size=10, ttl_seconds=60)


async def test_upload_url_allows_only_uploads(store: ObjectStore, http: httpx.AsyncClient) -> None:
    await store.put(PATH, b"old")
    upload = await store.sign_upload(PATH, content_type="image/png", ttl_seconds=60)
    for method in ("GET", "HEAD", "POST", "DELETE"):
        assert (await http.request(method, upload.url, headers=PNG)).status_code == 403
    assert await store.get(PATH) == b"old"


async def test_download_url_allows_only_downloads(store: ObjectStore, http: httpx.AsyncClient) -> None:
    await store.put(PATH, b"old")
    url = await store.sign_download(PATH, ttl_seconds=60, content_type="image/png")
    for method in ("PUT", "POST", "DELETE"):
        assert (await http.request(method, url, headers=PNG, content=b"new")).status_code == 403
    assert await store.get(PATH) == b"old"


async def test_upload_url_with_once_cannot_replace_an_object(local: LocalObjects, http: httpx.AsyncClient) -> None:
    upload = await local.sign_upload(PATH, content_type="image/png", size=3, ttl_seconds=60, once=True)
    assert (await http.put(upload.url, headers=upload.headers, content=b"one")).status_code == 200
    answer = await http.put(upload.url, headers=upload.headers, content=b"two")
    assert (answer.status_code, answer.text) == (409, str(already_uploaded()))
    # the response to an upload may be lost, so the same bytes are accepted again
    assert (await http.put(upload.url, headers=upload.headers, content=b"one")).status_code == 200
    assert await local.get(PATH) == b"one"
    assert await paths_in(local) == [PATH]


async def test_s3_upload_url_with_once_cannot_replace_an_object(
    s3_with_conditions: S3Objects, http: httpx.AsyncClient
) -> None:
    store = s3_with_conditions
    upload = await store.sign_upload(PATH, content_type="image/png", size=3, ttl_seconds=60, once=True)
    assert upload.headers == {**PNG, "If-None-Match": "*"}
    signed = dict(parse_qsl(urlsplit(upload.url).query))["X-Amz-SignedHeaders"]
    assert signed == "content-length;content-type;host;if-none-match"
    answers = [await http.put(upload.url, headers=upload.headers, content=data) for data in (b"one", b"two")]
    assert [answer.status_code for answer in answers] == [200, 412]
    assert await store.get(PATH) == b"one"
    assert await paths_in(store) == [PATH]


async def test_s3_server_without_conditional_writes_accepts_uploads(s3: S3Objects, http: httpx.AsyncClient) -> None:
    # rclone ignores the condition
    upload = await s3.sign_upload(PATH, content_type="image/png", size=3, ttl_seconds=60, once=True)
    assert upload.headers == PNG
    assert (await http.put(upload.url, headers=upload.headers, content=b"one")).status_code == 200
    assert await paths_in(s3) == [PATH]


@pytest.mark.parametrize("code", ["NotImplemented", "InvalidArgument"])
async def test_s3_server_that_refuses_conditions_accepts_uploads(
    s3: S3Objects, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    def refuse(**arguments: object) -> None:
        if "IfNoneMatch" in arguments:
            raise ClientError({"Error": {"Code": code}}, "PutObject")

    monkeypatch.setattr(s3._client, "put_object", refuse)
    assert (await s3.sign_upload(PATH, content_type="image/png", ttl_seconds=60, once=True)).headers == PNG


@pytest.mark.parametrize("code", ["InvalidArgument", "InvalidRequest", "400"])
async def test_s3_server_that_refuses_every_write_fails_the_check_for_conditional_writes(
    s3_with_conditions: S3Objects, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    store = s3_with_conditions

    def refuse(**_arguments: object) -> None:
        raise ClientError({"Error": {"Code": code}}, "PutObject")

    monkeypatch.setattr("comfyrelay.storage.s3.FAILED_CHECK_SECONDS", 0)
    with monkeypatch.context() as refused:
        refused.setattr(store._client, "put_object", refuse)
        with pytest.raises(ConfigurationError, match=code):
            await store.sign_upload(PATH, content_type="image/png", ttl_seconds=60, once=True)
    upload = await store.sign_upload(PATH, content_type="image/png", ttl_seconds=60, once=True)
    assert upload.headers == {**PNG, "If-None-Match": "*"}


async def test_failed_check_for_conditional_writes_is_shared_and_remembered(
    s3: S3Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[object] = []

    def fail(**arguments: object) -> None:
        checks.append(arguments["Key"])
        raise ClientError({"Error": {"Code": "SlowDown"}}, "PutObject")

    async def sign() -> object:
        return await s3.sign_upload(PATH, content_type="image/png", ttl_seconds=60, once=True)

    monkeypatch.setattr("comfyrelay.storage.s3.FAILED_CHECK_SECONDS", 3600)
    monkeypatch.setattr(s3._client, "put_object", fail)
    failures = await asyncio.gather(*(sign() for _ in range(5)), return_exceptions=True)
    with pytest.raises(StorageUnavailable, match="SlowDown"):
        await sign()
    assert [type(failure) for failure in failures] == [StorageUnavailable] * 5
    assert len(checks) == 1


async def test_every_part_of_a_url_is_signed(store: ObjectStore, http: httpx.AsyncClient) -> None:
    await store.put(PATH, b"old")
    await store.put("tenants/8/secret", b"secret")
    upload = await store.sign_upload(PATH, content_type="image/png", size=3, max_size=9, ttl_seconds=60, once=True)
    download = await store.sign_download(PATH, ttl_seconds=60, filename="a.png", content_type="image/png")
    for method, url in (("PUT", upload.url), ("GET", download)):
        parts = urlsplit(url)
        fields = parse_qsl(parts.query)
        others = [[*fields[:at], (key, _other(value)), *fields[at + 1 :]] for at, (key, value) in enumerate(fields)]
        others += [[*fields[:at], *fields[at + 1 :]] for at in range(len(fields))]
        changed = [urlunsplit(parts._replace(query=urlencode(other))) for other in others]
        changed.append(url.replace("tenants/7/ai-jobs/1/%C3%BC%20output.png", "tenants/8/secret"))
        changed.append(urlunsplit(parts._replace(query="")))
        for changed_url in changed:
            content = b"new" if method == "PUT" else None
            answer = await http.request(method, changed_url, headers=PNG, content=content)
            assert answer.status_code in REFUSED, changed_url
    assert await store.get(PATH) == b"old"


def _other(value: str) -> str:
    """Return another value that looks like this one."""
    return value[:-1] + ("1" if value[-1] != "1" else "2")


async def test_url_expires(store: ObjectStore, http: httpx.AsyncClient, clock: Clock) -> None:
    await store.put(PATH, b"old")
    upload = await store.sign_upload(PATH, content_type="image/png", ttl_seconds=1)
    download = await store.sign_download(PATH, ttl_seconds=1)
    if isinstance(store, LocalObjects):
        clock.later_seconds = 2
    else:
        # the S3 server has its own clock, in whole seconds
        await asyncio.sleep(2.1)
    assert (await http.put(upload.url, headers=PNG, content=b"new")).status_code in REFUSED
    assert (await http.get(download)).status_code in REFUSED
    assert await store.get(PATH) == b"old"


async def test_url_states_its_expiry(store: ObjectStore, clock: Clock) -> None:
    upload = await store.sign_upload(PATH, content_type="image/png", ttl_seconds=900)
    assert 890 < (upload.expires_at - clock()).total_seconds() <= 901


async def test_missing_object_answers_404(store: ObjectStore, http: httpx.AsyncClient) -> None:
    assert (await http.get(await store.sign_download(PATH, ttl_seconds=60))).status_code == 404


async def test_content_type_is_signed_into_a_download(store: ObjectStore, http: httpx.AsyncClient) -> None:
    await store.put(PATH, b"old")
    answer = await http.get(await store.sign_download(PATH, ttl_seconds=60, content_type="video/mp4"))
    assert answer.headers["Content-Type"] == "video/mp4"


FILENAMES = {
    "my video.mp4": 'attachment; filename="my video.mp4"',
    'say "hi".mp4': "attachment; filename=\"say _hi_.mp4\"; filename*=UTF-8''say%20%22hi%22.mp4",
    "a\r\nSet-Cookie: x=1.mp4": 'attachment; filename="aSet-Cookie: x=1.mp4"',
    "Köln 😀.mp4": "attachment; filename=\"K_ln _.mp4\"; filename*=UTF-8''K%C3%B6ln%20%F0%9F%98%80.mp4",
}


async def test_file_name_is_signed_into_a_download(store: ObjectStore, http: httpx.AsyncClient) -> None:
    await store.put(PATH, b"old")
    for filename, header in FILENAMES.items():
        answer = await http.get(await store.sign_download(PATH, ttl_seconds=60, filename=filename))
        assert answer.status_code == 200
        assert answer.headers["Content-Disposition"] == header
        assert "Set-Cookie" not in answer.headers


async def test_invalid_content_type_is_refused(store: ObjectStore) -> None:
    for content_type in ("", "image", "image/png\r\nX: 1", "image/png\n", "image/png; x", "ä/b", "a/" + "b" * 300):
        with pytest.raises(InvalidInput, match="content type"):
            await store.sign_upload(PATH, content_type=content_type, ttl_seconds=60)
        with pytest.raises(InvalidInput, match="content type"):
            await store.sign_download(PATH, content_type=content_type, ttl_seconds=60)


async def test_local_download_url_allows_head(local: LocalObjects, http: httpx.AsyncClient) -> None:
    # S3 signs the method
    await local.put(PATH, b"12345")
    answer = await http.head(await local.sign_download(PATH, ttl_seconds=60))
    assert (answer.status_code, answer.headers["Content-Length"]) == (200, "5")


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_local_upload_is_limited_to_the_largest_size(
    local: LocalObjects, http: httpx.AsyncClient, *, is_chunked: bool
) -> None:
    # a pre-signed S3 PUT cannot limit the size
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x"

    upload = await local.sign_upload(PATH, content_type="image/png", max_size=10, ttl_seconds=60)
    answer = await http.put(upload.url, headers=PNG, content=pieces() if is_chunked else b"x" * 11)
    assert answer.status_code == 422
    assert "at most 10 bytes" in answer.text
    assert await paths_in(local) == []
    assert (await http.put(upload.url, headers=PNG, content=b"x" * 10)).status_code == 200


async def test_s3_signs_length_and_content_type(s3: S3Objects) -> None:
    known = await s3.sign_upload(PATH, content_type="image/png", size=5, ttl_seconds=60)
    unknown = await s3.sign_upload(PATH, content_type="image/png", max_size=5, ttl_seconds=60)
    signed = [dict(parse_qsl(urlsplit(upload.url).query))["X-Amz-SignedHeaders"] for upload in (known, unknown)]
    assert signed == ["content-length;content-type;host", "content-type;host"]
    assert "checksum" not in known.url.lower()


async def test_s3_url_is_valid_for_at_most_seven_days(s3: S3Objects) -> None:
    with pytest.raises(ConfigurationError, match="seven days"):
        await s3.sign_download(PATH, ttl_seconds=7 * 24 * 3600 + 1)
