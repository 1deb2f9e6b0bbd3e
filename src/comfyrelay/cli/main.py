"""The `comfyrelay` command."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from comfyrelay import __version__
from comfyrelay.cli.backup import backup_app
from comfyrelay.cli.batch_i2v import batch_i2v
from comfyrelay.cli.browser import open_page
from comfyrelay.cli.comfyui import comfyui_app
from comfyrelay.cli.command_line import command_line
from comfyrelay.cli.fleet.app import fleet_app
from comfyrelay.cli.jobs import Url, connected, jobs_app
from comfyrelay.cli.run import DESK, run_app
from comfyrelay.cli.target import DataDir, with_data_dir
from comfyrelay.cli.unknown_settings import warn_of_unknown
from comfyrelay.cli.worker import worker_app
from comfyrelay.errors import ComfyRelayError, ConfigurationError, InvalidInput
from comfyrelay.extras import require
from comfyrelay.system.terminal import show_what_can_be_shown

if TYPE_CHECKING:
    from comfyrelay.desk.settings import DeskSettings
    from comfyrelay.services.engine import Engine
    from comfyrelay.services.operations.reconcile import ReconcileReport
    from comfyrelay.services.workers.node_allow_list import AllowList

T = TypeVar("T")
SERVERS = "Servers and workers"

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
db_app = typer.Typer(no_args_is_help=True, help="The databases: check and upgrade their schemas.")
app.add_typer(db_app, name="db", rich_help_panel=SERVERS)
admin_app = typer.Typer(
    no_args_is_help=True, help="For whoever runs a server: administrators, and which nodes tenants may use."
)
app.add_typer(admin_app, name="admin", rich_help_panel=SERVERS)
app.add_typer(worker_app, name="worker", rich_help_panel=SERVERS)
app.add_typer(comfyui_app, name="comfyui", rich_help_panel=DESK)
app.add_typer(fleet_app, name="fleet", rich_help_panel=SERVERS)
app.add_typer(run_app)
app.add_typer(jobs_app)
app.add_typer(backup_app)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
out = Console()
err = Console(stderr=True)

FOUND = 1
CANNOT = 2
LAST_PORT = 65535
MOST_PER_GPU = 16
# also where it is called as `python -m comfyrelay`: completion is known by it
NAME = "comfyrelay"
FIRST = ("up", "open", "run", "batch", "jobs", "batches", "show")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        out.print(__version__, highlight=False)
        raise typer.Exit


def _port_or_0(port: int | None) -> int | None:
    # in the words of the settings; those of the library are not a sentence
    if port is not None and not 0 <= port <= LAST_PORT:
        raise typer.BadParameter(f"must be at most {LAST_PORT}." if port > 0 else "must be at least 0.")
    return port


def _port(port: int | None) -> int | None:
    if port is not None and port < 1:
        raise typer.BadParameter("must be at least 1.")
    return _port_or_0(port)


def _per_gpu(count: str | None) -> str | None:
    if count is not None and count != "auto" and not (count.isdecimal() and 1 <= int(count) <= MOST_PER_GPU):
        raise typer.BadParameter(f"must be a number from 1 to {MOST_PER_GPU}, or auto.")
    return count


def main() -> None:
    """The entry point: an error that we know is one sentence and exit code 2."""
    show_what_can_be_shown()
    try:
        command_line(app, first=FIRST)(prog_name=NAME)
    except ComfyRelayError as error:
        err.print(f"[red]Error[/red]: {escape(str(error))}", soft_wrap=True, highlight=False)
        if isinstance(error, InvalidInput) and str(error) == str(InvalidInput()):
            for field, text in error.errors.items():
                err.print(f"  {field}: {text}", soft_wrap=True, highlight=False, markup=False)
        sys.exit(CANNOT)


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """One queue for all your ComfyUI GPUs, from the card under the desk to a Spot fleet in the cloud.

    Begin with `comfyrelay up`: it runs the queue, its page and a worker on this machine.
    """


@app.command(rich_help_panel=DESK)
def up(
    comfyui_url: Annotated[
        list[str] | None, typer.Option(help="Where ComfyUI is, if not at http://127.0.0.1:8188. Repeat for more GPUs.")
    ] = None,
    comfyui: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Start ComfyUI as well, from this folder: with its own Python, on each GPU, monitored, and stopped "
            "at the end. `comfyrelay doctor` finds it.",
        ),
    ] = None,
    per_gpu: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="With --comfyui: how many of it run on each GPU; if not given, auto: one, and more where it helps.",
            callback=_per_gpu,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="The port of the page; if not given, that of COMFYRELAY_PORT, or 8420.", callback=_port),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="The address to listen on, if not this machine alone: 0.0.0.0 lets a phone in the same network watch. "
            "It needs a password: comfyrelay password."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="The folder for everything: queue, files, outputs; if not given, that of COMFYRELAY_DATA_DIR, or "
            "~/.local/share/comfyrelay."
        ),
    ] = None,
    simulator: Annotated[
        bool,
        typer.Option(
            "--simulator", help="Try things out: what is added runs on the built-in simulator, without models."
        ),
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Run ComfyRelay here for yourself, as your desk: queue, page, and a worker for your ComfyUI, until Ctrl-C."""
    require("desk")
    from comfyrelay.desk.addresses import require_free
    from comfyrelay.settings import load_settings

    warn_of_unknown(err)
    data_dir = data_dir and data_dir.expanduser().absolute()
    given = {"data_dir": data_dir, "port": port, "host": host}
    settings = load_settings().model_copy(update={name: value for name, value in given.items() if value is not None})
    require_free(settings)
    with _many_imports():
        from comfyrelay.desk.desk import Desk, DeskReady
        from comfyrelay.desk.scripts.config import load_script_table
        from comfyrelay.desk.settings import load_desk_settings
        from comfyrelay.system.permissions import keep_private
        from comfyrelay.worker.console import WorkerConsole

    desk = load_desk_settings()
    desk = _with_comfyui(desk, urls=comfyui_url, folder=comfyui, per_gpu=per_gpu)
    if simulator:
        desk = desk.model_copy(update={"simulator": True})
    _check_addresses(desk.comfyui_url)
    umask = keep_private(settings.data_dir)
    is_awaited = False

    def ready(found: DeskReady) -> None:
        nonlocal is_awaited
        is_awaited = len(found.silent) == len(found.comfyui)
        out.print(f"ComfyRelay {__version__} is up at [bold]{found.url}[/bold]", highlight=False)
        out.print(f"  data     {found.data_dir}", highlight=False)
        started = f"started here, from {found.comfyui_dir}; its log: comfyrelay comfyui logs"
        out.print(f"  ComfyUI  {', '.join(found.comfyui) or started}", highlight=False, soft_wrap=True)
        for line in _about_comfyui(found.silent, found.trying_out):
            out.print(f"           {line}", highlight=False, soft_wrap=True)
        if found.url_elsewhere is not None:
            out.print(f"  phone    {found.url_elsewhere}  in the same network, with the password", highlight=False)
        out.print(f"  page     {found.link}", highlight=False, soft_wrap=True)
        out.print("           the link works once, for ten minutes; `comfyrelay open` makes another", highlight=False)
        if open_ and not open_page(found.link):
            out.print("           no browser could be opened here: follow the link", highlight=False)
        out.print(f"Press Ctrl-C to stop. {_about_stopping(desk.finish_seconds)}", highlight=False)

    def came() -> None:
        nonlocal is_awaited
        if is_awaited:
            out.print("ComfyUI is reachable now: jobs that waited for it run.", highlight=False)
        # when it comes again, it was away
        is_awaited = True

    with WorkerConsole(level="warning", is_for_machines=False) as console:
        made = Desk(
            settings=settings,
            desk=desk,
            script=load_script_table(),
            umask=umask,
            on_ready=ready,
            on_status=console.status,
            on_comfyui=came,
        )
        _run_loop(made.run())
    out.print("Stopped. What waits is kept, and continues with the next `comfyrelay up`.", highlight=False)


