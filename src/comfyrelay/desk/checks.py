"""Check whether a desk can run on this machine. Each result contains advice."""

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
from comfyrelay.comfyui.processes.listening import find_base
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
# With less free space, the database cannot be written.
MIN_FREE_BYTES = GIB // 10
# With less free space, large outputs may not fit.
LOW_FREE_BYTES = 5 * GIB


async def examine_own(
    settings: Settings, desk: DeskSettings, in_use: Sequence[str], *, script: Mapping[str, Any] | None
) -> AsyncIterator[CheckResult]:
    """Check the desk in this process, for its own page. `in_use` are the URLs of its ComfyUI servers."""
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
    managed = {note.url: log.parent for note, log in state_files.find(settings.data_dir / "worker")}
    findings = [await _about_comfyui(url, desk, folder=managed.get(url)) for url in urls]
    for finding in findings:
        yield finding
    if desk.managed is None and not any(finding.text.startswith(RESPONDS) for finding in findings):
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
    existing = _nearest_existing(folder)
    try:
        check_filesystem(folder)
        if existing != folder:
            yield fine(about, f"{folder} does not exist yet. The first start creates it.")
        elif not os.access(folder, os.W_OK | os.X_OK):
            yield broken(about, f"{folder} is not writable. Choose another with --data-dir or COMFYRELAY_DATA_DIR.")
        elif holder is not None:
            yield fine(about, f"{folder} is in use by process {holder}.")
        else:
            try_sqlite(folder)
            yield fine(about, f"{folder} is usable and not in use.")
    except ConfigurationError as error:
        yield broken(about, error.detail)
    free = free_bytes(existing)
    text = f"{free / GIB:.1f} GiB are free on the disk of {folder}."
    if free < MIN_FREE_BYTES:
        yield broken("disk", f"{text} Free some space: the database needs it.")
    elif free < LOW_FREE_BYTES:
        yield warning("disk", f"{text} Outputs may not fit.")
    else:
        yield fine("disk", text)


async def _about_comfyui(url: str, desk: DeskSettings, *, folder: Path | None) -> CheckResult:
    """Check one ComfyUI. `folder` is its folder, if it is managed."""
    index = desk.comfyui_url.index(url)
    folder = desk.comfyui_folders[index] if index < len(desk.comfyui_folders) else folder
    folder = folder or await asyncio.to_thread(find_base, url)
    async with ComfyClient(url) as client:
        found = await check_comfyui(client, folder=folder, setting=f"{DESK_PREFIX}COMFYUI_FOLDERS")
    if found.verdict == CheckVerdict.BROKEN and "comfyui_url" not in desk.model_fields_set:
        return warning(found.about, f"{found.text} Jobs wait for it. Use --comfyui-url if it has another address.")
    return found


def about_script(table: Mapping[str, Any], data_dir: Path) -> CheckResult:
    # The folders that a desk creates may not exist yet.
    existing = _nearest_existing(data_dir)
    folders = dict.fromkeys(("working_folder", "template_folder", "input_folder"), str(existing))
    try:
        found = script_settings({**folders, **table}, data_dir=data_dir, input_folder=existing)
    except ConfigurationError as error:
        return broken("script", error.detail)
    return fine("script", f"{found.script or 'The built-in script'} runs with {found.python}.")


def _nearest_existing(folder: Path) -> Path:
    """Return the folder or its nearest existing parent."""
    return next(path for path in (folder, *folder.parents) if path.exists())


async def about_notifications(desk: DeskSettings) -> AsyncIterator[CheckResult]:
    for url in desk.notify_urls:
        about = f"notifications {without_secrets(url)}"
        problem = await asyncio.to_thread(why_unusable, url)
        if problem is not None:
            yield broken(about, problem)
        else:
            yield fine(about, f"Events: {', '.join(desk.notify_on)}. `comfyrelay notify test` sends a test.")


def fine(about: str, text: str) -> CheckResult:
    return CheckResult(verdict=CheckVerdict.FINE, about=about, text=text)


def warning(about: str, text: str) -> CheckResult:
    return CheckResult(verdict=CheckVerdict.WARNING, about=about, text=text)


def broken(about: str, text: str) -> CheckResult:
    return CheckResult(verdict=CheckVerdict.BROKEN, about=about, text=text)
