"""`comfyrelay up`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from comfyrelay import __version__
from comfyrelay.cli.desk.browser import open_page
from comfyrelay.cli.options import check_port
from comfyrelay.cli.output import out, print_line
from comfyrelay.cli.running import run_event_loop, without_garbage_collection
from comfyrelay.cli.unknown_settings import warn_of_unknown
from comfyrelay.errors import ConfigurationError
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.desk.settings import DeskSettings
    from comfyrelay.desk.startup.ready import DeskReady
    from comfyrelay.settings import Settings

MAX_PER_GPU = 16


def _check_per_gpu(count: str | None) -> str | None:
    if count is not None and count != "auto" and not (count.isdecimal() and 1 <= int(count) <= MAX_PER_GPU):
        raise typer.BadParameter(f"must be a number from 1 to {MAX_PER_GPU}, or auto.")
    return count


def up(
    comfyui_url: Annotated[
        list[str] | None,
        typer.Option(help="URL of ComfyUI. Default: http://127.0.0.1:8188. Repeatable, for several GPUs."),
    ] = None,
    comfyui: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of ComfyUI: start it with its own Python, one process per GPU, supervise it, and stop it at "
            "the end. `comfyrelay doctor` finds the folder.",
        ),
    ] = None,
    per_gpu: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="With --comfyui: number of ComfyUI processes per GPU. Default: auto, which starts more than one if "
            "that helps.",
            callback=_check_per_gpu,
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the page. Default: COMFYRELAY_PORT, then 8420.", callback=check_port)
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on. Default: only this machine. With 0.0.0.0, a phone in the same network can "
            "connect; set a password first: comfyrelay password."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder for all data. Default: COMFYRELAY_DATA_DIR, then comfyrelay in your folder for application "
            "data (on Linux ~/.local/share)."
        ),
    ] = None,
    simulator: Annotated[
        bool, typer.Option("--simulator", help="Run new jobs on the built-in simulator, without models.")
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Run your desk on this machine until Ctrl-C: a queue, its web page, and a worker for your ComfyUI."""
    require("desk")
    from comfyrelay.configuration import settings_file
    from comfyrelay.desk.addresses import require_free
    from comfyrelay.desk.scripts.config import load_script_table
    from comfyrelay.desk.settings import load_desk_settings
    from comfyrelay.settings import load_settings

    data_dir = data_dir and data_dir.expanduser().absolute()
    warn_of_unknown(data_dir)
    given = {"data_dir": data_dir, "port": port, "host": host}
    settings = load_settings(data_dir).model_copy(
        update={name: value for name, value in given.items() if value is not None}
    )
    require_free(settings)
    desk = _with_comfyui(load_desk_settings(data_dir), urls=comfyui_url, folder=comfyui, per_gpu=per_gpu)
    if simulator:
        desk = desk.model_copy(update={"simulator": True})
    _check_addresses(desk.comfyui_url)
    options = {"port": port, "host": host, "desk.comfyui_url": comfyui_url, "desk.comfyui_dir": comfyui}
    options["desk.per_gpu"] = per_gpu
    names = [name for name, value in options.items() if value]
    script, file = load_script_table(data_dir), settings_file(data_dir)
    _run(settings, desk, script, config_file=file, options=names, opens_page=open_)
    print_line("Stopped. Waiting jobs are kept, and continue with the next `comfyrelay up`.")


def _run(
    settings: Settings,
    desk: DeskSettings,
    script: dict[str, Any] | None,
    *,
    config_file: Path,
    options: Collection[str],
    opens_page: bool,
) -> None:
    with without_garbage_collection():
        from comfyrelay.desk.desk import Desk
        from comfyrelay.system.permissions import restrict_to_user
        from comfyrelay.traces import exporting
        from comfyrelay.worker.console import WorkerConsole

    umask = restrict_to_user(settings.data_dir)
    status = _StatusLines(shutdown_seconds=desk.shutdown_seconds, opens_page=opens_page)
    with WorkerConsole(level="warning", is_for_machines=False) as console:
        running_desk = Desk(
            settings=settings,
            desk=desk,
            script=script,
            config_file=config_file,
            options=options,
            umask=umask,
            on_ready=status.print_ready,
            on_status=console.status,
            on_comfyui=status.print_comfyui_found,
        )
        with exporting(settings.traces_url, service="comfyrelay-desk"):
            run_event_loop(running_desk.run())