@app.command("open", rich_help_panel=DESK)
def open_desk(
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the link.")] = False,
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; no browser is opened.")] = False,
) -> None:
    """Open the page of the desk that runs here: print a link that works once, and follow it in the browser."""
    link = connected(url, lambda client: client.add_link())
    if as_json:
        out.print_json(data=link.model_dump(mode="json"))
        return
    out.print(link.url, highlight=False, soft_wrap=True)
    if no_browser or not open_page(link.url):
        out.print(f"Follow the link within {link.seconds // 60} minutes. It works once.", highlight=False)


@app.command(rich_help_panel=DESK)
def password(
    data_dir: DataDir = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove it; nobody else can open the page then.")] = False,
) -> None:
    """Set the password that opens the page on another machine, such as a phone; it is needed for `up --host`.

    It is asked for twice. Where there is no terminal, it is read as one line.
    """
    require("desk")
    from comfyrelay.desk.password import remove_password, set_password
    from comfyrelay.settings import load_settings

    folder = with_data_dir(load_settings(), data_dir).data_dir
    if remove:
        out.print("Removed." if remove_password(folder) else "There was none.", highlight=False)
        return
    if sys.stdin.isatty():
        text = typer.prompt("Password", hide_input=True, confirmation_prompt="The same again")
    else:
        text = sys.stdin.readline().rstrip("\r\n")
    path = set_password(folder, text)
    out.print(f"Its hash is in {path}", highlight=False, soft_wrap=True)
    out.print("Who signed in with another one is signed out when the desk is started again.", highlight=False)
    out.print("Let other machines in with: comfyrelay up --host 0.0.0.0", highlight=False)


