"""The owner sees the settings with their sources, and changes them in the configuration file of the data folder."""

import re
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from comfyrelay.desk.desk import Desk
from comfyrelay.desk.notifications import notifier
from comfyrelay.desk.page_settings.table import PAGE_SETTINGS
from comfyrelay.desk.password import has_password
from comfyrelay.simulator import Simulator, Stuck
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.desk_owner import owner_http
from tests.support.graphs import invert
from tests.support.server_processes import free_port

SECRET = "tgram://123456789:abcdefghijklmnopqrstuvwxyz_ABCDEFGH/12315544/"


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[OpenDesk]:
    made = make_desk(tmp_path / "data")
    made.options = ["port"]
    async with open_desk(made) as opened:
        yield opened


@pytest_asyncio.fixture
async def owner(desk: OpenDesk) -> AsyncIterator[httpx.AsyncClient]:
    async with owner_http(desk.ready.url) as http:
        yield http


async def listed(owner: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    answer = await owner.get("/api/desk/settings")
    assert answer.status_code == 200
    return {item["name"]: item for item in answer.json()["data"]["items"]}


async def save(owner: httpx.AsyncClient, **values: Any) -> httpx.Response:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return await owner.put("/api/desk/settings", json={"values": named})


async def shown_urls(owner: httpx.AsyncClient) -> list[str]:
    urls: list[str] = (await listed(owner))["desk.notify_urls"]["value"]
    return urls


def file_of(desk: OpenDesk) -> dict[str, Any]:
    return tomllib.loads(desk.ready.settings_file.read_text())


async def test_settings_show_value_default_and_source(
    desk: OpenDesk, owner: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFYRELAY_DESK_NOTIFY_ON", "failed")
    (desk.desk.settings.data_dir / "comfyrelay.toml").write_text("unused_upload_hours = 30\n")
    found = await listed(owner)
    assert found.keys() == {setting.name for setting in PAGE_SETTINGS}
    sources = {name: found[name]["source"] for name in ("port", "desk.notify_on", "unused_upload_hours", "host")}
    assert sources == {
        "port": "command line",
        "desk.notify_on": "environment",
        "unused_upload_hours": "file",
        "host": "default",
    }
    assert found["desk.notify_on"]["variable"] == "COMFYRELAY_DESK_NOTIFY_ON"
    assert found["desk.notify_on"]["choices"] == ["completed", "failed", "empty"]
    assert (found["port"]["value"], found["port"]["default"]) == (desk.desk.settings.port, 8420)
    assert (found["unused_upload_hours"]["value"], found["unused_upload_hours"]["default"]) == (30, 24)
    assert all(item["description"].endswith(".") and item["title"] for item in found.values())
    assert not [name for name, item in found.items() if {"`", "*"} & set(item["description"])]


async def test_change_keeps_comments_and_other_values(desk: OpenDesk, owner: httpx.AsyncClient) -> None:
    file = desk.ready.settings_file
    assert file == desk.desk.settings.data_dir / "comfyrelay.toml"
    file.write_text("# mine\n[desk]\nprefetch = 2  # enough\n")
    assert (await save(owner, desk__notify_on=["completed"], unused_upload_hours=7)).status_code == 200
    text = file.read_text()
    assert "# mine" in text
    assert "prefetch = 2  # enough" in text
    assert tomllib.loads(text) == {"unused_upload_hours": 7, "desk": {"prefetch": 2, "notify_on": ["completed"]}}
    assert file.stat().st_mode & 0o077 == 0
    assert (await save(owner, unused_upload_hours=None)).status_code == 200
    assert "unused_upload_hours" not in tomllib.loads(file.read_text())


async def test_live_settings_apply_at_once(desk: OpenDesk, owner: httpx.AsyncClient, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    answer = await save(owner, desk__output_folder=str(folder), desk__notify_on=["empty"], desk__output_names="{label}")
    assert answer.json()["message"] == "Saved."
    info = (await owner.get("/api/desk")).json()["data"]
    assert (info["output_folder"], info["notifications"]["on"]) == (str(folder), ["empty"])
    workflow = await desk.client.create_workflow(invert(), name="mine")
    job = await desk.client.submit(workflow_slug=workflow.slug, label="a red fox")
    assert (await desk.ended(job.id)).status == "completed"
    [copy] = [path.name for path in folder.iterdir()]
    assert copy.startswith("a-red-fox-")


async def test_other_settings_say_that_they_need_a_restart(desk: OpenDesk, owner: httpx.AsyncClient) -> None:
    answer = await save(owner, host="127.0.0.2")
    assert answer.json()["message"] == "Saved. Restart the desk to apply: Listen on."
    assert (await listed(owner))["host"]["needs_restart"]


async def test_changed_address_of_comfyui_applies_at_once(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    async with (
        Simulator() as comfyui,
        open_desk(make_desk(tmp_path / "data", comfyui_url=[nobody])) as desk,
        owner_http(desk.ready.url) as owner,
    ):
        workflow = await desk.client.create_workflow(invert(), name="mine")
        job = await desk.client.submit(workflow_slug=workflow.slug)
        assert (await save(owner, desk__comfyui_url=[comfyui.url])).is_success
        assert not (await listed(owner))["desk.comfyui_url"]["needs_restart"]
        assert (await desk.ended(job.id)).status == "completed"
        assert (await owner.get("/api/desk")).json()["data"]["comfyui"] == [comfyui.url]


async def test_running_job_ends_before_other_settings_of_comfyui_apply(tmp_path: Path) -> None:
    async with (
        Simulator() as before,
        Simulator() as after,
        open_desk(make_desk(tmp_path / "data", comfyui_url=[before.url])) as desk,
        owner_http(desk.ready.url) as owner,
    ):
        before.misbehave(Stuck(class_type="ImageInvert"))
        workflow = await desk.client.create_workflow(invert(), name="mine")
        jobs = [await desk.client.submit(workflow_slug=workflow.slug) for _ in range(2)]
        async for _event in desk.client.events(jobs[0].id):
            if (await desk.client.job(jobs[0].id)).status == "processing":
                break
        answer = await save(owner, desk__comfyui_url=[after.url])
        assert "apply when the running jobs have ended" in answer.json()["message"]
        before.behave()
        ended = [await desk.ended(job.id) for job in jobs]
        assert [job.status for job in ended] == ["completed"] * 2
        pages = [(await owner.get(f"/api/desk/jobs/{job.id}")).json()["data"]["comfyui_url"] for job in ended]
        # the first ComfyUI is no longer in use
        assert pages == [None, after.url]


@pytest.mark.skipif(sys.platform == "win32", reason="the folder has the layout of a Linux environment")
async def test_unusable_comfyui_is_refused_before_it_replaces_the_current_one(
    desk: OpenDesk, owner: httpx.AsyncClient, tmp_path: Path
) -> None:
    (tmp_path / "ComfyUI").mkdir()
    (tmp_path / "ComfyUI" / "main.py").touch()
    answer = await save(owner, desk__comfyui_dir=str(tmp_path / "ComfyUI"))
    assert answer.status_code == 422
    assert answer.json()["errors"]["desk.comfyui_dir"]
    workflow = await desk.client.create_workflow(invert(), name="mine")
    assert (await desk.ended((await desk.client.submit(workflow_slug=workflow.slug)).id)).status == "completed"


async def test_input_folder_applies_at_once(desk: OpenDesk, owner: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    answer = await save(owner, desk__input_folder=str(tmp_path / "pictures"))
    assert answer.json()["message"] == "Saved."
    assert (await owner.get("/api/desk")).json()["data"]["input_folder"] == str(tmp_path / "pictures")


@pytest.mark.skipif(sys.platform == "win32", reason="scripts do not run on Windows")
@pytest.mark.parametrize("has_own_folder", [True, False])
async def test_input_folder_of_a_script_applies_after_a_restart(tmp_path: Path, has_own_folder: bool) -> None:
    for name in ("own", "pictures"):
        (tmp_path / name).mkdir()
    made = make_desk(tmp_path / "data")
    made.options = ["port"]
    made.script = {"input_folder": str(tmp_path / "own")} if has_own_folder else {}
    async with open_desk(made) as desk, owner_http(desk.ready.url) as owner:
        before = (await owner.get("/api/desk")).json()["data"]["input_folder"]
        assert (await listed(owner))["desk.input_folder"]["is_live"] == has_own_folder
        answer = await save(owner, desk__input_folder=str(tmp_path / "pictures"))
        assert ("Restart the desk" in answer.json()["message"]) != has_own_folder
        now = (await owner.get("/api/desk")).json()["data"]["input_folder"]
        assert now == (str(tmp_path / "pictures") if has_own_folder else before)


async def test_arguments_of_comfyui_are_separated(desk: OpenDesk, owner: httpx.AsyncClient) -> None:
    await save(owner, desk__comfyui_args=["--cpu", "--reserve-vram 2", '--extra "a b"'])
    value = (await listed(owner))["desk.comfyui_args"]["value"]
    assert value == ["--cpu", "--reserve-vram", "2", "--extra", "a b"]
    answer = await save(owner, desk__comfyui_args=["--port 8000"])
    assert "ComfyRelay sets" in answer.json()["errors"]["desk.comfyui_args"]


async def test_comfyui_with_unknown_folders_is_named(tmp_path: Path) -> None:
    async with (
        Simulator() as comfyui,
        open_desk(make_desk(tmp_path / "data", comfyui_url=[comfyui.url])) as desk,
        owner_http(desk.ready.url) as owner,
    ):
        workflow = await desk.client.create_workflow(invert(), name="mine")
        await desk.ended((await desk.client.submit(workflow_slug=workflow.slug)).id)
        found = await listed(owner)
        warning = found["desk.comfyui_folders"]["warning"]
        assert warning.startswith(f"Job files stay in input/comfyrelay and output/comfyrelay of {comfyui.url},")
        assert found["desk.comfyui_url"]["warning"] is None


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"unused_upload_hours": -1}, {"unused_upload_hours": "Must be"}),
        ({"desk.keep_outputs_days": 0}, {"desk.keep_outputs_days": "Must be"}),
        ({"desk.notify_on": ["sometimes"]}, {"desk.notify_on": "'completed'"}),
        ({"desk.notify_urls": ["nonsense"]}, {"desk.notify_urls": ""}),
        ({"desk.output_folder": "relative"}, {"desk.output_folder": "full path"}),
        ({"desk.input_folder": "relative"}, {"desk.input_folder": "full path"}),
        ({"desk.input_folder": "/no/such/folder"}, {"desk.input_folder": "There is no folder"}),
        ({"desk.comfyui_dir": "/no/such/folder"}, {"desk.comfyui_dir": "There is no folder"}),
        ({"desk.comfyui_dir": "/"}, {"desk.comfyui_dir": "has no main.py"}),
        ({"desk.comfyui_folders": ["/no/such/folder"]}, {"desk.comfyui_folders": "There is no folder"}),
        ({"desk.comfyui_folders": ["/", "/"]}, {"desk.comfyui_folders": "2 folders for 1 address."}),
        ({"desk.comfyui_url": ["http://me:…@host"]}, {"desk.comfyui_url": "Write the full address"}),
        ({"desk.output_names": "{what}"}, {"desk.output_names": "{what} is unknown"}),
        ({"desk.output_names": "../{number}"}, {"desk.output_names": "may not contain"}),
        ({"desk.allowed_hosts": ["desk.home"]}, {"desk.allowed_hosts": "set a password first"}),
        ({"host": "0.0.0.0"}, {"host": "set a password first"}),
        ({"port": 9000}, {"port": "command line"}),
        ({"database_url": "sqlite:///x"}, {"database_url": "no such setting"}),
    ],
)
async def test_invalid_value_is_refused_and_nothing_written(
    desk: OpenDesk, owner: httpx.AsyncClient, values: dict[str, Any], problem: dict[str, str]
) -> None:
    answer = await owner.put("/api/desk/settings", json={"values": values})
    assert answer.status_code == 422
    [(name, text)] = answer.json()["errors"].items()
    [(wanted, words)] = problem.items()
    assert name == wanted
    assert words in text
    assert not desk.ready.settings_file.exists()


async def test_setting_from_the_environment_cannot_be_changed(
    owner: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFYRELAY_UNUSED_UPLOAD_HOURS", "5")
    answer = await save(owner, unused_upload_hours=9)
    assert "COMFYRELAY_UNUSED_UPLOAD_HOURS" in answer.json()["errors"]["unused_upload_hours"]


async def test_secrets_are_masked_and_kept(desk: OpenDesk, owner: httpx.AsyncClient) -> None:
    await save(owner, desk__notify_urls=[SECRET, "json://example.com/token"])
    telegram, webhook = await shown_urls(owner)
    assert re.fullmatch(r"tgram://… [0-9a-f]{6}", telegram)
    assert webhook.startswith("json://example.com/… ")
    assert "abcdefghijklmnop" not in (await owner.get("/api/desk/settings")).text
    await save(owner, desk__notify_urls=[telegram, "json://example.org/other"])
    assert file_of(desk)["desk"]["notify_urls"] == [SECRET, "json://example.org/other"]


async def test_password_of_comfyui_is_masked_and_kept(desk: OpenDesk, owner: httpx.AsyncClient) -> None:
    urls = ["https://me:p%40ss@gpu.example.com", "http://192.168.1.20:8188"]
    await save(owner, desk__comfyui_url=urls)
    assert "p%40ss" not in (await owner.get("/api/desk/settings")).text
    shown = (await listed(owner))["desk.comfyui_url"]["value"]
    assert re.fullmatch(r"https://me:…@gpu\.example\.com [0-9a-f]{6}", shown[0])
    assert shown[1] == urls[1]
    await save(owner, desk__comfyui_url=[*shown, "http://192.168.1.21:8188"])
    assert file_of(desk)["desk"]["comfyui_url"] == [*urls, "http://192.168.1.21:8188"]


async def test_one_of_two_addresses_of_a_service_can_be_removed(desk: OpenDesk, owner: httpx.AsyncClient) -> None:
    second = SECRET.replace("12315544", "987654")
    await save(owner, desk__notify_urls=[SECRET, second])
    await save(owner, desk__notify_urls=(await shown_urls(owner))[1:])
    assert file_of(desk)["desk"]["notify_urls"] == [second]


async def test_masked_addresses_of_an_edited_file_are_kept(desk: OpenDesk, owner: httpx.AsyncClient) -> None:
    desk.ready.settings_file.write_text('[desk]\nnotify_urls = ["ntfy://secret-topic", "json://example.com/token"]\n')
    shown = await shown_urls(owner)
    assert (await save(owner, desk__notify_urls=[*shown, "json://example.org/new"])).status_code == 200
    expected = ["ntfy://secret-topic", "json://example.com/token", "json://example.org/new"]
    assert file_of(desk)["desk"]["notify_urls"] == expected


@pytest.mark.parametrize("url", ["ntfy://… 012345", "json://example.com/…"])
async def test_unknown_masked_address_is_neither_saved_nor_tested(
    desk: OpenDesk, owner: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(notifier, "_send", lambda *_args: pytest.fail("An address with a mask was used."))
    expected = "An address with … is no longer saved. Write the full address, or remove it."
    answer = await save(owner, desk__notify_urls=[url])
    assert answer.json()["errors"] == {"desk.notify_urls": expected}
    assert not desk.ready.settings_file.exists()
    tested = await owner.post("/api/desk/notifications/test", json={"urls": [url]})
    assert tested.json()["data"]["items"] == [{"url": url, "problem": expected}]


async def test_test_button_sends_to_saved_and_new_addresses(
    owner: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []

    def send(url: str, _title: str, _body: str) -> str | None:
        sent.append(url)
        return "The service refused it." if url == "desktop://" else None

    monkeypatch.setattr(notifier, "_send", send)
    await save(owner, desk__notify_urls=[SECRET])
    [telegram] = await shown_urls(owner)
    answer = await owner.post("/api/desk/notifications/test", json={"urls": [telegram, "desktop://"]})
    assert answer.json()["data"]["items"] == [
        {"url": telegram, "problem": None},
        {"url": "desktop://", "problem": "The service refused it."},
    ]
    assert sorted(sent) == ["desktop://", SECRET]


async def test_password_opens_the_desk_to_an_allowed_host_at_once(desk: OpenDesk, owner: httpx.AsyncClient) -> None:
    folder = desk.desk.settings.data_dir
    other = {"Host": "desk.home"}
    assert (await owner.get("/api/desk", headers=other)).status_code == 403
    assert (await owner.put("/api/desk/password", json={"password": "short"})).status_code == 422
    assert (await owner.put("/api/desk/password", json={"password": "a cat & a hill = 2"})).status_code == 200
    assert has_password(folder)
    assert (await save(owner, desk__allowed_hosts=["desk.home"])).status_code == 200
    assert (await owner.get("/api/desk", headers=other)).status_code == 200
    async with httpx.AsyncClient(base_url=desk.ready.url, headers=other) as stranger:
        assert "password" in (await stranger.get("/queue")).text
    refused = await owner.delete("/api/desk/password")
    assert refused.status_code == 409
    assert "desk.home" in refused.json()["detail"]
    await save(owner, desk__allowed_hosts=[])
    assert (await owner.delete("/api/desk/password")).status_code == 200
    assert not has_password(folder)


async def test_password_is_kept_for_a_saved_public_host(desk: OpenDesk, owner: httpx.AsyncClient) -> None:
    """The host applies after a restart, and without a password the desk would then refuse to start."""
    await owner.put("/api/desk/password", json={"password": "a cat & a hill = 2"})
    assert (await save(owner, host="0.0.0.0")).status_code == 200
    refused = await owner.delete("/api/desk/password")
    assert refused.status_code == 409
    assert "at 0.0.0.0 after a restart, so the page needs a password." in refused.json()["detail"]
    assert has_password(desk.desk.settings.data_dir)
    await save(owner, host=None)
    assert (await owner.delete("/api/desk/password")).status_code == 200


async def test_unreadable_file_is_left_alone(desk: OpenDesk, owner: httpx.AsyncClient) -> None:
    desk.ready.settings_file.write_text("not = toml = at all")
    answer = await save(owner, unused_upload_hours=9)
    assert answer.status_code == 409
    assert "Correct it in an editor first." in answer.json()["detail"]
    assert desk.ready.settings_file.read_text() == "not = toml = at all"


async def test_folders_are_listed_for_the_owner(owner: httpx.AsyncClient, tmp_path: Path) -> None:
    for name in ("b10", "b9", ".hidden"):
        (tmp_path / "root" / name).mkdir(parents=True)
    (tmp_path / "root" / "file.txt").touch()
    root = str(tmp_path / "root")
    found = (await owner.get("/api/desk/folders", params={"path": root})).json()["data"]
    assert found == {"path": root, "parent": str(tmp_path), "folders": ["b9", "b10"], "more": 0}
    for path, status in (("relative", 422), (f"{root}/none", 404), (f"{root}/file.txt", 404), ("/\0", 422)):
        assert (await owner.get("/api/desk/folders", params={"path": path})).status_code == status
    assert (await owner.get("/api/desk/folders")).json()["data"]["path"] == str(Path.home())


async def test_owner_creates_a_folder(owner: httpx.AsyncClient, tmp_path: Path) -> None:
    path = tmp_path / "best of"
    for _ in range(2):
        answer = await owner.post("/api/desk/folders", json={"path": str(path)})
        assert (answer.status_code, answer.json()["data"]["path"]) == (201, str(path))
    assert path.is_dir()
    assert (await owner.post("/api/desk/folders", json={"path": str(path / "a/b")})).status_code == 409
    (path / "file").touch()
    assert (await owner.post("/api/desk/folders", json={"path": str(path / "file")})).status_code == 409
    assert (await owner.post("/api/desk/folders", json={"path": "best of"})).status_code == 422


def test_desk_uses_the_file_of_its_data_folder(tmp_path: Path) -> None:
    made: Desk = make_desk(tmp_path / "data")
    assert made._live_settings(made.settings).file == tmp_path / "data" / "comfyrelay.toml"
