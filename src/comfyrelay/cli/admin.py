"""`comfyrelay admin` and `comfyrelay db`: commands that use the databases directly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from comfyrelay.cli.running import run_with_engine

if TYPE_CHECKING:
    from comfyrelay.services.engine import Engine
    from comfyrelay.services.workers.node_allow_list import AllowList

db_app = typer.Typer(no_args_is_help=True, help="The databases: check and upgrade their schemas.")
admin_app = typer.Typer(
    no_args_is_help=True, help="For operators of a server: administrators, and the nodes that tenants may use."
)
out = Console()
err = Console(stderr=True)

FOUND = 1


@admin_app.command("create")
def create_admin(
    email: Annotated[str, typer.Option(help="The administrator's email address.")],
    password: Annotated[
        str,
        typer.Option(
            help="The password. The command asks for it if it is not given.",
            prompt=True,
            hide_input=True,
            confirmation_prompt=True,
        ),
    ],
) -> None:
    """Create an administrator and print an API token, once."""

    async def work(engine: Engine) -> str:
        await engine.databases.upgrade()
        user = await engine.accounts.sign_in.register(email=email, password=password, is_admin=True)
        return (await engine.accounts.sign_in.issue(user, name="made with the account")).secret

    out.print(run_with_engine(work), highlight=False, soft_wrap=True)


@admin_app.command("setup-code")
def create_setup_code() -> None:
    """Print a new code to create the first administrator in a browser; exit code 1 if an administrator exists."""
    from comfyrelay.settings import load_settings

    async def work(engine: Engine) -> str | None:
        await engine.databases.upgrade()
        needs_setup = await engine.accounts.sign_in.needs_setup()
        return await engine.accounts.links.create_setup_code() if needs_setup else None

    code = run_with_engine(work)
    if code is None:
        err.print("There is an administrator already: this makes only the first one.", highlight=False)
        raise typer.Exit(FOUND)
    out.print(f"{load_settings().base_url}/setup#{code}", highlight=False, soft_wrap=True)


@admin_app.command("nodes")
def print_allow_list(
    fleet: Annotated[str | None, typer.Option(help="Only the workers of this fleet.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of settings.")] = False,
) -> None:
    """Print an allow list for tenants' graphs with the workers' nodes; exit code 1 if no worker has reported any."""

    async def work(engine: Engine) -> AllowList:
        await engine.databases.require_current()
        return await engine.workers.nodes.allow_list(fleet)

    found = run_with_engine(work)
    if as_json:
        out.print_json(json.dumps(asdict(found)))
    else:
        for line in _as_toml(found):
            out.print(line, highlight=False, markup=False, soft_wrap=True)
    if not found.workers:
        err.print("No worker has reported its nodes yet: start one, and try again.", highlight=False)
        raise typer.Exit(FOUND)


@db_app.command("upgrade")
def upgrade_databases() -> None:
    """Bring the central database and every shard to the newest schema."""
    for name, (before, after) in run_with_engine(lambda engine: engine.databases.upgrade()).items():
        change = "up to date" if before == after else f"{before or 'empty'} → {after}"
        out.print(f"{name}: {change}", highlight=False)


@db_app.command("status")
def print_database_status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the schema of each database; exit code 1 if one is not the newest."""
    found = run_with_engine(lambda engine: engine.databases.revisions())
    if as_json:
        rows = {name: {"revision": has, "newest": newest} for name, (has, newest) in found.items()}
        out.print_json(json.dumps(rows))
    else:
        table = Table("database", "revision", "newest", "state")
        for name, (has, newest) in found.items():
            state = "up to date" if has == newest else "run: comfyrelay db upgrade"
            table.add_row(name, has or "empty", newest, state)
        out.print(table)
    if any(has != newest for has, newest in found.values()):
        raise typer.Exit(FOUND)


def _as_toml(found: AllowList) -> Iterator[str]:
    """Lines for comfyrelay.toml."""
    yield f"# {len(found.allowed)} classes of nodes, of {found.workers} workers. Remove what tenants do not need."
    for name, why in found.left_out.items():
        yield f"# left out: {name}: {why}"
    yield 'graph_policy = "allow"'
    yield "graph_allowed_nodes = ["
    # a JSON string is also a TOML string
    yield from (f"    {json.dumps(name)}," for name in found.allowed)
    yield "]"