@app.command(rich_help_panel=DESK)
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False) -> None:
    """Check that this machine is ready for `up`; exit code 1 if something is broken."""
    require("desk")
    from comfyrelay.cli.check_results import print_findings
    from comfyrelay.desk.doctor import examine

    if not print_findings(examine(), out, as_json=as_json):
        raise typer.Exit(FOUND)


app.command(rich_help_panel=DESK)(batch_i2v)


@app.command(rich_help_panel=SERVERS)
def server(
    log_level: Annotated[str, typer.Option(help="How much is logged: debug, info, warning or error.")] = "info",
) -> None:
    """Serve a queue for many users and workers, over HTTP, until Ctrl-C.

    Where it listens, its databases and its secrets are settings, such as
    COMFYRELAY_HOST, COMFYRELAY_PORT and COMFYRELAY_DATABASE_URL.

    Run as many as you like over one PostgreSQL. For yourself, `up` is enough.
    """
    require("server")
    with _many_imports():
        from comfyrelay.server.http.secrets import load_secrets
        from comfyrelay.server.main import serve
        from comfyrelay.settings import load_settings
        from comfyrelay.system.permissions import keep_private

    warn_of_unknown(err)
    settings = load_settings()
    keep_private(settings.data_dir)
    secrets = load_secrets(settings)
    err.print(f"ComfyRelay {__version__} serves at {settings.base_url}", highlight=False)
    if secrets.made_at is not None:
        what = "" if settings.fleet_secrets else "; workers register with those"
        err.print(f"  made new secrets in {secrets.made_at}{what}", highlight=False)
    _run_loop(
        serve(settings, secrets, log_level=log_level, on_setup_code=partial(_print_setup_code, settings.base_url))
    )


def _print_setup_code(base_url: str, code: str) -> None:
    err.print(f"  there is no administrator yet: open {base_url}/setup#{code}", highlight=False, soft_wrap=True)
    err.print(f"  or enter the code {code} there; it works once, for a day", highlight=False)


@admin_app.command("create")
def admin_create(
    email: Annotated[str, typer.Option(help="The administrator's email address.")],
    password: Annotated[
        str,
        typer.Option(
            help="The password; asked for when it is not given.", prompt=True, hide_input=True, confirmation_prompt=True
        ),
    ],
) -> None:
    """Make an administrator, and print an API token, once."""

    async def work(engine: Engine) -> str:
        await engine.databases.upgrade()
        user = await engine.accounts.sign_in.register(email=email, password=password, is_admin=True)
        return (await engine.accounts.sign_in.issue(user, name="made with the account")).secret

    out.print(_run(work), highlight=False, soft_wrap=True)


@admin_app.command("setup-code")
def admin_setup_code() -> None:
    """Print another code that makes the first administrator in a browser; exit code 1 if there is one already."""
    from comfyrelay.settings import load_settings

    async def work(engine: Engine) -> str | None:
        await engine.databases.upgrade()
        needs_setup = await engine.accounts.sign_in.needs_setup()
        return await engine.accounts.links.make_setup_code() if needs_setup else None

    code = _run(work)
    if code is None:
        err.print("There is an administrator already: this makes only the first one.", highlight=False)
        raise typer.Exit(FOUND)
    out.print(f"{load_settings().base_url}/setup#{code}", highlight=False, soft_wrap=True)


