"""`comfyrelay worker check`: check whether a worker with these settings could run jobs."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.comfy_api.client import ComfyApiClient
from comfyrelay.comfyui.graphs.foreign_files import UPLOAD_FOLDER
from comfyrelay.comfyui.graphs.preflight import installed_models
from comfyrelay.comfyui.processes import mps
from comfyrelay.comfyui.processes.gpus import find_gpus
from comfyrelay.comfyui.processes.installs import Install, find_installs
from comfyrelay.comfyui.processes.listening import find_base
from comfyrelay.comfyui.processes.options import ManagedOptions
from comfyrelay.comfyui.processes.python import check_python, find_python
from comfyrelay.comfyui.versions import version_note
from comfyrelay.errors import ComfyRelayError, Forbidden, NotFound, Unauthorized
from comfyrelay.extras import install_line, is_installed
from comfyrelay.protocol.desk import CheckResult, CheckVerdict
from comfyrelay.system.command_lines import setting_line
from comfyrelay.system.folder_lock import FolderLock
from comfyrelay.worker.comfyui.capabilities import Capabilities
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.host.imds import Imds
from comfyrelay.worker.host.machine import HostIdentity, identify_host
from comfyrelay.worker.registration import Registrar, explain, missing_in
from comfyrelay.worker.settings import ENV_PREFIX, WorkerSettings
from comfyrelay.worker.state import StateFolder

# The result for a ComfyUI that responds starts with this text.
RESPONDS = "It responds"


async def check(settings: WorkerSettings) -> AsyncIterator[CheckResult]:
    """Check everything a worker needs, without registering or changing anything."""
    imds = Imds(settings.metadata_url) if settings.has_metadata else None
    servers = Servers(settings, on_change=lambda: None)
    try:
        host = await identify_host(settings, imds)
        yield _check_machine(host, settings)
        yield _check_folder(settings, host)
        if missing := missing_in(settings):
            yield _broken("settings", " ".join(missing))
        if (options := settings.managed) is not None:
            yield await check_managed_comfyui(options)
        elif servers.own and not await _any_responds(servers):
            found = await check_installs(
                lambda folder: setting_line(f"{ENV_PREFIX}COMFYUI_DIR", folder),
                python=settings.comfyui_python,
                setting=f"{ENV_PREFIX}COMFYUI_PYTHON",
            )
            for result in found:
                yield result
        for client, url in zip(servers.own.values(), settings.comfyui_base_url, strict=False):
            folder = settings.folder_of(url) or await asyncio.to_thread(find_base, url)
            yield await check_comfyui(client, folder=folder, setting=f"{ENV_PREFIX}COMFYUI_FOLDERS")
        for cloud in servers.cloud.values():
            yield await _check_cloud(cloud)
        async for result in _check_control_plane(settings, host, servers, imds):
            yield result
    finally:
        await servers.close()
        if imds is not None:
            await imds.close()


def _fine(about: str, text: str) -> CheckResult:
    return CheckResult(verdict=CheckVerdict.FINE, about=about, text=text)


def _warning(about: str, text: str) -> CheckResult:
    return CheckResult(verdict=CheckVerdict.WARNING, about=about, text=text)


def _broken(about: str, text: str) -> CheckResult:
    return CheckResult(verdict=CheckVerdict.BROKEN, about=about, text=text)


async def _any_responds(servers: Servers) -> bool:
    for client in servers.own.values():
        with suppress(ComfyRelayError):
            await client.check()
            return True
    return False


async def check_managed_comfyui(options: ManagedOptions) -> CheckResult:
    """Check whether the managed ComfyUI could start, without starting it."""
    about = f"ComfyUI {options.folder}"
    try:
        install, python = await asyncio.to_thread(options.resolve)
    except ComfyRelayError as error:
        return _broken(about, error.detail)
    trouble, torch = await asyncio.to_thread(check_python, python)
    what = f"{install.kind.value.capitalize()}, version {install.version or 'unknown'}, with {python}"
    if trouble is not None:
        text = f"{what}, which cannot run it: {trouble} Set another Python with {options.setting}COMFYUI_PYTHON."
        return _broken(about, text)
    gpus = await asyncio.to_thread(find_gpus, options.arguments)
    names = ", ".join(gpu.name or "one unnamed GPU" for gpu in gpus)
    count = "automatic" if options.per_gpu == "auto" else str(options.per_gpu)
    text = f"{what} and torch {torch}. GPUs: {names}. Processes per GPU: {count}."
    if (sharing := await asyncio.to_thread(mps.plan, options, gpus)) is not None:
        text = f"{text} {sharing.why}"
    return _with_version_note(about, text, install.version)


async def check_installs(line: Callable[[str], str], *, python: Path | None, setting: str) -> list[CheckResult]:
    """List ComfyUI installations on this machine that ComfyRelay could manage. `line` returns the command that starts
    an installation; `python` is the chosen interpreter, `setting` the name of the setting for an interpreter."""
    found = await asyncio.to_thread(find_installs)
    return list(
        await asyncio.gather(*(_check_install(install, line, python=python, setting=setting) for install in found))
    )


async def _check_install(
    install: Install, line: Callable[[str], str], *, python: Path | None, setting: str
) -> CheckResult:
    about = f"ComfyUI {install.named}"
    what = f"Found a {install.kind.value}, version {install.version or 'unknown'}"
    start = line(str(install.named))
    try:
        python = await asyncio.to_thread(find_python, install, given=python, setting=setting)
    except ComfyRelayError as error:
        return _warning(about, f"{what}. {error.detail} Then: {start}")
    trouble, torch = await asyncio.to_thread(check_python, python)
    if trouble is not None:
        text = f"{what}, with {python}, which cannot run it: {trouble} Set another Python with {setting}, then: {start}"
        return _warning(about, text)
    text = f"{what}, with {python} and torch {torch}. ComfyRelay can start it: {start}"
    return _with_version_note(about, text, install.version)


def _check_machine(host: HostIdentity, settings: WorkerSettings) -> CheckResult:
    name = f"The name of this worker is {host.worker_id}."
    if host.instance_id is None:
        if settings.asg_name:
            text = f"{name} ASG_NAME is set, but this is not an EC2 instance, so it has no scale-in protection."
            return _warning("machine", text)
        return _fine("machine", f"{name} It is not on EC2, so there are no Spot notices.")
    if settings.asg_name and not is_installed("aws"):
        text = f"{name} ASG_NAME is set, but scale-in protection needs an extra: {install_line('aws')}"
        return _broken("machine", text)
    kind = f"{host.capacity_type or 'EC2'} instance"
    guarded = f" It is protected from scale-in of {settings.asg_name} while it runs jobs." if settings.asg_name else ""
    return _fine("machine", f"{name} It is a {kind}: it watches for Spot notices.{guarded}")


def _check_folder(settings: WorkerSettings, host: HostIdentity) -> CheckResult:
    folder = settings.data_dir / host.folder_name
    # Check the folder or its nearest existing parent. Unreadable folders count as missing.
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110
    try:
        if FolderLock(folder).holder() is not None:
            return _warning("folder", f"A worker is running in {folder} now.")
        why = None if _is_writable(existing) else f"{existing} is not a writable folder"
    except OSError as error:
        why = error.strerror
    if why is not None:
        text = f"{folder} cannot be used: {why}. Choose another with COMFYRELAY_WORKER_DATA_DIR."
        return _broken("folder", text)
    text = f"Its files are in {folder}." if existing == folder else f"It will create {folder} for its files."
    return _fine("folder", text)


async def check_comfyui(client: ComfyClient, *, folder: Path | None, setting: str) -> CheckResult:
    """Check one ComfyUI. `folder` contains its `input` and `output`, if known; `setting` is the name of its setting."""
    about = f"ComfyUI {client.url}"
    try:
        await client.check()
        stats = await client.system_stats()
        info = await client.object_info()
    except ComfyRelayError as error:
        return _broken(about, error.detail)
    system, devices = stats.get("system") or {}, stats.get("devices") or []
    gpus = ", ".join(_gpu(device) for device in devices if isinstance(device, dict)) or "no device reported"
    has = f"{len(info)} node classes, {len(installed_models(info))} models"
    version = system.get("comfyui_version")
    note = version_note(version) if isinstance(version, str) else None
    text = " ".join(filter(None, [f"{RESPONDS}: version {version or 'unknown'}, {gpus}, {has}.", note]))
    if folder is None:
        stay = f"Job files stay in its folders input/{UPLOAD_FOLDER} and output/{UPLOAD_FOLDER}"
        advice = f"set {setting} to the folder that contains `input` and `output`"
        elsewhere = "If it runs on another machine, delete them there occasionally, while no job is running."
        return _warning(about, f"{text} {stay}, because its folder is not known here: {advice}. {elsewhere}")
    if not (folder / "output").is_dir():
        return _warning(about, f"{text} But {folder} has no folder `output`: check {setting}.")
    if closed := [
        str(cleaned_folder)
        for cleaned_folder in _cleaned_folders(folder)
        if cleaned_folder.is_dir() and not _is_writable(cleaned_folder)
    ]:
        more = f"But job files are not deleted: this user cannot write to {', '.join(closed)}."
        return _warning(about, f"{text} {more}")
    return _fine(about, text) if note is None else _warning(about, text)


def _with_version_note(about: str, text: str, version: str | None) -> CheckResult:
    """Warn about a version that is older or newer than all tried versions."""
    note = None if version is None else version_note(version)
    return _fine(about, text) if note is None else _warning(about, f"{text} {note}")


def _cleaned_folders(folder: Path) -> list[Path]:
    """Return the folders in which the worker deletes files of finished jobs."""
    kinds = [folder / kind for kind in ("input", "output", "temp")]
    return [*kinds, *(kind / UPLOAD_FOLDER for kind in kinds)]


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


async def _check_cloud(client: ComfyApiClient) -> CheckResult:
    about = f"cloud service {client.url}"
    try:
        await client.check()
    except ComfyRelayError as error:
        return _broken(about, error.detail)
    return _fine(about, f"It accepts the key. Simultaneous runs: {client.slots}.")


async def _check_control_plane(
    settings: WorkerSettings, host: HostIdentity, servers: Servers, imds: Imds | None
) -> AsyncIterator[CheckResult]:
    control = ControlPlane(settings.api_base_url, worker_id=host.worker_id)
    about = f"control plane {control.url}"
    try:
        await control.check()
        yield _fine(about, "It responds.")
        if missing_in(settings):
            return
        capabilities = Capabilities(servers, settings.capabilities)
        await capabilities.refresh()
        # This call does not read the state folder, so the folder need not exist.
        registration = Registrar(settings, control, StateFolder(settings.data_dir / host.folder_name), imds=imds)
        # No server is started for a check, so there may be none.
        details = {"max_concurrency": max(servers.at_once, 1), "capabilities": capabilities.current}
        registered = await registration.dry_run(details)
    except ComfyRelayError as error:
        is_default = "api_base_url" not in settings.model_fields_set
        advice = " API_BASE_URL is not set: set it to the address of the server." if is_default else ""
        yield _broken(_refused(error, settings) or about, f"{explain(error, settings, control)}{advice}")
        return
    finally:
        await control.close()
    for slug in registered.workflows_assigned:
        yield _check_workflow(slug, registered.missing.get(slug, []))


def _refused(error: ComfyRelayError, settings: WorkerSettings) -> str | None:
    """Return why the control plane rejected the worker; `None` for other errors."""
    match error:
        case Unauthorized():
            return "fleet secret" if settings.fleet_secret else "instance identity"
        case NotFound() | Forbidden():
            return f"fleet {settings.fleet_slug}"
        case _:
            return None


def _check_workflow(slug: str, missing: list[str]) -> CheckResult:
    about = f"workflow {slug}"
    if missing:
        text = f"It would be assigned, but its jobs would fail here. Missing: {', '.join(missing)}."
        return _warning(about, text)
    return _fine(about, "It would be assigned.")


def _gpu(device: dict[str, Any]) -> str:
    total, free = device.get("vram_total"), device.get("vram_free")
    if not isinstance(total, int | float) or not isinstance(free, int | float):
        return str(device.get("name"))
    return f"{device.get('name')} with {total / 1024**3:.1f} GiB ({free / 1024**3:.1f} free)"
