"""A guest signs in with the page password and gets nothing that outlives that password."""

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI
from starlette.routing import BaseRoute

from comfyrelay.desk.desk import Desk
from comfyrelay.desk.guests import GUEST_ROUTES
from comfyrelay.desk.owner_auth import OPEN_PATHS, OTHER_CREDENTIAL_PREFIXES
from comfyrelay.desk.password import set_password
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.desk.startup.web import create_desk_app
from comfyrelay.domain.uploads import MIN_FREE_BYTES_OF_GUESTS, UploadLimits
from comfyrelay.services.jobs import uploads
from comfyrelay.services.jobs.submission.guest_inputs import REFUSED_TEXT
from comfyrelay.settings import Settings
from comfyrelay.web.session_pages import SIGN_IN_PATH
from tests.support.desk import OpenDesk, copy_initial_data, open_desk
from tests.support.desk_owner import owner_http
from tests.support.graphs import PNG, invert, invert_file, words
from tests.support.server_processes import free_port

pytestmark = [pytest.mark.usefixtures("built_app"), pytest.mark.asyncio(loop_scope="module")]

GIB = 1024**3
PASSWORD = "a cat & a hill = 2"
ANYTHING = "01a1ece3-d97a-77f6-a763-88a078284ec6"
# Routes that show or create a credential, which must not reach a guest.
CREDENTIAL_ROUTES = {
    "POST /api/tokens",
    "POST /api/desk/links",
    "POST /api/desk/links/phone",
    "GET /api/desk/settings",
    "PUT /api/desk/settings",
    "PUT /api/desk/password",
    "DELETE /api/desk/password",
    "POST /api/desk/notifications/test",
    "GET /api/desk/folders",
    "POST /api/desk/folders",
    "POST /api/reset",
    "PUT /api/webhook",
    "GET /api/webhook",
    "POST /api/workflows",
    "POST /api/batches",
    "POST /api/admin/users",
    "POST /api/admin/users/{user_id}/reset-link",
    "GET /api/admin/fleets/{stage}/{slug}/join-command",
    "POST /api/admin/workers/{worker_id:path}/rotate-token",
    "GET /api/admin/settings",
    "GET /openapi.json",
    "GET /metrics",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def apps() -> AsyncIterator[list[FastAPI]]:
    """Return the apps of the desks in this module."""
    found: list[FastAPI] = []

    def keep(*args: Any) -> FastAPI:
        found.append(create_desk_app(*args))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comfyrelay.desk.desk.create_desk_app", keep)
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_desk(tmp_path_factory: pytest.TempPathFactory, apps: list[FastAPI]) -> AsyncIterator[OpenDesk]:
    folder: Path = tmp_path_factory.mktemp("shared")
    set_password(folder, PASSWORD)
    copy_initial_data(folder)
    settings = Settings(data_dir=folder, port=free_port())
    async with open_desk(Desk(settings=settings, desk=DeskSettings(simulator=True, allowed_hosts="desk.home"))) as desk:
        yield desk


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guest(shared_desk: OpenDesk) -> AsyncIterator[httpx.AsyncClient]:
    url = shared_desk.ready.url
    async with httpx.AsyncClient(base_url=url, headers={"Origin": url}) as browser:
        assert (await browser.post(SIGN_IN_PATH, data={"password": PASSWORD})).is_success
        yield browser


def all_routes(routes: Iterable[BaseRoute]) -> Iterator[str]:
    """Return each route of an app as `METHOD path`."""
    for route in routes:
        if (included := getattr(route, "original_router", None)) is not None:
            yield from all_routes(included.routes)
        else:
            for method in getattr(route, "methods", None) or ():
                yield f"{method} {vars(route)['path']}"


def called_path(path: str) -> str:
    """Return a path that matches this route; a `path` parameter gets several segments."""
    return re.sub(r"\{\w+(:path)?\}", lambda found: f"a/{ANYTHING}" if found[1] else ANYTHING, path)


def needs_no_session(path: str) -> bool:
    return path in {*OPEN_PATHS, SIGN_IN_PATH} or path.startswith(OTHER_CREDENTIAL_PREFIXES)


async def test_every_route_is_listed_for_guests_or_refused(guest: httpx.AsyncClient, apps: list[FastAPI]) -> None:
    found = set(all_routes(apps[0].routes))
    assert found > CREDENTIAL_ROUTES
    assert len(found) > 150
    unlisted = found - set(GUEST_ROUTES)
    # HEAD requests are refused, except those for a file with a signed URL.
    refused = {route for route in unlisted if not needs_no_session(route.partition(" ")[2])}
    assert refused > CREDENTIAL_ROUTES
    for route in refused:
        method, _, path = route.partition(" ")
        answer = await guest.request(method, called_path(path), json={})
        assert answer.status_code == 403, route
        if method != "HEAD":
            assert "comfyrelay open" in answer.json()["detail"]


async def test_page_address_gets_a_guest_the_same_answer_as_the_owner(
    shared_desk: OpenDesk, guest: httpx.AsyncClient
) -> None:
    accepts_page = {"Accept": "text/html,*/*;q=0.8"}
    async with owner_http(shared_desk.ready.url) as owner:
        expected = await owner.get("/settings", headers=accepts_page)
    found = await guest.get("/settings", headers=accepts_page)
    assert found.headers["Content-Type"] == expected.headers["Content-Type"] == "text/html; charset=utf-8"
    assert found.status_code == expected.status_code
    # programs and requests to the API get an error
    assert (await guest.get("/settings")).status_code == 403
    assert (await guest.get("/api/tokens", headers=accepts_page)).status_code == 403


async def test_listed_routes_exist_and_answer_a_guest(guest: httpx.AsyncClient, apps: list[FastAPI]) -> None:
    assert set(GUEST_ROUTES) <= set(all_routes(apps[0].routes))
    for route in GUEST_ROUTES:
        method, _, path = route.partition(" ")
        # a stream has no end, and signing out ends the session
        if path.endswith(("/events", "/logout")):
            continue
        answer = await guest.request(method, called_path(path), json={})
        assert answer.status_code not in (401, 403), route


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/api/tokens/",
            "//api/tokens",
            "/api//tokens",
            "/api/%74okens",
            "/api/queue/../tokens",
            "/api/queue/%2e%2e/tokens",
        ),
        *("/api/queue/counts/", "/API/TOKENS", "/api/tokens%00", "/api/tokens;x", "/api/ai-jobs/%0a"),
    ],
)
async def test_unusually_spelled_path_gives_a_guest_no_token(guest: httpx.AsyncClient, path: str) -> None:
    for method in ("GET", "POST", "post"):
        request = guest.build_request(method, "/", json={"name": "mine"})
        request.url = request.url.copy_with(raw_path=path.encode())
        answer = await guest.send(request)
        assert not answer.is_success, method
        assert "crt_" not in answer.text


