"""Says in words what is right and wrong on this machine for a desk. Nothing is changed, and nothing is started."""

import asyncio
import os
import platform
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from comfyrelay import __version__
from comfyrelay.client import Client
from comfyrelay.comfy.client import ComfyClient
from comfyrelay.desk.data_folder import check_filesystem, try_sqlite
from comfyrelay.desk.notifications.notifier import why_unusable, without_secrets
from comfyrelay.desk.password import require_password
from comfyrelay.desk.running import desk_meant
from comfyrelay.desk.scripts.config import load_script_table, script_settings
from comfyrelay.desk.settings import ENV_PREFIX as DESK_PREFIX
from comfyrelay.desk.settings import DeskSettings, load_desk_settings
from comfyrelay.errors import ComfyRelayError, ConfigurationError, ControlPlaneUnreachable, NotFound, Unauthorized
from comfyrelay.lock import FolderLock
from comfyrelay.net import is_loopback
from comfyrelay.portable.disks import free_bytes
from comfyrelay.portable.system import describe
from comfyrelay.protocol.desk import TryingOut
from comfyrelay.server.main import listen
from comfyrelay.services.databases import Databases
from comfyrelay.settings import Settings, config_path, load_settings
from comfyrelay.worker.check import Finding, Verdict, about_comfyui

GIB = 1024**3
# Outputs of videos are large; below the first nothing can be expected to work.
LEAST_SPACE = GIB // 10
LITTLE_SPACE = 5 * GIB
ANSWER_SECONDS = 5.0


async def examine() -> AsyncIterator[Finding]:
    yield _about_python()
    try:
        settings, desk, script = load_settings(), load_desk_settings(), load_script_table()
        path = config_path()
    except ConfigurationError as error:
        yield _broken("configuration", error.detail)
        return
    where = f"It is read from {path.absolute()}." if path else "There is no comfyrelay.toml here: defaults are used."
    named = sum(name.startswith("COMFYRELAY_") for name in os.environ)
    yield _fine("configuration", f"{where} The environment has {named} settings." if named else where)
    others = [*desk.allowed_hosts, *([] if is_loopback(settings.host) else [settings.host])]
    try:
        settings = _of_running_desk(settings)
    except ConfigurationError as error:
        yield _lacking("desks", error.detail)
    if others:
        yield _about_password(settings.data_dir, others)
    holder = FolderLock(settings.data_dir).holder()
    for finding in _about_folder(settings.data_dir, holder):
        yield finding
    async for finding in _about_databases(settings):
        yield finding
    finding, in_use = await _about_port(settings, holder)
    yield finding
    if in_use:
        # named on its command line, maybe, where no setting tells of it
        desk = desk.model_copy(update={"comfyui_url": in_use})
    for url in desk.comfyui_url:
        yield await _about_comfyui(url, desk)
    if script is not None:
        yield _about_script(script, settings.data_dir)
    async for finding in _about_notifications(desk):
        yield finding


def _of_running_desk(settings: Settings) -> Settings:
    """The one that runs may have been given another port and folder on its command line."""
    found = desk_meant(settings, choose_with="COMFYRELAY_PORT or COMFYRELAY_DATA_DIR")
    if found is None:
        return settings
    parts = urlsplit(found.url)
    here = {"data_dir": found.data_dir, "host": parts.hostname, "port": parts.port}
    return settings.model_copy(update=here)


def _about_password(data_dir: Path, names: list[str]) -> Finding:
    try:
        require_password(data_dir, host=", ".join(names))
    except ConfigurationError as error:
        return _broken("password", error.detail)
    return _fine("password", "Other machines can reach the desk, and the page asks them for the password.")


def _about_python() -> Finding:
    version = platform.python_version()
    return _fine("python", f"ComfyRelay {__version__} on Python {version}, {describe()}, {sys.executable}.")


def _about_folder(folder: Path, holder: str | None) -> Iterator[Finding]:
    about = "data folder"
    place = _nearest(folder)
    try:
        check_filesystem(folder)
        if place != folder:
            yield _fine(about, f"{folder} is not there yet; the first start makes it.")
        elif not os.access(folder, os.W_OK | os.X_OK):
            yield _broken(about, f"{folder} cannot be written. Choose another with --data-dir or COMFYRELAY_DATA_DIR.")
        elif holder is not None:
            yield _fine(about, f"{folder} is in use by process {holder}.")
        else:
            try_sqlite(folder)
            yield _fine(about, f"{folder} can be used, and nobody uses it now.")
    except ConfigurationError as error:
        yield _broken(about, error.detail)
    free = free_bytes(place)
    text = f"{free / GIB:.1f} GiB are free on the disk of {folder}."
    if free < LEAST_SPACE:
        yield _broken("disk", f"{text} Make room: the queue itself cannot be kept.")
    elif free < LITTLE_SPACE:
        yield _lacking("disk", f"{text} Outputs may not fit.")
    else:
        yield _fine("disk", text)


