"""`comfyrelay doctor` reports the state of this machine and changes nothing."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comfyrelay.cli.main import app
from comfyrelay.desk.doctor import examine
from comfyrelay.protocol.desk import CheckVerdict
from comfyrelay.simulator import Simulator
from tests.support.desk import make_desk
from tests.support.desk_owner import owner_http
from tests.support.server_processes import free_port


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the data folder of a machine without ComfyUI on which ComfyRelay has never run."""
    for name in list(os.environ):
        if name.startswith("COMFYRELAY_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(tmp_path / "desk"))
    monkeypatch.setenv("COMFYRELAY_PORT", str(free_port()))
    return tmp_path / "desk"


async def run_checks() -> dict[str, tuple[str, str]]:
    """Return verdicts and texts by the first word of the subject."""
    return {result.about.split()[0]: (result.verdict, result.text) async for result in examine()}


async def test_new_machine_passes_all_checks_and_is_not_changed(machine: Path) -> None:
    results = await run_checks()
    assert list(results) == ["python", "configuration", "data", "disk", "databases", "desk", "ComfyUI"]
    assert {verdict for verdict, _ in results.values()} <= {CheckVerdict.FINE, CheckVerdict.WARNING}
    assert "first start creates it" in results["data"][1]
    assert "the port is free" in results["desk"][1]
    verdict, text = results["ComfyUI"]
    assert verdict is CheckVerdict.WARNING
    assert "Jobs wait for it." in text
    assert not machine.exists()


async def test_running_desk_is_shown_with_its_details(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = make_desk(machine)
    monkeypatch.setenv("COMFYRELAY_PORT", str(desk.settings.port))
    async with Simulator(models={"checkpoints": ["a.safetensors", "b.safetensors"]}) as simulator:
        monkeypatch.setenv("COMFYRELAY_DESK_COMFYUI_URL", simulator.url)
        async with desk.open():
            results = await run_checks()
        after = await run_checks()
    assert f"in use by process {os.getpid()}" in results["data"][1]
    assert "A desk is running there" in results["desk"][1]
    assert "simulator" in results["desk"][1]
    assert "up to date" in results["database"][1]
    assert "2 models" in results["ComfyUI"][1]
    assert "not in use" in after["data"][1]


async def test_doctor_and_desk_page_check_the_comfyui_of_the_running_desk(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No setting contains a ComfyUI URL that was given on the command line of the desk."""
    async with Simulator(models={"checkpoints": ["a.safetensors", "b.safetensors"]}) as simulator:
        desk = make_desk(machine, comfyui_url=[simulator.url])
        monkeypatch.setenv("COMFYRELAY_PORT", str(desk.settings.port))
        async with desk.open() as (_worker, ready), owner_http(ready.url) as http:

            async def comfyui_checks() -> list[tuple[str, str]]:
                """Return the results of the doctor, followed by those on the page."""
                page = (await http.get("/api/desk/checks")).json()["data"]
                assert page["configuration"] is None
                results = [(result.about, result.verdict, result.text) async for result in examine()]
                results += [(item["about"], item["verdict"], item["text"]) for item in page["items"]]
                return [(verdict, text) for about, verdict, text in results if about == f"ComfyUI {simulator.url}"]

            running = await comfyui_checks()
            await simulator.close()
            closed = await comfyui_checks()
            assert (await http.get("/api/desk/unreachable-comfyui")).json()["data"].keys() == {"comfyui_unreachable"}
    assert ["2 models" in text for _, text in running] == [True, True]
    assert [(verdict, "simulator" in text) for verdict, text in closed] == [(CheckVerdict.BROKEN, False)] * 2


async def test_configured_comfyui_that_does_not_answer_fails_the_check(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFYRELAY_DESK_COMFYUI_URL", f"http://127.0.0.1:{free_port()}")
    verdict, _ = (await run_checks())["ComfyUI"]
    assert verdict is CheckVerdict.BROKEN


async def test_port_used_by_another_program_fails_the_check(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # bound but not listening: the port does not answer, and no other program can bind it
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("COMFYRELAY_PORT", str(taken.getsockname()[1]))
        verdict, text = (await run_checks())["desk"]
    assert verdict is CheckVerdict.BROKEN
    assert "COMFYRELAY_PORT" in text


async def test_invalid_database_fails_the_check(machine: Path) -> None:
    machine.mkdir()
    for name in ("central.db", "tenants-main.db"):
        (machine / name).write_bytes(b"no database at all" * 100)
    verdict, _ = (await run_checks())["databases"]
    assert verdict is CheckVerdict.BROKEN


async def test_configured_script_and_notifications_are_checked(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = machine.with_name("my.toml")
    monkeypatch.setenv("COMFYRELAY_CONFIG", str(config))
    config.write_text('[desk]\nnotify_urls = ["tgram://s3cr3t"]\n[desk.script]\npython = "/no/python"\n')
    results = await run_checks()
    assert results["script"] == (CheckVerdict.BROKEN, "[desk.script] python: /no/python is not a program.")
    verdict, text = results["notifications"]
    assert verdict is CheckVerdict.BROKEN
    assert "s3cr3t" not in text
    config.write_text(f'[desk]\nnotify_urls = ["json://127.0.0.1/x"]\n[desk.script]\npython = "{sys.executable}"\n')
    results = await run_checks()
    assert results["script"][0] is results["notifications"][0] is CheckVerdict.FINE
    assert not machine.exists()


async def test_file_in_the_current_folder_is_reported_as_not_read(machine: Path) -> None:
    Path("comfyrelay.toml").write_text("port = 1\n")
    results = [(result.verdict, result.text) async for result in examine() if result.about == "configuration"]
    assert [verdict for verdict, _ in results] == [CheckVerdict.FINE, CheckVerdict.WARNING]
    assert f"comfyrelay.toml is not read. Settings are in {machine / 'comfyrelay.toml'}" in results[1][1]


def test_invalid_configuration_exits_with_1(machine: Path) -> None:
    machine.mkdir()
    (machine / "comfyrelay.toml").write_text("prot = 1\n")
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    last = json.loads(result.stdout)[-1]
    assert (last["verdict"], last["about"]) == ("broken", "configuration")
    assert "Did you mean 'port'?" in last["text"]


def test_doctor_without_broken_checks_exits_with_0(machine: Path) -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "ok   data folder:" in result.stdout
    assert "note ComfyUI" in result.stdout
