"""A worker prints status lines on a terminal, and JSON lines without one."""

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from rich.console import Console

from comfyrelay.protocol.progress import Phase
from comfyrelay.worker.console import WorkerConsole, without_secrets
from tests.support.console_program import HASH, JOB, SIGNED
from tests.support.world import PATIENCE_SECONDS

PROGRAM = (sys.executable, "-m", "tests.support.console_program")


class Terminal:
    """A program on its own terminal, with all of its output."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader) -> None:
        self._process = process
        self._reader = reader
        self.raw = ""

    @property
    def text(self) -> str:
        """The output without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw).replace("\r", "\n")

    async def until(self, pattern: str) -> re.Match[str]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (found := re.search(pattern, self.text)):
                assert await self._more(), self.raw
        return found

    async def end(self) -> str:
        """Stop the program; return all its output."""
        self._process.stdin.write(b"\n")  # type: ignore[union-attr]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._more():
                pass
            assert await self._process.wait() == 0
        return self.text

    async def _more(self) -> bool:
        try:
            chunk = await self._reader.read(65536)
        except OSError:
            # a terminal whose other end is closed raises an error
            chunk = b""
        self.raw += chunk.decode()
        return bool(chunk)


@asynccontextmanager
async def terminal(code: str, *, width: int = 120, env: Mapping[str, str] | None = None) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    names = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        code,
        stdin=asyncio.subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm-256color", "PYTHONPATH": str(Path.cwd()), **(env or {})},
    )
    os.close(theirs)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", 0))
    try:
        yield Terminal(process, reader)
    finally:
        transport.close()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def lines_of(code: str) -> list[dict[str, Any]]:
    """Return the output of the same program without a terminal."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        code,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # FORCE_COLOR makes rich assume a terminal
        env={**os.environ, "FORCE_COLOR": "1", "PYTHONPATH": str(Path.cwd())},
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert (process.returncode, out) == (0, b""), err.decode()
    return [json.loads(line) for line in err.decode().splitlines()]


COMPLETED = "log.info('worker.job_completed', job_id=JOB, dispatch_id=7, workflow=HASH, attempt=1, seconds=12.34)"
FAILED = (
    "log.info('worker.job_failed', job_id=JOB, attempt=2, seconds=1, fault='worker', error='Out of\\n\\x1b[2J memory')"
)


async def test_event_is_shown_as_one_readable_line() -> None:
    async with terminal(
        f"{COMPLETED}; {FAILED}; log.info('worker.stopped', reason='spot_interruption', jobs=None)"
    ) as shown:
        await shown.until(r"stopped.*\n")
        text = await shown.end()
    assert re.search(r"^\d\d:\d\d:\d\d job completed +abcd5678 9f8e7d6c 12\.3 s$", text, re.M)
    assert re.search(r"^\d\d:\d\d:\d\d job failed +abcd5678 1\.0 s attempt=2 worker Out of memory$", text, re.M)
    assert re.search(r"^\d\d:\d\d:\d\d stopped +spot_interruption$", text, re.M)
    assert "\x1b[32m" in shown.raw
    assert "\x1b[2J" not in shown.raw


def test_desk_writes_readable_lines_without_a_terminal() -> None:
    written = io.StringIO()
    with WorkerConsole(Console(file=written, width=120), level="warning", is_for_machines=False) as console:
        console.status([])
        structlog.get_logger("any").warning("worker.comfyui", server="http://x:1", state="offline", reason="Nobody.")
        structlog.get_logger("any").info("worker.idle")
        structlog.get_logger("any").warning("worker.waiting", servers=["http://x:1", "http://y:2"])
    first, second = written.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d comfyui +http://x:1 offline Nobody\.", first)
    assert re.fullmatch(r"\d\d:\d\d:\d\d waiting +servers=http://x:1, http://y:2", second)


async def test_narrow_terminal_shows_shorter_lines() -> None:
    async with terminal(
        f"{COMPLETED}; console.status([lease(progress=0.5, node_title='A node of a long name')])", width=40
    ) as shown:
        await shown.until(r"job completed abcd5678 12\.3 s\n")
        line = (await shown.until(r"abcd5678 .*50%.*\d s"))[0]
    assert len(line) <= 40
    assert "9f8e7d6c" not in shown.text
    assert "A node" in line


async def test_output_without_colours_is_complete() -> None:
    async with terminal(f"{COMPLETED}; console.status([lease(progress=0.25)])", env={"NO_COLOR": "1"}) as shown:
        await shown.until(r"job completed +abcd5678 9f8e7d6c 12\.3 s\n")
        bar = (await shown.until(r"running +(━+)[╸╺]? +25%"))[1]
        await shown.end()
    assert 3 <= len(bar) <= 6
    assert not re.search(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d|38;[\d;]+)m", shown.raw)


async def test_status_lines_show_progress_and_are_erased_at_the_end() -> None:
    held = "[lease(progress=0.4, node_title='KSampler'), lease(OTHER_JOB, phase=Phase.FETCHING)]"
    async with terminal(f"console.status({held}); {COMPLETED}") as shown:
        await shown.until(r"abcd5678 9f8e7d6c running +━+[╸╺]?━* +40% KSampler +\d+ s")
        await shown.until(r"abcd9999 9f8e7d6c fetching +━+ +0% +\d+ s")
        await shown.end()
    # the cursor is shown again after the status lines are erased
    assert re.search(r"\x1b\[\?25h\r(\x1b\[1A\x1b\[2K){2}$", shown.raw)


async def test_status_line_shows_a_few_jobs_or_that_the_worker_waits() -> None:
    async with terminal("console.status([lease() for _ in range(9)])") as shown:
        await shown.until("and 5 more")
    async with terminal("console.status([])") as shown:
        await shown.until("waiting for a job")


async def test_dumb_terminal_shows_no_status_line() -> None:
    async with terminal(f"console.status([lease()]); {COMPLETED}", env={"TERM": "dumb"}) as shown:
        await shown.until(r"12\.3 s\n")
        text = await shown.end()
    assert text.count("abcd5678") == 1


async def test_unexpected_error_is_shown_with_its_traceback() -> None:
    code = """