async def _about_databases(settings: Settings) -> AsyncIterator[Finding]:
    urls = {"central": settings.central_url, **settings.pool_urls}
    missing = [name for name, url in urls.items() if not _may_exist(url)]
    if missing:
        # to open one would make it
        yield _fine("databases", f"Not made yet: {', '.join(missing)}. The first start makes them.")
        return
    try:
        databases = Databases.from_settings(settings)
    except ComfyRelayError as error:
        yield _broken("databases", error.detail)
        return
    try:
        for name, (has, newest) in (await databases.revisions()).items():
            if has == newest:
                yield _fine(f"database {name}", f"It can be reached, and its schema is the newest ({newest}).")
            else:
                text = f"Its schema is {has or 'empty'}, not {newest}: `comfyrelay up` and `db upgrade` bring it up."
                yield _lacking(f"database {name}", text)
    except ComfyRelayError as error:
        yield _broken("databases", error.detail)
    except Exception as error:
        # a file that is no database, for one: whatever it is, somebody wants to know, and to hear the rest
        yield _broken("databases", f"They cannot be read: {str(error).splitlines()[0]}.")
    finally:
        await databases.close()


def _may_exist(url: str) -> bool:
    scheme, _, path = url.partition(":///")
    return not scheme.startswith("sqlite") or Path(path).is_file()


async def _about_port(settings: Settings, holder: str | None) -> tuple[Finding, list[str]]:
    """Who is there; and of a desk, where its ComfyUIs are, unless everything is tried out on the stand-in."""
    about = f"desk {settings.base_url}"
    try:
        async with Client(settings.base_url) as client, asyncio.timeout(ANSWER_SECONDS):
            found = await client.desk()
    except NotFound:
        return _lacking(about, "A ComfyRelay server is there, and no desk: for `up` set another COMFYRELAY_PORT."), []
    except Unauthorized:
        return _lacking(about, "Another user's desk is there, or a server: for `up` set another COMFYRELAY_PORT."), []
    except ControlPlaneUnreachable:
        return _about_silence(about, settings, holder), []
    except (ComfyRelayError, TimeoutError):
        return _broken(about, "Something else answers there. Set COMFYRELAY_PORT to another port."), []
    is_all_tried = found.trying_out == TryingOut.EVERYTHING
    in_use = [] if is_all_tried else list(found.comfyui)
    runs = "the built-in stand-in, to try things out" if is_all_tried else f"ComfyUI at {', '.join(in_use)}"
    return _fine(about, f"A desk runs there, version {found.version}, with {runs}."), in_use


def _about_silence(about: str, settings: Settings, holder: str | None) -> Finding:
    try:
        listen(settings.host, settings.port).close()
    except (ConfigurationError, socket.gaierror) as error:
        return _broken(about, str(error))
    if holder is not None:
        return _lacking(about, f"Process {holder} uses the data folder, but does not answer there.")
    return _fine(about, "No desk runs there, and the port is free: `comfyrelay up` starts one.")


async def _about_comfyui(url: str, desk: DeskSettings) -> Finding:
    place = desk.comfyui_url.index(url)
    folder = desk.comfyui_folders[place] if place < len(desk.comfyui_folders) else None
    async with ComfyClient(url) as client:
        found = await about_comfyui(client, folder=folder, setting=f"{DESK_PREFIX}COMFYUI_FOLDERS")
    if found.verdict is Verdict.BROKEN and "comfyui_url" not in desk.model_fields_set:
        text = f"{found.text} Jobs wait for it. Is it elsewhere? Name it: --comfyui-url."
        return _lacking(found.about, text)
    return found


def _about_script(table: Mapping[str, Any], data_dir: Path) -> Finding:
    # folders that a desk makes by itself need not be there yet
    there = _nearest(data_dir)
    made = {"working_folder": str(there), "template_folder": str(there), "input_folder": str(there)}
    try:
        found = script_settings({**made, **table}, data_dir=data_dir, input_folder=there)
    except ConfigurationError as error:
        return _broken("script", error.detail)
    return _fine("script", f"{found.script or 'The shipped script'} is run with {found.python}.")


def _nearest(folder: Path) -> Path:
    """The folder, or the one above it that is there."""
    return next(each for each in (folder, *folder.parents) if each.exists())


async def _about_notifications(desk: DeskSettings) -> AsyncIterator[Finding]:
    for url in desk.notify_urls:
        about = f"notifications {without_secrets(url)}"
        why = await asyncio.to_thread(why_unusable, url)
        if why is not None:
            yield _broken(about, why)
        else:
            yield _fine(about, f"It is notified of: {', '.join(desk.notify_on)}. `comfyrelay notify test` tries it.")


def _fine(about: str, text: str) -> Finding:
    return Finding(verdict=Verdict.FINE, about=about, text=text)


def _lacking(about: str, text: str) -> Finding:
    return Finding(verdict=Verdict.LACKING, about=about, text=text)


def _broken(about: str, text: str) -> Finding:
    return Finding(verdict=Verdict.BROKEN, about=about, text=text)
