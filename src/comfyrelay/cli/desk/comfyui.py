"""`comfyrelay comfyui`: the ComfyUI processes that ComfyRelay starts on this machine."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from comfyrelay.cli.options import Json
from comfyrelay.cli.output import out, print_json, print_line
from comfyrelay.cli.target import DataDir, load_settings_of
from comfyrelay.errors import NotFound

if TYPE_CHECKING:
    from comfyrelay.comfyui.processes.state_files import ProcessRecord

comfyui_app = typer.Typer(no_args_is_help=True, help="Inspect the ComfyUI processes that ComfyRelay starts here.")
FOLLOW_SECONDS = 0.3
CHUNK_BYTES = 64 * 1024


@comfyui_app.command("list")
def list_(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the processes with their GPU, URL, state and its reason, and whether they share GPUs through MPS."""
    from comfyrelay.comfyui.processes import mps

    found = _find(data_dir)
    if as_json:
        rows = [
            {**asdict(note), "state": note.state_now, "processes": [pid for pid, _ in note.alive], "log": str(log)}
            for note, log in found
        ]
        print_json(rows)
        return
    if not found:
        print_line("ComfyRelay has started no ComfyUI here. Start one with: comfyrelay up --comfyui DIR")
        return
    table = Table("name", "gpu", Column("address", no_wrap=True), "state", "restarts")
    for note, _ in found:
        table.add_row(note.name, note.gpu, note.url, note.state_now, str(note.restarts))
    out.print(table)
    # Reasons are on separate lines, because a narrow column would truncate them.
    for note, _ in found:
        if note.reason:
            print_line(f"{note.name}: {note.reason}")
    folders = dict.fromkeys(log.parent.parent for _, log in found)
    for reason in dict.fromkeys(note.why for note in map(mps.read, folders) if note is not None):
        print_line(reason)


@comfyui_app.command()
def logs(
    name: Annotated[str | None, typer.Argument(help="A name from `list`. Default: all processes.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option(help="Number of lines.", min=0)] = 50,
    data_dir: DataDir = None,
) -> None:
    """Print the last lines of each log, below the path of the whole file."""
    found = [log for note, log in _find(data_dir) if name in (None, note.name)]
    if not found:
        known = ", ".join(note.name for note, _ in _find(data_dir)) or "none"
        raise NotFound(f"ComfyRelay has started no ComfyUI {name or 'here'}. There are: {known}.")
    offsets = {path: _print_last(path, lines) for path in found}
    while follow:
        time.sleep(FOLLOW_SECONDS)
        for path, offset in offsets.items():
            offsets[path] = _print_since(path, offset)


def _find(data_dir: Path | None) -> list[tuple[ProcessRecord, Path]]:
    from comfyrelay.comfyui.processes import state_files
    from comfyrelay.worker.settings import load_worker_settings

    desk = load_settings_of(data_dir).data_dir / "worker"
    others = [] if data_dir is not None else [load_worker_settings().data_dir]
    return [*state_files.find(desk, *others)]


def _print_last(path: Path, count: int) -> int:
    """Print the last lines of a log, and return its size."""
    out.print(f"[bold]{path}[/bold]", soft_wrap=True)
    text = path.read_bytes() if path.is_file() else b""
    for line in text.decode(errors="replace").splitlines()[-count:] if count else ():
        print_line(line)
    return len(text)


def _print_since(path: Path, offset: int) -> int:
    """Print what was added to a log after `offset`, and return the new offset."""
    size = path.stat().st_size if path.is_file() else 0
    # A smaller log was rotated.
    offset = offset if size >= offset else 0
    if size > offset:
        with path.open("rb") as file:
            file.seek(offset)
            text = file.read(CHUNK_BYTES)
        out.print(text.decode(errors="replace"), end="", markup=False, soft_wrap=True)
        offset += len(text)
    return offset