try:
    raise ValueError("no such thing")
except ValueError:
    log.warning("pool.odd", exc_info=True)
    log.exception("pool.broken")
"""
    async with terminal(code) as shown:
        await shown.until(r"pool\.broken +ValueError: no such thing\n")
        text = await shown.end()
    assert re.search(r"pool\.odd +ValueError: no such thing\n", text)
    assert text.count("Traceback") == 1


async def test_events_are_json_on_standard_error_without_a_terminal() -> None:
    completed, stopped = await lines_of(
        f"{COMPLETED}; console.status([lease()]); log.debug('no'); log.info('worker.stopped', reason='shutdown')"
    )
    assert re.match(r"\d{4}-\d\d-\d\dT", completed.pop("timestamp"))
    assert completed == {
        "event": "worker.job_completed",
        "level": "info",
        "job_id": JOB,
        "dispatch_id": 7,
        "workflow": HASH,
        "attempt": 1,
        "seconds": 12.34,
    }
    assert (stopped["event"], stopped["reason"]) == ("worker.stopped", "shutdown")


LEAKY = """
log.warning("worker.odd", lease=lease(), graph=lease().graph, lease_token="a-lease-token-that-opens", why=SIGNED,
            more={"api_key": "sk-key-that-opens", "urls": [SIGNED]}, server="http://me:a-password@10.0.0.1:8188/x")
try:
    raise OSError(f"403 for url '{SIGNED}', Authorization: Bearer sk-key-that-opens")
except OSError as error:
    log.exception("worker.broken", error=error)
"""
SECRETS = ("5161", "AKID", "that-opens", "a-password", "private cat")


async def test_log_lines_contain_no_secrets_and_no_user_text() -> None:
    lines = await lines_of(LEAKY)
    assert len(lines) == 2
    async with terminal(LEAKY) as shown:
        await shown.until("Traceback[^$]*403[^$]*starting")
        on_terminal = await shown.end()
    for text in (json.dumps(lines), on_terminal):
        assert [secret for secret in SECRETS if secret in text] == []
        # the rest of the traceback shows where it failed
        assert "https://bucket.s3.example.com/in/cat.png" in text
        assert "http://10.0.0.1:8188/x" in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        (3, 3),
        (None, None),
        (True, True),
        (Phase.RUNNING, "running"),
        (Path("/a/b"), "/a/b"),
        (("a", SIGNED), ["a", "https://bucket.s3.example.com/in/cat.png?…"]),
        ({"x": {"password": "p"}}, {"x": {"password": "…"}}),
        (object(), "object"),
        ("see http://[half/", "see …"),
    ],
)
def test_log_field_is_redacted(value: object, shown: object) -> None:
    assert without_secrets(None, "info", {"field": value}) == {"field": shown}


@pytest.mark.parametrize(
    "name", ["token", "lease_token", "fleet_secret", "comfy_cloud_api_key", "graph", "output_headers"]
)
def test_private_field_is_hidden(name: str) -> None:
    assert without_secrets(None, "info", {name: "x", "prompt_id": "p", "tokens": 3}) == {
        name: "…",
        "prompt_id": "p",
        "tokens": 3,
    }
