"""A desk serves only its owner, even on a shared machine: by a secret for programs and one-time links for the page."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

from comfyrelay.client import Client
from comfyrelay.desk.one_time_links import LINK_SECONDS, OneTimeLinks
from comfyrelay.desk.startup.first_start import FLEET
from comfyrelay.desk.startup.simulator import SIMULATOR
from comfyrelay.desk.startup.workers import WORKER
from comfyrelay.errors import ConfigurationError, ControlPlaneUnreachable, Unauthorized
from comfyrelay.server.http.secrets import load_secrets
from comfyrelay.system.owner_secret import SECRET_FILE, desk_note, load_secret, pass_for
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.desk_owner import owner_http
from tests.support.graphs import invert
from tests.support.server_processes import free_port

pytestmark = pytest.mark.usefixtures("built_app")

PATHS = (
    "/api/desk",
    "/api/desk/now",
    "/api/ai-jobs",
    "/api/me",
    "/api/register",
    "/api/login",
    "/api/tokens",
    "/api/admin/workers",
    "/api/webhooks/payments",
    "/docs",
    "/openapi.json",
    "/metrics",
    "/assets/nothing.js",
    "/nothing",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenDesk]:
    """Share one desk among all tests that do not restart it."""
    async with open_desk(make_desk(tmp_path_factory.mktemp("owned"))) as desk:
        yield desk


@pytest.mark.asyncio(loop_scope="module")
async def test_every_call_except_health_checks_needs_the_owner(shared_desk: OpenDesk) -> None:
    async with httpx.AsyncClient(base_url=shared_desk.ready.url) as anonymous:
        for path in PATHS:
            for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
                answer = await anonymous.request(method, path, headers={"Authorization": "Bearer crt_wrong"})
                assert answer.status_code == 401, f"{method} {path}"
        problem = (await anonymous.get("/api/desk")).json()
        assert (problem["status"], problem["type"]) == (401, "urn:comfyrelay:unauthorized")
        assert "comfyrelay open" in problem["detail"]
        for path in ("/healthz", "/readyz"):
            assert (await anonymous.get(path)).is_success


async def test_every_listening_socket_of_the_desk_needs_a_credential(tmp_path: Path) -> None:
    """The simulator's socket does, too: other users of this machine can find and reach every port."""
    before = _listening_ports()
    async with open_desk(make_desk(tmp_path)) as desk:
        ports = _listening_ports() - before
        assert len(ports) == 2
        assert desk.desk.settings.port in ports
        for port in ports:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as anonymous:
                for method, path in itertools.product(("GET", "POST"), ("/prompt", "/queue", "/view", "/ws", "/x")):
                    assert (await anonymous.request(method, path)).status_code == 401, f"{port} {method} {path}"


def _listening_ports() -> set[int]:
    connections = psutil.Process().net_connections("inet")
    return {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}


@pytest.mark.asyncio(loop_scope="module")
async def test_desk_shows_the_simulator_without_its_secret(shared_desk: OpenDesk) -> None:
    [url] = (await shared_desk.client.desk()).comfyui
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)


async def test_login_of_a_comfyui_is_not_shown(tmp_path: Path) -> None:
    port = free_port()
    async with open_desk(make_desk(tmp_path, comfyui_url=[f"http://me:private@127.0.0.1:{port}"])) as desk:
        assert (await desk.client.desk()).comfyui == [f"http://127.0.0.1:{port}"]
        assert desk.ready.comfyui == desk.ready.silent == [f"http://127.0.0.1:{port}"]


@pytest.mark.asyncio(loop_scope="module")
async def test_page_without_a_session_shows_how_to_sign_in(shared_desk: OpenDesk) -> None:
    async with httpx.AsyncClient(base_url=shared_desk.ready.url) as anonymous:
        for path in ("/", "/open", "/open?link=guessed", f"/open?link={'x' * 100}"):
            answer = await anonymous.get(path)
            assert answer.status_code == 401
            assert "<code>comfyrelay open</code>" in answer.text
            assert "set-cookie" not in answer.headers


