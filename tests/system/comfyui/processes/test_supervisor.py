"""Processes are kept running: each that dies, hangs or cannot start is dealt with, and none is left in the end."""

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


class Watched:
    """A keeper whose every change of state is seen."""

    def __init__(self, install: FakeInstall, folder: Path, **options: object) -> None:
        self.install = install
        self.urls: list[str] = []
        timings = options.pop("timings", QUICK)
        self._on_url: Any = options.pop("on_url", None)
        self.keeper = Supervisor(
            install.options(per_gpu=options.pop("per_gpu", 1)),  # type: ignore[arg-type]
            folder=folder,
            on_url=self._heard,
            timings=timings,  # type: ignore[arg-type]
            gpus=options.pop("gpus", [GPU]),  # type: ignore[arg-type]
        )

    def _heard(self, kept: ManagedProcess) -> None:
        self.urls.append(kept.url)
        if self._on_url is not None:
            self._on_url(kept)

    @property
    def first(self) -> ManagedProcess:
        return self.keeper.processes[0]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            # whoever keeps them tells nobody of each step
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def until_state(self, state: ProcessState) -> None:
        await self.until(lambda: self.first.state is state)


def launcher_of(life: dict[str, Any]) -> int:
    return psutil.Process(life["pid"]).ppid()


def noted(kept: Watched) -> list[int]:
    """The processes that are written down for our next life."""
    note = state_files.read(kept.first.folder)
    return [int(pid) for pid in note.processes] if note is not None else []


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as made:
        yield made


@pytest.fixture
def install(folder: Path) -> FakeInstall:
    return FakeInstall(folder / "ComfyUI", is_plain=True)


@asynccontextmanager
async def watched(install: FakeInstall, folder: Path, **options: object) -> AsyncIterator[Watched]:
    made = Watched(install, folder / "kept", **options)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(made.keeper.close)
        await made.keeper.open()
        yield made
    assert install.living == []
    left = [note for note, _ in state_files.find(folder.parent) if note.is_alive]
    assert left == []


async def test_it_comes_up_on_its_gpu_is_started_again_where_it_was_when_it_crashes_and_leaves_nothing(
    install: FakeInstall, folder: Path
) -> None:
    install.behave(child=True)
    async with watched(install, folder) as kept:
        await kept.until_state(ProcessState.UP)
        [gpu] = kept.keeper.gpus()
        assert (gpu.key, gpu.name, gpu.processes) == ("GPU-1", "Test 9000", tuple(kept.urls))
        assert install.lives[0]["environment"]["CUDA_VISIBLE_DEVICES"] == "GPU-1"
        install.kill()
        await kept.until(lambda: kept.first.last_exit)
        assert kept.first.last_exit is not None
        assert "it was killed" in kept.first.last_exit.reason
        assert kept.first.last_exit.said[-1][1] == "To see the GUI go to: http://127.0.0.1"
        await kept.until(lambda: len(install.lives) == 2 and kept.first.state is ProcessState.UP)
        # what it had started is gone, too
        assert len(install.living) == 2
        assert len(kept.urls) == 1
        note = state_files.read(kept.first.folder)
        assert note is not None
        assert (note.state, note.restarts, note.is_alive) == ("up", 1, True)


async def test_port_that_somebody_took_meanwhile_is_left_to_them(install: FakeInstall, folder: Path) -> None:
    slow = Timings(poll_seconds=0.05, check_seconds=0.1, first_pause_seconds=0.5)
    async with watched(install, folder, timings=slow) as kept:
        await kept.until_state(ProcessState.UP)
        install.kill()
        await kept.until_state(ProcessState.WAITING)
        port = int(kept.urls[0].rpartition(":")[2])
        with socket.create_server(("127.0.0.1", port)):
            await kept.until_state(ProcessState.UP)
            assert len(kept.urls) == 2
            assert kept.keeper.gpus()[0].processes == (kept.urls[1],)


async def test_port_that_somebody_takes_before_the_first_start_is_left_to_them(
    install: FakeInstall, folder: Path
) -> None:
    taken: list[socket.socket] = []

    def take(kept: ManagedProcess) -> None:
        if not taken:
            taken.append(socket.create_server(("127.0.0.1", int(kept.url.rpartition(":")[2]))))

    try:
        async with watched(install, folder, on_url=take) as kept:
            await kept.until_state(ProcessState.UP)
            assert len(kept.urls) == len(install.lives) == 2
    finally:
        taken[0].close()


