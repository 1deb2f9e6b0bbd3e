"""Wrong settings: `comfyrelay worker` and `comfyrelay worker check` say which one it is, and never show a traceback."""

from pathlib import Path

import pytest

from tests.support.processes import run_command

# Nothing of this is there, and nothing of it is needed: the settings are read first.
PLAIN = {
    "API_BASE_URL": "http://127.0.0.1:1",
    "COMFYUI_BASE_URL": "http://127.0.0.1:1",
    "COMFYRELAY_WORKER_METADATA_URL": "off",
    "FLEET_SECRET": "secret",
    "FLEET_SLUG": "home",
}
WRONG = {
    "port": ({"API_BASE_URL": "http://host:port"}, "API_BASE_URL"),
    "bracket": ({"API_BASE_URL": "http://[bad"}, "API_BASE_URL"),
    "no host": ({"API_BASE_URL": "http://"}, "API_BASE_URL"),
    "letter": ({"API_BASE_URL": "http://xn--a"}, "API_BASE_URL"),
    "metadata": ({"COMFYRELAY_WORKER_METADATA_URL": "http://[bad"}, "METADATA_URL"),
    "comfyui": ({"COMFYUI_BASE_URL": "http://host:port"}, "ComfyUI"),
    "quote": ({"COMFYRELAY_WORKER_COMFYUI_RESTART_COMMAND": 'sh -c "oops'}, "No closing quotation"),
    "proxy": ({"API_BASE_URL": "https://relay.example.com", "HTTPS_PROXY": "foo://x"}, "proxy"),
    "port of the proxy": ({"API_BASE_URL": "https://relay.example.com", "HTTPS_PROXY": "http://x:port"}, "proxy"),
    "our own": ({"CAPABILITIES": '{"comfyui": "0.7.0", "zone": "attic"}'}, "detects comfyui automatically"),
    "no JSON": ({"CAPABILITIES": "attic"}, "CAPABILITIES"),
}


# A worker says this before ComfyUI is there; `check` names it beside all the rest.
MISSING = {"FLEET_SECRET": "FLEET_SECRET is not set", "FLEET_SLUG": "FLEET_SLUG is not set"}


@pytest.mark.parametrize("name", MISSING)
async def test_what_is_missing_is_said_before_comfyui_answers(tmp_path: Path, name: str) -> None:
    environment = {**PLAIN, "COMFYRELAY_WORKER_DATA_DIR": str(tmp_path / "data"), name: ""}
    code, text = await run_command("worker", environment=environment, log=tmp_path / "log")
    assert (code, MISSING[name] in text) == (2, True), text


async def test_check_names_all_that_is_missing_at_once(tmp_path: Path) -> None:
    environment = {**PLAIN, "COMFYRELAY_WORKER_DATA_DIR": str(tmp_path / "data"), "HOME": str(tmp_path)}
    environment |= dict.fromkeys((*MISSING, "API_BASE_URL"), "")
    code, text = await run_command("worker", "check", environment=environment, log=tmp_path / "log")
    assert code == 1
    for told in (*MISSING.values(), "API_BASE_URL is not set"):
        assert told in text


async def test_slip_in_the_name_of_a_variable_is_said_and_changes_nothing(tmp_path: Path) -> None:
    slips = {"COMFYRELAY_WORKER_FLEET_SLUGG": "home", "COMFYREALY_PORT": "1", "COMFYRELAY_NONSENSE": "1"}
    environment = {**PLAIN, "COMFYRELAY_WORKER_DATA_DIR": str(tmp_path / "data"), "FLEET_SLUG": "", **slips}
    code, text = await run_command("worker", environment=environment, log=tmp_path / "log")
    assert code == 2
    assert "COMFYRELAY_WORKER_FLEET_SLUGG is ignored. Did you mean COMFYRELAY_WORKER_FLEET_SLUG?" in text
    assert "COMFYREALY_PORT is ignored. Did you mean COMFYRELAY_PORT?" in text
    assert "COMFYRELAY_NONSENSE is ignored." in text
    assert "COMFYRELAY_WORKER_DATA_DIR is ignored" not in text


@pytest.mark.parametrize("command", [("worker",), ("worker", "check")], ids=" ".join)
@pytest.mark.parametrize("wrong", WRONG)
async def test_wrong_setting_is_said_in_words(tmp_path: Path, command: tuple[str, ...], wrong: str) -> None:
    variables, told = WRONG[wrong]
    environment = {**PLAIN, "COMFYRELAY_WORKER_DATA_DIR": str(tmp_path / "data"), **variables}
    code, text = await run_command(*command, environment=environment, log=tmp_path / "log")
    assert code == 2, text
    assert told in text
    assert "Traceback" not in text