async def test_guest_cannot_make_the_desk_call_a_url(shared_desk: OpenDesk, guest: httpx.AsyncClient) -> None:
    slug = (await shared_desk.client.add_graph(invert(), name="mine")).data.slug
    job = {"workflow_slug": slug, "idempotency_key": "a-guest"}
    batch = {"workflow_slug": slug, "notify_urls": ["json://attacker.example"]}
    async with owner_http(shared_desk.ready.url) as owner:
        for path, body in (
            ("/api/ai-jobs", {**job, "webhook_url": "https://attacker.example/hook"}),
            ("/api/desk/batches", batch),
        ):
            refused = await guest.post(path, json=body)
            assert refused.status_code == 403, path
            assert "A guest cannot set notification or webhook URLs." in refused.json()["detail"]
        assert (await guest.post("/api/ai-jobs", json=job)).status_code == 201
        assert (await owner.post("/api/desk/batches", json=batch)).status_code == 201


async def test_guest_cannot_submit_a_path(shared_desk: OpenDesk, guest: httpx.AsyncClient) -> None:
    added = (await shared_desk.client.add_graph(words("/home/me/out"), name="paths")).data
    [key] = [input_.key for input_ in added.properties if input_.type == "text"]
    allowed = [{}, {key: "/home/me/out"}, {key: "a cat, and/or a dog"}]
    forbidden = {key: "/home/me/.config/autostart"}

    def requests(values: dict[str, Any], number: str) -> list[tuple[str, dict[str, Any]]]:
        named = {"workflow_slug": added.slug}
        return [
            ("/api/ai-jobs", {**named, "idempotency_key": number, "input_payload": values}),
            ("/api/desk/batches", {**named, "values": values}),
            ("/api/desk/batches/estimate", {**named, "values": values}),
        ]

    async with owner_http(shared_desk.ready.url) as owner:
        for number, values in enumerate(allowed):
            for path, body in requests(values, f"guest-{number}"):
                assert (await guest.post(path, json=body)).is_success, (path, values)
        for path, body in requests(forbidden, "a-path"):
            refused = await guest.post(path, json=body)
            assert refused.status_code == 422, path
            assert REFUSED_TEXT in str(refused.json()["errors"])
            assert (await owner.post(path, json=body)).is_success, path