@admin_app.command("nodes")
def admin_nodes(
    fleet: Annotated[str | None, typer.Option(help="Only the workers of this fleet.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of settings.")] = False,
) -> None:
    """Print an allow list for graphs of tenants, of what the workers have; exit code 1 if no worker has reported it."""

    async def work(engine: Engine) -> AllowList:
        await engine.databases.require_current()
        return await engine.fleet.nodes.allow_list(fleet)

    found = _run(work)
    if as_json:
        out.print_json(json.dumps(asdict(found)))
    else:
        for line in _as_settings(found):
            out.print(line, highlight=False, markup=False, soft_wrap=True)
    if not found.workers:
        err.print("No worker has reported its nodes yet: start one, and try again.", highlight=False)
        raise typer.Exit(FOUND)


@app.command(rich_help_panel=SERVERS)
def reconcile(
    repair: Annotated[bool, typer.Option("--repair", help="Repair what is found.")] = False,
    as_json: Json = False,
) -> None:
    """Compare queue, jobs and ledger; exit code 1 if anything does not agree."""

    async def work(engine: Engine) -> ReconcileReport:
        await engine.databases.require_current()
        return await engine.operations.reconciler.run(repair=repair)

    report = _run(work)
    if as_json:
        out.print_json(json.dumps(_as_json(report)))
    else:
        _print_report(report, repaired=repair)
    if not report.is_clean:
        raise typer.Exit(FOUND)


@app.command(rich_help_panel=SERVERS)
def simulator(
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", callback=_port_or_0)] = 8188,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    folder: Annotated[
        Path | None, typer.Option(help="Where input, output and temp files go; else a temporary folder.")
    ] = None,
    checkpoint: Annotated[
        list[str] | None, typer.Option(help="The name of a checkpoint that it claims to have. Repeat for more.")
    ] = None,
    slow: Annotated[
        list[str] | None, typer.Option(help="CLASS=SECONDS: nodes of this class take this long. Repeat for more.")
    ] = None,
    preview_method: Annotated[
        Literal["none", "auto", "latent2rgb", "taesd"],
        typer.Option(help="How it makes previews where a prompt does not say."),
    ] = "none",
    step_seconds: Annotated[float, typer.Option(help="How long each step of a sampler takes.", min=0)] = 0.0,
    misbehave: Annotated[
        list[str] | None,
        typer.Option(help='JSON, such as {"name": "OutOfMemory", "class_type": "ImageScale"}. Repeat for more.'),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help='A GPU to share with other simulators, as JSON, such as {"folder": "/tmp/gpu"}.'),
    ] = None,
    cloud: Annotated[bool, typer.Option("--cloud", help="Serve Comfy Cloud's routes instead of ComfyUI's.")] = False,
    api_key: Annotated[str, typer.Option(help="The key that Comfy Cloud's routes ask for.")] = "simulator-key",
) -> None:
    """Run a simulator for ComfyUI, which needs no GPU and no models, until Ctrl-C."""
    require("simulator")
    from comfyrelay.simulator import Simulator, read_gpu, read_misbehaviour, serve, slow_from_text

    def ready(server: Simulator) -> None:
        what = "Comfy Cloud" if cloud else "ComfyUI"
        out.print(f"A simulator for {what} listens at {server.url}", highlight=False)
        out.print(f"  files  {server.folder}", highlight=False)
        if cloud:
            out.print(f"  key    {api_key}", highlight=False)
        out.print("Press Ctrl-C to stop.", highlight=False)

    serving = serve(
        host=host,
        port=port,
        folder=folder,
        checkpoints=checkpoint or ("simulator.safetensors", "broken.safetensors"),
        preview_method=preview_method,
        step_seconds=step_seconds,
        gpu=read_gpu(_json_object(gpu)) if gpu is not None else None,
        cloud=cloud,
        api_key=api_key,
        misbehaviour=[
            *(slow_from_text(each) for each in slow or ()),
            *(read_misbehaviour(_json_object(each)) for each in misbehave or ()),
        ],
        on_ready=ready,
    )
    try:
        asyncio.run(serving)
    except OSError as error:
        if error.errno not in (EADDRINUSE, EADDRNOTAVAIL, EACCES):
            raise
        raise ConfigurationError(f"Cannot listen at {host}:{port}. Is it taken? Choose another with --port.") from None


@db_app.command("upgrade")
def db_upgrade() -> None:
    """Bring the central database and every shard to the newest schema."""
    for name, (before, after) in _run(lambda engine: engine.databases.upgrade()).items():
        change = "up to date" if before == after else f"{before or 'empty'} → {after}"
        out.print(f"{name}: {change}", highlight=False)


