"""The supervisor restarts processes that die, hang or fail to start, and leaves no process behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from comfyrelay.comfyui.processes import process, state_files
from comfyrelay.comfyui.processes.gpus import LocalGpu
from comfyrelay.comfyui.processes.supervisor import ManagedProcess, ProcessState, Supervisor, Timings
from comfyrelay.errors import NotFound, NotStarted
from comfyrelay.system.commands import detached
from tests.support.comfyui_install import FakeInstall
from tests.support.world import PATIENCE_SECONDS, memory_folder

QUICK = Timings(poll_seconds=0.05, check_seconds=0.1, first_pause_seconds=0.05, longest_pause_seconds=0.2)
GPU = LocalGpu(key="GPU-1", name="Test 9000", memory_bytes=1, variables={"CUDA_VISIBLE_DEVICES": "GPU-1"})


class WatchedSupervisor:
    """A supervisor that records every URL of its processes."""

    def __init__(self, install: FakeInstall, folder: Path, **options: object) -> None:
        self.install = install
        self.urls: list[str] = []
        timings = options.pop("timings", QUICK)
        self._on_url: Any = options.pop("on_url", None)
        self.supervisor = Supervisor(
            install.options(per_gpu=options.pop("per_gpu", 1)),  # type: ignore[arg-type]
            folder=folder,
            on_url=self._record_url,
            timings=timings,  # type: ignore[arg-type]
            gpus=options.pop("gpus", [GPU]),  # type: ignore[arg-type]
        )

    def _record_url(self, moved: ManagedProcess) -> None:
        self.urls.append(moved.url)
        if self._on_url is not None:
            self._on_url(moved)

    @property
    def first(self) -> ManagedProcess:
        return self.supervisor.processes[0]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            # the supervisor sends no signal for each step
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def until_state(self, state: ProcessState) -> None:
        await self.until(lambda: self.first.state is state)


def launcher_of(start: dict[str, Any]) -> int:
    return psutil.Process(start["pid"]).ppid()


def recorded_pids(watched: WatchedSupervisor) -> list[int]:
    """Return the processes recorded for the next supervisor."""
    note = state_files.read(watched.first.folder)
    return [int(pid) for pid in note.processes] if note is not None else []


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as root:
        yield root


@pytest.fixture
def install(folder: Path) -> FakeInstall:
    return FakeInstall(folder / "ComfyUI", is_plain=True)


@asynccontextmanager
async def open_watched(install: FakeInstall, folder: Path, **options: object) -> AsyncIterator[WatchedSupervisor]:
    watched = WatchedSupervisor(install, folder / "watched", **options)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(watched.supervisor.close)
        await watched.supervisor.open()
        yield watched
    assert install.running_pids == []
    orphans = [note for note, _ in state_files.find(folder.parent) if note.is_alive]
    assert orphans == []


async def test_crashed_process_is_restarted_on_its_gpu_and_port(install: FakeInstall, folder: Path) -> None:
    install.behave(child=True)
    async with open_watched(install, folder) as watched:
        await watched.until_state(ProcessState.UP)
        [gpu] = watched.supervisor.gpus()
        assert (gpu.key, gpu.name, gpu.processes) == ("GPU-1", "Test 9000", tuple(watched.urls))
        assert install.starts[0]["environment"]["CUDA_VISIBLE_DEVICES"] == "GPU-1"
        install.kill()
        await watched.until(lambda: watched.first.last_exit)
        assert watched.first.last_exit is not None
        assert "it was killed" in watched.first.last_exit.reason
        assert watched.first.last_exit.lines[-1][1] == "To see the GUI go to: http://127.0.0.1"
        await watched.until(lambda: len(install.starts) == 2 and watched.first.state is ProcessState.UP)
        # the children of the process have ended as well
        assert len(install.running_pids) == 2
        assert len(watched.urls) == 1
        note = state_files.read(watched.first.folder)
        assert note is not None
        assert (note.state, note.restarts, note.is_alive) == ("up", 1, True)


async def test_port_taken_during_a_restart_is_avoided(install: FakeInstall, folder: Path) -> None:
    slow = Timings(poll_seconds=0.05, check_seconds=0.1, first_pause_seconds=0.5)
    async with open_watched(install, folder, timings=slow) as watched:
        await watched.until_state(ProcessState.UP)
        install.kill()
        await watched.until_state(ProcessState.WAITING)
        port = int(watched.urls[0].rpartition(":")[2])
        with socket.create_server(("127.0.0.1", port)):
            await watched.until_state(ProcessState.UP)
            assert len(watched.urls) == 2
            assert watched.supervisor.gpus()[0].processes == (watched.urls[1],)


async def test_port_taken_before_the_first_start_is_avoided(install: FakeInstall, folder: Path) -> None:
    taken: list[socket.socket] = []

    def take(moved: ManagedProcess) -> None:
        if not taken:
            taken.append(socket.create_server(("127.0.0.1", int(moved.url.rpartition(":")[2]))))

    try:
        async with open_watched(install, folder, on_url=take) as watched:
            await watched.until_state(ProcessState.UP)
            assert len(watched.urls) == len(install.starts) == 2
    finally:
        taken[0].close()


@pytest.mark.parametrize("how", [{"child": True}, {"child": True, "sleep": True}], ids=["up", "starting"])
@pytest.mark.parametrize("whose", ["its own", "its launcher's"])
async def test_killed_process_is_restarted_without_leftovers(
    install: FakeInstall, folder: Path, how: dict[str, Any], whose: str
) -> None:
    install.behave(**how)
    async with open_watched(install, folder) as watched:
        await watched.until(lambda: install.starts and install.starts[0]["children"][0] in recorded_pids(watched))
        if "sleep" not in how:
            await watched.until_state(ProcessState.UP)
        [start] = install.starts
        install.behave()
        os.kill(start["pid"] if whose == "its own" else launcher_of(start), signal.SIGKILL)
        await watched.until(lambda: watched.first.last_exit)
        assert watched.first.last_exit is not None
        assert ("it was killed" if whose == "its own" else "killed by signal 9") in watched.first.last_exit.reason
        await watched.until_state(ProcessState.UP)
        assert install.running_pids == [install.starts[1]["pid"]]


async def test_process_of_a_killed_launcher_is_stopped_on_close(install: FakeInstall, folder: Path) -> None:
    install.behave(child=True)
    async with open_watched(install, folder, timings=Timings(poll_seconds=0.05)) as watched:
        await watched.until_state(ProcessState.UP)
        os.kill(launcher_of(install.starts[0]), signal.SIGKILL)
        await watched.supervisor.close()
        assert install.running_pids == []


async def test_close_during_a_restart_stops_the_process(
    install: FakeInstall, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 1.0)
    install.behave(stubborn=True)
    async with open_watched(install, folder) as watched:
        await watched.until_state(ProcessState.UP)
        watched.supervisor.restart("comfyui-1", "The GPU was in a bad state.")
        # the process received the signal and ignores it
        await watched.until(lambda: "SIGTERM" in watched.first.log.last_lines)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await watched.supervisor.close()
        assert len(install.starts) == 1


async def test_process_that_never_starts_is_abandoned_and_retried_later(install: FakeInstall, folder: Path) -> None:
    install.behave(exit=3)
    timings = Timings(poll_seconds=0.05, first_pause_seconds=0.01, failed_starts=3, given_up_seconds=1.0)
    async with open_watched(install, folder, timings=timings) as watched:
        await watched.until_state(ProcessState.GIVEN_UP)
        assert len(install.starts) == 3
        why = watched.first.unavailable_reason or ""
        assert "ComfyUI exited during startup (exit code 3)." in why
        assert "ModuleNotFoundError: No module named 'torchsde'" in why
        assert "comfyrelay comfyui logs comfyui-1" in why
        assert watched.supervisor.gpus()[0].processes == ()
        install.behave()
        await watched.until_state(ProcessState.UP)
        assert watched.first.unavailable_reason is None


async def test_restart_pauses_grow_until_a_process_keeps_running(install: FakeInstall, folder: Path) -> None:
    install.behave(exit=3)
    timings = Timings(
        poll_seconds=0.05,
        check_seconds=0.1,
        first_pause_seconds=0.01,
        longest_pause_seconds=0.05,
        steady_seconds=0.5,
        failed_starts=100,
    )
    with capture_logs() as logs:
        async with open_watched(install, folder, timings=timings) as watched:

            def pauses() -> list[float]:
                return [log["retry_seconds"] for log in logs if log["event"] == "comfyui.exited"]

            await watched.until(lambda: len(pauses()) >= 5)
            assert pauses()[:5] == [0.01, 0.02, 0.04, 0.05, 0.05]
            install.behave()
            await watched.until_state(ProcessState.UP)
            before, since = len(pauses()), monotonic()
            await watched.until(lambda: monotonic() - since > timings.steady_seconds)
            install.kill()
            await watched.until(lambda: len(pauses()) > before)
            assert pauses()[-1] == timings.first_pause_seconds


async def test_hung_process_is_restarted(install: FakeInstall, folder: Path) -> None:
    install.behave(sleep=True)
    timings = Timings(
        poll_seconds=0.05,
        check_seconds=0.05,
        first_pause_seconds=0.01,
        # a busy machine may be slow to start a healthy process
        start_silent_seconds=5.0,
        silent_seconds=1.0,
    )
    async with open_watched(install, folder, timings=timings) as watched:
        await watched.until(lambda: install.starts)
        install.behave()
        await watched.until(lambda: watched.first.last_exit)
        assert "nor printed anything for too long during startup" in (watched.first.reason or "")
        await watched.until_state(ProcessState.UP)
        up = watched.first.last_exit
        # the process is running but unresponsive
        os.kill(install.starts[-1]["pid"], signal.SIGSTOP)
        await watched.until(lambda: watched.first.last_exit is not up)
        assert "ComfyUI has not responded for" in str(watched.first.last_exit)
        await watched.until_state(ProcessState.UP)


async def test_process_with_a_bad_gpu_state_is_restarted(install: FakeInstall, folder: Path) -> None:
    async with open_watched(install, folder) as watched:
        await watched.until_state(ProcessState.UP)
        watched.supervisor.restart("comfyui-1", "The GPU was in a bad state.")
        await watched.until(lambda: len(install.starts) == 2)
        assert watched.first.reason is not None
        assert watched.first.reason.startswith("The GPU was in a bad state.")
        await watched.until_state(ProcessState.UP)


async def test_bad_gpu_state_reported_before_startup_ends_restarts_it(install: FakeInstall, folder: Path) -> None:
    async with open_watched(install, folder) as watched:
        await watched.until(lambda: install.starts)
        assert watched.first.state is ProcessState.STARTING
        await watched.supervisor.mark_run_started("comfyui-1")
        watched.supervisor.restart("comfyui-1", "The GPU was in a bad state.")
        await watched.until(lambda: len(install.starts) == 2)
        assert "bad state" in str(watched.first.last_exit)


async def test_full_disk_is_reported_as_the_reason(install: FakeInstall, folder: Path) -> None:
    install.behave(full=True)
    async with open_watched(install, folder) as watched:
        await watched.until(lambda: watched.first.last_exit)
        assert "No space left on device" in (watched.first.unavailable_reason or "")


async def test_unusable_folder_is_reported_as_the_reason(install: FakeInstall, folder: Path) -> None:
    (folder / "watched").write_text("a file")
    async with open_watched(install, folder) as watched:
        await watched.until(lambda: watched.first.last_exit)
        assert "cannot be used: Not a directory" in (watched.first.unavailable_reason or "")
        assert install.starts == []


async def test_missing_driver_is_explained_instead_of_a_traceback(install: FakeInstall, folder: Path) -> None:
    install.behave(no_driver=True)
    timings = Timings(poll_seconds=0.05, first_pause_seconds=0.01, failed_starts=2, given_up_seconds=1.0)
    with capture_logs() as logs:
        async with open_watched(install, folder, timings=timings) as watched:
            await watched.until_state(ProcessState.GIVEN_UP)
            reason = watched.first.unavailable_reason or ""
    assert reason.startswith("ComfyUI exited during startup (exit code 1). It found no GPU that it can use.")
    assert "start it with --cpu: add --cpu under Settings, ComfyUI, Arguments, or set COMFYRELAY_DESK" in reason
    assert "Traceback" not in reason
    assert not any("Traceback" in str(entry) for entry in logs)


async def test_process_is_added_to_a_gpu_and_removed(install: FakeInstall, folder: Path) -> None:
    async with open_watched(install, folder) as watched:
        await watched.until_state(ProcessState.UP)
        added = await watched.supervisor.add("GPU-1")
        assert watched.supervisor.gpus()[0].processes == (watched.urls[0], added.url)
        await watched.supervisor.remove(added.name)
        assert watched.supervisor.gpus()[0].processes == (watched.urls[0],)
        assert len(install.running_pids) == 1
        install.behave(exit=1)
        with pytest.raises(NotStarted, match="torchsde"):
            await watched.supervisor.add("GPU-1")
        assert len(watched.supervisor.processes) == 1
        with pytest.raises(NotFound):
            await watched.supervisor.add("GPU-7")


async def test_each_gpu_gets_the_requested_number_of_processes(install: FakeInstall, folder: Path) -> None:
    gpus = [GPU, LocalGpu(key="GPU-2", variables={"CUDA_VISIBLE_DEVICES": "GPU-2"})]
    async with open_watched(install, folder, per_gpu=2, gpus=gpus) as watched:
        await watched.until(lambda: all(process.state is ProcessState.UP for process in watched.supervisor.processes))
        assert [len(gpu.processes) for gpu in watched.supervisor.gpus()] == [2, 2]
        seen = sorted(start["environment"]["CUDA_VISIBLE_DEVICES"] for start in install.starts)
        assert seen == ["GPU-1", "GPU-1", "GPU-2", "GPU-2"]
        assert len({start["port"] for start in install.starts}) == 4


async def test_leftover_process_is_stopped_before_the_first_start(install: FakeInstall, folder: Path) -> None:
    """A process is left over if its launcher was killed as well."""
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"])  # noqa: ASYNC220
    try:
        place = folder / "watched" / "comfyui-1"
        place.mkdir(parents=True)
        (place / "output").mkdir()
        (place / "output" / "old.png").touch()
        saved = place / "user" / "default" / "workflows" / "mine.json"
        saved.parent.mkdir(parents=True)
        saved.touch()
        state_files.write(
            place,
            state_files.ProcessRecord(
                name="comfyui-1",
                url="http://127.0.0.1:1",
                gpu="GPU",
                state="up",
                reason=None,
                restarts=0,
                # the second record has the pid of a dead process, which another process now has
                processes={str(orphan.pid): detached.started_at(orphan.pid), str(os.getpid()): 1.0},
            ),
        )
        async with open_watched(install, folder) as watched:
            assert orphan.poll() is not None
            await watched.until_state(ProcessState.UP)
            assert not (place / "output" / "old.png").exists()
            # workflows saved in the editor are not leftovers
            assert saved.exists()
    finally:
        orphan.kill()
        orphan.wait()
