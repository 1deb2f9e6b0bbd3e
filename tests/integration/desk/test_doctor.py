"""`comfyrelay doctor` reports the state of this machine and changes nothing."""

import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comfyrelay.cli.main import app
from comfyrelay.desk.doctor import examine
from comfyrelay.protocol.desk import CheckResult, CheckVerdict
from comfyrelay.simulator import Simulator
from tests.support.desk import make_desk
from tests.support.desk_owner import owner_http
from tests.support.server_processes import free_port


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of a machine on which ComfyRelay never ran, and that has no ComfyUI."""
    for name in list(os.environ):
        if name.startswith("COMFYRELAY_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(tmp_path / "desk"))
    monkeypatch.setenv("COMFYRELAY_PORT", str(free_port()))
    return tmp_path / "desk"


async def found(findings: AsyncIterator[CheckResult] | None = None) -> dict[str, tuple[str, str]]:
    return {finding.about.split()[0]: (finding.verdict, finding.text) async for finding in findings or examine()}


async def test_new_machine_passes_all_checks_and_is_not_changed(machine: Path) -> None:
    seen = await found()
    assert list(seen) == ["python", "configuration", "data", "disk", "databases", "desk", "ComfyUI"]
    assert {verdict for verdict, _ in seen.values()} <= {CheckVerdict.FINE, CheckVerdict.WARNING}
    assert "first start creates it" in seen["data"][1]
    assert "the port is free" in seen["desk"][1]
    verdict, text = seen["ComfyUI"]
    assert verdict is CheckVerdict.WARNING
    assert "Jobs wait for it." in text
    assert not machine.exists()


async def test_running_desk_is_shown_with_its_details(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_desk(machine)
    monkeypatch.setenv("COMFYRELAY_PORT", str(made.settings.port))
    async with Simulator(models={"checkpoints": ["a.safetensors", "b.safetensors"]}) as simulator:
        monkeypatch.setenv("COMFYRELAY_DESK_COMFYUI_URL", simulator.url)
        async with made.open():
            seen = await found()
        after = await found()
    assert f"in use by process {os.getpid()}" in seen["data"][1]
    assert "A desk is running there" in seen["desk"][1]
    assert "simulator" in seen["desk"][1]
    assert "up to date" in seen["database"][1]
    assert "2 models" in seen["ComfyUI"][1]
    assert "not in use" in after["data"][1]


async def test_desk_page_shows_the_same_check_results(machine: Path) -> None:
    async with Simulator(models={"checkpoints": ["a.safetensors", "b.safetensors"]}) as simulator:
        made = make_desk(machine, comfyui_url=[simulator.url])
        async with made.open() as (_worker, ready), owner_http(ready.url) as http:
            told = (await http.get("/api/desk/checks")).json()["data"]
            await simulator.close()
            later = (await http.get("/api/desk/checks")).json()["data"]["items"]
            assert (await http.get("/api/desk/away")).json()["data"].keys() == {"comfyui_unreachable"}
    assert told["configuration"] is None
    [comfyui] = [each for each in told["items"] if each["about"] == f"ComfyUI {simulator.url}"]
    assert "2 models" in comfyui["text"]
    assert f"in use by process {os.getpid()}" in " ".join(each["text"] for each in told["items"])
    # it was named, so it should exist
    assert [each["verdict"] for each in later if each["about"] == f"ComfyUI {simulator.url}"] == ["broken"]


async def test_doctor_checks_the_comfyui_of_a_running_desk(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been named on the command line of the desk, so that no setting contains it."""
    async with Simulator(models={"checkpoints": ["a.safetensors", "b.safetensors"]}) as simulator:
        made = make_desk(machine, comfyui_url=[simulator.url])
        monkeypatch.setenv("COMFYRELAY_PORT", str(made.settings.port))
        async with made.open():
            seen = [each async for each in examine()]
            await simulator.close()
            later = [each async for each in examine()]
    [here] = [each for each in seen if each.about.startswith("ComfyUI")]
    assert simulator.url in here.about
    assert "2 models" in here.text
    [gone] = [each for each in later if each.about.startswith("ComfyUI")]
    assert (gone.verdict, "simulator" in gone.text) == (CheckVerdict.BROKEN, False)


async def test_comfyui_that_was_named_and_does_not_answer_is_broken(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFYRELAY_DESK_COMFYUI_URL", f"http://127.0.0.1:{free_port()}")
    verdict, _ = (await found())["ComfyUI"]
    assert verdict is CheckVerdict.BROKEN


async def test_port_used_by_another_program_fails_the_check(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # bound, but not listening: it does not answer, and no other program can have it
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("COMFYRELAY_PORT", str(taken.getsockname()[1]))
        verdict, text = (await found())["desk"]
    assert verdict is CheckVerdict.BROKEN
    assert "COMFYRELAY_PORT" in text


async def test_invalid_database_fails_the_check(machine: Path) -> None:
    machine.mkdir()
    for name in ("central.db", "tenants-main.db"):
        (machine / name).write_bytes(b"no database at all" * 100)
    verdict, _ = (await found())["databases"]
    assert verdict is CheckVerdict.BROKEN


async def test_configured_script_and_notifications_are_checked(machine: Path) -> None:
    config = Path("comfyrelay.toml")
    config.write_text('[desk]\nnotify_urls = ["tgram://s3cr3t"]\n[desk.script]\npython = "/no/python"\n')
    seen = await found()
    assert seen["script"] == (CheckVerdict.BROKEN, "[desk.script] python: /no/python is not a program.")
    verdict, text = seen["notifications"]
    assert verdict is CheckVerdict.BROKEN
    assert "s3cr3t" not in text
    config.write_text(f'[desk]\nnotify_urls = ["json://127.0.0.1/x"]\n[desk.script]\npython = "{sys.executable}"\n')
    seen = await found()
    assert seen["script"][0] is seen["notifications"][0] is CheckVerdict.FINE
    assert not machine.exists()


def test_configuration_that_cannot_be_read_is_said_with_exit_code_1(machine: Path) -> None:
    Path("comfyrelay.toml").write_text("prot = 1\n")
    ran = CliRunner().invoke(app, ["doctor", "--json"])
    assert ran.exit_code == 1
    last = json.loads(ran.stdout)[-1]
    assert (last["verdict"], last["about"]) == ("broken", "configuration")
    assert "Did you mean 'port'?" in last["text"]


def test_doctor_exits_with_0_if_nothing_is_broken(machine: Path) -> None:
    ran = CliRunner().invoke(app, ["doctor"])
    assert ran.exit_code == 0, ran.output
    assert "ok   data folder:" in ran.stdout
    assert "note ComfyUI" in ran.stdout
