"""Access to ComfyUI's API, and the requests that it refuses. No worker is needed."""

import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from PIL import Image

from comfyrelay.domain.records.accounts import TokenScope
from comfyrelay.server.comfyui_api import files
from comfyrelay.server.comfyui_api.app import MODULES
from tests.integration.api.test_node_definitions import bring
from tests.integration.api.test_unstorable_values import UNSTORABLE
from tests.support.api import PASSWORD, Caller
from tests.support.api_calls import png, submit
from tests.support.comfyui_site import MODELS, Client, ComfyuiSite, open_site
from tests.support.editor_files import DEFINITIONS
from tests.support.graphs import invert, invert_file
from tests.support.world import PostgresBackend, SqliteBackend, execute

ROUTES = sorted(
    {(method, route.path) for module in MODULES for route in module.routes.routes for method in route.methods or ()}
)
HOSTILE_NAMES = ("../x.png", "/etc/passwd", "a/../../x.png", "..", "a\\..\\x.png", "\0.png", "x" * 300, "%2e%2e/x")


@pytest.fixture
async def site(
    backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path
) -> AsyncIterator[ComfyuiSite]:
    async with open_site(backend, storage_url, tmp_path, models=(), max_body_bytes=100_000) as site:
        yield site


def _filled(path: str, value: str = "x") -> str:
    for name in (
        "{prompt_id}",
        "{job_id}",
        "{source}",
        "{name}",
        "{node_class}",
        "{folder}",
        "{file:path}",
        "{id}",
        "{kind}",
    ):
        path = path.replace(name, value)
    return path


@pytest.mark.parametrize("secret", [None, "Bearer crt_wrong", "Basic eDp5"])
async def test_every_route_needs_a_token(site: ComfyuiSite, secret: str | None) -> None:
    headers = {} if secret is None else {"Authorization": secret}
    async with httpx.AsyncClient(base_url=site.url, headers=headers) as stranger:
        for method, path in ROUTES:
            response = await stranger.request(method, _filled(path), content=b"{}" if method == "POST" else None)
            assert response.status_code == 401, (method, path)
    assert len(ROUTES) > 80


@pytest.mark.both_databases
@pytest.mark.parametrize("unstorable", UNSTORABLE)
async def test_unstorable_path_or_query_is_a_client_error(site: ComfyuiSite, unstorable: str) -> None:
    query = "&".join(f"{name}={unstorable}" for name in ("dir", "filename", "path", "subfolder", "workflow_id"))
    for method, path in ROUTES:
        body = b"{}" if method == "POST" else None
        for target in (_filled(path, unstorable), f"{_filled(path)}?{query}"):
            response = await site.client.http.request(method, target, content=body)
            assert response.status_code < 500, (method, target)


async def test_every_route_exists_with_and_without_the_api_prefix(site: ComfyuiSite) -> None:
    paths = {path for _, path in ROUTES}
    alone = {path for path in paths if not path.startswith("/api/") and f"/api{path}" not in paths}
    assert {path for path in alone if not path.startswith("/internal/")} == set()


async def test_token_in_x_api_key_is_accepted(site: ComfyuiSite) -> None:
    token = site.client.http.headers["Authorization"].removeprefix("Bearer ")
    async with httpx.AsyncClient(base_url=site.url, headers={"X-API-Key": token}) as client:
        assert (await client.get("/api/queue")).json() == {"queue_running": [], "queue_pending": []}


async def test_comfyui_token_is_refused_by_other_apis(site: ComfyuiSite) -> None:
    assert site.client.user is not None
    created = await site.client.user.post("/api/tokens", {"name": "editor", "scope": "comfyui"})
    assert created["scope"] == "comfyui"
    headers = {"Authorization": f"Bearer {created['token']}"}
    async with httpx.AsyncClient(base_url=site.url, headers=headers) as editor:
        assert (await editor.get("/queue")).status_code == 200
    for path in ("/api/wallet", "/api/tokens", "/api/v2/jobs", "/api/queue"):
        response = await site.api.anonymous.call("GET", path, headers=headers)
        assert response.status_code == 401, path
    assert await site.api.engine.accounts.sign_in.find_owner(created["token"]) is None
    assert await site.api.engine.accounts.sign_in.find_owner(created["token"], scope=TokenScope.COMFYUI) is not None
    await site.client.user.call("DELETE", f"/api/tokens/{created['id']}")
    async with httpx.AsyncClient(base_url=site.url, headers=headers) as editor:
        assert (await editor.get("/queue")).status_code == 401


