"""The S3 store reads its configuration and explains errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from xml.etree import ElementTree

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from comfyrelay.errors import ConfigurationError, NotFound, StorageUnavailable
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.storage.s3 import S3Objects
from tests.support.storage import BUCKET, paths_in, read

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def calls(store: ObjectStore) -> list[Awaitable[object]]:
    return [
        *(store.check(), store.put("a", b"x"), store.get("a"), read(store, "a", start=1), paths_in(store)),
        store.remove_many(["a"]),
    ]


@asynccontextmanager
async def open_store(handler: Handler, prefix: str = "") -> AsyncIterator[S3Objects]:
    """Open a store on a server that answers with this handler."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        yield S3Objects(BUCKET, prefix, endpoint_url=str(server.make_url("/")))


def answer(status: int, code: str) -> web.Response:
    return web.Response(status=status, content_type="text/xml", text=f"<Error><Code>{code}</Code></Error>")


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
async def test_wrong_credentials_are_named(aws: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "wrong")
    store = S3Objects(BUCKET)
    for call in [*calls(store), store.stat("a")]:
        with pytest.raises(ConfigurationError, match="Check the credentials"):
            await call


async def test_missing_credentials_are_named(aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = S3Objects(BUCKET)
    for call in [*calls(store), store.stat("a"), store.sign_download("a", ttl_seconds=1)]:
        with pytest.raises(ConfigurationError, match="AWS_ACCESS_KEY_ID"):
            await call


async def test_wrong_bucket_is_named(aws: None) -> None:
    for call in calls(S3Objects("no-such-bucket")):
        with pytest.raises(ConfigurationError, match="no S3 bucket 'no-such-bucket'"):
            await call


@pytest.mark.parametrize("bucket", ["no bucket", "a/b", "ü"])
async def test_invalid_bucket_name_is_refused(aws: None, bucket: str) -> None:
    with pytest.raises(ConfigurationError):
        await S3Objects(bucket).check()


def test_wrong_endpoint_is_named(aws: None) -> None:
    with pytest.raises(ConfigurationError, match="not a url"):
        S3Objects(BUCKET, endpoint_url="not a url")


async def test_unreachable_server_is_unavailable(aws: None, unused_tcp_port: int) -> None:
    store = S3Objects(BUCKET, endpoint_url=f"http://127.0.0.1:{unused_tcp_port}")
    for call in (store.check(), store.stat("a")):
        with pytest.raises(StorageUnavailable, match="cannot be reached"):
            await call


async def test_failing_server_is_tried_three_times(aws: None) -> None:
    seen = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.method)
        return answer(503, "SlowDown")

    async with open_store(handle) as store:
        with pytest.raises(StorageUnavailable, match="SlowDown"):
            await store.get("a")
    assert seen == ["GET"] * 3


async def test_truncated_answer_is_an_error(aws: None) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"only a part")
        assert request.transport is not None
        request.transport.close()
        return response

    async with open_store(handle) as store:
        for call in (store.get("a"), read(store, "a", start=3)):
            with pytest.raises(StorageUnavailable):
                await call


async def test_listing_joins_all_pages(aws: None) -> None:
    async def handle(request: web.Request) -> web.Response:
        page = int(request.query.get("continuation-token", "1"))
        more = f"<NextContinuationToken>{page + 1}</NextContinuationToken>" if page < 3 else ""
        entry = f"<Key>p/{page}</Key><Size>{page}</Size><LastModified>2030-01-01T00:00:00Z</LastModified>"
        # consoles that show folders create such markers
        marker = entry.replace("</Key>", "/</Key>")
        contents = f"<Contents>{marker}</Contents><Contents>{entry}</Contents>"
        text = f"<IsTruncated>{str(page < 3).lower()}</IsTruncated>{more}{contents}"
        return web.Response(content_type="text/xml", text=f"<ListBucketResult>{text}</ListBucketResult>")

    async with open_store(handle, "p") as store:
        assert [(entry.path, entry.size) async for entry in store.list()] == [("1", 1), ("2", 2), ("3", 3)]


async def test_large_removal_is_split_into_batches(aws: None) -> None:
    batches = []

    async def handle(request: web.Request) -> web.Response:
        batches.append((await request.read()).count(b"<Key>"))
        failed = "<Error><Key>p/x</Key><Code>InternalError</Code></Error>" if len(batches) == 3 else ""
        return web.Response(content_type="text/xml", text=f"<DeleteResult>{failed}</DeleteResult>")

    async with open_store(handle) as store:
        with pytest.raises(StorageUnavailable, match=r"1 of 500 objects \(InternalError\)"):
            await store.remove_many(f"a/{number}" for number in range(2500))
    assert batches == [1000, 1000, 500]


async def test_cors_rule_is_added_and_updated(aws: None) -> None:
    rules = ["<CORSRule><ID>theirs</ID><AllowedMethod>GET</AllowedMethod><AllowedOrigin>*</AllowedOrigin></CORSRule>"]

    async def handle(request: web.Request) -> web.Response:
        if request.method == "PUT":
            rules[:] = [ElementTree.tostring(rule).decode() for rule in ElementTree.fromstring(await request.read())]
        elif not rules:
            return answer(404, "NoSuchCORSConfiguration")
        text = f"<CORSConfiguration>{''.join(rules)}</CORSConfiguration>"
        return web.Response(content_type="text/xml", text=text.replace("ns0:", ""))

    async with open_store(handle) as store:
        await store.ensure_cors(["https://old.test"])
        await store.ensure_cors(["https://new.test", "https://other.test"])
        assert len(rules) == 2
        assert "theirs" in rules[0]
        assert all(value in rules[1] for value in ("https://new.test", "https://other.test", "PUT"))
        assert "https://old.test" not in rules[1]
        rules.clear()
        await store.ensure_cors(["https://new.test"])
        assert len(rules) == 1


async def test_server_without_cors_support_is_reported_with_advice(s3: S3Objects) -> None:
    with pytest.raises(ConfigurationError, match=r"allow GET, HEAD and PUT from https://a\.test"):
        await s3.ensure_cors(["https://a.test"])


@pytest.mark.parametrize(
    ("environment", "start"),
    [
        ({"AWS_REGION": "eu-central-1"}, "https://bucket.s3.eu-central-1.amazonaws.com/p/a?"),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, "https://bucket.s3.eu-west-1.amazonaws.com/p/a?"),
        ({"AWS_ENDPOINT_URL_S3": "https://minio.test:9000"}, "https://minio.test:9000/bucket/p/a?"),
    ],
)
async def test_region_and_endpoint_come_from_the_aws_variables(
    aws: None, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], start: str
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    url = await S3Objects("bucket", "p").sign_download("a", ttl_seconds=60)
    assert url.startswith(start)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    assert f"%2F{region}%2Fs3%2F" in url


async def test_prefixes_are_separate_stores(aws: None) -> None:
    one, other = S3Objects(BUCKET, "prefix/one"), S3Objects(BUCKET, "/prefix/other/")
    await asyncio.gather(one.put("a", b"1"), other.put("a", b"2"))
    assert [await one.get("a"), await other.get("a")] == [b"1", b"2"]
    assert await paths_in(one) == ["a"]
    await one.remove("a")
    with pytest.raises(NotFound):
        await one.get("a")
    assert await other.exists("a")
