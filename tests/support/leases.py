"""Lease payloads, and an object storage server that tests control."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from comfyrelay.protocol.worker import AssetDownload, LeasedJob, OutputUrl, Urls
from comfyrelay.worker.lease import Lease


def make_lease(number: int = 17, **more: Any) -> Lease:
    """Return a lease; `more` sets fields of the job or the lease."""
    payload: dict[str, Any] = {
        "workflow": {},
        "assets": [],
        "output_node_id": None,
        "output_extension": "png",
        "output_mime_type": "image/png",
        "input_path_placeholder": None,
        "input_name": None,
        "input_mime_type": None,
        "extra_data": {},
    }
    job: dict[str, Any] = {
        "dispatch_id": number,
        "lease_token": f"{number:08x}-the-rest-of-it",
        "lease_expires_at": "2030-01-01T00:00:00Z",
        "attempt": 1,
        "provider": "self_hosted",
        "tenant_id": "tenant",
        "job_id": f"job-{number}",
        "effect_id": None,
        "workflow_hash": "w",
        "input_url": None,
        "output_url": "http://127.0.0.1:9/none",
        "output_headers": {},
        "max_output_bytes": None,
        "max_output_files": None,
        "ran_out_bytes": None,
    }
    for fields in (payload, job):
        fields |= {name: more.pop(name) for name in fields.keys() & more.keys()}
    leased = LeasedJob.model_validate({**job, "input_payload": payload})
    return Lease(**{"job": leased, "urls": leased.urls, **more})


def make_asset(key: str, *, content: bytes | None = None, **more: Any) -> AssetDownload:
    """Return an effect asset with a hash if there is content, otherwise a file of the user."""
    fields = {
        "placeholder": f"__{key}__",
        "download_url": "http://127.0.0.1:9/none",
        "content_hash": None if content is None else hashlib.sha256(content).hexdigest(),
        "type": "image",
        "is_primary_input": False,
    }
    return AssetDownload.model_validate({"key": key, **fields, **more})


async def no_refresh() -> None:
    raise AssertionError("No new URLs were needed.")


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer_with(status: int, **options: Any) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=status, **options)

    return answer


async def disconnect(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@dataclass(kw_only=True)
class Storage:
    """A server that stores objects; `answers` override the next responses, one per request."""

    server: TestServer
    files: dict[str, bytes] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    requests: list[web.Request] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, name: str) -> str:
        return str(self.server.make_url(f"/{name}"))

    def urls(self, *names: str, headers: dict[str, str] | None = None) -> Urls:
        """Return the URLs of assets, whose names are their keys."""
        return Urls(
            input_url=None,
            output_url=self.url("output"),
            output_headers={"Content-Type": "image/png"} if headers is None else headers,
            assets={name: self.url(name) for name in names},
        )

    def output_url(self, *, headers: dict[str, str] | None = None) -> OutputUrl:
        urls = self.urls(headers=headers)
        return OutputUrl(url=urls.output_url, headers=urls.output_headers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.arrived.set()
        try:
            if self.answers:
                return await self.answers.pop(0)(request)
            name = request.path.lstrip("/")
            if request.method == "PUT":
                self.files[name] = await request.read()
                return web.Response()
            # let other requests arrive in the meantime
            await asyncio.sleep(0.01)
            return web.Response(body=self.files[name]) if name in self.files else web.Response(status=404)
        finally:
            self.at_once -= 1


@asynccontextmanager
async def open_storage() -> AsyncIterator[Storage]:
    app = web.Application(client_max_size=1024**3)
    storage = Storage(server=TestServer(app))
    app.router.add_route("*", "/{path:.+}", storage.handle)
    async with storage.server:
        yield storage
