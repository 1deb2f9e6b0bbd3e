"""Other machines can use the desk if its owner allows it, with a password and under an allowed host name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from comfyrelay.cli.main import app
from comfyrelay.client import Client
from comfyrelay.desk.desk import Desk
from comfyrelay.desk.password import PASSWORD_FILE, has_password, remove_password, set_password
from comfyrelay.desk.settings import DeskSettings, load_desk_settings
from comfyrelay.errors import ConfigurationError, InvalidInput
from comfyrelay.server.http import auth
from comfyrelay.server.user import live
from comfyrelay.settings import Settings
from tests.support.desk import OpenDesk, copy_initial_data, open_desk
from tests.support.server_processes import free_port
from tests.support.world import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("built_app")

PASSWORD = "a cat & a hill = 2"
# A non-loopback address of this machine, as another machine would use it.
OTHER_ADDRESS = "127.0.0.2"


def open_to_others(folder: Path, *, host: str = "0.0.0.0", **desk: object) -> Desk:
    copy_initial_data(folder)
    settings = Settings(data_dir=folder, host=host, port=free_port())
    return Desk(settings=settings, desk=DeskSettings.model_validate(desk))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenDesk]:
    folder = tmp_path_factory.mktemp("shared")
    set_password(folder, PASSWORD)
    async with open_desk(open_to_others(folder, allowed_hosts="Desk.Home, far.example:8443")) as desk:
        yield desk


@asynccontextmanager
async def phone(desk: OpenDesk, *, own: str = OTHER_ADDRESS) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a browser on another machine; `own` is that machine's address."""
    url = f"http://{OTHER_ADDRESS}:{desk.desk.settings.port}"
    transport = httpx.AsyncHTTPTransport(local_address=own)
    async with httpx.AsyncClient(base_url=url, transport=transport, headers={"Origin": url}) as browser:
        yield browser


async def sign_in(browser: httpx.AsyncClient, password: str = PASSWORD) -> httpx.Response:
    return await browser.post("/sign-in", data={"password": password})


@pytest.mark.parametrize("settings_values", [{"host": "0.0.0.0"}, {"host": "127.0.0.1", "allowed_hosts": "desk.home"}])
async def test_desk_without_a_password_does_not_listen_for_other_machines(
    tmp_path: Path, settings_values: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError, match=f"Set one with: comfyrelay password --data-dir {tmp_path}"):
        async with open_to_others(tmp_path, **settings_values).open():
            pass


@pytest.mark.asyncio(loop_scope="module")
async def test_page_asks_for_the_password_and_opens_with_it(shared_desk: OpenDesk) -> None:
    async with phone(shared_desk, own="127.0.0.9") as browser:
        closed = await browser.get("/")
        assert closed.status_code == 401
        assert 'action="/sign-in"' in closed.text
        assert "form-action 'self'" in closed.headers["content-security-policy"]
        assert (await browser.get("/api/desk/now")).status_code == 401
        for wrong in ("", "a cat", PASSWORD.upper()):
            answer = await sign_in(browser, wrong)
            assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
            assert "The password is wrong." in answer.text
        right = await sign_in(browser)
        assert right.is_success
        cookie = right.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await browser.get("/")).is_success
        assert (await browser.get("/api/desk/now")).is_success
        created = await browser.post("/api/collections", json={"name": "from a phone"})
        assert created.status_code == 201


@pytest.mark.asyncio(loop_scope="module")
async def test_session_behind_a_tls_proxy_has_a_secure_cookie(tmp_path: Path) -> None:
    set_password(tmp_path, PASSWORD)
    desk = open_to_others(tmp_path, host="127.0.0.1", allowed_hosts="desk.home")
    desk.settings = desk.settings.model_copy(update={"trusted_proxies": ["127.0.0.1"]})
    as_proxied = {"Host": "desk.home", "Origin": "https://desk.home", "X-Forwarded-Proto": "https"}
    async with (
        open_desk(desk) as proxied_desk,
        httpx.AsyncClient(base_url=proxied_desk.ready.url, headers=as_proxied) as proxy,
    ):
        assert proxied_desk.ready.url_elsewhere is None
        assert "; secure" in (await sign_in(proxy)).headers["set-cookie"].lower()


@pytest.mark.asyncio(loop_scope="module")
async def test_sign_in_attempts_are_limited_per_address(shared_desk: OpenDesk) -> None:
    async with phone(shared_desk, own="127.0.0.5") as guesser, phone(shared_desk, own="127.0.0.6") as owner:
        assert [(await sign_in(guesser, f"guess {n}")).status_code for n in range(11)] == [401] * 10 + [429]
        refused = await sign_in(guesser)
        assert refused.status_code == 429
        assert 0 < int(refused.headers["retry-after"]) <= 61
        assert "Too many attempts" in refused.text
        assert (await sign_in(owner)).is_success


