"""The script runner, with real scripts: outcomes, logs, and ending all processes."""

import asyncio
import json
import signal
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.desk.scripts.command import command_of
from comfyrelay.desk.scripts.output_parser import OutputParser, ScriptProgress
from comfyrelay.errors import ConfigurationError, InvalidInput
from comfyrelay.simulator import Simulator
from tests.support.full import full_only
from tests.support.script_runs import ScriptRun, is_alive, job, pids_in, settings_in, until

# Every process writes a file named after its pid. Each child is harder to stop than the previous one.
FAMILY = """
    import os, signal, subprocess, sys, time
    from pathlib import Path

    Path("pids").mkdir(exist_ok=True)
    BODY = '''
    import os, signal, sys, time
    from pathlib import Path
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if sys.argv[1] == "orphan" and os.fork():
        os._exit(0)
    if sys.argv[1] != "plain":
        os.setsid()
    Path("pids", str(os.getpid())).touch()
    time.sleep(600)
    '''
    for kind in ("plain", "session", "orphan"):
        subprocess.Popen([sys.executable, "-c", __import__("textwrap").dedent(BODY), kind])
    while len(list(Path("pids").iterdir())) < 3:
        time.sleep(0.01)
    Path("pids", str(os.getpid())).touch()
    print("ready")
"""


async def test_successful_script_reports_outputs_seed_and_progress(tmp_path: Path) -> None:
    script = """
        import sys
        from pathlib import Path
        print("[1/1] cat.png")
        for step in range(1, 5):
            print(f"\\r{step * 25}%|##| {step}/4 [00:01<00:01]", end="", file=sys.stderr)
        print(file=sys.stderr)
        print("seed: 77")
        Path("clip.mp4").write_text("x")
        print("Saved: clip.mp4")
    """
    run = ScriptRun(settings_in(tmp_path, script), tmp_path / "log.txt")
    result = await run.run()
    assert (result.exit_code, result.error, result.seed) == (0, None, 77)
    assert result.outputs == [tmp_path / "work" / "clip.mp4"]
    assert list(result.argv) == command_of(run.settings, job())
    assert run.lines == ["[1/1] cat.png", "100%|##| 4/4 [00:01<00:01]", "seed: 77", "Saved: clip.mp4"]
    assert run.progress[-1] == ScriptProgress(1.0, 1, 1)
    command, *rest = run.log.splitlines()
    assert command.startswith(f"$ {sys.executable} {tmp_path / 'script.py'} --wait --profile look-dev")
    assert rest == run.lines


class RecordingExecutor(ThreadPoolExecutor):
    """Record the functions that the event loop ran in threads."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        # `to_thread` submits a partial of `Context.run`
        self.called += getattr(fn, "args", ())[:1]
        return super().submit(fn, *args, **kwargs)


async def test_prompts_are_parsed_outside_the_event_loop(tmp_path: Path) -> None:
    executor = RecordingExecutor()
    asyncio.get_running_loop().set_default_executor(executor)
    await ScriptRun(settings_in(tmp_path, "print('here')"), tmp_path / "log.txt").run()
    assert OutputParser in executor.called


async def test_failed_script_reports_exit_code_and_error(tmp_path: Path) -> None:
    run = ScriptRun(settings_in(tmp_path, "raise SystemExit('Error: no cats in this folder')"), tmp_path / "log.txt")
    result = await run.run()
    assert (result.exit_code, result.outputs, result.seed) == (1, [], None)
    assert result.error == "The script ended with exit code 1: no cats in this folder"


async def test_killed_script_reports_its_signal(tmp_path: Path) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    result = await ScriptRun(settings_in(tmp_path, script), tmp_path / "log.txt").run()
    assert result.exit_code == 137
    assert result.error == "The script was ended by SIGKILL. The machine may have run out of memory."


@pytest.mark.parametrize("prints_the_answer", [True, False])
async def test_comfyui_status_400_becomes_a_readable_error(tmp_path: Path, prints_the_answer: bool) -> None:
    script = f"""
        import json, os, urllib.error, urllib.request
        graph = {{"1": {{"class_type": "ImageInvert", "inputs": {{}}}},
                 "2": {{"class_type": "SaveImage", "inputs": {{"images": ["1", 0], "filename_prefix": "x"}}}}}}
        body = json.dumps({{"prompt": graph}}).encode()
        request = urllib.request.Request(os.environ["COMFYUI_BASE_URL"] + "/prompt", body)
        try:
            urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            if {prints_the_answer}:
                print("HTTP", error.code, error.read().decode())
            raise
    """
    async with Simulator() as simulator:
        run = ScriptRun(settings_in(tmp_path, script), tmp_path / "log.txt", COMFYUI_BASE_URL=simulator.url)
        result = await run.run()
    assert result.exit_code == 1
    expected = (
        "ImageInvert (1): input 'image' is not connected"
        if prints_the_answer
        else "ComfyUI refused the graph (HTTP 400), and the script does not say why."
    )
    assert result.error == expected


async def test_canceled_script_may_finish_its_output(tmp_path: Path) -> None:
    script = """
        import signal, sys, time
        def leave(*_):
            print("last words")
            sys.exit(0)
        signal.signal(signal.SIGTERM, leave)
        print("ready")
        while True:
            time.sleep(600)
    """
    run = ScriptRun(settings_in(tmp_path, script, grace_seconds=600), tmp_path / "log.txt")
    running = asyncio.create_task(run.run())
    await run.until("ready")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert run.log.splitlines()[-1] == "last words"


async def test_cancel_ends_all_descendants(tmp_path: Path) -> None:
    run = ScriptRun(settings_in(tmp_path, f"{FAMILY}    time.sleep(600)\n", grace_seconds=0.3), tmp_path / "log.txt")
    running = asyncio.create_task(run.run())
    await run.until("ready")
    pids = pids_in(tmp_path / "work" / "pids")
    assert [is_alive(pid) for pid in pids] == [True] * 4
    running.cancel()
    # a second cancellation changes nothing
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [is_alive(pid) for pid in pids] == [False] * 4


async def test_child_processes_of_a_script_stop_with_it(tmp_path: Path) -> None:
    run = ScriptRun(settings_in(tmp_path, f"{FAMILY}    sys.exit(4)\n", grace_seconds=0.3), tmp_path / "log.txt")
    result = await run.run()
    assert result.exit_code == 4
    assert [is_alive(pid) for pid in pids_in(tmp_path / "work" / "pids")] == [False] * 4


PARENT = """
import asyncio, signal, sys
from pathlib import Path
from tests.support.script_runs import ScriptRun, settings_in

