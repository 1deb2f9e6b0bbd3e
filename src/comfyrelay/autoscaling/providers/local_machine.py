"""The process of a `local` machine. It locks the machine's folder and runs a ComfyUI and a worker.

python -m comfyrelay.autoscaling.providers.local_machine FOLDER

If ComfyUI or the worker exits, or this process gets a stop signal, all stop. If it is killed, their launchers stop
them. The worker's settings are in the environment, so that no secret is in a file.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from comfyrelay.comfyui.processes.launch import without_own_secrets
from comfyrelay.errors import ConfigurationError
from comfyrelay.http_client import free_port
from comfyrelay.system import files
from comfyrelay.system.atomic import write_new
from comfyrelay.system.commands import detached
from comfyrelay.system.commands.contained import launch
from comfyrelay.system.folder_lock import FolderLock
from comfyrelay.system.signals import on_stop

# A reader that checks the lock holds it only for a moment.
LOCK_ATTEMPTS = 20
POLL_SECONDS = 0.2
REQUEST_TIMEOUT_SECONDS = 5.0
COMFYUI_GRACE_SECONDS = 5.0
_FOLDERS = ("comfyui", "worker")
# ComfyUI is on this host or close to it, so no proxy is used.
_OPENER = build_opener(ProxyHandler({}))


async def main(folder: Path) -> None:
    stop = asyncio.Event()
    with on_stop(lambda _number: stop.set()):
        lock = FolderLock(folder)
        if not _try_acquire(lock, folder):
            _print("Another process runs this machine.")
            return
        process = {"pid": os.getpid(), "started": detached.started_at()}
        if not write_new(folder / "begun.json", json.dumps(process).encode()):
            _print("This machine was started before and is not started again.")
            return
        # Check after writing begun.json: an earlier termination leaves this file, a later one sends a signal.
        if (folder / "ended").exists():
            _print("The machine was terminated before it started.")
            return
        try:
            await _run(folder, json.loads((folder / "order.json").read_text("utf-8")), stop)
        finally:
            for name in _FOLDERS:
                with suppress(OSError):
                    files.remove_tree(folder / name)
            lock.release()


def _try_acquire(lock: FolderLock, folder: Path) -> bool:
    for _ in range(LOCK_ATTEMPTS):
        if (folder / "begun.json").exists():
            return False
        with suppress(ConfigurationError):
            lock.acquire(advice="")
            return True
    return False


async def _run(folder: Path, order: Mapping[str, Any], stop: asyncio.Event) -> None:
    port = free_port()
    url = order["comfyui_url"] or f"http://127.0.0.1:{port}"
    work = folder / "comfyui"
    work.mkdir(exist_ok=True)
    # Other users of the host must not see the jobs of a simulator. A real ComfyUI has no sign-in.
    secret = token_urlsafe(32) if order.get("has_secret") else None
    login = url if secret is None else url.replace("//", f"//simulator:{secret}@", 1)
    environment = {**os.environ, "COMFYUI_BASE_URL": login}
    comfyui = worker = None
    stopping = asyncio.create_task(stop.wait())
    try:
        if order["comfyui"] is not None:
            argv = [word.replace("{port}", str(port)).replace("{folder}", str(work)) for word in order["comfyui"]]
            # ComfyUI's nodes must not read the secrets of the worker.
            plain = without_own_secrets({**environment, "COMFYUI_BASE_URL": url})
            if secret is not None:
                plain["COMFYRELAY_SIMULATOR_SECRET"] = secret
            comfyui = await _start("comfyui", argv, folder, plain, COMFYUI_GRACE_SECONDS)
        # Start the worker in parallel, because it waits for ComfyUI itself.
        worker = await _start("worker", order["worker"], folder, environment, order["grace_seconds"])
        answering = asyncio.create_task(_until_answering(url, secret, folder, order["answer_seconds"]))
        ends = {asyncio.create_task(process.wait(), name=name) for name, process in _named(comfyui, worker)}
        booted, _ = await asyncio.wait({stopping, answering, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if answering in booted and answering.result():
            await asyncio.wait({stopping, *ends}, return_when=asyncio.FIRST_COMPLETED)
        answering.cancel()
        for end in ends:
            if end.done():
                _print(f"The {end.get_name()} has ended ({end.result()}).")
    finally:
        # Stop the worker first: it needs ComfyUI to requeue or finish its jobs.
        for _, process in reversed(_named(comfyui, worker)):
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()
        stopping.cancel()


def _named(comfyui: Process | None, worker: Process | None) -> list[tuple[str, Process]]:
    return [(name, process) for name, process in (("ComfyUI", comfyui), ("worker", worker)) if process is not None]


async def _start(
    name: str, argv: Sequence[str], folder: Path, environment: Mapping[str, str], grace_seconds: float
) -> Process:
    with (folder / f"{name}.log").open("ab") as log:
        return await launch(argv, folder=folder, environment=environment, grace_seconds=grace_seconds, output=log)


async def _until_answering(url: str, secret: str | None, folder: Path, seconds: float) -> bool:
    """Wait until ComfyUI answers. Then the machine counts as running."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            address = url.rstrip("/") if secret is None else f"{url}/{secret}"
            while not await asyncio.to_thread(_answers, address):  # noqa: ASYNC110  (ComfyUI sends no event)
                await asyncio.sleep(POLL_SECONDS)
            (folder / "running").touch()
            return True
    _print(f"ComfyUI did not answer at {url} within {seconds:g} s.")
    return False


def _answers(url: str) -> bool:
    try:
        with _OPENER.open(f"{url}/system_stats", timeout=REQUEST_TIMEOUT_SECONDS) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError, ValueError):
        return False


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
