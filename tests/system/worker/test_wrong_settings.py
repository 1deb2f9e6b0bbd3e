"""`comfyrelay worker` and `comfyrelay worker check` name a wrong setting and never show a traceback."""

from pathlib import Path

import pytest

from tests.support.processes import run_command

# None of this exists or is needed, because settings are read first.
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


# A worker reports this before it contacts ComfyUI; `check` lists it with all other results.
MISSING = {"FLEET_SECRET": "FLEET_SECRET is not set", "FLEET_SLUG": "FLEET_SLUG is not set"}


@pytest.mark.parametrize("name", MISSING)
async def test_missing_setting_is_reported_before_comfyui_answers(tmp_path: Path, name: str) -> None:
    environment = {**PLAIN, "COMFYRELAY_WORKER_DATA_DIR": str(tmp_path / "data"), name: ""}
    code, text = await run_command("worker", environment=environment, log=tmp_path / "log")
    assert (code, MISSING[name] in text) == (2, True), text


async def test_check_lists_all_missing_settings(tmp_path: Path) -> None:
    environment = {**PLAIN, "COMFYRELAY_WORKER_DATA_DIR": str(tmp_path / "data"), "HOME": str(tmp_path)}
    environment |= dict.fromkeys((*MISSING, "API_BASE_URL"), "")
    code, text = await run_command("worker", "check", environment=environment, log=tmp_path / "log")
    assert code == 1
    for message in (*MISSING.values(), "API_BASE_URL is not set"):
        assert message in text


async def test_misspelled_variable_is_reported_and_ignored(tmp_path: Path) -> None:
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
async def test_wrong_setting_is_explained(tmp_path: Path, command: tuple[str, ...], wrong: str) -> None:
    variables, message = WRONG[wrong]
    environment = {**PLAIN, "COMFYRELAY_WORKER_DATA_DIR": str(tmp_path / "data"), **variables}
    code, text = await run_command(*command, environment=environment, log=tmp_path / "log")
    assert code == 2, text
    assert message in text
    assert "Traceback" not in text
