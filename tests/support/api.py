"""An API over fresh databases and object storage, with a caller for each role."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
from fastapi import FastAPI
from starlette.routing import BaseRoute, Route

from comfyrelay.domain.records.accounts import User
from comfyrelay.server.app import create_app
from comfyrelay.server.http.context import Context
from comfyrelay.server.http.secrets import Secrets
from comfyrelay.services.engine import Engine, _every
from comfyrelay.services.hooks import Hooks
from comfyrelay.settings import Settings
from comfyrelay.store.notify import NotifyChannel
from tests.support.world import FREE_WORKFLOWS, GRAPH, PROMPT, Backend, Clock

FLEET_SECRET = "fleet-secret-of-production"
SECRETS = Secrets(
    fleet={"production": [FLEET_SECRET, "an-older-secret-of-production"], "staging": ["fleet-secret-of-staging"]},
    signing=["a-signing-secret-of-the-tests"],
)
# Loops with a shorter interval run as usual, because users see their results.
SOON_SECONDS = 1.0
PASSWORD = "correct horse battery"
# The key is whether the API serves local files.
_prepared_routes: dict[bool, list[BaseRoute]] = {}


@dataclass
class Caller:
    """A client of the API."""

    http: httpx.AsyncClient
    headers: Mapping[str, str] = field(default_factory=dict)
    # the account, if the caller is a user
    user: User | None = None

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        if body is not None:
            options["json"] = body
        return await self.http.request(method, path, headers=headers, **options)

    async def get(self, path: str, **options: Any) -> Any:
        """Return the data of a successful response."""
        return data_of(await self.call("GET", path, **options))

    async def post(self, path: str, body: Any = None, **options: Any) -> Any:
        return data_of(await self.call("POST", path, {} if body is None else body, **options))


def data_of(response: httpx.Response) -> Any:
    assert response.is_success, f"{response.status_code} {response.text}"
    answer = response.json()
    # messages are for people and contain no class names
    assert not re.search(r"\b\w+\.[A-Z]", answer["message"]), answer["message"]
    return answer["data"]


def problem_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """Return the problem details of a response with this status."""
    assert response.status_code == status, f"{response.status_code} {response.text}"
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    assert found["status"] == status
    assert found.keys() >= {"type", "title", "detail"}
    return found


@dataclass
class Api:
    """An API and its callers: `anonymous` is not signed in, and the methods create the others."""

    context: Context
    clock: Clock
    anonymous: Caller

    @property
    def engine(self) -> Engine:
        return self.context.engine

    async def user(self, email: str = "ada@example.com", *, is_admin: bool = False, tokens: int = 0) -> Caller:
        """Create a user who is signed in by an API token."""
        user = await self.engine.accounts.sign_in.register(email=email, password=PASSWORD, is_admin=is_admin)
        if tokens:
            await self.engine.accounts.ledger.credit(user.tenant_id, tokens, reference="test")
        issued = await self.engine.accounts.sign_in.issue(user, name="test")
        return Caller(self.anonymous.http, {"Authorization": f"Bearer {issued.secret}"}, user)

    async def effect(self, slug: str = "clip", *, credits_cost: int = 7) -> int:
        """Create an effect and a workflow with this slug, which the fleet `home` runs; return the effect's id."""
        await self.engine.catalogue.workflows.create(
            slug=slug,
            graph=GRAPH,
            properties=[PROMPT],
            output_node_id="3",
            output_extension="png",
            output_mime_type="image/png",
        )
        effect = await self.engine.catalogue.effects.create(slug=slug, workflow_slug=slug, credits_cost=credits_cost)
        await self.engine.workers.fleets.create(slug=f"home-{slug}", workflow_slugs=[slug])
        return effect.id

    async def worker(self, worker_id: str = "gpu-1", *, fleet: str = "home-clip", **more: Any) -> Caller:
        """Register a worker."""
        body = {"worker_id": worker_id, "fleet_slug": fleet, **more}
        answer = await self.anonymous.post("/api/worker/register", body, headers={"X-Fleet-Secret": FLEET_SECRET})
        return Caller(self.anonymous.http, {"Authorization": f"Bearer {answer['token']}"})

    async def allow_long_prompts(self, slug: str = "clip") -> None:
        """Raise the length limit of an effect's prompt to the maximum."""
        await self.engine.catalogue.workflows.change(slug, {"properties": [{**PROMPT, "maximum": 50_000}]})

    async def log_lines(self, user: "Caller", job_id: str) -> list[str]:
        """Return the log of a user's job as an administrator sees it."""
        assert user.user is not None
        views = self.engine.jobs.views
        page = await views.logs(user.user.tenant_id, job_id, after_id=0, limit=200, is_admin=True)
        return [line.line for line in page.items]

    async def stop_loops(self) -> None:
        """Stop all background loops."""
        for loop in self.engine._loops:
            loop.cancel()
        await asyncio.gather(*self.engine._loops, return_exceptions=True)


def _reuse_routes(app: FastAPI, *, is_local: bool) -> None:
    """Reuse the routes of the first application, because FastAPI takes 30 ms to prepare routes."""
    routes = app.router.routes
    prepared = _prepared_routes.setdefault(is_local, [*routes])
    # plain routes such as `/openapi.json` are bound to their application
    routes[:] = [own if isinstance(own, Route) else first for own, first in zip(routes, prepared, strict=True)]


async def _run_delayed(name: str, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Delay the first run of slow loops: their run takes longer than most tests, and new databases need no cleanup."""
    if seconds > SOON_SECONDS:
        await asyncio.sleep(seconds)
    await _every(name, seconds, work)


@asynccontextmanager
async def open_api(
    backend: Backend,
    folder: Path,
    *,
    storage_url: str | None = None,
    reuse_routes: bool = True,
    secrets: Secrets = SECRETS,
    hooks: Hooks | None = None,
    **settings: Any,
) -> AsyncIterator[Api]:
    async with backend.databases(["main"]) as (central, shards, clock):
        engine = Engine(
            Settings(
                data_dir=folder,
                database_url=central,
                shards=shards,
                storage_url=storage_url,
                **{"public_url": "http://relay.test", **FREE_WORKFLOWS, **settings},
            ),
            clock=lambda: clock.now,
            notify_channel=NotifyChannel(),
            signing_secrets=secrets.signing,
            hooks=hooks,
        )
        app = create_app(engine, secrets)
        if reuse_routes:
            _reuse_routes(app, is_local=storage_url is None)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with AsyncExitStack() as stack:
            with patch("comfyrelay.services.engine._every", _run_delayed):
                await stack.enter_async_context(app.router.lifespan_context(app))
            http = await stack.enter_async_context(
                httpx.AsyncClient(
                    transport=transport,
                    base_url="http://relay.test",
                    mounts={"all://127.0.0.1": httpx.AsyncHTTPTransport()},
                )
            )
            yield Api(context=app.state.context, clock=clock, anonymous=Caller(http))
