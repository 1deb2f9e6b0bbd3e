"""Create the desk's web app: the routes of the server and of the desk, for the owner only."""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from secrets import token_urlsafe

from comfyrelay.desk.addresses import LOOPBACK, public_hosts
from comfyrelay.desk.origin_check import LocalOnly, own_names
from comfyrelay.desk.owner_auth import OwnerOnly
from comfyrelay.desk.page_settings.live import LiveSettings
from comfyrelay.desk.password import Sessions, require_password
from comfyrelay.desk.routes import ROUTERS
from comfyrelay.desk.startup.simulator import SIMULATOR
from comfyrelay.desk.startup.workers import WORKER, DeskWorkers
from comfyrelay.desk.state import DeskState
from comfyrelay.domain.records.accounts import User
from comfyrelay.http_client import is_loopback
from comfyrelay.server.app import create_app
from comfyrelay.server.http.context import SESSION_COOKIE, Context, Owner
from comfyrelay.server.http.secrets import Secrets
from comfyrelay.server.lazy_routers import LazyApp
from comfyrelay.server.main import serving
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.system.owner_secret import load_secret


def create_desk_app(engine: Engine, secrets: Secrets, owner: Owner, state: DeskState) -> LazyApp:
    def find_names() -> set[str]:
        return own_names(engine.settings, state.live.desk.allowed_hosts)

    app = create_app(engine, secrets, owner=owner)
    app.state.desk = state
    app.include_routers(ROUTERS)
    app.add_middleware(OwnerOnly, context=app.state.context, has_password=lambda: state.password is not None)
    # This middleware is added last, so it runs first.
    app.add_middleware(LocalOnly, find_names=find_names, allows_addresses=not is_loopback(engine.settings.host))
    return app


@asynccontextmanager
async def serving_comfyui(context: Context, live: LiveSettings, *listeners: socket.socket) -> AsyncIterator[None]:
    """Serve ComfyUI's API and its editor inside the block, if they have listeners."""
    if not listeners:
        yield
        return
    # Imported here, because most desks do not need it.
    from comfyrelay.server.comfyui_api.app import create_comfyui_app

    port = listeners[0].getsockname()[1]
    app = create_comfyui_app(context)
    app.add_middleware(
        LocalOnly,
        find_names=lambda: own_names(live.settings, live.desk.allowed_hosts, port=port),
        allows_addresses=not is_loopback(live.settings.host),
    )
    async with serving(app, *listeners):
        yield


def create_owner(engine: Engine, user: User, workers: DeskWorkers, *, pass_secret: str) -> Owner:
    settings = engine.settings
    sessions = Sessions(engine.accounts.sign_in, settings.data_dir)
    return Owner(
        user=user,
        secret=load_secret(settings.data_dir),
        pass_secret=pass_secret,
        session_cookie=f"{SESSION_COOKIE}_{settings.port}",
        worker_ids=(WORKER, SIMULATOR),
        worker_secret=token_urlsafe(32),
        about_run=workers.run_report,
        session_of=sessions.name_of,
        is_of_owner=sessions.is_of_owner,
    )


def check_password(settings: Settings, allowed_hosts: Sequence[str]) -> None:
    """Require a password if other machines can reach the desk directly or through a proxy."""
    if hosts := public_hosts(settings, allowed_hosts):
        require_password(settings.data_dir, host=", ".join(hosts))


def loopback_address(listener: socket.socket) -> tuple[str, int]:
    host, port = listener.getsockname()[:2]
    return (host if is_loopback(host) else LOOPBACK), port
