"""Access control: call every route as every kind of caller, and check that no foreign data is seen or changed."""

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import select

from comfyrelay.server.app import create_app
from comfyrelay.server.http import streams
from comfyrelay.services.engine import Engine
from comfyrelay.services.jobs.submission.requests import JobRequest
from comfyrelay.settings import Settings
from comfyrelay.store.central import tables as central
from comfyrelay.store.tenant import tables as tenant
from comfyrelay.web.app_files import PAGES
from tests.support.api import SECRETS, Api, Caller, open_api
from tests.support.world import SqliteBackend

# Routes that require something other than a login.
OPEN = {
    "/api/entry": "anonymous",
    "/api/catalogue": "anonymous, if everyone may sign up",
    "/api/logo": "anonymous",
    "/api/register": "anonymous, limited by address",
    "/api/login": "anonymous, limited by address and by account",
    "/api/setup": "the code that the server printed, limited by address",
    "/api/sign-up": "anonymous, limited by address and by account",
    "/api/reset": "the secret of a link, limited by address",
    "/api/reset/request": "anonymous, limited by address and by account",
    "/api/email/confirm": "the secret of a link, limited by address",
    "/api/reset/check": "the secret of a link, limited by address",
    "/api/worker/register": "the fleet's secret",
    "/api/webhooks/payments": "a signature",
    "/files/{path}": "a signed grant",
    "/api/v2/health": "anonymous",
    "/docs": "anonymous, redirected to the sign-in page",
    "/docs/start.js": "anonymous",
    "/docs/{name}": "anonymous",
    "/healthz": "anonymous",
    "/readyz": "anonymous",
    "/metrics": "anonymous",
    # the app, which shows nothing before it has called the API
    "/": "anonymous",
    **{path: "anonymous" for page in PAGES if page for path in (f"/{page}", f"/{page}/{{rest}}")},
    "/assets/{name}": "anonymous",
    **{f"/{name}": "anonymous" for name in ("icon.svg", "licenses.txt", "mask.svg")},
}


# Routes for administrators whose path does not say so.
FOR_ADMINS = {"/api/slots"}


@cache
def routes() -> list[tuple[str, str]]:
    """Method and path of every route, read from the application."""
    with TemporaryDirectory() as folder:
        app = create_app(Engine(Settings(data_dir=Path(folder)), signing_secrets=SECRETS.signing), SECRETS)
        return sorted({(method, route.path_format) for route in _walk(app.routes) for method in route.methods or ()})


def _walk(found: Iterable[Any]) -> Iterator[APIRoute]:
    for route in found:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "original_router"):
            # an included router keeps its own list of routes
            yield from _walk(route.original_router.routes)


def audience(path: str) -> str:
    if path in OPEN:
        return "open"
    if path.startswith("/api/worker/"):
        return "worker"
    return "admin" if path.startswith("/api/admin/") or path in FOR_ADMINS else "user"


def filled(path: str, ids: dict[str, str]) -> str:
    """Fill the placeholders of a path with real ids of the owner."""
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: ids.get(found[1], "1"), path)


class People:
    """All kinds of callers, and the data that they must not touch."""

    callers: dict[str, Caller]
    ids: dict[str, str]


@pytest.fixture
async def api(sqlite_backend: SqliteBackend, tmp_path: Path) -> AsyncIterator[Api]:
    async with open_api(sqlite_backend, tmp_path, rate_limit_per_minute=1000) as api:
        yield api


@pytest.fixture
async def people(api: Api) -> People:
    effect_id = await api.effect()
    owner = await api.user("owner@example.com", tokens=100)
    assert owner.user is not None
    job = await api.engine.jobs.submit.submit(
        JobRequest(tenant_id=owner.user.tenant_id, user_id=owner.user.id, idempotency_key="k", effect_id=effect_id)
    )
    notified = await api.engine.jobs.submit.submit(
        JobRequest(
            tenant_id=owner.user.tenant_id,
            user_id=owner.user.id,
            idempotency_key="notified",
            effect_id=effect_id,
            webhook_url="https://receiver.test/hook",
        )
    )
    # the webhook must not be delivered during the calls below
    await api.stop_loops()
    await api.engine.queue.control.cancel(owner.user.tenant_id, notified.id)
    [delivery] = await api.engine.webhooks.endpoints.list_deliveries(owner.user.tenant_id, notified.id)
    created = People()
    revoked = await api.worker("revoked")
    created.callers = {
        "nobody": api.anonymous,
        "other tenant": await api.user("other@example.com"),
        "admin": await api.user("admin@example.com", is_admin=True),
        "worker": await api.worker("gpu-1"),
        "revoked worker": revoked,
    }
    created.callers |= await _former_admins(api, created.callers["admin"])
    await api.engine.workers.workers.set_approved("revoked", is_approved=False)
    api.context.forget_worker("revoked")
    file_id = await api.engine.accounts.tenancy.add_file(owner.user, path="t/in.png", mime_type="image/png", size=3)
    video_id = await api.engine.accounts.tenancy.add_video(owner.user, original_file_id=file_id)
    collection = await api.engine.gallery.collections.create(owner.user.tenant_id, "mine")
    created.ids = {
        "collection_id": collection.id,
        "job_id": job.id,
        "delivery_id": delivery.id,
        "video_id": video_id,
        "file_id": file_id,
        "tenant_id": owner.user.tenant_id,
        "user_id": owner.user.id,
        "worker_id": "gpu-1",
        "slug": "clip",
        "stage": "production",
        "dispatch_id": "1",
        "number": "1",
    }
    return created


