"""ComfyUI processes share an NVIDIA GPU through MPS; if MPS fails, they run without it and report why."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from types import MappingProxyType

import pytest
from typer.testing import CliRunner

from comfyrelay.cli.main import app
from comfyrelay.comfyui.processes import mps, process, state_files
from comfyrelay.comfyui.processes.gpus import LocalGpu
from comfyrelay.comfyui.processes.supervisor import ManagedProcess, ProcessState, Supervisor, Timings
from comfyrelay.system.atomic import PART_PREFIX
from comfyrelay.system.commands import detached
from comfyrelay.worker.check import check_managed_comfyui
from tests.support.comfyui_install import FakeInstall
from tests.support.kill_points import VARIABLE, KillPoint
from tests.support.paths import ROOT
from tests.support.side_effects import SUPERVISOR_KILL_POINTS
from tests.support.world import PATIENCE_SECONDS, memory_folder
from tests.system.comfyui.processes.mps_control import MpsControl

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MPS is for Linux")

QUICK = Timings(poll_seconds=0.05, check_seconds=0.1, first_pause_seconds=0.05, longest_pause_seconds=0.2)
GPUS = [LocalGpu(key=key, variables={"CUDA_VISIBLE_DEVICES": key}) for key in ("GPU-1", "GPU-2")]


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as root:
        yield root


@pytest.fixture
def install(folder: Path) -> FakeInstall:
    return FakeInstall(folder / "ComfyUI", is_plain=True)


@pytest.fixture
def control(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsControl]:
    control = MpsControl(folder / "bin")
    monkeypatch.setenv("PATH", f"{control.folder}:{os.environ['PATH']}")
    monkeypatch.delenv(mps.PIPES, raising=False)
    # make the test independent of MPS on this machine
    monkeypatch.setattr(mps, "USUAL_PIPES", folder / "usual")
    yield control
    assert control.running_pids == []


@asynccontextmanager
async def supervised(
    install: FakeInstall,
    folder: Path,
    *,
    per_gpu: int | str = 2,
    gpus: list[LocalGpu] | None = None,
    setting: str = "auto",
) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(
        install.options(per_gpu=per_gpu, mps=setting),
        folder=supervisor_folder(folder),
        gpus=gpus or GPUS[:1],
        timings=QUICK,
    )
    try:
        await supervisor.open()
        yield supervisor
    finally:
        await supervisor.close()
    assert install.running_pids == []


def supervisor_folder(folder: Path) -> Path:
    return folder / "worker" / state_files.FOLDER


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        # the supervisor sends no signal for each step
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_up(supervisor: Supervisor, count: int) -> None:
    await until(lambda: [process.state for process in supervisor.processes] == [ProcessState.UP] * count)


def pipes_of(start: Mapping[str, dict[str, str]]) -> str | None:
    return start["environment"].get(mps.PIPES)


def mps_reason(folder: Path) -> str:
    note = mps.read(supervisor_folder(folder))
    return note.why if note is not None else ""


async def test_processes_share_one_daemon_that_quits_after_them(
    install: FakeInstall, folder: Path, control: MpsControl
) -> None:
    async with supervised(install, folder, gpus=GPUS) as supervisor:
        await until_up(supervisor, 4)
        [daemon] = control.starts
        pipes = pipes_of(daemon)
        assert pipes is not None
        assert {pipes_of(start) for start in install.starts} == {pipes}
        assert {start["environment"][mps.LOGS] for start in install.starts} == {
            str(supervisor_folder(folder) / mps.FOLDER)
        }
        # GPU numbers have the same meaning for the daemon and its clients
        assert daemon["environment"]["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
        assert (len(pipes) <= mps.LONGEST_PATH, Path(pipes).stat().st_mode & 0o777) == (True, 0o700)
        assert [note.mps for note, _ in state_files.find(folder)] == [True] * 4
        assert mps_reason(folder) == "They share the GPU through NVIDIA MPS."
    assert control.quits == 1
    assert not Path(pipes).exists()
    assert mps_reason(folder) == "They share the GPU through NVIDIA MPS."


async def test_temporary_folder_with_a_long_path_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = folder / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert len(str(mps._private_path())) <= mps.LONGEST_PATH


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"per_gpu": 1}, id="one has its GPU to itself"),
        pytest.param({"setting": "off"}, id="it is set to off"),
        pytest.param(
            {"gpus": [LocalGpu(key="0", variables={"HIP_VISIBLE_DEVICES": "0"})]}, id="the GPU is not NVIDIA's"
        ),
    ],
)
async def test_daemon_is_not_started_without_need(
    install: FakeInstall, folder: Path, control: MpsControl, how: object
) -> None:
    async with supervised(install, folder, **how) as supervisor:  # type: ignore[arg-type]
        await until_up(supervisor, 1 if "per_gpu" in str(how) else 2)
        assert {pipes_of(start) for start in install.starts} == {None}
        assert not any(note.mps for note, _ in state_files.find(folder))
    assert control.starts == []


async def test_operator_daemon_is_used(
    install: FakeInstall, folder: Path, control: MpsControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(mps.PIPES, "/run/theirs")
    async with supervised(install, folder) as supervisor:
        await until_up(supervisor, 2)
        assert {pipes_of(start) for start in install.starts} == {"/run/theirs"}
        assert all(note.mps for note, _ in state_files.find(folder))
        assert mps_reason(folder) == f"They share the GPU through the NVIDIA MPS of {mps.PIPES}."
    assert control.starts == []


async def test_daemon_at_the_default_path_is_used(install: FakeInstall, folder: Path, control: MpsControl) -> None:
    mps.USUAL_PIPES.mkdir()
    (mps.USUAL_PIPES / f"{mps.PROGRAM}.pid").write_text(f"{os.getpid()}\n")
    chosen = mps.plan(install.options(per_gpu=2, mps="auto"), GPUS)
    assert chosen is not None
    assert (chosen.is_used, chosen.program) == (True, None)
    # a stopped daemon may leave its file behind
    (mps.USUAL_PIPES / f"{mps.PROGRAM}.pid").write_text("999999999")
    chosen = mps.plan(install.options(per_gpu=2, mps="auto"), GPUS)
    assert chosen is not None
    assert chosen.program == control.program


async def test_processes_run_without_mps_if_it_cannot_start(
    install: FakeInstall, folder: Path, control: MpsControl
) -> None:
    control.behave(fails="Failed to create the pipe directory")
    async with supervised(install, folder) as supervisor:
        await until_up(supervisor, 2)
        assert {pipes_of(start) for start in install.starts} == {None}
        assert [process.starts for process in supervisor.processes] == [1, 1]
        assert "could not be started (it exited with code 1; Failed to create the pipe directory)" in mps_reason(folder)
        assert not any(note.mps for note, _ in state_files.find(folder))


async def test_mps_error_restarts_all_processes_without_it(
    install: FakeInstall, folder: Path, control: MpsControl
) -> None:
    async with supervised(install, folder, per_gpu=1 + 1) as supervisor:
        await until_up(supervisor, 2)
        install.behave(mps="fails")
        # this call returns after the second start of the process, which is without MPS
        added = await supervisor.add("GPU-1")
        assert added.starts == 2
        await until(
            lambda: len(install.running_pids) == 3 and all(process.starts == 2 for process in supervisor.processes)
        )
        await until_up(supervisor, 3)
        assert {pipes_of(start) for start in install.starts if start["pid"] in install.running_pids} == {None}
        # no process uses the daemon
        await until(lambda: control.running_pids == [])
        assert control.quits == 1
        assert "it was disabled (comfyui-3 reported: RuntimeError: Unexpected error" in mps_reason(folder)
        assert not any(note.mps for note, _ in state_files.find(folder))


async def test_failed_first_start_under_mps_is_repeated_without_it(
    install: FakeInstall, folder: Path, control: MpsControl
) -> None:
    install.behave(mps="exits")
    async with supervised(install, folder) as supervisor:
        await until_up(supervisor, 2)
        assert {pipes_of(start) for start in install.starts if start["pid"] in install.running_pids} == {None}
        assert "the first process under it, did not start" in mps_reason(folder)
        await until(lambda: control.running_pids == [])


async def test_early_exit_restarts_only_that_process_without_mps(
    install: FakeInstall, folder: Path, control: MpsControl
) -> None:
    async with supervised(install, folder) as supervisor:
        await until_up(supervisor, 2)
        install.kill()
        await until(lambda: len(install.starts) == 3)
        await until_up(supervisor, 2)
        assert [pipes_of(start) is None for start in install.starts] == [False, False, True]
        # the process also exited without MPS, so MPS was not the cause
        install.kill()
        await until(lambda: len(install.starts) == 4)
        await until_up(supervisor, 2)
        assert pipes_of(install.starts[3]) is not None
        assert mps_reason(folder) == "They share the GPU through NVIDIA MPS."


async def test_gpu_fault_restarts_all_processes_of_that_gpu_under_mps(
    install: FakeInstall, folder: Path, control: MpsControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 2.0)
    install.behave(stubborn=True)
    async with supervised(install, folder, gpus=GPUS) as supervisor:
        await until_up(supervisor, 4)
        install.behave()
        faulty = newest_process(supervisor, install).gpu
        await cause_gpu_fault(supervisor, install)
        await until_up(supervisor, 4)
        # each process restarted once: no start was refused as too early, and the other GPU was not affected
        assert {process.starts for process in supervisor.processes if process.gpu is faulty} == {2}
        assert {process.starts for process in supervisor.processes if process.gpu is not faulty} == {1}
        assert {pipes_of(start) for start in install.starts} == {pipes_of(control.starts[0])}
        assert mps_reason(folder) == "They share the GPU through NVIDIA MPS."


async def test_repeated_gpu_faults_disable_mps(install: FakeInstall, folder: Path, control: MpsControl) -> None:
    async with supervised(install, folder) as supervisor:
        for number in range(mps.MAX_FAULTS):
            await until_up(supervisor, 2)
            assert control.running_pids, number
            await cause_gpu_fault(supervisor, install)
        await until_up(supervisor, 2)
        assert {pipes_of(start) for start in install.starts if start["pid"] in install.running_pids} == {None}
        assert "3 GPU faults affected" in mps_reason(folder)
        await until(lambda: control.running_pids == [])


def newest_process(supervisor: Supervisor, install: FakeInstall) -> ManagedProcess:
    return next(process for process in supervisor.processes if process.url.endswith(f":{install.starts[-1]['port']}"))


async def cause_gpu_fault(supervisor: Supervisor, install: FakeInstall) -> None:
    """Restart all processes, as a worker restarts its ComfyUI after a GPU failure."""
    faulty, before = newest_process(supervisor, install), len(install.starts)
    install.fault()
    await until(lambda: "illegal memory access" in "".join(faulty.log.last_lines))
    supervisor.restart(faulty.name, "The GPU was in a bad state.")
    await until(lambda: len(install.starts) == before + 2)


async def test_dead_daemon_restarts_all_processes_without_mps(
    install: FakeInstall, folder: Path, control: MpsControl
) -> None:
    async with supervised(install, folder) as supervisor:
        await until_up(supervisor, 2)
        os.kill(control.starts[0]["pid"], signal.SIGKILL)
        await until(lambda: [process.starts for process in supervisor.processes] == [2, 2])
        await until_up(supervisor, 2)
        assert {pipes_of(start) for start in install.starts if start["pid"] in install.running_pids} == {None}
        assert control.running_pids == []
        assert "its daemon exited with code 137" in mps_reason(folder)


async def test_unresponsive_daemon_is_killed(
    install: FakeInstall, folder: Path, control: MpsControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "GRACE_SECONDS", 0.1)
    control.behave(deaf=True)
    async with supervised(install, folder) as supervisor:
        await until_up(supervisor, 2)
    assert control.starts[0]["heard"][-1] == "quit"
    assert (control.quits, control.running_pids) == (0, [])


_SUPERVISOR_PROGRAM = """
    import asyncio, sys
    from pathlib import Path
    from comfyrelay.comfyui.processes.gpus import LocalGpu
    from comfyrelay.comfyui.processes.supervisor import Supervisor
    from comfyrelay.comfyui.processes.options import ManagedOptions
    from tests.support import kill_points

    async def main():
        options = ManagedOptions(folder=Path(sys.argv[1]), python=Path(sys.executable), per_gpu=2)
        gpu = LocalGpu(key="GPU-1", variables={"CUDA_VISIBLE_DEVICES": "GPU-1"})
        await Supervisor(options, folder=Path(sys.argv[2]), gpus=[gpu]).open()
        await asyncio.Event().wait()

    if len(sys.argv) > 3:
        kill_points.install(sys.argv[3])
    asyncio.run(main())
