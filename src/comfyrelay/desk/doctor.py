"""`comfyrelay doctor`: check whether a desk can run on this machine, without changing or starting anything."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

from comfyrelay.client import Client
from comfyrelay.configuration import config_path, settings_file, unread_file_warning
from comfyrelay.desk.addresses import public_hosts
from comfyrelay.desk.checks import (
    about_comfyuis,
    about_folder,
    about_notifications,
    about_python,
    about_script,
    broken,
    fine,
    warning,
)
from comfyrelay.desk.password import require_password
from comfyrelay.desk.running_desks import find_desk
from comfyrelay.desk.scripts.config import load_script_table
from comfyrelay.desk.settings import load_desk_settings
from comfyrelay.domain.records.operations import SchemaState
from comfyrelay.errors import ComfyRelayError, ConfigurationError, ControlPlaneUnreachable, NotFound, Unauthorized
from comfyrelay.http_client import listen, without_login
from comfyrelay.protocol.desk import CheckResult, SimulatedJobs
from comfyrelay.services.databases import Databases
from comfyrelay.settings import Settings, load_settings
from comfyrelay.system.folder_lock import FolderLock
from comfyrelay.worker.check import check_managed_comfyui

ANSWER_SECONDS = 5.0
OTHER_PORT = "For `comfyrelay up`, set COMFYRELAY_PORT to another port."


async def examine() -> AsyncIterator[CheckResult]:
    yield about_python()
    try:
        settings, desk, script = load_settings(), load_desk_settings(), load_script_table()
        path = config_path()
    except ConfigurationError as error:
        yield broken("configuration", error.detail)
        return
    source = f"It is read from {path.absolute()}." if path else f"There is no {settings_file()}: defaults are used."
    count = sum(name.startswith("COMFYRELAY_") for name in os.environ)
    given = f" The environment has {count} setting{'' if count == 1 else 's'}." if count else ""
    yield fine("configuration", f"{source}{given}")
    if (unread := unread_file_warning()) is not None:
        yield warning("configuration", unread)
    hosts = public_hosts(settings, desk.allowed_hosts)
    try:
        settings = _with_running_desk(settings)
    except ConfigurationError as error:
        yield warning("desks", error.detail)
    if hosts:
        yield _about_password(settings.data_dir, hosts)
    holder = FolderLock(settings.data_dir).holder()
    for finding in about_folder(settings.data_dir, holder):
        yield finding
    async for finding in _about_databases(settings):
        yield finding
    finding, in_use = await _about_port(settings, holder)
    yield finding
    if in_use:
        # The URLs may come from the desk's command line, which no setting shows. The desk hides logins.
        configured = {without_login(url): url for url in desk.comfyui_url}
        desk = desk.model_copy(update={"comfyui_url": [configured.get(url, url) for url in in_use]})
    if desk.managed is not None:
        yield await check_managed_comfyui(desk.managed)
    urls = desk.comfyui_url if desk.managed is None or in_use else []
    async for finding in about_comfyuis(settings, desk, urls):
        yield finding
    if script is not None:
        yield about_script(script, settings.data_dir)
    async for finding in about_notifications(desk):
        yield finding


def _with_running_desk(settings: Settings) -> Settings:
    """Return the settings with the port and folder of the running desk, which its command line may have set."""
    found = find_desk(settings, choose_with="COMFYRELAY_PORT or COMFYRELAY_DATA_DIR")
    if found is None:
        return settings
    parts = urlsplit(found.url)
    return settings.model_copy(update={"data_dir": found.data_dir, "host": parts.hostname, "port": parts.port})


def _about_password(data_dir: Path, hosts: list[str]) -> CheckResult:
    try:
        require_password(data_dir, host=", ".join(hosts))
    except ConfigurationError as error:
        return broken("password", error.detail)
    return fine("password", "Other machines can reach the desk, and need the password for the page.")


async def _about_databases(settings: Settings) -> AsyncIterator[CheckResult]:
    urls = {"central": settings.central_url, **settings.shard_urls}
    missing = [name for name, url in urls.items() if not _may_exist(url)]
    if missing:
        # Opening a database would create it.
        yield fine("databases", f"Not created yet: {', '.join(missing)}. The first start creates them.")
        return
    try:
        databases = Databases.from_settings(settings)
    except ComfyRelayError as error:
        yield broken("databases", error.detail)
        return
    try:
        for name, state in (await databases.states()).items():
            yield _about_schema(f"database {name}", state)
    except ComfyRelayError as error:
        yield broken("databases", error.detail)
    except Exception as error:
        # Report any error, such as a file that is not a database, and continue.
        yield broken("databases", f"The databases cannot be read: {str(error).splitlines()[0]}.")
    finally:
        await databases.close()


def _about_schema(about: str, state: SchemaState) -> CheckResult:
    if state.problem is not None:
        return broken(about, state.problem)
    if state.is_current:
        return fine(about, f"It is reachable, and its schema is up to date ({state.newest}).")
    old = state.revision or "empty"
    return warning(about, f"Its schema is {old}, not {state.newest}. `comfyrelay up` or `db upgrade` updates it.")


def _may_exist(url: str) -> bool:
    scheme, _, path = url.partition(":///")
    return not scheme.startswith("sqlite") or Path(path).is_file()


async def _about_port(settings: Settings, holder: str | None) -> tuple[CheckResult, list[str]]:
    """Check which program listens on the port. Returns the ComfyUI URLs of a desk, unless it simulates all jobs."""
    about = f"desk {settings.base_url}"
    try:
        async with Client(settings.base_url) as client, asyncio.timeout(ANSWER_SECONDS):
            found = await client.desk()
    except NotFound:
        return warning(about, f"A ComfyRelay server, not a desk, uses this port. {OTHER_PORT}"), []
    except Unauthorized:
        return warning(about, f"A server or the desk of another user uses this port. {OTHER_PORT}"), []
    except ControlPlaneUnreachable:
        return _about_silence(about, settings, holder), []
    except (ComfyRelayError, TimeoutError):
        return broken(about, f"Another program uses this port. {OTHER_PORT}"), []
    is_all_simulated = found.simulated_jobs == SimulatedJobs.EVERYTHING
    in_use = [] if is_all_simulated else list(found.comfyui)
    runs = "the built-in simulator" if is_all_simulated else f"ComfyUI at {', '.join(in_use)}"
    return fine(about, f"A desk is running there, version {found.version}, with {runs}."), in_use


def _about_silence(about: str, settings: Settings, holder: str | None) -> CheckResult:
    try:
        listen(settings.host, settings.port).close()
    except (ConfigurationError, socket.gaierror) as error:
        return broken(about, str(error))
    if holder is not None:
        return warning(about, f"Process {holder} uses the data folder, but does not answer at this address.")
    return fine(about, "No desk is running, and the port is free: `comfyrelay up` starts one.")