class _StatusLines:
    """The lines that `up` prints while the desk runs."""

    def __init__(self, *, shutdown_seconds: float, opens_page: bool) -> None:
        self._shutdown_seconds = shutdown_seconds
        self._opens_page = opens_page
        self._is_awaiting_comfyui = False

    def print_ready(self, found: DeskReady) -> None:
        self._is_awaiting_comfyui = len(found.silent) == len(found.comfyui)
        out.print(f"ComfyRelay {__version__} is up at [bold]{found.url}[/bold]")
        print_line(f"  data     {found.data_dir}")
        print_line(f"  settings {found.settings_file}")
        started = f"started here, from {found.comfyui_dir}; its log: comfyrelay comfyui logs"
        print_line(f"  ComfyUI  {', '.join(found.comfyui) or started}")
        for line in _comfyui_lines(found.silent, found.simulated_jobs):
            print_line(f"           {line}")
        if found.url_elsewhere is not None:
            print_line(f"  phone    {found.url_elsewhere}  in the same network, with the password")
        print_line(f"  page     {found.link}")
        print_line("           the link works once, for ten minutes; `comfyrelay open` creates another")
        if self._opens_page and not open_page(found.link):
            print_line("           no browser could be opened here: follow the link")
        stopping = f"Running jobs then have {self._shutdown_seconds:g} s to finish, or are requeued."
        print_line(f"Press Ctrl-C to stop. {stopping} Waiting jobs are kept.")

    def print_comfyui_found(self) -> None:
        if self._is_awaiting_comfyui:
            print_line("ComfyUI is reachable now, and runs the jobs that waited for it.")
        # If this is called again, ComfyUI was unreachable in between.
        self._is_awaiting_comfyui = True


def _with_comfyui(
    desk: DeskSettings, *, urls: list[str] | None, folder: Path | None, per_gpu: str | None
) -> DeskSettings:
    """Apply the command-line options, which override the environment and the file."""
    if urls and folder:
        raise ConfigurationError("Give --comfyui-url for a running ComfyUI, or --comfyui to start one, but not both.")
    set_elsewhere = desk.model_dump(exclude_unset=True)
    if urls:
        set_elsewhere = {**set_elsewhere, "comfyui_url": urls, "comfyui_dir": None}
    if folder:
        set_elsewhere["comfyui_dir"] = folder.expanduser().absolute()
    if per_gpu:
        set_elsewhere["per_gpu"] = per_gpu
    if per_gpu and set_elsewhere.get("comfyui_dir") is None:
        raise ConfigurationError("--per-gpu is for a ComfyUI that is started here: set its folder with --comfyui.")
    return type(desk)(**set_elsewhere)


def _comfyui_lines(silent: Sequence[str], simulated_jobs: str) -> Iterator[str]:
    if simulated_jobs == "everything":
        yield "simulator: new jobs run on the built-in simulator, without models"
    for url in silent:
        yield f"{url} does not answer yet: jobs wait for it"
    if silent and simulated_jobs == "examples":
        yield "until then the examples run on the built-in simulator; with `up --simulator` all jobs do"
        yield "is ComfyUI at another address? set --comfyui-url"


def _check_addresses(addresses: Sequence[str]) -> None:
    """Refuse an invalid address, for which the desk would wait forever."""
    for address in addresses:
        try:
            host = urlsplit(address if "://" in address else f"http://{address}").hostname or ""
        except ValueError:
            host = ""
        if not re.fullmatch(r"[\w.:-]+", host):
            # The message does not repeat the address, which may contain a password.
            raise ConfigurationError("--comfyui-url is not an address. Write it like http://127.0.0.1:8188.")