@pytest.mark.parametrize("how", [{"child": True}, {"child": True, "sleep": True}], ids=["up", "starting"])
@pytest.mark.parametrize("whose", ["its own", "its launcher's"])
async def test_one_that_is_killed_is_started_again_with_nothing_left_of_it(
    install: FakeInstall, folder: Path, how: dict[str, Any], whose: str
) -> None:
    install.behave(**how)
    async with watched(install, folder) as kept:
        await kept.until(lambda: install.lives and install.lives[0]["children"][0] in noted(kept))
        if "sleep" not in how:
            await kept.until_state(ProcessState.UP)
        [life] = install.lives
        install.behave()
        os.kill(life["pid"] if whose == "its own" else launcher_of(life), signal.SIGKILL)
        await kept.until(lambda: kept.first.last_exit)
        assert kept.first.last_exit is not None
        assert ("it was killed" if whose == "its own" else "ended by signal 9") in kept.first.last_exit.reason
        await kept.until_state(ProcessState.UP)
        assert install.living == [install.lives[1]["pid"]]


async def test_what_outlives_its_killed_launcher_is_ended_when_we_stop(install: FakeInstall, folder: Path) -> None:
    install.behave(child=True)
    async with watched(install, folder, timings=Timings(poll_seconds=0.05)) as kept:
        await kept.until_state(ProcessState.UP)
        os.kill(launcher_of(install.lives[0]), signal.SIGKILL)
        await kept.keeper.close()
        assert install.living == []


async def test_to_stop_while_one_is_being_started_again_ends_it_for_good(
    install: FakeInstall, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 1.0)
    install.behave(stubborn=True)
    async with watched(install, folder) as kept:
        await kept.until_state(ProcessState.UP)
        kept.keeper.restart("comfyui-1", "The GPU was in a bad state.")
        # it has been told to end, and does not
        await kept.until(lambda: "SIGTERM" in kept.first.log.last_lines)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await kept.keeper.close()
        assert len(install.lives) == 1


async def test_what_never_comes_up_is_given_up_with_its_last_lines_and_tried_again_later(
    install: FakeInstall, folder: Path
) -> None:
    install.behave(exit=3)
    timings = Timings(poll_seconds=0.05, first_pause_seconds=0.01, failed_starts=3, given_up_seconds=1.0)
    async with watched(install, folder, timings=timings) as kept:
        await kept.until_state(ProcessState.GIVEN_UP)
        assert len(install.lives) == 3
        why = kept.first.unavailable_reason or ""
        assert "ComfyUI exited during startup (exit code 3)." in why
        assert "ModuleNotFoundError: No module named 'torchsde'" in why
        assert "comfyrelay comfyui logs comfyui-1" in why
        assert kept.keeper.gpus()[0].processes == ()
        install.behave()
        await kept.until_state(ProcessState.UP)
        assert kept.first.unavailable_reason is None


async def test_pauses_between_starts_grow_until_one_has_stayed_up(install: FakeInstall, folder: Path) -> None:
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
        async with watched(install, folder, timings=timings) as kept:

            def pauses() -> list[float]:
                return [each["retry_seconds"] for each in logs if each["event"] == "comfyui.exited"]

            await kept.until(lambda: len(pauses()) >= 5)
            assert pauses()[:5] == [0.01, 0.02, 0.04, 0.05, 0.05]
            install.behave()
            await kept.until_state(ProcessState.UP)
            before, since = len(pauses()), monotonic()
            await kept.until(lambda: monotonic() - since > timings.steady_seconds)
            install.kill()
            await kept.until(lambda: len(pauses()) > before)
            assert pauses()[-1] == timings.first_pause_seconds


async def test_one_that_hangs_while_it_starts_or_later_is_started_again(install: FakeInstall, folder: Path) -> None:
    install.behave(sleep=True)
    timings = Timings(
        poll_seconds=0.05,
        check_seconds=0.05,
        first_pause_seconds=0.01,
        # a busy machine may need long to start one that is well
        start_silent_seconds=5.0,
        silent_seconds=1.0,
    )
    async with watched(install, folder, timings=timings) as kept:
        await kept.until(lambda: install.lives)
        install.behave()
        await kept.until(lambda: kept.first.last_exit)
        assert "said nothing for too long while it started" in (kept.first.reason or "")
        await kept.until_state(ProcessState.UP)
        up = kept.first.last_exit
        # it is there, and answers nobody
        os.kill(install.lives[-1]["pid"], signal.SIGSTOP)
        await kept.until(lambda: kept.first.last_exit is not up)
        assert "ComfyUI has not responded for" in str(kept.first.last_exit)
        await kept.until_state(ProcessState.UP)


