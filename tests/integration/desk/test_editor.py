"""Only the owner of a desk can use its ComfyUI API and editor."""

from pathlib import Path

import httpx

from comfyrelay.desk.desk import Desk
from comfyrelay.desk.password import set_password
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.settings import Settings
from tests.support.desk import copy_initial_data, open_desk
from tests.support.desk_owner import owner_http
from tests.support.server_processes import free_port

PASSWORD = "a cat & a hill = 2"


async def test_only_the_owner_of_a_desk_can_use_its_editor(tmp_path: Path) -> None:
    copy_initial_data(tmp_path)
    set_password(tmp_path, PASSWORD)
    port = free_port()
    settings = Settings(data_dir=tmp_path, port=free_port(), comfyui_api_port=port)
    options = DeskSettings.model_validate({"simulator": True, "allowed_hosts": "desk.home"})
    url = f"http://127.0.0.1:{port}"
    async with (
        open_desk(Desk(settings=settings, desk=options)) as desk,
        owner_http(desk.ready.url) as owner,
        httpx.AsyncClient(base_url=desk.ready.url) as guest,
        httpx.AsyncClient(base_url=url) as browser,
    ):
        assert (await owner.get("/api/me")).json()["data"]["has_editor"] is True
        link = (await owner.post("/api/editor/links", json={})).json()["data"]["url"]
        assert link.startswith(f"{url}/open?code=")
        assert (await browser.get(link)).status_code == 303
        assert (await browser.get("/")).status_code == 200
        assert (await browser.get("/api/queue")).json() == {"queue_running": [], "queue_pending": []}
        assert (await browser.get("/api/queue", headers={"Host": f"desk.home:{port}"})).status_code == 200
        assert (await browser.get("/api/queue", headers={"Host": f"evil.example:{port}"})).status_code == 403
        await _check_guest(guest, url)


async def _check_guest(guest: httpx.AsyncClient, url: str) -> None:
    await guest.post("/sign-in", data={"password": PASSWORD})
    assert (await guest.get("/api/me")).json()["data"]["has_editor"] is False
    assert (await guest.post("/api/editor/links", json={})).status_code == 403
    [(name, secret)] = guest.cookies.items()
    for headers in ({"Authorization": f"Bearer {secret}"}, {"Cookie": f"{name}={secret}"}):
        async with httpx.AsyncClient(base_url=url, headers=headers) as program:
            assert (await program.get("/api/queue")).status_code == 401