async def main(base):
    settings = settings_in(base, (base / "family.py").read_text(), grace_seconds=0.3)
    await ScriptRun(settings, base / "log.txt").run()

# a shell that runs the tests in the background ignores SIGINT
signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.argv[2] == "uvloop":
    import uvloop
    uvloop.run(main(Path(sys.argv[1])))
else:
    asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("number", "loop"),
    [
        (signal.SIGKILL, "asyncio"),
        (signal.SIGINT, "uvloop"),
        *full_only((signal.SIGKILL, "uvloop"), (signal.SIGINT, "asyncio")),
    ],
)
async def test_script_processes_end_with_the_desk(tmp_path: Path, number: signal.Signals, loop: str) -> None:
    (tmp_path / "family.py").write_text(f"{FAMILY}    time.sleep(600)\n")
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, str(tmp_path), loop)
    pids = tmp_path / "work" / "pids"
    await until(lambda: len(pids_in(pids)) == 4)
    parent.send_signal(number)
    await parent.wait()
    await until(lambda: not any(map(is_alive, pids_in(pids))))


async def test_quotes_newlines_and_emoji_arrive_unchanged(tmp_path: Path) -> None:
    positive = "a \"cat\" 'n' dog; $(touch pwned) `ls` \\ %s {x}\n\n\tsecond line 🐈‍⬛ Ünïcode"
    script = "import json, sys; print(json.dumps(sys.argv[1:])); print(sys.argv[sys.argv.index('--positive') + 1])"
    settings = settings_in(tmp_path, script, environment={"LC_ALL": "C"})
    run = ScriptRun(settings, tmp_path / "log.txt")
    result = await run.run(job(positive=positive, negative="-ugly"))
    assert result.exit_code == 0
    assert json.loads(run.lines[0]) == list(result.argv[2:])
    assert positive in result.argv
    assert "\n".join(run.lines[1:]) == positive
    assert not (tmp_path / "work" / "pwned").exists()


async def test_invalid_job_starts_no_process(tmp_path: Path) -> None:
    run = ScriptRun(settings_in(tmp_path, "print('here')"), tmp_path / "log.txt")
    with pytest.raises(InvalidInput):
        await run.run(job(input_subdir="../.."))
    assert not run.log_path.exists()


async def test_missing_program_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="python"):
        await ScriptRun(settings_in(tmp_path, python=tmp_path / "gone"), tmp_path / "log.txt").run()
    not_a_program = tmp_path / "python"
    not_a_program.write_bytes(b"\x7fELF, but no")
    not_a_program.chmod(0o755)
    result = await ScriptRun(settings_in(tmp_path, python=not_a_program), tmp_path / "log.txt").run()
    assert result.exit_code == 127
    assert result.error is not None
    assert "cannot be started" in result.error