async def _former_admins(api: Api, admin: Caller) -> dict[str, Caller]:
    """Return former administrators with the tokens that they had as administrators."""
    found = {name: await api.user(f"{name}@example.com", is_admin=True) for name in ("disabled", "deleted", "demoted")}
    for name, method, change in (
        ("disabled", "PATCH", {"is_disabled": True}),
        ("deleted", "DELETE", None),
        ("demoted", "PATCH", {"is_admin": False}),
    ):
        user = found[name].user
        assert user is not None
        assert (await admin.call(method, f"/api/admin/users/{user.id}", change)).is_success
    return found


async def rows_of(api: Api, tenant_id: str) -> dict[str, Any]:
    """Return every row of the tenant, in all databases."""
    found = {}
    for database, tables in (
        (api.engine.databases.central, central.metadata.tables),
        (api.engine.databases.shards["main"], tenant.metadata.tables),
    ):
        async with database.read() as tx:
            for name, table in tables.items():
                if "tenant_id" in table.c:
                    rows = await tx.execute(select(table).where(table.c.tenant_id == tenant_id))
                    found[name] = sorted(map(str, rows.all()))
    return found


async def call_routes(people: People, who: str, whose: str) -> list[tuple[str, str, int]]:
    """Call every route of one kind as a caller; return the routes with the statuses of their answers."""
    answers = []
    for method, path in routes():
        if audience(path) == whose:
            response = await people.callers[who].call(method, filled(path, people.ids), {} if method != "GET" else None)
            answers.append((method, path, response.status_code))
    assert answers, f"there are no {whose} routes"
    return answers


async def test_every_route_requires_authentication(people: People) -> None:
    for whose in ("user", "admin", "worker"):
        assert [answer for answer in await call_routes(people, "nobody", whose) if answer[2] != 401] == []


async def test_token_is_accepted_only_by_routes_of_its_kind(people: People) -> None:
    cases: list[tuple[str, str, int]] = [
        ("other tenant", "admin", 403),
        ("other tenant", "worker", 401),
        ("admin", "worker", 401),
        ("worker", "user", 401),
        ("worker", "admin", 401),
        ("revoked worker", "worker", 403),
        ("revoked worker", "user", 401),
        ("revoked worker", "admin", 401),
        *((name, whose, 401) for name in ("disabled", "deleted") for whose in ("user", "admin", "worker")),
        # This account now belongs to a customer.
        ("demoted", "admin", 403),
        ("demoted", "worker", 401),
    ]
    for who, whose, status in cases:
        assert [answer for answer in await call_routes(people, who, whose) if answer[2] != status] == []


async def test_own_workflows_require_the_permission(api: Api, people: People) -> None:
    """Customers who may only run effects can neither add nor run own workflows on any route."""
    api.engine.accounts.own_workflows._is_open = False
    graph = {"1": {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}}}
    routes_with_workflows = {
        ("POST", "/api/workflows"): {"graph": graph},
        ("PATCH", "/api/workflows/{slug}"): {"graph": graph},
        ("POST", "/api/workflows/{slug}/versions/{number}/bring-back"): {},
        ("POST", "/api/ai-jobs"): {"workflow_slug": "own", "idempotency_key": "own"},
        ("POST", "/api/ai-jobs/price"): {"workflow_slug": "own"},
        ("POST", "/api/batches/price"): {"workflow_slug": "own", "items": [{}]},
        ("POST", "/api/batches"): {"workflow_slug": "own", "idempotency_key": "own", "items": [{}]},
        ("POST", "/api/v2/jobs"): {"workflow": graph},
    }
    assert routes_with_workflows.keys() <= set(routes())
    owner = await api.user("customer@example.com", tokens=100)
    for (method, path), body in routes_with_workflows.items():
        response = await owner.call(method, filled(path, {**people.ids, "slug": "own"}), body)
        assert response.status_code in {403, 404}, (path, response.status_code, response.text)
    assert (await owner.get("/api/ai-jobs"))["items"] == []


async def test_other_tenants_resources_are_not_found(api: Api, people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    # close the endless stream after its first messages
    monkeypatch.setattr(streams, "MAX_STREAM_SECONDS", -1.0)
    before = await rows_of(api, people.ids["tenant_id"])
    secrets = [
        people.ids[name] for name in ("job_id", "delivery_id", "video_id", "file_id", "tenant_id", "collection_id")
    ]
    secrets.append("owner@example.com")
    leaks = []
    for method, path in routes():
        if audience(path) != "user":
            continue
        url = filled(path, people.ids)
        response = await people.callers["other tenant"].call(method, url, {} if method != "GET" else None)
        text = response.text
        # the answer may repeat the caller's input
        if response.status_code >= 500 or any(secret in text and secret not in url for secret in secrets):
            leaks.append((method, path, response.status_code, text[:200]))
        if "{" in path and response.is_success and "slug" not in path:
            leaks.append((method, path, response.status_code, text[:200]))
    assert leaks == []
    assert await rows_of(api, people.ids["tenant_id"]) == before


def test_public_routes_are_listed() -> None:
    """A new route must require a login, or be listed here with its other requirements."""
    paths = {path for _, path in routes()}
    assert set(OPEN) - paths == set()