async def test_one_whose_gpu_is_in_a_bad_state_is_started_again(install: FakeInstall, folder: Path) -> None:
    async with watched(install, folder) as kept:
        await kept.until_state(ProcessState.UP)
        kept.keeper.restart("comfyui-1", "The GPU was in a bad state.")
        await kept.until(lambda: len(install.lives) == 2)
        assert kept.first.reason is not None
        assert kept.first.reason.startswith("The GPU was in a bad state.")
        await kept.until_state(ProcessState.UP)


async def test_so_is_one_on_which_a_job_found_that_before_it_was_seen_to_be_up(
    install: FakeInstall, folder: Path
) -> None:
    async with watched(install, folder) as kept:
        await kept.until(lambda: install.lives)
        assert kept.first.state is ProcessState.STARTING
        await kept.keeper.mark_run_started("comfyui-1")
        kept.keeper.restart("comfyui-1", "The GPU was in a bad state.")
        await kept.until(lambda: len(install.lives) == 2)
        assert "bad state" in str(kept.first.last_exit)


async def test_full_disk_is_the_reason_that_is_told(install: FakeInstall, folder: Path) -> None:
    install.behave(full=True)
    async with watched(install, folder) as kept:
        await kept.until(lambda: kept.first.last_exit)
        assert "No space left on device" in (kept.first.unavailable_reason or "")


async def test_folder_that_cannot_be_made_is_the_reason_that_is_told(install: FakeInstall, folder: Path) -> None:
    (folder / "kept").write_text("a file")
    async with watched(install, folder) as kept:
        await kept.until(lambda: kept.first.last_exit)
        assert "cannot be used: Not a directory" in (kept.first.unavailable_reason or "")
        assert install.lives == []


async def test_one_more_is_added_to_a_gpu_and_taken_away_again(install: FakeInstall, folder: Path) -> None:
    async with watched(install, folder) as kept:
        await kept.until_state(ProcessState.UP)
        added = await kept.keeper.add("GPU-1")
        assert kept.keeper.gpus()[0].processes == (kept.urls[0], added.url)
        await kept.keeper.remove(added.name)
        assert kept.keeper.gpus()[0].processes == (kept.urls[0],)
        assert len(install.living) == 1
        install.behave(exit=1)
        with pytest.raises(NotStarted, match="torchsde"):
            await kept.keeper.add("GPU-1")
        assert len(kept.keeper.processes) == 1
        with pytest.raises(NotFound):
            await kept.keeper.add("GPU-7")


async def test_each_gpu_has_as_many_as_are_wanted(install: FakeInstall, folder: Path) -> None:
    gpus = [GPU, LocalGpu(key="GPU-2", variables={"CUDA_VISIBLE_DEVICES": "GPU-2"})]
    async with watched(install, folder, per_gpu=2, gpus=gpus) as kept:
        await kept.until(lambda: all(each.state is ProcessState.UP for each in kept.keeper.processes))
        assert [len(each.processes) for each in kept.keeper.gpus()] == [2, 2]
        seen = sorted(life["environment"]["CUDA_VISIBLE_DEVICES"] for life in install.lives)
        assert seen == ["GPU-1", "GPU-1", "GPU-2", "GPU-2"]
        assert len({life["port"] for life in install.lives}) == 4


async def test_what_an_earlier_life_left_is_ended_before_anything_begins(install: FakeInstall, folder: Path) -> None:
    """Where not even the launcher lived to do so."""
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"])  # noqa: ASYNC220
    try:
        place = folder / "kept" / "comfyui-1"
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
                # the second has got the number of one that is gone
                processes={str(left.pid): detached.started_at(left.pid), str(os.getpid()): 1.0},
            ),
        )
        async with watched(install, folder) as kept:
            assert left.poll() is not None
            await kept.until_state(ProcessState.UP)
            assert not (place / "output" / "old.png").exists()
            # what its user has saved in the editor is no leftover
            assert saved.exists()
    finally:
        left.kill()
        left.wait()
