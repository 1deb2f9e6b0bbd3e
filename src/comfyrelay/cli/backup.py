"""`comfyrelay backup` and `comfyrelay restore`: a desk, or a server on SQLite and local files, as a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal

from comfyrelay.cli.target import DataDir, with_data_dir
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.services.operations.reconcile import ReconcileReport
    from comfyrelay.settings import Settings

BACKUP = "Backup"
DISAGREES = 1

backup_app = typer.Typer()
out = Console()
err = Console(stderr=True)


@backup_app.command("backup", rich_help_panel=BACKUP)
def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of backups, with a subfolder for each.")],
    data_dir: DataDir = None,
) -> None:
    """Back up a desk, also while it runs: queue, files, outputs and secrets."""
    require("server")
    from comfyrelay.services.backup.create import create_backup
    from comfyrelay.settings import load_settings

    with _progress("Copying") as progress:
        made, manifest = create_backup(with_data_dir(load_settings(), data_dir), folder, progress=progress)
    count = len(manifest.entries)
    out.print(f"{made}: {count} files, {decimal(manifest.size)}", highlight=False, soft_wrap=True)
    for each in manifest.left_out:
        out.print(f"  left out, a link to elsewhere: {each}", highlight=False, soft_wrap=True)


@backup_app.command("restore", rich_help_panel=BACKUP)
def restore(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A backup, or a folder of backups for the newest.")],
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="The data folder. If not given: that of COMFYRELAY_DATA_DIR, else ~/.local/share/comfyrelay."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing data, which is kept aside.")] = False,
) -> None:
    """Restore a backup; exit code 1 if its queue, jobs and ledger are inconsistent."""
    require("server")
    from comfyrelay.services.backup.restore import restore_backup

    settings = _settings(data_dir)
    with _progress("Restoring") as progress:
        restored = restore_backup(settings, folder, force=force, progress=progress)
    made_at = f"{restored.manifest.made_at:%Y-%m-%d %H:%M:%S} UTC"
    out.print(f"Restored what was there at {made_at}, from {restored.folder}", highlight=False, soft_wrap=True)
    for each in restored.aside:
        out.print(f"  what was there before: {each}", highlight=False, soft_wrap=True)
    report = asyncio.run(_check(settings))
    if report.is_clean:
        out.print(f"Queue, jobs and ledger agree ({report.jobs} jobs).", highlight=False)
        return
    out.print(
        f"{len(report.findings)} inconsistencies. Repair them with: comfyrelay reconcile --repair", highlight=False
    )
    raise typer.Exit(DISAGREES)


async def _check(settings: Settings) -> ReconcileReport:
    from comfyrelay.services.engine import Engine

    async with Engine(settings) as engine:
        # a backup of an older version has an older schema
        await engine.databases.upgrade()
        return await engine.operations.reconciler.run()


def _settings(data_dir: Path | None) -> Settings:
    from comfyrelay.settings import load_settings

    settings = load_settings()
    if data_dir is None:
        return settings
    return settings.model_copy(update={"data_dir": data_dir.expanduser().absolute()})


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, nothing elsewhere."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
