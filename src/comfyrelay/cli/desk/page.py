"""`comfyrelay open`, `password` and `doctor`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comfyrelay.cli.desk.browser import open_page
from comfyrelay.cli.jobs.connection import Url, connected
from comfyrelay.cli.options import Json
from comfyrelay.cli.output import print_check_results, print_json, print_line, print_note
from comfyrelay.cli.target import DataDir, load_settings_of
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.protocol.desk import CheckResult

BROKEN = 1


def open_desk(
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the link.")] = False,
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and open no browser.")] = False,
) -> None:
    """Open the page of the desk running on this machine in the browser.

    The command also prints the link, which works once.
    """
    link = connected(url, lambda client: client.add_link())
    if as_json:
        print_json(link)
        return
    print_line(link.url)
    if no_browser or not open_page(link.url):
        print_line(f"Follow the link within {link.seconds // 60} minutes. It works once.")


def password(
    data_dir: DataDir = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the password. Then only this machine can open the page.")
    ] = False,
) -> None:
    """Set the password that opens the page on another machine, such as a phone. `up --host` requires one.

    The command asks for the password twice. Without a terminal, it reads one line from standard input.
    """
    require("desk")
    from comfyrelay.desk.password import has_password, remove_password, set_password

    folder = load_settings_of(data_dir).data_dir
    if remove:
        print_line("Removed." if remove_password(folder) else "There was no password.")
        return
    if sys.stdin.isatty():
        text = typer.prompt("Password", hide_input=True, confirmation_prompt="Repeat the password")
    else:
        text = sys.stdin.readline().rstrip("\r\n")
    had_password = has_password(folder)
    path = set_password(folder, text)
    print_line(f"The hash of the password is in {path}")
    if had_password:
        print_line("Sessions with the previous password have ended.")
    print_line("Let other machines connect with: comfyrelay up --host 0.0.0.0")


def doctor(
    as_json: Json = False,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", metavar="ZIP", help="Also write a support bundle for a bug report, without secrets."),
    ] = None,
    with_texts: Annotated[
        bool,
        typer.Option(
            "--with-texts",
            help="Add errors of jobs and lines of ComfyUI to the bundle. They may repeat prompts and file names.",
        ),
    ] = False,
) -> None:
    """Check that this machine is ready for `up`.

    The exit code is 1 if something is broken.
    """
    require("desk")
    from comfyrelay.desk.doctor import examine

    results: list[CheckResult] = []
    is_ready = print_check_results(examine(), as_json=as_json, into=results)
    if bundle is not None:
        from comfyrelay.desk.support_bundle import write_bundle

        asyncio.run(write_bundle(bundle, results, with_texts=with_texts))
        print_note(f"Read {bundle} before you send it: it names this machine, its folders and its workers.")
    if not is_ready:
        raise typer.Exit(BROKEN)
