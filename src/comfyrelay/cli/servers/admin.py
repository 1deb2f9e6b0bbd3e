"""`comfyrelay admin` and `comfyrelay db`: commands that use the databases directly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from comfyrelay.cli.options import Json
from comfyrelay.cli.output import out, print_json, print_line, print_note
from comfyrelay.cli.recorded import recorded
from comfyrelay.cli.running import run_with_engine
from comfyrelay.cli.servers.upgrade import upgrade

if TYPE_CHECKING:
    from comfyrelay.domain.records.operations import SchemaState
    from comfyrelay.services.engine import Engine
    from comfyrelay.services.workers.node_allow_list import AllowList

db_app = typer.Typer(no_args_is_help=True, help="Check and upgrade the schemas of the databases.")
admin_app = typer.Typer(
    no_args_is_help=True, help="Create administrators of a server, permit own workflows, and list the workers' nodes."
)
NOT_READY = 1


@admin_app.command("create")
def create_admin(
    email: Annotated[str, typer.Option(help="Email address of the administrator.")],
    password: Annotated[
        str,
        typer.Option(
            help="Password. The command asks for it if it is not given.",
            prompt=True,
            hide_input=True,
            confirmation_prompt=True,
        ),
    ],
) -> None:
    """Create an administrator, and print an API token. The token is not shown again."""

    async def work(engine: Engine) -> str:
        await engine.databases.upgrade()
        async with recorded(engine, "admin create", "users") as change:
            user = await engine.accounts.sign_in.register(email=email, password=password, is_admin=True)
            change.created = {"user_id": user.id}
        return (await engine.accounts.sign_in.issue(user, name="made with the account")).secret

    print_line(run_with_engine(work))


@admin_app.command("invite")
def invite_user(
    email: Annotated[str, typer.Argument(help="Email address of the user.")],
    name: Annotated[str | None, typer.Option(help="Name of the user. Default: the address.")] = None,
    is_admin: Annotated[bool, typer.Option("--admin", help="Make the user an administrator.")] = False,
) -> None:
    """Create an account, and print the link that sets its password.

    If the server sends mail, the user also gets a link by mail. For an existing account, the command creates a new
    link.
    """

    async def work(engine: Engine) -> str:
        await engine.databases.upgrade()
        links = engine.accounts.links
        if (user := await engine.accounts.tenancy.find_user(email)) is not None:
            async with recorded(engine, "admin invite", "users", user_id=user.id):
                _, link = await links.create_reset_link(user.id, by=None)
        else:
            async with recorded(engine, "admin invite", "users") as change:
                user, link = await links.invite(email=email, name=name, is_admin=is_admin)
                change.created = {"user_id": user.id}
        return links.password_url(link.secret)

    print_line(run_with_engine(work))


@admin_app.command("delete")
def delete_user(
    email: Annotated[str, typer.Argument(help="Email address of the account.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete an account with all its data.

    The server erases files, jobs and workflows in the background.
    """
    from comfyrelay.errors import NotFound

    if not yes:
        typer.confirm(f"Delete the account {email} with all its files, jobs and workflows?", abort=True)

    async def work(engine: Engine) -> None:
        await engine.databases.upgrade()
        user = await engine.accounts.tenancy.find_user(email)
        if user is None:
            raise NotFound(f"There is no user {email!r}.")
        async with recorded(engine, "admin delete", "users", user_id=user.id):
            await engine.accounts.own_account.delete_by_admin(user.id)

    run_with_engine(work)
    print_line(f"Deleted the account {email}. A running server erases its data.")


@admin_app.command("setup-code")
def create_setup_code() -> None:
    """Print the link that creates the first administrator in a browser.

    The exit code is 1 if an administrator exists.
    """
    from comfyrelay.settings import load_settings

    async def work(engine: Engine) -> str | None:
        await engine.databases.upgrade()
        if not await engine.accounts.sign_in.needs_setup():
            return None
        async with recorded(engine, "admin setup-code", "setup-code"):
            return await engine.accounts.links.create_setup_code()

    code = run_with_engine(work)
    if code is None:
        print_note("There already is an administrator. Create others in the web app, or with: comfyrelay admin create")
        raise typer.Exit(NOT_READY)
    print_line(f"{load_settings().base_url}/setup#{code}")


@admin_app.command("own-workflows")
def permit_own_workflows(
    email: Annotated[str, typer.Argument(help="Email address of the user.")],
    allow: Annotated[bool, typer.Option("--allow/--forbid", help="Grant or withdraw the permission.")],
) -> None:
    """Allow a user to add and run their own workflows. Other users can only run effects.

    A running server notices the change within 5 seconds. The exit code is 1 if there is no such user.
    """

    async def work(engine: Engine) -> bool:
        await engine.databases.require_current()
        user = await engine.accounts.tenancy.find_user(email)
        if user is not None:
            async with recorded(engine, "admin own-workflows", "tenants", tenant_id=user.tenant_id):
                await engine.accounts.tenancy.set_limits(user.tenant_id, {"may_add_workflows": allow})
        return user is not None

    if not run_with_engine(work):
        print_note(f"There is no user {email}.")
        raise typer.Exit(NOT_READY)
    print_line(f"{email} may {'add workflows' if allow else 'run effects only'}.")


@admin_app.command("nodes")
def print_allow_list(
    fleet: Annotated[str | None, typer.Option(help="Only workers of this fleet.")] = None,
    as_json: Json = False,
) -> None:
    """Print the workers' nodes as an allow list for tenants' graphs, for comfyrelay.toml.

    The exit code is 1 if no worker has reported its nodes yet.
    """

    async def work(engine: Engine) -> AllowList:
        await engine.databases.require_current()
        return await engine.workers.nodes.allow_list(fleet)

    found = run_with_engine(work)
    if as_json:
        print_json(asdict(found))
    else:
        for line in _as_toml(found):
            print_line(line)
    if not found.workers:
        print_note("No worker has reported its nodes yet. Start one, and try again.")
        raise typer.Exit(NOT_READY)


db_app.command("upgrade")(upgrade)


@db_app.command("status")
def print_database_status(as_json: Json = False) -> None:
    """Compare the schema of each database with the schema of this version.

    The exit code is 1 if a schema differs or is not the newest.
    """
    found = run_with_engine(lambda engine: engine.databases.states())
    if as_json:
        print_json({name: asdict(state) for name, state in found.items()})
    else:
        table = Table("database", "revision", "newest", "state")
        for name, state in found.items():
            table.add_row(name, state.revision or "empty", state.newest, _state_text(state))
        out.print(table)
        for name, state in found.items():
            if state.problem is not None:
                print_note(state.problem)
            elif state.additions:
                print_note(f"The schema of {name} has additions, which do no harm: {'; '.join(state.additions)}.")
    if not all(state.is_current for state in found.values()):
        raise typer.Exit(NOT_READY)


def _state_text(state: SchemaState) -> str:
    if state.problem is not None:
        return "of another version"
    return "up to date" if state.is_current else "run: comfyrelay db upgrade"


def _as_toml(found: AllowList) -> Iterator[str]:
    """Yield lines for comfyrelay.toml."""
    yield f"# {len(found.allowed)} node classes of {found.workers} workers. Remove classes that tenants do not need."
    for name, why in found.left_out.items():
        yield f"# left out: {name}: {why}"
    yield 'graph_policy = "allow"'
    yield "graph_allowed_nodes = ["
    # A JSON string is also a TOML string.
    yield from (f"    {json.dumps(name)}," for name in found.allowed)
    yield "]"
