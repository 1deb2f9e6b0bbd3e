"""A command that is killed at any change on disk changes nothing or everything, and can be repeated."""

import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from comfyrelay.desk.data_folder import open_data_folder
from comfyrelay.services.backup.manifest import find_backup
from tests.support.desk import copy_initial_data
from tests.support.kill_points import KillPoint
from tests.support.processes import run_command
from tests.support.side_effects import BACKUP_KILL_POINTS, RESTORE_KILL_POINTS, RESTORED_KILL_POINTS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kill points need the fork server")


class Machine:
    """A data folder on which commands run."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.backups = folder / "backups"
        self._log = folder / "commands.log"
        copy_initial_data(self.data_dir)

    async def run(self, *command: str, kill_at: KillPoint | None = None) -> None:
        environment = {"COMFYRELAY_DATA_DIR": str(self.data_dir), **(kill_at.environment if kill_at else {})}
        code, text = await run_command(*command, environment=environment, log=self._log)
        assert code == (-signal.SIGKILL if kill_at else 0), text

    def files(self) -> dict[str, bytes]:
        """Return files by name, except the lock and SQLite's side files; databases have a version, see `change`."""
        return {
            str(path.relative_to(self.data_dir)): _version(path) if path.suffix == ".db" else path.read_bytes()
            for path in self.data_dir.rglob("*")
            if path.is_file() and path.name != "lock" and not path.name.endswith(("-shm", "-wal"))
        }

    def change(self, number: int) -> None:
        """Change a file and the databases."""
        (self.data_dir / "number").write_text(str(number))
        for path in self.data_dir.glob("*.db"):
            with closing(sqlite3.connect(path)) as connection:
                connection.execute(f"PRAGMA user_version = {number}")

    def start_desk(self) -> None:
        """Do what a starting desk does first."""
        open_data_folder(self.data_dir).release()


def _version(path: Path) -> bytes:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("PRAGMA user_version").fetchone()[0]).encode()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("point", BACKUP_KILL_POINTS, ids=str)
async def test_killed_backup_is_not_mistaken_for_a_complete_one(machine: Machine, point: KillPoint) -> None:
    await machine.run("backup", str(machine.backups))
    (machine.data_dir / "later").write_text("later")
    before = machine.files()
    await machine.run("backup", str(machine.backups), kill_at=point)
    assert machine.files() == before
    [complete, *killed] = sorted(machine.backups.iterdir())
    is_complete = (killed[0] / "manifest.json").exists() if killed else False
    assert find_backup(machine.backups)[0] == (killed[0] if is_complete else complete)
    await machine.run("backup", str(machine.backups))
    # the next backup removes the leftovers of the killed backup
    assert len(list(machine.backups.iterdir())) == (3 if is_complete else 2)
    shutil.rmtree(machine.data_dir)
    await machine.run("restore", str(machine.backups))
    assert (machine.data_dir / "later").read_text() == "later"


@pytest.mark.parametrize("point", [*RESTORE_KILL_POINTS, *RESTORED_KILL_POINTS], ids=str)
async def test_killed_restore_changes_nothing_or_everything(machine: Machine, point: KillPoint) -> None:
    machine.change(1)
    backed_up = machine.files()
    await machine.run("backup", str(machine.backups))
    machine.change(2)
    before = machine.files()
    await machine.run("restore", str(machine.backups), "--force", kill_at=point)
    machine.start_desk()
    if point in RESTORED_KILL_POINTS:
        [aside] = machine.data_dir.glob("before-restore-*")
        kept = {name: data for name, data in machine.files().items() if not name.startswith(aside.name)}
        assert kept == backed_up
        assert (aside / "number").read_text() == "2"
    else:
        assert machine.files() == before
        await machine.run("restore", str(machine.backups), "--force")
        assert (machine.data_dir / "number").read_text() == "1"
    assert list(machine.data_dir.glob(".restore-*")) == []
