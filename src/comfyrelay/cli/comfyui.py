"""`comfyrelay comfyui list` and `comfyrelay comfyui logs`: the managed ComfyUI processes of this machine."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from comfyrelay.cli.target import DataDir, with_data_dir
from comfyrelay.errors import NotFound

if TYPE_CHECKING:
    from comfyrelay.comfyui.processes.state_files import ProcessRecord

comfyui_app = typer.Typer(no_args_is_help=True, help="The ComfyUI processes that ComfyRelay starts on this machine.")
out = Console()
FOLLOW_SECONDS = 0.3
PIECE = 64 * 1024


@comfyui_app.command("list")
def list_(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show each process with its GPU, URL, state and reason, and whether GPUs are shared through MPS."""
    from comfyrelay.comfyui.processes import mps

    found = _found(data_dir)
    if as_json:
        rows = [
            {**asdict(note), "state": note.state_now, "processes": [pid for pid, _ in note.alive], "log": str(log)}
            for note, log in found
        ]
        out.print_json(json.dumps(rows))
        return
    if not found:
        out.print("ComfyRelay has started no ComfyUI here: comfyrelay up --comfyui DIR does.", highlight=False)
        return
    table = Table("name", "gpu", Column("address", no_wrap=True), "state", "restarts")
    for note, _ in found:
        table.add_row(note.name, note.gpu, note.url, note.state_now, str(note.restarts))
    out.print(table)
    # on separate lines, because a narrow column would cut them
    for note, _ in found:
        if note.reason:
            out.print(f"{note.name}: {note.reason}", highlight=False, markup=False, soft_wrap=True)
    folders = dict.fromkeys(log.parent.parent for _, log in found)
    for sharing in dict.fromkeys(note.why for note in map(mps.read, folders) if note is not None):
        out.print(sharing, highlight=False, soft_wrap=True)


@comfyui_app.command()
def logs(
    name: Annotated[str | None, typer.Argument(help="The name from `list`. Default: all.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option(help="The number of lines.", min=0)] = 50,
    data_dir: DataDir = None,
) -> None:
    """Print the last lines of ComfyUI's log, after the path of the whole log."""
    found = [log for note, log in _found(data_dir) if name in (None, note.name)]
    if not found:
        known = ", ".join(note.name for note, _ in _found(data_dir)) or "none"
        raise NotFound(f"ComfyRelay has started no ComfyUI {name or 'here'}; there are: {known}.")
    places = {path: _print_last(path, lines) for path in found}
    while follow:
        time.sleep(FOLLOW_SECONDS)
        for path, place in places.items():
            places[path] = _print_since(path, place)


def _found(data_dir: Path | None) -> list[tuple[ProcessRecord, Path]]:
    from comfyrelay.comfyui.processes import state_files
    from comfyrelay.settings import load_settings
    from comfyrelay.worker.settings import load_worker_settings

    desk = with_data_dir(load_settings(), data_dir).data_dir / "worker"
    others = [] if data_dir is not None else [load_worker_settings().data_dir]
    return [*state_files.find(desk, *others)]


def _print_last(path: Path, count: int) -> int:
    out.print(f"[bold]{path}[/bold]", highlight=False, soft_wrap=True)
    text = path.read_bytes() if path.is_file() else b""
    for line in text.decode(errors="replace").splitlines()[-count:] if count else ():
        out.print(line, highlight=False, markup=False, soft_wrap=True)
    return len(text)


def _print_since(path: Path, place: int) -> int:
    size = path.stat().st_size if path.is_file() else 0
    # the log was rotated
    place = place if size >= place else 0
    if size > place:
        with path.open("rb") as file:
            file.seek(place)
            text = file.read(PIECE)
        out.print(text.decode(errors="replace"), end="", highlight=False, markup=False, soft_wrap=True)
        place += len(text)
    return place