async def test_guest_cannot_change_presets_that_the_owner_applies(guest: httpx.AsyncClient) -> None:
    [*_, preset] = (await guest.get("/api/presets")).json()["data"]["items"]
    assert (await guest.delete(f"/api/presets/{preset['id']}")).status_code == 403
    assert (await guest.post("/api/presets", json={"name": "mine", "values": {"steps": 8}})).status_code == 403


def upload(size: int) -> dict[str, Any]:
    return {"mime_type": "image/png", "size": size, "original_filename": "a.png"}


async def test_uploads_of_guests_are_limited(
    shared_desk: OpenDesk, guest: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "free_bytes", lambda _: 2**50)
    async with owner_http(shared_desk.ready.url) as owner:
        # Files of the owner do not count.
        assert (await owner.post("/api/videos/uploads", json=upload(GIB))).status_code == 201
        monkeypatch.setattr(uploads, "GUEST_LIMITS", UploadLimits(max_files=100, max_bytes=GIB))
        assert (await guest.post("/api/videos/uploads", json=upload(GIB))).status_code == 201
        refused = await guest.post("/api/videos/uploads", json=upload(1))
        assert refused.status_code == 409
        assert "have reached your limit: 1.1 GB in all" in refused.json()["detail"]
        assert (await owner.post("/api/videos/uploads", json=upload(GIB))).status_code == 201
        monkeypatch.setattr(uploads, "GUEST_LIMITS", UploadLimits(max_files=1))
        assert (await guest.post("/api/videos/uploads", json=upload(1))).status_code == 409


async def test_guest_cannot_fill_the_disk(
    shared_desk: OpenDesk, guest: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = MIN_FREE_BYTES_OF_GUESTS + len(PNG)
    monkeypatch.setattr(uploads, "free_bytes", lambda _: free)
    announced = (await guest.post("/api/videos/uploads", json=upload(len(PNG)))).json()["data"]
    refused = await guest.post("/api/videos/uploads", json=upload(len(PNG) + 1))
    assert "The disk of the desk is nearly full" in refused.json()["detail"]
    async with owner_http(shared_desk.ready.url) as owner:
        assert (await owner.post("/api/videos/uploads", json=upload(GIB))).status_code == 201
    free = MIN_FREE_BYTES_OF_GUESTS - 1
    sent = await guest.put(announced["upload_url"], content=PNG, headers=announced["upload_headers"])
    assert sent.status_code == 409
    free = MIN_FREE_BYTES_OF_GUESTS
    assert (await guest.put(announced["upload_url"], content=PNG, headers=announced["upload_headers"])).is_success


async def test_files_that_a_guest_copies_are_limited(
    shared_desk: OpenDesk, guest: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "free_bytes", lambda _: MIN_FREE_BYTES_OF_GUESTS + len(PNG))
    monkeypatch.setattr(uploads, "GROUP_SIZE", 1)
    slug = (await shared_desk.client.add_graph(invert_file(), name="with a file")).data.slug
    folder = Path((await shared_desk.client.desk()).input_folder) / "holiday"
    folder.mkdir(parents=True)
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(PNG)
    async with owner_http(shared_desk.ready.url) as owner:
        before = (await owner.get("/api/videos/uploads")).json()["data"]["stored"]
        refused = await guest.post("/api/desk/batches", json={"workflow_slug": slug, "input_subdir": "holiday"})
        assert "The disk of the desk is nearly full" in refused.json()["detail"]
        # There is space for one of the files, but copying only part of a batch is useless.
        assert (await owner.get("/api/videos/uploads")).json()["data"]["stored"] == before


async def test_desk_tells_the_page_whether_the_user_is_a_guest(shared_desk: OpenDesk, guest: httpx.AsyncClient) -> None:
    async with httpx.AsyncClient(base_url=shared_desk.ready.url) as here:
        assert (await guest.get("/api/desk")).json()["data"]["is_guest"] is True
        assert (await here.get((await shared_desk.client.add_link()).url)).is_success
        assert (await here.get("/api/desk")).json()["data"]["is_guest"] is False
        assert (await shared_desk.client.desk()).is_guest is False


async def test_session_of_a_link_may_create_credentials(shared_desk: OpenDesk) -> None:
    own = {"Origin": shared_desk.ready.url}
    async with httpx.AsyncClient(base_url=shared_desk.ready.url, headers=own) as here:
        assert (await here.get((await shared_desk.client.add_link()).url)).is_success
        assert (await here.post("/api/tokens", json={"name": "mine"})).status_code == 201
        assert (await here.post("/api/desk/links")).status_code == 201
