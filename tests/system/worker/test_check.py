"""`comfyrelay worker check` reports problems, sets the exit code, and changes nothing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.protocol.desk import CheckVerdict
from comfyrelay.simulator import Simulator
from comfyrelay.worker.check import check_comfyui
from tests.support.graphs import invert
from tests.support.whole_system import System


def marks(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()]


async def test_successful_check_changes_nothing(system: System) -> None:
    await system.plain_effect()
    code, text = await system.checked()
    assert code == 0, text
    assert set(marks(text)) == {"ok"}
    assert "The name of this worker is gpu-1." in text
    assert f"It will create {system.folder / 'worker' / 'gpu-1'} for its files." in text
    assert "ComfyUI " + system.simulator.url in text
    assert "workflow plain: It would be assigned." in text
    assert not (system.folder / "worker").exists()
    assert (await system.admin("GET", "/workers"))["items"] == []


async def test_check_fails_and_names_the_error(system: System) -> None:
    await system.plain_effect()
    in_the_way = system.folder / "file"
    in_the_way.write_text("")
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"fleet_secret": "wrong"}, f"no   fleet secret: {system.api.url} does not accept the fleet secret"),
        ({"fleet_secret": ""}, "FLEET_SECRET is not set"),
        ({"fleet_slug": "none"}, f"no   fleet none: {system.api.url} has no production fleet 'none'"),
        ({"fleet_stage": "staging"}, "FLEET_SECRET must be one of its secrets for staging"),
        ({"api_base_url": "http://127.0.0.1:1"}, "The control plane at http://127.0.0.1:1 does not answer"),
        ({"comfyui_base_url": "http://127.0.0.1:1"}, "No server listens at http://127.0.0.1:1"),
        ({"data_dir": in_the_way}, f"{in_the_way} is not a writable folder"),
    ]
    for wrong, message in wrongs:
        code, text = await system.checked(variables={"FLEET_SECRET": ""} if "fleet_secret" in wrong else None, **wrong)
        assert code == 1, text
        assert marks(text).count("no") == 1, text
        assert message in text


async def test_check_with_warnings_succeeds(system: System) -> None:
    graph = invert()
    graph["2"]["class_type"] = "NoSuchNode"
    await system.effect("rare", graph, properties=[])
    code, text = await system.checked("--json", comfyui_folders=system.folder)
    found = {load["about"]: (load["verdict"], load["text"]) for load in json.loads(text)}
    assert code == 0, text
    assert found["workflow rare"][0] == "warning"
    assert "Missing: NoSuchNode" in found["workflow rare"][1]
    assert found[f"ComfyUI {system.simulator.url}"][0] == "warning"
    assert "has no folder `output`" in found[f"ComfyUI {system.simulator.url}"][1]


async def test_check_reports_a_running_worker(system: System) -> None:
    await system.plain_effect()
    await system.started()
    code, text = await system.checked()
    assert code == 0, text
    assert "A worker is running in" in text


@pytest.mark.skipif(os.name == "nt" or os.getuid() == 0, reason="root may write everywhere")
async def test_unwritable_comfyui_folders_are_named(tmp_path: Path) -> None:
    async with Simulator(folder=tmp_path) as simulator, ComfyClient(simulator.url) as client:
        closed = tmp_path / "output"
        closed.chmod(0o500)
        try:
            found = await check_comfyui(client, folder=tmp_path, setting="FOLDERS")
        finally:
            closed.chmod(0o700)
    assert found.verdict == CheckVerdict.WARNING
    assert f"cannot write to {closed}" in found.text


@pytest.mark.parametrize(("version", "word"), [("0.2.0", "older"), ("99.0", "newer")])
async def test_untested_comfyui_version_is_a_warning(tmp_path: Path, version: str, word: str) -> None:
    (tmp_path / "output").mkdir()
    async with Simulator(folder=tmp_path, version=version) as simulator, ComfyClient(simulator.url) as client:
        # The folder is unknown if ComfyUI runs on another machine.
        found = [
            await check_comfyui(client, folder=folder, setting="COMFYUI_FOLDERS")
            for folder in (tmp_path, None, tmp_path / "elsewhere")
        ]
    assert {result.verdict for result in found} == {CheckVerdict.WARNING}
    assert all(f"ComfyUI {version} is {word} than" in result.text for result in found)
