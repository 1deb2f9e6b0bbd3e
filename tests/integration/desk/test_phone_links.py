"""A QR code signs in a phone once, and signing out ends the session on the server."""

from pathlib import Path

import httpx
import segno

from comfyrelay.desk.desk import Desk
from comfyrelay.desk.password import set_password
from comfyrelay.desk.qr_code import qr_rows
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.settings import Settings
from tests.support.desk import copy_initial_data, make_desk, open_desk
from tests.support.desk_owner import owner_http
from tests.support.server_processes import free_port

OTHER_ADDRESS = "127.0.0.2"


def test_code_is_square_and_contains_the_text() -> None:
    rows = qr_rows("http://192.168.1.20:8420/open?link=abc")
    assert {len(row) for row in rows} == {len(rows)}
    assert rows[0].startswith("1111111")
    again = segno.make_qr("http://192.168.1.20:8420/open?link=abc", error="m")
    assert rows == ["".join(str(int(bool(module))) for module in row) for row in again.matrix]


async def test_desk_on_loopback_says_what_to_change(tmp_path: Path) -> None:
    async with open_desk(make_desk(tmp_path)) as desk, owner_http(desk.ready.url) as owner:
        answer = await owner.post("/api/desk/links/phone")
    assert answer.status_code == 409
    assert "listen on 0.0.0.0" in answer.json()["detail"]


async def test_code_signs_in_a_phone_once_until_it_signs_out(tmp_path: Path) -> None:
    set_password(tmp_path, "a cat & a hill = 2")
    copy_initial_data(tmp_path)
    settings = Settings(data_dir=tmp_path, host="0.0.0.0", port=free_port())
    async with (
        open_desk(Desk(settings=settings, desk=DeskSettings())) as desk,
        owner_http(desk.ready.url) as owner,
    ):
        link = (await owner.post("/api/desk/links/phone")).json()["data"]
        assert link["url"].startswith(f"{desk.ready.url_elsewhere}/open?link=")
        assert link["rows"] == qr_rows(link["url"])
        url = f"http://{OTHER_ADDRESS}:{settings.port}"
        path = link["url"].removeprefix(desk.ready.url_elsewhere)
        async with httpx.AsyncClient(base_url=url, headers={"Origin": url}) as phone:
            assert (await phone.get(path)).status_code == 200
            assert not (await phone.get("/api/desk")).json()["data"]["is_guest"]
            session = dict(phone.cookies)
            assert (await phone.post("/api/logout")).status_code == 200
            phone.cookies.update(session)
            assert (await phone.get("/api/desk")).status_code == 401
        async with httpx.AsyncClient(base_url=url, headers={"Origin": url}) as stranger:
            await stranger.get(path)
            assert (await stranger.get("/api/desk")).status_code == 401