@pytest.mark.asyncio(loop_scope="module")
async def test_desk_unquotes_no_cookie(shared_desk: OpenDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of Python need quadratic time to unquote a cookie, and anyone can send one."""
    parsed: list[str] = []

    def unquote(value: str) -> str:
        parsed.append(value)
        return value

    monkeypatch.setattr("http.cookies._unquote", unquote)
    async with httpx.AsyncClient(base_url=shared_desk.ready.url) as browser:
        name = f"comfyrelay_session_{browser.base_url.port}"
        answers = [
            await browser.get("/api/me", headers={"Cookie": f"other=plain; {name}={secret}"})
            for secret in ("plain", '"\\a\\a"')
        ]
    assert [answer.status_code for answer in answers] == [401, 401]
    assert parsed == ["plain", "plain", "plain"]


@pytest.mark.asyncio(loop_scope="module")
async def test_link_opens_the_page_in_one_browser_once(shared_desk: OpenDesk) -> None:
    link = await shared_desk.client.add_link()
    async with (
        httpx.AsyncClient(base_url=shared_desk.ready.url) as browser,
        httpx.AsyncClient(base_url=shared_desk.ready.url) as other,
    ):
        answer = await browser.get(link.url)
        assert answer.is_success
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await browser.get("/")).is_success
        assert (await browser.get("/icon.svg")).is_success
        assert (await browser.get("/api/me")).json()["data"]["is_admin"]
        assert (await other.get(link.url)).status_code == 401
        assert (await other.get("/api/me")).status_code == 401
        # the browser that used the link may follow it again
        again = await browser.get(link.url)
        assert again.is_success
        assert "set-cookie" not in again.headers


@pytest.mark.asyncio(loop_scope="module")
async def test_page_of_another_port_cannot_use_the_session(shared_desk: OpenDesk) -> None:
    link = await shared_desk.client.add_link()
    async with httpx.AsyncClient(base_url=shared_desk.ready.url) as browser:
        await browser.get(link.url)
        body = {"name": "mine", "values": {"steps": 1}}
        for headers in ({"Sec-Fetch-Site": "same-site"}, {}):
            assert (await browser.post("/api/presets", json=body, headers=headers)).status_code == 403
        own = {"Origin": shared_desk.ready.url}
        assert (await browser.post("/api/presets", json=body, headers=own)).status_code == 201


def test_expired_link_is_refused() -> None:
    now = 0.0
    links = OneTimeLinks("http://127.0.0.1:1", clock=lambda: now)
    first, second = (httpx.URL(links.make()).params["link"] for _ in range(2))
    now = LINK_SECONDS - 1
    assert links.redeem(first)
    assert not links.redeem(first)
    now = LINK_SECONDS
    assert not links.redeem(second)


async def test_session_and_secret_survive_a_restart(tmp_path: Path) -> None:
    closed_desk = make_desk(tmp_path)
    async with open_desk(closed_desk) as desk, httpx.AsyncClient(base_url=desk.ready.url) as browser:
        link, followed = desk.ready.link, (await desk.client.add_link()).url
        assert (await browser.get(followed)).is_success
        cookies = dict(browser.cookies)
    secret = (tmp_path / SECRET_FILE).read_text()
    async with open_desk(closed_desk) as desk, httpx.AsyncClient(base_url=desk.ready.url, cookies=cookies) as browser:
        assert (await browser.get("/")).is_success
        assert (await browser.get("/api/desk/now")).is_success
        assert (tmp_path / SECRET_FILE).read_text() == secret
        # links do not survive it
        async with httpx.AsyncClient() as other:
            assert (await other.get(link)).status_code == 401
        await browser.post("/api/logout", headers={"Origin": desk.ready.url})
        async with httpx.AsyncClient(base_url=desk.ready.url, cookies=cookies) as after:
            assert (await after.get("/")).status_code == 401


@pytest.mark.asyncio(loop_scope="module")
async def test_registered_account_of_another_user_has_no_access(shared_desk: OpenDesk) -> None:
    url = shared_desk.ready.url
    async with owner_http(url) as http:
        account = {"email": "other@example.com", "password": "long enough"}
        token = (await http.post("/api/register", json=account)).json()["data"]["token"]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as other:
            assert (await other.get(f"{url}/api/me")).status_code == 401
        token = (await http.post("/api/tokens", json={"name": "a program"})).json()["data"]["token"]
        async with Client(url, token=token) as client:
            assert (await client.desk()).version


# The secret


def test_secret_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    secret = load_secret(tmp_path)
    assert (tmp_path / SECRET_FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / SECRET_FILE).chmod(0o644)
    assert load_secret(tmp_path) == secret
    assert (tmp_path / SECRET_FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / SECRET_FILE).write_text("short\n")
    with pytest.raises(ConfigurationError, match="Delete the file"):
        load_secret(tmp_path)


@asynccontextmanager
async def stranger(host: str, port: int) -> AsyncIterator[list[str]]:
    """Listen as a program of another user; yield the headers of the requests that it receives."""
    received: list[str] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(listen, host, port):
        yield received


async def test_secret_is_not_sent_to_the_port_of_a_closed_desk(tmp_path: Path) -> None:
    closed_desk = make_desk(tmp_path)
    port = closed_desk.settings.port
    async with open_desk(closed_desk) as desk:
        url = desk.ready.url
        found = pass_for(url)
        assert found is not None
        assert found.secret != load_secret(tmp_path)
        assert pass_for(f"http://example.com:{port}") is None
        assert pass_for(f"http://127.0.0.1:{free_port()}") is None
    # a killed desk leaves its note behind
    with desk_note(tmp_path, address=("127.0.0.1", port), secret="left behind"):
        assert pass_for(url) is None
        async with stranger("127.0.0.1", port) as received, Client(url) as client:
            with pytest.raises(ControlPlaneUnreachable):
                await client.desk()
    assert received
    assert not any("authorization" in headers for headers in received)


@pytest.mark.asyncio(loop_scope="module")
async def test_secret_is_not_sent_to_another_address_of_this_machine(shared_desk: OpenDesk) -> None:
    port = int(shared_desk.ready.url.rpartition(":")[2])
    async with stranger("::1", port) as by_name, stranger("127.0.0.2", port) as by_address:
        async with Client(f"http://localhost:{port}") as client:
            assert (await client.desk()).version
        assert by_name == []
        for url, received in ((f"http://[::1]:{port}", by_name), (f"http://127.0.0.2:{port}", by_address)):
            async with Client(url) as client:
                with pytest.raises(ControlPlaneUnreachable):
                    await client.desk()
            assert len(received) == 1
            assert "authorization" not in received[0]


async def test_pass_is_not_sent_to_the_port_of_a_stopping_desk(tmp_path: Path) -> None:
    """A stopping desk closes its port first and then waits for running calls."""
    closed_desk = make_desk(tmp_path)
    port = closed_desk.settings.port
    async with AsyncExitStack() as stack:
        desk = await stack.enter_async_context(open_desk(closed_desk))
        before = pass_for(desk.ready.url)
        assert before is not None
        _, held = await asyncio.open_connection("127.0.0.1", port)
        # workers do not need the owner's secret, and this incomplete call does not end
        held.write(b"POST /api/worker/register HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % port)
        held.write(b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
        await held.drain()
        stopping = asyncio.create_task(stack.pop_all().aclose())
        while not await _is_free(port):
            pass
        assert not stopping.done()
        assert pass_for(desk.ready.url) is None
        async with stranger("127.0.0.1", port) as received, Client(desk.ready.url) as client:
            with pytest.raises(ControlPlaneUnreachable):
                await client.desk()
        held.close()
        await stopping
    assert len(received) == 1
    assert "authorization" not in received[0]
    # the next desk refuses the pass of the previous desk
    async with open_desk(make_desk(tmp_path)) as next_desk, httpx.AsyncClient(base_url=next_desk.ready.url) as http:
        answer = await http.get("/api/me", headers={"Authorization": f"Bearer {before.secret}"})
        assert answer.status_code == 401


async def _is_free(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        # the port was closed while this program connected
        return False
    writer.close()
    return False


async def test_replaced_owner_secret_ends_all_sessions_and_tokens(tmp_path: Path) -> None:
    """Someone else who knew the secret may have created them."""
    closed_desk = make_desk(tmp_path)
    statuses = []
    async with open_desk(closed_desk) as desk, owner_http(desk.ready.url) as owner, httpx.AsyncClient() as browser:
        await browser.get((await desk.client.add_link()).url)
        cookies = dict(browser.cookies)
        token = (await owner.post("/api/tokens", json={"name": "mine"})).json()["data"]["token"]
    for is_replaced in (False, True):
        if is_replaced:
            (tmp_path / SECRET_FILE).unlink()
        async with open_desk(closed_desk) as desk, httpx.AsyncClient(base_url=desk.ready.url) as http:
            by_token = await http.get("/api/me", headers={"Authorization": f"Bearer {token}"})
            by_cookie = await http.get("/api/me", headers={"Cookie": "; ".join(f"{k}={v}" for k, v in cookies.items())})
            statuses.append((by_token.status_code, by_cookie.status_code))
    assert statuses == [(200, 200), (401, 401)]


@pytest.mark.asyncio(loop_scope="module")
async def test_client_of_another_user_is_told_to_use_a_token(
    shared_desk: OpenDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = shared_desk
    secret = (desk.ready.data_dir / SECRET_FILE).read_text().strip()
    # another user of this machine has a different home folder
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.ready.data_dir / "elsewhere"))
    async with Client(desk.ready.url) as other:
        with pytest.raises(Unauthorized, match="COMFYRELAY_TOKEN"):
            await other.desk()
    async with Client(desk.ready.url, token=secret) as known:
        assert (await known.desk()).version


# Files


async def _leased(desk: OpenDesk, http: httpx.AsyncClient) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Lease a job with a worker token; return its id, the lease and the headers."""
    body = {"worker_id": "another", "fleet_slug": FLEET}
    secret = load_secrets(desk.desk.settings).fleet["production"][0]
    registered = await http.post("/api/worker/register", json=body, headers={"X-Fleet-Secret": secret})
    bearer = {"Authorization": f"Bearer {registered.json()['data']['token']}"}
    slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
    job = await desk.client.submit(workflow_slug=slug)
    poll = {"worker_id": "another", "wait_seconds": 20}
    lease = (await http.post("/api/worker/poll", json=poll, headers=bearer)).json()["data"]["job"]
    assert lease["job_id"] == job.id
    return job.id, {"dispatch_id": lease["dispatch_id"], "lease_token": lease["lease_token"]}, bearer


async def test_paths_reported_by_a_worker_are_ignored(tmp_path: Path) -> None:
    private = tmp_path / "id_rsa"
    private.write_text("a key")
    # the desk's own worker has no ComfyUI, so another worker gets the job
    unused_url = f"http://127.0.0.1:{free_port()}"
    async with (
        open_desk(make_desk(tmp_path / "desk", comfyui_url=[unused_url])) as desk,
        owner_http(desk.ready.url) as http,
    ):
        inside = desk.desk.output_folder / "mine.png"
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_bytes(b"a picture")
        job_id, lease, bearer = await _leased(desk, http)
        paths = [str(private), str(inside)]
        about = {"files": paths, "outputs": paths, "note": "kept"}
        failed = {**lease, "error_message": "no", "about": about}
        (await http.post("/api/worker/fail", json=failed, headers=bearer)).raise_for_status()
        await desk.ended(job_id)
        found = await desk.client.about(job_id)
        assert found is not None
        assert found.files == []
        assert found.attempts[0].about == {"note": "kept"}
        assert (await http.get(f"/api/desk/jobs/{job_id}/files/1")).status_code == 404


@pytest.mark.asyncio(loop_scope="module")
async def test_only_files_in_the_folders_of_the_desk_are_served(shared_desk: OpenDesk, tmp_path: Path) -> None:
    desk = shared_desk
    slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
    job = await desk.client.submit(workflow_slug=slug)
    assert (await desk.ended(job.id)).status == "completed"
    about = await desk.client.about(job.id)
    assert about is not None
    [file] = about.files
    async with owner_http(desk.ready.url) as http:
        assert (await http.get(file.url or "")).content == Path(file.path).read_bytes()
        # the file is checked when it is read, not when it was recorded
        (tmp_path / "private").write_text("a key")
        Path(file.path).unlink()
        Path(file.path).symlink_to(tmp_path / "private")
        assert (await http.get(file.url or "")).status_code == 404
        about = await desk.client.about(job.id)
        assert about is not None
        assert [(file.size, file.url) for file in about.files] == [(None, None)]


# The desk's own worker


@pytest.mark.asyncio(loop_scope="module")
async def test_desk_worker_registers_again(shared_desk: OpenDesk) -> None:
    """It does so after its token was rotated and after its registration was removed."""
    slug = (await shared_desk.client.add_graph(invert(), name="mine")).data.slug
    async with owner_http(shared_desk.ready.url) as http:
        for is_removed in (False, True):
            await _until_worker(http)
            rotated = await http.post(f"/api/admin/workers/{SIMULATOR}/rotate-token")
            rotated.raise_for_status()
            if is_removed:
                bearer = {"Authorization": f"Bearer {rotated.json()['data']['token']}"}
                (await http.post("/api/worker/deregister", json={}, headers=bearer)).raise_for_status()
            job = await shared_desk.client.submit(workflow_slug=slug)
            assert (await shared_desk.ended(job.id)).status == "completed"


@pytest.mark.asyncio(loop_scope="module")
async def test_name_of_the_desk_worker_is_reserved(shared_desk: OpenDesk) -> None:
    secret = load_secrets(shared_desk.desk.settings).fleet["production"][0]
    async with owner_http(shared_desk.ready.url) as http:
        await _until_worker(http)
        for name, body in itertools.product((WORKER, SIMULATOR), ({}, {"dry_run": True})):
            answer = await http.post(
                "/api/worker/register",
                json={"worker_id": name, "fleet_slug": FLEET, **body},
                headers={"X-Fleet-Secret": secret},
            )
            assert answer.status_code == 409
            assert "desk's own" in answer.json()["detail"]


async def _until_worker(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while (await http.get("/api/desk/now")).json()["data"]["worker"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