async def test_script_environment_has_its_variables_and_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COMFYRELAY_DATABASE_URL", "comfyrelay_database_url"):
        monkeypatch.setenv(name, "postgresql://relay:secret@db/central")
    monkeypatch.setenv("KEPT", "1")
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    run = ScriptRun(settings_in(tmp_path, script, environment={"CONFIGURED": "2"}), tmp_path / "log.txt", DESK="3")
    await run.run()
    seen = json.loads(run.lines[0])
    assert (seen["KEPT"], seen["CONFIGURED"], seen["DESK"]) == ("1", "2", "3")
    assert not [name for name in seen if name.upper().startswith("COMFYRELAY_")]


async def test_script_waits_for_slow_readers(tmp_path: Path) -> None:
    script = """
        from pathlib import Path
        for number in range(20_000):
            print(f"line {number} " + "x" * 100)
            if number % 100 == 0:
                Path("number").write_text(str(number))
        Path("done").touch()
    """
    settings = settings_in(tmp_path, script)
    go_on, held = asyncio.Event(), asyncio.Event()
    run = ScriptRun(settings, tmp_path / "log.txt")

    async def slow(line: str) -> None:
        run.lines.append(line)
        held.set()
        await go_on.wait()

    running = asyncio.create_task(
        run.runner.run(job(), on_line=slow, on_progress=run.on_progress, log_path=run.log_path)
    )
    await held.wait()
    # the script has filled its pipe and is blocked: its counter no longer grows
    number = tmp_path / "work" / "number"
    await until(number.exists)
    seen = [b""] * 20

    def is_still() -> bool:
        seen.append(number.read_bytes())
        return len(set(seen[-20:])) == 1

    await until(is_still)
    assert len(run.lines) == 1
    assert not (tmp_path / "work" / "done").exists()
    go_on.set()
    assert (await running).exit_code == 0
    assert len(run.lines) == 20_000


async def test_listener_error_stops_the_script(tmp_path: Path) -> None:
    run = ScriptRun(settings_in(tmp_path, f"{FAMILY}    time.sleep(600)\n", grace_seconds=0.3), tmp_path / "log.txt")

    async def broken(_line: str) -> None:
        raise RuntimeError("the database is gone")

    with pytest.raises(RuntimeError, match="the database is gone"):
        await run.runner.run(job(), on_line=broken, on_progress=run.on_progress, log_path=run.log_path)
    pids = pids_in(tmp_path / "work" / "pids")
    assert len(pids) == 4
    assert not any(map(is_alive, pids))


# With share 1, it prints 100 MB: 50 MB of lines, one line of 16 MB, 16 MB of invalid text, a progress bar of 20 MB.
NOISY = r"""
    import os
    from pathlib import Path

    share = float(Path("share").read_text())

    def say(block, times):
        for _ in range(int(times * share)):
            os.write(1, block)

    say(b"".join(b"line %07d " % number + b"y" * 100 + b"\n" for number in range(1000)), 450)
    say(b"z" * 100_000, 160)
    say(b"\xff" * 100_000, 160)
    say(b"  5%|#         | 5/100 [00:01<00:30, 3.21it/s]\r" * 1000, 450)
    print("seed: 5")
    raise SystemExit("Error: enough")
"""
MEASURED = """
import asyncio, resource, sys
from pathlib import Path
from tests.support.script_runs import ScriptRun, job, settings_in

async def main(base):
    # the first run loads the modules
    await ScriptRun(settings_in(base, "print()"), base / "log.txt").run()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = ScriptRun(settings_in(base, (base / "noisy.py").read_text(), max_log_bytes=1_000_000), base / "log.txt")
    count = letters = 0

    async def on_line(line):
        nonlocal count, letters
        count, letters = count + 1, letters + len(line)

    result = await run.runner.run(job(), on_line=on_line, on_progress=run.on_progress, log_path=run.log_path)
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(count, letters, growth, run.log_path.stat().st_size, result.exit_code, result.seed, result.error, sep="|")

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize(("share", "max_growth_kib"), [(0.2, 8_000), *full_only((1, 40_000))])
async def test_memory_use_does_not_grow_with_the_output(tmp_path: Path, share: float, max_growth_kib: int) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "share").write_text(str(share))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEASURED, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    count, letters, growth_kib, log_bytes, *rest = output.decode().strip().split("|")
    assert rest == ["1", "5", "The script ended with exit code 1: enough"]
    assert 450_000 * share < int(count) < 460_000 * share
    assert int(letters) > 80_000_000 * share
    assert int(growth_kib) < max_growth_kib
    assert int(log_bytes) <= 1_100_000