async def test_editor_link_starts_one_session(site: ComfyuiSite) -> None:
    assert site.client.user is not None
    link = (await site.client.user.post("/api/editor/links", {}))["url"]
    async with httpx.AsyncClient(base_url=site.url) as browser, httpx.AsyncClient(base_url=site.url) as other:
        assert (await browser.get("/")).status_code == 401
        opened = await browser.get(link)
        assert (opened.status_code, opened.headers["location"]) == (303, "/")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        index = await browser.get("/")
        assert index.status_code == 200
        assert "connect-src 'self' blob: data:" in index.headers["content-security-policy"]
        assert (await browser.get("/api/queue")).status_code == 200
        assert (await other.get(link)).status_code == 401
        assert (await browser.get(link)).headers["location"] == "/"
        await _check_session(site, browser)


async def _check_session(site: ComfyuiSite, browser: httpx.AsyncClient) -> None:
    """Check that a session is valid for ComfyUI's API and its own pages only, and ends with the account's sessions."""
    for headers in ({"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://127.0.0.1"}):
        assert (await browser.post("/queue", json={"clear": True}, headers=headers)).status_code == 403, headers
    [(name, secret)] = browser.cookies.items()
    for headers in ({"Authorization": f"Bearer {secret}"}, {"Cookie": f"comfyrelay_session={secret}; {name}={secret}"}):
        for path in ("/api/me", "/api/tokens", "/api/v2/jobs"):
            assert (await site.api.anonymous.call("GET", path, headers=headers)).status_code == 401, path
    async with httpx.AsyncClient(base_url=site.url, headers={"Authorization": f"Bearer {secret}"}) as program:
        assert (await program.get("/queue")).status_code == 401
    token = site.client.http.headers["Authorization"].removeprefix("Bearer ")
    async with httpx.AsyncClient(base_url=site.url, cookies={name: token, "comfyrelay_session": token}) as forged:
        assert (await forged.get("/queue")).status_code == 401
    assert site.client.user is not None
    listed = await site.client.user.get("/api/tokens")
    [session] = [item for item in listed["items"] if item["name"] == "editor"]
    await site.client.user.call("DELETE", f"/api/tokens/{session['id']}")
    assert (await browser.get("/queue")).status_code == 401


@pytest.mark.parametrize("end", ["sign out", "revoke", "new password", "disable and enable"])
async def test_editor_session_ends_with_the_session_that_opened_it(site: ComfyuiSite, end: str) -> None:
    eve = {"email": "eve@example.com", "password": PASSWORD}
    other = (await site.new_client(eve["email"])).user
    assert other is not None
    page = replace(other, headers={"Authorization": f"Bearer {(await other.post('/api/login', eve))['token']}"})
    other.http.cookies.clear()
    opened, unused = [(await page.post("/api/editor/links", {}))["url"] for _ in range(2)]
    kept = (await other.post("/api/editor/links", {}))["url"]
    async with httpx.AsyncClient(base_url=site.url) as browser, httpx.AsyncClient(base_url=site.url) as stays:
        await browser.get(opened)
        await stays.get(kept)
        assert (await browser.get("/queue")).status_code == 200
        assert [name for name in await token_names(other) if "editor" in name] == [
            "editor",
            "editor",
            "link to the editor",
        ]
        if end == "sign out":
            await page.post("/api/logout")
        elif end == "revoke":
            [session] = [token for token in (await other.get("/api/tokens"))["items"] if token["is_session"]]
            await other.call("DELETE", f"/api/tokens/{session['id']}")
        elif end == "new password":
            passwords = {"current_password": PASSWORD, "new_password": "another horse battery"}
            await other.post("/api/account/password", passwords)
        else:
            assert other.user is not None
            admin = await site.api.user("admin@example.com", is_admin=True)
            for is_disabled in (True, False):
                await admin.call("PATCH", f"/api/admin/users/{other.user.id}", {"is_disabled": is_disabled})
        assert (await browser.get("/queue")).status_code == 401
        assert (await browser.get(unused)).status_code == 401
        assert (await stays.get("/queue")).status_code == 200
        assert [name for name in await token_names(other) if "editor" in name] == ["editor"]


