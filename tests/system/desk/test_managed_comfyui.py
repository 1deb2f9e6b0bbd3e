"""A desk starts ComfyUI, runs jobs on it, shows its state, and stops it when the desk stops."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from comfyrelay.comfyui.processes.log import last_lines_in
from comfyrelay.comfyui.processes.process import ComfyProcess
from comfyrelay.desk.doctor import examine
from comfyrelay.protocol.desk import CheckVerdict
from tests.support.comfyui_install import FakeInstall, wait_until_running
from tests.support.desk import make_desk, open_desk
from tests.support.desk_owner import owner_http
from tests.support.graphs import invert

STUCK = {"name": "Stuck", "class_type": "ImageInvert"}


@pytest.fixture
def install(tmp_path: Path) -> FakeInstall:
    return FakeInstall(tmp_path / "ComfyUI")


@pytest.mark.journey
@pytest.mark.parametrize("is_seen_first_by", ["supervisor", "worker"])
async def test_job_survives_a_crash_of_the_managed_comfyui(
    tmp_path: Path, install: FakeInstall, fast_reconnect: None, monkeypatch: pytest.MonkeyPatch, is_seen_first_by: str
) -> None:
    if is_seen_first_by == "worker":
        # both poll ComfyUI, and on a busy machine a job may start before the supervisor sees that ComfyUI is running
        monkeypatch.setattr(ComfyProcess, "responds", _responds_after_restart(install))
    install.behave(misbehave=[STUCK])
    settings = make_desk(
        tmp_path / "desk",
        simulator=False,
        comfyui_dir=install.folder,
        comfyui_python=sys.executable,
        comfyui_args=["--cpu"],
    )
    async with open_desk(settings) as desk:
        assert desk.ready.comfyui_dir == install.folder
        workflow = (await desk.client.create_workflow(invert(), name="mine", output_node_id="3")).slug
        job = await desk.client.submit(workflow_slug=workflow)
        await wait_until_running(install, 1)
        assert (await desk.client.desk()).comfyui == [f"http://127.0.0.1:{install.starts[0]['port']}"]
        install.behave()
        install.kill()
        done = await desk.ended(job.id)
        assert done.status == "completed"
        # on a desk, the owner of the job is the operator
        lines = [line.line async for line in desk.client.logs(job.id)]
        assert "ComfyUI: got prompt" in lines
        assert not any("To see the GUI" in line for line in lines)
        async with owner_http(desk.ready.url) as http:
            [process] = (await http.get("/api/desk/comfyui")).json()["data"]["items"]
        assert (process["name"], process["gpu"], process["restarts"]) == ("comfyui-1", "CPU", 1)
        assert {"To see the GUI go to: http://127.0.0.1", "got prompt"} <= set(process["lines"])
        assert process["lines"] == last_lines_in(Path(process["log"]))
    assert install.running_pids == []


def _responds_after_restart(install: FakeInstall) -> Callable[[ComfyProcess], Awaitable[bool]]:
    responds = ComfyProcess.responds

    async def responds_if_restarted(process: ComfyProcess) -> bool:
        return len(install.starts) > 1 and await responds(process)

    return responds_if_restarted


async def test_doctor_finds_the_install_and_prints_how_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(tmp_path / "desk"))
    monkeypatch.setenv("COMFYRELAY_DESK_COMFYUI_URL", "http://127.0.0.1:1")
    install = FakeInstall(tmp_path / "ComfyUI")
    found = {finding.about: finding for finding in [finding async for finding in examine()]}
    about = f"ComfyUI {install.folder}"
    assert found[about].text.endswith(f"comfyrelay up --comfyui {install.folder}")
    monkeypatch.setenv("COMFYRELAY_DESK_COMFYUI_DIR", str(install.folder))
    monkeypatch.setenv("COMFYRELAY_DESK_COMFYUI_PYTHON", sys.executable)
    found = {finding.about: finding for finding in [finding async for finding in examine()]}
    assert found[about].verdict is CheckVerdict.BROKEN
    assert "No module named 'torch'" in found[about].text
    assert "COMFYRELAY_DESK_COMFYUI_PYTHON" in found[about].text
