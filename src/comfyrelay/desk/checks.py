"""Check this machine for a desk; each result says what to do."""

import asyncio
import os
import platform
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from comfyrelay import __version__
from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.processes import state_files
from comfyrelay.desk.data_folder import check_filesystem, try_sqlite
from comfyrelay.desk.notifications.notifier import why_unusable, without_secrets
from comfyrelay.desk.scripts.config import script_settings
from comfyrelay.desk.settings import ENV_PREFIX as DESK_PREFIX
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.errors import ConfigurationError
from comfyrelay.protocol.desk import CheckResult, CheckVerdict
from comfyrelay.settings import Settings
from comfyrelay.system.command_lines import quoted
from comfyrelay.system.disks import free_bytes
from comfyrelay.system.platform import describe
from comfyrelay.worker.check import RESPONDS, check_comfyui, check_installs, check_managed_comfyui

GIB = 1024**3
# Free space: below the first limit nothing works, below the second large outputs may not fit.
MIN_SPACE = GIB // 10
LITTLE_SPACE = 5 * GIB


async def examine_own(
    settings: Settings, desk: DeskSettings, in_use: Sequence[str], *, script: Mapping[str, Any] | None
) -> AsyncIterator[CheckResult]:
    """Check the desk in this process for its own page. `in_use` are the URLs of its ComfyUIs."""
    yield about_python()
    for finding in about_folder(settings.data_dir, str(os.getpid())):
        yield finding
    if desk.managed is not None:
        yield await check_managed_comfyui(desk.managed)
    desk = desk.model_copy(update={"comfyui_url": list(in_use)})
    async for finding in about_comfyuis(settings, desk, list(in_use)):
        yield finding
    if script is not None:
        yield about_script(script, settings.data_dir)
    async for finding in about_notifications(desk):
        yield finding


async def about_comfyuis(settings: Settings, desk: DeskSettings, urls: Sequence[str]) -> AsyncIterator[CheckResult]:
    kept = {note.url: log.parent for note, log in state_files.find(settings.data_dir / "worker")}
    abouts = [await _about_comfyui(url, desk, folder=kept.get(url)) for url in urls]
    for finding in abouts:
        yield finding
    if desk.managed is None and not any(about.text.startswith(RESPONDS) for about in abouts):
        found = await check_installs(
            lambda folder: f"comfyrelay up --comfyui {quoted(folder)}",
            python=desk.comfyui_python,
            setting=f"{DESK_PREFIX}COMFYUI_PYTHON",
        )
        for finding in found:
            yield finding


def about_python() -> CheckResult:
    version = platform.python_version()
    return fine("python", f"ComfyRelay {__version__} on Python {version}, {describe()}, {sys.executable}.")


def about_folder(folder: Path, holder: str | None) -> Iterator[CheckResult]:
    about = "data folder"
    place = _nearest(folder)
    try:
        check_filesystem(folder)
        if place != folder:
            yield fine(about, f"{folder} is not there yet; the first start makes it.")
        elif not os.access(folder, os.W_OK | os.X_OK):
            yield broken(about, f"{folder} cannot be written. Choose another with --data-dir or COMFYRELAY_DATA_DIR.")
        elif holder is not None:
            yield fine(about, f"{folder} is in use by process {holder}.")
        else:
            try_sqlite(folder)
            yield fine(about, f"{folder} is usable and not in use.")
    except ConfigurationError as error:
        yield broken(about, error.detail)
    free = free_bytes(place)
    text = f"{free / GIB:.1f} GiB are free on the disk of {folder}."
    if free < MIN_SPACE:
        yield broken("disk", f"{text} Make room: the queue itself cannot be kept.")
    elif free < LITTLE_SPACE:
        yield warning("disk", f"{text} Outputs may not fit.")
    else:
        yield fine("disk", text)


async def _about_comfyui(url: str, desk: DeskSettings, *, folder: Path | None) -> CheckResult:
    """`folder` is given for a managed ComfyUI."""
    place = desk.comfyui_url.index(url)
    folder = desk.comfyui_folders[place] if place < len(desk.comfyui_folders) else folder
    async with ComfyClient(url) as client:
        found = await check_comfyui(client, folder=folder, setting=f"{DESK_PREFIX}COMFYUI_FOLDERS")
    if found.verdict is CheckVerdict.BROKEN and "comfyui_url" not in desk.model_fields_set:
        text = f"{found.text} Jobs wait for it. Is it elsewhere? Name it: --comfyui-url."
        return warning(found.about, text)
    return found


def about_script(table: Mapping[str, Any], data_dir: Path) -> CheckResult:
    # folders that a desk creates may not exist yet
    there = _nearest(data_dir)
    made = {"working_folder": str(there), "template_folder": str(there), "input_folder": str(there)}
    try:
        found = script_settings({**made, **table}, data_dir=data_dir, input_folder=there)
    except ConfigurationError as error:
        return broken("script", error.detail)
    return fine("script", f"{found.script or 'The shipped script'} is run with {found.python}.")


def _nearest(folder: Path) -> Path:
    """The folder or its nearest existing parent."""
    return next(each for each in (folder, *folder.parents) if each.exists())


async def about_notifications(desk: DeskSettings) -> AsyncIterator[CheckResult]:
    for url in desk.notify_urls:
        about = f"notifications {without_secrets(url)}"
        why = await asyncio.to_thread(why_unusable, url)
        if why is not None:
            yield broken(about, why)
        else:
            yield fine(about, f"It is notified of: {', '.join(desk.notify_on)}. `comfyrelay notify test` tries it.")


def fine(about: str, text: str) -> CheckResult:
    return CheckResult(verdict=CheckVerdict.FINE, about=about, text=text)


def warning(about: str, text: str) -> CheckResult:
    return CheckResult(verdict=CheckVerdict.WARNING, about=about, text=text)


def broken(about: str, text: str) -> CheckResult:
    return CheckResult(verdict=CheckVerdict.BROKEN, about=about, text=text)