"""


def start_supervisor(
    install: FakeInstall, folder: Path, *more: str, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", dedent(_SUPERVISOR_PROGRAM), str(install.folder), str(supervisor_folder(folder))]
    return subprocess.Popen([*words, *more], cwd=ROOT, env={**os.environ, **environment})


async def test_killed_supervisor_leaves_no_process_behind(
    install: FakeInstall, folder: Path, control: MpsControl
) -> None:
    process = start_supervisor(install, folder)
    try:
        await until(lambda: len(install.starts) == 2)
        [daemon] = control.starts
        pipes = pipes_of(daemon)
        assert pipes is not None
        process.kill()
        process.wait()
        await until(lambda: control.running_pids == [] and install.running_pids == [])
        assert Path(pipes).exists()
        async with supervised(install, folder) as supervisor:
            assert not Path(pipes).exists()
            await until_up(supervisor, 2)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("point", SUPERVISOR_KILL_POINTS, ids=str)
async def test_supervisor_killed_at_any_side_effect_leaves_and_repeats_nothing(
    install: FakeInstall, folder: Path, control: MpsControl, point: KillPoint
) -> None:
    temporary = folder / "tmp"
    temporary.mkdir()
    process = start_supervisor(install, folder, point.environment[VARIABLE], environment={"TMPDIR": str(temporary)})
    try:
        await until(lambda: process.poll() is not None)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    # the launchers stop their processes
    await until(lambda: control.running_pids == [] and install.running_pids == [])
    async with supervised(install, folder) as supervisor:
        await until_up(supervisor, 2)
        assert list(temporary.iterdir()) == []
        assert len(install.running_pids) == 2
        assert len([start for start in control.starts if start["pid"] in control.running_pids]) == 1
    assert list(folder.rglob(f"{PART_PREFIX}*")) == []


async def test_daemon_without_its_launcher_is_stopped_at_the_next_start(
    install: FakeInstall, folder: Path, control: MpsControl
) -> None:
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"])  # noqa: ASYNC220
    try:
        pipes = mps._private_path()
        pipes.mkdir()
        (supervisor_folder(folder) / mps.FOLDER).mkdir(parents=True)
        processes = {str(orphan.pid): detached.started_at(orphan.pid), str(os.getpid()): 1.0}
        note = {"why": "…", "pipes": str(pipes), "processes": processes}
        (supervisor_folder(folder) / mps.FOLDER / mps.FILE).write_text(json.dumps(note))
        # this also happens if MPS is off by then
        async with supervised(install, folder, setting="off"):
            assert orphan.poll() is not None
            assert not pipes.exists()
    finally:
        orphan.kill()
        orphan.wait()


def test_mps_errors_of_cuda_are_recognized() -> None:
    for line in (
        "cudaErrorMpsConnectionFailed",
        "torch.AcceleratorError: CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server",
        "CUDA error: the remote procedural call between the MPS server and the MPS client failed",
        "CUDA error: MPS server is not ready to accept new MPS client requests",
        "RuntimeError: CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        "cuInit failed with error 807",
    ):
        assert mps._MPS_ERROR.search(line), line
    for line in ("MPS is not available on this system", "Device: mps", "error 8050", "CUDA error: out of memory"):
        assert not mps._MPS_ERROR.search(line), line


async def test_gpu_older_than_volta_does_not_use_mps(
    install: FakeInstall, control: MpsControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "query_nvidia_gpus", lambda _read: [("GPU-1", (6, 1)), ("GPU-9", (5, 0))])
    chosen = mps.plan(install.options(per_gpu="auto", mps="auto"), GPUS)
    assert chosen is not None
    assert (chosen.is_used, chosen.program) == (False, None)
    assert "not compute capability 6.1" in chosen.why
    monkeypatch.setattr(mps, "query_nvidia_gpus", lambda _read: [("GPU-1", (7, 0)), ("GPU-9", (5, 0))])
    chosen = mps.plan(install.options(per_gpu="auto", mps="auto"), GPUS)
    assert chosen is not None
    assert chosen.program == control.program


async def test_check_reports_whether_mps_would_be_used(
    install: FakeInstall, control: MpsControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comfyrelay.worker.check.find_gpus", lambda _arguments: GPUS)
    monkeypatch.setattr("comfyrelay.worker.check.check_python", lambda _python: (None, "2.9.0"))
    options = install.options(per_gpu=2, mps="auto")
    text = (await check_managed_comfyui(options)).text
    assert text.endswith("Processes per GPU: 2. They share the GPU through NVIDIA MPS.")
    off = install.options(per_gpu=2, mps="off")
    assert "Without NVIDIA MPS: COMFYRELAY_WORKER_COMFYUI_MPS is off." in (await check_managed_comfyui(off)).text
    control.program.unlink()
    monkeypatch.setattr(mps, "PLACES", ())
    assert (
        f"{mps.PROGRAM}, which comes with NVIDIA's driver, is not installed."
        in (await check_managed_comfyui(options)).text
    )
    assert "MPS" not in (await check_managed_comfyui(install.options(per_gpu=1, mps="auto"))).text


def test_list_shows_whether_mps_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    place = folder / "worker" / "this-machine" / state_files.FOLDER
    for name in ("comfyui-1", mps.FOLDER):
        (place / name).mkdir(parents=True)
    state_files.write(
        place / "comfyui-1",
        state_files.ProcessRecord(
            name="comfyui-1",
            url="http://127.0.0.1:1",
            gpu="H200",
            state="stopped",
            reason=None,
            restarts=0,
            processes={},
            mps=True,
        ),
    )
    why = "Without NVIDIA MPS: it was disabled (comfyui-2 reported: cudaErrorMpsRpcFailure)."
    (place / mps.FOLDER / mps.FILE).write_text(json.dumps({"why": why}))
    listed = CliRunner().invoke(app, ["comfyui", "list", "--data-dir", str(folder)])
    assert why in listed.output
    listed = CliRunner().invoke(app, ["comfyui", "list", "--json", "--data-dir", str(folder)])
    assert json.loads(listed.output)[0]["mps"] is True


def test_list_in_a_narrow_terminal_keeps_addresses_and_reasons(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    place = folder / "worker" / "this-machine" / state_files.FOLDER / "comfyui-1"
    place.mkdir(parents=True)
    why = "ComfyUI exited during startup. Its last lines: [x] ModuleNotFoundError: No module named 'torchsde'"
    state_files.write(
        place,
        state_files.ProcessRecord(
            name="comfyui-1",
            url="http://127.0.0.1:41234",
            gpu="NVIDIA GeForce RTX 4090",
            state="given up",
            reason=why,
            restarts=2,
            processes={},
        ),
    )
    listed = CliRunner().invoke(app, ["comfyui", "list", "--data-dir", str(folder)])
    assert "http://127.0.0.1:41234" in listed.output
    assert f"comfyui-1: {why}" in listed.output