async def test_editor_session_ends_when_the_session_that_opened_it_expires(site: ComfyuiSite) -> None:
    eve = {"email": "eve@example.com", "password": PASSWORD}
    other = (await site.new_client(eve["email"])).user
    assert other is not None
    page = replace(other, headers={"Authorization": f"Bearer {(await other.post('/api/login', eve))['token']}"})
    other.http.cookies.clear()
    sessions = [token for token in (await other.get("/api/tokens"))["items"] if token["is_session"]]
    lifetime = datetime.fromisoformat(sessions[0]["expires_at"]) - site.api.clock.now
    await site.api.clock.set(site.api.clock.now + lifetime - timedelta(hours=1))
    async with httpx.AsyncClient(base_url=site.url) as browser:
        await browser.get((await page.post("/api/editor/links", {}))["url"])
    assert await token_names(other) == ["editor", "session"]
    await site.api.clock.set(site.api.clock.now + timedelta(hours=1))
    assert await token_names(other) == []


async def token_names(caller: Caller) -> list[str]:
    return [token["name"] for token in (await caller.get("/api/tokens"))["items"] if token["name"] != "test"]


async def test_editor_links_are_limited_and_deleted_once_used(
    site: ComfyuiSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site.client.user is not None
    monkeypatch.setattr("comfyrelay.services.accounts.sign_in.MAX_TOKENS", 4)
    async with httpx.AsyncClient(base_url=site.url) as browser:
        for _ in range(2):
            await browser.get((await site.client.user.post("/api/editor/links", {}))["url"])
    await site.client.user.post("/api/editor/links", {})
    assert (await site.client.user.call("POST", "/api/editor/links", {})).status_code == 409
    rows = await execute(site.api.engine.databases.central, "SELECT name FROM api_tokens WHERE scope IS NOT NULL")
    assert sorted(row.name for row in rows) == ["editor", "editor", "link to the editor"]


async def test_editor_links_expire(site: ComfyuiSite) -> None:
    assert site.client.user is not None
    link = (await site.client.user.post("/api/editor/links", {}))["url"]
    await site.api.clock.set(site.api.clock.now + timedelta(seconds=61))
    async with httpx.AsyncClient(base_url=site.url) as browser:
        assert (await browser.get(link)).status_code == 401


async def test_only_administrators_open_workflows_of_the_catalogue(site: ComfyuiSite) -> None:
    await site.api.engine.catalogue.workflows.create(slug="sold", graph=invert(), properties=[])
    root = await site.api.user("root@example.com", is_admin=True)
    ada = site.client
    assert ada.user is not None
    for caller, status in ((ada.user, 403), (root, 201)):
        assert (await caller.call("POST", "/api/editor/links", {"catalogue": "sold"})).status_code == status
    path = "/api/workflow_templates/catalogue/sold.json"
    assert (await ada.http.get(path)).status_code == 404
    async with httpx.AsyncClient(base_url=site.url) as browser:
        await browser.get((await root.post("/api/editor/links", {"catalogue": "sold"}))["url"])
        types = {node["type"] for node in (await browser.get(path)).json()["nodes"]}
        assert "ImageInvert" in types
        assert (await browser.get("/api/workflow_templates/catalogue/none.json")).status_code == 404


async def test_editor_opens_only_documents_of_the_caller(site: ComfyuiSite) -> None:
    ada, bob = site.client, await site.new_client("bob@example.com")
    drawn = {"nodes": [{"id": 1, "type": "SaveImage"}], "links": []}
    assert ada.user is not None
    assert bob.user is not None
    await ada.prompt(invert(), extra_data={"extra_pnginfo": {"workflow": drawn}})
    [job] = (await ada.user.get("/api/ai-jobs"))["items"]
    path = f"/api/workflow_templates/job/{job['id']}.json"
    assert await ada.get(path) == drawn
    assert (await bob.http.get(path)).status_code == 404
    assert (await bob.user.call("POST", "/api/editor/links", {"job_id": job["id"]})).status_code == 404
    await ada.post("/userdata/workflows%2Fa.json", drawn)
    assert [file["path"] for file in (await ada.user.get("/api/editor/workflows"))["items"]] == ["a.json"]
    assert (await ada.user.get("/api/editor/workflows/a.json"))["graph"] == drawn
    assert (await bob.user.get("/api/editor/workflows"))["items"] == []
    assert (await bob.user.call("GET", "/api/editor/workflows/a.json")).status_code == 404
    for hostile in ("/api/editor/workflows/..%2Fcomfy.settings.json", "/api/editor/workflows/%2e%2e/x.json"):
        assert (await ada.user.call("GET", hostile)).status_code in (404, 422), hostile


async def test_graph_of_an_effect_is_not_shown(site: ComfyuiSite) -> None:
    """Its author sells runs of it, not the graph."""
    assert site.client.user is not None
    job = (await submit(site.client.user, await site.api.effect()))["id"]
    for path in (f"/api/v2/jobs/{job}/workflow", f"/api/v2/jobs/{job}"):
        answer = await site.client.user.call("GET", path)
        assert "class_type" not in answer.text, path
    assert (await site.client.http.get(f"/api/workflow_templates/job/{job}.json")).status_code == 404


async def test_only_allowed_packs_have_scripts(tmp_path: Path, backend: SqliteBackend | PostgresBackend) -> None:
    pack = tmp_path / "pack"
    (pack / "lib").mkdir(parents=True)
    (pack / "lib" / "more.js").write_text("export const more = 1;")
    (tmp_path / "secret.js").write_text("secret")
    async with open_site(backend, None, tmp_path, models=(), editor_packs={"rgthree": str(pack)}) as site:
        listed = await site.client.get("/extensions")
        others = [path for path in listed if "/core/" not in path]
        assert others == ["/extensions/comfyrelay/mark_nodes.js", "/extensions/rgthree/lib/more.js"]
        script = await site.client.http.get("/extensions/rgthree/lib/more.js")
        assert "javascript" in script.headers["content-type"]
        for path in ("/extensions/rgthree/../secret.js", "/extensions/rgthree/%2e%2e/secret.js", "/extensions/x/a.js"):
            assert (await site.client.http.get(path)).status_code == 404, path


async def test_nodes_of_packs_that_are_not_allowed_are_marked(
    tmp_path: Path, backend: SqliteBackend | PostgresBackend
) -> None:
    (tmp_path / "pack").mkdir()
    packs = {"allowed-pack": ["ImageInvert"], "Other_Pack": ["ImageScale", "LoadImage"]}
    allowed = {"allowed-pack": str(tmp_path / "pack")}
    async with open_site(backend, None, tmp_path, models=MODELS[:1], packs=packs, editor_packs=allowed) as site:
        found = await site.client.get("/object_info")
        marks = {name: node["script_pack"] for name, node in found.items() if "script_pack" in node}
        assert marks == {"ImageScale": "Other_Pack", "LoadImage": "Other_Pack"}
        [node] = (await site.client.get("/object_info/ImageScale")).values()
        assert node["script_pack"] == "Other_Pack"


async def test_pages_of_other_sites_are_refused(site: ComfyuiSite) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        response = await site.client.http.get("/queue", headers=headers)
        assert response.status_code == 403, headers
        assert "access-control-allow-origin" not in response.headers
    assert (await site.client.http.get("/queue", headers={"Origin": site.url})).status_code == 200
    # after DNS rebinding, the host of a page differs from this origin
    rebound = {"Host": "evil.example", "Origin": site.url}
    assert (await site.client.http.get("/queue", headers=rebound)).status_code == 403


async def test_hostile_names_reach_no_file(site: ComfyuiSite) -> None:
    client = site.client
    for name in HOSTILE_NAMES:
        for query in ({"filename": name}, {"filename": "x.png", "subfolder": name}):
            for kind in ("input", "output", "temp"):
                response = await client.http.get("/view", params={**query, "type": kind})
                assert response.status_code in (400, 403, 404), (name, response.text)
        graph = {"1": {"class_type": "LoadImage", "inputs": {"image": name}}, "2": invert()["3"]}
        graph["2"]["inputs"]["images"] = ["1", 0]
        assert (await client.post("/prompt", {"prompt": graph})).status_code == 400, name
        response = await client.http.post("/upload/image", files={"image": ("a.png", png())}, data={"subfolder": name})
        assert response.status_code in (200, 400), name
        if response.status_code == 200:
            assert ".." not in response.json()["subfolder"].split("/")
        # httpx would resolve the dots.
        quoted = quote(name, safe="").replace(".", "%2E")
        path = f"/userdata/{quoted}"
        assert (await client.http.get(path)).status_code in (400, 404), name
        assert (await client.http.post(path, content=b"x")).status_code in (200, 400), name
        assert (await client.http.post(f"/userdata/none.json/move/{quoted}")).status_code in (400, 404)
        assert (await client.http.get("/userdata", params={"dir": name})).status_code in (400, 404), name
        assert (await client.http.get("/v2/userdata", params={"path": name})).status_code in (400, 404), name
    for file in await client.get("/userdata", params={"dir": ".", "recurse": "true"}) or []:
        assert ".." not in file.split("/")
    assert (await client.http.get("/view", params={"filename": "a.png", "type": "other"})).status_code == 400
    assert (await client.http.get("/view")).status_code == 404


async def test_invalid_prompts_are_refused_in_comfyuis_format(site: ComfyuiSite) -> None:
    bodies: list[tuple[Any, str]] = [
        ({}, "no_prompt"),
        ({"prompt": []}, "invalid_prompt"),
        ({"prompt": {"nodes": [], "links": []}}, "missing_node_type"),
        ({"prompt": {"1": {"inputs": {}}}}, "missing_node_type"),
        ({"prompt": {"1": {"class_type": "A", "inputs": 3}}}, "invalid_prompt"),
        ({"prompt": {}}, "prompt_no_outputs"),
    ]
    for body, kind in bodies:
        response = await site.client.post("/prompt", body)
        assert response.status_code == 400, body
        assert response.json()["error"]["type"] == kind, body
        assert set(response.json()) == {"error", "node_errors"}
    for content in (b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 50_000):
        for path in ("/prompt", "/queue", "/history", "/interrupt", "/api/jobs/cancel", "/settings"):
            response = await site.client.http.post(path, content=content)
            assert response.status_code in (200, 400), (path, content[:10], response.text)
    for odd in ({"prompt": invert(), "extra_data": "x"}, {"prompt": invert(), "client_id": 5}):
        assert (await site.client.post("/prompt", odd)).status_code == 400


@pytest.mark.parametrize(
    "value", ["NaN", "-Infinity", "1" + "0" * 30, '"\\ud800"', '"\\u0000"', "[" * 80 + "]" * 80], ids=repr
)
async def test_values_that_cannot_be_stored_are_refused(site: ComfyuiSite, value: str) -> None:
    graph = json.dumps(invert())
    for path, content in (
        ("/prompt", f'{{"prompt": {graph[:-1]}, "9": {{"class_type": "A", "inputs": {{"a": {value}}}}}}}}}'),
        ("/prompt", f'{{"prompt": {graph}, "extra_data": {{"a": {value}}}}}'),
        ("/settings", f'{{"a": {value}}}'),
        ("/settings/a", value),
    ):
        response = await site.client.http.post(path, content=content)
        assert response.status_code == 400, (path, response.text)
        assert response.json()["error"]["message"].startswith("This "), path


async def test_graph_with_too_many_nodes_is_refused_before_its_validation(
    tmp_path: Path, backend: SqliteBackend | PostgresBackend
) -> None:
    async with open_site(backend, None, tmp_path, models=(), max_graph_nodes=10) as site:
        # The validation would report the missing file.
        graph = {f"copy {number}": invert_file("none.png")["1"] for number in range(10)} | invert_file("none.png")
        response = await site.client.post("/prompt", {"prompt": graph})
        assert response.status_code == 413
        assert response.json()["error"]["type"] == "too_large"


async def test_large_bodies_are_refused(site: ComfyuiSite) -> None:
    large = json.dumps({"delete": ["x" * 200_000]}).encode()
    assert (await site.client.http.post("/queue", content=large)).status_code == 413
    # only a graph may be larger
    graph = {"prompt": {"1": {"class_type": "A", "inputs": {"text": "x" * 200_000}}}}
    assert (await site.client.post("/prompt", graph)).status_code == 200


async def test_account_without_own_workflows_is_refused(
    tmp_path: Path, backend: SqliteBackend | PostgresBackend
) -> None:
    async with open_site(backend, None, tmp_path, models=(), own_workflows="permitted") as site:
        response = await site.client.post("/prompt", {"prompt": invert()})
        assert response.status_code == 403
        assert "error" in response.json()


async def test_settings_and_workflows_of_the_editor_are_kept_per_user(site: ComfyuiSite) -> None:
    ada, bob = site.client, await site.new_client("bob@example.com")
    initial = await ada.get("/settings")
    assert initial["Comfy.TutorialCompleted"] is True
    await ada.post("/settings", {"Comfy.Locale": "de"})
    await ada.post("/api/settings/Comfy.Workflow", [1, 2])
    assert await ada.get("/settings") == {**initial, "Comfy.Locale": "de", "Comfy.Workflow": [1, 2]}
    assert await ada.get("/settings/Comfy.Locale") == "de"
    assert await bob.get("/settings") == initial
    await _check_files(ada)
    assert (await bob.http.get("/userdata/workflows%2Fb.json")).status_code == 404
    assert (await bob.http.get("/userdata", params={"dir": "workflows"})).status_code == 404
    assert (await bob.http.delete("/userdata/workflows%2Fb.json")).status_code == 404


async def test_editor_folder_lists_only_its_own_files(site: ComfyuiSite) -> None:
    # the folders differ only in case, or in a letter for which `_` is a wildcard in SQL
    for name in ("work_flows/a.json", "WORK_FLOWS/b.json", "workAflows/c.json"):
        assert (await site.client.http.post(f"/userdata/{quote(name, safe='')}", content=b"{}")).status_code == 200
    assert await site.client.get("/userdata?dir=work_flows&recurse=true") == ["a.json"]


async def _check_files(ada: Client) -> None:
    written = await ada.http.post("/userdata/workflows%2Fa.json?full_info=true", content=b'{"nodes": []}')
    assert written.json()["path"] == "workflows/a.json"
    assert written.json()["size"] == 13
    again = await ada.http.post("/userdata/workflows%2Fa.json?overwrite=false", content=b"{}")
    assert again.status_code == 409
    read = await ada.http.get("/userdata/workflows%2Fa.json")
    assert read.json() == {"nodes": []}
    assert read.headers["content-security-policy"].endswith("sandbox")
    await ada.http.post("/userdata/workflows%2Fsub%2Fc.json", content=b"{}")
    assert await ada.get("/userdata", params={"dir": "workflows"}) == ["a.json"]
    assert await ada.get("/userdata", params={"dir": "workflows", "recurse": "true"}) == ["a.json", "sub/c.json"]
    split = await ada.get("/userdata", params={"dir": "workflows", "recurse": "true", "split": "true"})
    assert split[1] == ["sub/c.json", "sub", "c.json"]
    listed = await ada.get("/v2/userdata", params={"path": "workflows"})
    assert {item["name"]: item["type"] for item in listed} == {"a.json": "file", "sub": "directory"}
    moved = await ada.http.post("/userdata/workflows%2Fa.json/move/workflows%2Fb.json")
    assert moved.json() == "workflows/b.json"
    assert (await ada.http.delete("/userdata/workflows%2Fsub%2Fc.json")).status_code == 204
    assert await ada.get("/userdata", params={"dir": "workflows"}) == ["b.json"]
    too_large = await ada.http.post("/userdata/big.json", content=b"x" * (9 * 1024**2))
    assert too_large.status_code == 413


async def test_errors_have_the_fields_of_the_contract(site: ComfyuiSite) -> None:
    for path in ("/view?filename=none.png", "/experiment/models/none", "/api/jobs/unknown", "/api/jobs?limit=0"):
        body = (await site.client.http.get(path)).json()
        assert {"error", "code", "message"} <= body.keys(), path
    for path in ("/userdata", "/userdata?dir=none", "/userdata/none.json"):
        answer = await site.client.http.get(path)
        assert answer.headers["Content-Type"].startswith("text/plain"), path


async def test_unsupported_parts_are_empty(site: ComfyuiSite) -> None:
    get = site.client.get
    assert all(path.startswith(("/extensions/core/", "/extensions/comfyrelay/")) for path in await get("/extensions"))
    for path in ("/i18n", "/workflow_templates", "/node_replacements", "/internal/folder_paths"):
        assert await get(path) == {}, path
    assert await get("/embeddings") == []
    assert await get("/users") == {"storage": "server", "migrated": True}
    assert (await get("/internal/logs/raw"))["entries"] == []
    assert (await get("/features"))["assets"] is False
    assert (await get("/api/system_stats"))["devices"] == []
    assert (await site.client.http.get("/models/nope")).status_code == 404
    assert (await site.client.http.get("/view_metadata/checkpoints", params={"filename": "a"})).status_code == 404
    for body in ({"unload_models": True}, [None]):
        assert (await site.client.post("/free", body)).status_code == 200
        assert (await site.client.http.patch("/internal/logs/subscribe", json=body)).status_code == 200
    assert (await site.client.http.get("/api/no-such-route")).text == "404: Not Found"


async def test_blueprints_are_listed_and_read_as_in_comfyui(site: ComfyuiSite) -> None:
    listed = await site.client.get("/global_subgraphs")
    [key] = [key for key, entry in listed.items() if entry["name"] == "Image Blur"]
    assert listed[key] == {"source": "templates", "name": "Image Blur", "info": {"node_pack": "comfyui"}}
    found = await site.client.get(f"/api/global_subgraphs/{key}")
    [node] = json.loads(found.pop("data"))["nodes"]
    assert found == listed[key]
    assert node["title"] == "Image Blur"
    assert await site.client.get("/global_subgraphs/unknown") is None


async def test_extra_data_of_prompts_counts_as_space(tmp_path: Path, backend: SqliteBackend | PostgresBackend) -> None:
    async with open_site(backend, None, tmp_path, models=(), max_workflow_bytes=300_000) as site:
        extra = {"note": "x" * 200_000}
        first = await site.client.post("/prompt", {"prompt": invert(), "extra_data": extra})
        assert first.status_code == 200
        second = await site.client.post("/prompt", {"prompt": invert(1), "extra_data": extra})
        assert second.status_code == 409
        assert second.json()["error"]["type"] == "workflow_limit_reached"
        assert len((await site.client.get("/queue"))["queue_pending"]) == 1


async def test_nodes_of_other_fleets_are_not_listed(site: ComfyuiSite) -> None:
    """No worker of those fleets would run a client's graph."""
    await site.api.engine.catalogue.workflows.create(slug="w", graph=invert())
    await site.api.engine.workers.fleets.create(slug="other", workflow_slugs=["w"])
    await bring(await site.api.worker("elsewhere", fleet="other"), DEFINITIONS)
    assert await site.client.get("/object_info") == {}
    await bring(await site.api.worker("here", fleet="home"), {"SaveImage": DEFINITIONS["SaveImage"]})
    assert list(await site.client.get("/object_info")) == ["SaveImage"]


async def test_images_are_viewed_and_masked(site: ComfyuiSite) -> None:
    client = site.client
    await client.upload("photo.png", _image("RGB", "red"))
    mask = {"image": ("clipspace-mask.png", _image("RGBA", (0, 0, 0, 7)))}
    reference = json.dumps({"filename": "photo.png", "type": "input"})
    answer = await client.http.post("/api/upload/mask", files=mask, data={"original_ref": reference})
    assert answer.json() == {"name": "clipspace-mask.png", "subfolder": "", "type": "input"}
    for query, kind, pixel in (
        ({}, "PNG", (255, 0, 0, 7)),
        ({"channel": "rgb"}, "PNG", (255, 0, 0)),
        ({"channel": "a"}, "PNG", (0, 0, 0, 7)),
        ({"preview": "webp;90"}, "WEBP", None),
        ({"preview": "jpeg", "channel": "rgb"}, "JPEG", None),
    ):
        where = {"filename": "clipspace-mask.png", "type": "input", **query}
        found = await client.http.get("/view", params=where)
        image = Image.open(io.BytesIO(found.content))
        assert (found.headers["Content-Type"], image.format) == (f"image/{kind.lower()}", kind)
        assert pixel is None or image.getpixel((0, 0)) == pixel
    for refused in ("{", "[]", '{"filename": "other.png"}', '{"filename": "../photo.png", "type": "input"}'):
        answer = await client.http.post("/upload/mask", files=mask, data={"original_ref": refused})
        assert answer.status_code == 400, refused
    small = {"image": ("mask.png", _image("RGBA", "red", side=4))}
    answer = await client.http.post("/upload/mask", files=small, data={"original_ref": reference})
    assert answer.status_code == 400


async def test_limits_beyond_64_bits_are_listed(site: ComfyuiSite) -> None:
    """ComfyUI's own `TrimAudioDuration` has such a limit."""
    limits = {"min": -0xFFFFFFFFFFFFFFFF, "default": 0.0}
    trim = {"input": {"required": {"start_index": ["FLOAT", limits]}}, "output": ["AUDIO"]}
    await bring(await site.api.worker("gpu-1", fleet="home"), {**DEFINITIONS, "TrimAudioDuration": trim})
    for path in ("/object_info", "/object_info/TrimAudioDuration"):
        found = (await site.client.get(path))["TrimAudioDuration"]
        assert found["input"]["required"]["start_index"] == ["FLOAT", limits]


async def test_values_beyond_64_bits_are_no_server_error(site: ComfyuiSite) -> None:
    await bring(await site.api.worker("gpu-1", fleet="home"), DEFINITIONS)
    number = 10**30
    answer = await site.client.http.post("/settings", json={"Comfy.Number": number})
    assert answer.status_code < 500
    graph = invert()
    for more in ({"extra_data": {"n": number}}, {"prompt": {**graph, "1": {**graph["1"], "_meta": {"n": number}}}}):
        answer = await site.client.http.post("/prompt", json={"prompt": graph, **more})
        assert answer.status_code < 500, answer.text


async def test_too_large_mask_is_refused_before_it_is_read(site: ComfyuiSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_MASK_BYTES", 10)
    await site.client.upload("photo.png", _image("RGB", "red"))
    mask = {"image": ("mask.png", _image("RGBA", "red"))}
    reference = json.dumps({"filename": "photo.png", "type": "input"})
    answer = await site.client.http.post("/upload/mask", files=mask, data={"original_ref": reference})
    assert (answer.status_code, "A mask has at most" in answer.text) == (400, True)


def _image(mode: str, colour: Any, *, side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (side, side), colour).save(file, "PNG")
    return file.getvalue()
