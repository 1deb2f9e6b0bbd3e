"""`comfyrelay open`, `password` and `doctor`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from comfyrelay.cli.browser import open_page
from comfyrelay.cli.connection import Url, connected
from comfyrelay.cli.target import DataDir, with_data_dir
from comfyrelay.extras import require

out = Console()

BROKEN = 1


def open_desk(
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the link.")] = False,
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; no browser is opened.")] = False,
) -> None:
    """Open the page of the desk that runs here: print a link that works once, and open it in the browser."""
    link = connected(url, lambda client: client.add_link())
    if as_json:
        out.print_json(data=link.model_dump(mode="json"))
        return
    out.print(link.url, highlight=False, soft_wrap=True)
    if no_browser or not open_page(link.url):
        out.print(f"Follow the link within {link.seconds // 60} minutes. It works once.", highlight=False)


def password(
    data_dir: DataDir = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove it; then only this machine can open the page.")
    ] = False,
) -> None:
    """Set the password that opens the page on another machine, such as a phone. `up --host` requires it.

    The command asks for it twice. Without a terminal, it reads one line.
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
    out.print("Sessions with an older password end when the desk is restarted.", highlight=False)
    out.print("Let other machines in with: comfyrelay up --host 0.0.0.0", highlight=False)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False) -> None:
    """Check that this machine is ready for `up`; exit code 1 if something is broken."""
    require("desk")
    from comfyrelay.cli.check_results import print_results
    from comfyrelay.desk.doctor import examine

    if not print_results(examine(), out, as_json=as_json):
        raise typer.Exit(BROKEN)
