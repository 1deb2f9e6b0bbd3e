"""Run user scripts and record their messages."""

import asyncio
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from comfyrelay.desk.scripts.command import ScriptSettings
from comfyrelay.desk.scripts.output_parser import ScriptProgress
from comfyrelay.desk.scripts.runner import ScriptResult, ScriptRunner
from comfyrelay.protocol.desk import ScriptJob

WAIT_SECONDS = 30.0


def settings_in(base: Path, source: str = "", /, **changes: Any) -> ScriptSettings:
    """Create a script, an input folder `cats` and a template; return settings for the script."""
    for name in ("work", "input/cats", "templates"):
        (base / name).mkdir(parents=True, exist_ok=True)
    (base / "templates" / "wan.json").write_text("{}")
    (base / "script.py").write_text(textwrap.dedent(source), "utf-8")
    values: dict[str, Any] = {
        "script": base / "script.py",
        "working_folder": base / "work",
        "input_folder": base / "input",
        "template_folder": base / "templates",
        "profiles": ["look-dev", "production"],
        "grace_seconds": 5,
    }
    return ScriptSettings(**(values | changes))


def job(**changes: Any) -> ScriptJob:
    return ScriptJob(**({"template": "wan.json", "input_subdir": "cats", "positive": "a cat"} | changes))


class ScriptRun:
    """A script run that records its messages."""

    def __init__(
        self, settings: ScriptSettings, log_path: Path, *, umask: int | None = None, **environment: str
    ) -> None:
        self.settings = settings
        self.runner = ScriptRunner(settings, environment=environment, umask=umask)
        self.log_path = log_path
        self.lines: list[str] = []
        self.progress: list[ScriptProgress] = []
        self._news = asyncio.Event()

    async def run(self, script_job: ScriptJob | None = None) -> ScriptResult:
        return await self.runner.run(
            script_job or job(), on_line=self.on_line, on_progress=self.on_progress, log_path=self.log_path
        )

    async def until(self, text: str) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while text not in self.lines:
                self._news.clear()
                await self._news.wait()

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8", errors="replace")

    async def on_line(self, line: str) -> None:
        self.lines.append(line)
        self._news.set()

    async def on_progress(self, progress: ScriptProgress) -> None:
        self.progress.append(progress)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    # a zombie has exited; a container may have no process that reaps it
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


async def until(condition: Callable[[], bool]) -> None:
    """Poll a condition of other processes."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def pids_in(folder: Path) -> list[int]:
    return [int(file.name) for file in folder.iterdir()] if folder.is_dir() else []
