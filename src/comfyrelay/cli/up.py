"""`comfyrelay up`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

from comfyrelay import __version__
from comfyrelay.cli.browser import open_page
from comfyrelay.cli.ports import check_port
from comfyrelay.cli.running import run_loop, without_garbage_collection
from comfyrelay.cli.unknown_settings import warn_of_unknown
from comfyrelay.errors import ConfigurationError
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.desk.desk import DeskReady
    from comfyrelay.desk.settings import DeskSettings

out = Console()
err = Console(stderr=True)

MAX_PER_GPU = 16


def _check_per_gpu(count: str | None) -> str | None:
    if count is not None and count != "auto" and not (count.isdecimal() and 1 <= int(count) <= MAX_PER_GPU):
        raise typer.BadParameter(f"must be a number from 1 to {MAX_PER_GPU}, or auto.")
    return count


ComfyuiUrl = Annotated[
    list[str] | None,
    typer.Option(help="The URL of ComfyUI, if not http://127.0.0.1:8188. Repeat for more GPUs."),
]
ComfyuiFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Start ComfyUI as well, from this folder: with its own Python, one process per GPU, monitored, and "
        "stopped at the end. `comfyrelay doctor` finds the folder.",
    ),
]
PerGpu = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        help="With --comfyui: the number of ComfyUI processes per GPU. Default: auto, which starts one, and more if "
        "that helps.",
        callback=_check_per_gpu,
    ),
]
Port = Annotated[
    int | None,
    typer.Option(help="The port of the page. Default: COMFYRELAY_PORT, or 8420.", callback=check_port),
]
Host = Annotated[
    str | None,
    typer.Option(
        help="The address to listen on. Default: only this machine. 0.0.0.0 lets a phone in the same network connect; "
        "this requires a password: comfyrelay password."
    ),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        help="The folder for the queue, files and outputs. Default: COMFYRELAY_DATA_DIR, or ~/.local/share/comfyrelay."
    ),
]
UseSimulator = Annotated[
    bool, typer.Option("--simulator", help="Run new jobs on the built-in simulator, without models.")
]
OpenBrowser = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def up(
    comfyui_url: ComfyuiUrl = None,
    comfyui: ComfyuiFolder = None,
    per_gpu: PerGpu = None,
    port: Port = None,
    host: Host = None,
    data_dir: DataFolder = None,
    simulator: UseSimulator = False,
    open_: OpenBrowser = False,
) -> None:
    """Run your desk on this machine: queue, page, and a worker for your ComfyUI, until Ctrl-C."""
    require("desk")
    from comfyrelay.desk.addresses import require_free
    from comfyrelay.settings import load_settings

    warn_of_unknown(err)
    data_dir = data_dir and data_dir.expanduser().absolute()
    given = {"data_dir": data_dir, "port": port, "host": host}
    settings = load_settings().model_copy(update={name: value for name, value in given.items() if value is not None})
    require_free(settings)
    with without_garbage_collection():
        from comfyrelay.desk.desk import Desk
        from comfyrelay.desk.scripts.config import load_script_table
        from comfyrelay.desk.settings import load_desk_settings
        from comfyrelay.system.permissions import restrict_to_user
        from comfyrelay.worker.console import WorkerConsole

    desk = _with_comfyui(load_desk_settings(), urls=comfyui_url, folder=comfyui, per_gpu=per_gpu)
    if simulator:
        desk = desk.model_copy(update={"simulator": True})
    _check_addresses(desk.comfyui_url)
    umask = restrict_to_user(settings.data_dir)
    status = _StatusLines(finish_seconds=desk.finish_seconds, opens_page=open_)
    with WorkerConsole(level="warning", is_for_machines=False) as console:
        made = Desk(
            settings=settings,
            desk=desk,
            script=load_script_table(),
            umask=umask,
            on_ready=status.print_ready,
            on_status=console.status,
            on_comfyui=status.print_comfyui_found,
        )
        run_loop(made.run())
    out.print("Stopped. Waiting jobs are kept, and continue with the next `comfyrelay up`.", highlight=False)


class _StatusLines:
    """The lines that `up` prints while the desk runs."""

    def __init__(self, *, finish_seconds: float, opens_page: bool) -> None:
        self._finish_seconds = finish_seconds
        self._opens_page = opens_page
        self._is_awaiting_comfyui = False

    def print_ready(self, found: DeskReady) -> None:
        self._is_awaiting_comfyui = len(found.silent) == len(found.comfyui)
        out.print(f"ComfyRelay {__version__} is up at [bold]{found.url}[/bold]", highlight=False)
        out.print(f"  data     {found.data_dir}", highlight=False)
        started = f"started here, from {found.comfyui_dir}; its log: comfyrelay comfyui logs"
        out.print(f"  ComfyUI  {', '.join(found.comfyui) or started}", highlight=False, soft_wrap=True)
        for line in _comfyui_lines(found.silent, found.simulated_jobs):
            out.print(f"           {line}", highlight=False, soft_wrap=True)
        if found.url_elsewhere is not None:
            out.print(f"  phone    {found.url_elsewhere}  in the same network, with the password", highlight=False)
        out.print(f"  page     {found.link}", highlight=False, soft_wrap=True)
        out.print("           the link works once, for ten minutes; `comfyrelay open` makes another", highlight=False)
        if self._opens_page and not open_page(found.link):
            out.print("           no browser could be opened here: follow the link", highlight=False)
        stopping = f"Running jobs then have {self._finish_seconds:g} s to finish, or are requeued."
        out.print(f"Press Ctrl-C to stop. {stopping} Waiting jobs are kept.", highlight=False)

    def print_comfyui_found(self) -> None:
        if self._is_awaiting_comfyui:
            out.print("ComfyUI is reachable now: jobs that waited for it run.", highlight=False)
        # the next call means that it was unreachable in between
        self._is_awaiting_comfyui = True


def _with_comfyui(
    desk: DeskSettings, *, urls: list[str] | None, folder: Path | None, per_gpu: str | None
) -> DeskSettings:
    """The command line overrides environment and file."""
    if urls and folder:
        raise ConfigurationError("Give --comfyui-url for a ComfyUI that runs, or --comfyui for one to start: not both.")
    set_elsewhere = desk.model_dump(exclude_unset=True)
    if urls:
        set_elsewhere = {**set_elsewhere, "comfyui_url": urls, "comfyui_dir": None}
    if folder:
        set_elsewhere["comfyui_dir"] = folder.expanduser().absolute()
    if per_gpu:
        set_elsewhere["per_gpu"] = per_gpu
    if per_gpu and set_elsewhere.get("comfyui_dir") is None:
        raise ConfigurationError("--per-gpu is for a ComfyUI that is started here: name its folder with --comfyui.")
    return type(desk)(**set_elsewhere)


def _comfyui_lines(silent: Sequence[str], simulated_jobs: str) -> Iterator[str]:
    if simulated_jobs == "everything":
        yield "simulator: new jobs run on the built-in simulator, without models"
    for each in silent:
        yield f"{each} does not answer yet: jobs wait for it"
    if silent and simulated_jobs == "examples":
        yield "until then the examples run on the built-in simulator; with `up --simulator` all jobs do"
        yield "is ComfyUI elsewhere? name it with --comfyui-url"


def _check_addresses(addresses: Sequence[str]) -> None:
    """The desk would wait forever for an invalid address."""
    for address in addresses:
        try:
            host = urlsplit(address if "://" in address else f"http://{address}").hostname or ""
        except ValueError:
            host = ""
        if not re.fullmatch(r"[\w.:-]+", host):
            # not repeated, because it may contain a password
            raise ConfigurationError("--comfyui-url is not an address. Write it like http://127.0.0.1:8188.")