@pytest.mark.asyncio(loop_scope="module")
async def test_foreign_hosts_and_origins_are_refused_on_other_addresses(shared_desk: OpenDesk) -> None:
    port = shared_desk.desk.settings.port
    async with phone(shared_desk) as browser:
        for headers in (
            {"Host": "evil.example"},
            {"Host": f"evil.example:{port}"},
            # the host and origin of another machine, as a page there would send them
            {"Host": f"192.0.2.7:{port}", "Origin": f"http://192.0.2.7:{port}"},
            {"Origin": f"http://192.0.2.7:{port}"},
            {"Origin": f"http://{OTHER_ADDRESS}:1"},
            {"Origin": "null"},
            {"Host": "far.example"},
        ):
            for method, path in (("GET", "/"), ("POST", "/sign-in"), ("GET", "/api/desk"), ("GET", "/files/a")):
                answer = await browser.request(method, path, headers=headers, content=b"password=x")
                assert answer.status_code == 403, f"{method} {path} {headers}"


@pytest.mark.asyncio(loop_scope="module")
async def test_allowed_host_names_are_accepted(shared_desk: OpenDesk) -> None:
    port = shared_desk.desk.settings.port
    async with phone(shared_desk) as browser:
        for host in ("desk.home", f"desk.home:{port}", "far.example:8443", f"127.0.0.1:{port}"):
            answer = await browser.get("/", headers={"Host": host, "Origin": f"https://{host}"})
            assert answer.status_code == 401, host


@pytest.mark.asyncio(loop_scope="module")
async def test_owner_programs_and_links_keep_working_over_loopback(shared_desk: OpenDesk) -> None:
    port = shared_desk.desk.settings.port
    assert shared_desk.ready.url == f"http://127.0.0.1:{port}"
    assert (shared_desk.ready.url_elsewhere or "").endswith(f":{port}")
    async with Client(shared_desk.ready.url) as client, httpx.AsyncClient() as browser:
        assert (await client.desk()).version
        assert (await browser.get((await client.add_link()).url)).is_success
    # the pass authenticates only over loopback
    async with Client(f"http://{OTHER_ADDRESS}:{port}") as client:
        with pytest.raises(Exception, match="requires authentication"):
            await client.desk()


async def test_desk_on_other_addresses_also_listens_on_loopback(tmp_path: Path) -> None:
    set_password(tmp_path, PASSWORD)
    # a socket on all IPv6 addresses may or may not include IPv4 loopback
    async with open_desk(open_to_others(tmp_path, host="::")) as desk:
        assert (await desk.client.desk()).version


async def test_password_change_ends_existing_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open streams are closed as well."""
    monkeypatch.setattr(live, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(auth, "CHECK_SECONDS", 0.05)
    set_password(tmp_path, PASSWORD)
    closed_desk = open_to_others(tmp_path)
    async with (
        open_desk(closed_desk) as desk,
        phone(desk) as browser,
        httpx.AsyncClient(base_url=desk.ready.url) as here,
    ):
        await sign_in(browser)
        await here.get((await desk.client.add_link()).url)
        cookies, by_link = dict(browser.cookies), dict(here.cookies)
        async with browser.stream("GET", "/api/events") as heard, asyncio.timeout(PATIENCE_SECONDS):
            lines = heard.aiter_lines()
            await anext(line async for line in lines if line == ": still here")
            set_password(tmp_path, "another one")
            async for _line in lines:
                pass
        assert (await browser.get("/api/me")).status_code == 401
        assert (await here.get("/api/me")).is_success
        assert (await sign_in(browser)).status_code == 401
    async with (
        open_desk(closed_desk) as desk,
        phone(desk) as browser,
        httpx.AsyncClient(base_url=desk.ready.url) as here,
    ):
        browser.cookies, here.cookies = httpx.Cookies(cookies), httpx.Cookies(by_link)
        assert (await browser.get("/")).status_code == 401
        assert (await here.get("/")).is_success
        assert (await sign_in(browser, "another one")).is_success
        assert (await browser.get("/api/me")).is_success
        remove_password(tmp_path)
        assert (await browser.get("/api/me")).status_code == 401
        assert (await sign_in(browser, "another one")).status_code == 401


def test_password_is_stored_as_a_private_hash(tmp_path: Path) -> None:
    path = set_password(tmp_path, PASSWORD)
    assert path.stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in path.read_text()
    for weak in ("short", "password", " " * 8):
        with pytest.raises(InvalidInput) as refused:
            set_password(tmp_path, weak)
        assert refused.value.errors == {"password": refused.value.detail}
    assert remove_password(tmp_path)
    assert not remove_password(tmp_path)


def test_command_sets_and_removes_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "desk"
    result = CliRunner().invoke(app, ["password", "--data-dir", str(folder)], input=f"{PASSWORD}\n")
    assert (result.exit_code, str(folder / PASSWORD_FILE) in result.output) == (0, True), result.output
    assert "previous password" not in result.output
    assert has_password(folder)
    changed = CliRunner().invoke(app, ["password", "--data-dir", str(folder)], input=f"another {PASSWORD}\n")
    assert "Sessions with the previous password have ended." in changed.output
    assert folder.stat().st_mode & 0o777 == 0o700
    removed = CliRunner().invoke(app, ["password", "--remove", "--data-dir", str(folder)])
    assert (removed.exit_code, removed.output, has_password(folder)) == (0, "Removed.\n", False)


def test_invalid_host_name_is_refused_with_an_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMFYRELAY_DESK_ALLOWED_HOSTS", "https://desk.home/")
    with pytest.raises(ConfigurationError, match=r"COMFYRELAY_DESK_ALLOWED_HOSTS .* such as desk\.home"):
        load_desk_settings()
