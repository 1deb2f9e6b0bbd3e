"""`comfyrelay backup` and `comfyrelay restore`: a desk, or a server on SQLite and local files, as a folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from comfyrelay.cli.output import print_line, progress_bar
from comfyrelay.cli.target import DataDir, load_settings_of
from comfyrelay.extras import require
from comfyrelay.text import counted

if TYPE_CHECKING:
    from comfyrelay.services.operations.reconcile import ReconcileReport
    from comfyrelay.settings import Settings

INCONSISTENT = 1


def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for backups. Each gets a subfolder.")],
    data_dir: DataDir = None,
) -> None:
    """Back up the queue, files, outputs and secrets of a desk or a server on SQLite, even while it runs."""
    require("server")
    from rich.progress import DownloadColumn

    from comfyrelay.services.backup.create import create_backup

    with progress_bar("Copying", DownloadColumn) as progress:
        path, manifest = create_backup(load_settings_of(data_dir), folder, progress=progress)
    print_line(f"{path}: {counted(len(manifest.entries), 'file')}, {decimal(manifest.size)}")
    for link in manifest.left_out:
        print_line(f"  left out, because it links to another folder: {link}")


def restore(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A backup, or a folder of backups. The newest is restored.")
    ],
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Data folder. Default: the `data_dir` setting (COMFYRELAY_DATA_DIR)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing data. The old data is renamed.")] = False,
) -> None:
    """Restore a backup, and check that its queue, jobs and ledger are consistent.

    The exit code is 1 if they are not.
    """
    require("server")
    from rich.progress import DownloadColumn

    from comfyrelay.services.backup.restore import restore_backup
    from comfyrelay.settings import load_settings

    settings = load_settings(data_dir)
    if data_dir is not None:
        settings = settings.model_copy(update={"data_dir": data_dir.expanduser().absolute()})
    with progress_bar("Restoring", DownloadColumn) as progress:
        restored = restore_backup(settings, folder, force=force, progress=progress)
    made_at = f"{restored.manifest.made_at:%Y-%m-%d %H:%M:%S} UTC"
    print_line(f"Restored the backup of {made_at} from {restored.folder}")
    for path in restored.aside:
        print_line(f"  previous data: {path}")
    report = asyncio.run(_check(settings))
    if report.is_clean:
        print_line(f"Queue, jobs and ledger agree ({counted(report.jobs, 'job')}).")
        return
    print_line(f"{len(report.findings)} inconsistencies. Repair them with: comfyrelay reconcile --repair")
    raise typer.Exit(INCONSISTENT)


async def _check(settings: Settings) -> ReconcileReport:
    from comfyrelay.services.engine import Engine

    async with Engine(settings) as engine:
        # The backup of an older version has an older schema.
        await engine.databases.upgrade()
        return await engine.operations.reconciler.run()