@db_app.command("status")
def db_status(as_json: Json = False) -> None:
    """Show which schema each database has; exit code 1 if one is not the newest."""
    found = _run(lambda engine: engine.databases.revisions())
    behind = [name for name, (has, newest) in found.items() if has != newest]
    if as_json:
        rows = {name: {"revision": has, "newest": newest} for name, (has, newest) in found.items()}
        out.print_json(json.dumps(rows))
    else:
        table = Table("database", "revision", "newest", "state")
        for name, (has, newest) in found.items():
            state = "up to date" if has == newest else "run: comfyrelay db upgrade"
            table.add_row(name, has or "empty", newest, state)
        out.print(table)
    if behind:
        raise typer.Exit(FOUND)


@app.command(rich_help_panel=SERVERS)
def version() -> None:
    """Print the version."""
    out.print(__version__, highlight=False)


def _with_comfyui(
    desk: DeskSettings, *, urls: list[str] | None, folder: Path | None, per_gpu: str | None
) -> DeskSettings:
    """With what the command line says of ComfyUI, which stands for all that is set elsewhere."""
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


def _about_stopping(finish_seconds: float) -> str:
    return f"What runs then has {finish_seconds:g} s to end, or waits again; what waits is kept."


def _about_comfyui(silent: Sequence[str], trying_out: str) -> Iterator[str]:
    if trying_out == "everything":
        yield "you are trying things out: what you add runs on the built-in simulator, without models"
    for each in silent:
        yield f"{each} does not answer yet: jobs wait for it, and run once it is there"
    if silent and trying_out == "examples":
        yield "until then the examples run on the built-in simulator; `up --simulator` tries out everything there"
        yield "is ComfyUI elsewhere? name it with --comfyui-url"


def _check_addresses(addresses: Sequence[str]) -> None:
    """What cannot be an address would be waited for without end."""
    for each in addresses:
        try:
            host = urlsplit(each if "://" in each else f"http://{each}").hostname or ""
        except ValueError:
            host = ""
        if not re.fullmatch(r"[\w.:-]+", host):
            # not repeated, for it may hold a password
            raise ConfigurationError("--comfyui-url is not an address. Write it like http://127.0.0.1:8188.")


@contextmanager
def _many_imports() -> Iterator[None]:
    """What is imported stays. To look through it for garbage, again and again while it grows, takes a sixth of the time
    that the imports take."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _run(work: Callable[[Engine], Awaitable[T]]) -> T:
    require("server")
    from comfyrelay.services.engine import Engine
    from comfyrelay.settings import load_settings

    async def run() -> T:
        async with Engine(load_settings()) as engine:
            return await work(engine)

    return asyncio.run(run())


def _run_loop(work: Coroutine[Any, Any, None]) -> None:
    """On uvloop where it is installed: it comes with the server, but not on Windows."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def _json_object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(f"Write a JSON object, not {text!r}.")
    return value


def _as_settings(found: AllowList) -> Iterator[str]:
    """As lines of comfyrelay.toml."""
    yield f"# {len(found.allowed)} classes of nodes, of {found.workers} workers. Remove what tenants do not need."
    for name, why in found.left_out.items():
        yield f"# left out: {name}: {why}"
    yield 'graph_policy = "allow"'
    yield "graph_allowed_nodes = ["
    # a text of JSON is one of TOML, too
    yield from (f"    {json.dumps(name)}," for name in found.allowed)
    yield "]"


def _as_json(report: ReconcileReport) -> dict[str, object]:
    return {
        "clean": report.is_clean,
        "jobs": report.jobs,
        "findings": [asdict(each) for each in report.findings],
        "repaired": len(report.repaired),
        "shards_down": report.shards_down,
    }


def _print_report(report: ReconcileReport, *, repaired: bool) -> None:
    for shard in report.shards_down:
        err.print(f"The shard {shard!r} cannot be reached; its jobs were not checked.", highlight=False)
    if report.findings:
        table = Table("kind", "shard", "tenant", "job", "what")
        for each in report.findings:
            table.add_row(each.kind, each.shard, each.tenant_id or "", each.job_id or "", each.text)
        out.print(table)
        count = len(report.repaired)
        advice = f"{count} repaired." if repaired else "Repair them with: comfyrelay reconcile --repair"
        out.print(f"{len(report.findings)} disagreements. {advice}", highlight=False)
    elif not report.shards_down:
        out.print(f"Queue, jobs and ledger agree ({report.jobs} jobs).", highlight=False)
